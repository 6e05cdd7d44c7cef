"""A join: its tables, and the step that it takes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.describe.sides import AT, LEFT, SIDE, SIDES
from tidestate.operators.joins.rule import JoinRule
from tidestate.operators.joins.step import join_step
from tidestate.operators.joins.tables import JoinTables
from tidestate.operators.joins.window_rules import rule_of
from tidestate.operators.plan.plan import Arrival, no_bound
from tidestate.operators.plan.transition import StepTimes, Transition
from tidestate.operators.progress.instants import BEGINNING_US, END_US
from tidestate.operators.windows.assignment import refused_windows
from tidestate.statestore.arrays import Flags, Times
from tidestate.statestore.spec.store import StateView


@dataclass(frozen=True, kw_only=True)
class JoinPlan(JoinTables):
    """A join bound to the schema of its one stream."""

    @cached_property
    def meeting(self) -> JoinRule:
        """Which rows meet."""
        return rule_of(self.joined)

    def too_late(self, events: pa.Table, times: Times, watermark: int, *, reprocessing: bool) -> Flags:
        """Rows behind the watermark that no partner can come for any more."""
        is_left = np.asarray(pc.fill_null(pc.equal(events[SIDE], LEFT), False))
        late = [self.meeting.too_late(side, times, watermark) for side in SIDES]
        found: Flags = np.where(is_left, *late)
        return found

    def refused(self, accepted: pa.Table, times: Times, watermark: int, *, reprocessing: bool) -> pa.Table | None:
        """A row per row and window in which nothing meets any more."""
        return (
            refused_windows(self, accepted, times, watermark, reprocessing=reprocessing) if self.overlapping else None
        )

    def arrive(self, accepted: pa.Table, times: Times, arrival: Arrival) -> pa.Table:
        """Rows as they are, in order."""
        return self.exchanged.conform(accepted)

    def step(self, view: StateView, arriving: pa.Table, at: StepTimes) -> Transition:
        """Show what meets, remember the rest."""
        return self.taking(view, arriving, at, lambda rows: join_step(self, view, rows, at))

    def output_watermark(self, watermark: int, column: str = AT) -> int:
        """No pane from now on, not even a late one, has an earlier time; `BEGINNING_US` where any may come."""
        if column != AT:
            raise no_bound(self, column, f"pairs are placed by {AT}")
        if watermark in (BEGINNING_US, END_US):
            return watermark
        # What is held back may be of any time.
        return BEGINNING_US if self.joined.held else self.meeting.output_watermark(watermark)
