"""Aggregates of rows that meet a condition, and of values that are computed of rows.

A row that is left out has the partial of no row: null in every state column, which no combiner changes anything by.
So it is the same whether rows are left out before they are lifted or after, in any windows, and rows that take others
back are left out with these, as both have the same values. Pure.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from tidestate.operators.aggregates.aggregate import Aggregate, BoundAggregate, BoundOver, Partial
from tidestate.operators.aggregates.custom import spread
from tidestate.operators.expressions.binding import BoundExpression, Zones, bind_condition, bind_expression
from tidestate.operators.expressions.printing import expression_text
from tidestate.operators.expressions.tree import ExprNode, columns_needed
from tidestate.statestore.arrays import Flags, Values
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.tables import Column, Group

_NAME_LETTERS = 200
"""Of the text of an expression, as the name of the column that it computes: errors print it."""


@dataclass(frozen=True)
class Expressions:
    """The expressions of an ``aggregate`` over columns of ``schema``, bound again in each process. ``computed``: by
    the field of the aggregate, ``column`` or ``by``, what the column that is computed for it is called, and its tree;
    ``zones`` has the rules of those that they name.
    """

    aggregate: Aggregate
    schema: pa.Schema
    computed: tuple[tuple[str, str, ExprNode], ...]
    zones: Zones

    def __reduce__(self) -> tuple[Any, ...]:
        return Expressions, (self.aggregate, self.schema, self.computed, self.zones)

    @cached_property
    def columns(self) -> dict[str, BoundExpression]:
        """What each computed column is computed by."""
        return {name: bind_expression(tree, self.schema, self.zones) for _, name, tree in self.computed}

    @cached_property
    def condition(self) -> BoundExpression | None:
        """What says which rows take part; None for all."""
        tree = self.aggregate.condition
        return None if tree is None else bind_condition(tree, self.schema, self.zones)

    @property
    def plain(self) -> Aggregate:
        """The aggregate as one of columns, of all rows."""
        names: dict[str, Any] = {field: name for field, name, _ in self.computed}
        return replace(self.aggregate, condition=None, expression=None, expression_by=None, **names)

    def types_after(self, types: pa.Schema) -> pa.Schema:
        """The columns of the input, and those that are computed for it."""
        return pa.schema([*types, *(pa.field(name, bound.type) for name, bound in self.columns.items())])

    def rows(self, events: pa.Table) -> pa.Table:
        """Events with the computed columns."""
        for name, bound in self.columns.items():
            events = events.append_column(name, bound.evaluate(events))
        return events

    def flags(self, events: pa.Table) -> Flags:
        """Which events take part: those for which the condition is true, neither false nor null."""
        if self.condition is None:
            return np.ones(events.num_rows, bool)
        holds = self.condition.evaluate(events).cast(pa.bool_())
        return np.asarray(pc.fill_null(holds, False))


def expressions_of(name: str, aggregate: Aggregate, types: pa.Schema, zones: Zones) -> Expressions:
    """The expressions of the aggregate ``name``, over an input with these columns. Raises `UsageError`."""
    taken, computed = set(types.names), list[tuple[str, str, ExprNode]]()
    for field, tree in (("column", aggregate.expression), ("by", aggregate.expression_by)):
        if tree is not None:
            column = expression_text(tree)[:_NAME_LETTERS]
            while column in taken:
                column += " "
            taken.add(column)
            computed.append((field, column, tree))
    read_names = {column for tree in aggregate.trees for column in columns_needed(tree)}
    schema = pa.schema([column for column in types if column.name in read_names])
    bound = Expressions(aggregate, schema, tuple(computed), zones)
    try:
        _ = bound.columns, bound.condition
    except UsageError as error:
        raise UsageError(error.message, code=error.code, **{**error.context, "aggregate": name}) from None
    return bound


@dataclass(frozen=True)
class BoundExpressed(BoundOver):
    """State: that of the aggregate of columns, ``inner``, which sees the rows that take part alone."""

    expressions: Expressions

    @property
    def state(self) -> tuple[Column, ...]:
        return self.inner.state

    @property
    def groups(self) -> tuple[Group, ...]:
        return self.inner.groups

    @property
    def stores_result(self) -> bool:
        return self.inner.stores_result

    @property
    def partials(self) -> tuple[Partial, ...] | None:
        """As in `BoundAggregate`, with what computes their columns and says which rows take part."""
        parts = self.inner.partials
        if parts is None:
            return None
        trees = {name: tree for _, name, tree in self.expressions.computed}
        condition = self.aggregate.condition
        return tuple(
            dataclasses.replace(part, tree=trees.get(part.column or ""), condition=condition) for part in parts
        )

    @property
    def invertible(self) -> bool:
        return self.inner.invertible

    def lift(self, events: pa.Table) -> list[Values]:
        """As in `BoundAggregate`; null where a row takes no part."""
        flags = self.expressions.flags(events)
        if flags.all():
            return self.inner.lift(self.expressions.rows(events))
        if self.inner.partials is None:
            # A sketch or a function of the user's would do work for rows that take no part, or fail at them.
            lifted = self.inner.lift(self.expressions.rows(events.filter(pa.array(flags))))
            return [spread(column, flags) for column in lifted]
        holds = pa.array(flags)
        columns = self.inner.lift(self.expressions.rows(events))
        return [pc.if_else(holds, column, pa.scalar(None, column.type)) for column in columns]

    def finish(self, partials: pa.Table) -> Values:
        return self.inner.finish(partials)

    def subtract(self, wholes: pa.Table, parts: pa.Table) -> list[Values]:
        return self.inner.subtract(wholes, parts)


def expressed(bound: BoundAggregate, expressions: Expressions) -> BoundAggregate:
    """The aggregate with its expressions; as it is where it has none. It goes around rows with signs, so that one
    which takes no part is in no list of them.
    """
    aggregate = expressions.aggregate
    if not aggregate.trees:
        return bound
    return BoundExpressed(bound.name, aggregate, bound.input_type, bound, expressions)
