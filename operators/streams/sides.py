"""Several streams as one, as the verbs name them: sides, their times, delays and orders. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from tidestate.operators.describe.sides import AT, SIDE, Sides
from tidestate.operators.progress.cti_settings import EventColumns
from tidestate.operators.streams.nodes import StreamView, WatermarkSettings
from tidestate.operators.streams.settings import Lifetime
from tidestate.statestore.durations import span_us
from tidestate.statestore.errors import UsageError


def sides_of(
    times: Mapping[str, str], shared: Sequence[str] = (), *, same_columns: bool = False, by_offset: bool = False
) -> Sides:
    """The sides, by name with their columns of event ``times``, which are offsets if ``by_offset``; ``shared``
    columns are on all of them. Raises `UsageError` where names or columns do not go together.
    """
    if len(times) < 2 or not all(name.isidentifier() for name in times):
        raise UsageError(
            "give two or more sides, whose names have only letters, digits and underscores",
            code="sides",
            sides=list(times),
        )
    columns = tuple(dict.fromkeys(shared))
    if len(columns) < len(shared) or {SIDE, AT, *times.values()} & set(columns):
        raise UsageError(
            "key and shared columns must differ from one another, from the event times, and from the columns "
            '"side" and "time"',
            code="key-columns",
            found=list(shared),
        )
    return Sides(tuple(times), tuple(times.values()), columns, same_columns, by_offset or msgspec.UNSET)


def times_of(views: Mapping[str, StreamView]) -> dict[str, str]:
    """The event time of each side. Raises `UsageError` where one has none."""
    return {side: time_of(side, view) for side, view in views.items()}


def time_of(side: str, view: StreamView) -> str:
    """The event time of a side. Raises `UsageError` where it has none."""
    if view.time is None:
        raise UsageError(
            "the streams are combined by their event times: name the column, stream(event_time=…)",
            code="event-time",
            side=side,
            stream=view.name,
        )
    return view.time


def delays_us(views: Mapping[str, StreamView], over: WatermarkSettings | None) -> tuple[int, ...]:
    """The watermark delay of each side, in microseconds; none where one generator is over all, or some side has one
    of its own.
    """
    if over is not None or any(view.delay != view.watermark_delay for view in views.values()):
        return (0,) * len(views)
    return tuple(span_us(view.watermark_delay) for view in views.values())


def shared_order(views: Mapping[str, StreamView]) -> tuple[str | None, str | None]:
    """Offset and origin that the rows of all sides have. Raises `UsageError` where only some name them."""
    orders = {(view.offset, view.origin) for view in views.values()}
    if len(orders) > 1:
        raise UsageError(
            "either all streams need offset= and origin= with the same columns, or none: use the same settings "
            "for all",
            code="side-columns",
            sides=list(views),
            found=sorted({name for order in orders for name in order if name}),
        )
    return orders.pop()


def say_retractions(views: Mapping[str, StreamView]) -> bool:
    """Whether the streams among the sides say that their rows take others back. Raises `UsageError` where only some
    of them do.
    """
    answers = {side: view.retractions for side, view in views.items() if view.is_input}
    if len({*answers.values()}) > 1:
        raise UsageError(
            "either all streams say retractions=True, or none: the one column kind of their rows is of all sides",
            code="side-columns",
            sides=list(answers),
            found=[side for side, retracts in answers.items() if retracts],
        )
    return any(answers.values())


def check_no_retractions(view: StreamView) -> None:
    """Check that the rows of a stream take none back, for an operator that could not follow. Raises `UsageError`."""
    if view.retractions:
        raise UsageError(
            "rows of this stream take others back, which only windows, merges, unions and time shifts can follow: "
            "aggregate it first, or remove retractions=True",
            code="chain-retractions",
            stream=view.name,
        )


def check_order(sides: Sides, side: str, offset: str | None, origin: str | None) -> None:
    """Check that offset and origin are columns of a side's own, and an origin has offsets. Raises `UsageError`."""
    named = [name for name in (offset, origin) if name]
    if origin and not offset:
        raise UsageError("an origin needs an offset: add offset=", code="join-offset", side=side)
    if len(set(named)) < len(named):
        raise UsageError(
            "origin and offset must be two different columns", code="join-offset", side=side, found=named
        )
    if {*sides.shared, *([] if sides.by_offset else [sides.time_of(side)])} & set(named):
        raise UsageError(
            "offset and origin must be columns of the side's own: not those of on=, and not the event time",
            code="join-on",
            side=side,
            found=named,
        )


def check_how(how: str) -> None:
    """Check that a join keeps rows without a partner of sides that there are. Raises `UsageError`."""
    if how not in ("inner", "left", "right", "full"):
        raise UsageError('how= must be "inner", "left", "right" or "full"', code="join-how", found=repr(how))


def columns_of(names: str | Sequence[str] | None) -> tuple[str, ...]:
    """Names as a tuple: none, a single one, or a sequence of them."""
    return (names,) if isinstance(names, str) else tuple(names or ())


def event_columns(sides: Sides, side: str, order: tuple[str, ...], lifetime: Lifetime) -> EventColumns:
    """Where the rows of a side have their order, end and shape in the one stream."""
    end, shape_column = (name and sides.prefixed(side, name) for name in (lifetime.end, lifetime.shape_column))
    return EventColumns(order, end, lifetime.shape, shape_column)


Order = tuple[str | None, str | None]
"""A column of each side, left and right; None where a side has none."""


def orders_of(views: Mapping[str, StreamView], needing: Collection[str]) -> tuple[Order, Order]:
    """Offset and origin of the sides of a join: of those ``needing`` them. By CTIs rows of streams count in their
    order, and the watermark of an operator is enough.
    """
    by_ctis = any(view.by_ctis for view in views.values())
    named = {side for side in needing if views[side].is_input or not by_ctis}
    columns = [
        (view.offset, view.origin) if view.by_ctis or side in named else (None, None) for side, view in views.items()
    ]
    (left_offset, left_origin), (right_offset, right_origin) = columns
    return (left_offset, right_offset), (left_origin, right_origin)
