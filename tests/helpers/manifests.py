"""Manifests that follow one another, made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import MANIFEST_FORMAT, Head, Manifest


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint.open_or_create(tmp_path)


def following(checkpoint: Checkpoint, head: Head | None, **changes: Any) -> Manifest:
    """The next manifest after ``head``."""
    manifest = Manifest(
        format=MANIFEST_FORMAT,
        id=head.manifest.id + 1 if head else 1,
        parent=head.checksum if head else "",
        job_id=checkpoint.marker.job_id,
        epoch=head.manifest.epoch if head else 1,
        writer=checkpoint.writer,
        kind="batch",
        created_us=0,
        operators={},
    )
    return msgspec.structs.replace(manifest, **changes)


def chain(checkpoint: Checkpoint, length: int) -> list[Head]:
    heads: list[Head] = []
    for _ in range(length):
        heads.append(checkpoint.publish(following(checkpoint, heads[-1] if heads else None)))
    return heads


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
