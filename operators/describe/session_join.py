"""What the user writes to pair up rows of two streams by session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
from tidestate.operators.describe.windows import Sessions, SessionsOfOffsets
from tidestate.operators.describe.windows import session as sessions_of
from tidestate.statestore.arguments import checked
from tidestate.statestore.durations import Span, span_us
from tidestate.statestore.errors import UsageError
from tidestate.statestore.messages.keys import KeyMeasure, Layout, choose_layout

_NONE = "0 seconds"
"""No lateness, no delay."""


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


@checked
def session_join(
    *,
    event_time: str | tuple[str, str] | None = None,
    on: str | Sequence[str] | None = None,
    gap: Span | None = None,
    gap_column: str | None = None,
    offsets: int | None = None,
    start: int | tuple[int, int] | None = None,
    how: How = "inner",
    late: Span | int = _NONE,
    watermark_delay: Span | Sequence[Span] = _NONE,
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

    With ``offsets`` instead of a gap, rows belong together if their offsets are less than that apart: the ``offset``
    of either side counts the messages of one log. There ``late`` is a number of offsets, and rows before the offset
    ``start``, one for both sides or a pair, are in no session.
    """
    keys = columns_of(on)
    if offsets is None:
        windows, times, allowed = _of_time(event_time, gap, gap_column, start, late)
    else:
        windows, allowed = sessions_of(gap, gap_column=gap_column, offsets=offsets, late=_count(late)), 0
        times = _offset_columns(offset)
        start = _first_offsets(start)
        _check_offsets(event_time, watermark_delay)
    owner = keys if session is None else columns_of(session)
    columns = tuple(dict.fromkeys((*owner, *keys)))
    if any(len(set(each)) < len(each) for each in (keys, owner)):
        raise UsageError("a column is named twice", code="key-columns", on=keys, session=owner)
    if how not in ("inner", "left", "right", "full"):
        raise UsageError("a join is inner, left, right or full", code="join-how", found=repr(how))
    shared = (*columns, *columns_of(gap_column))
    streams = given_sides((LEFT, RIGHT), times, shared, by_offset=windows.by_offset)
    places, origins = (tuple(each_side(streams.names, given, "join-pair")) for given in (offset, origin))
    for side, own_offset, own_origin in zip(streams.names, places, origins, strict=True):
        check_places(streams, side, own_offset, own_origin)
    delays = given_delays(streams, watermark_delay)
    made = SessionJoin(streams, keys, windows, how, allowed, delays, owner, places, origins, name=checked_name(name))  # type: ignore[arg-type]
    return msgspec.structs.replace(made, start=start) if start else made


def _of_time(
    event_time: str | tuple[str, str] | None,
    gap: Span | None,
    gap_column: str | None,
    start: int | tuple[int, int] | None,
    late: Span | int,
) -> tuple[Sessions, str | Sequence[str], int]:
    """The sessions, the columns of times, and the lateness in microseconds."""
    windows = sessions_of(gap, gap_column=gap_column)
    if event_time is None:
        raise UsageError("say which column is the event time of each side", code="event-time")
    if start is not None:
        raise UsageError("only sessions of offsets have a first offset", code="window-start", start=start)
    allowed = span_us(late)  # type: ignore[arg-type]
    if allowed < 0:
        raise UsageError("lateness cannot be negative", code="lateness", late=late)
    return windows, event_time, allowed


def _offset_columns(offset: Any) -> tuple[str, ...]:
    """The columns of offsets, one for each side."""
    columns = (offset, offset) if isinstance(offset, str) or offset is None else tuple(offset)
    if None in columns:
        raise UsageError(
            "sessions of offsets need the column that holds them, on each side: stream(offset=…)", code="offset"
        )
    return columns


def _count(late: Span | int) -> int:
    """How many offsets late; none by default."""
    if late == _NONE:
        return 0
    if not isinstance(late, int):
        raise UsageError("allowed_lateness is a number of offsets", code="window-late", found=late)
    return late


def _check_offsets(event_time: Any, watermark_delay: Any) -> None:
    if event_time is not None or watermark_delay != _NONE:
        raise UsageError(
            "sessions of offsets follow the offsets, not a time: leave event_time= and watermark_delay= out, and say "
            "how many offsets may be late, allowed_lateness=",
            code="offset",
        )


def _first_offsets(start: Any) -> int | tuple[int, int] | None:
    """One for both sides, or one for each where they differ."""
    if start is None:
        return None
    left, right = each_side((LEFT, RIGHT), start, "join-pair")
    if any(isinstance(one, bool) or not isinstance(one, int) or one < 0 for one in (left, right)):
        raise UsageError("offsets begin at 0", code="window-start", start=start)
    return int(left) if left == right else (left, right)
