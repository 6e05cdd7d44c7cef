"""Coarse parts: each combines many slices, so that a long window needs few rows. Pure.

A day that slides by a minute has 1,440 slices; with coarse parts of 38 minutes it is combined from 37 of these and at
most 76 slices. Coarse parts are merged as slices are, which stay, as later windows have other edges.
They serve aggregates whose result does not depend on order.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from tidestate.operators.describe.windows import Sliding
from tidestate.operators.progress.instants import BEGINNING_US, END_US
from tidestate.operators.windows.names import COARSE, PARTS, SLICE_END
from tidestate.operators.windows.tables import GroupTables
from tidestate.statestore.arrays import Numbers, Times
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.keyrange import EVERYTHING, KeyRange, key_range
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.table.fold import combine


def coarse_of(plan: GroupTables, parts: pa.Table) -> pa.Table:
    """Parts combined to coarse ones: rows of `GroupTables.coarse`."""
    ends = cell_ends(plan.slices, parts[SLICE_END].cast(pa.int64()).to_numpy(), plan.coarse_slices)
    column = pa.array(ends).cast(plan.bound_type)
    return combine(plan.coarse, parts.set_column(parts.column_names.index(SLICE_END), SLICE_END, column))


def cell_ends(kind: Sliding, ends: Times, slices: int) -> Times:
    """The end of the coarse part, of ``slices`` slices, that each slice is in. Shape as given."""
    width = slices * kind.slice
    cells: Times = -((kind.shift - ends) // width) * width + kind.shift
    return cells


def edge_windows(kind: Sliding, ends: Times, slices: int, low: int, high: int) -> Iterator[tuple[Times, Numbers]]:
    """The windows with ``low < end <= high`` that hold a slice, but not all of its coarse part: twice the end of the
    first and how many there are, for the edge at the end of a window and the one at its start.
    """
    first, counts = kind.windows_of(ends, low, high)
    last = first + (counts - 1) * kind.slide
    cells = cell_ends(kind, ends, slices)
    yield first, _steps(kind, first, np.minimum(last, cells - 1))
    # Windows that hold the whole coarse part end from ``cells`` to ``whole``.
    whole = cells - slices * kind.slice + kind.size
    skipped = np.maximum(0, -((first - np.maximum(whole + 1, cells)) // kind.slide))
    following = first + skipped * kind.slide
    yield following, _steps(kind, following, last)


def _steps(kind: Sliding, first: Times, last: Times) -> Numbers:
    """The number of window ends from ``first`` to ``last``."""
    counts: Numbers = np.maximum(0, (last - first) // kind.slide + 1)
    return counts


def ranges_due(plan: GroupTables, low: int, high: int) -> tuple[list[KeyRange], KeyRange]:
    """The slices and the coarse parts that may be needed for the windows with ``low < end <= high``."""
    kind, slices = plan.slices, plan.coarse_slices
    if low == BEGINNING_US or high == END_US:
        after = None if low == BEGINNING_US else (kind.oldest_slice_after(low) + 1,)
        before = None if high == END_US else (high + 1,)
        return [key_range(after, before)], key_range(after, before)
    first, last = kind.first_end_at_or_after(low + 1), kind.last_end_at_or_before(high)
    if first > last:
        return [], key_range((last,), (last,))
    whole = key_range((first - kind.size + 1,), (last + 1,))
    cells = cell_ends(kind, np.array([last - kind.size, first]), slices)
    trailing, leading = int(cells[0]), int(cells[1]) - slices * kind.slice
    if trailing >= leading:
        return [whole], whole
    return [key_range((first - kind.size + 1,), (trailing + 1,)), key_range((leading + 1,), (last + 1,))], whole


def has_coarse(plan: GroupTables, view: StateView, watermark: int) -> bool:
    """Whether coarse parts are stored, for each slice that windows may need."""
    if not plan.coarse_slices:
        return False
    ranges = [EVERYTHING]
    if watermark not in (BEGINNING_US, END_US):  # there is probably one; to scan all reads every changelog segment
        cell = int(cell_ends(plan.slices, np.array([watermark]), plan.coarse_slices)[0])
        ranges = [key_range((cell,), (cell + 1,)), EVERYTHING]
    return any(rows.num_rows for keys in ranges for rows in view[COARSE].scan(keys, folded=False))


def coarse_changes(
    plan: GroupTables, view: StateView, arriving: pa.Table | None, watermark: int, *, stored: bool
) -> dict[str, TableChanges]:
    """The changes of the table of coarse parts as ``arriving`` ones are merged, None if there shall be none;
    ``stored``: as `has_coarse` says.
    """
    if not plan.coarse_slices:
        return {}
    if arriving is None:  # former aggregates may have left some
        return {COARSE: TableChanges(delete=all_keys(plan, view))} if stored else {}
    bound = None
    if watermark != BEGINNING_US:
        width = plan.coarse_slices * plan.slices.slice
        bound = END_US - 1 if watermark == END_US else plan.slices.oldest_slice_after(watermark) + width - 1
    rows = arriving
    if not stored:  # none yet, or none since aggregates needed an order
        former = coarse_of(plan, pa.concat_tables([plan.parts.schema.empty_table(), *view[PARTS].scan(folded=False)]))
        rows = pa.concat_tables([rows, former])
    if bound is not None:
        rows = rows.filter(pa.array(rows[SLICE_END].cast(pa.int64()).to_numpy() > bound))
    return {COARSE: TableChanges(merge=rows if rows.num_rows else None)}


def all_keys(plan: GroupTables, view: StateView) -> pa.Table:
    """The keys of all coarse parts."""
    return pa.concat_tables(
        [plan.coarse.key_schema.empty_table(), *(rows.select(plan.coarse.key_names) for rows in view[COARSE].scan())]
    )
