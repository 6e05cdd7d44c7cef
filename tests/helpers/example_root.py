"""A checkpoint root of the worked example, and damage to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import evidence
from tests.helpers.command import copy as copy
from tests.helpers.worked_example import STREAM, example
from tidestate.statestore.spec.store import Parquet


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the worked example: a fence and six batches."""
    folder = tmp_path_factory.mktemp("cli") / "root"
    example("retracting").standalone(checkpoint=folder, store=Parquet(), partitions=2).run(STREAM)
    return folder


def damaged(root: Path, name: str) -> tuple[int, str, str]:
    """Damage a root in one way: the exit code, the kind of the finding and the path it names."""
    head = evidence.manifests(root)[-1]
    ref = next(
        ref["path"] for one in head["operators"].values() for part in one["partitions"] for ref in part["files"]
    )
    data = root / ref
    manifest = root / "manifests" / f"{4:020d}.json"
    if name == "manifest":
        manifest.write_bytes(manifest.read_bytes().replace(b'"kind":"batch"', b'"kind":"tick"'))
        return 10, "manifest", manifest.name
    if name == "chain":
        manifest.unlink()
        return 11, "chain", manifest.name
    if name == "gone":
        data.unlink()
        return 12, "file", ref
    if name == "cut":
        data.write_bytes(data.read_bytes()[:-1])
        return 12, "file", ref
    whole = bytearray(data.read_bytes())
    whole[len(whole) // 2] ^= 1
    data.write_bytes(whole)
    return 13, "bytes", ref
