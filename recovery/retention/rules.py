"""Which checkpoints and outputs are kept. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import msgspec

from tidestate.recovery.log.boundary import Boundary, Pin
from tidestate.recovery.log.manifest import OUTPUT_KINDS, Manifest, OutputKind, state_files
from tidestate.recovery.log.outputs import Output
from tidestate.statestore.arguments import called, checked
from tidestate.statestore.durations import Span, span_us
from tidestate.statestore.errors import UsageError, invariant
from tidestate.statestore.files.refs import FileRef

HOUR_US = 3_600_000_000

Part: TypeAlias = tuple[FileRef | None, list[Output]]
"""A file of the output index, None before it is written, and the outputs that it lists."""
RetentionParts: TypeAlias = list[Part]


@called("a rule of what to keep", "CheckpointRetention(newest=100)")
@dataclass(frozen=True)
class CheckpointRetention:
    """What is kept: the newest ``keep`` checkpoints and those younger than ``age_us``; always the head, pinned ones,
    and those that were the newest within ``grace_us``. ``output_age_us``: delete older panes and ledgers; without it
    they are kept for ever. Raises `UsageError` if nothing is set, or a value is not allowed.
    """

    keep: int | None = None
    age_us: int | None = None
    grace_us: int = HOUR_US
    output_age_us: int | None = None

    def __post_init__(self) -> None:
        spans = [span for span in (self.age_us, self.grace_us, self.output_age_us) if span is not None]
        if self.keep is None and self.age_us is None and self.output_age_us is None:
            raise UsageError("choose what to keep: a number of checkpoints or an age", code="retention-none")
        if (self.keep is not None and (type(self.keep) is not int or self.keep < 1)) or any(s < 0 for s in spans):
            raise UsageError(
                "keep a whole number of checkpoints, at least one; no span may be negative",
                code="retention-value",
                keep=self.keep,
            )


@checked
def retain(
    checkpoints: int | None = None, age: Span | None = None, *, panes: Span | None = None, grace: Span = "1 hour"
) -> CheckpointRetention:
    """What a root keeps, for ``retain=`` of a job: the newest ``checkpoints``, and those younger than ``age``; always
    the newest one, pinned ones, those that forks need, and those that were the newest within ``grace``.

    ``panes``: panes and rows of late ledgers older than this go too, as far as sinks have accepted them; without it
    they stay for ever. Raises `UsageError` if nothing is set, or a value is not allowed.
    """
    return CheckpointRetention(
        keep=checkpoints,
        age_us=None if age is None else span_us(age),
        grace_us=span_us(grace),
        output_age_us=None if panes is None else span_us(panes),
    )


@dataclass(frozen=True)
class Upkept:
    """What the collections of a run have done: how many were finished and failed, what they deleted, when the last
    one was finished (None: none was) and how long it took.
    """

    collections: int = 0
    failures: int = 0
    checkpoints: int = 0
    files: int = 0
    bytes: int = 0
    last_us: int | None = None
    last_s: float = 0.0

    def after(self, checkpoints: int, files: int, size: int, *, at_us: int, seconds: float) -> Upkept:
        """After another collection, which deleted so many checkpoints, files and bytes."""
        return Upkept(
            self.collections + 1,
            self.failures,
            self.checkpoints + checkpoints,
            self.files + files,
            self.bytes + size,
            at_us,
            seconds,
        )


@dataclass(frozen=True)
class RootContents:
    """The contents of a root: boundary, pins, head, and manifests by id, those above the boundary and pinned ones.

    ``stored`` are the ids of all manifest files, ``entries`` the files of the output index with the outputs that they
    list, ``written`` all files, each with the checkpoint that it was written for.
    """

    boundary: Boundary
    pins: Sequence[Pin]
    head: Manifest
    manifests: Mapping[int, Manifest]
    stored: Sequence[int]
    entries: Sequence[Part]
    written: Mapping[str, int]

    @property
    def ids(self) -> list[int]:
        """Ids above the boundary, ascending, whether or not their manifests can be read."""
        return [number for number in self.stored if number > self.boundary.id]

    @property
    def pinned(self) -> set[int]:
        """Pinned checkpoints."""
        return {pin.checkpoint for pin in self.pins}

    def made(self, at_us: int) -> dict[int, int]:
        """When the checkpoints above the boundary whose manifests can be read were created, see `made_by`."""
        readable = [self.manifests[number] for number in self.ids if number in self.manifests]
        return made_by([(manifest.id, manifest.created_us) for manifest in readable], at_us)


def collection_limit(known: RootContents, retention: CheckpointRetention, at_us: int) -> int:
    """The id up to which checkpoints that are not pinned can be collected; not below the boundary."""
    if retention.keep is None and retention.age_us is None:
        return known.boundary.id
    left = known.ids
    counting = [number for number in left if not known.head.abandons(number)]
    kept = {left[-1], *counting[-(retention.keep or 1) :]}
    made = known.made(at_us)  # without abandoned ones that cannot be read: those keep nothing
    for number, successor in pairwise(left):
        young = retention.age_us is not None and number in made and made[number] > at_us - retention.age_us
        if young or (successor in made and made[successor] > at_us - retention.grace_us):
            kept.add(number)
    return max(known.boundary.id, min(kept) - 1)


def made_by(created: Iterable[tuple[int, int]], at_us: int) -> dict[int, int]:
    """When checkpoints were created, by id, from their ids and times in ascending order. A time after ``at_us`` is
    that of a clock that was ahead: it is taken for that of the next one, or for ``at_us``, so that it keeps nothing
    until the clock is there.
    """
    made: dict[int, int] = {}
    next_us = at_us
    for number, created_us in reversed(list(created)):
        next_us = made[number] = created_us if created_us <= at_us else next_us
    return dict(sorted(made.items()))


def next_boundary(
    known: RootContents, bound: int, retention: CheckpointRetention, at_us: int, writer: str
) -> tuple[Boundary, RetentionParts]:
    """The boundary at ``bound``, and its output index, some files of which are yet to be written."""
    was = known.boundary
    invariant(was.id <= bound < known.head.id, "a boundary grows, and stays below the head", bound=bound, was=was.id)
    made = msgspec.structs.replace(was, number=was.number + 1, id=bound, created_us=at_us, writer=writer)
    if retention.output_age_us is not None:
        aged = _aged(known, retention.output_age_us, at_us)
        panes, late = _acknowledged(known, aged, "panes"), _acknowledged(known, aged, "late")
        made = msgspec.structs.replace(
            made, panes_gone=max(panes, was.panes_gone), late_gone=max(late, was.late_gone)
        )
    parts: RetentionParts = []
    for ref, entries in known.entries:
        if there := _entries(known, made, entries):
            parts.append((ref if there == entries else None, there))
    new = [_output(known.manifests[number]) for number in known.ids if number <= bound and number in known.manifests]
    if fresh := _entries(known, made, new):
        parts.append((None, fresh))
    while len(parts) > 1 and parts[-1][0] is None and len(parts[-2][1]) <= len(parts[-1][1]):
        parts[-2:] = [(None, parts[-2][1] + parts[-1][1])]
    return made, parts


def _output(manifest: Manifest) -> Output:
    """The output as the index lists it: with Spark's position only if that lists files."""
    spark, batch = manifest.spark, manifest.kind == "batch"
    listed = spark is not None and (spark.read_ref or (batch and (spark.files or spark.files_ref)))
    return Output(
        manifest.id, manifest.created_us, manifest.writer, manifest.panes, manifest.late, spark if listed else None
    )


def _entries(known: RootContents, boundary: Boundary, entries: Iterable[Output]) -> list[Output]:
    left = (boundary.remaining(one) for one in entries if not _lost(known, one.id))
    return [one for one in left if one.panes or one.late or one.spark]


def _lost(known: RootContents, number: int) -> bool:
    """Whether no reset can make a checkpoint count again: it and all that were abandoned after it are collected.

    Only up to the previous boundary: a checkpoint that is being collected may just have been pinned.
    """
    pinned = known.pinned
    return any(
        first <= number <= last <= known.boundary.id and not any(number <= one <= last for one in pinned)
        for first, last in known.head.abandoned
    )


def _aged(known: RootContents, age_us: int, at_us: int) -> int:
    """Up to which checkpoint output is older than that."""
    created = [(one.id, one.created_us) for _, entries in known.entries for one in entries]
    created += [(number, known.manifests[number].created_us) for number in known.ids if number in known.manifests]
    aged = 0
    for number, created_us in made_by(created, at_us).items():
        if created_us > at_us - age_us:
            break
        aged = number
    return aged


def _acknowledged(known: RootContents, aged: int, kind: OutputKind) -> int:
    """Up to which checkpoint output of that age can go: panes need a sink that has acknowledged them, ledgers only if
    the job has a sink for these.
    """
    had = known.head.delivered
    return min(aged, had.up_to(kind)) if kind == "panes" or had.late_sink else aged


def unacknowledged(known: RootContents, retention: CheckpointRetention, at_us: int) -> int:
    """How many files of panes and ledgers are old enough to delete, but not acknowledged by a sink."""
    if retention.output_age_us is None:
        return 0
    aged = _aged(known, retention.output_age_us, at_us)
    gone = {kind: _acknowledged(known, aged, kind) for kind in OUTPUT_KINDS}
    outputs = [one for _, entries in known.entries for one in entries]
    outputs += [_output(known.manifests[number]) for number in known.ids if number in known.manifests]
    return sum(len(one.output(kind)) for one in outputs for kind in gone if gone[kind] < one.id <= aged)


def reachable(known: RootContents, boundary: Boundary, parts: Iterable[Part]) -> set[str]:
    """Paths of the files of this root that are needed once ``boundary`` is published."""
    refs: list[FileRef] = []
    for number, manifest in known.manifests.items():
        if number > boundary.id or number in known.pinned:
            refs += boundary.needed(manifest)
    for part, entries in parts:
        refs += [part] if part is not None else []
        for one in entries:
            refs += (*one.panes, *one.late)
            refs += one.spark.refs if one.spark else ()
    return {ref.path for ref in refs if ref.root == 0}


def bases_read(known: RootContents, boundary: Boundary) -> set[int]:
    """Numbers of the roots that this one was forked from and still needs once ``boundary`` is published."""
    kept = [one for number, one in known.manifests.items() if number > boundary.id or number in known.pinned]
    return {ref.root for manifest in kept for ref in state_files(manifest)} - {0}


def deletable_files(known: RootContents, boundary: Boundary, needed: set[str], aged_us: int) -> list[str]:
    """Files that no checkpoint needs or will need.

    Files for ids above the head belong to checkpoints that are being made. A file that its own kept checkpoint does
    not name was left by an attempt that lost: it goes if the checkpoint was created before ``aged_us``.
    """
    found = []
    for path, number in known.written.items():
        if path in needed or number > known.head.id:
            continue
        owner = known.manifests.get(number)
        if number <= boundary.id or (owner is not None and owner.created_us <= aged_us):
            found.append(path)
    return sorted(found)
