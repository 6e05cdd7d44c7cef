"""How far the input of an operator has come: what sources report, the watermark of each, and their minimum; what
pieces of input claim of that, what reads the claims, and the times of a step that follow. Pure.

`observe` is called once per round (a batch or a tick) with the report of each source and the processing time of the
round. It returns the next progress, which the manifest stores. The overall watermark W never goes back, and moves
only when the slowest source does. A source that was polled without result for longer than its timeout is idle: it
leaves the minimum, and counts again once it has caught up with W. While all are idle W stays.

With a quiet time, the watermark of a source that was polled without result for longer goes on with the clock: by as
much as its quiet time grows beyond that. Its rows stop it, and it stays where it is.

Every state partition gets the claims of all pieces of a micro-batch and computes the same progress
(`combined_progress`), so the watermark after it is known where windows fire, without another pass or job. With it is
the event furthest ahead, with which the watermark may have leapt (`Peak`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from tidestate.operators.progress.advance_time import Advance
from tidestate.operators.progress.origins import BufferState, declare_origins, origin_sources, register_sources
from tidestate.operators.progress.watermarks import (
    BEGINNING_US,
    END_US,
    INPUT,
    Claimant,
    Sources,
    Watermarks,
    moved_one,
    usable,
)
from tidestate.statestore.arrays import Counters, Numbers, Times
from tidestate.statestore.errors import UsageError, of_type
from tidestate.statestore.missing_columns import missing_columns

SourceStatus = Literal["counted", "idle", "catching_up"]


class SourceReport(msgspec.Struct, frozen=True):
    """The report of one source in one round.

    ``watermark_us`` is exclusive; `BEGINNING_US` is none. ``generated``: it follows from this round's rows alone, so
    a lower one than before is no step back. ``asked``: the source was polled. ``status``: the source itself reports
    that it is idle, or active again. ``ended``: this is its last report.
    """

    watermark_us: int = BEGINNING_US
    rows: int = 0
    asked: bool = True
    generated: bool = False
    status: Literal["idle", "active"] | None = None
    ended: bool = False


Reports = dict[str, SourceReport]
"""The reports of a round by source."""


class TimeSteps(msgspec.Struct, frozen=True):
    """Steps from one event to the next in time, if they differ: how many, and the longest."""

    known: int = 0
    longest_us: int = 0

    def __add__(self, other: TimeSteps) -> TimeSteps:
        return TimeSteps(self.known + other.known, max(self.longest_us, other.longest_us))


class Peak(msgspec.Struct, frozen=True):
    """The accepted event with the largest time. ``event`` describes it; empty if the watermark does not follow from
    it. Its bulk of ``bulk`` events has times from ``least_us`` to ``bulk_us``, with these ``steps``; ``bulk_us`` is
    None if there is no bulk.
    """

    time_us: int
    event: str
    least_us: int
    bulk_us: int | None = None
    bulk: int = 0
    steps: TimeSteps = TimeSteps()


class TrackedSource(msgspec.Struct, frozen=True):
    """One source so far. ``quiet_us`` is how long it has been polled without result; ``rows`` and the fields after it
    are totals: rows, moves of its watermark, ignored steps back, invalid watermarks.
    """

    watermark_us: int = BEGINNING_US
    standing: SourceStatus = "counted"
    says_idle: bool = False
    quiet_us: int = 0
    rows: int = 0
    advances: int = 0
    backward: int = 0
    refused: int = 0


class Numbering(msgspec.Struct, frozen=True):
    """How many messages of a stream have a number, and the largest ``offset`` among them."""

    messages: int = 0
    offset: int = -1


class GeneratorState(msgspec.Struct, frozen=True):
    """What a generator of watermarks and observers know between micro-batches; most know nothing. ``advances``: the
    newest CTIs, by source. ``buffers``: which buffers have arrived, by side; those of all rows under the empty name.
    ``origins``: those of the rows, where only one is taken. ``numbering``: of messages that are numbered. ``steps``:
    of the micro-batch alone, how the newest position of each side has moved, packed; not stored.
    """

    advances: dict[str, Advance] = {}
    buffers: dict[str, BufferState] = {}
    origins: tuple[str, ...] = ()
    steps: dict[str, bytes] = {}
    numbering: Numbering | None = None

    def following(self, claims: Claims) -> GeneratorState:
        """The state for the next piece of the same sources, after one with these claims."""
        numbering = claims.numbering or self.numbering
        return msgspec.structs.replace(self, advances=self.advances | claims.advances, numbering=numbering)


class Progress(msgspec.Struct, frozen=True):
    """How far the input of an operator has come between two micro-batches: all its sources, W, exclusive, and the
    state of its ``generator``. W is `BEGINNING_US` before the first; once every source has ended, it is ``ended_us``,
    the largest of their watermarks: only a drain moves it to the end of time.

    Plain data, stored in the manifest as it is, but for ``generator``, which has fields of its own there.
    ``processing_us`` is the latest processing time, None before the first round and after a restart. ``backward``
    counts ignored steps back, also those of sources that have ended. ``newest`` has the largest position of each side
    (`NewestPositions`), ``ahead`` the packed steps of rows that are held; ``first_offsets`` the first offset of each
    side whose windows start there. ``peak`` is the event that moved W to where it is, if one did. ``latest_us`` is
    the largest time of an accepted event.
    """

    sources: dict[str, TrackedSource]
    watermark_us: int = BEGINNING_US
    processing_us: int | None = None
    advances: int = 0
    backward: int = 0
    refused: int = 0
    clock_backward: int = 0
    ended: int = 0
    max_drift_us: int = 0
    newest: dict[str, int] = {}
    ahead: dict[str, bytes] = {}
    ended_us: int = BEGINNING_US
    peak: Peak | None = None
    latest_us: int = BEGINNING_US
    first_offsets: dict[str, int] = {}
    generator: GeneratorState = GeneratorState()

    @property
    def idle(self) -> bool:
        """Whether there are sources and every one is idle."""
        return bool(self.sources) and all(source.standing == "idle" for source in self.sources.values())

    @property
    def drift_us(self) -> int:
        """How far the slowest counted source is behind the fastest one; 0 where fewer than two have a watermark."""
        known = [source.watermark_us for source in self.sources.values() if source.standing == "counted"]
        real = [mark for mark in known if mark not in (BEGINNING_US, END_US)]
        return max(real) - min(real) if real else 0

    def with_watermark(self, watermark_us: int) -> Progress:
        """The same with this watermark, which may be an earlier one."""
        if self.watermark_us == watermark_us:
            return self
        return msgspec.structs.replace(self, watermark_us=watermark_us)

    def advanced_to(self, watermark_us: int) -> Progress:
        """The same with this watermark; a step back is ignored."""
        if watermark_us <= self.watermark_us:
            return self
        return msgspec.structs.replace(self, watermark_us=watermark_us, peak=None)

    def skipping_idle_time(self, now_us: int) -> Progress:
        """The same, with no source idle until ``now_us``: a batch was running, and no source was polled."""
        last = self.processing_us
        if last is None or last >= now_us:
            return self
        return msgspec.structs.replace(self, processing_us=now_us)


def begin(settings: Sources) -> Progress:
    """The tracker before the first round: every declared source counts, and has no watermark yet."""
    return Progress({name: TrackedSource() for name in settings.names})


def reset_sources(saved: Progress) -> Progress:
    """The tracker after a restart: no source was idle meanwhile, and sources that ended do not come back."""
    return msgspec.structs.replace(saved, processing_us=None)


def merged(reports: Iterable[Mapping[str, SourceReport]]) -> dict[str, SourceReport]:
    """Combine the reports of one round's pieces (tasks, files): for each source the largest watermark, the sum of
    rows.
    """
    combined: dict[str, SourceReport] = {}
    for piece in reports:
        for name, report in piece.items():
            combined[name] = _combine(combined[name], report) if name in combined else report
    return combined


def _combine(first: SourceReport, second: SourceReport) -> SourceReport:
    return SourceReport(
        watermark_us=max(first.watermark_us, second.watermark_us),
        rows=first.rows + second.rows,
        asked=first.asked or second.asked,
        generated=first.generated or second.generated,
        status=second.status or first.status,
        ended=first.ended or second.ended,
    )


def never_quiet(_source: str) -> int | None:
    """No watermark goes on with the clock."""
    return None


def observe(
    settings: Sources,
    before: Progress,
    reports: Mapping[str, SourceReport],
    now_us: int,
    quiet_after: Callable[[str], int | None] = never_quiet,
) -> Progress:
    """The progress after a round at processing time ``now_us``; sources without a report were not polled. The
    watermark of one that is quiet for longer than ``quiet_after`` says goes on with the clock (None: never).

    An invalid watermark (after the year 9999) and one that goes back are ignored and counted. A clock that jumps back
    is counted too; no time has passed then.
    """
    last, mark = before.processing_us, before.watermark_us
    elapsed = 0 if last is None else max(0, now_us - last)
    observed, ended_now = dict(before.sources), []
    for name in sorted(observed.keys() | reports.keys()):
        source = observed.get(name) or TrackedSource(watermark_us=mark)
        report = reports.get(name) or SourceReport(asked=False)
        polled = _observe(source, report, elapsed, settings.timeout_us(name))
        observed[name] = _settle(_by_clock(polled, source.quiet_us, quiet_after(name)), mark)
        if report.ended:
            ended_now.append(observed.pop(name))
    ended_us = max([before.ended_us, *(source.watermark_us for source in ended_now)])
    after = _overall(observed, mark, ended_us)
    old, now = before.sources.values(), [*observed.values(), *ended_now]
    grown = msgspec.structs.replace(
        before,
        sources=observed,
        watermark_us=after,
        processing_us=now_us if last is None else max(last, now_us),
        advances=before.advances + (after > mark),
        backward=before.backward + sum(source.backward for source in now) - sum(source.backward for source in old),
        refused=before.refused + sum(source.refused for source in now) - sum(source.refused for source in old),
        clock_backward=before.clock_backward + (last is not None and now_us < last),
        ended=before.ended + len(ended_now),
        ended_us=ended_us,
        peak=before.peak if after == mark else None,
    )
    return msgspec.structs.replace(grown, max_drift_us=max(before.max_drift_us, grown.drift_us))


def _observe(source: TrackedSource, report: SourceReport, elapsed_us: int, timeout_us: int | None) -> TrackedSource:
    """The source after its report. Whether it has caught up is decided by `_settle`."""
    if source.says_idle and report.status != "active":
        # Until it reports that it is active, its rows do not count.
        return msgspec.structs.replace(source, rows=source.rows + report.rows)
    valid = usable(report.watermark_us)
    forward = valid and report.watermark_us > source.watermark_us
    back = valid and BEGINNING_US < report.watermark_us < source.watermark_us and not report.generated
    active = forward or report.rows > 0 or report.status == "active"
    quiet = 0 if active else source.quiet_us + (elapsed_us if report.asked else 0)
    idle = report.status == "idle" or (not active and timeout_us is not None and quiet > timeout_us)
    standing: SourceStatus = source.standing
    if idle:
        standing = "idle"
    elif active and standing == "idle":
        standing = "catching_up"
    return TrackedSource(
        watermark_us=report.watermark_us if forward else source.watermark_us,
        standing=standing,
        says_idle=report.status == "idle",
        quiet_us=quiet,
        rows=source.rows + report.rows,
        advances=source.advances + forward,
        backward=source.backward + back,
        refused=source.refused + (not valid),
    )


def _by_clock(source: TrackedSource, before_us: int, quiet_us: int | None) -> TrackedSource:
    """The source with a watermark that has gone on since it was quiet for ``before_us``."""
    if quiet_us is None or source.quiet_us <= quiet_us:
        return source
    gone_us = source.quiet_us - max(before_us, quiet_us)
    return msgspec.structs.replace(source, watermark_us=moved_one(source.watermark_us, gone_us))


def _settle(source: TrackedSource, watermark_us: int) -> TrackedSource:
    """A source that has caught up with W counts again."""
    if source.standing == "catching_up" and source.watermark_us >= watermark_us:
        return msgspec.structs.replace(source, standing="counted")
    return source


def _overall(observed: Mapping[str, TrackedSource], before_us: int, ended_us: int) -> int:
    counted = [source.watermark_us for source in observed.values() if source.standing == "counted"]
    reached = min(counted, default=before_us) if observed else ended_us
    return max(before_us, reached)


@dataclass(frozen=True)
class SourceReading:
    """A piece of input as a generator read it: the rows that go on, a report per source, counters of the others."""

    events: pa.Table
    reports: dict[str, SourceReport]
    counters: Counters = field(default_factory=dict)


class Generator(Protocol):
    """A generator of one's own: it reads a piece of input. ``by`` is a column that names the parts of a source, such
    as Kafka partitions: each part is then a source of its own, named ``source/value``.

    It may have these attributes: ``columns`` of the input that it reads (list of text); ``by_clock``: its watermark
    goes on without input; ``waits``: time alone may move it; ``filters_rows``: it removes rows that are no events;
    ``delay_us``: how far it stays behind the newest event.
    """

    def read(self, events: pa.Table, now_us: int, *, source: str, by: str | None = None) -> SourceReading:
        """Read ``events`` at processing time ``now_us``, which must not go back from one piece to the next."""
        ...


def parts_of(events: pa.Table, source: str, by: str | None) -> tuple[list[str], Times]:
    """The sources of a piece of input, and for each row the index of its own, of shape ``(rows,)``: ``source``, or
    ``source/value`` for each value of the column ``by``; of an empty ``source`` the value alone.
    """
    if by is None:
        return [source], np.zeros(events.num_rows, np.int64)
    column = source_column(events, by)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    # Encoded as one array, so that there is one dictionary; null is a source of its own.
    whole = pa.concat_arrays(column.chunks or [pa.nulls(0, column.type)])
    try:
        values = whole.dictionary_encode("encode")
    except pa.ArrowNotImplementedError:
        raise UsageError(
            "values of this type cannot name sources: take a column of text or numbers, by=",
            code="progress-column",
            column=by,
            found=column.type,
        ) from None
    front = f"{source}/" if source else ""
    names = [f"{front}{value}" for value in values.dictionary.to_pylist()]
    return names, np.asarray(values.indices).astype(np.int64, copy=False)


def rows_per_source(events: pa.Table, *, source: str, by: str | None = None) -> dict[str, SourceReport]:
    """Reports with the row count of each source, and no watermark."""
    return same_claim(events, BEGINNING_US, source, by)


def same_claim(events: pa.Table, claim_us: int, source: str, by: str | None) -> dict[str, SourceReport]:
    """Reports in which every source of a piece claims the same watermark."""
    names, owners = parts_of(events, source, by)
    rows = np.bincount(owners, minlength=len(names)).tolist()
    return {name: SourceReport(claim_us, rows=count) for name, count in zip(names, rows, strict=True)}


def source_column(events: pa.Table, name: str) -> Any:
    """A column that moves the watermark. Raises `UsageError` if it is missing."""
    if name not in events.column_names:
        raise missing_columns("a batch lacks a column that moves the watermark", [name], events.column_names)
    return events[name]


BUDGET_BYTES = 256 << 20
"""The default memory budget of a step."""


class Claims(msgspec.Struct, frozen=True):
    """What a piece of input claims of the watermark. ``reports`` are by source; ``rejected`` has the row counts of
    rejected rows, which keep a known source from being idle and add no source. ``advances``: CTIs by source after the
    piece; ``buffers``: which ones it has, packed, and ``ends``: declared last sequence numbers by origin, each by
    side (empty: of all rows); ``newest``: packed steps of positions by side; ``first_offsets``: the smallest by side;
    ``origins``: those of the rows; ``peak``: the event furthest ahead; ``numbering``: the messages so far, up to the
    end of the piece.
    """

    reports: Reports = {}
    rejected: Reports = {}
    advances: dict[str, Advance] = {}
    buffers: dict[str, bytes] = {}
    ends: dict[str, dict[str, int]] = {}
    newest: dict[str, bytes] = {}
    origins: tuple[str, ...] = ()
    peak: Peak | None = None
    first_offsets: dict[str, int] = {}
    numbering: Numbering | None = None

    @property
    def newest_us(self) -> int | None:
        """The largest time of an accepted event; None without events."""
        return None if self.peak is None else self.peak.time_us

    @property
    def of_panes(self) -> Claims:
        """What rows of an operator upstream claim: their watermark is known, and it is that operator's."""
        return Claims(newest=self.newest, origins=self.origins, first_offsets=self.first_offsets)


def joined_claims(pieces: Iterable[Claims]) -> Claims:
    """The claims of parts of a piece: at most one has positions, origins or numbers, or buffers of a side."""
    parts = list(pieces)
    return Claims(
        merged(part.reports for part in parts),
        merged(part.rejected for part in parts),
        {source: advance for part in parts for source, advance in part.advances.items()},
        {side: packed for part in parts for side, packed in part.buffers.items()},
        {side: ends for part in parts for side, ends in part.ends.items()},
        {side: steps for part in parts for side, steps in part.newest.items()},
        next((part.origins for part in parts if part.origins), ()),
        first_offsets={side: offset for part in parts for side, offset in part.first_offsets.items()},
        numbering=next((part.numbering for part in parts if part.numbering), None),
    )


@dataclass(frozen=True)
class InputReading:
    """A piece of input as a generator read it: the events that go on, its claims, and the rows that it ``refused``,
    with reasons; ``ends`` of edges, which go no further.
    """

    events: pa.Table
    claims: Claims
    counters: Counters = field(default_factory=dict)
    refused: tuple[pa.Table, pa.Array] | None = None
    ends: pa.Table | None = None


def watermark_of(progress: Progress) -> int | None:
    """The watermark; None before the first one."""
    return None if progress.watermark_us == BEGINNING_US else progress.watermark_us


@dataclass(frozen=True)
class Context:
    """How far the input of an operator has come ``before`` and ``after`` a micro-batch, and the processing time
    before and after it, in microseconds. Next to the input, where rows are judged, the end is not known yet: there
    ``after`` is the same as ``before``.
    """

    before: Progress
    after: Progress
    was_us: int = 0
    now_us: int = 0
    budget_bytes: int = BUDGET_BYTES
    """How many bytes the intermediate rows of a step may take: more of them are made in bands."""
    stored_due: int | None = None
    """The watermark at which a stored row is due next, if neither watermark nor clock reaches one in this step: then
    only what arrives has effects. None where stored rows may be due.
    """

    @classmethod
    def between(
        cls, watermark_before: int, watermark: int, was_us: int = 0, now_us: int = 0, budget_bytes: int = BUDGET_BYTES
    ) -> Context:
        """The context of a step between two watermarks, without more to know of the input."""
        before, after = (Progress({}, reached) for reached in (watermark_before, watermark))
        return cls(before, after, was_us, now_us, budget_bytes)

    @property
    def only_arrivals(self) -> bool:
        """Whether nothing stored is due: only what arrives has effects."""
        return self.stored_due is not None

    @property
    def watermark_before(self) -> int:
        """The watermark at the start; `BEGINNING_US` before the first."""
        return self.before.watermark_us

    @property
    def watermark(self) -> int:
        """The watermark at the end; `BEGINNING_US` before the first."""
        return self.after.watermark_us

    def reaching(self, watermark_before: int, watermark: int) -> Context:
        """The same with these watermarks, which may be earlier ones."""
        before, after = self.before.with_watermark(watermark_before), self.after.with_watermark(watermark)
        return replace(self, before=before, after=after)


class Observer(ABC):
    """Something else that an operator has to know of the rows of its input, also of those that other operators emit.
    It follows from all rows of a micro-batch together, however they are cut into pieces.
    """

    @abstractmethod
    def read(self, accepted: pa.Table, so_far: Progress) -> Claims:
        """What accepted rows of a piece claim, with the progress at the start of the micro-batch. Raises `UsageError`
        for rows that must not be there.
        """

    @abstractmethod
    def after(self, progress: Progress, claims: Sequence[Claims]) -> Progress:
        """The progress of a micro-batch, with what its pieces claim. The same if it is called again."""


class WatermarkGenerator(Claimant):
    """Claims watermarks from pieces of input, which are read anywhere, in any order, also twice.

    ``source`` names the source of all rows; with a column ``by`` its values are sources, behind ``source`` and a
    slash, or alone where ``source`` is empty.
    """

    __slots__ = ()

    def begin(self, names: Iterable[str], side: str = "") -> GeneratorState:
        """The state before the first rows of these declared sources, which may be those of one ``side``."""
        return GeneratorState()

    def before_checks(
        self, rows: pa.Table, source: str, by: str | None, now_us: int, began: GeneratorState, so_far: GeneratorState
    ) -> InputReading | None:
        """Read rows that are not judged yet; None if this one reads accepted rows. ``began`` is the state at the
        start of the micro-batch, ``so_far`` that after the earlier pieces of the same sources.
        """
        return None

    def after_checks(
        self, accepted: pa.Table, rejected: pa.Table | None, source: str, by: str | None, now_us: int
    ) -> tuple[Claims, Counters]:
        """Read rows that are accepted; sources of the rejected ones are not idle."""
        return Claims(), {}

    def plain_until(self, now_us: int) -> int | None:
        """Rows with a time from `FIRST_US` up to this, which it does not count, claim with the largest time of their
        source, and nothing else of them matters; None where that is not so.
        """
        return None

    def combine(
        self, began: GeneratorState, claims: Sequence[Claims], known: Iterable[str], now_us: int, side: str = ""
    ) -> tuple[GeneratorState, Reports]:
        """The state after a micro-batch, and the report of each source in it. ``known``: the sources so far;
        ``side``: the one whose rows alone it reads.
        """
        return began, merged(piece.reports for piece in claims)

    def finish(self, state: GeneratorState) -> GeneratorState:
        """The state at the end of the input."""
        return state


def first_progress(watermarks: Watermarks) -> Progress:
    """The progress before the first micro-batch."""
    state = _generator(watermarks).begin(watermarks.sources.names)
    return msgspec.structs.replace(begin(watermarks.sources), generator=state)


def read_before_checks(
    watermarks: Watermarks, rows: pa.Table, now_us: int, began: GeneratorState, so_far: GeneratorState
) -> InputReading:
    """Read ``rows`` that are not judged yet at processing time ``now_us``, if the generator filters rows. ``began``
    is its state at the start of the micro-batch, ``so_far`` that after the earlier pieces of the same sources.
    """
    generator = _generator(watermarks)
    reading = generator.before_checks(rows, _source(watermarks), watermarks.by, now_us, began, so_far)
    return reading or InputReading(rows, Claims())


def read_after_checks(
    watermarks: Watermarks, accepted: pa.Table, rejected: pa.Table | None, now_us: int
) -> tuple[Claims, Counters]:
    """Read rows that are accepted, if the generator does not filter rows. Rejected rows claim no watermark, but their
    source is not idle.
    """
    return _generator(watermarks).after_checks(accepted, rejected, _source(watermarks), watermarks.by, now_us)


def plain_until(watermarks: Watermarks, now_us: int) -> int | None:
    """Up to which time rows claim by the largest time of their source alone, see `WatermarkGenerator.plain_until`."""
    return _generator(watermarks).plain_until(now_us)


def read_sliced(watermarks: Watermarks, latest: pa.Table, rows: Numbers, now_us: int) -> Claims:
    """The claims of accepted rows that were combined: ``latest`` stands for the latest of each entry, ``rows`` are
    how many it has. Of shape ``(entries,)``; for generators with `WatermarkGenerator.plain_until`.
    """
    claims, _ = read_after_checks(watermarks, latest, None, now_us)
    names, owners = parts_of(latest, _source(watermarks), watermarks.by)
    sums = np.zeros(len(names), np.int64)
    np.add.at(sums, owners, rows)
    counted = {
        name: msgspec.structs.replace(claims.reports[name], rows=count)
        for name, count in zip(names, sums.tolist(), strict=True)
    }
    return msgspec.structs.replace(claims, reports=claims.reports | counted)


def rows_of_sources(watermarks: Watermarks, rows: pa.Table) -> Reports:
    """Reports with the row counts of ``rows`` and no watermark: a source that sends rows is not idle."""
    return rows_per_source(rows, source=_source(watermarks), by=watermarks.by)


def combined_progress(watermarks: Watermarks, before: Progress, claims: Iterable[Claims], now_us: int) -> Progress:
    """The progress after a micro-batch at processing time ``now_us``; every known source was polled."""
    pieces, generator = list(claims), _generator(watermarks)
    # A batch may have been planned before the last tick: the clock did not jump back then.
    now_us = max(now_us, before.processing_us or now_us)
    state, claimed = generator.combine(before.generator, pieces, before.sources, now_us)
    reports = merged([dict.fromkeys(before.sources, SourceReport()), claimed])
    rejected = merged(piece.rejected for piece in pieces)
    reports = merged([reports, {source: report for source, report in rejected.items() if source in reports}])
    replaced = _replaced(generator, reports)
    reports = {source: report for source, report in reports.items() if source not in replaced}
    sources = {name: source for name, source in before.sources.items() if name not in replaced}
    polled = msgspec.structs.replace(before, sources=sources)
    grown = observe(watermarks.sources, polled, reports, now_us, generator.quiet_after)
    moved = grown.watermark_us > before.watermark_us
    peak = _peak(generator, pieces, grown.watermark_us) if moved else grown.peak
    latest = max([grown.latest_us, *(us for piece in pieces if (us := piece.newest_us) is not None)])
    return msgspec.structs.replace(grown, peak=peak, latest_us=latest, generator=state)


def observed_progress(observers: Iterable[Observer], progress: Progress, claims: Iterable[Claims]) -> Progress:
    """The progress of a micro-batch, with what ``observers`` read in its pieces."""
    pieces = list(claims)
    for observer in observers:
        progress = observer.after(progress, pieces)
    return progress


def stored_progress(progress: Progress) -> Progress:
    """The progress of a micro-batch as it is stored, without what is of the micro-batch alone."""
    if not progress.generator.steps:
        return progress
    return msgspec.structs.replace(progress, generator=msgspec.structs.replace(progress.generator, steps={}))


def finished_progress(watermarks: Watermarks, progress: Progress) -> Progress:
    """The progress at the end of time, when every window is due."""
    finished = _generator(watermarks).finish(progress.generator)
    return msgspec.structs.replace(progress.advanced_to(END_US), generator=finished)


def restarted_progress(watermarks: Watermarks, progress: Progress) -> Progress:
    """``progress`` after a restart; sources that were declared meanwhile are there, and one that is not declared any
    more and never had a row holds nothing back. No source was idle, and no origin waited for a gap, while the job was
    stopped.
    """
    begun = first_progress(watermarks)
    state, again, declared = progress.generator, reset_sources(progress), begun.sources
    # Where the engine gives origins, sources are registered below, once it is known which there are.
    of_engine = [side for side, saved in state.buffers.items() if isinstance(saved.ids, dict)]
    for side, saved in state.buffers.items():
        if side in of_engine:
            continue
        restarted = _restarted(saved, begun.generator.buffers.get(side, saved))
        state = msgspec.structs.replace(state, buffers=state.buffers | {side: restarted})
        # A declared source that has ended does not come back.
        present = origin_sources(restarted.origins, side)
        of_other_sides = {name for name in declared if side and name.partition("/")[0] != side}
        declared = {name: source for name, source in declared.items() if name in present | of_other_sides}
    replaced = _replaced(_generator(watermarks), again.sources)
    declared = {name: source for name, source in declared.items() if name not in replaced}
    heard = {
        name: source
        for name, source in again.sources.items()
        if name in declared or source.rows or source.watermark_us != BEGINNING_US
    }
    sources = declared | heard
    registrations = {side: register_sources(sources, state.buffers[side]) for side in of_engine}
    state = msgspec.structs.replace(state, buffers=state.buffers | registrations)
    return msgspec.structs.replace(again, sources=sources, generator=state)


def _restarted(saved: BufferState, begun: BufferState) -> BufferState:
    """Buffers after a restart, with the origins that are declared now; nothing waited meanwhile."""
    origins = declare_origins(saved.origins, begun.origins)
    return msgspec.structs.replace(saved, origins=origins, waiting=[])


def _generator(watermarks: Watermarks) -> WatermarkGenerator:
    return of_type(watermarks.generator, WatermarkGenerator)


def _source(watermarks: Watermarks) -> str:
    return INPUT if watermarks.by is None else ""


def _replaced(generator: WatermarkGenerator, names: Iterable[str]) -> set[str]:
    """Sources that stood for their parts, of which some are there by now."""
    wholes = {name.partition("/")[0] for name in names if "/" in name}
    return wholes.intersection(generator.in_parts)


def _peak(generator: WatermarkGenerator, claims: Iterable[Claims], watermark_us: int) -> Peak | None:
    """The event furthest ahead; it is described only if the watermark follows from it."""
    peak = highest(piece.peak for piece in claims if piece.peak is not None)
    if peak is None or generator.explains(peak.time_us, watermark_us):
        return peak
    return msgspec.structs.replace(peak, event="")


PEAK_SAMPLE_ROWS = 10_000
BULK_SHARE, STRAYS = 20, 2
"""The bulk of a batch is all of it except the latest 20th, and at least the latest two events."""
VALUE_LENGTH = 80


def peak_of(times: Times, events: pa.Table, columns: Sequence[str]) -> Peak:
    """The peak of ``events`` at these ``times`` (at least one). The bulk is that of a sample."""
    sample = times[:: len(times) // PEAK_SAMPLE_ROWS + 1]
    return peak_with_sample(times, events, columns, int(times.min()), sample)


def peak_with_sample(times: Times, events: pa.Table, columns: Sequence[str], least_us: int, sample: Times) -> Peak:
    """As `peak_of`, of ``events`` that stand for others before them: the smallest time of all, and a ``sample``."""
    place, sample = int(np.argmax(times)), np.sort(sample)
    bulk = sample[: -max(STRAYS, len(sample) // BULK_SHARE)]
    gaps = np.diff(bulk)
    return Peak(
        int(times[place]),
        in_words(events.slice(place, 1), columns),
        least_us,
        int(bulk[-1]) if len(bulk) else None,
        len(bulk),
        TimeSteps(int(np.count_nonzero(gaps)), int(gaps.max(initial=0))),
    )


def highest(peaks: Iterable[Peak]) -> Peak | None:
    """The peak of a batch from those of its pieces."""
    ordered = sorted(peaks, key=lambda peak: (peak.time_us, peak.event))
    if not ordered:
        return None
    bulks = [peak.bulk_us for peak in ordered if peak.bulk_us is not None]
    bulks += [peak.time_us for peak in ordered[:-1] if peak.bulk_us is None]
    return msgspec.structs.replace(
        ordered[-1],
        least_us=min(peak.least_us for peak in ordered),
        bulk_us=max(bulks, default=None),
        bulk=sum(peak.bulk for peak in ordered),
        steps=sum((peak.steps for peak in ordered), TimeSteps()),
    )


def in_words(rows: pa.Table, columns: Sequence[str]) -> str:
    """These columns of the first row, for a log: short, and without control characters."""
    names = [name for name in dict.fromkeys(columns) if name in rows.column_names]
    return ", ".join(f"{name}={_value(rows[name][0])}" for name in names)


def _value(value: pa.Scalar) -> str:
    if not value.is_valid:
        return "null"
    if pa.types.is_timestamp(value.type):
        moment = np.array(value.cast(pa.int64()).as_py()).astype(f"M8[{value.type.unit}]")
        return str(moment).replace("T", " ").removesuffix(".000000")
    try:
        text = repr(value.as_py())
    except (ArithmeticError, ValueError, pa.ArrowException):
        return f"a {value.type} that Python cannot represent"
    return text if len(text) <= VALUE_LENGTH else f"{text[:VALUE_LENGTH]}…"
