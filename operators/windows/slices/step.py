"""The fast path next to the state: fires windows and updates slices. A pure function of its arguments.

``before`` is the watermark at the start of the batch, ``after`` the one at its end. Both are exclusive: a window
fires on time if ``before < end <= after``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.aggregates.results import results as finished
from tidestate.operators.plan.transition import (
    BUDGET_BYTES,
    KINDS,
    TIMINGS,
    StepTimes,
    Transition,
    check_on_time,
    constant,
)
from tidestate.operators.progress.instants import BEGINNING_US, END_US
from tidestate.operators.windows.expansion import SHARE, combined_parts, expand_windows
from tidestate.operators.windows.slices.requests import RequestedWindows
from tidestate.operators.windows.slices.tables import SliceTables
from tidestate.statestore.arrays import Numbers
from tidestate.statestore.spec.changes import Lookup, TableChanges
from tidestate.statestore.spec.keyrange import key_range
from tidestate.statestore.spec.lists import places_within
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.spec.tables import TIME
from tidestate.statestore.table.fold import combine

LOOKED_UP = 1 << 18
"""Up to this number, slices are looked up one by one."""


def slice_step(plan: SliceTables, view: StateView, partials: pa.Table, at: StepTimes) -> Transition:
    """The transition of the state in ``view`` by ``partials``, rows of the slices table; keys may repeat."""
    low, high = at.before, max(at.before, at.after)
    on_time = _fire_on_time(plan, view, partials, replace(at, after=high)) if high > low else None
    closed_bound, fired_bound, slice_bound = bounds(plan, high)
    late = _fire_late(plan, view, partials, at, closed_bound)
    panes: list[pa.Table] = []
    counters: dict[str, int] = {}
    remembered = []
    if late is not None:
        retractions, emissions, last = late
        panes += [retractions, emissions]
        remembered.append(last)
        counters |= {"panes_late": emissions.num_rows, "retractions": retractions.num_rows}
    if on_time is not None and on_time.num_rows:
        check_on_time(on_time.select(plan.windows_spec.key_names), _times(on_time["window_end"]), low, high)
        on_time = _finished(plan, on_time)
        panes.append(_panes(plan, on_time, "on_time", "emit", None, closed_bound))
        counters["panes_on_time"] = on_time.num_rows
        remembered.append(_remember(plan, on_time, None))
    changes = {
        plan.slices.name: TableChanges(merge=_after(plan.slices.expiry, partials, slice_bound), expire=slice_bound),
        plan.fired.name: TableChanges(put=_still_open(plan, remembered, fired_bound), expire=fired_bound),
    }
    return Transition(changes, pa.concat_tables([plan.pane_schema.empty_table(), *panes]), counters)


def whole_windows(plan: SliceTables, view: StateView, after_us: int) -> pa.Table:
    """All windows that end after ``after_us``, fired or not, with ``window_start``; for queries."""
    stored = view[plan.slices.name].scan(folded=False)
    rows = by_window(plan, stored, after_us, END_US)
    starts = pa.array(_times(rows["window_end"]) - plan.windows.size).cast(TIME)
    return rows.add_column(0, "window_start", starts)


def _fire_on_time(plan: SliceTables, view: StateView, partials: pa.Table, at: StepTimes) -> pa.Table:
    """The value of each key and window with ``before < end <= after``: state and batch combined."""
    first = None if at.before == BEGINNING_US else plan.windows.oldest_slice_after(at.before) + 1
    last = None if at.after == END_US else at.after + 1
    own = partials if first is None and last is None else _between(partials, first, last)
    lower, upper = ((bound,) if bound is not None else None for bound in (first, last))
    stored = view[plan.slices.name].scan(key_range(lower, upper), folded=False)
    return by_window(plan, chain(stored, [own]), at.before, at.after, at.budget_bytes)


def by_window(
    plan: SliceTables, slices: Iterable[pa.Table], low: int, high: int, budget_bytes: int = BUDGET_BYTES
) -> pa.Table:
    """Combine slices by window and key, for the windows with ``low < end <= high``.

    Slices are combined piece by piece; only if their order matters are all of them in memory.
    """
    spec = plan.windows_spec
    if plan.windows.tumbles:
        slices = list(slices)
        return combine(
            spec, pa.concat_tables([plan.slices.schema.empty_table(), *slices]).rename_columns(spec.schema.names)
        )
    pieces = _pieces(plan, slices, budget_bytes)
    return combined_parts(spec, (part for rows in pieces for part in _expanded(plan, rows, low, high, budget_bytes)))


def _expanded(plan: SliceTables, rows: pa.Table, low: int, high: int, budget_bytes: int) -> Iterator[pa.Table]:
    first, counts = plan.windows.windows_of(_times(rows["slice_end"]), low, high)

    def pairs(index: Numbers, nth: Numbers) -> pa.Table:
        ends = pa.array(first[index] + nth * plan.windows.slide).cast(TIME)
        return rows.take(pa.array(index)).set_column(0, "window_end", ends)

    yield from expand_windows(plan.windows_spec, rows, plan.key_names, counts, pairs, budget_bytes)


def _pieces(plan: SliceTables, slices: Iterable[pa.Table], budget_bytes: int) -> Iterator[pa.Table]:
    """Slices in tables of a share of the budget; if their order matters, in one table in the order of time."""
    held, size = [plan.slices.schema.empty_table()], 0
    for rows in slices:
        held.append(rows)
        size += rows.nbytes
        if size > budget_bytes // SHARE and not plan.ordered:
            yield pa.concat_tables(held)
            held, size = held[:1], 0
    rows = pa.concat_tables(held)
    if plan.ordered:
        rows = rows.take(pa.array(np.argsort(_times(rows["slice_end"]), kind="stable")))
    yield rows


def _fire_late(
    plan: SliceTables, view: StateView, partials: pa.Table, at: StepTimes, closed_bound: int | None
) -> tuple[pa.Table, pa.Table, pa.Table] | None:
    """Retractions, late panes and rows of the fired table, for late windows that this batch changes."""
    low = at.before
    if low == BEGINNING_US or not partials.num_rows:
        return None
    first_ends = plan.windows.first_ends(_times(partials["slice_end"]))
    touching = partials.filter(pa.array(first_ends <= low)) if bool((first_ends <= low).any()) else None
    if touching is None:
        return None
    added = by_window(plan, [combine(plan.slices, touching)], plan.expired_at(low), low, at.budget_bytes)
    if not added.num_rows:
        return None
    keys = added.select(plan.fired.key_names)
    fired = view[plan.fired.name].lookup(keys)
    values = added
    if plan.mode != "discarding":
        values = values_of_windows(plan, view, keys, partials, at.budget_bytes).rows
    # The number after the last pane; 0 if the window never fired.
    number = pc.fill_null(pc.add(fired.rows["pane"], 1), 0)
    values = _finished(plan, values)
    emissions = _panes(plan, values, "late", "emit", number, closed_bound)
    retractions = plan.pane_schema.empty_table()
    if plan.mode == "retracting":
        retractions = _retractions(plan, fired)
    return retractions, emissions, _remember(plan, values, number)


def _retractions(plan: SliceTables, fired: Lookup) -> pa.Table:
    """The last panes of windows that had fired, as retractions."""
    rows = fired.rows.filter(fired.found)
    columns = [
        pc.subtract(rows["window_end"].cast(pa.int64()), plan.windows.size).cast(TIME),
        rows["window_end"],
        *(rows[name] for name in plan.key_names),
        *(rows[a.name] for a in plan.aggregates),
        rows["pane"],
        constant(rows.num_rows, "late", TIMINGS),
        constant(rows.num_rows, "retract", KINDS),
        pa.array(np.zeros(rows.num_rows, bool)),
    ]
    return pa.table(columns, schema=plan.pane_schema)


def values_of_windows(
    plan: SliceTables,
    view: StateView,
    keys: pa.Table,
    partials: pa.Table | None = None,
    budget_bytes: int = BUDGET_BYTES,
) -> Lookup:
    """The complete value of each (window, key) in ``keys``, in their order: from stored slices and ``partials``."""
    if not keys.num_rows:
        return Lookup(pa.array([], pa.bool_()), plan.windows_spec.schema.empty_table())
    requested = RequestedWindows(plan, keys)
    partials = plan.slices.schema.empty_table() if partials is None else combine(plan.slices, partials)
    pieces = _pieces(plan, chain(_requested_slices(plan, view, requested), [partials]), budget_bytes)
    parts = (part for rows in pieces for part in requested.combined(rows, budget_bytes))
    return requested.lookup(combined_parts(requested.spec, parts))


def _requested_slices(plan: SliceTables, view: StateView, requested: RequestedWindows) -> Iterator[pa.Table]:
    """The stored slices of these windows: looked up if they are few, else a scan of their range, which is cheaper."""
    low, counts = requested.slices
    if int(counts.sum()) > LOOKED_UP:
        lower, upper = int(low.min()) + 1, int(requested.ends.max()) + 1
        return view[plan.slices.name].scan(key_range((lower,), (upper,)), folded=False)
    index = np.repeat(np.arange(len(counts)), counts)
    ends = low[index] + (places_within(counts) + 1) * plan.windows.slice
    wanted = requested.keys.take(pa.array(index)).set_column(0, "slice_end", pa.array(ends).cast(TIME))
    found = view[plan.slices.name].lookup(wanted)
    return iter([found.rows.filter(found.found)])


def _finished(plan: SliceTables, values: pa.Table) -> pa.Table:
    """The results of windows with these partials, with window end and key."""
    results = finished(plan.aggregates, values)
    return pa.table(
        [*values.select(plan.fired.key_names).columns, *results.columns],
        names=[*plan.fired.key_names, *results.column_names],
    )


def _panes(
    plan: SliceTables,
    values: pa.Table,
    timing: str,
    kind: str,
    number: pa.Array | pa.ChunkedArray | None,
    closed_bound: int | None,
) -> pa.Table:
    """Panes of windows with these results. A pane is the last one if its window accepts no more events."""
    rows = values.num_rows
    ends = _times(values["window_end"])
    final = np.zeros(rows, bool) if closed_bound is None else ends <= closed_bound
    columns = [
        pa.array(ends - plan.windows.size).cast(TIME),
        values["window_end"],
        *(values[name] for name in plan.key_names),
        *(values[aggregate.name] for aggregate in plan.aggregates),
        pa.array(np.zeros(rows, np.int64)) if number is None else number,
        constant(rows, timing, TIMINGS),
        constant(rows, kind, KINDS),
        pa.array(final),
    ]
    return pa.table(columns, schema=plan.pane_schema)


def _remember(plan: SliceTables, values: pa.Table, number: pa.Array | pa.ChunkedArray | None) -> pa.Table:
    """Rows of the fired table for panes with these results."""
    numbers = pa.array(np.zeros(values.num_rows, np.int64)) if number is None else number
    results = [values[aggregate.name] for aggregate in plan.aggregates]
    keys = [values[name] for name in plan.fired.key_names]
    return pa.table([*keys, numbers, *results], schema=plan.fired.schema)


def _still_open(plan: SliceTables, remembered: list[pa.Table], fired_bound: int | None) -> pa.Table | None:
    """The rows of the fired table whose window may fire again."""
    if not remembered:
        return None
    return _after(plan.fired.expiry, pa.concat_tables(remembered), fired_bound)


def _after(column: str | None, rows: pa.Table, bound: int | None) -> pa.Table | None:
    """Rows whose time in ``column`` is after ``bound``."""
    if not rows.num_rows or bound is None or column is None:
        return rows if rows.num_rows else None
    keep = _times(rows[column]) > bound
    if keep.all():
        return rows
    return rows.filter(pa.array(keep)) if keep.any() else None


def bounds(plan: SliceTables, watermark: int) -> tuple[int | None, int | None, int | None]:
    """The last window end that is closed, the last window end and slice end that are expired; None for none."""
    if watermark == BEGINNING_US:
        return None, None, None
    if watermark == END_US:
        return END_US - 1, END_US - 1, END_US - 1
    expired = plan.expired_at(watermark)
    return plan.closed_at(watermark), expired, plan.windows.oldest_slice_after(expired)


def _between(rows: pa.Table, first: int | None, last: int | None) -> pa.Table:
    times = _times(rows["slice_end"])
    keep = np.ones(len(times), bool)
    if first is not None:
        keep &= times >= first
    if last is not None:
        keep &= times < last
    return rows if keep.all() else rows.filter(pa.array(keep))


def _times(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    values: npt.NDArray[np.int64] = column.cast(pa.int64()).to_numpy()
    return values
