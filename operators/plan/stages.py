"""Stages as an operator runs them: the one place where rows as they arrive become rows as the operator sees them.
Pure.

`classify` calls it, and by that every runner does: tasks of Spark, the driver with small batches, one process, the
harness, operators by hand. ::

    rows as they arrive ── stage ── stage ──► rows that the operator judges
                             │        └─────► left out by a condition
                             └──────────────► the late ledger, with the reason of the stage

A condition decides which rows go on, and the others move the watermark all the same. They are judged for that alone,
so they stay in the table, with a flag, until a generator that goes by the order of rows has read them.

The late ledger has of each row the columns that the operator sees, and beside them those that the stages read, as
they arrived (`Stages.ledger_names`). So a row comes back from it in the form in which it came, and runs through the
stages that the job has by then. `COMPUTED` says of each row which of its columns did not arrive like that; it is null
for a row that was refused next to the state, where only what the operator sees is known (`rows_put_back`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.statestore.arrays import Flags, Values, with_column
from tidestate.statestore.spec.lists import nested

MISSED_EXPECTATIONS = "expectations"
"""The column of the late ledger with the names of the expectations that a row does not meet, sorted; null for a row
that is there for another reason.
"""
COMPUTED = "computed_columns"
"""The column of the late ledger with the names of the columns that stages have made, with commas between them; null
for a row that has nothing as it arrived.
"""


@dataclass(frozen=True)
class StageResult:
    """What one stage makes of rows. ``flags``: which of the rows it was given go on, None for all of them; ``rows``
    are these, with the columns after the stage. The others are refused for the ``reason``: they are in the late
    ledger, but for those that a condition had left out before.
    """

    rows: pa.Table
    flags: Flags | None = None
    reason: str = ""
    passes: Flags | None = None
    """Of ``rows``, which pass a condition; None for all. The others move the watermark, and are left out then."""
    violations: Mapping[str, Flags] = field(default_factory=dict)
    """Which of the rows that it was given do not meet an expectation, by its name, of those that any row misses."""


class BoundStage(Protocol):
    """A stage that is bound to the types of its columns. It is pickled to tasks."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns that it reads, by their names before it."""

    @property
    def makes(self) -> tuple[str, ...]:
        """The columns that it adds, or puts others in the place of."""

    def run(self, rows: pa.Table, passes: Flags | None = None) -> StageResult:
        """``rows`` with the columns after the stage, in their order. ``passes``: which of them have met all
        conditions before; None for all. No value may make it raise.
        """


@dataclass(frozen=True)
class Expectation:
    """What the driver knows of an expectation, with its ``condition`` as text. ``fails``: whether a single row that
    misses it fails the batch; ``at_most``: the share of rows that may; None for any.
    """

    name: str
    condition: str
    fails: bool
    at_most: float | None


@dataclass(frozen=True)
class StagedRows:
    """Rows after all stages, with the columns of `Stages.ledger_names` beside them. ``flags``: which of the rows that
    arrived these are, None for all of them. ``refusals``: the rows that each stage refused, as they arrived but under
    the names of the ledger, and why; in the order of the stages.
    """

    rows: pa.Table
    flags: Flags | None = None
    refusals: tuple[tuple[pa.Table, str], ...] = ()
    passes: Flags | None = None
    """Which of ``rows`` pass all conditions; None for all of them. Shape ``(rows,)``."""
    violations: Mapping[str, int] = field(default_factory=dict)
    """How many rows do not meet an expectation, by its name, of those that any row misses."""


@dataclass(frozen=True)
class Stages:
    """The stages of an operator's input, with what they read."""

    read_schema: pa.Schema
    """The columns that are read of the stream, with the types of the first input."""
    steps: tuple[BoundStage, ...]
    """What happens to the rows, in this order."""
    ledger_names: tuple[tuple[str, str], ...]
    """Of those columns that the operator does not see as they arrived, the name that they have in the ledger: their
    own, or `received_name` where the operator has another column of the name.
    """
    needed_names: tuple[str, ...]
    """Of the columns that arrive, those that stages read."""
    is_marked: bool = True
    """Whether rows of the ledger have `COMPUTED`. What is decoded alone goes without: texts that are null say it."""
    expectations: tuple[Expectation, ...] = ()
    """Those among the stages, in their order."""

    @property
    def ledger_fields(self) -> list[pa.Field]:
        """The columns of the late ledger beside those that the operator sees."""
        missed_field = [pa.field(MISSED_EXPECTATIONS, pa.list_(pa.string()))] if self.expectations else []
        return [*self.arrival_fields, *missed_field]

    @property
    def arrival_fields(self) -> list[pa.Field]:
        """The columns of the late ledger that say how rows arrived."""
        arrived_fields = [
            self.read_schema.field(name).with_name(ledger_name) for name, ledger_name in self.ledger_names
        ]
        return [*arrived_fields, *([pa.field(COMPUTED, pa.string())] if self.is_marked else [])]

    def computed_of(self, rejected: pa.Table) -> Values:
        """The column `COMPUTED` of rows on their way into the ledger: those that come from where rows are read have
        the columns as they arrived, those that were refused next to the state do not.
        """
        if COMPUTED in rejected.column_names:
            return rejected[COMPUTED]
        count = rejected.num_rows
        if any(name not in rejected.column_names for _, name in self.ledger_names):
            return pa.nulls(count, pa.string())
        made_names = sorted({name for step in self.steps for name in step.makes})
        return pa.array([",".join(made_names)], pa.string()).take(pa.array(np.zeros(count, np.int64)))

    def run(self, arrivals: pa.Table) -> StagedRows:
        """Rows with the columns of `read_schema`, through all stages."""
        names = dict(self.ledger_names)
        rows = arrivals
        ledger_rows = arrivals.rename_columns([names.get(name, name) for name in arrivals.column_names])
        row_numbers, refusals = np.arange(arrivals.num_rows), list[tuple[pa.Table, str]]()
        passes: Flags | None = None
        violations = dict[str, int]()
        for step in self.steps:
            result = step.run(rows, passes)
            rows, violations_of_step = result.rows, result.violations
            violations |= {name: int(np.count_nonzero(flags)) for name, flags in violations_of_step.items()}
            if result.passes is not None:
                passes = result.passes if passes is None else passes & result.passes
            if result.flags is not None:
                is_refused = ~result.flags
                if passes is not None:
                    # A row that was left out before is no event, whatever a later stage makes of it.
                    passes, is_refused = passes[result.flags], is_refused & passes
                if is_refused.any():
                    refused_rows = ledger_rows.take(pa.array(row_numbers[is_refused]))
                    if violations_of_step:
                        names_missed = _names_missed(violations_of_step, is_refused)
                        refused_rows = with_column(refused_rows, MISSED_EXPECTATIONS, names_missed)
                    refusals.append((refused_rows, result.reason))
                row_numbers = row_numbers[result.flags]
        flags = None
        if len(row_numbers) < arrivals.num_rows:
            flags = np.zeros(arrivals.num_rows, bool)
            flags[row_numbers] = True
            ledger_rows = ledger_rows.filter(pa.array(flags))
        for ledger_name in names.values():
            rows = with_column(rows, ledger_name, ledger_rows[ledger_name])
        if passes is not None and passes.all():
            passes = None
        return StagedRows(rows, flags, tuple(refusals), passes, violations)

    def can_run(self, rows: pa.Table) -> Flags:
        """Which ``rows`` to be put back have what all stages read, as it arrived: of the ledger those that say so, of
        given rows all, or none if a column is not there. Shape ``(rows,)``.
        """
        if COMPUTED in rows.column_names:
            return rows[COMPUTED].is_valid().to_numpy()
        names, flags = dict(self.ledger_names), np.ones(rows.num_rows, bool)
        for name in self.needed_names:
            column = _ledger_column(rows, name, names.get(name, name))
            if column is None:
                return np.zeros(rows.num_rows, bool)
            flags &= True if self.is_marked else column.is_valid().to_numpy()
        return flags

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
        missed_names = [MISSED_EXPECTATIONS] if self.expectations else []
        ledger_names = [*(name for _, name in self.ledger_names), COMPUTED, *missed_names]
        return rows.drop_columns([name for name in ledger_names if name in rows.column_names])


def rows_put_back(
    stages: Stages | None, ledger: pa.Table, written: pa.Table, read_names: Collection[str]
) -> tuple[pa.Table, Flags]:
    """Rows of the late ledger as the stages of now can take them, and which of them can run through these, shape
    ``(rows,)``. ``ledger`` has the columns of now, ``written`` those of then, under their names of now.
    ``read_names``: the columns that are read of the stream now.

    A row can run if what the stages read is there as it arrived. The others keep what the operator saw of them: they
    were refused next to the state, or came when other stages read other columns.
    """
    names = {} if stages is None else dict(stages.ledger_names)
    needed_names = () if stages is None else stages.needed_names
    arrived, computed_names = np.ones(ledger.num_rows, bool), set[str]()
    if COMPUTED in written.column_names:
        arrived = written[COMPUTED].is_valid().to_numpy()
        # Rows of one file were made by the same stages.
        texts = (text for text in written[COMPUTED].unique().to_pylist() if text is not None)
        computed_names = {name for text in texts for name in text.split(",")}
    flags = arrived.copy()
    for name in read_names:
        written_name = next((n for n in (received_name(name), name) if n in written.column_names), None)
        if written_name is None or (written_name in computed_names):
            if name in needed_names:
                flags[:] = False
            continue
        column, ledger_name = written[written_name], names.get(name, name)
        if COMPUTED not in written.column_names and written_name == names.get(name):
            flags &= column.is_valid().to_numpy()  # written before rows said what they have
        if (cast := _cast_or_none(column, ledger.schema.field(ledger_name).type)) is None:
            flags[:] = flags & (name not in needed_names)
            continue
        column = cast
        if not arrived.all():
            column = pc.if_else(pa.array(arrived), column, ledger[ledger_name])
        ledger = with_column(ledger, ledger_name, column)
    return ledger if stages is None else with_arrived(stages, ledger, flags), flags


def with_arrived(stages: Stages, ledger: pa.Table, flags: Flags) -> pa.Table:
    """Rows of the ledger of which those with ``flags`` say that they have columns as they arrived."""
    if not stages.is_marked:
        for _, name in stages.ledger_names:
            nulls = pa.scalar(None, ledger[name].type)
            ledger = with_column(ledger, name, pc.if_else(pa.array(flags), ledger[name], nulls))
        return ledger
    texts = pc.if_else(pa.array(flags), pc.fill_null(ledger[COMPUTED], ""), pa.scalar(None, pa.string()))
    return with_column(ledger, COMPUTED, texts)


def _names_missed(missed: Mapping[str, Flags], refused: Flags) -> pa.ChunkedArray:
    """The sorted names of the expectations that each ``refused`` row does not meet; lists of texts."""
    names = sorted(missed)
    matrix = np.stack([missed[name][refused] for name in names], axis=1)
    rows, columns = np.nonzero(matrix)
    lists = nested(pa.array(names).take(pa.array(columns)), np.bincount(rows, minlength=len(matrix)), _NAMES)
    return pa.chunked_array([lists])


_NAMES = pa.list_(pa.string())


def received_name(column: str) -> str:
    """What a column that arrives is called in the ledger where the operator has another one of its name."""
    return f"received_{column}"


def _cast_or_none(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray | None:
    try:
        return column if column.type == kind else column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _ledger_column(rows: pa.Table, name: str, ledger_name: str) -> pa.ChunkedArray | None:
    names = [column for column in (ledger_name, name) if column in rows.column_names]
    return rows[names[0]] if names else None
