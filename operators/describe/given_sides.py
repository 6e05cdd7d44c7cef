"""Several streams as a user names them: sides, their times, delays and shared columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidestate.operators.describe.sides import AT, SIDE, Sides
from tidestate.statestore.durations import Span, span_us
from tidestate.statestore.errors import UsageError


def given_sides(
    names: Sequence[str], times: str | Sequence[str], shared: Sequence[str], *, same_columns: bool = False
) -> Sides:
    """Several streams as a user names them. Raises `UsageError` where names or columns do not go together."""
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
    return Sides(tuple(names), own, columns, same_columns)


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


def columns_of(names: str | Sequence[str] | None) -> tuple[str, ...]:
    """None, one or several."""
    return (names,) if isinstance(names, str) else tuple(names or ())
