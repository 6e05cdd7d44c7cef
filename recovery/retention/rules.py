"""Which checkpoints and outputs are kept. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import TypeAlias

import msgspec

from tidestate.recovery.log.boundary import Boundary, Pin
from tidestate.recovery.log.manifest import OUTPUT_KINDS, Manifest, OutputKind, state_files
from tidestate.recovery.log.outputs import Output
from tidestate.statestore.arguments import called
from tidestate.statestore.durations import Span, span_us, text_of
from tidestate.statestore.errors import UsageError, invariant
from tidestate.statestore.files.refs import FileRef

Part: TypeAlias = tuple[FileRef | None, list[Output]]
"""A file of the output index, None before it is written, and the outputs that it lists."""
RetentionParts: TypeAlias = list[Part]


@called("a rule of what to keep", "CheckpointRetention(newest=100)")
@dataclass(frozen=True, kw_only=True, repr=False)
class CheckpointRetention:
    """What a root keeps: so many of the ``newest`` checkpoints, and those younger than ``age``; always the newest
    one, pinned ones, those that forks need, and those that were the newest within ``grace``.

    ``panes``: panes and rows of late ledgers older than this go too, as far as sinks have accepted them; without it
    they stay forever. Spans are text such as ``"7 days"``, or a timedelta. Raises `UsageError` if nothing is set, or
    a value is not allowed.
    """

    newest: int | None = None
    age: Span | None = None
    panes: Span | None = None
    grace: Span = "1 hour"

    def __post_init__(self) -> None:
        if self.newest is None and self.age is None and self.panes is None:
            raise UsageError(
                "choose what to keep: a number of the newest checkpoints, an age of checkpoints, or an age of panes",
                code="retention-none",
            )
        spans_us = {"age": self.age_us, "panes": self.panes_us, "grace": self.grace_us}
        texts = {name: text_of(span) for name, span in spans_us.items() if span is not None}
        counted = self.newest is None or (type(self.newest) is int and self.newest > 0)
        if not counted or any(text.startswith("-") for text in texts.values()):
            raise UsageError(
                "the number of the newest checkpoints to keep must be a whole number, 1 or more, and no span may "
                "be negative",
                code="retention-value",
                newest=self.newest,
                **texts,
            )
        for name, text in texts.items():  # one spelling of each span: equal retentions are equal
            object.__setattr__(self, name, text)

    def __repr__(self) -> str:
        settings = {field.name: getattr(self, field.name) for field in fields(self)}
        usual = {field.name: field.default for field in fields(self)}
        texts = (f"{name}={value!r}" for name, value in settings.items() if value != usual[name])
        return f"CheckpointRetention({', '.join(texts)})"

    @property
    def age_us(self) -> int | None:
        """``age`` in microseconds, None where it sets no limit."""
        return None if self.age is None else span_us(self.age)

    @property
    def panes_us(self) -> int | None:
        """``panes`` in microseconds, None where it sets no limit."""
        return None if self.panes is None else span_us(self.panes)

    @property
    def grace_us(self) -> int:
        """``grace`` as a number of microseconds."""
        return span_us(self.grace)


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
        """The ids of checkpoints that a pin keeps."""
        return {pin.checkpoint for pin in self.pins}

    def made(self, at_us: int) -> dict[int, int]:
        """When the checkpoints above the boundary whose manifests can be read were created, see `made_by`."""
        readable = [self.manifests[number] for number in self.ids if number in self.manifests]
        return made_by([(manifest.id, manifest.created_us) for manifest in readable], at_us)


def collection_limit(known: RootContents, retention: CheckpointRetention, at_us: int) -> int:
    """The id up to which checkpoints that are not pinned can be collected; not below the boundary."""
    if retention.newest is None and retention.age_us is None:
        return known.boundary.id
    left = known.ids
    counting = [number for number in left if not known.head.abandons(number)]
    kept = {left[-1], *counting[-(retention.newest or 1) :]}
    made = known.made(at_us)  # without abandoned ones that cannot be read: those keep nothing
    age_us, grace_us = retention.age_us, retention.grace_us
    for number, successor in pairwise(left):
        young = age_us is not None and number in made and made[number] > at_us - age_us
        if young or (successor in made and made[successor] > at_us - grace_us):
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
    if retention.panes_us is not None:
        aged = _aged(known, retention.panes_us, at_us)
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
    if retention.panes_us is None:
        return 0
    aged = _aged(known, retention.panes_us, at_us)
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
