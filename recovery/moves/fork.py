"""A new job from an older checkpoint: its state, its place in the input, and Spark's log up to there, in a new root.

No state is copied. The new root names the files where they lie, and a pin keeps them there: it is published first.
The marker of the new root comes last: one that a crash left half made is not a checkpoint.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass

import msgspec

from tidestate.recovery.log.checkpoint import MARKER, Checkpoint, Marker, now_us
from tidestate.recovery.log.manifest import FORMAT, Manifest, OperatorState, SparkPosition, state_files
from tidestate.recovery.log.pins import pin
from tidestate.recovery.log.prefetch import Seen, told_nobody
from tidestate.recovery.log.records import Pin, read_pins
from tidestate.recovery.spark.spark_checkpoint import check_stateless, files_read, forge, store_read
from tidestate.recovery.spark.spark_log import load_files, store_files
from tidestate.statestore.checksums import checksum
from tidestate.statestore.errors import NotFoundError, UsageError
from tidestate.statestore.storage.objects import Objects


@dataclass(frozen=True)
class Forked:
    """What was made: the root, its job, the checkpoint it begins with; files and bytes that it reads where they are,
    and the pin that keeps them.
    """

    root: str
    job_id: str
    checkpoint_id: int
    files: int
    bytes: int
    pin: str


def fork(
    root: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    checkpoint_id: int | None = None,
    seen: Seen = told_nobody,
) -> Forked:
    """Make ``destination`` a job of its own that goes on from a checkpoint of ``root`` (default: the newest).

    The job at ``root`` may be running; it is not changed, but for a pin. Raises `UsageError` where the destination is
    not empty, `NotFoundError` for a checkpoint that is not there, `IncompatibleError` where it is not known any more
    what Spark has read, Spark keeps state of its own, or the root lies in a storage that a fork there may not name.
    """
    source = Checkpoint.open(root, seen)
    head = source.head() if checkpoint_id is None else source.read(checkpoint_id)
    if head is None:
        raise NotFoundError("this root has no checkpoint yet: start the job", code="no-such-checkpoint", root=root)
    bases = (source.objects.root, *source.objects.bases)
    into, manifest = Objects(destination, bases=bases), head.manifest
    if into.names(""):
        raise UsageError("a fork begins in an empty folder: give another one", code="fork-used", root=into.root)
    check_stateless(source.objects)
    kept = _pin(source, manifest, into.root)
    marker = Marker(FORMAT, uuid.uuid4().hex, now_us(), into.atomic_create, bases, manifest.id)
    forked = Checkpoint(into, marker)
    begun = msgspec.structs.replace(
        manifest,
        job_id=marker.job_id,
        writer=forked.writer,
        parent="",
        parent_id=0,
        kind="fence",
        created_us=now_us(),
        operators={name: _from_base(operator) for name, operator in manifest.operators.items()},
        spark=_forged(source, into, manifest),
        panes=(),
        late=(),
        counters={},
        delivered=manifest.id,
        abandoned=(),
    )
    forked.publish(begun)
    into.create(MARKER, msgspec.json.encode(marker) + b"\n")
    read = state_files(begun)
    return Forked(into.root, marker.job_id, manifest.id, len(read), sum(ref.bytes for ref in read), kept.name)


def _from_base(operator: OperatorState) -> OperatorState:
    """The state of an operator, its files named from one root further away."""
    partitions = tuple(
        msgspec.structs.replace(
            part, files=tuple(msgspec.structs.replace(ref, root=ref.root + 1) for ref in part.files)
        )
        for part in operator.partitions
    )
    return msgspec.structs.replace(operator, partitions=partitions)


def _pin(source: Checkpoint, manifest: Manifest, destination: str) -> Pin:
    """Keep what the fork at ``destination`` reads: here, and below the roots that this one was forked from itself."""
    name = f"fork-{checksum(destination.encode()).removeprefix('xxh3:')}"
    made = pin(source, manifest.id, name, fork=destination)
    for number in sorted({ref.root for ref in state_files(manifest)} - {0}):
        base = Checkpoint.open(source.objects.at(number).root)
        between = {source.objects.at(nearer).root for nearer in range(number)}
        keeping = [one for one in read_pins(base.objects) if one.fork in between]
        if not keeping:
            raise NotFoundError(
                "this checkpoint needs files of the root that it was forked from, and nothing keeps them there: "
                "pin that checkpoint again, or fork from that root",
                code="fork-unpinned",
                root=base.objects.root,
            )
        pin(base, keeping[-1].checkpoint, name, fork=destination)
    return made


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
    return f"tidestate fork {root} NEW_FOLDER --at {checkpoint_id}"
