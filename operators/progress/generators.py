"""Generators of watermarks: from event times, the clock, or control rows of the stream. Pure and vectorised.

None of these has a state: the claims of pieces of input are combined by the maximum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.progress.progress import (
    Claims,
    Generator,
    GeneratorState,
    InputReading,
    Reports,
    SourceReading,
    SourceReport,
    WatermarkGenerator,
    merged,
    parts_of,
    rows_per_source,
    same_claim,
    source_column,
)
from tidestate.operators.progress.watermarks import (
    BEGINNING_US,
    FIRST_US,
    INPUT,
    LAST_US,
    SideColumns,
    Sources,
    Watermarks,
    instants,
    is_watermark,
    moved_one,
)
from tidestate.statestore.arguments import checked
from tidestate.statestore.arrays import Counters, Flags, Times, counted_flags, with_column
from tidestate.statestore.durations import Span, span_us, text_of
from tidestate.statestore.errors import TidestateError, UsageError
from tidestate.statestore.spec.tables import TIME


class RowGenerator(WatermarkGenerator):
    """A generator without a state: what rows claim follows from them and the clock alone."""

    __slots__ = ()

    def read(self, events: pa.Table, now_us: int, *, source: str, by: str | None = None) -> SourceReading:
        """See `Generator`. Where ``source`` is empty, sources are the values of ``by`` alone."""
        raise NotImplementedError

    def before_checks(
        self, rows: pa.Table, source: str, by: str | None, now_us: int, began: GeneratorState, so_far: GeneratorState
    ) -> InputReading | None:
        """The rows that are events, where some are not."""
        if not self.filters_rows:
            return None
        reading = self.read(rows, now_us, source=source, by=by)
        return InputReading(reading.events, Claims(reading.reports), reading.counters)

    def after_checks(
        self, accepted: pa.Table, rejected: pa.Table | None, source: str, by: str | None, now_us: int
    ) -> tuple[Claims, Counters]:
        """The claims of the accepted rows, none from a generator that judged rows before."""
        if self.filters_rows:
            return Claims(), {}
        reading = self.read(accepted, now_us, source=source, by=by)
        present = {} if rejected is None else rows_per_source(rejected, source=source, by=by)
        return Claims(reading.reports, present), reading.counters

    def combine(
        self, began: GeneratorState, claims: Sequence[Claims], known: Iterable[str], now_us: int, side: str = ""
    ) -> tuple[GeneratorState, Reports]:
        """The claims of all pieces, or of the clock for every known source."""
        generated: Reports = {}
        if self.by_clock:
            claim = self.read(pa.table({}), now_us, source=INPUT).reports[INPUT]
            generated = dict.fromkeys([*known] or [INPUT], claim)
        return began, merged([generated, *(piece.reports for piece in claims)])


class MaxEventTime(
    RowGenerator, msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="max_event_time"
):
    """The largest event time minus ``delay_us``; without a delay NebulaStream's event time. The watermark of a source
    that has been quiet for ``quiet_us`` goes on with the clock from then (`tidestate.operators.progress.progress`).

    Counters: ``held`` events were more than ``hold_future_us`` ahead of processing time and did not move the
    watermark; ``watermark_refused`` events have a time outside of the years 1 to 9999.
    """

    column: str
    delay_us: int = 0
    hold_future_us: int | None = None
    quiet_us: int | msgspec.UnsetType = msgspec.UNSET

    @property
    def written(self) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        """The call that makes it."""
        future = None if self.hold_future_us is None else text_of(self.hold_future_us)
        quiet = None if self.least_quiet_us is None else text_of(self.least_quiet_us)
        return "watermark.bounded", (text_of(self.delay_us), self.column), {"hold_future": future, "quiet": quiet}

    @property
    def columns(self) -> tuple[str, ...]:
        """The one column that is read: that of the times."""
        return (self.column,)

    def of_side(self, columns: SideColumns) -> MaxEventTime:
        """The same over the columns of several sides."""
        return msgspec.structs.replace(self, column=columns.in_stream(self.column))

    @property
    def waits(self) -> bool:
        """Whether time alone may move the watermark."""
        return self.least_quiet_us is not None

    @property
    def least_quiet_us(self) -> int | None:
        """How long a source must have no rows before its watermark goes on with the clock; None: it never does."""
        return None if self.quiet_us is msgspec.UNSET else self.quiet_us

    def plain_until(self, now_us: int) -> int:
        """Up to where no row is held or refused."""
        return LAST_US if self.hold_future_us is None else min(LAST_US, moved_one(now_us, self.hold_future_us))

    def explains(self, event_us: int, watermark_us: int) -> bool:
        """Whether the watermark is this event's time less the delay."""
        return event_us - self.delay_us == watermark_us

    def read(self, events: pa.Table, now_us: int, *, source: str, by: str | None = None) -> SourceReading:
        """The rows and what they claim, as `Generator` says."""
        times, missing = instants(source_column(events, self.column), self.column)
        parts = parts_of(events, source, by)
        if len(times) and times.min() >= FIRST_US and times.max() <= self.plain_until(now_us):  # one missing is below
            return SourceReading(events, _reports(times, parts, self._less_delay), {})
        beyond = ~missing & ((times < FIRST_US) | (times > LAST_US))
        held = np.zeros(len(times), bool)
        if self.hold_future_us is not None:
            held = ~missing & ~beyond & (times > moved_one(now_us, self.hold_future_us))
        claims = np.where(missing | beyond | held, BEGINNING_US, times)
        reports = _reports(claims, parts, self._less_delay)
        return SourceReading(events, reports, counted_flags(held=held, watermark_refused=beyond))

    def _less_delay(self, largest_us: int) -> int:
        return moved_one(largest_us, -self.delay_us)


class Fixed(RowGenerator, msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="fixed"):
    """Processing time minus a constant, whatever the rows contain (Malhar's fixed watermark)."""

    delay_us: int

    @property
    def written(self) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        """The call that makes it."""
        return "watermark.fixed", (text_of(self.delay_us),), {}

    @property
    def by_clock(self) -> bool:
        """It always goes on with the clock."""
        return True

    def plain_until(self, now_us: int) -> int:
        """Always: it reads the clock alone."""
        return LAST_US

    def read(self, events: pa.Table, now_us: int, *, source: str, by: str | None = None) -> SourceReading:
        """As in `Generator`; a piece without rows moves the watermark too."""
        claim = moved_one(now_us, -self.delay_us)
        return SourceReading(events, same_claim(events, claim, source, by))


class IngestionTime(
    RowGenerator, msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="ingestion_time"
):
    """Each event gets the processing time at which it was received as ``column`` (timestamp[us, UTC]; replaces a
    column of that name), and so does the watermark.
    """

    column: str = "ingestion_time"

    @property
    def written(self) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        """The call that makes it."""
        return "watermark.ingestion_time", (self.column,), {}

    @property
    def columns(self) -> tuple[str, ...]:
        """The column of times, which it makes."""
        return (self.column,)

    def of_side(self, columns: SideColumns) -> IngestionTime:
        """Raises `UsageError`: rows of several streams meet by the times that they bring."""
        raise UsageError(
            "streams are combined by event times that their rows bring: let the source add the time of arrival, and "
            'set .watermark(watermark.fixed("0 seconds")) on the stream',
            code="watermark",
            side=columns.side,
        )

    @property
    def by_clock(self) -> bool:
        """It always goes on with the clock."""
        return True

    def read(self, events: pa.Table, now_us: int, *, source: str, by: str | None = None) -> SourceReading:
        """As in `Generator`; a piece without rows moves the watermark too, since later rows get a later time."""
        stamps = pa.array(np.full(events.num_rows, now_us, np.int64)).cast(TIME)
        return SourceReading(with_column(events, self.column, stamps), same_claim(events, now_us, source, by))


class Punctuation(
    RowGenerator, msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="punctuation"
):
    """Control rows in the stream: if ``flag`` is true (or has the value ``equals``), ``column`` is a watermark.

    Control rows are removed. Those without a time or after the year 9999 are counted as ``watermark_refused``. A
    watermark inside a batch takes effect with the next batch.
    """

    column: str
    flag: str
    equals: str | int | bool | None = None

    @property
    def written(self) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        """The call that makes it."""
        return "watermark.punctuated", (self.column,), {"flag": self.flag, "equals": self.equals}

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of times and of marks."""
        return (self.column, self.flag)

    def of_side(self, columns: SideColumns) -> Punctuation:
        """The same over the columns of several sides."""
        column, flag = columns.in_stream(self.column), columns.in_stream(self.flag)
        return msgspec.structs.replace(self, column=column, flag=flag)

    @property
    def filters_rows(self) -> bool:
        """Control rows are no events."""
        return True

    def read(self, events: pa.Table, now_us: int, *, source: str, by: str | None = None) -> SourceReading:
        """The rows and what they claim, as `Generator` says."""
        control = self._control(events)
        times, missing = instants(source_column(events, self.column), self.column)
        refused = control & (missing | ~is_watermark(times))
        claims = np.where(control & ~refused, times, BEGINNING_US)
        reports = _reports(claims, parts_of(events, source, by), lambda largest: largest, generated=False)
        data = events.filter(pa.array(~control)) if control.any() else events
        return SourceReading(data, reports, counted_flags(control_rows=control, watermark_refused=refused))

    def _control(self, events: pa.Table) -> Flags:
        marks = source_column(events, self.flag)
        if self.equals is not None:
            try:
                marks = pc.equal(marks, pa.scalar(self.equals))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise _wrong_flag(self.flag, marks.type) from error
        if not pa.types.is_boolean(marks.type):
            raise _wrong_flag(self.flag, marks.type)
        return np.asarray(pc.fill_null(marks, False)).astype(bool, copy=False)


class OwnGenerator(
    RowGenerator, msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="own"
):
    """A generator of the user's as a manifest knows it: by the name of its class."""

    name: str

    @property
    def written(self) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        """The call that makes it."""
        return self.name, (), {}

    def read(self, events: pa.Table, now_us: int, *, source: str, by: str | None = None) -> SourceReading:
        """Raises `UsageError`: only the description has the generator."""
        raise UsageError(
            "only the job itself has this watermark generator: give description= and schema=",
            code="query-description",
            generator=self.name,
        )


class UserGenerator(RowGenerator):
    """A generator of the user's in a job. ``side``: whose rows it reads, by the names that columns have there; None
    for all rows. ``facts``: the operator that it is part of, and the side, for its errors.
    """

    def __init__(
        self, reader: Generator, side: SideColumns | None = None, facts: Mapping[str, str] | None = None
    ) -> None:
        self.reader = reader
        self._side = side
        self._facts = {"generator": type(reader).__qualname__, **(facts or {})}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UserGenerator) and (other.reader, other._side) == (self.reader, self._side)

    def __hash__(self) -> int:
        return hash(id(self.reader))

    @property
    def written(self) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        """The call that makes it."""
        return type(self.reader).__qualname__, (), {}

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it names, or its ``column`` and ``flag``."""
        usual = [getattr(self.reader, name, None) for name in ("column", "flag")]
        named = [name for name in getattr(self.reader, "columns", usual) if name]
        return tuple(named if self._side is None else map(self._side.in_stream, named))

    def of_side(self, columns: SideColumns) -> UserGenerator:
        """The same for the rows of one of several sides."""
        return UserGenerator(self.reader, columns)

    def of_operator(self, name: str, side: str | None = None) -> UserGenerator:
        """The same as part of this operator, or for the rows of one of its sides: its errors name these."""
        of_side = {} if side is None else {"side": side}
        return UserGenerator(self.reader, self._side, {"operator": name, **of_side})

    @property
    def filters_rows(self) -> bool:
        """Whether it removes rows that are no events."""
        return bool(getattr(self.reader, "filters_rows", False))

    @property
    def by_clock(self) -> bool:
        """Whether it goes on without input."""
        return bool(getattr(self.reader, "by_clock", False))

    @property
    def waits(self) -> bool:
        """Whether time alone may move its watermark."""
        return bool(getattr(self.reader, "waits", False))

    @property
    def least_quiet_us(self) -> int | None:
        """How long a source must have no rows before its watermark goes on with the clock; None: it never does."""
        quiet = getattr(self.reader, "quiet_us", None)
        return quiet if isinstance(quiet, int) else None

    @property
    def delay_us(self) -> int:
        """How far it stays behind the newest event; 0 if it does not say so."""
        delay = getattr(self.reader, "delay_us", 0)
        return delay if isinstance(delay, int) else 0

    def read(self, events: pa.Table, now_us: int, *, source: str, by: str | None = None) -> SourceReading:
        """As the user's generator reads them. Raises `UsageError` (``own-function``) if it raises, exits, or returns
        something else.
        """
        reading = self._read(events, now_us, source or INPUT, by)
        strange = [name for name in reading.reports if name.partition("/")[0] != (source or INPUT).partition("/")[0]]
        if strange:
            raise UsageError(
                "a generator reports sources by the name that it is called with, source=, or that name, a slash and "
                "the value of by=",
                code="watermark",
                source=source or INPUT,
                found=strange,
                **self._facts,
            )
        if source:
            return reading
        reports = {name.removeprefix(f"{INPUT}/"): report for name, report in reading.reports.items()}
        return SourceReading(reading.events, reports, reading.counters)

    def _read(self, events: pa.Table, now_us: int, source: str, by: str | None) -> SourceReading:
        if self._side is None or not events.num_columns:
            return self._call(events, now_us, source, by)
        own = self._side.of_side(events)
        numbers = "__row"
        while numbers in own.column_names:
            numbers += "_"
        own = own.append_column(numbers, pa.array(np.arange(events.num_rows)))
        by_own = None if by is None else self._side.on_side(by)
        reading = self._call(own, now_us, source, by_own)
        # Only what it leaves out counts: other columns may have been changed, which a side cannot.
        going = events.take(reading.events[numbers]) if self.filters_rows else events
        return SourceReading(going, reading.reports, reading.counters)

    def _call(self, events: pa.Table, now_us: int, source: str, by: str | None) -> SourceReading:
        try:
            reading = self.reader.read(events, now_us, source=source, by=by)
        except TidestateError:
            raise
        except (Exception, SystemExit) as error:
            raise UsageError(
                f"the watermark generator {self._facts['generator']} raised {type(error).__name__}: {error}",
                code="own-function",
                **self._facts,
            ) from error
        if not isinstance(reading, SourceReading):
            raise UsageError(
                f"the watermark generator {self._facts['generator']} returned no SourceReading, which read must "
                "return: SourceReading(events, reports)",
                code="own-function",
                found=type(reading).__name__,
                **self._facts,
            )
        return reading


def given_watermarks(generator: WatermarkGenerator | Generator, by: str | None, declared: Sources) -> Watermarks:
    """The settings that a user gives. Raises `UsageError` if they contradict each other."""
    return claimant(generator).watermarks(by, declared)


def claimant(generator: WatermarkGenerator | Generator) -> WatermarkGenerator:
    """A generator of the user's as the engine reads it. Raises `UsageError` for what is none."""
    if isinstance(generator, WatermarkGenerator):
        return generator
    if not hasattr(generator, "read"):
        raise UsageError(
            "this is not a watermark generator: give one such as watermark.bounded(…) or watermark.fixed(…)",
            code="watermark",
            found=repr(generator),
        )
    return UserGenerator(generator)


@checked
def max_event_time(
    column: str, delay: Span = "0 seconds", *, hold_future: Span | None = None, quiet: Span | None = None
) -> MaxEventTime:
    """The watermark is the largest event time minus ``delay``. With ``hold_future``, events further ahead of
    processing time than that are ignored. Raises `UsageError` for a negative span.

    With ``quiet``, the watermark of a source that was polled without result for that long goes on with the clock,
    microsecond by microsecond, until the source has rows again: the last window fires. An event is late if it is
    delayed by more than ``quiet`` and ``delay`` together beyond the events before it.
    """
    made = MaxEventTime(column, _not_negative(delay), None if hold_future is None else _not_negative(hold_future))
    return made if quiet is None else msgspec.structs.replace(made, quiet_us=_not_negative(quiet))


@checked
def fixed(delay: Span) -> Fixed:
    """The watermark is processing time minus ``delay``. Raises `UsageError` for a negative span."""
    return Fixed(_not_negative(delay))


def _not_negative(span: Span) -> int:
    found = span_us(span)
    if found < 0:
        raise UsageError(
            "a watermark cannot be ahead of its source: the delay must be 0 or more",
            code="watermark-delay",
            found=text_of(found),
        )
    return found


def _wrong_flag(name: str, kind: pa.DataType) -> UsageError:
    return UsageError(
        "control rows must be marked by a boolean column, or by a value of the column's type",
        code="progress-column",
        column=name,
        found=kind,
    )


def _reports(
    claims: Times, parts: tuple[list[str], Times], watermark: Callable[[int], int], generated: bool = True
) -> dict[str, SourceReport]:
    """Reports with the largest claim of each source, as ``watermark`` adjusts it; ``parts`` as of `parts_of`."""
    names, owners = parts
    if len(names) == 1:
        largest = int(claims.max(initial=BEGINNING_US))
        return {names[0]: SourceReport(watermark(largest), rows=len(claims), generated=generated)}
    most = np.full(len(names), BEGINNING_US, np.int64)
    np.maximum.at(most, owners, claims)
    rows = np.bincount(owners, minlength=len(names)).tolist()
    return {
        name: SourceReport(watermark(claim), rows=count, generated=generated)
        for name, claim, count in zip(names, most.tolist(), rows, strict=True)
    }
