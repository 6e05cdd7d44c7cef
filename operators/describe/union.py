"""What the user writes to pass several streams on as one."""

from __future__ import annotations

from collections.abc import Sequence

from tidestate.operators.describe.given_sides import given_delays, given_sides
from tidestate.operators.describe.runnable import Sided, checked_name
from tidestate.operators.describe.sides import Sides
from tidestate.statestore.arguments import checked
from tidestate.statestore.durations import Span
from tidestate.statestore.errors import UsageError


class Union(Sided, frozen=True, tag="union"):
    """Several streams with the same columns, passed on as one."""

    sides: Sides
    delays_us: tuple[int, ...]
    offset: str | None = None
    origin: str | None = None

    def order_of(self, side: str) -> tuple[str, ...]:
        return tuple(name for name in (self.origin, self.offset) if name)


@checked
def union(
    *,
    event_time: str | Sequence[str],
    sides: Sequence[str],
    watermark_delay: Span | Sequence[Span] = "0 seconds",
    offset: str | None = None,
    origin: str | None = None,
    name: str = "union",
) -> Union:
    """Streams with the same columns as one: each row is passed on at once, late or not, with its ``side``. The
    watermark is the smallest of the sides, so a side without rows holds it. ``offset`` and ``origin`` are columns
    that order the rows of a side, for `advance_time`.
    """
    streams = given_sides(sides, event_time, (), same_columns=True)
    if origin is not None and offset is None:
        raise UsageError("an origin orders messages by their offset: name that too", code="offset", origin=origin)
    return Union(streams, given_delays(streams, watermark_delay), offset, origin, name=checked_name(name))
