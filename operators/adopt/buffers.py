"""Which columns of Spark's aggregation state belong to which aggregate of a job: found by name and type, never by
order alone. Pure.

Spark's columns have the names of its functions (``count``, ``sum``, ``max``), not those of results. The aggregates of
the job must take all of them, in exactly one way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.aggregates.aggregate import BoundAggregate
from tidestate.operators.aggregates.arithmetic import BoundPlain
from tidestate.statestore.arrays import Values
from tidestate.statestore.errors import UsageError, of_type

_FEW_DIGITS = {"sum": 8, "mean": 11}
"""Of decimals that Spark's optimizer (`DecimalAggregates`) adds up as longs, or for a mean as doubles."""
EXACT_BELOW = 2**53
"""Whole numbers below this are exact as a double, in which Spark keeps the sum of a mean."""


@dataclass(frozen=True)
class _Buffer:
    """A column of Spark's: its name, and whether it may have a type."""

    name: str
    fits: Callable[[pa.DataType], bool]


def match_buffers(
    aggregates: Sequence[BoundAggregate], fields: Sequence[pa.Field], numbers: Mapping[str, int]
) -> dict[str, int]:
    """The index of the first column of each aggregate in ``fields``. ``numbers`` has those that the user named.

    Raises `UsageError`: ``adopt-aggregate`` for aggregates that cannot be taken over, or that are not those of the
    query; ``adopt-ambiguous`` if there are several ways.
    """
    buffers_by_name = {bound.name: _buffers(bound) for bound in aggregates}
    if strange := sorted(set(numbers) - set(buffers_by_name)):
        raise UsageError(
            "the job has no aggregate of this name: choose one of those listed",
            code="adopt-aggregate",
            found=strange,
            job=list(buffers_by_name),
        )
    ways = _ways(buffers_by_name, fields, numbers, 0)
    first, second = next(ways, None), next(ways, None)
    facts = {
        "spark": [f"{n} {field.name} {field.type}" for n, field in enumerate(fields)],
        "job": list(buffers_by_name),
    }
    if first is None:
        raise UsageError(
            "the aggregates of the job are not those of the query: describe count, sum, min, max and mean exactly "
            "as the query has them, no more and no fewer",
            code="adopt-aggregate",
            **facts,
        )
    if second is not None:
        unclear = sorted(name for name in first if first[name] != second[name])
        raise UsageError(
            "several columns of spark's state fit one aggregate: give the number of its first column with buffers=",
            code="adopt-ambiguous",
            unclear=unclear,
            **facts,
        )
    return first


def _ways(
    buffers_by_name: Mapping[str, Sequence[tuple[_Buffer, ...]]],
    fields: Sequence[pa.Field],
    numbers: Mapping[str, int],
    start: int,
) -> Iterator[dict[str, int]]:
    """Every way in which the aggregates take all columns from ``start`` on."""
    if start == len(fields):
        if not buffers_by_name:
            yield {}
        return
    # Spark does not name the aggregates of its columns. All orders are tried, and a column that fits none ends a try.
    for name, buffers in ((name, form) for name, forms in buffers_by_name.items() for form in forms):
        columns = fields[start : start + len(buffers)]
        fits = len(columns) == len(buffers) and all(
            buffer.name == column.name and buffer.fits(column.type)
            for buffer, column in zip(buffers, columns, strict=True)
        )
        if fits and numbers.get(name, start) == start:
            buffers_left = {key: its for key, its in buffers_by_name.items() if key != name}
            for way in _ways(buffers_left, fields, numbers, start + len(buffers)):
                yield {name: start, **way}


def _buffers(bound: BoundAggregate) -> list[tuple[_Buffer, ...]]:
    """The columns that Spark has for an aggregate, in one form or another."""
    if not isinstance(bound, BoundPlain):
        raise UsageError(
            "the state of this aggregate cannot be taken over, as spark stores it differently: leave the "
            "aggregate out of the query and the job",
            code="adopt-aggregate",
            aggregate=bound.name,
            function=bound.aggregate.function,
        )
    function, kind = bound.aggregate.function, bound.input_type
    count = _Buffer("count", lambda column_type: column_type == pa.int64())
    if function == "count":
        return [(count,)]
    if function in ("min", "max"):
        return [(_Buffer(function, lambda column_type: column_type == kind),)]
    of_sum = pa.float64() if function == "mean" or pa.types.is_floating(kind) else pa.int64()
    total = _Buffer("sum", lambda column_type: column_type == of_sum)
    plain = (total, count) if function == "mean" else (total,)
    scale = _scale(kind)
    if scale is None:
        return [plain]
    decimals = _Buffer("sum", lambda column_type: _scale(column_type) == scale)
    # Decimals of few digits are added up as whole numbers, without their point.
    is_short = of_type(kind, pa.Decimal128Type).precision <= _FEW_DIGITS[function]
    exact = (decimals, count) if function == "mean" else (decimals, _Buffer("isEmpty", pa.types.is_boolean))
    return [exact, plain] if is_short else [exact]


def _scale(kind: pa.DataType) -> int | None:
    """The digits after the point of decimals; None for any other type."""
    return kind.scale if pa.types.is_decimal(kind) else None


def state_columns(bound: BoundAggregate, columns: Sequence[Values]) -> list[Values]:
    """The state columns of an aggregate, from Spark's columns for it. Raises `UsageError` (``adopt-inexact``) for a
    sum that Spark has not kept exactly.
    """
    if bound.aggregate.function == "sum" and len(columns) == 2:
        total, empty = columns
        if pc.any(pc.and_(total.is_null(), pc.invert(empty))).as_py():
            raise _inexact(bound, "it has overflowed")
        columns = [pc.if_else(empty, pa.scalar(None, total.type), total)]  # of nulls alone it is 0 in Spark's state
    states, scale = bound.state, _scale(bound.input_type)
    if pa.types.is_floating(columns[0].type) and not pa.types.is_floating(states[0].arrow):
        sums = pc.fill_null(columns[0], 0.0).to_numpy()
        if not bool(np.all((np.abs(sums) < EXACT_BELOW) & (np.floor(sums) == sums))):
            raise _inexact(bound, f"as a double it is beyond {EXACT_BELOW}")
        columns = [columns[0].cast(pa.int64()), *columns[1:]]
    if scale is not None and bound.aggregate.function in _FEW_DIGITS and not pa.types.is_decimal(columns[0].type):
        columns = [_with_point(columns[0], scale), *columns[1:]]
    return [column.cast(state.arrow) for column, state in zip(columns, states, strict=True)]


def _with_point(numbers: Values, scale: int) -> Values:
    """Whole numbers as decimals with so many digits after the point."""
    digits = pa.chunked_array([numbers]) if isinstance(numbers, pa.Array) else numbers
    return digits.cast(pa.int64()).cast(pa.decimal128(38, 0)).combine_chunks().view(pa.decimal128(38, scale))


def _inexact(bound: BoundAggregate, reason: str) -> UsageError:
    return UsageError(
        f"spark has not stored this sum exactly ({reason}): leave the aggregate out of the query and the job",
        code="adopt-inexact",
        aggregate=bound.name,
    )
