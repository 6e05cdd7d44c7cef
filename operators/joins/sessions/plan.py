"""A session join: its tables, and the step that it takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidestate.operators.describe.sides import AT
from tidestate.operators.joins.sessions.names import END, PLACE, UNTIL
from tidestate.operators.joins.sessions.step import session_step
from tidestate.operators.joins.sessions.tables import SessionJoinTables
from tidestate.operators.plan.plan import PANE_TIME, Arrival
from tidestate.operators.plan.transition import StepTimes, Transition
from tidestate.operators.windows.assignment import assign_windows, too_late
from tidestate.operators.windows.general.names import NO_KEY
from tidestate.statestore.arrays import Flags, Times
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import StateView


@dataclass(frozen=True, kw_only=True)
class SessionJoinPlan(SessionJoinTables):
    """A session join bound to the schema of its one stream."""

    def too_late(self, events: pa.Table, times: Times, watermark: int, *, reprocessing: bool) -> Flags:
        """Rows whose own session would be over."""
        return too_late(self, events, times, watermark, reprocessing=reprocessing)

    def arrive(self, accepted: pa.Table, times: Times, arrival: Arrival) -> pa.Table:
        """Rows with their times, in order."""
        _, _, ends = assign_windows(self.kind, times, accepted)
        if not self.key_fields:
            accepted = accepted.append_column(NO_KEY, pa.array(np.zeros(len(times), np.int8)))
        for name, values in ((PLACE, times), (UNTIL, ends)):
            accepted = accepted.append_column(name, pa.array(values))
        return self.exchanged.conform(accepted)

    def step(self, view: StateView, arriving: pa.Table, at: StepTimes) -> Transition:
        """Sessions with what is new; pairs of those that are over."""
        return session_step(self, view, arriving, at)

    def output_watermark(self, watermark: int, column: str = AT) -> int:
        """No row to come, late ones included, has an earlier ``time``, or ``window_end``."""
        if column not in (AT, END, PANE_TIME):
            raise UsageError(
                "a session may have begun at any time: go by its end", code="chain-time", column=column, use=AT
            )
        return self.closed_at(watermark)
