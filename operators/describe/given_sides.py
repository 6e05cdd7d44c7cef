"""Several streams as a user names them: sides, their times, delays and shared columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tidestate.operators.describe.sides import AT, SIDE, Sides
from tidestate.operators.progress.cti_settings import Ctis, EventColumns, Settings, StoredSettings, settings_by_source
from tidestate.statestore.durations import Span, span_us
from tidestate.statestore.errors import UsageError


def given_sides(
    names: Sequence[str],
    times: str | Sequence[str],
    shared: Sequence[str],
    *,
    same_columns: bool = False,
    by_offset: bool = False,
) -> Sides:
    """Several streams as a user names them; ``times`` are offsets if ``by_offset``. Raises `UsageError` where names
    or columns do not go together.
    """
    sound = not isinstance(names, str) and len(names) > 1 and len(set(names)) == len(names)
    if not sound or not all(name.isidentifier() for name in names):
        raise UsageError(
            "sides are two or more, with a name of letters, digits and _ each", code="sides", sides=names
        )
    own = tuple(each_side(names, times, "event-time"))
    columns = tuple(dict.fromkeys(shared))
    if len(columns) < len(shared) or {SIDE, AT, *own} & set(columns):
        raise UsageError(
            "key and shared columns differ from one another, from the event times, and from side and time",
            code="key-columns",
            found=list(shared),
        )
    return Sides(tuple(names), own, columns, same_columns, by_offset or msgspec.UNSET)


def each_side(names: Sequence[str], given: Any, code: str) -> list[Any]:
    """One for all, or one for each side."""
    many = [given] * len(names) if isinstance(given, str) or not isinstance(given, Sequence) else list(given)
    if len(many) != len(names):
        raise UsageError("give one for all sides, or one for each", code=code, sides=names, found=given)
    return many


def given_delays(sides: Sides, delays: Span | Sequence[Span]) -> tuple[int, ...]:
    """Of each side, in microseconds. Raises `UsageError` where one is negative."""
    spans = tuple(span_us(one) for one in each_side(sides.names, delays, "watermark-delay"))
    if min(spans) < 0:
        raise UsageError("a watermark delay cannot be negative", code="watermark-delay", found=delays)
    return spans


def check_places(sides: Sides, side: str, offset: str | None, origin: str | None) -> None:
    """That offset and origin are columns of a side's own, and an origin has offsets. Raises `UsageError`."""
    own = [name for name in (offset, origin) if name]
    if origin and not offset:
        raise UsageError("a message is known by its origin and offset: name both", code="join-offset", side=side)
    if len(set(own)) < len(own):
        raise UsageError("origin and offset are two columns", code="join-offset", side=side, found=own)
    if {*sides.shared, *([] if sides.by_offset else [sides.time_of(side)])} & set(own):
        raise UsageError(
            "offset and origin are columns of a side, not those it is joined by or its time",
            code="join-on",
            side=side,
            found=own,
        )


def given_ctis(
    sides: Sides,
    orders: Mapping[str, tuple[str, ...]],
    settings: Settings,
    at_source: Settings,
    shapes: Sequence[Any],
) -> Ctis:
    """CTIs of the sides, whose ``orders`` are columns of the one stream. ``shapes``: shape, column of ends and column
    of shapes, of all sides or of each. A side without an order and settings reads an operator. Raises `UsageError`
    for a side without an order that has settings.
    """
    stored = settings_by_source(settings), settings_by_source(at_source)
    followed = followed_sides(orders, stored)
    if lacking := [side for side, order in orders.items() if not order and side not in followed]:
        raise UsageError(
            "CTIs follow event times in the order of offsets: give each side its own, stream(offset=…)",
            code="advance-time",
            sides=lacking,
        )
    own = {}
    each = (each_side(sides.names, given, "event-shape") for given in shapes)
    for side, shape, *columns in zip(sides.names, *each, strict=True):
        end, shape_column = (name and sides.prefixed(side, name) for name in columns)
        own[side] = EventColumns(orders[side], end, shape, shape_column)
    order = tuple(dict.fromkeys(name for columns in orders.values() for name in columns))
    return Ctis(*stored, AT, order, sides=own, followed=followed)


def followed_sides(
    orders: Mapping[str, tuple[str, ...]], settings: tuple[StoredSettings, StoredSettings]
) -> tuple[str, ...]:
    """The sides without an order and without settings, while another one has both: they read operators."""
    named = {name for one in settings for name in one or ()}
    none = tuple(side for side, order in orders.items() if not order and not {side, ""} & named)
    return none if len(none) < len(orders) else ()


def columns_of(names: str | Sequence[str] | None) -> tuple[str, ...]:
    """None, one or several."""
    return (names,) if isinstance(names, str) else tuple(names or ())
