"""What the user may choose of a join: how much sides keep, and how often pairs are emitted."""

from __future__ import annotations

import msgspec

from tidestate.statestore.arguments import checked
from tidestate.statestore.durations import Span, span_us, text_of
from tidestate.statestore.errors import UsageError


class JoinRetention(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much a side keeps: a span of time, so many offsets, so many windows that are past. The shorter counts."""

    span_us: int | None = None
    messages: int | None = None
    windows: int | None = None


@checked
def keep(span: Span | None = None, *, messages: int | None = None, windows: int | None = None) -> JoinRetention:
    """Retention of one side of a join: rows of the newest ``span`` of time, or with the newest ``messages`` offsets,
    and ``windows`` past windows. The smallest of several limits applies.
    """
    span_found = None if span is None else span_us(span)
    limits = [limit for limit in (span_found, messages, windows) if limit is not None]
    whole = all(isinstance(limit, int) and not isinstance(limit, bool) for limit in limits)
    if not limits or not whole or min(limits) < 0 or messages == 0:
        raise UsageError(
            "say how much a side keeps: a span, a number of messages or of windows, none of them negative",
            code="join-retain",
            found=(span, messages, windows),
        )
    return JoinRetention(span_found, messages, windows)


class Update(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Multiples of ``period_us`` of processing time, shifted by ``offset_us``."""

    period_us: int
    offset_us: int = 0

    def next(self, now_us: int) -> int:
        """The first of them at or after ``now_us``."""
        return now_us + (self.offset_us - now_us) % self.period_us


@checked
def every(period: Span, *, offset: Span = "0 seconds") -> Update:
    """Each ``period`` of processing time, counted from 1970 and ``offset``."""
    found, shift = span_us(period), span_us(offset)
    if found <= 0:
        raise UsageError("an update period is longer than nothing", code="join-update", period=text_of(found))
    return Update(found, shift % found)
