"""A root whose job has done some batches and planned one more, with Spark's checkpoint; and a start on it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import tidestate as ts
from tests.helpers.manifests import following
from tests.helpers.spark_checkpoints import KAFKA, files_of, head_of, made
from tidestate.operators import Policy
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.log.spark_log import SparkLog, load_files
from tidestate.recovery.spark.agreement import Agreement, compare
from tidestate.recovery.spark.spark_checkpoint import COMPACTED
from tidestate.recovery.start.spark_repair import SparkRepair

BATCHES = 6
N = BATCHES - 1
"""Number of the newest batch; Spark has planned one more."""


def entry(number: int) -> bytes:
    lines = [
        json.dumps({"path": one.split()[0], "timestamp": int(one.split()[1]), "batchId": number})
        for one in files_of(number)
    ]
    return "\n".join(["v1", *lines]).encode()


def plan(checkpoint: Checkpoint, batch_id: int) -> None:
    """Spark has planned this batch, and not done it."""
    objects = checkpoint.objects
    objects.put(f"spark/sources/0/{batch_id}", entry(batch_id))
    end = (json.dumps({"logOffset": batch_id}), KAFKA.format(batch_id * 10))
    text = "\n".join(["v1", json.dumps({"batchTimestampMs": batch_id * 1_000}), *end])
    objects.put(f"spark/offsets/{batch_id}", text.encode())


def fold(root: Path, interval: int, last: int) -> None:
    """As Spark folds its list of files."""
    folder = root / "spark/sources/0"
    lines: list[str] = []
    for number in range(last + 1):
        lines += (folder / str(number)).read_text().split("\n")[1:]
        if (number + 1) % interval == 0:
            (folder / f"{number}.compact").write_text("\n".join(["v1", *lines]))
            (folder / str(number)).unlink()


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("planned") / "root"
    checkpoint = made(str(root), BATCHES)
    checkpoint.objects.put("spark/sources/1/0", b'\x00v1\n{"flights":{"0":0,"1":0}}')
    plan(checkpoint, N + 1)
    return root


@pytest.fixture
def root(planned: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(planned, tmp_path / "root"))


def seen(root: Path, interval: int | None = COMPACTED) -> Agreement:
    checkpoint = Checkpoint.open(root)
    return compare(load_files(checkpoint.objects, head_of(checkpoint).spark), SparkLog(checkpoint.objects), interval)


def start(root: Path, policy: Policy | None = None, **settings: Any) -> Manifest:
    """What a start does: look, take over, mend."""
    checkpoint = Checkpoint.open(root)
    mending = SparkRepair(checkpoint, policy or ts.Policy(), **settings)
    head = head_of(checkpoint)
    mending.compare(head)
    fence = checkpoint.publish(
        following(checkpoint, checkpoint.head(), kind="fence", spark=head.spark, epoch=head.epoch + 1)
    ).manifest
    mending.repair(fence)
    return fence


def check_mended(root: Path, interval: int = COMPACTED) -> None:
    found = seen(root, interval)
    assert (found.differs, found.refusal) == ((), None)
    assert found.read == {0: {number: files_of(number) for number in range(BATCHES)}}
    assert (root / "spark/sources/1/0").read_bytes() == b'\x00v1\n{"flights":{"0":0,"1":0}}'
