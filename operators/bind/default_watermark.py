"""The watermark where no generator is given: the largest event time less a delay, of each side its own."""

from __future__ import annotations

from tidestate.operators.describe.sides import AT, SIDE, Sides
from tidestate.operators.progress.by_side import BySide, SideGenerator
from tidestate.operators.progress.generators import MaxEventTime
from tidestate.operators.progress.watermarks import Sources, Watermarks


def by_side(sides: Sides, delays_us: tuple[int, ...]) -> Watermarks:
    """The smallest of the largest event times of the sides, each less its delay."""
    delays = dict(zip(sides.names, delays_us, strict=True))
    sources = Sources(sides.names)
    if len({*delays_us}) == 1:
        return Watermarks(MaxEventTime(AT, delays_us[0]), sources, SIDE)
    generators = {side: SideGenerator(MaxEventTime(AT, delay)) for side, delay in delays.items()}
    return Watermarks(BySide(generators), sources, SIDE)


def default_watermarks(column: str, delay_us: int) -> Watermarks:
    """The largest value of ``column`` so far, less ``delay_us``."""
    return Watermarks(MaxEventTime(column, delay_us))
