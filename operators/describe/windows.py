"""Which windows there are: of time, of offsets, of counted messages; and the slices of those of a fixed size.

Windows are half-open, ``[start, end)``. Those of a fixed size start at ``shift`` plus multiples of ``slide``.
Neighbouring ones share events, so their state is kept once per **slice** of gcd(size, slide), and slices are combined
when a window fires. A tumbling window is one slice. Everything here is integer arithmetic, in microseconds or in
offsets, vectorised, and right before 1970 (floor division).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tidestate.statestore.arrays import Times
from tidestate.statestore.durations import Span, span_us, text_of
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.lists import places_within

START, END = "window_start", "window_end"
"""Columns of panes and tables that bound a window."""
FAR = 2**62
"""Farther than any window end, and not so far that differences leave int64."""


@dataclass(frozen=True)
class Sliding:
    """Windows of ``size``, one starting every ``slide``.

    In microseconds; or in offsets, where ``late`` says how many of them a window stays open after its end.
    """

    size: int
    slide: int
    shift: int = 0
    late: int | None = None

    @property
    def slice(self) -> int:
        """Width of a slice."""
        return gcd(self.size, self.slide)

    @property
    def tumbles(self) -> bool:
        """Whether every event lies in exactly one window."""
        return self.size == self.slide

    @property
    def by_offset(self) -> bool:
        """Whether windows are of offsets, not of time."""
        return self.late is not None

    def assign(self, times: Times) -> tuple[npt.NDArray[np.int64], Times, Times]:
        """Every (event, window) pair: indices of events, starts and ends of windows; each of shape ``(pairs,)``."""
        first, counts = self.windows_of(self.slice_ends(times))
        index = np.repeat(np.arange(len(times)), counts)
        ends = first[index] + places_within(counts) * self.slide
        return index, ends - self.size, ends

    def slice_ends(self, times: Times) -> Times:
        """The end of the slice each event time lies in. Shape as given."""
        width = self.slice
        ends: Times = (times - self.shift) // width * width + (width + self.shift)
        return ends

    def first_end_at_or_after(self, time_us: int) -> int:
        """The earliest window end >= ``time_us``."""
        phase = self.shift + self.size
        return -((phase - time_us) // self.slide) * self.slide + phase

    def first_ends(self, slice_ends: Times) -> Times:
        """The end of the earliest window that can hold each slice (slides longer than windows leave gaps)."""
        if self.tumbles:
            return slice_ends
        phase = self.shift + self.size
        ends: Times = -((phase - slice_ends) // self.slide) * self.slide + phase
        return ends

    def windows_of(
        self, slice_ends: Times, low: int | None = None, high: int | None = None
    ) -> tuple[Times, npt.NDArray[np.int64]]:
        """Of each slice the windows that hold it and for which ``low < end <= high``: the first end, and how many.

        They follow each other at ``slide``. Both of the shape given.
        """
        first = self.first_ends(slice_ends)
        last = (slice_ends - self.slice - self.shift) // self.slide * self.slide + (self.shift + self.size)
        if self.by_offset:
            first = np.maximum(first, self.shift + self.size)
        if low is not None:
            first = np.maximum(first, min(self.first_end_at_or_after(low + 1), FAR))
        if high is not None:
            last = np.minimum(last, max(self.last_end_at_or_before(high), -FAR))
        return first, np.maximum(0, (last - first) // self.slide + 1)

    def last_end_at_or_before(self, time_us: int) -> int:
        """The latest window end <= ``time_us``."""
        return self.first_end_at_or_after(time_us + 1) - self.slide

    def oldest_slice_after(self, time_us: int) -> int:
        """Slices ending at or before this are in no window that ends after ``time_us``."""
        return self.first_end_at_or_after(time_us + 1) - self.size

    def describe(self) -> dict[str, Any]:
        """For the manifest."""
        if self.by_offset:
            said = {"kind": "offsets", "count": self.size, "step": self.slide, "late": self.late}
            return said | ({"start": self.shift} if self.shift else {})
        return {
            "kind": "tumbling" if self.tumbles else "sliding",
            "size": text_of(self.size),
            "slide": text_of(self.slide),
            "offset": text_of(self.shift),
        }


@dataclass(frozen=True)
class Sessions:
    """Windows of one key's events that are less than ``gap`` apart; or as each event's ``gap_column`` says.

    Of times, or of offsets where ``late`` says how many of them a window stays open after its end.
    """

    gap: int = 0
    gap_column: str | None = None
    late: int | None = None

    @property
    def by_offset(self) -> bool:
        """Whether windows are of offsets, not of time."""
        return self.late is not None

    def describe(self) -> dict[str, Any]:
        """For the manifest."""
        if self.by_offset:
            return {"kind": "session", "offsets": self.gap, "late": self.late}
        return {"kind": "session"} | (
            {"gap_column": self.gap_column} if self.gap_column else {"gap": text_of(self.gap)}
        )


@dataclass(frozen=True)
class Global:
    """One window that holds all of time."""

    def describe(self) -> dict[str, Any]:
        """For the manifest."""
        return {"kind": "global"}


@dataclass(frozen=True)
class Counted:
    """Windows of ``count`` messages of a key, one beginning every ``step``; numbers stand for times."""

    count: int
    step: int

    def describe(self) -> dict[str, Any]:
        """For the manifest."""
        return {"kind": "count", "count": self.count, "step": self.step}


@dataclass(frozen=True)
class NamedWindow:
    """The window that each row of the input names, as panes do."""

    def describe(self) -> dict[str, Any]:
        """For the manifest."""
        return {"kind": "of the input"}


Windows = Sliding | Sessions | Global | Counted | NamedWindow


def by_offset(kind: Windows) -> bool:
    """Whether windows are of offsets."""
    return isinstance(kind, Sliding | Sessions) and kind.by_offset


def session(
    gap: Span | None = None, *, gap_column: str | None = None, offsets: int | None = None, late: int | None = None
) -> Sessions:
    """Windows of activity: events of one key belong together when they are less than ``gap`` apart.

    With ``gap_column`` each event brings its own gap, in microseconds or as a duration. With ``offsets`` messages
    belong together when their offsets are less than so many apart; such a window stays open until the input is
    ``late`` offsets (default: as many) past its end.
    """
    if sum(given is not None for given in (gap, gap_column, offsets)) != 1:
        raise UsageError("give a session a gap, or the column that holds it, or offsets", code="session-gap")
    if offsets is not None:
        return Sessions(_positive(offsets), late=_late(late, offsets))
    if late is not None:
        raise UsageError("sessions of time have .late(...)", code="window-late", late=late)
    if gap is None:
        return Sessions(gap_column=gap_column)
    gap_us = span_us(gap)
    if gap_us <= 0:
        raise UsageError("the gap of a session is longer than nothing", code="session-gap", gap=text_of(gap_us))
    return Sessions(gap_us)


def global_window() -> Global:
    """One window over all of time: it fires by its triggers, and when the input ends."""
    return Global()


def count_window(
    count: int,
    step: int | None = None,
    *,
    by: Literal["count", "offset"] = "count",
    late: int | None = None,
    start: int = 0,
) -> Counted | Sliding:
    """Windows of the n-th to the m-th accepted message of a key, whatever their times; full ones fire.

    With ``by="offset"`` windows are of the input's offsets, ``[start + k*step, start + k*step + count)``, whoever has
    them: one is full when the input has passed its end, and takes offsets that come late until the input is
    ``late`` offsets (default: ``count``) past it. Offsets before ``start`` are in no window.
    """
    step = count if step is None else step
    _positive(count)
    _positive(step)
    if by not in ("count", "offset"):
        raise UsageError("a count window goes by count or by offset", code="window-by", found=repr(by))
    if by == "offset":
        if start < 0:
            raise UsageError("offsets begin at 0", code="window-start", start=start)
        return Sliding(count, step, start, _late(late, count))
    if start:
        raise UsageError("messages are counted from the first", code="window-start", start=start)
    if late is not None:
        raise UsageError("what is counted as it comes is never late", code="window-late", late=late)
    return Counted(count, step)


def tumbling(size: Span, *, offset: Span = "0 seconds") -> Sliding:
    """Windows of ``size`` side by side: each event lies in exactly one."""
    return _checked(size, size, offset, strict=True)


def sliding(size: Span, slide: Span, *, offset: Span = "0 seconds", strict: bool = True) -> Sliding:
    """Windows of ``size``, one starting every ``slide``. ``strict`` demands that slide divides size."""
    return _checked(size, slide, offset, strict=strict)


def _checked(size: Span, slide: Span, offset: Span, *, strict: bool) -> Sliding:
    size_us, slide_us, offset_us = span_us(size), span_us(slide), span_us(offset)
    if size_us <= 0 or slide_us <= 0:
        raise UsageError(
            "a window's size and slide are longer than nothing",
            code="window-size",
            size=text_of(size_us),
            slide=text_of(slide_us),
        )
    if strict and size_us % slide_us:
        raise UsageError(
            "the slide must divide the size (strict=False allows any)",
            code="window-slide",
            size=text_of(size_us),
            slide=text_of(slide_us),
        )
    return Sliding(size_us, slide_us, offset_us % slide_us)


def _positive(count: int) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count < 2**60:
        raise UsageError(
            "messages and offsets are counted from one, in whole numbers", code="window-count", found=repr(count)
        )
    return count


def _late(late: int | None, default: int) -> int:
    if late is None:
        return default
    if isinstance(late, bool) or not isinstance(late, int) or not 0 <= late < 2**60:
        raise UsageError("late is a number of offsets", code="window-late", found=repr(late))
    return late
