"""Values that several verbs take: lifetimes, settings of a side, how much is kept, periods of updates. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from tidestate.operators.describe.join_choices import JoinRetention, Update
from tidestate.operators.describe.windows import Sliding
from tidestate.operators.progress.advance_time import SHAPES
from tidestate.statestore.arguments import called, checked
from tidestate.statestore.durations import Span, span_us, text_of
from tidestate.statestore.errors import UsageError
from tidestate.statestore.messages.tables import Retention as MessageRetention


@called("a lifetime", 'lifetime(end="until")')
@dataclass(frozen=True)
class Lifetime:
    """Until when events live, and what they are: columns of their ends and shapes, or one ``shape`` of all."""

    end: str | None = None
    shape: str = "point"
    shape_column: str | None = None


@checked
def lifetime(end: str | None = None, shape: str | None = None, shape_column: str | None = None) -> Lifetime:
    """Until when the events of a stream live: to the time in the column ``end`` (exclusive), which makes them
    intervals; without it they are points. ``shape`` says otherwise for all (``point``, ``interval``, ``edge_start``,
    ``edge_end``), ``shape_column`` for each row. Raises `UsageError` for a shape that there is not, or has no end.
    """
    chosen = shape or ("point" if end is None else "interval")
    if chosen not in SHAPES or (end is None and chosen in ("interval", "edge_end")):
        raise UsageError(
            "the shape and the column of ends do not fit each other: give a shape of events, and the column of "
            "their ends only if the shape has one",
            code="event-shape",
            shape=chosen,
            end=end,
        )
    return Lifetime(end, chosen, shape_column)


@checked
def period(span: Span, *, offset: Span = "0 seconds") -> Update:
    """Each ``span`` of processing time, counted from 1970 and ``offset``. Raises `UsageError` for a span that is not
    positive.
    """
    period_us, offset_us = span_us(span), span_us(offset)
    if period_us <= 0:
        raise UsageError(
            'an update period must be a span above 0, such as "1 minute"',
            code="join-update",
            period=text_of(period_us),
        )
    return Update(period_us, offset_us % period_us)


@called("a retention", 'Retention(span="1 hour")')
@dataclass(frozen=True)
class RetentionSettings:
    """How much is kept: rows of the newest ``span`` of time or of the newest ``offsets``, the newest ``messages`` or
    ``bytes`` of them, so many ``windows`` that are past. The smallest of several limits counts.

    Messages that go by size are counted in slots of time: ``slot`` is their width, 1 microsecond (or offset) by
    default. Whole slots expire.
    """

    span: Span | None = None
    messages: int | None = None
    offsets: int | None = None
    windows: int | None = None
    bytes: int | None = None
    slot: Span | int | None = None

    def __post_init__(self) -> None:
        limits = {each.name: getattr(self, each.name) for each in fields(self)}
        _check_retention(**limits)
        for name, limit in limits.items():
            if _is_number(limit):
                object.__setattr__(self, name, int(limit))

    def of_messages(self, *, by_offset: bool) -> MessageRetention:
        """As a store of messages keeps it; ``by_offset``: of windows of offsets. Raises `UsageError` for a field that
        has no meaning there.
        """
        self._refuse("windows", words="messages can be kept only by span, offsets, messages or bytes")
        if by_offset:
            self._refuse("span", words="windows of offsets can keep messages only by offsets, messages or bytes")
        else:
            self._refuse("offsets", words="windows of time can keep messages only by span, messages or bytes")
        oldest = self.offsets if self.span is None else span_us(self.span)
        slot = 1 if self.slot is None else self.slot if isinstance(self.slot, int) else span_us(self.slot)
        return MessageRetention(time=oldest, count=self.messages, bytes=self.bytes, slot=slot)

    def of_side(self) -> JoinRetention:
        """How much a join keeps of a side. Raises `UsageError` for a field that has no meaning there."""
        self._refuse(
            "messages", "bytes", "slot", words="a side of a join can keep rows only by span, offsets or windows"
        )
        retained_us = None if self.span is None else span_us(self.span)
        limits = [limit for limit in (retained_us, self.offsets, self.windows) if limit is not None]
        whole = all(isinstance(limit, int) and not isinstance(limit, bool) for limit in limits)
        if not limits or not whole or min(limits) < 0 or self.offsets == 0:
            raise UsageError(
                "say how much a side keeps: a span, a number of offsets above 0, or a number of windows",
                code="join-retain",
                found=(self.span, self.offsets, self.windows),
            )
        return JoinRetention(retained_us, self.offsets, self.windows)

    def _refuse(self, *names: str, words: str) -> None:
        if useless := [name for name in names if getattr(self, name) is not None]:
            raise UsageError(words, code="retention-field", found=useless)


def _is_number(limit: object) -> bool:
    return isinstance(limit, int | np.integer) and not isinstance(limit, np.timedelta64)


def _retention(
    span: Span | None,
    messages: int | None,
    offsets: int | None,
    windows: int | None,
    bytes: int | None,
    slot: Span | int | None,
) -> None:
    """Raises `UsageError` for a span that is none."""
    if span is not None:
        span_us(span)
    if slot is not None and not isinstance(slot, int) and not _is_number(slot):
        span_us(slot)


_check_retention = checked(_retention, "Retention")

SpanOrRetention = Span | RetentionSettings
"""How much is kept, as a user gives it: a span is short for a `RetentionSettings` of it."""


def retention_of(retain: SpanOrRetention | None) -> RetentionSettings | None:
    """A span is the retention of it. Raises `UsageError` for anything else, such as a number."""
    if retain is None or isinstance(retain, RetentionSettings):
        return retain
    span_us(retain)  # raises for what is no span
    return RetentionSettings(retain)


@called("settings of a side", 'side(retain="1 hour")')
@dataclass(frozen=True)
class SideSettings:
    """What one side of a join has of its own; None where it is as for both."""

    window: Sliding | None = None
    update: Span | Update | None = None
    late_update: Span | Update | None = None
    retain: SpanOrRetention | None = None
    start: int | None = field(default=None)

    def over(self, both: SideSettings) -> SideSettings:
        """These settings, and those of ``both`` where there are none."""
        names = [each.name for each in fields(self) if getattr(self, each.name) is None]
        lacking = {name: getattr(both, name) for name in names}
        return replace(self, **lacking)

    @property
    def retained(self) -> JoinRetention | None:
        """How much a join keeps of it."""
        chosen = retention_of(self.retain)
        return None if chosen is None else chosen.of_side()


@checked
def side(
    *,
    window: Any = None,
    update: Span | Update | None = None,
    late_update: Span | Update | None = None,
    retain: SpanOrRetention | None = None,
    start: int | None = None,
) -> SideSettings:
    """Settings of one side of a join: its ``window``; how often its pairs are emitted (``update``, and
    ``late_update`` for late rows: a span of processing time, or a `period`); how much of it is kept
    (``retain``: a span, or a `Retention`); and, in sessions of offsets, the first offset that counts
    (``start``).
    """
    if window is not None and not isinstance(window, Sliding):
        raise UsageError(
            "a side needs tumbling or sliding windows, or windows of offsets", code="join-window", found=window
        )
    retention_of(retain)
    return SideSettings(window, update, late_update, retain, start)
