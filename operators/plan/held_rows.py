"""Rows that are held until the watermark passes them, and then taken in the order of their times. Pure.

What counts by the order of rows is then the same however the input was cut into batches. The table ``ahead`` has the
rows that are held, by time, and ``numbers_table`` how many there were, which tells rows of one time apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.plan.transition import StepTimes, Transition
from tidestate.operators.progress.instants import BEGINNING_US, END_US
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.keyrange import key_range
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.spec.tables import Column, TableSpec
from tidestate.statestore.table.sorting import order

AHEAD, NUMBERED = "ahead", "numbered"
HELD_AT, NUMBER = "_held_at", "_number"
"""Of a row that is held: its time, and how many rows of its state partition were held before it."""


@dataclass(frozen=True)
class Holding:
    """``rows`` are those that travel, with event times in the column ``time``; ``keys`` tell state partitions apart.

    Rows of one time count by the columns ``then``, and where these agree as they came.
    """

    rows: TableSpec
    time: str
    keys: tuple[Column, ...]
    then: tuple[str, ...] = ()

    @cached_property
    def ahead(self) -> TableSpec:
        """Rows that are held."""
        names = tuple(column.name for column in self.keys)
        values = tuple(one for one in (*self.rows.key, *self.rows.values) if one.name not in names)
        plain = tuple(Column(one.name, one.type) for one in values)
        key = (Column(HELD_AT, "int64"), Column(NUMBER, "int64"), *self.keys)
        return TableSpec(AHEAD, key, plain, HELD_AT, partition_by=names)

    @cached_property
    def numbered(self) -> TableSpec:
        """How many rows came so far."""
        return numbers_table(tuple(column.name for column in self.keys))

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """All state tables."""
        return (self.ahead, self.numbered)

    def through(
        self, view: StateView, arriving: pa.Table, at: StepTimes, step: Callable[[pa.Table], Transition]
    ) -> Transition:
        """Take the ``step`` with the rows that the watermark has passed by now; hold the others."""
        first = pc.fill_null(view[NUMBERED].lookup(pa.table({"what": [AHEAD]})).rows["count"], 0)[0].as_py()
        rows, changes = self._due(view, arriving, first, at)
        moved = step(rows)
        counts = moved.changes.get(NUMBERED, TableChanges()).merge
        if arriving.num_rows:
            own = pa.table([[AHEAD], [first + arriving.num_rows]], schema=self.numbered.schema)
            counts = own if counts is None else pa.concat_tables([counts, own])
        if counts is not None:
            changes[NUMBERED] = TableChanges(merge=counts)
        return replace(moved, changes={**moved.changes, **changes})

    def _due(
        self, view: StateView, arriving: pa.Table, first: int, at: StepTimes
    ) -> tuple[pa.Table, dict[str, TableChanges]]:
        """Rows before the watermark, in order; and what that changes."""
        numbers = np.arange(first, first + arriving.num_rows)
        new = arriving.append_column(HELD_AT, arriving[self.time].cast(pa.int64()))
        new = self.ahead.conform(new.append_column(NUMBER, pa.array(numbers)))
        now = np.asarray(new[HELD_AT]) < at.after if at.after != END_US else np.ones(new.num_rows, bool)
        held = new.filter(pa.array(~now))
        upper = None if at.after == END_US else (at.after,)
        stored = [] if at.after == BEGINNING_US else list(view[AHEAD].scan(key_range(upper=upper)))
        due = pa.concat_tables([new.filter(pa.array(now)), *stored])
        due = due.take(pa.array(order(due.select([HELD_AT, *self.then, NUMBER]))))
        expire = None if at.after == BEGINNING_US else min(at.after, END_US) - 1
        changes = {AHEAD: TableChanges(put=held if held.num_rows else None, expire=expire)}
        return self.rows.conform(due), changes


def numbers_table(partition_by: tuple[str, ...]) -> TableSpec:
    """How many there were of what is counted, in a state partition of rows that are spread by these columns."""
    key, count = (Column("what", "string"),), (Column("count", "int64", combiner="max"),)
    return TableSpec(NUMBERED, key, count, partition_by=partition_by, shared=bool(partition_by))
