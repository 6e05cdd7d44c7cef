"""Aggregates that keep every value of a window: lists in the order of arrival, sorted lists, exact quantiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.aggregates.aggregate import (
    Aggregate,
    BoundAggregate,
    comparables,
    doubles,
    filled,
    is_number,
    kept_type,
    needs_to_compare,
    singles,
    unsupported_type,
    values_per_row,
)
from tidestate.statestore.arrays import Numbers, Values
from tidestate.statestore.spec.arrowtypes import type_text
from tidestate.statestore.spec.lists import by_value, flat, nested, whole
from tidestate.statestore.spec.quotients import between_decimals
from tidestate.statestore.spec.tables import Column

Interpolation = Literal["linear", "lower", "higher", "nearest"]


class ListAggregate(Aggregate, frozen=True, tag="list"):
    """A list of all values, in the order of arrival or sorted."""

    function: Literal["list", "sorted_list"]
    by: str | None = None
    descending: bool | None = None

    def bind(self, name: str, schema: pa.Schema, event_time: str) -> BoundAggregate:
        kind = kept_type(
            name, self, self.input_column, schema, sorts=self.function == "sorted_list" and self.by is None
        )
        by_type = kind if self.by is None else kept_type(name, self, self.by, schema, sorts=True)
        return BoundKept(name, self, kind, self.by, by_type, self.descending)


@dataclass(frozen=True)
class BoundKept(BoundAggregate):
    """State: the values in the order of arrival, and the values that sort them when the window fires."""

    by: str | None
    by_type: pa.DataType
    descending: bool | None

    @property
    def needs(self) -> tuple[str, ...]:
        return () if self.descending is None else needs_to_compare(self.by_type)

    @property
    def state(self) -> tuple[Column, ...]:
        values = Column(self.name, type_text(self.result_type), "value", "append")
        if self.by is None:
            return (values,)
        return (values, Column(f"{self.name}_by", type_text(pa.list_(self.by_type)), "", "append"))

    @property
    def result_type(self) -> pa.DataType:
        return pa.list_(self.input_type)

    def lift(self, events: pa.Table) -> list[Values]:
        values = events[self.aggregate.input_column]
        if self.by is None:
            return [singles(values, values.is_valid())]
        known = pc.and_(values.is_valid(), events[self.by].is_valid())
        return [singles(values, known), singles(events[self.by], known)]

    def finish(self, partials: pa.Table) -> Values:
        if self.descending is None:
            return filled(partials[self.name])
        values, owners = flat(partials[self.name])
        by = values if self.by is None else flat(partials[self.state[1].name])[0]
        order = by_value(whole(comparables(by)), owners, descending=self.descending)
        return nested(values.take(pa.array(order)), values_per_row(owners, partials.num_rows), self.result_type)


class Quantile(Aggregate, frozen=True, tag="quantile"):
    """A quantile of all values."""

    function: Literal["quantile", "median"]
    q: float = 0.5
    interpolation: Interpolation = "linear"

    def bind(self, name: str, schema: pa.Schema, event_time: str) -> BoundAggregate:
        """As in `Aggregate`; linear interpolation needs numbers."""
        kind = kept_type(name, self, self.input_column, schema, sorts=True)
        if self.interpolation == "linear" and not is_number(kind):
            raise unsupported_type(
                name, self, self.column, kind, "it is not numeric; interpolation='lower' returns one of its values"
            )
        return BoundQuantile(name, self, kind, self.q, self.interpolation)


@dataclass(frozen=True)
class BoundQuantile(BoundAggregate):
    """State: a list of all values."""

    q: float
    interpolation: Interpolation

    @property
    def needs(self) -> tuple[str, ...]:
        return needs_to_compare(self.input_type)

    @property
    def state(self) -> tuple[Column, ...]:
        return (Column(f"{self.name}_values", type_text(pa.list_(self.input_type)), "", "append"),)

    @property
    def result_type(self) -> pa.DataType:
        """Double with linear interpolation, else the column's type."""
        return pa.float64() if self.interpolation == "linear" else self.input_type

    def lift(self, events: pa.Table) -> list[Values]:
        values = events[self.aggregate.input_column]
        return [singles(values, values.is_valid())]

    def finish(self, partials: pa.Table) -> Values:
        """As in `BoundAggregate`: the position of each quantile in the values sorted by window and value."""
        values, owners = flat(partials[self.state[0].name])
        rows = partials.num_rows
        ordered = values.take(pa.array(by_value(whole(comparables(values)), owners)))
        starts = np.append(0, np.cumsum(values_per_row(owners, rows)))[:-1]
        known = values_per_row(owners, rows)
        if pa.types.is_floating(values.type):
            numbers = values_per_row(owners[~np.asarray(pc.is_nan(values))], rows)
            # NaN is last: position 0 has one only if there is no number.
            known = np.where(numbers == 0, np.minimum(known, 1), numbers)
        return self._between(ordered, starts, known)

    def _between(self, ordered: pa.Array, starts: Numbers, known: Numbers) -> Values:
        exact = self.q * np.maximum(known - 1, 0)
        low, high = np.floor(exact).astype(np.int64), np.ceil(exact).astype(np.int64)
        empty = known == 0
        if self.interpolation != "linear":
            place = {"lower": low, "higher": high, "nearest": np.rint(exact).astype(np.int64)}[self.interpolation]
            return ordered.take(pa.array(starts + place, mask=empty))
        if pa.types.is_decimal(ordered.type):
            return between_decimals(ordered, starts, known, self.q)
        pair = [doubles(ordered).take(pa.array(starts + place, mask=empty)) for place in (low, high)]
        least, most = (pc.fill_null(values, 0.0).to_numpy() for values in pair)
        with np.errstate(all="ignore"):
            between = np.where(least == most, least, least + (most - least) * (exact - low))
        return pa.array(np.where(low == high, least, between), mask=empty)
