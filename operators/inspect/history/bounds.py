"""Which window a person means by a time: bounds of windows as numbers. Pure.

Windows are half-open, ``[start, end)``, in microseconds, or in offsets and counts. Regular ones follow from the
configuration in the manifest; sessions and the like are found among the rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tidestate.recovery.log.summary import time_text, time_us, within_64
from tidestate.statestore.errors import UsageError

_UNITS_US = {
    "day": 86_400_000_000,
    "hour": 3_600_000_000,
    "minute": 60_000_000,
    "second": 1_000_000,
    "millisecond": 1_000,
    "microsecond": 1,
}
_SPAN = re.compile(r"(-?[0-9]{1,40}) ([a-z]+?)s?(?: |$)")


FEW_VALUES = 3
"""So many windows are named to a person who means none of them."""


@dataclass(frozen=True, order=True)
class WindowBounds:
    """A window's start and end."""

    start: int
    end: int

    def overlaps(self, other: WindowBounds) -> bool:
        """Whether an event can lie in both."""
        return self.start < other.end and other.start < self.end

    def holds(self, place: int) -> bool:
        """Whether an event there lies in it."""
        return self.start <= place < self.end

    def touches(self, place: int) -> bool:
        """Whether it holds a place, or ends there."""
        return self.start <= place <= self.end


@dataclass(frozen=True)
class BoundUnit:
    """What bounds of windows count: microseconds since 1970 where ``timed``, else offsets or messages."""

    timed: bool

    @classmethod
    def of(cls, configuration: Mapping[str, Any]) -> BoundUnit:
        """As the configuration of an operator says."""
        return cls(_kind(configuration) not in ("offsets", "count"))

    @classmethod
    def of_watermark(cls, configuration: Mapping[str, Any]) -> BoundUnit:
        """That of the operator's watermark: windows that count messages have one of times."""
        return cls(_kind(configuration) != "offsets")

    def place(self, text: str) -> int:
        """Text as a place among bounds. Raises `UsageError`."""
        try:
            if not self.timed:
                return within_64(text)
            if (number := time_us(text)) is not None:
                return number
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            kind = "a time, as 2013-01-01T10:00" if self.timed else "a whole number: these windows are no times"
            raise UsageError(f"give {kind} ({error})", code="read-value", found=text[:100]) from None
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)

    def text(self, place: int | None) -> str | None:
        """A place for people."""
        return time_text(place) if self.timed else None if place is None else str(place)

    def texts(self, windows: Iterable[WindowBounds]) -> str:
        """Windows for people."""
        return ", ".join(f"{self.text(one.start)} to {self.text(one.end)}" for one in windows)


@dataclass(frozen=True)
class Regular:
    """Windows of one ``size``, beginning at ``shift`` plus multiples of ``slide``."""

    size: int
    slide: int
    shift: int

    @classmethod
    def of(cls, configuration: Mapping[str, Any]) -> Regular | None:
        """As the configuration of an operator says; None where windows are of any length."""
        window = configuration.get("window")
        if not isinstance(window, dict):
            return None
        try:
            if window.get("kind") in ("tumbling", "sliding"):
                made = cls(*(_span_us(window[name]) for name in ("size", "slide", "offset")))
            elif window.get("kind") == "offsets":
                made = cls(window["count"], window["step"], window.get("start", 0))
            else:
                return None
            return made if min(made.size, made.slide) > 0 else None
        except (KeyError, TypeError, ValueError):
            return None  # not written by us

    def meant(self, place: int) -> list[WindowBounds]:
        """Windows that a place may stand for, the likeliest first: one that begins there, one that ends there, else
        those that hold it.
        """
        starts = [start for start in (place, place - self.size) if (start - self.shift) % self.slide == 0]
        if not starts:
            newest = (place - self.shift) // self.slide * self.slide + self.shift
            starts = list(range(newest, place - self.size, -self.slide)[:FEW_VALUES])
        return [WindowBounds(start, start + self.size) for start in starts]


def _kind(configuration: Mapping[str, Any]) -> str:
    """Of windows; ``offsets`` for all that are of these."""
    window = configuration.get("window")
    if not isinstance(window, dict):
        return ""
    return "offsets" if "offsets" in window else str(window.get("kind"))


def _span_us(text: str) -> int:
    """A span as configurations write it: ``1 hour 30 minutes``."""
    return sum(int(count) * _UNITS_US[unit] for count, unit in _SPAN.findall(text))
