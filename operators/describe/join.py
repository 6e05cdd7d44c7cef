"""What the user writes to join two streams. Both travel as one: a row has its side, its time, its side's columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tidestate.operators.describe.join_choices import JoinRetention, Update
from tidestate.operators.describe.renames import SAME_NAMES, Renames
from tidestate.operators.describe.runnable import Sided
from tidestate.operators.describe.sides import LEFT, RIGHT, SIDES, How, Sides
from tidestate.operators.describe.windows import Sliding
from tidestate.operators.progress.watermarks import Watermarks
from tidestate.statestore.durations import Span, text_of
from tidestate.statestore.messages.keys import Layout, choose_layout

Occurrence = Literal["first", "each"]
Unmatched = Literal["close", "final"]
Retain = Span | int | JoinRetention
Period = Span | Update


@dataclass(frozen=True)
class Join(Sided):
    """Pairs of rows of two streams: with the same key, near in time, in the same window, or in the other's window.

    ``windows`` are common to both sides, ``own`` ones belong to a side each; both None: rows meet by their distance.
    Pairs of values are of the left side and the right one.
    """

    left_time: str
    right_time: str
    on: tuple[str, ...]
    how: How
    bounded: bool
    lower_us: int | None
    upper_us: int | None
    windows: Sliding | None
    own: tuple[Sliding | None, Sliding | None] | None
    allowed_us: int
    delays_us: tuple[int, int]
    name: str
    offsets: tuple[str | None, str | None]
    origins: tuple[str | None, str | None]
    large: bool
    occurrence: Occurrence
    unmatched: Unmatched
    updates: tuple[Update | None, Update | None]
    late_updates: tuple[Update | None, Update | None]
    retained: tuple[JoinRetention | None, JoinRetention | None]
    in_order: bool = False
    watermarks: Watermarks | None = None
    renames: Renames = SAME_NAMES

    @property
    def sides(self) -> Sides:
        """Both."""
        return Sides((LEFT, RIGHT), (self.left_time, self.right_time), self.on)

    @property
    def held(self) -> bool:
        """Whether pairs may have to wait for an update period."""
        return any((*self.updates, *self.late_updates))

    def keeps(self, side: str) -> bool:
        """Whether rows of a side are shown also without a partner."""
        return self.how in (side, "full")

    def by_offset(self, side: str) -> bool:
        """Whether offsets place the rows of a side, and not times."""
        place = SIDES.index(side)
        if self.own is None:
            return False
        own, other = self.own[place], self.own[1 - place]
        if own is not None:
            return own.by_offset
        kept = self.retained[place]
        counted = (other is not None and other.by_offset) or (kept is not None and kept.messages is not None)
        return counted and self.offsets[place] is not None

    def layout(self, side: str) -> Layout:
        """The message key of a side's rows, by the matrix of MESSAGES.md."""
        return choose_layout(
            "tuple" if self.by_offset(side) else "time",
            "join",
            equal=bool(self.on),
            time_range=self.windows is not None or (self.lower_us, self.upper_us) != (None, None),
            large=self.large,
        )

    def describe(self) -> dict[str, Any]:
        """The configuration as a manifest holds it."""
        bounds = [None if us is None else text_of(us) for us in (self.lower_us, self.upper_us)]
        return {
            "name": self.name,
            "event_times": [self.left_time, self.right_time],
            "on": list(self.on),
            "how": self.how,
            "within": bounds if self.bounded else None,
            "window": self.windows.describe() if self.windows else None,
            "windows": [_told(window) for window in self.own] if self.own else None,
            "occurrence": self.occurrence,
            "unmatched": self.unmatched,
            "allowed_lateness": text_of(self.allowed_us),
            "watermark_delay": [text_of(us) for us in self.delays_us],
            "offset": list(self.offsets),
            "origin": list(self.origins),
            "layout": [str(self.layout(side)) for side in SIDES],
            "update": [_told(update) for update in self.updates],
            "late_update": [_told(update) for update in self.late_updates],
            "retain": [_told(kept) for kept in self.retained],
            "watermark": self.watermarks.describe() if self.watermarks else None,
        } | ({"in_order": True} if self.in_order else {})


def _told(choice: Sliding | JoinRetention | Update | None) -> Any:
    return None if choice is None else choice.describe()
