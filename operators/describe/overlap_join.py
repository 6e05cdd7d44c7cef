"""What the user writes to pair up rows of two streams whose lifetimes overlap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from msgspec.structs import replace

from tidestate.operators.describe.given_sides import (
    check_places,
    columns_of,
    each_side,
    given_ctis,
    given_sides,
)
from tidestate.operators.describe.runnable import Sided, checked_name
from tidestate.operators.describe.sides import LEFT, RIGHT, SIDE, Sides
from tidestate.operators.progress.advance_time import SHAPES
from tidestate.operators.progress.cti_settings import EventColumns, Settings
from tidestate.operators.progress.watermarks import Watermarks, side_sources
from tidestate.statestore.arguments import checked
from tidestate.statestore.durations import Span
from tidestate.statestore.errors import UsageError


class OverlapJoin(Sided, frozen=True, tag="overlap_join"):
    """Pairs of rows of two streams with the same key, and with lifetimes that have an instant in common.

    ``events``: by side, the columns of its rows in the one stream, and their shape.
    """

    sides: Sides
    on: tuple[str, ...]
    events: dict[str, EventColumns]

    def order_of(self, side: str) -> tuple[str, ...]:
        return self.events[side].order

    @checked
    def advance_time(  # type: ignore[override]
        self,
        settings: Settings = None,
        *,
        at_source: Settings = None,
        idle_timeout: Span | None = None,
        own_timeouts: Mapping[str, Span] | None = None,
    ) -> Self:
        """As `Sided.advance_time`, with the shapes that the join names."""
        orders = {side: one.order for side, one in self.events.items()}
        ctis = replace(given_ctis(self.sides, orders, settings, at_source, ("point", None, None)), sides=self.events)
        ctis = replace(ctis, keeps_ends=True)
        known = side_sources(self.sides.names, ctis.followed, idle_timeout, own_timeouts)
        ctis.check(known.names)
        return replace(self, watermarks=Watermarks(ctis, known, SIDE))

    @checked
    def watermark(self, *_: Any, **__: Any) -> Self:  # type: ignore[override]
        """Raises `UsageError`: lifetimes are known up to a CTI, see `advance_time`."""
        raise UsageError(
            "lifetimes overlap by application time: advance it by CTIs, .watermark(watermark.ctis(…)) of the streams",
            code="advance-time",
        )


@checked
def overlap_join(
    *,
    event_time: str | tuple[str, str],
    on: str | Sequence[str] | None = None,
    shape: str | tuple[str, str] = "point",
    end: str | tuple[str | None, str | None] | None = None,
    shape_column: str | tuple[str | None, str | None] | None = None,
    offset: str | tuple[str | None, str | None],
    origin: str | tuple[str | None, str | None] | None = None,
    name: str = "overlapped",
) -> OverlapJoin:
    """Join two streams by lifetimes: rows with equal ``on`` (none: all rows) pair up if their lifetimes overlap. The
    join needs CTIs: `OverlapJoin.advance_time`.

    A row lives from its ``event_time``: a point for that instant, an interval until its ``end``, an edge start until
    the edge end with the same key and event time, or for ever without one. Ends are exclusive. The rows of a side
    have one ``shape``, or each that in ``shape_column``. A pair is emitted once the CTIs of both sides have passed
    the instant from which both live, its ``time``, and is never retracted. Rows of a side count in the order of their
    ``origin`` and ``offset``. Every option takes a pair, one for each side.
    """
    keys = columns_of(on)
    streams = given_sides((LEFT, RIGHT), event_time, keys)
    given = (offset, origin, shape, end, shape_column)
    each = zip(*(each_side(streams.names, one, "join-pair") for one in given), strict=True)
    events: dict[str, EventColumns] = {}
    for side, (offset_, origin_, shape_, end_, shape_column_) in zip(streams.names, each, strict=True):
        if shape_ not in SHAPES or (end_ is None and shape_ in ("interval", "edge_end")):
            raise UsageError(
                "give a shape of events, and the column of their ends if the shape has one",
                code="event-shape",
                side=side,
                shape=shape_,
                end=end_,
            )
        check_places(streams, side, offset_, origin_)
        named = [name and streams.prefixed(side, name) for name in (origin_, offset_, end_, shape_column_)]
        events[side] = EventColumns(tuple(name for name in named[:2] if name), named[2], shape_, named[3])
    return OverlapJoin(streams, keys, events, name=checked_name(name))
