"""Aggregates of distinct values: sets, their sizes, counts by value, and the first n in an order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.aggregates.aggregate import (
    Aggregate,
    BoundAggregate,
    canonical_zero,
    comparable_type,
    comparables,
    filled,
    kept_type,
    needs_to_compare,
    singles,
    values_per_row,
)
from tidestate.statestore.arrays import Values
from tidestate.statestore.spec.arrowtypes import type_text
from tidestate.statestore.spec.lists import flat, nested
from tidestate.statestore.spec.tables import Column, Group


class Distinct(Aggregate, frozen=True, tag="distinct"):
    """Aggregates that keep each value once."""

    function: Literal["set", "count_distinct", "count_by_value"]

    def bind(self, name: str, schema: pa.Schema, event_time: str) -> BoundAggregate:
        return BoundDistinct(name, self, kept_type(name, self, self.input_column, schema, sorts=True))


@dataclass(frozen=True)
class BoundDistinct(BoundAggregate):
    """State: a sorted list of the distinct values; for counts by value, also a list of the counts."""

    @property
    def needs(self) -> tuple[str, ...]:
        return needs_to_compare(self.input_type)

    @property
    def state(self) -> tuple[Column, ...]:
        name = self.name if self.aggregate.function == "set" else f"{self.name}_values"
        values = Column(name, type_text(pa.list_(comparable_type(self.input_type))), "value")
        if self.aggregate.function in ("set", "count_distinct"):
            return (values,)
        return (values, Column(f"{self.name}_counts", str(pa.list_(pa.int64()))))

    @property
    def groups(self) -> tuple[Group, ...]:
        names = tuple(column.name for column in self.state)
        return (Group(names, "union" if len(names) == 1 else "tally"),)

    @property
    def result_type(self) -> pa.DataType:
        if self.aggregate.function == "count_distinct":
            return pa.int64()
        return pa.list_(self.input_type) if self.aggregate.function == "set" else pa.map_(self.input_type, pa.int64())

    def lift(self, events: pa.Table) -> list[Values]:
        values = canonical_zero(comparables(events[self.aggregate.input_column]))
        lists: list[Values] = [singles(values, values.is_valid())]
        if self.aggregate.function not in ("set", "count_distinct"):
            lists.append(singles(pa.array(np.ones(len(values), np.int64)), values.is_valid()))
        return lists

    def finish(self, partials: pa.Table) -> Values:
        lists = partials[self.state[0].name]
        if self.aggregate.function == "set":
            return filled(lists).cast(self.result_type)
        if self.aggregate.function == "count_distinct":
            return pc.fill_null(pc.list_value_length(lists), 0).cast(pa.int64())
        keys, owners = flat(lists)
        counts, _ = flat(partials[self.state[1].name])
        offsets = np.append(0, np.cumsum(values_per_row(owners, partials.num_rows))).astype(np.int32)
        return pa.MapArray.from_arrays(pa.array(offsets), keys.cast(self.input_type), counts)


class MostCommon(Aggregate, frozen=True, tag="most_common"):
    """The values that occur most often."""

    function: Literal["most_common"]
    n: int = 1

    def bind(self, name: str, schema: pa.Schema, event_time: str) -> BoundAggregate:
        return BoundMostCommon(name, self, kept_type(name, self, self.input_column, schema, sorts=True), self.n)


@dataclass(frozen=True)
class BoundMostCommon(BoundDistinct):
    """State: as for counts by value."""

    n: int

    @property
    def needs(self) -> tuple[str, ...]:
        return (*super().needs, "most-common/1")

    @property
    def result_type(self) -> pa.DataType:
        return pa.list_(pa.struct([("value", self.input_type), ("count", pa.int64())]))

    def finish(self, partials: pa.Table) -> Values:
        """As in `BoundAggregate`: stored values ascend, so a stable sort by count leaves equals in their order."""
        values, owners = flat(partials[self.state[0].name])
        counts = flat(partials[self.state[1].name])[0].to_numpy(zero_copy_only=False)
        order = np.lexsort((-counts, owners))
        lengths = values_per_row(owners, partials.num_rows)
        firsts = np.append(0, np.cumsum(lengths))[:-1]
        first_n = order[np.arange(len(order)) - firsts[owners] < self.n]
        columns = [values.take(pa.array(first_n)).cast(self.input_type), pa.array(counts[first_n])]
        pairs = pa.StructArray.from_arrays(columns, ["value", "count"])
        return nested(pairs, np.minimum(lengths, self.n), self.result_type)


class Top(Aggregate, frozen=True, tag="top"):
    """The first n values in an order."""

    function: Literal["top_n"]
    n: int = 1
    by: str | None = None
    largest: bool = True

    def bind(self, name: str, schema: pa.Schema, event_time: str) -> BoundAggregate:
        kind = kept_type(name, self, self.input_column, schema, sorts=self.by is None)
        by_type = kind if self.by is None else kept_type(name, self, self.by, schema, sorts=True)
        return BoundTop(name, self, kind, self.n, self.by, by_type, self.largest)


@dataclass(frozen=True)
class BoundTop(BoundAggregate):
    """State: at most n values, best first, and the values of ``by``."""

    n: int
    by: str | None
    by_type: pa.DataType
    largest: bool

    @property
    def needs(self) -> tuple[str, ...]:
        return needs_to_compare(self.by_type)

    @property
    def state(self) -> tuple[Column, ...]:
        by = type_text(pa.list_(comparable_type(self.by_type)))
        if self.by is None:
            return (Column(self.name, by, "value"),)
        return (Column(self.name, type_text(self.result_type), "value"), Column(f"{self.name}_by", by))

    @property
    def groups(self) -> tuple[Group, ...]:
        names = tuple(column.name for column in self.state)
        return (Group(names, "largest" if self.largest else "smallest", by=names[-1], limit=self.n),)

    @property
    def result_type(self) -> pa.DataType:
        return pa.list_(self.input_type)

    def lift(self, events: pa.Table) -> list[Values]:
        values = events[self.aggregate.input_column]
        if self.by is None:
            return [singles(comparables(values), values.is_valid())]
        known = pc.and_(values.is_valid(), events[self.by].is_valid())
        return [singles(values, known), singles(comparables(events[self.by]), known)]

    def finish(self, partials: pa.Table) -> Values:
        return filled(partials[self.name]).cast(self.result_type)
