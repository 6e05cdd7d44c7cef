"""Stages as an operator runs them: the one place where rows as they arrive become rows as the operator sees them.
Pure.

`classify` calls it, and by that every runner does: tasks of Spark, the driver with small batches, one process, the
harness, operators by hand. ::

    rows as they arrive ── stage ── stage ──► rows that the operator judges
                             │        └─────► left out by a condition
                             └──────────────► the late ledger, with the reason of the stage

The late ledger has of each row the columns that the operator sees, and beside them those that the stages read, as
they arrived (`Stages.ledger_names`). So a row comes back from it in the form in which it came, and runs through the
stages that the job has by then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from tidestate.statestore.arrays import Flags


@dataclass(frozen=True)
class StageResult:
    """What one stage makes of rows. ``flags``: which of the rows it was given go on, None for all of them; ``rows``
    are these, with the columns after the stage. The others are in the late ledger for the ``reason``.
    """

    rows: pa.Table
    flags: Flags | None = None
    reason: str = ""
    passes: Flags | None = None
    """Of ``rows``, which pass a condition; None for all. The others move the watermark, and are left out then."""


class BoundStage(Protocol):
    """A stage that is bound to the types of its columns. It is pickled to tasks."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns that it reads, by their names before it."""

    @property
    def makes(self) -> tuple[str, ...]:
        """The columns that it adds, or puts others in the place of."""

    def run(self, rows: pa.Table) -> StageResult:
        """``rows`` with the columns after the stage, in their order. No value may make it raise."""


@dataclass(frozen=True)
class RefusedRows:
    """Rows that a stage refused, as they arrived but under the names of the ledger, and why."""

    rows: pa.Table
    reason: str


@dataclass(frozen=True)
class StagedRows:
    """Rows after all stages, with the columns of `Stages.ledger_names` beside them. ``flags``: which of the rows that
    arrived these are, None for all of them. ``refusals`` are in the order of the stages.
    """

    rows: pa.Table
    flags: Flags | None = None
    refusals: tuple[RefusedRows, ...] = ()
    passes: Flags | None = None
    """Which of ``rows`` pass all conditions; None for all of them. Shape ``(rows,)``."""


@dataclass(frozen=True)
class Stages:
    """The stages of an operator's input, with what they read.

    ``read_schema``: the columns that are read of the stream, with the types of the first input. ``ledger_names``: of
    those columns that the operator does not see as they arrived, the name that they have in the ledger: their own, or
    ``received_value`` where the operator has another column ``value``.
    """

    read_schema: pa.Schema
    steps: tuple[BoundStage, ...]
    ledger_names: tuple[tuple[str, str], ...]

    @property
    def ledger_fields(self) -> list[pa.Field]:
        """The columns of the late ledger beside those that the operator sees."""
        return [self.read_schema.field(name).with_name(ledger_name) for name, ledger_name in self.ledger_names]

    def run(self, arrivals: pa.Table) -> StagedRows:
        """Rows with the columns of `read_schema`, through all stages."""
        names = dict(self.ledger_names)
        rows, ledger_rows = (
            arrivals,
            arrivals.rename_columns([names.get(name, name) for name in arrivals.column_names]),
        )
        row_numbers, refusals = np.arange(arrivals.num_rows), list[RefusedRows]()
        passes: Flags | None = None
        for step in self.steps:
            result = step.run(rows)
            rows = result.rows
            if result.passes is not None:
                passes = result.passes if passes is None else passes & result.passes
            if result.flags is not None:
                passes = None if passes is None else passes[result.flags]
                refused_rows = ledger_rows.take(pa.array(row_numbers[~result.flags]))
                refusals.append(RefusedRows(refused_rows, result.reason))
                row_numbers = row_numbers[result.flags]
        flags = None
        if refusals:
            flags = np.zeros(arrivals.num_rows, bool)
            flags[row_numbers] = True
            ledger_rows = ledger_rows.filter(pa.array(flags))
        for ledger_name in names.values():
            rows = _with_column(rows, ledger_name, ledger_rows[ledger_name])
        return StagedRows(rows, flags, tuple(refusals), passes)

    def can_run(self, rows: pa.Table) -> Flags:
        """Which ``rows`` of the late ledger have what all stages read, as it arrived, so that they can run through
        these. The others were refused next to the state, or had other stages, and have the columns that the operator
        saw alone. Shape ``(rows,)``.
        """
        names, flags = dict(self.ledger_names), np.ones(rows.num_rows, bool)
        for name in {name for step in self.steps for name in step.reads}:
            column = _ledger_column(rows, name, names.get(name, name))
            flags &= np.zeros(rows.num_rows, bool) if column is None else column.is_valid().to_numpy()
        return flags

    def without_values_as_arrived(self, rows: pa.Table) -> pa.Table:
        """``rows`` of the late ledger that come back as the operator saw them: nothing as it arrived is in them."""
        for _, name in self.ledger_names:
            if name in rows.column_names:
                rows = _with_column(rows, name, pa.chunked_array([pa.nulls(rows.num_rows, rows[name].type)]))
        return rows

    def arrivals(self, rows: pa.Table) -> pa.Table:
        """Rows of the late ledger, or rows as they arrive, with the columns of `read_schema` that they have."""
        names = dict(self.ledger_names)
        columns = {
            name: column
            for name in self.read_schema.names
            if (column := _ledger_column(rows, name, names.get(name, name))) is not None
        }
        return pa.table(columns)

    def without_arrivals(self, rows: pa.Table) -> pa.Table:
        """``rows`` without the columns that only the late ledger has."""
        return rows.drop_columns([name for _, name in self.ledger_names if name in rows.column_names])


def _ledger_column(rows: pa.Table, name: str, ledger_name: str) -> pa.ChunkedArray | None:
    names = [column for column in (ledger_name, name) if column in rows.column_names]
    return rows[names[0]] if names else None


def _with_column(rows: pa.Table, name: str, column: pa.ChunkedArray) -> pa.Table:
    index = rows.schema.get_field_index(name)
    return rows.append_column(name, column) if index < 0 else rows.set_column(index, name, column)
