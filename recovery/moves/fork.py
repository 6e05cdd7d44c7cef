"""A new job from a checkpoint of another: its state, its position in the input and Spark's log, in a new root.

No state is copied. The new root refers to the files where they are, and a pin, which is published first, keeps them.
The marker of the new root is written last: a root that a crash left incomplete is not a checkpoint root.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from tidestate.recovery.log.checkpoint import Checkpoint, now_us
from tidestate.recovery.log.manifest import (
    MANIFEST_FORMAT,
    Head,
    Manifest,
    OperatorState,
    SparkPosition,
    state_files,
)
from tidestate.recovery.log.manifest_file import InvalidManifest, check_root, successor
from tidestate.recovery.log.marker import MARKER, Marker
from tidestate.recovery.log.moments import CheckpointAt, head_at
from tidestate.recovery.log.pins import pin
from tidestate.recovery.log.records import read_pins
from tidestate.recovery.log.spark_log import load_files, with_lists
from tidestate.recovery.spark.spark_checkpoint import check_stateless, files_read, write_spark_checkpoint
from tidestate.statestore.checksums import checksum
from tidestate.statestore.errors import NotFoundError, UsageError, invariant
from tidestate.statestore.files.refs import count_files
from tidestate.statestore.storage.objects import Objects, put_all
from tidestate.statestore.storage.prefetch import ProgressCallback, no_progress


@dataclass(frozen=True)
class Forked:
    """The new root, its job and first checkpoint, the files and bytes that it reads from other roots, and the pin
    that keeps them.
    """

    root: str
    job_id: str
    checkpoint_id: int
    files: int
    bytes: int
    pin: str


@dataclass(frozen=True)
class Fork:
    """A planned fork: its result, the checkpoints to pin in which roots, and what is written into the new root, its
    own ``manifest`` and ``marker`` last.
    """

    result: Forked
    pins: tuple[tuple[Checkpoint, int], ...]
    target: Objects
    files: dict[str, bytes]
    manifest: Manifest
    marker: Marker


def plan_fork(
    root: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    checkpoint: CheckpointAt = None,
    on_progress: ProgressCallback = no_progress,
) -> Fork:
    """Plan a fork; nothing is written.

    Raises `UsageError` if the destination is not empty, `NotFoundError` if there is no such checkpoint, and
    `IncompatibleError` if the files that Spark has read are no longer known, if Spark has state of its own, or if the
    destination's storage cannot refer to the root's.
    """
    source = Checkpoint.open(root, on_progress)
    was = head_at(source, checkpoint).manifest
    bases = (str(source.objects.root), *source.objects.bases)
    target = Objects(destination, bases=bases)
    _check_outside(target, source.objects)
    _check_empty(target)
    _check_named(bases)
    _check_named([target.root])  # in the pins there
    check_stateless(source.objects)
    marker = Marker(MANIFEST_FORMAT, uuid.uuid4().hex, now_us(), target.atomic_create, bases, was.id)
    spark, files = load_files(source.objects, was.spark), dict[str, bytes]()
    if spark is not None:
        read = files_read(source, was)
        spark, files = with_lists(msgspec.structs.replace(spark, query_id=str(uuid.uuid4())), was.id, read)
    manifest = _first_manifest(was, marker, spark)
    state = state_files(manifest)
    invariant(all(ref.root for ref in state), "a new fork has no state files of its own")
    size = sum(ref.bytes for ref in state)
    result = Forked(str(target.root), marker.job_id, was.id, count_files(state), size, _pin_name(target.root))
    return Fork(result, tuple(_pins(source, was)), target, files, manifest, marker)


def side_copy(source: Checkpoint, was: Manifest, folder: str) -> Checkpoint:
    """A root in ``folder``, below the root of ``source``, that goes on from its checkpoint ``was``. It has no pin and
    no Spark checkpoint: it is for a while only, and whoever reads it can bear that its files are collected.
    """
    bases = (str(source.objects.root), *source.objects.bases)
    target = Objects(f"{source.objects.root.rstrip('/')}/{folder}", bases=bases)
    marker = Marker(MANIFEST_FORMAT, uuid.uuid4().hex, now_us(), target.atomic_create, bases, was.id)
    copy = Checkpoint(target, marker)
    copy.publish(_first_manifest(was, marker, was.spark))
    target.create(MARKER, msgspec.json.encode(marker) + b"\n")
    return copy


def _first_manifest(was: Manifest, marker: Marker, spark: SparkPosition | None) -> Manifest:
    """The first manifest of a fork from ``was``."""
    return successor(
        Head(was, ""),  # the first of its root
        "fence",
        uuid.uuid4().hex,
        now_us(),
        id=was.id,
        job_id=marker.job_id,
        operators={name: _from_base(operator) for name, operator in was.operators.items()},
        spark=spark,
        delivered=was.delivered.reached("panes", was.id).reached("late", was.id),
        abandoned=(),
        answered=None,
    )


def execute_fork(fork: Fork) -> Forked:
    """Create the fork as planned, whatever the source's job has done since: a checkpoint does not change.

    Raises `UsageError` (``fork-used``) if the folder is no longer empty, and `NotFoundError` if the checkpoint was
    collected; nothing was written.
    """
    target = fork.target
    _check_empty(target)
    for source, number in fork.pins:
        pin(source, number, fork.result.pin, fork=fork.result.root)
    put_all(target, fork.files)
    write_spark_checkpoint(target, fork.manifest)
    Checkpoint(target, fork.marker).publish(fork.manifest)
    target.create(MARKER, msgspec.json.encode(fork.marker) + b"\n")
    return fork.result


def _check_empty(target: Objects) -> None:
    if target.names(""):
        raise UsageError("a fork needs a new or empty folder: choose another one", code="fork-used", root=target.root)


def _check_outside(target: Objects, source: Objects) -> None:
    if f"{target.root}/".startswith(f"{source.root.rstrip('/')}/"):
        raise UsageError(
            "a fork is a root of its own, and this folder is in the one that it is made from: choose another one",
            code="fork-used",
            root=target.root,
        )


def _check_named(roots: Sequence[str]) -> None:
    """Raise `UsageError` (``root-url``) for roots that a marker file or a pin cannot name."""
    try:
        check_root("fork", roots)
    except InvalidManifest:
        raise UsageError(
            "a fork stores the paths of the roots that it reads, and this one has a control character (or there "
            "are too many forks of forks): rename the folder, or fork from another root",
            code="root-url",
            root=repr(roots[0]),
        ) from None


def _from_base(operator: OperatorState) -> OperatorState:
    """The state of an operator, its files one root further away."""
    partitions = tuple(
        msgspec.structs.replace(
            part, files=tuple(msgspec.structs.replace(ref, root=ref.root + 1) for ref in part.files)
        )
        for part in operator.partitions
    )
    # Parts are as much of a checkpoint as its manifest: the new root gets its own.
    return msgspec.structs.replace(operator, partitions=partitions, count=0, base=(), copies=(), changes=())


def _pin_name(destination: str) -> str:
    return f"fork-{checksum(destination.encode()).removeprefix('xxh3:')}"


def _pins(source: Checkpoint, manifest: Manifest) -> Iterator[tuple[Checkpoint, int]]:
    """What to pin for a fork: the checkpoint itself, and those in the roots that its root was forked from."""
    yield source, manifest.id
    for number in sorted({ref.root for ref in state_files(manifest)} - {0}):
        base = Checkpoint.open(source.objects.at(number).root)
        between = {source.objects.at(nearer).root for nearer in range(number)}
        keeping = [pin for pin in read_pins(base.objects) if pin.fork in between]
        if not keeping:
            raise NotFoundError(
                "this checkpoint needs files of the root that it was forked from, and no pin there keeps them: "
                "pin that checkpoint again, or fork from that root",
                code="fork-unpinned",
                root=base.objects.root,
            )
        yield base, keeping[-1].checkpoint


def advice(root: str, checkpoint_id: int) -> str:
    """The command that forks this checkpoint."""
    return f"tidestate fork {root} NEW_FOLDER --at {checkpoint_id}"
