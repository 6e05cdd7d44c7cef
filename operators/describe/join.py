"""What the user writes to join two streams. Both travel as one: a row has its side, its time, its side's columns."""

from __future__ import annotations

from typing import Literal

import msgspec

from tidestate.operators.describe.join_choices import JoinRetention, Update
from tidestate.operators.describe.runnable import Sided
from tidestate.operators.describe.sides import LEFT, RIGHT, SIDES, How, Sides
from tidestate.operators.describe.windows import AlignedOffsets, Sliding, SlidingOffsets
from tidestate.statestore.errors import UsageError
from tidestate.statestore.messages.keys import Layout, choose_layout

Occurrence = Literal["first", "each"]
Unmatched = Literal["close", "final"]
SideWindows = Sliding | SlidingOffsets | AlignedOffsets | None
OwnWindows = tuple[SideWindows, SideWindows]


class Join(Sided, frozen=True, tag="join"):
    """Pairs of rows of two streams: with the same key, close in time, in the same window, or in the other's window.

    ``windows`` are common to both sides; ``own`` ones belong to one side each; if both are None, rows meet by
    distance. Every pair of values is (left, right).
    """

    left_time: str
    right_time: str
    on: tuple[str, ...]
    how: How
    bounded: bool
    lower_us: int | None
    upper_us: int | None
    windows: Sliding | SlidingOffsets | None = msgspec.field(name="window")
    own: OwnWindows | None = msgspec.field(name="windows")
    allowed_us: int = msgspec.field(name="allowed_lateness_us")
    delays_us: tuple[int, int]
    offsets: tuple[str | None, str | None]
    origins: tuple[str | None, str | None]
    large: bool
    occurrence: Occurrence
    unmatched: Unmatched
    updates: tuple[Update | None, Update | None]
    late_updates: tuple[Update | None, Update | None]
    retained: tuple[JoinRetention | None, JoinRetention | None]
    in_order: bool = False

    @property
    def sides(self) -> Sides:
        """The names of the two input streams, with their event times and the columns that they share."""
        return Sides((LEFT, RIGHT), (self.left_time, self.right_time), self.on)

    @property
    def held(self) -> bool:
        """Whether pairs may have to wait for an update period."""
        return any((*self.updates, *self.late_updates))

    def order_of(self, side: str) -> tuple[str, ...]:
        place = SIDES.index(side)
        named = (self.origins[place], self.offsets[place])
        return tuple(self.sides.prefixed(side, name) for name in named if name)

    def keeps(self, side: str) -> bool:
        """Whether the join emits rows of this side that have no partner."""
        return self.how in (side, "full")

    def by_offset(self, side: str) -> bool:
        """Whether rows of this side are placed by offset instead of time."""
        place = SIDES.index(side)
        if self.own is None:
            return False
        own, other = self.own[place], self.own[1 - place]
        if own is not None:
            return own.by_offset
        kept = self.retained[place]
        counted = (other is not None and other.by_offset) or (kept is not None and kept.messages is not None)
        return counted and self.offsets[place] is not None

    def windows_of(self, side: str, first: int | None) -> Sliding | None:
        """The windows of a side whose first offset is ``first``; None if one holds everything. Raises `UsageError` if
        the join has no windows.
        """
        if self.own is None and self.windows is None:
            raise UsageError(
                "this join matches rows by distance and has no windows: query its messages instead",
                code="query-windows",
            )
        windows = self.windows if self.own is None else self.own[SIDES.index(side)]
        return None if windows is None else windows.begun_at(first)

    def layout(self, side: str) -> Layout:
        """The message key of a side's rows, by the matrix of docs/how-it-works/message-store.md."""
        return choose_layout(
            "tuple" if self.by_offset(side) else "time",
            "join",
            equal=bool(self.on),
            time_range=self.windows is not None or (self.lower_us, self.upper_us) != (None, None),
            large=self.large,
        )
