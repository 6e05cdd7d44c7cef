"""A windowed aggregation of several streams in one state, as a manifest holds it."""

from __future__ import annotations

from tidestate.operators.describe.runnable import Sided
from tidestate.operators.describe.sides import Sides
from tidestate.operators.describe.windowed import Windowed


class Merge(Windowed, Sided, frozen=True, kw_only=True, tag="merge"):  # type: ignore[misc]  # a stream for each side
    """A windowed computation over several streams: all of `Windowed`, over columns of the one stream."""

    sides: Sides
    delays_us: tuple[int, ...]

    def __post_init__(self) -> None:
        self.sides.check_each(self.delays_us, "watermark delays")

    def order_of(self, side: str) -> tuple[str, ...]:
        return tuple(name for name in (self.origin, self.offset) if name)
