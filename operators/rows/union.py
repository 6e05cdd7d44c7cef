"""A union passes the rows of all sides on, at once or when the watermark passes them: held rows are its one state."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidestate.operators.describe.sides import AT
from tidestate.operators.plan.plan import PANE_KIND, Plan
from tidestate.operators.plan.transition import Transition
from tidestate.operators.progress.progress import Context
from tidestate.statestore.arrays import Flags, Times
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.spec.tables import TableSpec


@dataclass(frozen=True)
class UnionPlan(Plan):
    """Rows go to state partitions by their time, the one column that all have: evenly, and equal rows together."""

    has_plain_rows: bool = False

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        return self.held_tables

    @property
    def retracts(self) -> bool:
        return PANE_KIND in self.input.schema.names and not self.has_plain_rows

    @property
    def pane_schema(self) -> pa.Schema:  # type: ignore[override]
        return self.input.schema

    def too_late(self, events: pa.Table, times: Times, watermark: int) -> Flags:
        """None: the reader of the rows decides what is too late."""
        return np.zeros(len(times), bool)

    def step(self, view: StateView, arriving: pa.Table, context: Context) -> Transition:
        return self.taking(view, arriving, context, self._passed)

    def _passed(self, rows: pa.Table) -> Transition:
        counters = {"passed": rows.num_rows} if rows.num_rows else {}
        return Transition({}, rows.select(self.input.schema.names), counters)

    def output_watermark(self, watermark: int, column: str = AT) -> int:
        """No later row has an earlier time, except for rows that arrive behind ``watermark``."""
        if column != AT:
            raise UsageError(
                'the event time of a union must be the time of its rows: use the column "time"',
                code="chain-time",
                column=column,
                use=AT,
            )
        return watermark
