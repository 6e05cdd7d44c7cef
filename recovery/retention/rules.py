"""Which checkpoints and outputs are kept. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import TypeAlias

import msgspec

from tidestate.recovery.log.boundary import Boundary, Pin
from tidestate.recovery.log.manifest import OUTPUT_KINDS, Manifest, Output, OutputKind, output_of, state_files
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
        is_valid = self.newest is None or (type(self.newest) is int and self.newest > 0)
        if not is_valid or any(text.startswith("-") for text in texts.values()):
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
        settings = ((field, getattr(self, field.name)) for field in fields(self))
        texts = (f"{field.name}={value!r}" for field, value in settings if value != field.default)
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

    ``stored_ids`` are the ids of all manifest files, ``entries`` the files of the output index with the outputs that
    they list, ``written_files`` all files, each with the checkpoint that it was written for.
    """

    boundary: Boundary
    pins: Sequence[Pin]
    head: Manifest
    manifests: Mapping[int, Manifest]
    stored_ids: Sequence[int]
    entries: Sequence[Part]
    written_files: Mapping[str, int]

    @property
    def ids(self) -> list[int]:
        """Ids above the boundary, ascending, whether or not their manifests can be read."""
        return [number for number in self.stored_ids if number > self.boundary.id]

    @property
    def pinned(self) -> set[int]:
        """The ids of checkpoints that a pin keeps."""
        return {pin.checkpoint for pin in self.pins}

    @property
    def readable(self) -> list[Manifest]:
        """The checkpoints above the boundary whose manifests can be read, in order."""
        return [self.manifests[number] for number in self.ids if number in self.manifests]

    def kept_by(self, boundary: Boundary) -> list[Manifest]:
        """The checkpoints that count once ``boundary`` is published, with pinned ones."""
        numbers = {number for number in self.manifests if number > boundary.id} | self.pinned
        return [manifest for number, manifest in self.manifests.items() if number in numbers]

    def made(self, at_us: int) -> dict[int, int]:
        """When the checkpoints above the boundary whose manifests can be read were created, see `made_by`."""
        return made_by([(manifest.id, manifest.created_us) for manifest in self.readable], at_us)


def collection_limit(contents: RootContents, retention: CheckpointRetention, at_us: int) -> int:
    """The id up to which checkpoints that are not pinned can be collected; not below the boundary."""
    if retention.newest is None and retention.age_us is None:
        return contents.boundary.id
    left = contents.ids
    counting = [number for number in left if not contents.head.abandons(number)]
    kept_ids = {left[-1], *counting[-(retention.newest or 1) :]}
    times = contents.made(at_us)  # without abandoned ones that cannot be read: those keep nothing
    age_us, grace_us = retention.age_us, retention.grace_us
    for number, successor in pairwise(left):
        young = age_us is not None and number in times and times[number] > at_us - age_us
        if young or (successor in times and times[successor] > at_us - grace_us):
            kept_ids.add(number)
    return max(contents.boundary.id, min(kept_ids) - 1)


def made_by(stamps: Iterable[tuple[int, int]], at_us: int) -> dict[int, int]:
    """When checkpoints were created, by id, from their ids and times in ascending order. A time after ``at_us`` is
    that of a clock that was ahead: it is taken for that of the next one, or for ``at_us``, so that it keeps nothing
    until the clock is there.
    """
    times: dict[int, int] = {}
    next_us = at_us
    for number, created_us in reversed(list(stamps)):
        next_us = times[number] = created_us if created_us <= at_us else next_us
    return dict(sorted(times.items()))


def next_boundary(
    contents: RootContents, bound: int, retention: CheckpointRetention, at_us: int, writer: str
) -> tuple[Boundary, RetentionParts]:
    """The boundary at ``bound``, and its output index, some files of which are yet to be written."""
    was = contents.boundary
    invariant(
        was.id <= bound < contents.head.id, "a boundary grows, and stays below the head", bound=bound, was=was.id
    )
    boundary = msgspec.structs.replace(was, number=was.number + 1, id=bound, created_us=at_us, writer=writer)
    if retention.panes_us is not None:
        limit = _aged(contents, retention.panes_us, at_us)
        panes, late = _acknowledged(contents, limit, "panes"), _acknowledged(contents, limit, "late")
        panes, late = max(panes, was.panes_gone), max(late, was.late_gone)
        boundary = msgspec.structs.replace(
            boundary, panes_gone=panes, late_gone=late, further_gone=_further_gone(contents, limit, panes)
        )
    parts: RetentionParts = []
    for ref, entries in contents.entries:
        if entries_left := _entries(contents, boundary, entries):
            parts.append((ref if entries_left == entries else None, entries_left))
    new = [_output(manifest) for manifest in contents.readable if manifest.id <= bound]
    if fresh := _entries(contents, boundary, new):
        parts.append((None, fresh))
    # As a binary counter: a file is written again only with one that is as long, so each of n entries log2(n) times.
    while len(parts) > 1 and parts[-1][0] is None and len(parts[-2][1]) <= len(parts[-1][1]):
        parts[-2:] = [(None, parts[-2][1] + parts[-1][1])]
    return boundary, parts


def _further_gone(contents: RootContents, limit: int, panes_gone: int) -> dict[str, int]:
    """Up to which checkpoint panes go of each output that can go further than all: no sink holds the panes of other
    outputs than its own.
    """
    had, was = contents.head.delivered, contents.boundary
    ends = {name: min(limit, had.up_to("panes", name)) for name in contents.head.outputs}
    gone = {name: max(ends.get(name, 0), was.gone("panes", name)) for name in {**was.further_gone, **ends}}
    return {name: last for name, last in gone.items() if last > panes_gone}


def _output(manifest: Manifest) -> Output:
    """The output as the index lists it: with Spark's position only if that lists files."""
    spark, batch = manifest.spark, manifest.kind == "batch"
    lists_files = spark is not None and (spark.read_ref or (batch and (spark.files or spark.files_ref)))
    return msgspec.structs.replace(output_of(manifest), spark=spark if lists_files else None)


def _entries(contents: RootContents, boundary: Boundary, entries: Iterable[Output]) -> list[Output]:
    left = (boundary.remaining(output) for output in entries if not _lost(contents, output.id))
    return [output for output in left if output.panes or output.late or output.spark]


def _lost(contents: RootContents, number: int) -> bool:
    """Whether no reset can make a checkpoint count again: it and all that were abandoned after it are collected.

    Only up to the previous boundary: a checkpoint that is being collected may just have been pinned.
    """
    pins = contents.pinned
    return any(
        first <= number <= last <= contents.boundary.id and not any(number <= pin_id <= last for pin_id in pins)
        for first, last in contents.head.abandoned
    )


def _aged(contents: RootContents, age_us: int, at_us: int) -> int:
    """Up to which checkpoint output is older than that."""
    stamps = [(output.id, output.created_us) for _, entries in contents.entries for output in entries]
    stamps += [(manifest.id, manifest.created_us) for manifest in contents.readable]
    last_id = 0
    for number, created_us in made_by(stamps, at_us).items():
        if created_us > at_us - age_us:
            break
        last_id = number
    return last_id


def _acknowledged(contents: RootContents, limit: int, kind: OutputKind) -> int:
    """Up to which checkpoint output of that age can go: panes need a sink that has acknowledged them, ledgers only if
    the job has a sink for these.
    """
    had = contents.head.delivered
    return min(limit, had.up_to(kind)) if kind == "panes" or had.late_sink else limit


def unacknowledged(contents: RootContents, retention: CheckpointRetention, at_us: int) -> int:
    """How many files of panes and ledgers are old enough to delete, but not acknowledged by a sink."""
    if retention.panes_us is None:
        return 0
    limit = _aged(contents, retention.panes_us, at_us)
    ends = {kind: _acknowledged(contents, limit, kind) for kind in OUTPUT_KINDS}
    outputs = [output for _, entries in contents.entries for output in entries]
    outputs += map(_output, contents.readable)
    had = contents.head.delivered
    return sum(
        # A ledger is kept for a sink of late rows alone.
        len(output.outstanding(kind, had) if kind == "panes" else output.late)
        for output in outputs
        for kind in ends
        if ends[kind] < output.id <= limit
    )


def reachable(contents: RootContents, boundary: Boundary, parts: Iterable[Part]) -> set[str]:
    """Paths of the files of this root that are needed once ``boundary`` is published."""
    refs = [ref for manifest in contents.kept_by(boundary) for ref in boundary.needed(manifest)]
    for part, entries in parts:
        refs += [part] if part is not None else []
        for output in entries:
            refs += (*output.panes, *output.late)
            refs += output.spark.refs if output.spark else ()
    return {ref.path for ref in refs if ref.root == 0}


def bases_read(contents: RootContents, boundary: Boundary) -> set[int]:
    """Numbers of the roots that this one was forked from and still needs once ``boundary`` is published."""
    return {ref.root for manifest in contents.kept_by(boundary) for ref in state_files(manifest)} - {0}


def deletable_files(contents: RootContents, boundary: Boundary, needed_paths: set[str], aged_us: int) -> list[str]:
    """Files that no checkpoint needs or will need.

    Files for ids above the head belong to checkpoints that are being made. A file that its own kept checkpoint does
    not name was left by an attempt that lost: it goes if the checkpoint was created before ``aged_us``.
    """
    paths = []
    for path, number in contents.written_files.items():
        if path in needed_paths or number > contents.head.id:
            continue
        owner = contents.manifests.get(number)
        if number <= boundary.id or (owner is not None and owner.created_us <= aged_us):
            paths.append(path)
    return sorted(paths)
