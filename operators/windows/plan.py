"""The plan of the window operator, for every kind of window and every setting."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from tidestate.operators.plan.dues import with_expiry
from tidestate.operators.plan.output_watermark import output_watermark
from tidestate.operators.plan.plan import Arrival
from tidestate.operators.plan.timers import Timer
from tidestate.operators.plan.transition import StepTimes, Transition
from tidestate.operators.windows.assignment import late_outside, refused_windows, too_late
from tidestate.operators.windows.due import due_in_parts, window_expiry, window_timers
from tidestate.operators.windows.intake import arriving_parts
from tidestate.operators.windows.parts.cells import parts_of_sessions, ready_sessions
from tidestate.operators.windows.parts.hand_over import hand_over
from tidestate.operators.windows.parts.ready import ready_windows
from tidestate.operators.windows.shares import Step, step_in_shares
from tidestate.operators.windows.single import step_by_element
from tidestate.operators.windows.step import step_windows
from tidestate.operators.windows.tables import GroupTables
from tidestate.statestore.arrays import Flags, Times
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.table.overlay import OverlayView


@dataclass(frozen=True)
class WindowPlan(GroupTables):
    """The plan of windows of any kind, with triggers."""

    def too_late(self, events: pa.Table, times: Times, watermark: int, *, reprocessing: bool) -> Flags:
        """By the event's time or the ends of its windows; count windows accept every reprocessed event."""
        by_windows = self.refuses_by_windows(watermark, reprocessing=reprocessing)
        late: Flags = np.zeros(len(times), bool)
        if self.rule == "event" and not reprocessing:
            late = times < (watermark - self.allowed_us if by_windows else self.closed_at(watermark))
        if by_windows and not self.by_number:
            late |= too_late(self, events, times, watermark, reprocessing=reprocessing)
        return late

    def outside(self, events: pa.Table, times: Times, watermark: int) -> Flags:
        return late_outside(self, events, times, watermark)

    def refused(self, accepted: pa.Table, times: Times, watermark: int, *, reprocessing: bool) -> pa.Table | None:
        if not self.overlapping or not self.refuses_by_windows(watermark, reprocessing=reprocessing):
            return None
        return refused_windows(self, accepted, times, watermark, reprocessing=reprocessing)

    def arrive(self, accepted: pa.Table, times: Times, arrival: Arrival) -> pa.Table:
        rows = arriving_parts(self, accepted, times, arrival)
        return parts_of_sessions(self, rows) if self.lazy and self.in_cells else rows

    def output_watermark(self, watermark: int, column: str) -> int:
        return output_watermark(self, watermark, column)

    def timers(self, at: StepTimes) -> tuple[Timer, ...]:
        return (*window_timers(self), *super().timers(at))

    def expiry(self, at: StepTimes) -> dict[str, int]:
        return {**window_expiry(self, at), **super().expiry(at)}

    def step(self, view: StateView, arriving: pa.Table, at: StepTimes) -> Transition:
        if self.lazy:
            ready = (ready_sessions if self.in_cells else ready_windows)(self, view, arriving, at)
            due = due_in_parts(self, view, ready, at)
            if at.due_mark is not None and not ready.arriving.num_rows and not self.triggers.by_clock:
                return Transition(ready.changes, self.pane_schema.empty_table(), due=due)
            moved = step_in_shares(self, view, ready.arriving, at, self._step(at), ready.alone)
            return replace(moved, changes={**moved.changes, **ready.changes}, due=due)
        handed = hand_over(self, view, at.before, at.was)
        if handed is None:
            return self.taking(view, arriving, at, lambda rows: self._grouped(view, rows, at))
        # Former settings left windows in parts: from here on they are groups.
        state = OverlayView(view, self.tables)
        state.apply(handed.changes)
        moved = self.taking(state, arriving, at, lambda rows: step_in_shares(self, state, rows, at, self._step(at)))
        state.apply(moved.changes)
        return replace(moved, changes=state.changes(), panes=pa.concat_tables([handed.panes, moved.panes]), due=None)

    def _grouped(self, view: StateView, rows: pa.Table, at: StepTimes) -> Transition:
        moved = step_in_shares(self, view, rows, at, self._step(at))
        return replace(moved, due=due_in_parts(self, view, None, at))

    def _step(self, at: StepTimes) -> Step:
        if self.triggers.looks_after_each:
            return lambda view, rows, _: step_by_element(self, view, rows, at, _step_and_expire)
        return lambda view, rows, alone: step_windows(self, view, rows, at, alone)


def _step_and_expire(plan: GroupTables, view: StateView, rows: pa.Table, at: StepTimes) -> Transition:
    """One of several steps on a state: the next one is not to see what expires in it."""
    moved = step_windows(plan, view, rows, at)
    return replace(moved, changes=with_expiry(moved.changes, window_expiry(plan, at)))
