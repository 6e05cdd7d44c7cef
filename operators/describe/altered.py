"""What the user writes to move the lifetimes of events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from msgspec.structs import replace

from tidestate.operators.describe.given_ctis import watermarks_of_ctis
from tidestate.operators.describe.runnable import Runnable, checked_name
from tidestate.operators.progress.cti_settings import Settings
from tidestate.statestore.arguments import checked
from tidestate.statestore.durations import Span, span_us
from tidestate.statestore.errors import UsageError


class Altered(Runnable, frozen=True, tag="altered"):
    """Passes rows on with other times: ``shift_us`` later, and ending ``duration_us`` after their start."""

    event_time: str
    shift_us: int
    end: str | None
    duration_us: int | None
    watermark_delay_us: int
    offset: str | None = None
    origin: str | None = None

    @checked
    def advance_time(
        self,
        settings: Settings = None,
        *,
        at_source: Settings = None,
        shape: str = "point",
        end: str | None = None,
        shape_column: str | None = None,
        by: str | None = None,
        sources: Sequence[str] = (),
        idle_timeout: Span | None = None,
        own_timeouts: Mapping[str, Span] | None = None,
    ) -> Self:
        """As `Windowed.advance_time`: CTIs judge events as they were, and are shifted with them."""
        marks = watermarks_of_ctis(
            self.event_time,
            (self.origin, self.offset),
            (settings, at_source),
            (end, shape, shape_column),
            by,
            (sources, idle_timeout, own_timeouts),
        )
        return replace(self, watermarks=marks)


@checked
def altered(
    *,
    event_time: str,
    shift: Span = "0 seconds",
    end: str | None = None,
    duration: Span | None = None,
    watermark_delay: Span = "0 seconds",
    offset: str | None = None,
    origin: str | None = None,
    name: str = "altered",
) -> Altered:
    """Pass rows on with other lifetimes: ``shift`` is added to the ``event_time`` and to the ``end``, and may be
    negative; with ``duration`` the ``end`` is that long after the new start, in a new column if the input has none.

    Every row passes at once, late or not. The output watermark is shifted too. ``offset`` and ``origin`` order the
    rows for `Altered.advance_time`.
    """
    shift_us, delay_us = span_us(shift), span_us(watermark_delay)
    duration_us = None if duration is None else span_us(duration)
    if duration_us is not None and (duration_us <= 0 or end is None):
        raise UsageError(
            "a duration is longer than nothing, and has a column of ends: end=",
            code="altered",
            duration=duration,
            end=end,
        )
    if end == event_time or (not shift_us and duration_us is None):
        raise UsageError("say what changes: by=, or duration= with end=", code="altered", end=end)
    if delay_us < 0:
        raise UsageError("a watermark delay cannot be negative", code="watermark-delay", found=watermark_delay)
    if origin is not None and offset is None:
        raise UsageError("an origin orders messages by their offset: name that too", code="offset", origin=origin)
    return Altered(event_time, shift_us, end, duration_us, delay_us, offset, origin, name=checked_name(name))
