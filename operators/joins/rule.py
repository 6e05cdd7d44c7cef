"""Which rows of two sides meet, and until when each may: the interface of the rules. Pure.

A row's **position** is its time, or its offset where offsets place the rows of its side. Positions, times and dues
are arrays of shape ``(rows,)``, int64; a bound that is None bounds nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tidestate.operators.describe.sides import SIDES
from tidestate.operators.progress.maxima import Maxima
from tidestate.operators.progress.progress import Context
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
from tidestate.statestore.arrays import Flags, Times

PositionBound = Times | None


@dataclass(frozen=True)
class Mark:
    """How far the input has come: the watermark, and the newest position of each side that has windows of its own.

    ``steps``: how these move with the rows of a batch, in the order (time, side, offset). ``first_offsets``: those of
    the sides whose windows start there.
    """

    watermark: int
    newest: Mapping[str, int] = field(default_factory=dict)
    steps: Mapping[str, Maxima] = field(default_factory=dict)
    first_offsets: Mapping[str, int] = field(default_factory=dict)

    def of(self, side: str) -> int:
        """The newest position of a side; `BEGINNING_US` before its first row."""
        return self.newest.get(side, BEGINNING_US)

    def seen(self, side: str, requests: str, times: Times) -> Times:
        """The newest position of ``side`` before rows of the side ``requests`` at these times."""
        if side not in self.steps:
            return np.full(len(times), self.of(side))
        return self.steps[side].at(times, self.of(side), inclusive=(side, requests) == SIDES)


def mark_before(context: Context) -> Mark:
    """How far the input had come at the start of a batch."""
    steps = {side: Maxima.unpacked([packed]) for side, packed in context.after.generator.steps.items()}
    # Where the first rows of a side are in the batch, its windows begin with them.
    return Mark(context.watermark_before, context.before.newest, steps, context.after.first_offsets)


def mark_after(context: Context) -> Mark:
    """How far the input has come at the end of a batch."""
    return Mark(context.watermark, context.after.newest, first_offsets=context.after.first_offsets)


def without_none(bounds: Mapping[str, int | None]) -> dict[str, int]:
    """By table, the bounds up to which rows expire; without tables that have none, from which nothing does."""
    return {table: bound for table, bound in bounds.items() if bound is not None}


class JoinRule(ABC):
    """What admits the rows of a join, by whatever they meet."""

    @property
    def moves(self) -> bool:
        """Whether what a row meets depends on the rows before it: then the order of rows within a batch counts."""
        return False

    def refused(self, side: str, times: Times, positions: Times, mark: Mark) -> Flags:
        """Which rows are older than what their side keeps."""
        return np.zeros(len(positions), bool)

    @abstractmethod
    def unknown(self, side: str, mark: Mark) -> int | None:
        """Rows at or before this position would be refused if they came again."""

    @abstractmethod
    def output_watermark(self, watermark: int) -> int:
        """No row that is emitted from now on has an earlier time; ``watermark`` is neither end of time."""


class PairRule(JoinRule):
    """Rows that meet by their positions."""

    def earliest(self, side: str, watermark: int) -> int:
        """No row of ``side`` that is emitted from now on has an earlier time; `BEGINNING_US` if there is no bound.
        ``watermark`` is neither end of time.
        """
        return BEGINNING_US

    def ends(self, side: str, times: Times, mark: Mark) -> PositionBound:
        """Where the order of rows counts: positions of the other side that none reaches before these rows."""
        return None

    @abstractmethod
    def reach(self, side: str, times: Times, mark: Mark) -> tuple[PositionBound, PositionBound]:
        """The positions of the other side, from and to (exclusive), of rows that rows of ``side`` may meet."""

    def pairs(self, left: Times, right: Times, mark: Mark) -> tuple[Times, Times | None] | None:
        """Which pairs within reach meet (numbers, may repeat), and the ends of the windows they meet in, where
        there are windows of both; None: all of them.
        """
        return None

    @abstractmethod
    def dues(self, side: str, times: Times, positions: Times, mark: Mark) -> tuple[Times | None, Times]:
        """Of rows that wait for a partner: numbers (may repeat; None: each once), and the last `closed` at which
        one may come.
        """

    def closed(self, side: str, mark: Mark) -> int:
        """Rows due before this meet only late rows."""
        return mark.watermark

    def final(self, side: str, mark: Mark) -> int:
        """Rows due before this meet no row any more."""
        return self.closed(side, mark)

    @abstractmethod
    def unreachable(self, side: str, mark: Mark) -> int | None:
        """No row meets rows at or before this position any more."""

    @abstractmethod
    def expired(self, side: str, mark: Mark) -> int | None:
        """Rows at or before this position expire."""

    def late(self, side: str, times: Times, positions: Times, mark: Mark) -> Flags:
        """Which rows are late: their pairs follow the late update period."""
        found: Flags = times < mark.watermark
        return found

    def too_late(self, side: str, times: Times, watermark: int) -> Flags:
        """Which rows are rejected by the watermark alone."""
        return np.zeros(len(times), bool)


def closed_at(watermark: int, allowed: int) -> int:
    """The watermark less the allowed lateness; the ends of time stay."""
    return watermark if watermark in (BEGINNING_US, END_US) else max(BEGINNING_US, watermark - allowed)
