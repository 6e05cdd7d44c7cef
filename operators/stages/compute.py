"""Columns and conditions of expressions, bound to the columns of a stream: `Compute` and `Filter`. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import pyarrow as pa

from tidestate.operators.describe.stages import Compute, Filter
from tidestate.operators.expressions.binding import BoundExpression, Zones, bind_condition, bind_expression
from tidestate.operators.plan.stages import StageResult
from tidestate.statestore.arrays import Flags, Values
from tidestate.statestore.missing_columns import missing_columns

S = TypeVar("S", Compute, Filter)


@dataclass(frozen=True)
class _BoundStage(Generic[S]):
    """The ``stage`` over columns of this ``schema``, to which it is bound again in each process, by these rules."""

    stage: S
    schema: pa.Schema
    zones: Zones

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.stage, self.schema, self.zones)

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns that its expressions name."""
        return self.stage.reads


class BoundCompute(_BoundStage[Compute]):
    """A stage that computes columns of each row."""

    @property
    def makes(self) -> tuple[str, ...]:
        """The columns that are computed, in their order."""
        return self.stage.makes

    @cached_property
    def columns(self) -> dict[str, BoundExpression]:
        """What each column is computed by."""
        return {name: bind_expression(tree, self.schema, self.zones) for name, tree in self.stage.columns.items()}

    def run(self, rows: pa.Table, passes: Flags | None = None) -> StageResult:
        """Rows with the computed columns behind the others; each sees the row as it was."""
        bound_columns = self.columns
        names = self.stage.after(rows.column_names)
        columns: dict[str, Values] = {
            name: bound_columns[name].evaluate(rows) if name in bound_columns else rows[name] for name in names
        }
        return StageResult(pa.table(columns))


class BoundFilter(_BoundStage[Filter]):
    """A stage that says which rows stay."""

    @property
    def makes(self) -> tuple[str, ...]:
        """None: rows stay as they are."""
        return ()

    @cached_property
    def condition(self) -> BoundExpression:
        """What says which rows stay."""
        return bind_condition(self.stage.condition, self.schema, self.zones)

    def run(self, rows: pa.Table, passes: Flags | None = None) -> StageResult:
        """All rows, and which of them stay: those whose condition is true, neither false nor null."""
        flags: Flags = self.condition.evaluate(rows).cast(pa.bool_()).fill_null(False).to_numpy(zero_copy_only=False)
        return StageResult(rows, passes=flags)


def bind_compute(stage: Compute, schema: pa.Schema, zones: Zones) -> tuple[BoundCompute, pa.Schema]:
    """The stage over a stream of this schema, and the schema after it. Raises `UsageError`."""
    names = stage.after(schema.names)
    if missing_names := [name for name in names if name not in stage.columns and name not in schema.names]:
        raise missing_columns("the stream lacks columns that are selected", missing_names, schema.names)
    bound = BoundCompute(stage, schema, zones)
    computed_fields = {name: pa.field(name, column.type) for name, column in bound.columns.items()}
    return bound, pa.schema(
        [computed_fields[name] if name in computed_fields else schema.field(name) for name in names]
    )


def bind_filter(stage: Filter, schema: pa.Schema, zones: Zones) -> tuple[BoundFilter, pa.Schema]:
    """The stage over a stream of this schema, which it leaves as it is. Raises `UsageError`."""
    bound = BoundFilter(stage, schema, zones)
    _ = bound.condition  # what cannot be bound is refused before anything runs
    return bound, schema
