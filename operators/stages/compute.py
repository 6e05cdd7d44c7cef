"""Columns and conditions of expressions, bound to the columns of a stream: `Compute` and `Filter`. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from tidestate.operators.describe.stages import Compute, Filter
from tidestate.operators.expressions.binding import BoundExpression, bind_condition, bind_expression
from tidestate.operators.expressions.tree import zones_of
from tidestate.operators.plan.stages import StageResult
from tidestate.statestore.arrays import Flags, Values
from tidestate.statestore.errors import UsageError
from tidestate.statestore.missing_columns import missing_columns


@dataclass(frozen=True)
class BoundCompute:
    """The ``stage`` over columns of this ``schema``, to which it is bound again in each process."""

    stage: Compute
    schema: pa.Schema

    def __reduce__(self) -> tuple[Any, ...]:
        return BoundCompute, (self.stage, self.schema)

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns that its expressions name."""
        return self.stage.reads

    @property
    def makes(self) -> tuple[str, ...]:
        """The columns that are computed, in their order."""
        return self.stage.makes

    @cached_property
    def columns(self) -> dict[str, BoundExpression]:
        """What each column is computed by."""
        return {name: bind_expression(tree, self.schema) for name, tree in self.stage.columns.items()}

    def run(self, rows: pa.Table) -> StageResult:
        """Rows with the computed columns behind the others; each sees the row as it was."""
        made = self.columns
        names = self.stage.after(rows.column_names)
        columns: dict[str, Values] = {
            name: made[name].evaluate(rows) if name in made else rows[name] for name in names
        }
        return StageResult(pa.table(columns))


@dataclass(frozen=True)
class BoundFilter:
    """The ``stage`` over columns of this ``schema``, to which it is bound again in each process."""

    stage: Filter
    schema: pa.Schema

    def __reduce__(self) -> tuple[Any, ...]:
        return BoundFilter, (self.stage, self.schema)

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns that the condition names."""
        return self.stage.reads

    @property
    def makes(self) -> tuple[str, ...]:
        """None: rows stay as they are."""
        return ()

    @cached_property
    def condition(self) -> BoundExpression:
        """What says which rows stay."""
        return bind_condition(self.stage.condition, self.schema)

    def run(self, rows: pa.Table) -> StageResult:
        """All rows, and which of them stay: those whose condition is true, neither false nor null."""
        flags: Flags = self.condition.evaluate(rows).cast(pa.bool_()).fill_null(False).to_numpy(zero_copy_only=False)
        return StageResult(rows, passes=flags)


def bind_compute(stage: Compute, schema: pa.Schema) -> tuple[BoundCompute, pa.Schema]:
    """The stage over a stream of this schema, and the schema after it. Raises `UsageError`."""
    for tree in stage.columns.values():
        _check_zones(zones_of(tree))
    names = stage.after(schema.names)
    if missing := [name for name in names if name not in stage.columns and name not in schema.names]:
        raise missing_columns("the stream lacks columns that are selected", missing, schema.names)
    bound = BoundCompute(stage, schema)
    computed = {name: pa.field(name, column.type) for name, column in bound.columns.items()}
    return bound, pa.schema([computed[name] if name in computed else schema.field(name) for name in names])


def bind_filter(stage: Filter, schema: pa.Schema) -> tuple[BoundFilter, pa.Schema]:
    """The stage over a stream of this schema, which it leaves as it is. Raises `UsageError`."""
    _check_zones(zones_of(stage.condition))
    bound = BoundFilter(stage, schema)
    _ = bound.condition  # what cannot be bound is refused before anything runs
    return bound, schema


def _check_zones(zones: tuple[str, ...]) -> None:
    """The rules of a zone are not in the manifest yet, and hosts may differ about them."""
    if others := [zone for zone in zones if zone != "UTC"]:
        raise UsageError(
            "stages of a stream know no zone but UTC so far: compute the column in the input",
            code="time-zone",
            found=others,
        )
