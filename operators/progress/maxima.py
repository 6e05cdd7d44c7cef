"""The running maximum of a side's positions over time: it depends on a row's time, not on its batch. Pure.

Rows of two sides are ordered by (time, side, offset), the first side first. So the largest position before a row is a
function of its time, and only the steps of that function are kept: pairs of a time and the position it reaches.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.progress.watermarks import OFFSET_LIMIT
from tidestate.statestore.arrays import Times

STEP_BYTES = 16
"""The size of a packed step."""


def _nothing() -> Times:
    return np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class Maxima:
    """Steps of a running maximum. ``times`` and ``positions`` are int64 of shape ``(steps,)``; both increase
    strictly.
    """

    times: Times = field(default_factory=_nothing)
    positions: Times = field(default_factory=_nothing)

    @classmethod
    def of(cls, times: Times, positions: Times) -> Maxima:
        """The steps of rows in any order."""
        if not len(times):
            return cls()
        order = np.lexsort((positions, times))
        times, positions = times[order], np.maximum.accumulate(positions[order])
        last = np.append(times[1:] != times[:-1], True)  # of equal times the last has the largest position
        times, positions = times[last], positions[last]
        higher = np.append(True, positions[1:] > positions[:-1])
        return cls(times[higher], positions[higher])

    @classmethod
    def unpacked(cls, packed: Iterable[bytes]) -> Maxima:
        """The maxima of all that was packed, merged into one."""
        parts = [np.frombuffer(part, "<i8").astype(np.int64).reshape(2, -1) for part in packed if part]
        if len(parts) < 2:
            return cls(*parts[0]) if parts else cls()
        return cls.of(*np.concatenate(parts, axis=1))

    def packed(self) -> bytes:
        """As bytes, for claims and manifests: int64, all times, then all positions."""
        return np.stack([self.times, self.positions]).astype("<i8").tobytes() if len(self.times) else b""

    def in_windows(self, windows: FixedWindows) -> Maxima:
        """The same where positions in the same windows are equal: each is the smallest one of them."""
        return Maxima.of(self.times, opening(windows, self.positions))

    def before(self, time: int) -> Maxima:
        """The steps that are earlier than ``time``."""
        count = int(np.searchsorted(self.times, time))
        return Maxima(self.times[:count], self.positions[:count])

    def since(self, time: int) -> Maxima:
        """Steps at ``time`` and later."""
        count = int(np.searchsorted(self.times, time))
        return Maxima(self.times[count:], self.positions[count:])

    def last(self, first: int) -> int:
        """The largest position of all; at least ``first``."""
        return max(first, int(self.positions[-1])) if len(self.positions) else first

    def at(self, times: Times, first: int, *, inclusive: bool) -> Times:
        """The largest position before each of ``times``, or up to it where ``inclusive``; at least ``first``."""
        if not len(self.times):
            return np.full(len(times), first)
        count = np.searchsorted(self.times, times, "right" if inclusive else "left")
        largest: Times = np.where(count > 0, np.maximum(self.positions[count - 1], first), first)
        return largest


class FixedWindows(Protocol):
    """Windows of one size that start at regular intervals, as `Sliding` ones do."""

    @property
    def size(self) -> int:
        """The length of a window."""

    @property
    def slide(self) -> int:
        """The distance between two starts."""

    @property
    def shift(self) -> int:
        """The start of one of them."""

    @property
    def from_first(self) -> bool:
        """Whether that depends on the first position of the side."""

    def begun_at(self, first: int | None) -> FixedWindows:
        """The windows of a side with this first position."""


def opening(windows: FixedWindows, positions: Times) -> Times:
    """For each position the smallest one in the same windows."""
    starts: Times = (positions - windows.size - windows.shift) // windows.slide * windows.slide
    return starts + windows.shift + windows.size


@dataclass(frozen=True)
class SidePositions:
    """How the rows of ``side`` are placed: ``at`` is the column of their times, ``sides`` that with the name of each
    row's side.

    ``order``: the columns of their origin and offset, where offsets are their positions; else times are.
    ``windows``: those of the side, if it has some. ``exact``: every position counts; if not, those in the same
    windows are equal.
    """

    side: str
    sides: str
    at: str
    order: tuple[str, ...] = ()
    windows: FixedWindows | None = None
    exact: bool = False

    @property
    def from_first(self) -> bool:
        """Whether the windows start at the first offset."""
        return self.windows is not None and self.windows.from_first

    def grid(self, first: int | None) -> FixedWindows | None:
        """The windows in which positions are equal, of a side that begins at ``first``; None where none are."""
        if self.windows is None or self.exact or (self.from_first and first is None):
            return None
        return self.windows.begun_at(first)

    def places(self, events: pa.Table) -> tuple[Times, Times]:
        """The times and the positions of the rows of this side that have both."""
        rows = events.filter(pc.equal(events[self.sides], self.side)).select(list({self.at, *self.order}))
        rows = rows.drop_null()  # they are rejected
        if self.order:
            offsets = rows[self.order[-1]]
            # So are rows whose offset is none. It must not move the position, which never goes back.
            rows = rows.filter(pc.and_(pc.greater_equal(offsets, 0), pc.less_equal(offsets, OFFSET_LIMIT)))
        times, positions = (rows[name].cast(pa.int64()).to_numpy() for name in (self.at, (self.at, *self.order)[-1]))
        return times, positions
