"""A join by lifetimes, as a manifest holds it."""

from __future__ import annotations

from tidestate.operators.describe.runnable import Sided
from tidestate.operators.describe.sides import Sides
from tidestate.operators.progress.cti_settings import EventColumns


class OverlapJoin(Sided, frozen=True, tag="overlap_join"):
    """Pairs of rows of two streams with the same key, and with lifetimes that have an instant in common.

    ``events``: by side, the columns of its rows in the one stream, and their shape.
    """

    sides: Sides
    on: tuple[str, ...]
    events: dict[str, EventColumns]

    def __post_init__(self) -> None:
        self.sides.check_each([side for side in self.sides.names if side in self.events], "columns of lifetimes")

    def order_of(self, side: str) -> tuple[str, ...]:
        return self.events[side].order
