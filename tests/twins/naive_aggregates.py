"""Every aggregate in plain Python: a list of events in the order of arrival in, a value out."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import datasketches

Event = dict[str, Any]
Naive = Callable[[list[Event]], Any]


def nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def known(events: list[Event], *columns: str) -> list[Event]:
    return [event for event in events if all(event[column] is not None for column in columns)]


def values(events: list[Event]) -> list[Any]:
    return [event["v"] for event in known(events, "v")]


def in_order(events: list[Event], by: str, *, descending: bool = False) -> list[Event]:
    """Stable; NaN after everything else in both directions."""
    numbers = [event for event in events if not nan(event[by])]
    rest = [event for event in events if nan(event[by])]
    return sorted(numbers, key=lambda event: event[by], reverse=descending) + rest


def chosen(by: str, *, largest: bool, newest: bool = False) -> Naive:
    def choose(events: list[Event]) -> Any:
        found = known(events, "v", by)
        found = found[::-1] if newest else found
        return in_order(found, by, descending=largest)[0]["v"] if found else None

    return choose


def spread(*, population: bool, root: bool = False) -> Naive:
    def compute(events: list[Event]) -> float | None:
        found = [float(value) for value in values(events)]
        if len(found) < (1 if population else 2):
            return None
        if not all(math.isfinite(value) for value in found):
            return math.nan
        result = statistics.pvariance(found) if population else statistics.variance(found)
        return math.sqrt(result) if root else result

    return compute


def top(n: int, by: str, *, largest: bool = True) -> Naive:
    return lambda events: [event["v"] for event in in_order(known(events, "v", by), by, descending=largest)[:n]]


def listed(by: str | None = None, *, descending: bool = False) -> Naive:
    if by is None:
        return values
    return lambda events: [event["v"] for event in in_order(known(events, "v", by), by, descending=descending)]


def different(events: list[Event]) -> list[Any]:
    """Sorted, each once, NaN once and last."""
    found = values(events)
    rest = [math.nan] if any(nan(value) for value in found) else []
    return sorted({value for value in found if not nan(value)}) + rest


def tallied(events: list[Event]) -> list[tuple[Any, int]]:
    counts = Counter("nan" if nan(value) else value for value in values(events))
    return [(value, counts["nan" if nan(value) else value]) for value in different(events)]


def commonest(n: int) -> Naive:
    """Most often first, of equals the smallest."""
    return lambda events: [
        {"value": value, "count": count} for value, count in sorted(tallied(events), key=lambda pair: -pair[1])[:n]
    ]


def rank(q: float) -> Naive:
    """The least number of which a share ``q`` of all is at or below it."""

    def compute(events: list[Event]) -> float | None:
        numbers = sorted(float(value) for value in values(events) if not nan(value))
        return numbers[max(math.ceil(q * len(numbers)) - 1, 0)] if numbers else None

    return compute


def hashed(value: Any) -> int | float | str:
    """What the library is given of a value."""
    if isinstance(value, datetime):
        return (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    if isinstance(value, date):
        return value.toordinal() - date(1970, 1, 1).toordinal()
    if isinstance(value, int) and value >= 2**63:
        return value - 2**64
    return value + 0.0 if isinstance(value, float) else value


def hll(precision: int) -> Naive:
    """The library over each value once, ascending, united with itself."""

    def compute(events: list[Event]) -> bytes:
        sketch = datasketches.hll_sketch(precision, datasketches.HLL_8)
        plain = [hashed(value) for value in different(events)]
        for value in sorted(plain, key=lambda value: (nan(value), value)):
            sketch.update(value)
        for _ in range(2):
            union = datasketches.hll_union(precision)
            union.update(sketch)
            union.update(sketch)
            sketch = union.get_result(datasketches.HLL_8)
        return sketch.serialize_compact()

    return compute


def theta(lg_k: int) -> Naive:
    def compute(events: list[Event]) -> bytes:
        sketch, union = datasketches.update_theta_sketch(lg_k), datasketches.theta_union(lg_k)
        for value in values(events):
            sketch.update(hashed(value))
        union.update(sketch)
        return union.get_result().serialize()

    return compute


def quantile(q: float, interpolation: str) -> Naive:
    def compute(events: list[Event]) -> Any:
        found = values(events)
        numbers = sorted(value for value in found if not nan(value))
        if not numbers:
            return math.nan if found else None
        exact = q * (len(numbers) - 1)
        low, high = numbers[math.floor(exact)], numbers[math.ceil(exact)]
        if interpolation == "linear":
            low, high = float(low), float(high)
            return low if low == high else low + (high - low) * (exact % 1)
        return {"lower": low, "higher": high, "nearest": numbers[round(exact)]}[interpolation]

    return compute
