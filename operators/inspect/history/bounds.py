"""Bounds of windows as numbers, and which window a time refers to. Pure.

Windows are half-open, ``[start, end)``, in microseconds, or in offsets and counts. Fixed windows follow from the
configuration in the manifest; sessions and other windows are found among the rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidestate.operators.describe.windows import Counted, Sliding, Windows
from tidestate.recovery.log.summary import time_text, within_64
from tidestate.statestore.durations import Moment, moment_us
from tidestate.statestore.errors import UsageError

FEW_VALUES = 3
"""How many windows an error suggests."""


@dataclass(frozen=True, order=True)
class WindowBounds:
    """A window's start and end."""

    start: int
    end: int

    def overlaps(self, window: WindowBounds) -> bool:
        """Whether an event can lie in both."""
        return self.start < window.end and window.start < self.end

    def holds(self, position: int) -> bool:
        """Whether an event at this position is in the window."""
        return self.start <= position < self.end


@dataclass(frozen=True)
class BoundUnit:
    """The unit of window bounds: microseconds since 1970 if ``is_time``, or else offsets or messages."""

    is_time: bool

    @classmethod
    def of(cls, windows: Windows | None) -> BoundUnit:
        """The unit of the bounds of these windows; None is of an operator without windows, which has times."""
        return cls(windows is None or not (windows.by_offset or isinstance(windows, Counted)))

    @classmethod
    def of_watermark(cls, windows: Windows | None) -> BoundUnit:
        """The unit of the operator's watermark: windows that count messages have a watermark of times."""
        return cls(windows is None or not windows.by_offset)

    def place(self, moment: Moment) -> int:
        """A time, or a number or text, as a position among bounds. Raises `UsageError`."""
        try:
            return moment_us(moment) if self.is_time else within_64(str(moment))
        except ValueError:
            kind = "a time such as 2013-01-01T10:00" if self.is_time else "an integer: these windows have no times"
            raise UsageError(f"expected {kind}", code="read-value", found=str(moment)[:100]) from None

    def text(self, position: int | None) -> str | None:
        """A bound for people: a time, an offset or a number; None for none."""
        return time_text(position) if self.is_time else None if position is None else str(position)

    def texts(self, windows: Iterable[WindowBounds]) -> str:
        """Windows for people, as "start to end, start to end"."""
        return ", ".join(f"{self.text(window.start)} to {self.text(window.end)}" for window in windows)


def meant_windows(windows: Sliding, position: int) -> list[WindowBounds]:
    """Windows that a position may refer to, the likeliest first: one that starts there, one that ends there, or else
    those that contain it.
    """
    starts = [start for start in (position, position - windows.size) if (start - windows.shift) % windows.slide == 0]
    if not starts:
        newest = (position - windows.shift) // windows.slide * windows.slide + windows.shift
        starts = list(range(newest, position - windows.size, -windows.slide)[:FEW_VALUES])
    return [WindowBounds(start, start + windows.size) for start in starts]
