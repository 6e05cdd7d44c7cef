"""Rolling windows: of each key a window for every time at which it has an event, of the last span before. Pure.

Events are stored once, combined by key and time, in ``parts``; a window is a range of them. A window gets what is in
its range when the watermark passes its end, or before if a trigger looks at open windows; from then on it is a row
of ``groups`` like any other window, and an event that arrives later is handed over to each group in whose range it
is. A late event has a window of its own too, which begins with what is stored. So a window is always either in
``groups`` with all of its events, or only in ``parts``.

Parts stay as long as a late event may make a window of them: as windows are retained, and their size longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tidestate.operators.plan.dues import keys_within
from tidestate.operators.progress.progress import Context
from tidestate.operators.progress.watermarks import BEGINNING_US
from tidestate.operators.windows.names import END, GROUPS, PARTS, SLICE_END, START
from tidestate.operators.windows.ranges import combined_ranges
from tidestate.operators.windows.tables import GroupTables, column_numbers
from tidestate.statestore.arrays import Numbers
from tidestate.statestore.spec.changes import ChangeSet, TableChanges
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.table.fold import combine
from tidestate.statestore.table.sorting import among, shared_ranks, sorting


def ready_rolling(
    plan: GroupTables, view: StateView, arriving: pa.Table, context: Context
) -> tuple[pa.Table, ChangeSet]:
    """Rows of `GroupTables.arriving` that are handed over to groups: windows that are due or looked at, and what late
    events add; and the changes of what waits. ``arriving``: rows of `GroupTables.parts`.
    """
    new = combine(plan.parts, arriving)
    changes = {PARTS: TableChanges(merge=new if new.num_rows else None)}
    before, after = context.watermark_before, max(context.watermark_before, context.watermark)
    looks, ends = plan.triggers.early is not None, _ends(new)
    spans = [_span(ends if looks else ends[ends <= after], plan.rolls.size if looks else 1)]
    if after > before and not context.only_arrivals:
        spans.append((before, after))
    spans = [(low, high) for low, high in spans if low < high]
    groups = _groups(plan, view, [*spans, _span(ends, plan.rolls.size)])
    handed = [_handed_over(plan, new, groups.filter(pa.array(_ranges(plan, new, groups).counts > 0)))]
    if spans:
        low, high = min(low for low, _ in spans), max(high for _, high in spans)
        events = combine(plan.parts, pa.concat_tables([*_events(plan, view, low, high), new]))
        windows = events.select(plan.parts.key_names)
        chosen = (_ends(windows) > before) & (_ends(windows) <= after)
        chosen |= among(windows, new.filter(pa.array(ends <= before)), plan.parts.key_names)
        if looks:
            chosen |= (_ends(windows) > after) & (_ranges(plan, new, windows).counts > 0)
        chosen &= ~among(windows, groups, plan.parts.key_names)
        handed.append(_handed_over(plan, events, windows.filter(pa.array(chosen))))
    return pa.concat_tables(handed), changes


def windows_in_parts(plan: GroupTables, view: StateView, low: int, high: int) -> pa.Table:
    """Windows with ``low < end <= high`` that are in parts alone, as rows of `GroupTables.arriving`."""
    groups = _groups(plan, view, [(low, high)])
    events = combine(plan.parts, pa.concat_tables([plan.parts.schema.empty_table(), *_events(plan, view, low, high)]))
    windows = events.select(plan.parts.key_names)
    waits = (_ends(windows) > low) & ~among(windows, groups, plan.parts.key_names)
    return _handed_over(plan, events, windows.filter(pa.array(waits)))


def _ends(parts: pa.Table) -> Numbers:
    return column_numbers(parts, SLICE_END)


def _span(ends: Numbers, size: int) -> tuple[int, int]:
    """The ends of windows, exclusive to inclusive, that hold events of these ends; an empty span for none."""
    return (int(ends.min()) - 1, int(ends.max()) + size - 1) if len(ends) else (0, 0)


def _events(plan: GroupTables, view: StateView, low: int, high: int) -> Iterator[pa.Table]:
    """Stored parts of the windows with ``low < end <= high``."""
    above = low if low == BEGINNING_US else low + 1 - plan.rolls.size
    yield from view[PARTS].scan(keys_within(above, high), folded=False)


def _groups(plan: GroupTables, view: StateView, spans: Sequence[tuple[int, int]]) -> pa.Table:
    """The windows of ``groups`` with ends in the ``spans``, at least: their end and key, as in parts."""
    spans = [(low, high) for low, high in spans if low < high]
    names, found = plan.parts.key_names, [plan.parts.key_schema.empty_table()]
    if spans:
        low, high = min(low for low, _ in spans), max(high for _, high in spans)
        stored = view[GROUPS].scan(keys_within(low, high))
        found += [rows.select([END, *plan.group_keys]).rename_columns(names) for rows in stored]
    return pa.concat_tables(found)


class _Ranges(NamedTuple):
    """Where the events of windows are: ``order`` sorts events by key and time; ``first`` and ``counts`` are of each
    window.
    """

    order: Numbers
    first: Numbers
    counts: Numbers


def _ranges(plan: GroupTables, events: pa.Table, windows: pa.Table) -> _Ranges:
    """The range of ``events`` of each window: those of its key that are in it."""
    (of_events, of_windows), _ = shared_ranks([rows.select(plan.group_keys) for rows in (events, windows)])
    moments, moment = np.unique(_ends(events), return_inverse=True)
    code = of_events * (len(moments) + 1) + moment
    order = sorting(code)
    bounds = [
        np.searchsorted(moments, ends, side="right") for ends in (_ends(windows) - plan.rolls.size, _ends(windows))
    ]
    low, high = (np.searchsorted(code[order], of_windows * (len(moments) + 1) + bound) for bound in bounds)
    return _Ranges(order, low, high - low)


def _handed_over(plan: GroupTables, events: pa.Table, windows: pa.Table) -> pa.Table:
    """The ``events`` of each of these windows, combined: rows of `GroupTables.arriving`."""
    ranges = _ranges(plan, events, windows)
    values = combined_ranges(plan.parts, events.take(pa.array(ranges.order)), ranges.first, ranges.counts)
    starts = pa.array(_ends(windows) - plan.rolls.size).cast(plan.bound_type)
    bounded = windows.rename_columns({SLICE_END: END}).append_column(START, starts)
    columns = zip([*bounded.column_names, *values.column_names], [*bounded.columns, *values.columns], strict=True)
    return plan.arriving.conform(plan.counted_parts(pa.table(dict(columns))))
