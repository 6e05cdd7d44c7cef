"""The largest position of a side as time goes on: what a row sees follows from its time, not from its batch. Pure.

Rows of two sides count in the order (time, side, offset), the first side first. The largest position before a row is
then a function of its time, and of that only the steps are kept: pairs of a time and the position it reaches.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.statestore.arrays import Times

STEP_BYTES = 16
"""What a step takes where steps are packed."""


def _nothing() -> Times:
    return np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class Maxima:
    """Steps of a running maximum. ``times`` and ``positions`` are int64 of equal length, and both increase."""

    times: Times = field(default_factory=_nothing)
    positions: Times = field(default_factory=_nothing)

    @classmethod
    def of(cls, times: Times, positions: Times) -> Maxima:
        """The steps of these rows, which may come in any order."""
        if not len(times):
            return cls()
        order = np.lexsort((positions, times))
        times, positions = times[order], np.maximum.accumulate(positions[order])
        last = np.append(times[1:] != times[:-1], True)  # of equal times the last has the largest position
        times, positions = times[last], positions[last]
        higher = np.append(True, positions[1:] > positions[:-1])
        return cls(times[higher], positions[higher])

    @classmethod
    def together(cls, packed: Iterable[bytes]) -> Maxima:
        """The steps of several, as they are packed."""
        parts = [np.frombuffer(one, "<i8").astype(np.int64).reshape(2, -1) for one in packed if one]
        if len(parts) < 2:
            return cls(*parts[0]) if parts else cls()
        return cls.of(*np.concatenate(parts, axis=1))

    def packed(self) -> bytes:
        """As claims and manifests carry it."""
        return np.stack([self.times, self.positions]).astype("<i8").tobytes() if len(self.times) else b""

    def before(self, time: int) -> Maxima:
        """Steps earlier than ``time``."""
        count = int(np.searchsorted(self.times, time))
        return Maxima(self.times[:count], self.positions[:count])

    def since(self, time: int) -> Maxima:
        """Steps at ``time`` and later."""
        count = int(np.searchsorted(self.times, time))
        return Maxima(self.times[count:], self.positions[count:])

    def last(self, first: int) -> int:
        """The largest position, or ``first`` where that is larger."""
        return max(first, int(self.positions[-1])) if len(self.positions) else first

    def at(self, times: Times, first: int, *, inclusive: bool) -> Times:
        """The largest position before each of ``times``, or up to it where ``inclusive``; at least ``first``."""
        if not len(self.times):
            return np.full(len(times), first)
        count = np.searchsorted(self.times, times, "right" if inclusive else "left")
        found: Times = np.where(count > 0, np.maximum(self.positions[count - 1], first), first)
        return found


class Hops(Protocol):
    """Windows of one size that begin every so often, as `Sliding` ones do."""

    @property
    def size(self) -> int:
        """How long each is."""

    @property
    def slide(self) -> int:
        """How far apart they begin."""

    @property
    def shift(self) -> int:
        """Where one of them begins."""


def opening(windows: Hops, positions: Times) -> Times:
    """For each position the least one at which the same windows are the current ones."""
    found: Times = (positions - windows.size - windows.shift) // windows.slide * windows.slide
    return found + windows.shift + windows.size


@dataclass(frozen=True)
class Placed:
    """The rows of one side: the column ``at`` of their times, and ``position``, of times in microseconds or offsets.

    ``windows``: those by which alone positions count; None where each position does. ``sides`` is the column that
    tells sides apart.
    """

    side: str
    sides: str
    at: str
    position: str
    windows: Hops | None = None

    def steps(self, events: pa.Table) -> bytes:
        """How the largest position goes on with the rows of this side, packed."""
        own = events.filter(pc.equal(events[self.sides], self.side)).select(list({self.at, self.position}))
        own = own.drop_null()  # a row without a time or place is rejected
        times, positions = (own[name].cast(pa.int64()).to_numpy() for name in (self.at, self.position))
        if self.windows is not None:
            positions = opening(self.windows, positions)
        return Maxima.of(times, positions).packed()
