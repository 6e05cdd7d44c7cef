"""Checkpoint roots with the positions of a Spark job, made without Spark."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from tests.helpers.manifests import following
from tests.servers.s3 import s3_endpoint, s3_root  # noqa: F401  (fixtures)
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest, SparkPosition
from tidestate.recovery.log.spark_log import followed, store_lists

BATCHES = 14
KAFKA = '{{"flights":{{"0":{0},"1":{0}}}}}'


STORAGES = ("local", "memory", "s3")


@pytest.fixture(params=STORAGES)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        return str(request.getfixturevalue("s3_root"))
    return str(tmp_path / "root") if request.param == "local" else f"memory://{uuid.uuid4().hex}/root"


def files_of(entry: int) -> tuple[str, ...]:
    """Two files in each entry, with a blank in a name."""
    return tuple(f"file:///input/{entry:02d}%20{half}.parquet {1_000 + entry}" for half in "ab")


def made(root: str, batches: int = BATCHES) -> Checkpoint:
    """A job with a source of files and one of Kafka; checkpoint b + 2 is of batch b. As Spark leaves its log."""
    checkpoint = Checkpoint.open_or_create(root)
    checkpoint.publish(following(checkpoint, None, kind="fence"))
    objects = checkpoint.objects
    start: tuple[str, ...] = ()
    position: SparkPosition | None = None
    for batch_id in range(batches):
        end = (json.dumps({"logOffset": batch_id}), KAFKA.format(batch_id * 10))
        position = followed(position, SparkPosition("first", batch_id, start, end, {"0": files_of(batch_id)}))
        spark = store_lists(objects, position, batch_id + 2)
        checkpoint.publish(following(checkpoint, checkpoint.head(), processing_us=batch_id * 1_000_000, spark=spark))
        start = end
        text = "\n".join(["v1", json.dumps({"batchTimestampMs": batch_id * 1_000}), *end])
        objects.put(f"spark/offsets/{batch_id}", text.encode())
        objects.put(f"spark/commits/{batch_id}", b'v1\n{"nextBatchWatermarkMs":0}')
        lines = [
            json.dumps({"path": one.split()[0], "timestamp": int(one.split()[1]), "batchId": batch_id})
            for one in files_of(batch_id)
        ]
        objects.put(f"spark/sources/0/{batch_id}", "\n".join(["v1", *lines]).encode())
    objects.put("spark/metadata", b'{"id":"first"}')
    return checkpoint


def head_of(checkpoint: Checkpoint) -> Manifest:
    head = checkpoint.head()
    assert head is not None
    return head.manifest
