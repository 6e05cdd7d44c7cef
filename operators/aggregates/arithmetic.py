"""Count, sum, minimum, maximum, mean, variance, standard deviation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.aggregates.aggregate import (
    Aggregate,
    BoundAggregate,
    Partial,
    comparable_type,
    comparables,
    doubles,
    is_number,
    needs_to_compare,
    ones,
    unsupported_type,
)
from tidestate.statestore.arrays import Values
from tidestate.statestore.errors import LimitError, of_type
from tidestate.statestore.spec.arrowtypes import is_comparable, type_text
from tidestate.statestore.spec.quotients import decimal_units, quotients
from tidestate.statestore.spec.tables import Column, Group
from tidestate.statestore.spec.units import whole_units

_ROOMY_PRECISION = 28
"""Ten billion decimals of so many digits can be added up in 38."""


class Plain(Aggregate, frozen=True, tag="plain"):
    """Count, sum, minimum, maximum and mean: state columns are combined separately."""

    function: Literal["count", "sum", "min", "max", "mean"]

    def bind(self, name: str, schema: pa.Schema, event_time: str) -> BoundAggregate:
        kind = pa.null() if self.column is None else schema.field(self.column).type
        adds = self.function in ("sum", "mean")
        has_order = is_comparable(comparable_type(kind))
        if not (self.function == "count" or (is_number(kind) if adds else has_order)):
            why = "cast it to a number first" if adds else "its values cannot be compared; cast it first"
            raise unsupported_type(name, self, self.column, kind, why)
        return BoundPlain(name, self, kind)


@dataclass(frozen=True)
class BoundPlain(BoundAggregate):
    """State: the result itself; for a mean, sum and count."""

    @property
    def needs(self) -> tuple[str, ...]:
        if self.aggregate.function in ("min", "max"):
            return needs_to_compare(self.input_type)
        sums = self.aggregate.function in ("sum", "mean")
        return ("wide-sums/1",) if sums and self._running_type != self._sum_type else ()

    @property
    def state(self) -> tuple[Column, ...]:
        function = self.aggregate.function
        if function == "count":
            return (Column(self.name, "int64", "count", "sum"),)
        if function in ("min", "max"):
            return (Column(self.name, type_text(comparable_type(self.input_type)), function, function),)
        total = Column(
            f"{self.name}_sum" if function == "mean" else self.name, type_text(self._running_type), "sum", "sum"
        )
        if function == "sum":
            return (total,)
        return (total, Column(f"{self.name}_count", "int64", "count", "sum"))

    @property
    def result_type(self) -> pa.DataType:
        if self.aggregate.function in ("mean", "sum"):
            return pa.float64() if self.aggregate.function == "mean" else self._sum_type
        return pa.int64() if self.aggregate.function == "count" else self.input_type

    @property
    def stores_result(self) -> bool:
        return self.aggregate.function != "mean"

    @property
    def partials(self) -> tuple[Partial, ...]:
        function, column = of_type(self.aggregate, Plain).function, self.aggregate.column
        total, *counted = (of_state.name for of_state in self.state)
        first = Partial(total, "sum" if function == "mean" else function, column)
        return (first, *(Partial(name, "count", column) for name in counted))

    @property
    def invertible(self) -> bool:
        return self.aggregate.function not in ("min", "max")

    def lift(self, events: pa.Table) -> list[Values]:
        function, column = self.aggregate.function, self.aggregate.column
        if function == "count":
            return [ones(None if column is None else events[column], events.num_rows)]
        values = events[self.aggregate.input_column]
        if function in ("min", "max"):
            return [comparables(values)]
        # Whole numbers become decimals when they are combined: that is fewer rows.
        kind = pa.int64() if pa.types.is_signed_integer(values.type) else self._running_type
        total = values if values.type == kind else values.cast(kind)
        return [total] if function == "sum" else [total, ones(values, events.num_rows)]

    def finish(self, partials: pa.Table) -> Values:
        values = partials[self.state[0].name]
        if self.aggregate.function == "sum":
            return self._checked(values)
        if self.aggregate.function != "mean":
            return values.cast(self.result_type)
        counted = partials[self.state[1].name]
        divisor = pc.if_else(pc.equal(counted, 0), None, counted)
        if pa.types.is_decimal(values.type):
            return quotients(values, divisor)
        return pc.divide(values, doubles(divisor))

    def subtract(self, wholes: pa.Table, parts: pa.Table) -> list[Values]:
        """Differences of sums. A sum without values left is 0, not null."""
        if not self.invertible:
            return super().subtract(wholes, parts)
        columns: list[Values] = []
        for column in self.state:
            kind = column.arrow
            # Arrow gives a difference of decimals one digit more, for which the type may have no room.
            room = pa.decimal256(75, kind.scale) if pa.types.is_decimal(kind) else kind
            less = pc.fill_null(parts[column.name].cast(room), pa.scalar(0, pa.int64()).cast(room))
            columns.append(pc.subtract(wholes[column.name].cast(room), less).cast(kind))
        return columns

    def _checked(self, totals: Values) -> Values:
        """Running sums in the type of results. Raises `LimitError` with the first row that does not fit, ``row``."""
        kind = self._sum_type
        units = whole_units(totals) if kind == pa.int64() else None
        if totals.type == kind or units is not None:
            return totals if units is None else units
        try:
            return totals.cast(kind)
        except pa.ArrowInvalid:
            whole, wider = kind == pa.int64(), "a decimal" if kind == pa.int64() else "a decimal with fewer digits"
            least, most = (-(2**63), 2**63 - 1) if whole else (1 - 10**38, 10**38 - 1)
            numbers = decimal_units(totals)
            raise LimitError(
                f"the sum of {self.aggregate.column!r} does not fit its type, {kind}: cast the column to {wider} "
                "or to double before the job",
                code="sum-overflow",
                aggregate=self.name,
                column=self.aggregate.column,
                row=int(np.flatnonzero((numbers > most) | (numbers < least))[0]),
            ) from None

    @property
    def _sum_type(self) -> pa.DataType:
        kind = self.input_type
        if pa.types.is_decimal(kind):
            return pa.decimal128(38, kind.scale)
        if kind == pa.uint64():
            return pa.decimal128(38, 0)
        return pa.int64() if pa.types.is_integer(kind) else pa.float64()

    @property
    def _running_type(self) -> pa.DataType:
        """That of sums in the state, which do not leave it: their result is checked."""
        kind = self.input_type
        if pa.types.is_integer(kind):
            return pa.decimal128(38, 0)
        if pa.types.is_decimal128(kind) and kind.precision > _ROOMY_PRECISION:
            return pa.decimal256(76, kind.scale)
        return self._sum_type


class Variance(Aggregate, frozen=True, tag="variance"):
    """Variance or standard deviation, of a sample or a population."""

    function: Literal["variance", "stddev"]
    population: bool = False

    def bind(self, name: str, schema: pa.Schema, event_time: str) -> BoundAggregate:
        kind = schema.field(self.input_column).type
        if not is_number(kind):
            raise unsupported_type(name, self, self.column, kind, "cast it to a number first")
        return BoundMoments(name, self, kind, self.population)


@dataclass(frozen=True)
class BoundMoments(BoundAggregate):
    """State: count, mean, and the sum of squared distances from it, which keeps digits that sums of squares lose."""

    population: bool

    @property
    def state(self) -> tuple[Column, ...]:
        name = self.name
        return (
            Column(f"{name}_count", "int64", "count"),
            Column(f"{name}_mean", "double"),
            Column(f"{name}_m2", "double"),
        )

    @property
    def groups(self) -> tuple[Group, ...]:
        return (Group(tuple(column.name for column in self.state), "moments"),)

    @property
    def result_type(self) -> pa.DataType:
        return pa.float64()

    @property
    def invertible(self) -> bool:
        return True

    def lift(self, events: pa.Table) -> list[Values]:
        values = events[self.aggregate.input_column]
        known = pc.fill_null(doubles(values), 0.0)
        # The distance of a value from itself: 0, but NaN for an infinite one.
        return [ones(values, events.num_rows), known, pc.multiply(pc.subtract(known, known), 0.0)]

    def finish(self, partials: pa.Table) -> Values:
        number, _, m2 = (partials[column.name] for column in self.state)
        degrees = number if self.population else pc.subtract(number, 1)
        found = pc.divide(m2, pc.if_else(pc.less_equal(degrees, 0), None, degrees).cast(pa.float64()))
        return pc.sqrt(found) if self.aggregate.function == "stddev" else found

    def subtract(self, wholes: pa.Table, parts: pa.Table) -> list[Values]:
        names = [column.name for column in self.state]
        number, mean, m2 = (pc.fill_null(wholes[name], 0).to_numpy() for name in names)
        gone, gone_mean, gone_m2 = (pc.fill_null(parts[name], 0).to_numpy() for name in names)
        left = number - gone
        safe = np.where(left == 0, 1, left)
        with np.errstate(all="ignore"):
            shift = (mean - gone_mean) * (gone / safe)
            rest = mean + shift
            squares = m2 - gone_m2 - (rest - gone_mean) ** 2 * (left * (gone / np.where(number == 0, 1, number)))
        empty = left == 0
        # Rounding may make it slightly negative.
        columns = (left, np.where(empty, 0.0, rest), np.where(empty, 0.0, np.maximum(squares, 0.0)))
        return [pa.array(column) for column in columns]
