"""Tables of the fast path: partials per slice, and the last pane of windows that may fire again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from tidestate.operators.describe.windows import Sliding, Times
from tidestate.operators.plan.output_watermark import released
from tidestate.operators.plan.plan import ONLY, Flags, Intake, Plan
from tidestate.operators.plan.transition import Moments, Transition
from tidestate.operators.windows.assignment import refused, too_late
from tidestate.operators.windows.slices.intake import partials_of
from tidestate.operators.windows.slices.step import slice_step
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.arrowtypes import type_text
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.spec.tables import TIME, Column, TableSpec

SLICES, FIRED = "slices", "fired"


@dataclass(frozen=True)
class SlicePlan(Plan):
    """Windows of a fixed size, kept in slices."""

    feeds_back = True
    late_option = ".late(allowed=…)"

    @property
    def windows(self) -> Sliding:
        """The windows."""
        assert isinstance(self.kind, Sliding)
        return self.kind

    @cached_property
    def slices(self) -> TableSpec:
        """Partial aggregates per slice and key. A tumbling window is one slice."""
        role = "window_end" if self.windows.tumbles else "slice_end"
        state = tuple(column for aggregate in self.aggregates for column in aggregate.state)
        key = (_time("slice_end", role), *self.key_specs)
        return TableSpec(SLICES, key, state, "slice_end", self.state_groups, self.spread)

    @cached_property
    def fired(self) -> TableSpec:
        """The last pane of each window and key that may still fire again: its number and values."""
        results = tuple(Column(a.name, type_text(a.result_type), "result") for a in self.aggregates)
        last = Column("pane", "int64", "pane_index")
        key = (_time("window_end", "window_end"), *self.key_specs)
        return TableSpec(FIRED, key, (last, *results), "window_end", spread=self.spread)

    @property
    def exchanged(self) -> TableSpec:
        """Rows that travel from the input to the state."""
        return self.slices

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """All state tables."""
        return (self.slices, self.fired)

    @cached_property
    def windows_spec(self) -> TableSpec:
        """The slices table keyed by window: not stored, it combines slices of one window into its value."""
        key = (_time("window_end", "window_end"), *self.key_specs)
        return TableSpec("by_window", key, self.slices.values, None, self.state_groups)

    @cached_property
    def ordered(self) -> bool:
        """Whether a window's value depends on the order of its slices: lists, and the first or last of equals."""
        return bool(self.state_groups) or any(column.combiner == "append" for column in self.slices.values)

    def too_late(self, events: pa.Table, times: Times, watermark: int, *, feeding: bool) -> Flags:
        """By its own time, whatever its windows; what comes back, by its windows."""
        if feeding:
            return too_late(self, events, times, watermark, feeding=True)
        late: Flags = times < self.closed_at(watermark)
        return late

    def refused(self, accepted: pa.Table, times: Times, watermark: int, *, feeding: bool) -> pa.Table | None:
        """Of events that come back, a row per window that is gone."""
        if not (feeding and self.overlapping):
            return None
        return refused(self, accepted, times, watermark, feeding=True)

    def arrive(self, accepted: pa.Table, times: Times, intake: Intake) -> pa.Table:
        """Partials of slices and keys; keys may repeat."""
        if ONLY in accepted.column_names and accepted[ONLY].null_count < accepted.num_rows:
            raise UsageError(
                "windows of this job share their state, so an event cannot be fed to one of them alone",
                code="feed-window",
            )
        return partials_of(self, accepted, times)

    def released(self, watermark: int, column: str) -> int:
        """By the windows that have not ended yet."""
        return released(self, watermark, column)

    def step(self, view: StateView, arriving: pa.Table, at: Moments) -> Transition:
        """Merge partials; fire what is due."""
        return slice_step(self, view, arriving, at)


def _time(name: str, role: str) -> Column:
    return Column(name, str(TIME), role)
