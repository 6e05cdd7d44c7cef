"""Aggregates that select one event of a window and return a column of it: first, latest, arg-min and so on.

Events with a null in the column, or in the column that orders them, are ignored. Of equal events `first`, `earliest`,
`arg_min` and `arg_max` select the one that arrived first, `last` and `latest` the one that arrived last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.aggregates.aggregate import (
    Aggregate,
    BoundAggregate,
    comparable_type,
    comparables,
    kept_type,
    needs_to_compare,
)
from tidestate.statestore.arrays import Values
from tidestate.statestore.spec.arrowtypes import type_text
from tidestate.statestore.spec.tables import Column, Group

COMBINER_BY_FUNCTION = {
    "first": "arg_min",
    "earliest": "arg_min",
    "arg_min": "arg_min",
    "arg_max": "arg_max",
    "last": "arg_max_newest",
    "latest": "arg_max_newest",
}


class Choice(Aggregate, frozen=True, tag="choice"):
    """The value of the event selected by a column, by default the event time."""

    function: Literal["first", "last", "earliest", "latest", "arg_min", "arg_max"]
    by: str | None = None

    def bind(self, name: str, schema: pa.Schema, event_time: str) -> BoundAggregate:
        kind = kept_type(name, self, self.input_column, schema)
        by = self.by or event_time
        return BoundChoice(name, self, kind, by, kept_type(name, self, by, schema, sorts=True))


@dataclass(frozen=True)
class BoundChoice(BoundAggregate):
    """State: the value, and the value of ``by``."""

    by: str
    by_type: pa.DataType

    @property
    def needs(self) -> tuple[str, ...]:
        return needs_to_compare(self.by_type)

    @property
    def state(self) -> tuple[Column, ...]:
        return (
            Column(f"{self.name}_by", type_text(comparable_type(self.by_type))),
            Column(self.name, type_text(self.input_type), "value"),
        )

    @property
    def groups(self) -> tuple[Group, ...]:
        by, value = self.state
        return (Group((by.name, value.name), COMBINER_BY_FUNCTION[self.aggregate.function], by=by.name),)

    @property
    def result_type(self) -> pa.DataType:
        return self.input_type

    def lift(self, events: pa.Table) -> list[Values]:
        by, values = comparables(events[self.by]), events[self.aggregate.input_column]
        if not by.null_count and not values.null_count:
            return [by, values]
        known = pc.and_(by.is_valid(), values.is_valid())
        return [pc.if_else(known, column, pa.scalar(None, column.type)) for column in (by, values)]

    def finish(self, partials: pa.Table) -> Values:
        return partials[self.name]
