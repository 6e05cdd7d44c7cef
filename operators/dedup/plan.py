"""Deduplication: one table of ids with the time until which each is remembered. A row is passed on or it is not."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from operators.plan import Flags, Intake, Plan
from operators.transition import BEGINNING_US, END_US, Moments, Transition
from operators.windows import Times
from statestore.changes import TableChanges
from statestore.store import StateView
from statestore.tables import Column, TableSpec

UNTIL = "remembered_until"


@dataclass(frozen=True)
class DedupPlan(Plan):
    """Key columns are those that tell rows apart."""

    within_us: int | None = None

    @cached_property
    def seen(self) -> TableSpec:
        """Ids, and until which watermark each is remembered (int64 microseconds)."""
        return TableSpec("seen", self.key_specs, (Column(UNTIL, "int64"),), UNTIL, spread=self.spread)

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """All state tables."""
        return (self.seen,)

    @cached_property
    def exchanged(self) -> TableSpec:
        """Whole rows of the input."""
        rest = [field for field in self.input_schema if field.name not in self.key_names]
        return TableSpec("rows", self.key_specs, tuple(Column(field.name, str(field.type)) for field in rest))

    @property
    def pane_schema(self) -> pa.Schema:  # type: ignore[override]
        """Rows as they came."""
        return self.input_schema

    def too_late(self, events: pa.Table, times: Times, watermark: int, *, feeding: bool) -> Flags:
        """What is behind the watermark: its id may have been forgotten."""
        late: Flags = times < watermark
        return late

    def arrive(self, accepted: pa.Table, times: Times, intake: Intake) -> pa.Table:
        """Rows as they are, in order."""
        return self.exchanged.conform(accepted)

    def released(self, watermark: int, column: str) -> int:
        """Rows are passed on as they come, none from behind the watermark."""
        if column != self.event_time:
            return super().released(watermark, column)
        return watermark

    def step(self, view: StateView, arriving: pa.Table, at: Moments) -> Transition:
        """Pass on the first row of each id that is not remembered."""
        numbered = arriving.select(self.key_names).append_column("__row", pa.array(np.arange(arriving.num_rows)))
        firsts = numbered.group_by(self.key_names, use_threads=False).aggregate([("__row", "min")])["__row_min"]
        first = arriving.take(pa.array(np.sort(firsts.to_numpy())))
        found = view.lookup(self.seen.name, first.select(self.key_names)).found
        new = first.filter(pa.array(~np.asarray(found)))
        times = new[self.event_time].cast(pa.int64()).to_numpy()
        until = pa.array(times + (0 if self.within_us is None else self.within_us))
        ids = new.select(self.key_names).append_column(UNTIL, until)
        # Without `within` an id is forgotten when its repetitions have become late.
        bound = min(at.after if self.within_us is not None else at.after - 1, END_US - 1)
        expire = None if at.after == BEGINNING_US else bound
        keep = ids if expire is None else ids.filter(pa.array(until.to_numpy() > expire))
        changes = {self.seen.name: TableChanges(put=keep if keep.num_rows else None, expire=expire)}
        passed = {"passed": new.num_rows, "duplicates": arriving.num_rows - new.num_rows}
        return Transition(changes, new.select(self.input_schema.names), {k: v for k, v in passed.items() if v})
