"""The plan of the window operator, for every kind of window and every setting, and its half next to the input:
accepted events as partials of their windows. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.aggregates.aggregate import ones
from tidestate.operators.aggregates.signed import signs
from tidestate.operators.describe.windows import Sliding
from tidestate.operators.plan.dues import with_expiry
from tidestate.operators.plan.slicing import SlicedRows, Slicing
from tidestate.operators.plan.transition import Timer, Transition
from tidestate.operators.progress.progress import Context, watermark_of
from tidestate.operators.progress.watermarks import BEGINNING_US
from tidestate.operators.windows.assignment import (
    assign_windows,
    last_ends,
    late_outside,
    narrowed,
    own_windows,
    refused_windows,
    too_late,
    windows_touched,
)
from tidestate.operators.windows.elements import step_by_element
from tidestate.operators.windows.expansion import combined_parts, expand_windows
from tidestate.operators.windows.names import END, SLICE_END
from tidestate.operators.windows.output_watermark import output_watermark
from tidestate.operators.windows.session_slices import parts_of_sessions, ready_sessions
from tidestate.operators.windows.sessions import merge_sessions
from tidestate.operators.windows.slices import events_as_parts, parts_of_sliced, ready_windows, slicing_of
from tidestate.operators.windows.step import (
    Step,
    due_in_parts,
    step_in_shares,
    step_windows,
    window_expiry,
    window_timers,
)
from tidestate.operators.windows.tables import GroupTables
from tidestate.operators.windows.trigger_change import hand_over
from tidestate.statestore.arrays import Flags, Numbers, Times, Values
from tidestate.statestore.errors import of_type
from tidestate.statestore.spec.arrowtypes import positions
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.table.fold import combine, combine_values
from tidestate.statestore.table.overlay import OverlayView


def arriving_parts(plan: GroupTables, events: pa.Table, times: Times, context: Context) -> pa.Table:
    """Accepted events as rows of `GroupTables.taken`: one per window and key, or one per event and window."""
    if plan.lazy and not plan.in_cells and not plan.reprocessing and not plan.touching:
        return events_as_parts(plan, events, times, watermark_of(context.before))
    windows = _as_windows(plan, events, times, context)
    # Late events that are reprocessed may be for one window alone, and a lifetime may touch several tumbling ones.
    return _renamed(plan, windows) if plan.lazy and not plan.in_cells else windows


def _renamed(plan: GroupTables, windows: pa.Table) -> pa.Table:
    """Rows of `GroupTables.arriving` in the columns of parts."""
    rows = windows.rename_columns({END: SLICE_END})
    return rows.select(plan.parts.schema.names).cast(plan.parts.schema)


def _as_windows(plan: GroupTables, events: pa.Table, times: Times, context: Context) -> pa.Table:
    if plan.overlapping and not plan.per_event:
        return _overlapping(plan, events, times, context)
    index, starts, ends = assign_windows(plan.kind, times, events)
    watermark = context.watermark_before
    if watermark != BEGINNING_US and plan.refuses_by_windows(watermark) and not plan.by_number:
        open_ = ends > plan.refused_at(watermark)
        index, starts, ends = index[open_], starts[open_], ends[open_]
    each_once = len(index) == events.num_rows and np.array_equal(index, np.arange(len(index)))
    places = pa.array(index)
    taken: Callable[[Values], Values] = (lambda column: column) if each_once else (lambda column: column.take(places))
    keys = [taken(column) for column in plan.keys_of(events)]
    bounds = [pa.array(values).cast(plan.bound_type) for values in (starts, ends)]
    columns = [taken(column) for column in plan.lifted(events)]
    sizes: list[Values] = [ones(None, len(index))]
    if plan.input.signed:
        sizes.append(pa.array(signs(events)[index]))
    if plan.per_event:
        extra: list[Values] = [events[name].take(places) for name in plan.input.order]
        if plan.in_order:
            extra.append(pa.array(times[index]))
        if plan.finishes:
            extra.append(_whole(plan, events).take(places))
        return _typed(plan.taken, [*keys, *bounds, *sizes, *columns, *extra])
    if not plan.sessions:
        return combine(plan.arriving, pa.table([*keys, *bounds, *sizes, *columns], names=plan.arriving.schema.names))
    rows = _typed(plan.arriving, [*keys, *bounds, *sizes, *columns])
    # What sees their order keeps it: sessions of this batch alone may be of one that is stored.
    return rows if plan.sees_order or (plan.lazy and plan.in_cells) else _merged(plan, rows)


def _typed(spec: TableSpec, columns: list[Values]) -> pa.Table:
    return pa.table(columns, names=spec.schema.names).cast(spec.schema)


def _overlapping(plan: GroupTables, events: pa.Table, times: Times, context: Context) -> pa.Table:
    """One row per window and key, for windows that share events: by slice if the order does not matter, in bands."""
    kind, rows = of_type(plan.kind, Sliding), _sliced(plan, events, times)
    only = own_windows(events)
    if only is None and plan.orderless and not plan.touching:
        rows = combine(plan.slices_of_events, rows)
    closed, watermark = None, context.watermark_before
    if watermark != BEGINNING_US and plan.refuses_by_windows(watermark):
        closed = plan.refused_at(watermark)
    if plan.touching:
        first, counts = windows_touched(kind, times, events, closed)
    else:
        first, counts = kind.windows_of(rows["slice_end"].cast(pa.int64()).to_numpy(), closed)
    if only is not None:
        first, counts = narrowed(kind, first, counts, only)
    return _expanded(plan, rows, first, counts, context.budget_bytes)


def in_windows(plan: GroupTables, events: pa.Table, first: Times, counts: Numbers, context: Context) -> pa.Table:
    """Events as rows of `GroupTables.taken`, each in ``counts`` windows that follow each other, the first of which
    ends at ``first``.
    """
    rows = _sliced(plan, events, positions(events[plan.input.event_time]))
    rows = _expanded(plan, rows, first, counts, context.budget_bytes)
    return _renamed(plan, rows) if plan.lazy else rows


def _sliced(plan: GroupTables, events: pa.Table, times: Times) -> pa.Table:
    """A row of `GroupTables.slices_of_events` for each event."""
    ends = pa.array(plan.slices.slice_ends(times)).cast(plan.bound_type)
    sizes = [pa.array(np.ones(len(times), np.int64)), *([pa.array(signs(events))] if plan.input.signed else [])]
    return _typed(plan.slices_of_events, [*plan.keys_of(events), ends, *sizes, *plan.lifted(events)])


def _expanded(plan: GroupTables, rows: pa.Table, first: Times, counts: Numbers, budget_bytes: int) -> pa.Table:
    """Rows of `_sliced` by window and key, each in ``counts`` windows from the one that ends at ``first``."""
    kind = plan.slices

    def pairs(index: Times, nth: Times) -> pa.Table:
        columns = rows.take(pa.array(index))
        ends = first[index] + nth * kind.slide
        bounds = [pa.array(values).cast(plan.bound_type) for values in (ends - kind.size, ends)]
        by_key, values = columns.select(plan.group_keys), columns.drop_columns([*plan.group_keys, "slice_end"])
        return pa.table([*by_key.columns, *bounds, *values.columns], schema=plan.arriving.schema)

    parts = expand_windows(plan.arriving, rows, plan.group_keys, counts, pairs, budget_bytes)
    return combined_parts(plan.arriving, parts)


def _whole(plan: GroupTables, events: pa.Table) -> pa.Array:
    """Each event as one struct, for the ledger."""
    columns = [events[name].combine_chunks() for name in plan.input.schema.names]
    names = [f"_{number}" for number in range(len(columns))]
    return pa.StructArray.from_arrays(columns, names=names)


def _merged(plan: GroupTables, rows: pa.Table) -> pa.Table:
    """``rows`` of sessions, merged."""
    merged = merge_sessions(plan.group_keys, rows)
    values = combine_values(plan.arriving, rows, merged.owner, merged.windows.num_rows)
    return pa.table([*merged.windows.columns, *values.columns], schema=plan.arriving.schema)


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

    def needed_until(self, late: pa.Table) -> Times:
        last = last_ends(self.kind, positions(late[self.input.event_time]), late)
        if not self.names_windows:
            return last
        _, end = self.ledger_bounds
        named: Times = pc.fill_null(late[end].cast(pa.int64()), np.iinfo(np.int64).max).to_numpy()
        return np.minimum(last, named)

    def outside(self, events: pa.Table, times: Times, watermark: int) -> Flags:
        return late_outside(self, events, times, watermark) if self.has_gaps else np.zeros(0, bool)

    def refused(self, accepted: pa.Table, times: Times, watermark: int) -> pa.Table | None:
        if not self.overlapping or not self.refuses_by_windows(watermark):
            return None
        return refused_windows(self, accepted, times, watermark)

    def arrive(self, accepted: pa.Table, times: Times, context: Context) -> pa.Table:
        rows = arriving_parts(self, accepted, times, context)
        return parts_of_sessions(self, rows) if self.lazy and self.in_cells else rows

    @property
    def slicing(self) -> Slicing | str:
        if type(self) is not WindowPlan:
            return super().slicing
        return "its rows come again" if self.reprocessing else slicing_of(self)

    def arrive_sliced(self, accepted: SlicedRows) -> pa.Table:
        return parts_of_sliced(self, accepted)

    def output_watermark(self, watermark: int, column: str) -> int:
        return output_watermark(self, watermark, column)

    @cached_property
    def _timers(self) -> tuple[Timer, ...]:
        return window_timers(self)

    def timers(self, context: Context) -> tuple[Timer, ...]:
        return (*self._timers, *super().timers(context))

    def expiry(self, context: Context) -> dict[str, int]:
        return {**window_expiry(self, context), **super().expiry(context)}

    def step(self, view: StateView, arriving: pa.Table, context: Context) -> Transition:
        if self.lazy:
            sessions = ready_sessions(self, view, arriving, context) if self.in_cells else None
            if sessions is not None:
                windows, parts = sessions.arriving, sessions.changes
            else:
                windows, parts = ready_windows(self, view, arriving, context)
            due = due_in_parts(self, view, sessions, context)
            if context.only_arrivals and not windows.num_rows and not self.by_clock:
                return Transition(parts, self.pane_schema.empty_table(), due=due)
            alone = sessions.alone if sessions is not None else None
            moved = step_in_shares(self, view, windows, context, self._step(context), alone)
            return replace(moved, changes={**moved.changes, **parts}, due=due)
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
        if self.steps_by_element:
            return lambda view, rows, _: step_by_element(self, view, rows, context, _step_and_expire)
        return lambda view, rows, alone: step_windows(self, view, rows, context, alone)


def _step_and_expire(plan: GroupTables, view: StateView, rows: pa.Table, context: Context) -> Transition:
    """One of several steps on a state: the next one is not to see what expires in it."""
    moved = step_windows(plan, view, rows, context)
    return replace(moved, changes=with_expiry(moved.changes, window_expiry(plan, context)))
