"""A join by lifetimes as a twin: every row against every other one, once all lifetimes are known."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tidestate.operators.progress.watermarks import END_US

Pair = tuple[int, int, int]
"""The offsets of a left and a right row, and the instant from which both live."""


@dataclass
class Life:
    key: str
    start: int
    end: int
    began: int
    """When it would have begun, had it not been adjusted."""


class OverlapTwin:
    """Kept rows of both sides, in the order of their offsets."""

    def __init__(self) -> None:
        self.lives: dict[str, dict[int, Life]] = {"left": {}, "right": {}}
        self.ends: dict[str, list[tuple[str, int, int]]] = {"left": [], "right": []}

    def begin(self, side: str, offset: int, shape: str, key: str, began: int, start: int, end: int | None) -> None:
        """A row that is kept; an edge end has its time as ``end``."""
        if shape == "edge_end":
            self.ends[side].append((key, began, end or 0))
            return
        until = {"point": start + 1, "edge_start": END_US}.get(shape, end or 0)
        self.lives[side][offset] = Life(key, start, until, began)

    def pairs(self, watermark: int) -> Counter[Pair]:
        """All pairs before this watermark."""
        lives = {side: {at: self._ended(side, one) for at, one in own.items()} for side, own in self.lives.items()}
        found: Counter[Pair] = Counter()
        for left, one in lives["left"].items():
            for right, other in lives["right"].items():
                begins, ends = max(one.start, other.start), min(one.end, other.end)
                if one.key == other.key and begins < ends and begins < watermark:
                    found[(left, right, begins)] += 1
        return found

    def _ended(self, side: str, life: Life) -> Life:
        if life.end != END_US:
            return life
        ends = [
            at for key, began, at in self.ends[side] if (key, began) == (life.key, life.began) and at >= life.start
        ]
        return Life(life.key, life.start, min(ends, default=END_US), life.began)
