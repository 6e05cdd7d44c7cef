"""Joins by the distance of times: which rows meet."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidestate.operators.describe.join import Join
from tidestate.operators.describe.sides import SIDES
from tidestate.operators.joins.rule import Mark, PairRule, PositionBound, closed_at
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
from tidestate.statestore.arrays import Flags, Times


@dataclass(frozen=True)
class DistanceRule(PairRule):
    """Rows meet by the distance of their times. A side without a bound waits as long as it is retained."""

    joined: Join

    def reach(self, side: str, times: Times, mark: Mark) -> tuple[PositionBound, PositionBound]:
        low, high = distances(self.joined, side)
        return None if low is None else times + low, None if high is None else times + high + 1

    def dues(self, side: str, times: Times, positions: Times, mark: Mark) -> tuple[Times | None, Times]:
        """The last time of the other side that a row can meet; `END_US` for none."""
        reach = self._reach(side)
        return None, np.full(len(times), END_US) if reach is None else times + reach

    def final(self, side: str, mark: Mark) -> int:
        return closed_at(mark.watermark, self.joined.allowed_us)

    def unreachable(self, side: str, mark: Mark) -> int | None:
        if mark.watermark == BEGINNING_US:
            return None
        if mark.watermark == END_US:
            return END_US - 1
        reach = self._reach(side)
        return None if reach is None else max(BEGINNING_US, self.final(side, mark) - reach - 1)

    def expired(self, side: str, mark: Mark) -> int | None:
        """Also limited by what is retained, where that is longer than rows can meet; of an outer join no row expires
        that is not behind the watermark: while rows are missing it waits (`PairTables.standing`).
        """
        unreachable, kept = self.unreachable(side, mark), self.joined.retained[SIDES.index(side)]
        if unreachable is not None and self.joined.how != "inner" and mark.watermark != END_US:
            unreachable = min(unreachable, self.final(side, mark) - 1)
        if unreachable is None or kept is None or kept.span_us is None or mark.watermark == END_US:
            return unreachable
        return max(BEGINNING_US, min(unreachable, mark.watermark - kept.span_us - 1))

    def unknown(self, side: str, mark: Mark) -> int | None:
        """A row that is not behind the watermark is accepted, even if no partner can come."""
        unreachable = self.unreachable(side, mark)
        return None if unreachable is None else min(unreachable, self.final(side, mark) - 1)

    def too_late(self, side: str, times: Times, watermark: int) -> Flags:
        """Rows behind the watermark for which no partner can come any more."""
        unreachable, closed = self.unreachable(side, Mark(watermark)), closed_at(watermark, self.joined.allowed_us)
        if unreachable is None:
            return np.zeros(len(times), bool)
        found: Flags = (times <= unreachable) & (times < closed)
        return found

    def output_watermark(self, watermark: int) -> int:
        """The earliest row that may still be in a pair, or be emitted unmatched."""
        earliest = {side: self.earliest(side, watermark) for side in SIDES}
        alone = [earliest[side] for side in SIDES if self.joined.keeps(side)]
        return max(BEGINNING_US, min([max(earliest.values()), *alone]))

    def earliest(self, side: str, watermark: int) -> int:
        if (reach := self._reach(side)) is None:
            return BEGINNING_US
        return max(BEGINNING_US, watermark - self.joined.allowed_us - max(0, reach))

    def _reach(self, side: str) -> int | None:
        """How much later than a row the other side's last one may be."""
        _, high = distances(self.joined, side)
        kept = self.joined.retained[SIDES.index(side)]
        return kept.span_us if high is None and kept is not None else high


def distances(joined: Join, side: str) -> tuple[int | None, int | None]:
    """The least and the greatest distance from a row of ``side`` to its partners on the other side."""
    low, high = joined.lower_us, joined.upper_us
    if side == SIDES[0]:
        return low, high
    return None if high is None else -high, None if low is None else -low
