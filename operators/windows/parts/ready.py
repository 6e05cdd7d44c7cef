"""Tumbling and sliding windows in parts: one for each slice and key. Pure.

Parts are merged blindly. Those of the windows that the watermark passes are combined and handed over to the window
operator, as if they arrived then. Late events, of windows that are past their end, are handed over at once: so parts
hold nothing of a window that has fired, and a window that is closed is never computed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np
import pyarrow as pa

from tidestate.operators.progress.instants import BEGINNING_US, END_US
from tidestate.operators.progress.progress import Context
from tidestate.operators.windows.expansion import combined_parts, pairs_within
from tidestate.operators.windows.groups import Ready
from tidestate.operators.windows.names import COARSE, PARTS
from tidestate.operators.windows.parts.coarse import coarse_changes, coarse_of, edge_windows, has_coarse, ranges_due
from tidestate.operators.windows.parts.slices import (
    as_arriving,
    combined_windows,
    expanded,
    parts_between,
    pieces_of,
    slice_ends,
)
from tidestate.operators.windows.tables import GroupTables
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.keyrange import key_range
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.table.fold import combine


def ready_windows(plan: GroupTables, view: StateView, arriving: pa.Table, context: Context) -> Ready:
    """Late arrivals and the windows that are due; everything else waits. ``arriving``: rows of `GroupTables.parts`,
    or of `GroupTables.windows` if late events are reprocessed.
    """
    low, high = context.watermark_before, max(context.watermark_before, context.watermark)
    stored = has_coarse(plan, view, low)
    found = []
    if plan.reprocessing:
        again, arriving = _reprocessed(plan, arriving, low)
        found.append(as_arriving(plan, again))
    elif arriving.num_rows and low != BEGINNING_US:
        found.append(_late(plan, arriving, low, context.budget_bytes))
    coarse = coarse_of(plan, arriving) if plan.coarse_slices and plan.orderless else None
    if high > low:
        due = due_windows(plan, view, arriving, context, coarse if stored else None)
        found.append(as_arriving(plan, due))
    bound = _needless(plan, high)
    if bound is not None:
        arriving = parts_between(arriving, bound + 1, None)
    rows = pa.concat_tables([plan.arriving.schema.empty_table(), *found])
    changes = {PARTS: TableChanges(merge=arriving if arriving.num_rows else None)}
    return Ready(rows, changes | coarse_changes(plan, view, coarse, high, stored=stored))


def _reprocessed(plan: GroupTables, windows: pa.Table, watermark: int) -> tuple[pa.Table, pa.Table]:
    """The windows that take their events at once, and as parts those that wait: behind what has arrived before. One
    of several that share events takes them at once, as a part would be in all of them.
    """
    waits = slice_ends(windows) > watermark if plan.slices.tumbles else np.zeros(windows.num_rows, bool)
    now = windows.filter(pa.array(~waits)).rename_columns(plan.windows.schema.names)
    return now, windows.filter(pa.array(waits))


def _late(plan: GroupTables, arriving: pa.Table, watermark: int, budget_bytes: int) -> pa.Table:
    """Arrivals at windows that end at or before the watermark and still accept events, as rows of
    `GroupTables.arriving`.
    """
    late = plan.slices.first_ends(slice_ends(arriving)) <= watermark
    if not late.any():
        return plan.arriving.schema.empty_table()
    rows = arriving.filter(pa.array(late))
    if not plan.sees_order:
        rows = combine(plan.parts, rows)
    refused = plan.closed_at(watermark)
    windows = combined_windows(plan, [rows], refused, watermark, budget_bytes, as_they_are=True)
    return as_arriving(plan, windows)


def due_windows(
    plan: GroupTables, view: StateView, arriving: pa.Table, context: Context, coarse: pa.Table | None
) -> pa.Table:
    """The windows whose ends the watermark passes, of stored and arriving parts: rows of `GroupTables.windows`.
    ``coarse``: the coarse parts that arrive, if such parts are stored for all of the others.
    """
    if coarse is not None:
        some = [_due_by_levels(plan, view, arriving, coarse, turn) for turn in _turns(plan, coarse, context)]
        return pa.concat_tables([plan.windows.schema.empty_table(), *some])
    before, after = context.watermark_before, context.watermark
    first = None if before == BEGINNING_US else plan.slices.oldest_slice_after(before) + 1
    last = None if after == END_US else after + 1
    lower, upper = ((bound,) if bound is not None else None for bound in (first, last))
    rows = parts_between(arriving, first, last)
    if context.only_arrivals and not rows.num_rows:
        return plan.windows.schema.empty_table()
    stored = view[PARTS].scan(key_range(lower, upper), folded=False) if not context.only_arrivals else iter(())
    parts = chain(stored, [rows])
    return combined_windows(plan, parts, before, after, context.budget_bytes)


def _turns(plan: GroupTables, coarse: pa.Table, context: Context) -> Iterator[Context]:
    """The context in spans of as many window ends as the budget has room for, if each window has about as many keys
    as arrive.
    """
    many = max(1, pairs_within(coarse, context.budget_bytes) // max(1, coarse.num_rows)) * plan.slices.slide
    low = context.watermark_before
    if low != BEGINNING_US and context.watermark != END_US:
        first = plan.slices.first_end_at_or_after(low + 1)
        for high in range(first + many - plan.slices.slide, context.watermark, many):
            yield context.reaching(low, high)
            low = high
    yield context.reaching(low, context.watermark)


def _due_by_levels(
    plan: GroupTables, view: StateView, arriving: pa.Table, coarse: pa.Table, context: Context
) -> pa.Table:
    """The same from coarse parts, and slices at the edges of windows."""
    kind, many = plan.slices, plan.coarse_slices
    fine, whole_cells = ranges_due(plan, context.watermark_before, context.watermark)
    slices = chain.from_iterable(view[PARTS].scan(keys, folded=False) for keys in fine)
    whole = view[COARSE].scan(whole_cells, folded=False)

    def combined() -> Iterator[pa.Table]:
        for rows in pieces_of(plan, chain(whole, [coarse]), context.budget_bytes):
            first, counts = kind.windows_of(
                slice_ends(rows), context.watermark_before, context.watermark, slices=many
            )
            yield from expanded(plan, rows, first, counts, context.budget_bytes)
        for rows in pieces_of(plan, chain(slices, [arriving]), context.budget_bytes):
            for first, counts in edge_windows(
                kind, slice_ends(rows), many, context.watermark_before, context.watermark
            ):
                yield from expanded(plan, rows, first, counts, context.budget_bytes)

    return combined_parts(plan.windows, combined())


def _needless(plan: GroupTables, watermark: int) -> int | None:
    """Parts that end at or before this are in windows that have fired; None before the first watermark."""
    if watermark == BEGINNING_US:
        return None
    return END_US - 1 if watermark == END_US else plan.slices.oldest_slice_after(watermark)
