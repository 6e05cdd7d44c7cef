"""What the user writes to pair up rows of two streams by session."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tidestate.operators.describe.given_sides import (
    check_places,
    columns_of,
    each_side,
    given_delays,
    given_sides,
)
from tidestate.operators.describe.runnable import Sided, checked_name
from tidestate.operators.describe.sides import LEFT, RIGHT, How, Sides
from tidestate.operators.describe.windows import Sessions
from tidestate.operators.describe.windows import session as sessions_of
from tidestate.statestore.durations import Span, span_us
from tidestate.statestore.errors import UsageError
from tidestate.statestore.messages.keys import Layout, choose_layout


class SessionJoin(Sided, frozen=True, tag="session_join"):
    """Pairs of rows of two streams with the same key and in the same session."""

    sides: Sides
    on: tuple[str, ...]
    windows: Sessions = msgspec.field(name="window")
    how: How
    allowed_us: int = msgspec.field(name="allowed_lateness_us")
    delays_us: tuple[int, ...]
    session: tuple[str, ...]
    offsets: tuple[str | None, str | None] = (None, None)
    origins: tuple[str | None, str | None] = (None, None)

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
        return choose_layout("time", "join", equal=bool(self.equal), time_range=True, session=True)


def session_join(
    *,
    event_time: str | tuple[str, str],
    on: str | Sequence[str] | None = None,
    gap: Span | None = None,
    gap_column: str | None = None,
    how: How = "inner",
    late: Span = "0 seconds",
    watermark_delay: Span | Sequence[Span] = "0 seconds",
    name: str = "session_joined",
    session: str | Sequence[str] | None = None,
    offset: str | tuple[str | None, str | None] | None = None,
    origin: str | tuple[str | None, str | None] | None = None,
) -> SessionJoin:
    """Join two streams by session: rows of either side with equal ``on`` (none: all rows) that are less than ``gap``
    apart are one session, and each left row of it pairs up with each right one.

    Pairs are emitted when the watermark passes the session's end; an outer join (``how``) also emits rows of sessions
    without the other side. A ``late`` row emits the pairs it adds; if the session's bounds change, what was emitted
    is retracted first. With ``gap_column``, on both sides, each row has its own gap. ``session`` names the columns of
    the session key, if these are not those of ``on``: rows of a session then pair up if ``on`` is equal too. A
    message is identified by ``offset`` and ``origin``, of both sides or a pair.
    """
    keys, windows = columns_of(on), sessions_of(gap, gap_column=gap_column)
    owner = keys if session is None else columns_of(session)
    columns = tuple(dict.fromkeys((*owner, *keys)))
    if any(len(set(each)) < len(each) for each in (keys, owner)):
        raise UsageError("a column is named twice", code="key-columns", on=keys, session=owner)
    if how not in ("inner", "left", "right", "full"):
        raise UsageError("a join is inner, left, right or full", code="join-how", found=repr(how))
    allowed = span_us(late)
    if allowed < 0:
        raise UsageError("lateness cannot be negative", code="lateness", late=late)
    streams = given_sides((LEFT, RIGHT), event_time, (*columns, *columns_of(gap_column)))
    offsets, origins = (tuple(each_side(streams.names, given, "join-pair")) for given in (offset, origin))
    for side, own_offset, own_origin in zip(streams.names, offsets, origins, strict=True):
        check_places(streams, side, own_offset, own_origin)
    delays = given_delays(streams, watermark_delay)
    return SessionJoin(streams, keys, windows, how, allowed, delays, owner, offsets, origins, name=checked_name(name))  # type: ignore[arg-type]
