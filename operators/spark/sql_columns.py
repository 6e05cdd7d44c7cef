"""The columns that an operator sees, and what its aggregates are of, as Spark SQL computes them of the columns that
are read: what stages and expressions do to rows, in texts. Pure.

A row that an expectation refuses, or counts, is named, not judged: it goes through the stages as ever (`Stages.run`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa

from tidestate.operators.aggregates.aggregate import Partial
from tidestate.operators.expressions.binding import bind_expression
from tidestate.operators.expressions.spark_sql import NoSqlError, spark_sql, sql_type_of
from tidestate.operators.expressions.tree import ColumnNode
from tidestate.operators.plan.stages import BoundStage
from tidestate.operators.stages.compute import BoundCompute, BoundFilter
from tidestate.operators.stages.expectations import BoundExpectations


@dataclass(frozen=True)
class SqlColumns:
    """Columns by their names in the job, behind all stages."""

    names: Mapping[str, str]
    """By the name of a column in the job the one that it has in SQL, as it is read or as a stage has made it."""
    types: Mapping[str, str]
    """What Spark calls the type of each."""
    levels: tuple[Mapping[str, str], ...] = ()
    """The columns that are computed, by their names: each level of all that is there before it."""
    kept: tuple[str, ...] = ()
    """The columns with conditions, all of which hold for a row that is not left out. None of them is null."""
    unmet: tuple[str, ...] = ()
    """The columns with conditions, one of which holds for a row that misses an expectation. None of them is null."""


@dataclass(frozen=True)
class SqlValue:
    """What a partial is, and of what."""

    function: Literal["count", "sum", "min", "max"]
    text: str
    """Over the columns behind all stages; null where a row takes no part."""
    type: str
    """What Spark calls the type of ``text``."""


def staged_columns(steps: Sequence[BoundStage], types: Mapping[str, str]) -> SqlColumns:
    """The columns behind these stages, of those that are read, with ``types``. Raises `NoSqlError` where Spark SQL
    does not compute them.
    """
    writer = _StageWriter(SqlColumns({name: read_name(number) for number, name in enumerate(types)}, types))
    for step in steps:
        if isinstance(step, BoundCompute):
            writer.compute(step)
        elif isinstance(step, BoundFilter):
            writer.leave_out(step)
        elif isinstance(step, BoundExpectations):
            writer.expect(step)
        else:
            raise NoSqlError("its rows are decoded in the tasks")
    return writer.columns


def read_name(number: int) -> str:
    """What SQL calls a column that is read, by its place among these."""
    return f"r{number}"


@dataclass
class _StageWriter:
    """Goes through the stages. ``columns`` are those behind the stages so far. Raises `NoSqlError`."""

    columns: SqlColumns
    _count: int = 0

    def compute(self, step: BoundCompute) -> None:
        """The columns of a stage."""
        names, types = dict(self.columns.names), dict(self.columns.types)
        level = dict[str, str]()
        for name, bound in step.columns.items():
            if isinstance(bound.tree, ColumnNode):
                # As it is: a column that is only renamed can still stand for the one that was read.
                names[name], types[name] = self.columns.names[bound.tree.name], self.columns.types[bound.tree.name]
                continue
            with _naming(f"column {name}"):
                text = spark_sql(bound.tree, step.schema, self.columns.names)
                types[name] = sql_type_of(bound.type)
            names[name] = self._new("s")
            level[names[name]] = text
        after = step.stage.after(self.columns.names)
        seen = {name: names[name] for name in after}
        self._add(level, names=seen, types={name: types[name] for name in after})

    def leave_out(self, step: BoundFilter) -> None:
        """The condition of a stage."""
        with _naming("a filter"):
            text = spark_sql(step.stage.condition, step.schema, self.columns.names)
        name = self._new("f")
        self._add({name: f"coalesce({text}, false)"}, kept=(*self.columns.kept, name))

    def expect(self, step: BoundExpectations) -> None:
        """The conditions of expectations that stand side by side. Rows that were left out before are no events."""
        level, unmet = dict[str, str](), list(self.columns.unmet)
        for expectation in step.expectations:
            with _naming(f"expectation {expectation.name}"):
                text = spark_sql(expectation.condition, step.schema, self.columns.names)
            unmet.append(self._new("e"))
            level[unmet[-1]] = " AND ".join([*self.columns.kept, f"NOT coalesce({text}, false)"])
        self._add(level, unmet=tuple(unmet))

    def _new(self, letter: str) -> str:
        self._count += 1
        return f"{letter}{self._count}"

    def _add(self, level: Mapping[str, str], **changes: Any) -> None:
        levels = (*self.columns.levels, level) if level else self.columns.levels
        self.columns = replace(self.columns, levels=levels, **changes)


def partial_value(partial: Partial, schema: pa.Schema, columns: SqlColumns) -> SqlValue | None:
    """What a partial over columns of this ``schema`` is of, None if of whole rows. Raises `NoSqlError` where Spark
    SQL does not compute it.

    A count of some rows is a sum: it is null, not 0, where no row takes part, as all state columns are then.
    """
    with _naming(f"aggregate {partial.name}"):
        value = _value_of(partial, schema, columns)
        if partial.condition is None:
            return value
        condition = spark_sql(partial.condition, schema, columns.names)
    if value is None or partial.function == "count":
        one = "1" if value is None else f"CASE WHEN {value.text} IS NULL THEN 0 ELSE 1 END"
        # As an int its sum is one number, where that of a bigint is two halves.
        value = SqlValue("sum", one, "int")
    return replace(value, text=f"CASE WHEN {condition} THEN {value.text} END")


def _value_of(partial: Partial, schema: pa.Schema, columns: SqlColumns) -> SqlValue | None:
    if partial.tree is not None:
        kind = bind_expression(partial.tree, schema).type
        return SqlValue(partial.function, spark_sql(partial.tree, schema, columns.names), sql_type_of(kind))
    if partial.column is None:
        return None
    return SqlValue(partial.function, columns.names[partial.column], columns.types[partial.column])


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """A `NoSqlError` that is raised inside says of ``what``, as manifests have it."""
    try:
        yield
    except NoSqlError as error:
        raise NoSqlError(f"expression: {error} of {what} is not computed by Spark SQL") from None
