"""A new job from an older checkpoint: its state, its place in the input, and Spark's log up to there, in a new root.

No state is copied. The new root names the files where they lie, and a pin keeps them there: it is published first.
The marker of the new root comes last: one that a crash left half made is not a checkpoint.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from tidestate.recovery.log.checkpoint import Checkpoint, now_us
from tidestate.recovery.log.manifest import MANIFEST_FORMAT, Head, Manifest, OperatorState, state_files
from tidestate.recovery.log.marker import MARKER, Marker
from tidestate.recovery.log.pins import pin
from tidestate.recovery.log.prefetch import ProgressCallback, no_progress
from tidestate.recovery.log.records import read_pins
from tidestate.recovery.log.successor import successor
from tidestate.recovery.spark.position import load_files, with_lists
from tidestate.recovery.spark.spark_checkpoint import check_stateless, files_read, write_spark_checkpoint
from tidestate.statestore.checksums import checksum
from tidestate.statestore.errors import NotFoundError, UsageError, invariant
from tidestate.statestore.storage.objects import Objects, put_all


@dataclass(frozen=True)
class Forked:
    """What is made: the root, its job, the checkpoint it begins with; files and bytes that it reads where they are,
    and the pin that keeps them.
    """

    root: str
    job_id: str
    checkpoint_id: int
    files: int
    bytes: int
    pin: str


@dataclass(frozen=True)
class Fork:
    """A fork before it is made: ``shown``; which checkpoints are pinned in which roots, that of the source first; and
    what is written into the new root, its own ``manifest`` and ``marker`` last.
    """

    shown: Forked
    pins: tuple[tuple[Checkpoint, int], ...]
    into: Objects
    files: dict[str, bytes]
    manifest: Manifest
    marker: Marker


def fork(
    root: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    checkpoint_id: int | None = None,
    seen: ProgressCallback = no_progress,
) -> Forked:
    """Make ``destination`` a job of its own that goes on from a checkpoint of ``root`` (default: the newest).

    The job at ``root`` may be running; it is not changed, but for a pin. Raises as `plan_fork` and `execute_fork`.
    """
    return execute_fork(plan_fork(root, destination, checkpoint_id, seen))


def plan_fork(
    root: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    checkpoint_id: int | None = None,
    seen: ProgressCallback = no_progress,
) -> Fork:
    """What `fork` would make now; nothing is changed.

    Raises `UsageError` where the destination is not empty, `NotFoundError` for a checkpoint that is not there,
    `IncompatibleError` where it is not known any more what Spark has read, Spark keeps state of its own, or the root
    lies in a storage that a fork there may not name.
    """
    source = Checkpoint.open(root, seen)
    was = source.chosen(checkpoint_id).manifest
    bases = (source.objects.root, *source.objects.bases)
    into = Objects(destination, bases=bases)
    _check_empty(into)
    check_stateless(source.objects)
    marker = Marker(MANIFEST_FORMAT, uuid.uuid4().hex, now_us(), into.atomic_create, bases, was.id)
    spark, files = load_files(source.objects, was.spark), dict[str, bytes]()
    if spark is not None:
        read = files_read(source, was)
        spark, files = with_lists(msgspec.structs.replace(spark, query_id=str(uuid.uuid4())), was.id, read)
    manifest = successor(
        Head(was, ""),  # the first of its root
        "fence",
        uuid.uuid4().hex,
        now_us(),
        id=was.id,
        job_id=marker.job_id,
        operators={name: _from_base(operator) for name, operator in was.operators.items()},
        spark=spark,
        delivered=was.id,
        abandoned=(),
    )
    state = state_files(manifest)
    invariant(all(ref.root for ref in state), "a fork has no state of its own yet")
    size = sum(ref.bytes for ref in state)
    shown = Forked(into.root, marker.job_id, was.id, len(state), size, _pin_name(into.root))
    return Fork(shown, tuple(_pins(source, was)), into, files, manifest, marker)


def execute_fork(planned: Fork) -> Forked:
    """Make it as planned: whatever the source's job has done since, a checkpoint does not change.

    Raises `UsageError` (``fork-used``) where something has come into the folder since it was planned, `NotFoundError`
    where the checkpoint was collected. Nothing has happened then.
    """
    into, shown = planned.into, planned.shown
    _check_empty(into)
    for source, number in planned.pins:
        pin(source, number, shown.pin, fork=shown.root)
    put_all(into, planned.files)
    write_spark_checkpoint(into, planned.manifest)
    Checkpoint(into, planned.marker).publish(planned.manifest)
    into.create(MARKER, msgspec.json.encode(planned.marker) + b"\n")
    return shown


def _check_empty(into: Objects) -> None:
    if into.names(""):
        raise UsageError("a fork begins in an empty folder: give another one", code="fork-used", root=into.root)


def _from_base(operator: OperatorState) -> OperatorState:
    """The state of an operator, its files named from one root further away."""
    partitions = tuple(
        msgspec.structs.replace(
            part, files=tuple(msgspec.structs.replace(ref, root=ref.root + 1) for ref in part.files)
        )
        for part in operator.partitions
    )
    return msgspec.structs.replace(operator, partitions=partitions)


def _pin_name(destination: str) -> str:
    return f"fork-{checksum(destination.encode()).removeprefix('xxh3:')}"


def _pins(source: Checkpoint, manifest: Manifest) -> Iterator[tuple[Checkpoint, int]]:
    """What keeps the files of a fork: here, and below the roots that this one was forked from itself."""
    yield source, manifest.id
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
        yield base, keeping[-1].checkpoint


def advice(root: str, checkpoint_id: int) -> str:
    """The command that forks this checkpoint."""
    return f"tidestate fork {root} NEW_FOLDER --at {checkpoint_id}"
