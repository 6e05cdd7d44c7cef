"""Bound expressions that go along with a plan to other processes: as trees, which are bound again there. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from tidestate.operators.expressions.binding import BoundExpression, Zones, bind_condition, bind_expression
from tidestate.operators.expressions.tree import ExprNode
from tidestate.statestore.arrays import Values


@dataclass(frozen=True)
class TravellingExpression:
    """A tree over columns of this schema; ``is_condition``: it must be true, false or null. ``zones`` has the rules
    of those that it names.
    """

    tree: ExprNode
    schema: pa.Schema
    is_condition: bool = False
    zones: Zones = field(default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:
        return TravellingExpression, (self.tree, self.schema, self.is_condition, self.zones)

    @cached_property
    def bound(self) -> BoundExpression:
        """The tree, bound in this process. Raises `UsageError` as `bind_expression`."""
        return (bind_condition if self.is_condition else bind_expression)(self.tree, self.schema, self.zones)

    @property
    def type(self) -> pa.DataType:
        """The type of what it computes."""
        return self.bound.type

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads."""
        return self.bound.columns

    def evaluate(self, rows: pa.Table) -> Values:
        """One value for each row, of shape ``(rows,)``."""
        return self.bound.evaluate(rows)
