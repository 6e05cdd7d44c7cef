"""Which windows there are: of time, of offsets, of counted messages; and the slices of those on a grid.

Windows are half-open, ``[start, end)``. Those on a grid start at ``shift`` plus multiples of ``slide``.
Neighbouring ones share events, so their state is kept once per **slice** of gcd(size, slide), and slices are combined
when a window fires. A tumbling window is one slice. Everything here is integer arithmetic, in microseconds or in
offsets, vectorised, and right before 1970 (floor division).

The **current window** is, in the words of Samza's design, "the latest window we just opened": of windows on a grid
the newest that has begun before the watermark. So it holds the last moment before the watermark, or ends before it
where windows leave gaps. An event before its start is past, one at or after its end is future, all others are in
time. On time and late go by the watermark beside it. Before the first watermark every event is in time.
"""

from __future__ import annotations

from math import gcd
from typing import Annotated, ClassVar, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.progress.watermarks import BEGINNING_US, END_US, LIMIT_US
from tidestate.statestore.arrays import Counters, Numbers, Times
from tidestate.statestore.spec.lists import places_within

START, END = "window_start", "window_end"
"""Columns of panes and tables that bound a window."""
PANE_TIME = "pane_time"
"""The column that readers of panes see in addition: the last moment of the window."""
FAR = 2**62
"""Farther than any window end, and not so far that differences leave int64."""


Extent = Literal["start", "lifetime"]
"""What of an event lies in windows: the time at which it starts, or all of its lifetime."""
Length = Annotated[int, msgspec.Meta(gt=0, le=FAR)]


class WindowKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """What all kinds of windows have in common."""

    @property
    def late(self) -> int | None:
        """How many offsets a window stays open after its end, where windows are of offsets."""
        return None

    @property
    def by_offset(self) -> bool:
        """Whether windows are of offsets, or of numbers that follow from these, not of time."""
        return self.late is not None

    @property
    def numbered(self) -> bool:
        """Whether windows are of the numbers that messages have in the order of their offsets."""
        return False


class Sliding(WindowKind, frozen=True, tag="sliding"):
    """Windows of ``size``, one starting every ``slide``; in microseconds."""

    size: Length = msgspec.field(name="size_us")
    slide: Length = msgspec.field(name="slide_us")
    shift: int = msgspec.field(name="offset_us", default=0)

    @property
    def end_column(self) -> str | None:
        """The column with the end of each event's lifetime, where events are in every window that it touches."""
        return None

    @property
    def shares_events(self) -> bool:
        """Whether an event may be in several windows."""
        return self.size > self.slide or self.end_column is not None

    @property
    def from_first(self) -> bool:
        """Whether they start at the first offset of the input, which the job records."""
        return False

    def begun_at(self, first: int | None) -> Sliding:
        """The same where the first offset is ``first``; None while there is none. Only where they start there does
        it matter.
        """
        return self

    @property
    def slice(self) -> int:
        """The width of a slice: each window is a whole number of them, so their state can be shared."""
        return gcd(self.size, self.slide)

    @property
    def tumbles(self) -> bool:
        """Whether every event lies in exactly one window."""
        return self.size == self.slide

    @property
    def has_gaps(self) -> bool:
        """Whether an event may be in no window: between two, or before the first."""
        return self.slide > self.size or self.by_offset

    def assign(self, times: Times) -> tuple[npt.NDArray[np.int64], Times, Times]:
        """Every (event, window) pair: indices of events, starts and ends of windows; each of shape ``(pairs,)``."""
        return self.pairs(*self.windows_of(self.slice_ends(times)))

    def pairs(self, first: Times, counts: Times) -> tuple[npt.NDArray[np.int64], Times, Times]:
        """As `assign`, of events in ``counts`` windows that follow each other from the one that ends at ``first``."""
        index = np.repeat(np.arange(len(first)), counts)
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
        self, slice_ends: Times, low: int | None = None, high: int | None = None, *, slices: int = 1
    ) -> tuple[Times, npt.NDArray[np.int64]]:
        """Of each slice the windows that hold it and for which ``low < end <= high``: the first end, and how many.

        They follow each other at ``slide``. Both of the shape given. With ``slices`` those that hold so many, of
        which each is the last.
        """
        first = self.first_ends(slice_ends)
        begins = slice_ends - slices * self.slice
        last = (begins - self.shift) // self.slide * self.slide + (self.shift + self.size)
        if self.by_offset:
            first = np.maximum(first, self.shift + self.size)
        return self._between(first, last, low, high)

    def touched(
        self, starts: Times, ends: Times, low: int | None = None, high: int | None = None
    ) -> tuple[Times, npt.NDArray[np.int64]]:
        """As `windows_of`, of each lifetime from ``starts`` to ``ends`` (exclusive) the windows that it touches."""
        phase = self.shift + self.size
        first = -((phase - starts - 1) // self.slide) * self.slide + phase
        last = (ends - 1 - self.shift) // self.slide * self.slide + phase
        return self._between(first, last, low, high)

    def _between(
        self, first: Times, last: Times, low: int | None, high: int | None
    ) -> tuple[Times, npt.NDArray[np.int64]]:
        """Of windows from one end to another those for which ``low < end <= high``: the first end, and how many."""
        if low is not None:
            first = np.maximum(first, min(self.first_end_at_or_after(low + 1), FAR))
        if high is not None:
            last = np.minimum(last, max(self.last_end_at_or_before(high), -FAR))
        return first, np.maximum(0, (last - first) // self.slide + 1)

    def last_end_at_or_before(self, time_us: int) -> int:
        """The latest window end <= ``time_us``."""
        return self.first_end_at_or_after(time_us + 1) - self.slide

    def current(self, watermark: int | None) -> tuple[int, int]:
        """Start and end of the current window, as far as 64 bits hold them; of all time before the first watermark.
        Windows of offsets begin at ``shift``, and the first of them counts as begun before.
        """
        if watermark is None:
            return BEGINNING_US, END_US
        start = (watermark - 1 - self.shift) // self.slide * self.slide + self.shift
        start = max(start, self.shift) if self.by_offset else start
        return max(start, BEGINNING_US), min(start + self.size, END_US)

    def oldest_slice_after(self, time_us: int) -> int:
        """Slices ending at or before this are in no window that ends after ``time_us``."""
        return self.first_end_at_or_after(time_us + 1) - self.size


class SlidingLifetimes(Sliding, frozen=True, tag="sliding_by_lifetime"):
    """The same, and an event is in every window that its lifetime touches, until the time in the column ``end``."""

    end: str = ""

    @property
    def end_column(self) -> str:
        return self.end


class SlidingOffsets(Sliding, frozen=True, tag="offsets"):
    """Windows of ``size`` offsets, one starting every ``slide`` of them."""

    size: Length = msgspec.field(name="count")
    slide: Length = msgspec.field(name="step")
    shift: int = msgspec.field(name="start", default=0)
    late: int = 0


class AlignedOffsets(SlidingOffsets, frozen=True, tag="aligned_offsets"):
    """The same, where ``shift`` counts from the first offset of the input, which the job records. Of the sides of
    joins alone.
    """

    needs: ClassVar[tuple[str, ...]] = ("first-offsets/1",)

    @property
    def from_first(self) -> bool:
        return True

    def begun_at(self, first: int | None) -> Sliding:
        return SlidingOffsets(self.size, self.slide, self.shift + (first or 0), self.late)


class Rolling(WindowKind, frozen=True, tag="rolling"):
    """Of each key a window for every time at which it has an event: the ``size`` microseconds that end with it."""

    needs: ClassVar[tuple[str, ...]] = ("rolling-windows/1",)

    size: Length = msgspec.field(name="size_us")

    def ends(self, times: Times) -> Times:
        """The end of the window of each event time, exclusive. Shape as given."""
        return times + 1


class Sessions(WindowKind, frozen=True, tag="session"):
    """Windows of one key's events that are less than ``gap`` microseconds apart; or as each event's ``gap_column``
    says.
    """

    gap: int = msgspec.field(name="gap_us", default=0)
    gap_column: str | None = None


class SessionsOfOffsets(Sessions, frozen=True, tag="session_of_offsets"):
    """Windows of one key's events that are less than ``gap`` offsets apart."""

    gap: int = msgspec.field(name="offsets", default=0)
    late: int = 0


class SessionsOfMessages(Sessions, frozen=True, tag="session_of_messages"):
    """Windows of one key's messages of whose numbers each is less than ``gap`` above the one before. The numbers are
    those of all messages of the stream, in the order of their offsets.
    """

    needs: ClassVar[tuple[str, ...]] = ("sessions-by-messages/1",)

    gap: int = msgspec.field(name="messages", default=0)

    @property
    def late(self) -> int:
        """None: a message behind those that have a number gets none."""
        return 0

    @property
    def numbered(self) -> bool:
        """Always: their bounds are such numbers."""
        return True

    @property
    def without(self) -> int:
        """The most messages without the key that lie between two of a session."""
        return self.gap - 2


class Global(WindowKind, frozen=True, tag="global"):
    """One window that holds all of time."""


class Counted(WindowKind, frozen=True, tag="count"):
    """Windows of ``count`` messages of a key, one beginning every ``step``; numbers stand for times."""

    count: Length
    step: Length


class NamedWindow(WindowKind, frozen=True, tag="named"):
    """The window that each row of the input names, as panes do."""


Windows = (
    Sliding
    | SlidingLifetimes
    | SlidingOffsets
    | Rolling
    | Sessions
    | SessionsOfOffsets
    | SessionsOfMessages
    | Global
    | Counted
    | NamedWindow
)


WINDOW_TIMING = "window_timing"
"""The column of the late ledger, where `Aggregation.allowed_lateness` asks for it."""
IN_TIME, PAST, FUTURE = "in_time", "past", "future"
"""Its values; the counters of events have ``window_`` before them."""


def count_timings(times: Times, start: int, end: int, rows: Numbers | None = None) -> Counters:
    """How many of these event times are in time, past and future, by the current window from ``start`` to ``end``;
    ``rows``: how many each stands for, by default one.
    """
    count = np.count_nonzero if rows is None else lambda flags: rows[flags].sum()
    past, future, known = (int(count(flags)) for flags in (times < start, times >= end, np.ones(len(times), bool)))
    counts = {IN_TIME: known - past - future, PAST: past, FUTURE: future}
    return {f"window_{timing}": count for timing, count in counts.items()}


def window_timing(times: pa.ChunkedArray, start: int, end: int) -> pa.ChunkedArray:
    """Which of the three each event time is; null where it is null, or out of range."""
    moments = times.cast(pa.int64())
    ahead = pc.if_else(pc.greater_equal(moments, end), FUTURE, IN_TIME)
    timing = pc.if_else(pc.less(moments, start), PAST, ahead)
    usable = pc.and_(pc.less_equal(moments, LIMIT_US), pc.greater_equal(moments, -LIMIT_US))
    return pc.if_else(usable, timing, pa.scalar(None, pa.string()))
