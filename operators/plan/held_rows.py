"""Held rows: they wait until the watermark passes them, and are processed in the order of their times. Pure.

What depends on the order of rows is then the same however the input was cut into batches. The table ``ahead`` has the
held rows, by time, and `numbers_table` how many there were: a running number tells rows of one time apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.plan.transition import StepTimes, Transition, first_due
from tidestate.operators.progress.instants import BEGINNING_US, END_US
from tidestate.statestore.errors import expect
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.keyrange import key_range
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.spec.tables import Column, TableSpec
from tidestate.statestore.table.sorting import order

AHEAD, NUMBERED = "ahead", "numbered"
HELD_AT, NUMBER = "_held_at", "_number"
"""Of a held row: its time, and how many rows of its state partition were held before it."""


@dataclass(frozen=True)
class Holding:
    """``rows`` are exchanged, with event times in the column ``time``; ``keys`` determine the state partition.

    Rows of one time are in the order of the columns ``then``, and where these agree as they arrived.
    """

    rows: TableSpec
    time: str
    keys: tuple[Column, ...]
    then: tuple[str, ...] = ()

    @cached_property
    def ahead(self) -> TableSpec:
        """Held rows."""
        names = tuple(column.name for column in self.keys)
        values = tuple(one for one in (*self.rows.key, *self.rows.values) if one.name not in names)
        plain = tuple(Column(one.name, one.type) for one in values)
        key = (Column(HELD_AT, "int64"), Column(NUMBER, "int64"), *self.keys)
        return TableSpec(AHEAD, key, plain, HELD_AT, partition_by=names)

    @cached_property
    def numbered(self) -> TableSpec:
        """How many rows there were."""
        return numbers_table(tuple(column.name for column in self.keys))

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """All state tables."""
        return (self.ahead, self.numbered)

    def through(
        self, view: StateView, arriving: pa.Table, at: StepTimes, step: Callable[[pa.Table], Transition]
    ) -> Transition:
        """Take the ``step`` with the rows that the watermark has passed; hold the others."""
        first = read_numbers(view).get(AHEAD, 0)
        rows, changes = self._due(view, arriving, first, at)
        moved = step(rows)
        if arriving.num_rows:
            counts, own = moved.changes.get(NUMBERED), number_rows({AHEAD: first + arriving.num_rows})
            together = own if counts is None else pa.concat_tables([own, expect(counts.merge, "numbers are merged")])
            changes[NUMBERED] = TableChanges(merge=together)
        mark = None if moved.due_mark is None else min(moved.due_mark, self._next(view, changes[AHEAD], at))
        return replace(moved, changes={**moved.changes, **changes}, due_mark=mark)

    def _next(self, view: StateView, ahead: TableChanges, at: StepTimes) -> int:
        """The watermark that passes the first row that is held; `END_US` if none is."""
        if at.after == END_US:
            return END_US
        new = [] if ahead.put is None or not ahead.put.num_rows else [int(pc.min(ahead.put[HELD_AT]).as_py())]
        stored = first_due(view, AHEAD, HELD_AT, at.after) if at.due_mark is None else [at.due_mark - 1]
        return min([*new, *stored, END_US - 1]) + 1

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
        changes = {AHEAD: TableChanges(put=held, expire=expire)}
        return self.rows.conform(due), changes


def numbers_table(partition_by: tuple[str, ...]) -> TableSpec:
    """How many rows there were of each kind, in a state partition of rows that are partitioned by these columns."""
    key, count = (Column("what", "string"),), (Column("count", "int64", combiner="max"),)
    return TableSpec(NUMBERED, key, count, partition_by=partition_by, shared=bool(partition_by))


def read_numbers(view: StateView) -> dict[str, int]:
    """How many rows there were, by kind."""
    return {row["what"]: row["count"] for part in view[NUMBERED].scan() for row in part.to_pylist()}


def number_rows(numbers: dict[str, int]) -> pa.Table:
    """Rows of `numbers_table`, to merge."""
    return pa.table({"what": sorted(numbers), "count": pa.array([numbers[what] for what in sorted(numbers)])})
