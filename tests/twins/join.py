"""The naive twin of a join: every row against every other one, one after the other, in whole seconds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

NEVER = float("inf")
SIDES = ("left", "right")
Pane = tuple[str, str | None, int | None, int | None, int | None]


@dataclass(frozen=True)
class Row:
    side: str
    key: str
    at: int
    value: int
    offset: int = 0


@dataclass(frozen=True)
class Window:
    size: int
    slide: int
    by_offset: bool = False
    start: int | None = 0
    """None: the first offset of the side."""

    def starts(self, place: int) -> list[int]:
        """Windows that hold a place, the earliest first."""
        assert self.start is not None
        newest = (place - self.start) // self.slide * self.slide + self.start
        earliest = newest - self.size // self.slide * self.slide
        return [start for start in range(earliest, newest + 1, self.slide) if start + self.size > place]


@dataclass(frozen=True)
class Asked:
    """What a join is asked for, in seconds. ``spans``, ``counts``, ``past`` are what each side retains."""

    how: str = "inner"
    low: int | None = None
    high: int | None = None
    window: Window | None = None
    own: tuple[Window | None, Window | None] | None = None
    late: int = 0
    first: bool = True
    close: bool = True
    on: bool = True
    named: bool = False
    large: bool = True
    in_order: bool = False
    delays: tuple[int, int] = (0, 0)
    spans: tuple[int | None, int | None] = (None, None)
    counts: tuple[int | None, int | None] = (None, None)
    past: tuple[int | None, int | None] = (None, None)
    updates: tuple[int | None, int | None] = (None, None)
    late_updates: tuple[int | None, int | None] = (None, None)

    def keeps(self, side: str) -> bool:
        return self.how in (side, "full")

    def by_offset(self, side: str) -> bool:
        if self.own is None or not self.named:
            return False
        own, other = (self.own[SIDES.index(name)] for name in (side, other_of(side)))
        if own is not None:
            return own.by_offset
        return (other is not None and other.by_offset) or self.counts[SIDES.index(side)] is not None

    def place(self, row: Row) -> int:
        return row.offset if self.by_offset(row.side) else row.at


def other_of(side: str) -> str:
    return SIDES[1 - SIDES.index(side)]


@dataclass
class Stored:
    row: Row
    sent: int
    alone: set[int | None]
    """Windows (None: there are none) in which it has met nobody and was not observed."""
    observed: set[int | None]
    """Those in which it was observed alone and may be taken back."""


class Twin:
    def __init__(self, asked: Asked, first: dict[str, int] | None = None) -> None:
        """``first``: the first offset of each side, where rows do not come as they came to the job."""
        self.asked = asked
        self.first = dict(first or {})
        self.stored: list[Stored] = []
        self.known: set[tuple[str, int]] = set()
        self.latest: dict[str, int] = {}
        self.newest: dict[str, int] = {}
        self.watermark: float | None = None
        self.held: list[tuple[int, Pane]] = []
        self.rejected = 0
        self.ahead: list[Row] = []

    def batch(self, rows: list[Row], now: int) -> Counter[Pane]:
        before, asked = self.watermark, self.asked
        taken = [row for row in rows if not self.too_late(row)]
        self.rejected += len(rows) - len(taken) + sum(self.partly_refused(row) for row in taken)
        for row in taken:
            self.latest[row.side] = max(row.at, self.latest.get(row.side, row.at))
            if row.side not in self.newest:
                self.first[row.side] = min(row.offset, self.first.get(row.side, row.offset))
        panes: Counter[Pane] = Counter()
        if not asked.in_order:
            self.take(taken, before, now, panes)
        self.watermark = self.moved()
        if asked.in_order:
            self.ahead += taken
            self.release(before, now, panes)
        return panes + self.passed() + self.clock(now)

    def moved(self) -> float | None:
        """The watermark after the rows so far."""
        before = self.watermark
        if len(self.latest) < len(SIDES):
            return before
        marks = [self.latest[side] - delay for side, delay in zip(SIDES, self.asked.delays, strict=True)]
        return max(min(marks), before if before is not None else -NEVER)

    def release(self, before: float | None, now: int, panes: Counter[Pane]) -> None:
        mark = self.watermark
        due = [row for row in self.ahead if mark is not None and row.at < mark]
        self.ahead = [row for row in self.ahead if row not in due]
        self.take(due, before, now, panes)

    def take(self, rows: list[Row], before: float | None, now: int, panes: Counter[Pane]) -> None:
        if self.asked.own is None:
            self.arrive(rows, before, now, panes)
        else:
            for row in sorted(rows, key=lambda row: (row.at, SIDES.index(row.side), row.offset)):
                self.arrive([row], before, now, panes)

    def arrive(self, taken: list[Row], before: float | None, now: int, panes: Counter[Pane]) -> None:
        asked, newest_before = self.asked, dict(self.newest)
        for side in SIDES:
            fresh = self.judged([row for row in taken if row.side == side], newest_before)
            new = [Stored(row, self.sent(row, before, newest_before, now), self.waits(row), set()) for row in fresh]
            for one in new:
                for other in self.stored:
                    if other.row.side != side and self.reaches(one.row, other.row, newest_before):
                        self.meet(one, other, panes)
            self.stored += new
            places = [asked.place(row) for row in taken if row.side == side]
            if places:
                self.newest[side] = max([*places, *([self.newest[side]] if side in self.newest else [])])

    def passed(self) -> Counter[Pane]:
        """What the watermark shows alone, and who cannot be met any more."""
        found: Counter[Pane] = Counter()
        for one in self.stored:
            for window in sorted(one.alone, key=str):
                if self.over(one.row, window, late=not self.asked.close):
                    one.alone.remove(window)
                    one.observed.add(window)
                    found[self.pane("emit", one.row, None, window)] += 1
            one.observed = {window for window in one.observed if not self.over(one.row, window, late=True)}
        self.stored = [one for one in self.stored if not self.forgotten(one.row)]
        return found

    def clock(self, now: int | float) -> Counter[Pane]:
        due = [pane for at, pane in self.held if at <= now]
        self.held = [(at, pane) for at, pane in self.held if at > now]
        return Counter(due)

    def finish(self) -> Counter[Pane]:
        before, self.watermark = self.watermark, NEVER
        panes: Counter[Pane] = Counter()
        self.release(before, 0, panes)
        return panes + self.passed() + self.clock(NEVER)

    def own(self, side: str) -> Window | None:
        """The windows of a side of its own."""
        window = self.asked.own[SIDES.index(side)] if self.asked.own else None
        return replace(window, start=self.first.get(side, 0)) if window and window.start is None else window

    # who is taken

    def too_late(self, row: Row) -> bool:
        asked, mark = self.asked, self.watermark
        if asked.own is not None or mark is None:
            return False
        if asked.window is not None:
            starts = asked.window.starts(row.at)
            return bool(starts) and all(self.closed(start) for start in starts)
        return row.at < mark - asked.late and self.last(row) + asked.late < mark

    def partly_refused(self, row: Row) -> int:
        if self.asked.window is None or self.asked.first:
            return 0
        return sum(self.closed(start) for start in self.asked.window.starts(row.at))

    def closed(self, start: int) -> bool:
        assert self.asked.window is not None
        return self.watermark is not None and start + self.asked.window.size <= self.watermark - self.asked.late

    def judged(self, rows: list[Row], newest: dict[str, int]) -> list[Row]:
        """Those that have not been here, and are not older than what is retained."""
        found = []
        for row in rows:
            if self.asked.own is not None and self.asked.place(row) < self.kept_from(row.side, newest):
                self.rejected += 1
                continue
            if self.asked.named and (row.side, row.offset) in self.known:
                continue
            self.known.add((row.side, row.offset))
            found.append(row)
        return found

    def sent(self, row: Row, mark: float | None, newest: dict[str, int], now: int) -> int:
        place = SIDES.index(row.side)
        own = self.own(row.side)
        late = mark is not None and row.at < mark
        if own is not None:
            late = row.side in newest and self.asked.place(row) < own.starts(newest[row.side])[0]
        period = (self.asked.late_updates if late else self.asked.updates)[place]
        return now if period is None else -(-now // period) * period

    # who meets

    def waits(self, row: Row) -> set[int | None]:
        if not self.asked.keeps(row.side):
            return set()
        if self.asked.window is None:
            return {None}
        starts = self.asked.window.starts(row.at)
        return set(starts[-1:]) if self.asked.first else {start for start in starts if not self.closed(start)}

    def reaches(self, one: Row, other: Row, newest: dict[str, int]) -> bool:
        asked = self.asked
        if asked.on and one.key != other.key:
            return False
        left, right = (one, other) if one.side == "left" else (other, one)
        apart = right.at - left.at
        if (asked.low is not None and apart < asked.low) or (asked.high is not None and apart > asked.high):
            return False
        return asked.own is None or asked.place(other) >= self.met_from(other.side, newest)

    def meet(self, one: Stored, other: Stored, panes: Counter[Pane]) -> None:
        asked = self.asked
        left, right = (one, other) if one.row.side == "left" else (other, one)
        windows: list[int | None] = [None]
        if asked.window is not None:
            shared = set(asked.window.starts(left.row.at)) & set(asked.window.starts(right.row.at))
            windows = sorted(start for start in shared if not self.closed(start))[: 1 if asked.first else None]
        for window in windows:
            for each in (left, right):
                own = next(iter(each.alone | each.observed), None) if asked.first else window
                if own in each.observed:
                    panes[self.pane("retract", each.row, None, own)] += 1
                each.alone.discard(own)
                each.observed.discard(own)
            pane = self.pane("emit", left.row, right.row, window)
            if any((*asked.updates, *asked.late_updates)):
                self.held.append((max(left.sent, right.sent), pane))
            else:
                panes[pane] += 1

    def pane(self, kind: str, one: Row, other: Row | None, window: int | None) -> Pane:
        values = {row.side: row.value for row in (one, other) if row is not None}
        return kind, one.key if self.asked.on else None, values.get("left"), values.get("right"), window

    # until when

    def last(self, row: Row) -> float:
        """The last time of the other side that a row may meet."""
        asked = self.asked
        reach = asked.high if row.side == "left" else None if asked.low is None else -asked.low
        reach = asked.spans[SIDES.index(row.side)] if reach is None else reach
        return NEVER if reach is None else row.at + reach

    def over(self, row: Row, window: int | None, *, late: bool) -> bool:
        """Whether nobody can come any more; ``late``: not even late."""
        asked, mark = self.asked, self.watermark
        if asked.own is not None:
            return mark == NEVER or asked.place(row) < self.met_from(row.side, self.newest)
        if mark is None:
            return False
        last = self.last(row) if asked.window is None else (window or 0) + asked.window.size - 1e-6
        return mark == NEVER or last + (asked.late if late else 0) < mark

    def forgotten(self, row: Row) -> bool:
        asked = self.asked
        if asked.own is not None:
            return self.watermark == NEVER or asked.place(row) < self.kept_from(row.side, self.newest)
        if asked.window is None:
            return self.over(row, None, late=True)
        return all(self.over(row, start, late=True) for start in asked.window.starts(row.at))

    def met_from(self, side: str, newest: dict[str, int]) -> float:
        assert self.asked.own is not None
        window = self.own(side)
        if window is None or side not in newest:
            return self.kept_from(side, newest)
        return window.starts(newest[side])[0]

    def kept_from(self, side: str, newest: dict[str, int]) -> float:
        assert self.asked.own is not None
        place = SIDES.index(side)
        window = self.own(side)
        span, count, past = (of[place] for of in (self.asked.spans, self.asked.counts, self.asked.past))
        if side not in newest:
            return -NEVER
        limits: list[Any] = [newest[side] - span] if span is not None else []
        limits += [newest[side] - count + 1] if count is not None else []
        if past is not None and window is not None:
            limits.append(window.starts(newest[side])[0] - past * window.slide)
        if window is None:
            return max(limits, default=-NEVER)
        current = window.starts(newest[side])[0]
        return min(current, max(limits, default=current))
