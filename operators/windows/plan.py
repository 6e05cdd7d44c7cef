"""The plan of the window operator, for every kind of window and every setting."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from tidestate.operators.plan.dues import with_expiry
from tidestate.operators.plan.output_watermark import output_watermark
from tidestate.operators.plan.timers import Timer
from tidestate.operators.plan.transition import Transition
from tidestate.operators.progress.progress import Context
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

    def too_late(self, events: pa.Table, times: Times, watermark: int) -> Flags:
        """By the event's time or the ends of its windows; count windows accept every reprocessed event."""
        by_windows = self.refuses_by_windows(watermark)
        late: Flags = np.zeros(len(times), bool)
        if self.rule == "event" and not self.reprocessing:
            late = times < (watermark - self.allowed_us if by_windows else self.closed_at(watermark))
        if by_windows and not self.by_number:
            late |= too_late(self, events, times, watermark)
        return late

    def outside(self, events: pa.Table, times: Times, watermark: int) -> Flags:
        return late_outside(self, events, times, watermark)

    def refused(self, accepted: pa.Table, times: Times, watermark: int) -> pa.Table | None:
        if not self.overlapping or not self.refuses_by_windows(watermark):
            return None
        return refused_windows(self, accepted, times, watermark)

    def arrive(self, accepted: pa.Table, times: Times, context: Context) -> pa.Table:
        rows = arriving_parts(self, accepted, times, context)
        return parts_of_sessions(self, rows) if self.lazy and self.in_cells else rows

    def output_watermark(self, watermark: int, column: str) -> int:
        return output_watermark(self, watermark, column)

    def timers(self, context: Context) -> tuple[Timer, ...]:
        return (*window_timers(self), *super().timers(context))

    def expiry(self, context: Context) -> dict[str, int]:
        return {**window_expiry(self, context), **super().expiry(context)}

    def step(self, view: StateView, arriving: pa.Table, context: Context) -> Transition:
        if self.lazy:
            ready = (ready_sessions if self.in_cells else ready_windows)(self, view, arriving, context)
            due = due_in_parts(self, view, ready, context)
            if context.only_arrivals and not ready.arriving.num_rows and not self.triggers.by_clock:
                return Transition(ready.changes, self.pane_schema.empty_table(), due=due)
            moved = step_in_shares(self, view, ready.arriving, context, self._step(context), ready.alone)
            return replace(moved, changes={**moved.changes, **ready.changes}, due=due)
        handed = hand_over(self, view, context.watermark_before, context.was_us)
        if handed is None:
            return self.taking(view, arriving, context, lambda rows: self._grouped(view, rows, context))
        # Former settings left windows in parts: from here on they are groups.
        state = OverlayView(view, self.tables)
        state.apply(handed.changes)
        moved = self.taking(
            state, arriving, context, lambda rows: step_in_shares(self, state, rows, context, self._step(context))
        )
        state.apply(moved.changes)
        return replace(moved, changes=state.changes(), panes=pa.concat_tables([handed.panes, moved.panes]), due=None)

    def _grouped(self, view: StateView, rows: pa.Table, context: Context) -> Transition:
        moved = step_in_shares(self, view, rows, context, self._step(context))
        return replace(moved, due=due_in_parts(self, view, None, context))

    def _step(self, context: Context) -> Step:
        if self.triggers.looks_after_each:
            return lambda view, rows, _: step_by_element(self, view, rows, context, _step_and_expire)
        return lambda view, rows, alone: step_windows(self, view, rows, context, alone)


def _step_and_expire(plan: GroupTables, view: StateView, rows: pa.Table, context: Context) -> Transition:
    """One of several steps on a state: the next one is not to see what expires in it."""
    moved = step_windows(plan, view, rows, context)
    return replace(moved, changes=with_expiry(moved.changes, window_expiry(plan, context)))
