"""A join by session, as a manifest holds it."""

from __future__ import annotations

import msgspec

from tidestate.operators.describe.runnable import Sided
from tidestate.operators.describe.sides import How, Sides
from tidestate.operators.describe.windows import Sessions, SessionsOfOffsets
from tidestate.statestore.messages.keys import KeyMeasure, Layout, choose_layout


class SessionJoin(Sided, frozen=True, tag="session_join"):
    """Pairs of rows of two streams with the same key and in the same session."""

    sides: Sides
    on: tuple[str, ...]
    windows: Sessions | SessionsOfOffsets = msgspec.field(name="window")
    how: How
    allowed_us: int = msgspec.field(name="allowed_lateness_us")
    delays_us: tuple[int, ...]
    session: tuple[str, ...]
    offsets: tuple[str | None, str | None] = (None, None)
    origins: tuple[str | None, str | None] = (None, None)
    start: int | tuple[int, int] | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        self.sides.check_each(self.delays_us, "watermark delays")

    @property
    def starts(self) -> tuple[int, int] | None:
        """The first offset of each side; None where both begin at 0."""
        if not self.start:
            return None
        return self.start if isinstance(self.start, tuple) else (self.start, self.start)

    @property
    def equal(self) -> tuple[str, ...]:
        """Columns by which rows of a session pair up, without those of the session key."""
        return tuple(name for name in self.on if name not in self.session)

    def order_of(self, side: str) -> tuple[str, ...]:
        place = self.sides.names.index(side)
        named = (self.origins[place], self.offsets[place])
        return tuple(self.sides.prefixed(side, name) for name in named if name)

    def keeps(self, side: str) -> bool:
        """Whether the join emits rows of this side that have no partner."""
        return self.how in (side, "full")

    def layout(self, side: str) -> Layout:
        """The message key of a side's rows: the rows of a session are one range."""
        measure: KeyMeasure = "tuple" if self.windows.by_offset else "time"
        return choose_layout(measure, "join", equal=bool(self.equal), time_range=True, session=True)
