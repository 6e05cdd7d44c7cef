"""Operators that pass rows on, at once or when the watermark passes them: held rows are their one state. A union does
so with the rows of all sides.
"""

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


@dataclass(frozen=True, kw_only=True)
class PassingPlan(Plan):
    """Rows go to state partitions by their time: evenly, and equal rows together."""

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        return self.held_tables

    @property
    def retracts(self) -> bool:
        return PANE_KIND in self.input.schema.names and not self.has_plain_rows

    def too_late(self, events: pa.Table, times: Times, watermark: int) -> Flags:
        """None: the reader of the rows decides what is too late."""
        return np.zeros(len(times), bool)

    def step(self, view: StateView, arriving: pa.Table, context: Context) -> Transition:
        return self.taking(view, arriving, context, self.passed)

    def passed(self, rows: pa.Table) -> Transition:
        """What becomes of rows whose turn it is."""
        counters = {"passed": rows.num_rows} if rows.num_rows else {}
        return Transition({}, rows.select(self.pane_schema.names), counters)


@dataclass(frozen=True)
class UnionPlan(PassingPlan):
    """The rows of all sides, which all have their time, the column ``time``."""

    has_plain_rows: bool = False

    @property
    def pane_schema(self) -> pa.Schema:  # type: ignore[override]
        return self.input.schema

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
