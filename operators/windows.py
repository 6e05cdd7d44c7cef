"""Time windows of a fixed size, and the slices their state is kept in.

Windows are half-open, ``[start, end)``; their starts are ``offset`` plus multiples of ``slide``. Neighbouring
windows share events, so state is kept once per **slice** of gcd(size, slide), and slices are combined when a
window fires. A tumbling window is one slice. Everything here is integer arithmetic in microseconds, vectorised,
and right before 1970 (floor division).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np
import numpy.typing as npt

from operators.durations import Span, span_us, text_of
from statestore.errors import UsageError

Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Sliding:
    """Windows of ``size_us``, one starting every ``slide_us``."""

    size_us: int
    slide_us: int
    offset_us: int = 0

    @property
    def slice_us(self) -> int:
        """Width of a slice."""
        return gcd(self.size_us, self.slide_us)

    @property
    def tumbles(self) -> bool:
        """Whether every event lies in exactly one window."""
        return self.size_us == self.slide_us

    def slice_ends(self, times: Times) -> Times:
        """The end of the slice each event time lies in. Shape as given."""
        width = self.slice_us
        ends: Times = (times - self.offset_us) // width * width + (width + self.offset_us)
        return ends

    def first_end_at_or_after(self, time_us: int) -> int:
        """The earliest window end >= ``time_us``."""
        phase = self.offset_us + self.size_us
        return -((phase - time_us) // self.slide_us) * self.slide_us + phase

    def first_ends(self, slice_ends: Times) -> Times:
        """The end of the earliest window that can hold each slice (slides longer than windows leave gaps)."""
        if self.tumbles:
            return slice_ends
        phase = self.offset_us + self.size_us
        ends: Times = -((phase - slice_ends) // self.slide_us) * self.slide_us + phase
        return ends

    def explode(self, slice_ends: Times) -> tuple[npt.NDArray[np.int64], Times]:
        """Every (slice, window) pair: indices into ``slice_ends``, and window ends; both of shape ``(pairs,)``."""
        if self.tumbles:
            return np.arange(len(slice_ends)), slice_ends
        first = self.first_ends(slice_ends)
        most = -(-self.size_us // self.slide_us)
        ends = first[:, None] + np.arange(most, dtype=np.int64) * self.slide_us
        holds = ends - self.size_us <= slice_ends[:, None] - self.slice_us
        return np.repeat(np.arange(len(slice_ends)), most)[holds.ravel()], ends.ravel()[holds.ravel()]

    def slices_of(self, window_ends: Times) -> tuple[npt.NDArray[np.int64], Times]:
        """Every (window, slice) pair: indices into ``window_ends``, and the slice ends."""
        count = self.size_us // self.slice_us
        back = np.arange(count, dtype=np.int64) * self.slice_us
        ends = (window_ends[:, None] - back).ravel()
        return np.repeat(np.arange(len(window_ends)), count), ends

    def oldest_slice_after(self, time_us: int) -> int:
        """Slices ending at or before this are in no window that ends after ``time_us``."""
        return self.first_end_at_or_after(time_us + 1) - self.size_us

    def describe(self) -> dict[str, str]:
        """For the manifest."""
        return {
            "kind": "tumbling" if self.tumbles else "sliding",
            "size": text_of(self.size_us),
            "slide": text_of(self.slide_us),
            "offset": text_of(self.offset_us),
        }


@dataclass(frozen=True)
class Sessions:
    """Windows of one key's events that are less than ``gap_us`` apart; or as each event's ``gap_column`` says."""

    gap_us: int = 0
    gap_column: str | None = None

    def describe(self) -> dict[str, str]:
        """For the manifest."""
        return {"kind": "session"} | (
            {"gap_column": self.gap_column} if self.gap_column else {"gap": text_of(self.gap_us)}
        )


@dataclass(frozen=True)
class Global:
    """One window that holds all of time."""

    def describe(self) -> dict[str, str]:
        """For the manifest."""
        return {"kind": "global"}


@dataclass(frozen=True)
class Counted:
    """Windows of ``count`` messages of a key, one beginning every ``step``; numbers stand for times."""

    count: int
    step: int

    def describe(self) -> dict[str, str | int]:
        """For the manifest."""
        return {"kind": "count", "count": self.count, "step": self.step}


Windows = Sliding | Sessions | Global | Counted


def session(gap: Span | None = None, *, gap_column: str | None = None) -> Sessions:
    """Windows of activity: events of one key belong together when they are less than ``gap`` apart.

    With ``gap_column`` each event brings its own gap, in microseconds or as a duration.
    """
    if (gap is None) == (gap_column is None):
        raise UsageError("give a session a gap, or the column that holds it", code="session-gap")
    if gap is None:
        return Sessions(gap_column=gap_column)
    gap_us = span_us(gap)
    if gap_us <= 0:
        raise UsageError("the gap of a session is longer than nothing", code="session-gap", gap=text_of(gap_us))
    return Sessions(gap_us)


def global_window() -> Global:
    """One window over all of time: it fires by its triggers, and when the input ends."""
    return Global()


def count_window(count: int, step: int | None = None) -> Counted:
    """Windows of the n-th to the m-th accepted message of a key, whatever their times; full ones fire."""
    step = count if step is None else step
    if count < 1 or step < 1:
        raise UsageError(
            "a count window counts and steps by one at least", code="window-count", count=count, step=step
        )
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
