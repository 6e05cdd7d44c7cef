"""Aggregates as three vectorised steps: lift a column into partials, combine partials, finish a result.

What is between lift and finish is declared in state columns with combiners, so any store can fold it and any
reader can see it. Nulls are ignored; an aggregate over nothing but nulls is null (a count is 0).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import UsageError
from statestore.tables import Column

Function = Literal["count", "sum", "min", "max", "mean"]


@dataclass(frozen=True)
class Aggregate:
    """A function over a column (``column`` is None for a count of events)."""

    function: Function
    column: str | None = None

    def describe(self) -> dict[str, str]:
        """For the manifest."""
        return {"function": self.function} | ({"column": self.column} if self.column is not None else {})


def count(column: str | None = None) -> Aggregate:
    """The number of events, or of non-null values of a column. int64."""
    return Aggregate("count", column)


def sum_(column: str) -> Aggregate:
    """The sum: int64 for integers, double for floats, decimal(38, scale) for decimals and uint64."""
    return Aggregate("sum", column)


def min_(column: str) -> Aggregate:
    """The smallest value, in the column's type. NaN counts only when there is nothing else."""
    return Aggregate("min", column)


def max_(column: str) -> Aggregate:
    """The largest value, in the column's type. NaN counts only when there is nothing else."""
    return Aggregate("max", column)


def mean(column: str) -> Aggregate:
    """The arithmetic mean, double. Kept as sum and count, so it is exact for integers up to the last division."""
    return Aggregate("mean", column)


@dataclass(frozen=True)
class BoundAggregate:
    """An aggregate with its name and the Arrow type of its input (null type for a count of events)."""

    name: str
    aggregate: Aggregate
    input_type: pa.DataType

    @property
    def state(self) -> tuple[Column, ...]:
        """Its state columns."""
        function = self.aggregate.function
        if function == "count":
            return (Column(self.name, "int64", "count", "sum"),)
        if function in ("min", "max"):
            return (Column(self.name, str(self.input_type), function, function),)
        total = Column(f"{self.name}_sum" if function == "mean" else self.name, str(self._sum_type), "sum", "sum")
        if function == "sum":
            return (total,)
        return (total, Column(f"{self.name}_count", "int64", "count", "sum"))

    @property
    def result_type(self) -> pa.DataType:
        """The Arrow type of its result."""
        return pa.float64() if self.aggregate.function == "mean" else self.state[0].arrow

    def lift(self, values: pa.ChunkedArray | None, rows: int) -> list[pa.Array | pa.ChunkedArray]:
        """Each event as a partial of its own, one array per state column."""
        function = self.aggregate.function
        if function == "count":
            return [_ones(values, rows)]
        assert values is not None
        if function in ("min", "max"):
            return [values]
        total = values if values.type == self._sum_type else values.cast(self._sum_type)
        return [total] if function == "sum" else [total, _ones(values, rows)]

    def finish(self, partials: pa.Table) -> pa.ChunkedArray:
        """The result of each folded row."""
        if self.aggregate.function != "mean":
            return partials[self.state[0].name]
        total, counted = (partials[column.name] for column in self.state)
        divisor = pc.if_else(pc.equal(counted, 0), None, counted)
        return pc.divide(total.cast(pa.float64(), safe=False), divisor.cast(pa.float64(), safe=False))

    @property
    def _sum_type(self) -> pa.DataType:
        kind = self.input_type
        if pa.types.is_decimal(kind):
            return pa.decimal128(38, kind.scale)
        if kind == pa.uint64():
            return pa.decimal128(38, 0)
        return pa.int64() if pa.types.is_integer(kind) else pa.float64()


def _ones(values: pa.ChunkedArray | None, rows: int) -> pa.Array | pa.ChunkedArray:
    if values is None or values.null_count == 0:
        return pa.array(np.ones(rows, np.int64))
    return values.is_valid().cast(pa.int64())


def bind(name: str, aggregate: Aggregate, schema: pa.Schema) -> BoundAggregate:
    """Check an aggregate against the input's schema. Raises `UsageError` naming the column."""
    if aggregate.column is None:
        return BoundAggregate(name, aggregate, pa.null())
    kind = schema.field(aggregate.column).type
    if aggregate.function == "count":
        return BoundAggregate(name, aggregate, kind)
    numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal128(kind)
    ordered = (numeric and kind != pa.float16()) or pa.types.is_timestamp(kind) or pa.types.is_date32(kind)
    if not (numeric if aggregate.function in ("sum", "mean") else ordered):
        raise UsageError(
            f"{aggregate.function} cannot be taken of this column: cast it to a number first",
            code="aggregate-type",
            aggregate=name,
            column=aggregate.column,
            type=str(kind),
        )
    return BoundAggregate(name, aggregate, kind)


def inputs(aggregates: Sequence[tuple[str, Aggregate]]) -> list[str]:
    """The input columns the aggregates need, each once, in order."""
    return list(dict.fromkeys(a.column for _, a in aggregates if a.column is not None))
