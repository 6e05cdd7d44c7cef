"""Preview the windows that are still in parts, as if the watermark passed all of them now; used by queries. Pure.

The parts are merged a band of window ends at a time, each of about `BAND_ROWS` windows: so memory does not grow with
the number of windows. A partition with few parts is one band."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

import numpy as np
import pyarrow as pa

from tidestate.operators.plan.dues import keys_within
from tidestate.operators.progress.progress import Context
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
from tidestate.operators.windows.gather import gather_groups, groups_with
from tidestate.operators.windows.names import CELL, END, ENDS, GROUPS, PARTS, SLICE_END
from tidestate.operators.windows.rolling import windows_in_parts
from tidestate.operators.windows.session_slices import ready_sessions
from tidestate.operators.windows.slices import as_arriving, due_windows, has_coarse
from tidestate.operators.windows.tables import GroupTables, column_numbers
from tidestate.statestore.arrays import Numbers
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.keyrange import KeyRange, key_range
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.table.overlay import OverlayView
from tidestate.statestore.table.sorting import among

BAND_ROWS = 1 << 18
"""About how many windows a band has."""
_FASTER = 8
"""A band is at most so many times as long as the one before."""


def _next_length(length: int, rows: int) -> int:
    """How long the next band is, in slides or cells, after one of this length that had so many windows."""
    return max(1, min(length * _FASTER, length * BAND_ROWS // max(1, rows)))


def windows_ending(plan: GroupTables, view: StateView, low: int, high: int) -> Iterator[pa.Table]:
    """Stored rows of ``groups`` with ``low < end <= high``; parts are not looked at."""
    names = plan.groups.key_names
    if names[0] == END:
        yield from view[GROUPS].scan(keys_within(low, high))
        return
    for rows in view[GROUPS].scan():
        ends = column_numbers(rows, END)
        inside = (ends > low) & (ends <= high)
        yield rows if inside.all() else rows.filter(pa.array(inside))


def windows_wait(plan: GroupTables, view: StateView) -> bool:
    """Whether windows are in parts."""
    return (plan.has_parts or plan.rolling) and _first(view, PARTS, key_range()) is not None


def waiting_windows(plan: GroupTables, view: StateView, low: int, high: int, budget_bytes: int) -> Iterator[pa.Table]:
    """Windows with ``low < end <= high``, where ``low`` is at the watermark or later (of sessions: at the watermark):
    those in parts and the stored ones, as rows of ``groups``.
    """
    bands = _sessions if plan.in_cells else _rolling if plan.rolling else _fixed
    return bands(plan, view, low, high, budget_bytes)


def _fixed(plan: GroupTables, view: StateView, low: int, high: int, budget_bytes: int) -> Iterator[pa.Table]:
    kind, length = plan.slices, 1
    one_band = _few(plan, view, -(-kind.size // kind.slide))
    coarse = plan.orderless and has_coarse(plan, view, low)
    while low < high and (first := _next_end(plan, view, low)) is not None and first <= high:
        last = high if one_band else min(high, first + (length - 1) * kind.slide)
        context = Context.between(first - 1, last, budget_bytes=budget_bytes)
        empty = plan.parts.schema.empty_table()
        due = due_windows(plan, view, empty, context, plan.coarse.schema.empty_table() if coarse else None)
        rows = _with_stored(plan, view, as_arriving(plan, due), context)
        yield rows
        length = _next_length(length, rows.num_rows)
        low = last


def _rolling(plan: GroupTables, view: StateView, low: int, high: int, budget_bytes: int) -> Iterator[pa.Table]:
    yield from windows_ending(plan, view, low, high)
    context = Context.between(low, high, budget_bytes=budget_bytes)
    waiting = windows_in_parts(plan, view, low, high)
    for start in range(0, waiting.num_rows, BAND_ROWS):
        yield plan.groups.conform(groups_with(plan, view, waiting.slice(start, BAND_ROWS), context))


def _with_stored(plan: GroupTables, view: StateView, windows: pa.Table, context: Context) -> pa.Table:
    """The windows of a band, from parts and from ``groups``."""
    ending = windows_ending(plan, view, context.watermark_before, context.watermark)
    stored = pa.concat_tables([plan.groups.schema.empty_table(), *ending])
    alone = stored.filter(pa.array(~among(stored, windows, plan.identity)))
    return pa.concat_tables([alone, plan.groups.conform(groups_with(plan, view, windows, context))])


def _next_end(plan: GroupTables, view: StateView, low: int) -> int | None:
    """The first window end after ``low`` of which something is stored."""
    kind = plan.slices
    found = []
    if (part := _first(view, PARTS, keys_within(plan.last_needless_slice(low), END_US))) is not None:
        first, _ = kind.windows_of(column_numbers(part, SLICE_END), None if low == BEGINNING_US else low)
        found.append(int(first[0]))
    if (group := _first(view, GROUPS, keys_within(low, END_US))) is not None:
        found.append(int(column_numbers(group, END)[0]))
    return min(found, default=None)


def _sessions(plan: GroupTables, view: StateView, low: int, high: int, budget_bytes: int) -> Iterator[pa.Table]:
    length, gap = 1, plan.gap
    state = OverlayView(view, (plan.parts, plan.groups, plan.ends, plan.clock, plan.marks))
    one_band = _few(plan, view, 1)
    empty = plan.parts.schema.empty_table()
    moved: Numbers = np.empty(0, np.int64)  # cells that bands have added to: a scan of an overlay reads all of it
    while low < high and (first := _next_cell(plan, view, low, moved)) is not None:
        last = END_US if one_band else (first + length) * gap - 1
        context = Context.between(low, last, budget_bytes=budget_bytes)
        ready = ready_sessions(plan, state, empty, context)
        gathered = gather_groups(plan.with_input(order=()), state, ready.arriving, context, ready.alone)
        made, gone = plan.groups.conform(gathered.groups), gathered.replaced
        ends = column_numbers(made, END)
        yield made.filter(pa.array((ends > low) & (ends <= min(last, high))))
        # Late events had begun these: what the band adds to them is in parts no more.
        grown = made.filter(pa.array(ends > last))
        state.apply(
            {
                **ready.changes,
                GROUPS: TableChanges(delete=plan.groups.conform_keys(gone), put=grown),
                ENDS: TableChanges(delete=plan.ends.conform_keys(gone), put=plan.ends.conform(grown)),
            }
        )
        cells = [moved[moved > last // gap], column_numbers(grown, END) // gap]
        if (carried := ready.changes[PARTS].merge) is not None:
            cells.append(column_numbers(carried, CELL) >> 1)
        moved = np.unique(np.concatenate(cells))
        length = _next_length(length, made.num_rows)
        low = last


def _next_cell(plan: GroupTables, view: StateView, low: int, moved: Numbers) -> int | None:
    """The first cell with the end of an event, or of a stored session, after ``low``; or of those ``moved``."""
    first = None if low == BEGINNING_US else (2 * ((low + 1) // plan.gap),)
    found = [int(cell) for cell in moved[:1]]
    if (part := _first(view, PARTS, key_range(first))) is not None:
        found.append(int(column_numbers(part, CELL)[0]) >> 1)
    if (session := _first(view, ENDS, keys_within(low, END_US))) is not None:
        found.append(int(column_numbers(session, END)[0]) // plan.gap)
    return min(found, default=None)


def _few(plan: GroupTables, view: StateView, windows_each: int) -> bool:
    """Whether the parts, each in so many windows, are few enough for one band."""
    counts = accumulate(part.num_rows for part in view[PARTS].scan(folded=False))
    return not any(rows * windows_each > BAND_ROWS for rows in counts)


def _first(view: StateView, table: str, keys: KeyRange) -> pa.Table | None:
    """The first row of a range; None where it is empty."""
    return next((rows.slice(0, 1) for rows in view[table].scan(keys) if rows.num_rows), None)
