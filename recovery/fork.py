"""A new job from an older checkpoint: its state, its place in the input, and Spark's log up to there, in a new root.

The files are copied, so the two have nothing in common afterwards. The marker comes last: a root that a crash left
half made is not a checkpoint.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass

import msgspec

from recovery.checkpoint import MARKER, Checkpoint, Marker, now_us
from recovery.forging import check_stateless, files_read, forge, store_read
from recovery.manifest import FORMAT, Manifest, SparkPosition
from recovery.spark_log import load_files, store_files
from statestore.errors import NotFoundError, UsageError
from statestore.files.segments import read_verified
from statestore.objects import Objects


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
    empty, `NotFoundError` for a checkpoint that is not there, `IncompatibleError` where it is not known any
    more what Spark has read, or Spark keeps state of its own.
    """
    source = Checkpoint.open(root)
    head = source.head() if checkpoint_id is None else source.read(checkpoint_id)
    if head is None:
        raise NotFoundError("this root has no checkpoint yet: start the job", code="no-such-checkpoint", root=root)
    into = Objects(destination)
    if into.names(""):
        raise UsageError("a fork begins in an empty folder: give another one", code="fork-used", root=into.root)
    manifest = head.manifest
    check_stateless(source.objects)
    refs = {ref.path: ref for op in manifest.operators.values() for part in op.partitions for ref in part.files}
    for ref in refs.values():
        into.put(ref.path, read_verified(source.objects, ref))
    marker = Marker(FORMAT, uuid.uuid4().hex, now_us(), into.atomic_create)
    spark = _forged(source, into, manifest)
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


def _forged(source: Checkpoint, into: Objects, manifest: Manifest) -> SparkPosition | None:
    """Spark's checkpoint as it was at ``manifest``, under a query id of its own."""
    position = load_files(source.objects, manifest.spark)
    if position is None:
        return None
    position = store_files(into, msgspec.structs.replace(position, query_id=str(uuid.uuid4())), manifest.id)
    position = store_read(into, position, files_read(source, manifest), manifest.id)
    forge(into, msgspec.structs.replace(manifest, spark=position))
    return position


def advice(root: str, checkpoint_id: int) -> str:
    """The command that forks this checkpoint."""
    return f"tidemark fork {root} NEW_FOLDER --at {checkpoint_id}"
