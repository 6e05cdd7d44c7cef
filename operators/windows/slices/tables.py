"""Tables of the fast path: partials by slice, and the last pane of windows that may fire again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tidestate.operators.describe.windows import Sliding
from tidestate.operators.plan.plan import Plan
from tidestate.statestore.errors import of_type
from tidestate.statestore.spec.arrowtypes import type_text
from tidestate.statestore.spec.tables import TIME, Column, TableSpec

SLICES, FIRED = "slices", "fired"


@dataclass(frozen=True)
class SliceTables(Plan):
    """The columns and tables of a plan."""

    reprocesses = True
    late_option = ".late(allowed=…)"

    @property
    def windows(self) -> Sliding:
        """The kind of window: sliding, or tumbling."""
        return of_type(self.kind, Sliding)

    @cached_property
    def slices(self) -> TableSpec:
        """The state table with partials by slice and key. A tumbling window is one slice."""
        role = "window_end" if self.windows.tumbles else "slice_end"
        state = tuple(column for aggregate in self.aggregates for column in aggregate.state)
        key = (_time("slice_end", role), *self.key_specs)
        return TableSpec(SLICES, key, state, "slice_end", self.state_groups, self.partition_by)

    @cached_property
    def fired(self) -> TableSpec:
        """The state table with the last pane of each window and key that may fire again: its number and values."""
        results = tuple(Column(a.name, type_text(a.result_type), "result") for a in self.aggregates)
        last = Column("pane", "int64", "pane_index")
        key = (_time("window_end", "window_end"), *self.key_specs)
        return TableSpec(FIRED, key, (last, *results), "window_end", partition_by=self.partition_by)

    @property
    def exchanged(self) -> TableSpec:
        return self.slices

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        return (self.slices, self.fired)

    @cached_property
    def windows_spec(self) -> TableSpec:
        """The slices table keyed by window, to combine the slices of a window; not stored."""
        key = (_time("window_end", "window_end"), *self.key_specs)
        return TableSpec("by_window", key, self.slices.values, None, self.state_groups)

    @cached_property
    def ordered(self) -> bool:
        """Whether a window's result depends on the order of its slices: as of lists, or the first of equal values."""
        return bool(self.state_groups) or any(column.combiner == "append" for column in self.slices.values)


def _time(name: str, role: str) -> Column:
    return Column(name, str(TIME), role)
