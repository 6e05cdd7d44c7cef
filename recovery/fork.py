"""A new job from an older checkpoint: its state, its place in the input, and Spark's log up to there, in a new root.

The files are copied, so the two have nothing in common afterwards. The marker comes last: a root that a crash left
half made is not a checkpoint.
"""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import dataclass

import msgspec

from recovery.checkpoint import MARKER, Checkpoint, Marker, now_us
from recovery.manifest import FORMAT, Manifest, SparkPosition
from recovery.spark_log import FOLDER, SparkLog, load_files, store_files
from statestore.errors import IncompatibleError, NotFoundError, UsageError
from statestore.files.segments import read_verified
from statestore.objects import Objects

COMMITTED = 'v1\n{"nextBatchWatermarkMs":0}'
"""What Spark writes when it has finished a batch of a query without a watermark of its own."""


@dataclass(frozen=True)
class Forked:
    """What was made: the root, its job, the checkpoint it begins with, files and bytes copied."""

    root: str
    job_id: str
    checkpoint_id: int
    files: int
    bytes: int


def fork(
    root: str | os.PathLike[str], destination: str | os.PathLike[str], checkpoint_id: int | None = None
) -> Forked:
    """Make ``destination`` a job of its own that goes on from a checkpoint of ``root`` (default: the newest).

    The job at ``root`` may be running, and nothing of it changes. Raises `UsageError` where the destination is not
    empty, `NotFoundError` for a checkpoint that is not there, `IncompatibleError` where Spark forgot the batch.
    """
    source = Checkpoint.open(root)
    head = source.head() if checkpoint_id is None else source.read(checkpoint_id)
    if head is None:
        raise NotFoundError("this root has no checkpoint yet: start the job", code="no-such-checkpoint", root=root)
    into = Objects(destination)
    if into.names(""):
        raise UsageError("a fork begins in an empty folder: give another one", code="fork-used", root=into.root)
    manifest = head.manifest
    refs = {ref.path: ref for op in manifest.operators.values() for part in op.partitions for ref in part.files}
    for ref in refs.values():
        into.put(ref.path, read_verified(source.objects, ref))
    marker = Marker(FORMAT, uuid.uuid4().hex, now_us(), into.atomic_create)
    spark = _spark(source.objects, into, manifest)
    begun = msgspec.structs.replace(
        manifest,
        job_id=marker.job_id,
        parent="",
        parent_id=0,
        kind="fence",
        created_us=now_us(),
        spark=spark,
        panes=(),
        late=(),
        counters={},
        delivered=manifest.id,
    )
    Checkpoint(into, marker).publish(begun)
    into.create(MARKER, msgspec.json.encode(marker) + b"\n")
    copied = sum(ref.bytes for ref in refs.values())
    return Forked(into.root, marker.job_id, manifest.id, len(refs), copied)


def _spark(source: Objects, into: Objects, manifest: Manifest) -> SparkPosition | None:
    """Spark's log up to the batch of ``manifest``, under a query id of its own."""
    position = load_files(source, manifest.spark)
    if position is None:
        return None
    query_id = str(uuid.uuid4())
    into.put(f"{FOLDER}/metadata", json.dumps({"id": query_id}).encode())
    for batch_id in range(max(0, position.batch_id - 1), position.batch_id + 1):
        try:
            planned = source.read(f"{FOLDER}/offsets/{batch_id}")
        except NotFoundError:
            raise IncompatibleError(
                "spark keeps the log of its newest batches only, and this one is gone: fork a newer checkpoint, and "
                "let it keep more (spark.sql.streaming.minBatchesToRetain)",
                code="fork-spark-log",
                batch=batch_id,
            ) from None
        into.put(f"{FOLDER}/offsets/{batch_id}", planned)
        into.put(f"{FOLDER}/commits/{batch_id}", COMMITTED.encode())
    log = SparkLog(source)
    for number, text in enumerate(position.end):
        for name, content in log.files_up_to(number, text).items():
            into.put(f"{FOLDER}/sources/{number}/{name}", content.encode())
    return store_files(into, msgspec.structs.replace(position, query_id=query_id), manifest.id)


def advice(root: str, checkpoint_id: int) -> str:
    """The command that forks this checkpoint."""
    return f"tidemark fork {root} NEW_FOLDER --at {checkpoint_id}"
