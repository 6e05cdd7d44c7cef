"""The fast path: its plan."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from tidestate.operators.plan.output_watermark import output_watermark
from tidestate.operators.plan.plan import ONLY, Arrival
from tidestate.operators.plan.transition import StepTimes, Transition
from tidestate.operators.windows.assignment import refused_windows, too_late
from tidestate.operators.windows.slices.intake import partials_of
from tidestate.operators.windows.slices.step import slice_step
from tidestate.operators.windows.slices.tables import SliceTables
from tidestate.statestore.arrays import Flags, Times
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import StateView


@dataclass(frozen=True)
class SlicePlan(SliceTables):
    """The plan of windows of a fixed size, stored in slices."""

    def too_late(self, events: pa.Table, times: Times, watermark: int, *, reprocessing: bool) -> Flags:
        """By the event's time; reprocessed events by their windows."""
        if reprocessing:
            return too_late(self, events, times, watermark, reprocessing=True)
        late: Flags = times < self.closed_at(watermark)
        return late

    def refused(self, accepted: pa.Table, times: Times, watermark: int, *, reprocessing: bool) -> pa.Table | None:
        """Only for reprocessed events: a row per window that has expired."""
        if not (reprocessing and self.overlapping):
            return None
        return refused_windows(self, accepted, times, watermark, reprocessing=True)

    def arrive(self, accepted: pa.Table, times: Times, arrival: Arrival) -> pa.Table:
        """Partials of slices and keys; keys may repeat."""
        if ONLY in accepted.column_names and accepted[ONLY].null_count < accepted.num_rows:
            raise UsageError(
                "windows of this job share their state, so an event cannot be reprocessed for one of them alone",
                code="feed-window",
            )
        return partials_of(self, accepted, times)

    def output_watermark(self, watermark: int, column: str) -> int:
        return output_watermark(self, watermark, column)

    def step(self, view: StateView, arriving: pa.Table, at: StepTimes) -> Transition:
        return slice_step(self, view, arriving, at)
