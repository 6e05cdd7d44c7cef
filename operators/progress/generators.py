"""Generators of watermarks: from event times, the clock, or control rows of the stream. Pure and vectorised.

A generator has no state. The claims of pieces of input are combined by the maximum, and
`tidestate.operators.progress.tracker` keeps it per source. So pieces can be read anywhere, in any order, also twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.progress.instants import BEGINNING_US, FIRST_US, LAST_US, instants, is_watermark, moved_one
from tidestate.operators.progress.sources import SourceRows, parts_of, same_claim, source_column
from tidestate.operators.progress.watermarks import SourceReading, SourceReport
from tidestate.statestore.arguments import checked
from tidestate.statestore.arrays import Counters, Flags, Times
from tidestate.statestore.durations import Span, span_us, text_of
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.tables import TIME


class MaxEventTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="max_event_time"):
    """The largest event time minus ``delay_us``; without a delay NebulaStream's event time. The watermark of a source
    that has been quiet for ``quiet_us`` goes on with the clock from then (`tidestate.operators.progress.tracker`).

    Counters: ``held`` events were more than ``hold_future_us`` ahead of processing time and did not move the
    watermark; ``watermark_refused`` events have a time outside of the years 1 to 9999.
    """

    column: str
    delay_us: int = 0
    hold_future_us: int | None = None
    quiet_us: int | msgspec.UnsetType = msgspec.UNSET

    @property
    def waits(self) -> bool:
        """Whether time alone may move the watermark."""
        return self.quiet_us is not msgspec.UNSET

    def read(self, events: pa.Table, now_us: int, *, source: str, by: str | None = None) -> SourceReading:
        """See `Generator`."""
        times, missing = instants(source_column(events, self.column), self.column)
        beyond = ~missing & ((times < FIRST_US) | (times > LAST_US))
        held = np.zeros(len(times), bool)
        if self.hold_future_us is not None:
            held = ~missing & ~beyond & (times > moved_one(now_us, self.hold_future_us))
        claims = np.where(missing | beyond | held, BEGINNING_US, times)
        reports = _reports(claims, parts_of(events, source, by), lambda largest: moved_one(largest, -self.delay_us))
        return SourceReading(events, reports, _counted(held=held, watermark_refused=beyond))


class Fixed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="fixed"):
    """Processing time minus a constant, whatever the rows contain (Malhar's fixed watermark)."""

    delay_us: int
    by_clock: ClassVar[bool] = True

    def read(self, events: pa.Table, now_us: int, *, source: str, by: str | None = None) -> SourceReading:
        """As in `Generator`; a piece without rows moves the watermark too."""
        claim = moved_one(now_us, -self.delay_us)
        return SourceReading(events, same_claim(events, claim, source, by))


class IngestionTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="ingestion_time"):
    """Each event gets the processing time at which it was received as ``column`` (timestamp[us, UTC]; replaces a
    column of that name), and so does the watermark.
    """

    column: str = "ingestion_time"
    by_clock: ClassVar[bool] = True

    def read(self, events: pa.Table, now_us: int, *, source: str, by: str | None = None) -> SourceReading:
        """As in `Generator`; a piece without rows moves the watermark too, since later rows get a later time."""
        stamps = pa.array(np.full(events.num_rows, now_us, np.int64)).cast(TIME)
        place = events.schema.get_field_index(self.column)
        if place < 0:
            stamped = events.append_column(self.column, stamps)
        else:
            stamped = events.set_column(place, self.column, stamps)
        return SourceReading(stamped, same_claim(events, now_us, source, by))


class Punctuation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="punctuation"):
    """Control rows in the stream: if ``flag`` is true (or has the value ``equals``), ``column`` is a watermark.

    Control rows are removed. Those without a time or after the year 9999 are counted as ``watermark_refused``. A
    watermark inside a batch takes effect with the next batch.
    """

    column: str
    flag: str
    equals: str | int | bool | None = None
    filters_rows: ClassVar[bool] = True

    def read(self, events: pa.Table, now_us: int, *, source: str, by: str | None = None) -> SourceReading:
        """See `Generator`."""
        control = self._control(events)
        times, missing = instants(source_column(events, self.column), self.column)
        refused = control & (missing | ~is_watermark(times))
        claims = np.where(control & ~refused, times, BEGINNING_US)
        reports = _reports(claims, parts_of(events, source, by), lambda largest: largest, generated=False)
        data = events.filter(pa.array(~control)) if control.any() else events
        return SourceReading(data, reports, _counted(control_rows=control, watermark_refused=refused))

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


class OwnGenerator(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="own"):
    """A generator of the user's as a manifest knows it: by the name of its class."""

    name: str

    def read(self, events: pa.Table, now_us: int, *, source: str, by: str | None = None) -> SourceReading:
        """Raises `UsageError`: only the description has the generator."""
        raise UsageError(
            "only the job itself has this watermark generator: give description= and schema=",
            code="query-description",
            generator=self.name,
        )


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
    claims: Times, parts: SourceRows, watermark: Callable[[int], int], generated: bool = True
) -> dict[str, SourceReport]:
    """Reports with the largest claim of each source, as ``watermark`` adjusts it."""
    if parts.alone:
        largest = int(claims.max(initial=BEGINNING_US))
        return {parts.names[0]: SourceReport(watermark(largest), rows=len(claims), generated=generated)}
    most = np.full(len(parts.names), BEGINNING_US, np.int64)
    np.maximum.at(most, parts.codes, claims)
    rows = np.bincount(parts.codes, minlength=len(parts.names)).tolist()
    return {
        name: SourceReport(watermark(claim), rows=count, generated=generated)
        for name, claim, count in zip(parts.names, most.tolist(), rows, strict=True)
        if count
    }


def _counted(**masks: Flags) -> Counters:
    return {name: found for name, mask in masks.items() if (found := int(np.count_nonzero(mask)))}
