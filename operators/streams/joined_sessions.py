"""Joins by session, as the stored description of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tidestate.operators.describe.session_join import SessionJoin
from tidestate.operators.describe.sides import LEFT, RIGHT, How
from tidestate.operators.describe.windows import Sessions, SessionsOfOffsets
from tidestate.operators.streams.nodes import StreamView, WatermarkSettings
from tidestate.operators.streams.settings import SideSettings
from tidestate.operators.streams.sides import (
    check_how,
    check_order,
    columns_of,
    delays_us,
    orders_of,
    sides_of,
    times_of,
)
from tidestate.operators.streams.watermarks import with_watermarks
from tidestate.operators.streams.windows import offset_sessions, sessions
from tidestate.statestore.durations import Span, span_us
from tidestate.statestore.errors import UsageError

NOT_LATE = "0 seconds"
"""The lateness where none is given, of offsets too."""


def joined_by_session(
    views: Mapping[str, StreamView],
    on: str | Sequence[str] | None,
    gap: Span | None,
    gap_column: str | None,
    offsets: int | None,
    session_key: str | Sequence[str] | None,
    how: How,
    allowed_lateness: Span | int,
    sides: Mapping[str, SideSettings],
    over: WatermarkSettings | None,
    identity: bool,
    name: str,
) -> SessionJoin:
    """Pairs of rows in one session. Raises `UsageError` where the settings do not go together."""
    equal = columns_of(on)
    key = equal if session_key is None else columns_of(session_key)
    if any(len(set(columns)) < len(columns) for columns in (equal, key)):
        raise UsageError("a column is named twice: name each column once", code="key-columns", on=equal, session=key)
    check_how(how)
    starts = _first_offsets(sides, by_offset=offsets is not None)
    orders = orders_of(views, set(views) if identity or offsets is not None else ())
    windows: Sessions | SessionsOfOffsets
    if offsets is None:
        windows, times = sessions(gap, gap_column=gap_column), times_of(views)
        delays, allowed_us = delays_us(views, over), _lateness_us(allowed_lateness)
    else:
        if gap is not None or gap_column is not None:
            raise UsageError(
                "a session needs either a gap, a column that holds it, or offsets: give one of them",
                code="session-gap",
            )
        windows, times = offset_sessions(offsets, late=_late_offsets(allowed_lateness)), _offset_columns(orders[0])
        # Sessions of offsets follow the offsets, and no time.
        delays, allowed_us = (0, 0), 0
    shared = (*dict.fromkeys((*key, *equal)), *columns_of(gap_column))
    both = sides_of(times, shared, by_offset=windows.by_offset)
    for side, offset, origin in zip(both.names, *orders, strict=True):
        check_order(both, side, offset, origin)
    made = SessionJoin(both, equal, windows, how, allowed_us, delays, key, *orders, name=name)
    if starts:
        made = msgspec.structs.replace(made, start=starts)
    return with_watermarks(made, views, over)


def _lateness_us(allowed: Any) -> int:
    allowed_us = span_us(allowed)
    if allowed_us < 0:
        raise UsageError("lateness must not be negative", code="lateness", late=allowed)
    return allowed_us


def _late_offsets(allowed: Span | int) -> int:
    """How many offsets late; none by default."""
    if allowed == NOT_LATE:
        return 0
    if not isinstance(allowed, int):
        raise UsageError(
            "in sessions of offsets allowed_lateness must be a number of offsets", code="window-late", found=allowed
        )
    return allowed


def _offset_columns(columns: Sequence[str | None]) -> dict[str, str]:
    """The columns of offsets, by side."""
    if None in columns:
        raise UsageError("sessions of offsets need an offset column on each side: stream(offset=…)", code="offset")
    left, right = map(str, columns)
    return {LEFT: left, RIGHT: right}


def _first_offsets(sides: Mapping[str, SideSettings], *, by_offset: bool) -> int | tuple[int, int] | None:
    """The first offset that counts: one for both sides, or one for each where they differ."""
    for side, settings in sides.items():
        if settings != SideSettings(start=settings.start):
            raise UsageError(
                "a side of a session join can only have start=: remove its other settings",
                code="join-side",
                side=side,
            )
    left, right = (sides[side].start for side in (LEFT, RIGHT))
    if left is None and right is None:
        return None
    if not by_offset:
        raise UsageError(
            "start= is only for sessions of offsets: remove it", code="window-start", start=(left, right)
        )
    left, right = left or 0, right or 0
    if any(isinstance(start, bool) or not isinstance(start, int) or start < 0 for start in (left, right)):
        raise UsageError("the first offset must be an integer, 0 or more", code="window-start", start=(left, right))
    return left if left == right else (left, right)
