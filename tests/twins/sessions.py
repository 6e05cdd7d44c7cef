"""Session joins by brute force."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.helpers.two_streams import Row

Pair = tuple[Any, ...]
ENDED = float("inf")


@dataclass
class Session:
    key: str
    start: int
    end: int
    rows: list[Row] = field(default_factory=list)


class Brute:
    """Sessions row by row, and the product of the sides of those that have been passed."""

    def __init__(self, how: str, gap: int | None, late: int, keyed: bool, apart: bool = False) -> None:
        self.how, self.gap, self.late, self.keyed, self.apart = how, gap, late, keyed, apart
        self.live: list[Session] = []
        self.over: list[Session] = []
        self.rejected = 0
        self.watermark: float | None = None

    def batch(self, batch: list[Row]) -> None:
        before = self.watermark
        for row in batch:
            new = Session(
                row.key if self.keyed and not self.apart else "", row.at, row.at + (self.gap or row.gap), [row]
            )
            if before is not None and new.end + self.late <= before:
                self.rejected += 1
                continue
            apart = []
            for one in self.live:
                if one.key == new.key and one.start < new.end and new.start < one.end:
                    new = Session(new.key, min(one.start, new.start), max(one.end, new.end), [*one.rows, *new.rows])
                else:
                    apart.append(one)
            self.live = [*apart, new]

    def passed(self, watermark: float) -> None:
        self.watermark = max(self.watermark or 0, watermark)
        self.over += [one for one in self.live if one.end + self.late <= self.watermark]
        self.live = [one for one in self.live if one.end + self.late > self.watermark]

    def observed(self) -> Counter[Pair]:
        sessions = [
            one for one in [*self.live, *self.over] if self.watermark is not None and one.end <= self.watermark
        ]
        return Counter(pair for one in sessions for pair in self.pairs(one))

    def pairs(self, one: Session) -> list[Pair]:
        left, right = ([row for row in one.rows if row.side == side] for side in ("left", "right"))
        found: list[Pair] = [(x.key, x.value, y.key, y.value) for x in left for y in right if self.meet(x, y)]
        if self.how in ("left", "full"):
            found += [(x.key, x.value, None, None) for x in left if not any(self.meet(x, y) for y in right)]
        if self.how in ("right", "full"):
            found += [(None, None, y.key, y.value) for y in right if not any(self.meet(x, y) for x in left)]
        return [(one.start, one.end, *pair) for pair in found]

    def meet(self, left: Row, right: Row) -> bool:
        """Rows of one session."""
        return not self.apart or left.key == right.key
