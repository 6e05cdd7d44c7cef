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

from tidestate.operators.plan.transition import Timer, Transition
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
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
        """The state table of rows that wait for the watermark, in the order of their times."""
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
        """The state tables that an operator needs to hold rows."""
        return (self.ahead, self.numbered)

    @property
    def timers(self) -> tuple[Timer, ...]:
        """A row is due when the watermark has passed it."""
        return (Timer(AHEAD, HELD_AT, delays=(1,)),)

    def expiry(self, watermark: int) -> dict[str, int]:
        """What the watermark has passed is not held any more."""
        return {} if watermark == BEGINNING_US else {AHEAD: min(watermark, END_US) - 1}

    def through(
        self, view: StateView, arriving: pa.Table, watermark: int, step: Callable[[pa.Table], Transition]
    ) -> Transition:
        """Take the ``step`` with the rows that the watermark has passed; hold the others."""
        first = read_numbers(view).get(AHEAD, 0)
        rows, changes = self._due(view, arriving, first, watermark)
        moved = step(rows)
        if arriving.num_rows:
            counts, own = moved.changes.get(NUMBERED), number_rows({AHEAD: first + arriving.num_rows})
            together = own if counts is None else pa.concat_tables([own, expect(counts.merge, "numbers are merged")])
            changes[NUMBERED] = TableChanges(merge=together)
        return replace(moved, changes={**moved.changes, **changes})

    def _due(
        self, view: StateView, arriving: pa.Table, first: int, watermark: int
    ) -> tuple[pa.Table, dict[str, TableChanges]]:
        """Rows before the watermark, in order; and what that changes."""
        numbers = np.arange(first, first + arriving.num_rows)
        new = arriving.append_column(HELD_AT, arriving[self.time].cast(pa.int64()))
        new = self.ahead.conform(new.append_column(NUMBER, pa.array(numbers)))
        now = np.asarray(new[HELD_AT]) < watermark if watermark != END_US else np.ones(new.num_rows, bool)
        held = new.filter(pa.array(~now))
        upper = None if watermark == END_US else (watermark,)
        stored = [] if watermark == BEGINNING_US else list(view[AHEAD].scan(key_range(upper=upper)))
        due = pa.concat_tables([new.filter(pa.array(now)), *stored])
        due = due.take(pa.array(order(due.select([HELD_AT, *self.then, NUMBER]))))
        return self.rows.conform(due), {AHEAD: TableChanges(put=held)}


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
