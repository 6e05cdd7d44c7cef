"""The plan of rolling windows, and their half next to the input: accepted events as parts of their times. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from tidestate.operators.plan.transition import Timer, Transition
from tidestate.operators.progress.progress import Context
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
from tidestate.operators.windows.names import PARTS, SLICE_END
from tidestate.operators.windows.plan import WindowPlan
from tidestate.operators.windows.rolling import ready_rolling
from tidestate.operators.windows.slices import aggregated_parts, lifted_parts
from tidestate.operators.windows.step import due_in_parts, step_in_shares, step_windows
from tidestate.statestore.arrays import Flags, Times
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.spec.tables import TableSpec


@dataclass(frozen=True)
class RollingPlan(WindowPlan):
    """The plan of rolling windows."""

    @property
    def reopens(self) -> bool:
        """Not with events that have expired: windows after them need these."""
        return False

    @property
    def taken(self) -> TableSpec:  # type: ignore[override]
        return self.parts

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        return (self.parts, *super().tables)

    def arrive(self, accepted: pa.Table, times: Times, context: Context) -> pa.Table:
        return aggregated_parts(self, lifted_parts(self, accepted, self.rolls.ends(times)))

    def timers(self, context: Context) -> tuple[Timer, ...]:
        return (Timer(PARTS, SLICE_END), *super().timers(context))

    def expiry(self, context: Context) -> dict[str, int]:
        bounds, kept = super().expiry(context), self.expired_at(context.watermark)
        if context.watermark == END_US:
            return bounds | {PARTS: END_US - 1}
        return bounds if kept == BEGINNING_US else bounds | {PARTS: kept + 1 - self.rolls.size}

    def step(self, view: StateView, arriving: pa.Table, context: Context) -> Transition:
        def step(view: StateView, arriving: pa.Table, _alone: Flags | None) -> Transition:
            windows, parts = ready_rolling(self, view, arriving, context)
            if context.only_arrivals and not windows.num_rows and not self.by_clock:
                return Transition(parts, self.pane_schema.empty_table())
            moved = step_windows(self, view, windows, context)
            return replace(moved, changes={**moved.changes, **parts})

        moved = step_in_shares(self, view, arriving, context, step)
        return replace(moved, due=due_in_parts(self, view, None, context))
