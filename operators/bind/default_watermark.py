"""The watermark where no generator is given: the largest event time less a delay, of each side its own."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from tidestate.operators.describe.sides import AT, SIDE, Sides
from tidestate.operators.progress.generators import MaxEventTime
from tidestate.operators.progress.instants import moved_one
from tidestate.operators.progress.watermarks import SourceReading, Sources, Watermarks


def by_side(sides: Sides, delays_us: tuple[int, ...]) -> Watermarks:
    """The smallest of the largest event times of the sides, each less its delay."""
    equal = len(set(delays_us)) == 1
    each = DelayBySide(AT, tuple(zip(sides.names, delays_us, strict=True)))
    return Watermarks(MaxEventTime(AT, delays_us[0]) if equal else each, Sources(sides.names), SIDE)


class DelayBySide(msgspec.Struct, frozen=True, tag_field="kind", tag="delay_by_side"):
    """The largest event time of each source less the delay of the source's name."""

    column: str
    delays_us: tuple[tuple[str, int], ...]

    @property
    def delay_us(self) -> int:
        """The longest delay: W is that of the side that is behind."""
        return max(delay for _, delay in self.delays_us)

    def read(self, events: pa.Table, now_us: int, *, source: str, by: str | None = None) -> SourceReading:
        """See `tidestate.operators.progress.generators.Generator`."""
        reading, delays = MaxEventTime(self.column).read(events, now_us, source=source, by=by), dict(self.delays_us)
        behind = {
            name: msgspec.structs.replace(
                report, watermark_us=moved_one(report.watermark_us, -delays.get(name.rpartition("/")[2], 0))
            )
            for name, report in reading.reports.items()
        }
        return SourceReading(reading.events, behind, reading.counters)


def default_watermarks(column: str, delay_us: int) -> Watermarks:
    """The largest value of ``column`` so far, less ``delay_us``."""
    return Watermarks(MaxEventTime(column, delay_us))
