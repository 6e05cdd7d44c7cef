"""Joins by windows: rows meet in windows of both sides, or in the current windows of the other side."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidestate.operators.describe.join import Join
from tidestate.operators.describe.sides import SIDES
from tidestate.operators.describe.windows import Sliding
from tidestate.operators.joins.distance_rule import DistanceRule, distances
from tidestate.operators.joins.names import OTHER_SIDE
from tidestate.operators.joins.rule import Mark, PairRule, PositionBound, closed_at
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
from tidestate.statestore.arrays import Flags, Times
from tidestate.statestore.errors import expect
from tidestate.statestore.spec.lists import places_within


def first_start_after(windows: Sliding, places: Times) -> Times:
    """The earliest window that starts after each place."""
    found: Times = (places - windows.shift) // windows.slide * windows.slide + (windows.slide + windows.shift)
    return found


def last_start(windows: Sliding, places: Times) -> Times:
    """The latest window that starts at or before each place."""
    return first_start_after(windows, places) - windows.slide


@dataclass(frozen=True)
class SharedWindowRule(PairRule):
    """Rows meet in an open window that holds both: in the first one, or in each."""

    joined: Join

    @property
    def windows(self) -> Sliding:
        """The windows that joined rows share; such a join always has some."""
        return expect(self.joined.windows, "rows that share a window have windows")

    def reach(self, side: str, times: Times, mark: Mark) -> tuple[PositionBound, PositionBound]:
        """From the start of a row's first open window to the end of its last one."""
        low, high = self._first(times, mark), self._last_end(times)
        return low, np.maximum(low, high)

    def pairs(self, left: Times, right: Times, mark: Mark) -> tuple[Times, Times | None] | None:
        earlier, later = np.minimum(left, right), np.maximum(left, right)
        first = self._first(later, mark)
        each = np.flatnonzero(first <= earlier)
        first = first[each]
        if self.joined.occurrence == "first":
            return each, first + self.windows.size
        return _repeated(each, first, last_start(self.windows, earlier[each]), self.windows)

    def dues(self, side: str, times: Times, positions: Times, mark: Mark) -> tuple[Times | None, Times]:
        """The last moment of a row's last window, or of each; rows in none do not wait."""
        ends = self._last_end(times)
        held = np.flatnonzero(ends > times)
        if self.joined.occurrence == "first":
            return held, ends[held] - 1
        first = self._first(times[held], mark)
        each, ends = _repeated(held, first, ends[held] - self.windows.size, self.windows)
        return each, ends - 1

    def final(self, side: str, mark: Mark) -> int:
        return closed_at(mark.watermark, self.joined.allowed_us)

    def unreachable(self, side: str, mark: Mark) -> int | None:
        if mark.watermark == BEGINNING_US:
            return None
        return END_US - 1 if mark.watermark == END_US else self._behind(self.final(side, mark))

    def expired(self, side: str, mark: Mark) -> int | None:
        """Also limited by what is retained, where that is longer than windows are open."""
        unreachable, kept = self.unreachable(side, mark), self.joined.retained[SIDES.index(side)]
        if unreachable is None or kept is None or mark.watermark == END_US:
            return unreachable
        limits = []
        if kept.span_us is not None:
            limits.append(self._behind(mark.watermark - kept.span_us))
        if kept.windows is not None:
            newest = self.windows.last_end_at_or_before(mark.watermark)
            limits.append(self._behind(newest - kept.windows * self.windows.slide))
        return max(BEGINNING_US, min(unreachable, max(limits)))

    def unknown(self, side: str, mark: Mark) -> int | None:
        return self.unreachable(side, mark)

    def too_late(self, side: str, times: Times, watermark: int) -> Flags:
        """Rows whose windows have all closed. A row without a window is not late."""
        unreachable = self.unreachable(side, Mark(watermark))
        if unreachable is None:
            return np.zeros(len(times), bool)
        found: Flags = (times <= unreachable) & (self._last_end(times) > times)
        return found

    def output_watermark(self, watermark: int) -> int:
        """The start of the first window that is open."""
        return max(BEGINNING_US, self._behind(watermark - self.joined.allowed_us) + 1)

    def _first(self, times: Times, mark: Mark) -> Times:
        """The start of the first window that holds each time and is open."""
        closed = closed_at(mark.watermark, self.joined.allowed_us)
        return first_start_after(self.windows, np.maximum(times, closed) - self.windows.size)

    def _last_end(self, times: Times) -> Times:
        """Where the last window ends that could hold each time: before it, where none does."""
        return last_start(self.windows, times) + self.windows.size

    def _behind(self, closed: int) -> int:
        """Rows at or before this are in no window that ends after ``closed``."""
        windows = self.windows
        return windows.last_end_at_or_before(closed) - windows.size + windows.slide - 1


def _repeated(each: Times, first: Times, last: Times, windows: Sliding) -> tuple[Times, Times]:
    """Each number once per window from its ``first`` to its ``last`` start, and the ends of these windows."""
    counts = np.maximum(0, (last - first) // windows.slide + 1)
    starts = np.repeat(first, counts) + places_within(counts) * windows.slide
    return np.repeat(each, counts), starts + windows.size


@dataclass(frozen=True)
class OwnWindowRule(PairRule):
    """A row meets rows in the other side's current windows: the windows that hold its newest position before the row,
    in the order (time, side, offset).
    """

    joined: Join

    @property
    def moves(self) -> bool:
        return True

    def ends(self, side: str, times: Times, mark: Mark) -> PositionBound:
        other = OTHER_SIDE[side]
        if not self.joined.by_offset(other):
            return times + (side == SIDES[1])
        window = self._window(other, mark)
        return mark.seen(other, side, times) + (1 if window is None else window.slide)

    def reach(self, side: str, times: Times, mark: Mark) -> tuple[PositionBound, PositionBound]:
        """The other side's windows; and bounds, where they are on its positions."""
        other = OTHER_SIDE[side]
        lower = self._starts(other, mark.seen(other, side, times), mark)
        if not self.joined.bounded or self.joined.by_offset(other):
            return lower, None
        low, high = distances(self.joined, side)
        if low is not None:
            lower = times + low if lower is None else np.maximum(lower, times + low)
        return lower, None if high is None else times + high + 1

    def pairs(self, left: Times, right: Times, mark: Mark) -> tuple[Times, Times | None] | None:
        """Bounds of time, where windows are of offsets."""
        low, high = self.joined.lower_us, self.joined.upper_us
        if low is None and high is None:
            return None
        apart = right - left
        keep = np.ones(len(apart), bool) if low is None else apart >= low
        return np.flatnonzero(keep if high is None else keep & (apart <= high)), None

    def dues(self, side: str, times: Times, positions: Times, mark: Mark) -> tuple[Times | None, Times]:
        """A row finds partners until its side's windows have left it."""
        return None, positions

    def closed(self, side: str, mark: Mark) -> int:
        unreachable = self.unreachable(side, mark)
        return BEGINNING_US if unreachable is None else unreachable + 1

    def unreachable(self, side: str, mark: Mark) -> int | None:
        if mark.watermark == END_US:
            return END_US - 1
        start = self._start(side, mark)
        return None if start is None else start - 1

    def expired(self, side: str, mark: Mark) -> int | None:
        """What is retained counts, and the current windows."""
        if mark.watermark == END_US:
            return END_US - 1
        kept = None if mark.of(side) == BEGINNING_US else self._kept(side, np.array([mark.of(side)]), mark)
        return None if kept is None else int(kept[0]) - 1

    def unknown(self, side: str, mark: Mark) -> int | None:
        return self.expired(side, mark)

    def refused(self, side: str, times: Times, positions: Times, mark: Mark) -> Flags:
        """Rows at or before what has expired as they arrive."""
        newest = mark.seen(side, side, times)
        kept = self._kept(side, newest, mark)
        if kept is None:
            return np.zeros(len(positions), bool)
        found: Flags = (positions < kept) & (newest != BEGINNING_US)
        return found

    def late(self, side: str, times: Times, positions: Times, mark: Mark) -> Flags:
        """Rows of past windows; of a side without windows, rows behind the watermark."""
        if self._window(side, mark) is None:
            return super().late(side, times, positions, mark)
        newest = mark.seen(side, side, times)
        starts = expect(self._starts(side, newest, mark), "a side with windows has their starts", side=side)
        found: Flags = (positions < starts) & (newest != BEGINNING_US)
        return found

    def output_watermark(self, watermark: int) -> int:
        """Rows of past windows may arrive at any time."""
        return BEGINNING_US

    def _start(self, side: str, mark: Mark) -> int | None:
        """The first position of a side that rows can meet."""
        starts = None if mark.of(side) == BEGINNING_US else self._starts(side, np.array([mark.of(side)]), mark)
        return None if starts is None else int(starts[0])

    def _starts(self, side: str, newest: Times, mark: Mark) -> PositionBound:
        """The same for each of these newest positions; `BEGINNING_US` before the first row."""
        window = self._window(side, mark)
        if window is None:
            return self._retained(side, newest, mark)
        return np.where(newest == BEGINNING_US, BEGINNING_US, self._current(window, newest))

    def _kept(self, side: str, newest: Times, mark: Mark) -> PositionBound:
        """The first position that is kept, at each of these newest positions; None: all are."""
        window, retained = self._window(side, mark), self._retained(side, newest, mark)
        if window is None:
            return retained
        starts = self._current(window, newest)
        return starts if retained is None else np.minimum(starts, retained)

    def _retained(self, side: str, newest: Times, mark: Mark) -> PositionBound:
        """The first position that is retained, by the limit that keeps least; None: all are."""
        window, kept = self._window(side, mark), self.joined.retained[SIDES.index(side)]
        if kept is None:
            return None
        limits = [newest - kept.span_us] if kept.span_us is not None else []
        limits += [newest - kept.messages + 1] if kept.messages is not None else []
        if kept.windows is not None and window is not None:
            limits.append(self._current(window, newest) - kept.windows * window.slide)
        return np.where(newest == BEGINNING_US, BEGINNING_US, np.maximum.reduce(limits)) if limits else None

    def _window(self, side: str, mark: Mark) -> Sliding | None:
        return self.joined.windows_of(side, mark.first_offsets.get(side))

    def _current(self, window: Sliding, newest: Times) -> Times:
        """The first position of the windows that hold each newest one."""
        return first_start_after(window, newest - window.size)


def rule_of(joined: Join) -> PairRule:
    """The rule of a description."""
    if joined.windows is not None:
        return SharedWindowRule(joined)
    return DistanceRule(joined) if joined.own is None else OwnWindowRule(joined)
