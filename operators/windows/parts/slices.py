"""Slices of tumbling and sliding windows: combined by window. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.progress.instants import BEGINNING_US, END_US
from tidestate.operators.progress.progress import BUDGET_BYTES
from tidestate.operators.windows.expansion import SHARE, combined_parts, expand_windows
from tidestate.operators.windows.groups import column_numbers
from tidestate.operators.windows.names import ELEMENTS, END, SLICE_END, START
from tidestate.operators.windows.tables import GroupTables
from tidestate.statestore.arrays import Numbers, Values
from tidestate.statestore.table.fold import combine


def combined_windows(
    plan: GroupTables,
    parts: Iterable[pa.Table],
    low: int,
    high: int,
    budget_bytes: int = BUDGET_BYTES,
    *,
    as_they_are: bool = False,
) -> pa.Table:
    """Combine parts by window and key, for the windows with ``low < end <= high``: rows of `GroupTables.windows`.

    Parts are combined piece by piece, those of each window in the order of time, or ``as_they_are``; only if their
    order matters are all of them in memory.
    """
    spec = plan.windows
    if plan.slices.tumbles and not plan.by_offset:
        rows = pa.concat_tables([plan.parts.schema.empty_table(), *parts])
        rows = parts_between(rows, None if low == BEGINNING_US else low + 1, None if high == END_US else high + 1)
        return combine(spec, rows.rename_columns(spec.schema.names))
    pieces = parts if as_they_are else pieces_of(plan, parts, budget_bytes)
    spans = ((rows, *plan.slices.windows_of(slice_ends(rows), low, high)) for rows in pieces)
    return combined_parts(spec, (part for one in spans for part in expanded(plan, *one, budget_bytes)))


def expanded(
    plan: GroupTables, rows: pa.Table, first: Numbers, counts: Numbers, budget_bytes: int
) -> Iterator[pa.Table]:
    """Parts combined by window, each in ``counts`` windows from the one that ends at ``first``."""

    def pairs(index: Numbers, nth: Numbers) -> pa.Table:
        ends = pa.array(first[index] + nth * plan.slices.slide).cast(plan.bound_type)
        return rows.take(pa.array(index)).set_column(0, END, ends)

    yield from expand_windows(plan.windows, rows, plan.group_keys, counts, pairs, budget_bytes)


def pieces_of(plan: GroupTables, parts: Iterable[pa.Table], budget_bytes: int) -> Iterator[pa.Table]:
    """Parts in tables of a share of the budget; if their order matters, in one table in the order of time."""
    most = budget_bytes // SHARE
    held, size = [plan.parts.schema.empty_table()], 0
    for rows in chain.from_iterable(_cut(part, most) for part in parts) if plan.orderless else parts:
        held.append(rows)
        size += rows.nbytes
        if size > most and plan.orderless:
            yield pa.concat_tables(held)
            held, size = held[:1], 0
    rows = pa.concat_tables(held)
    if not plan.orderless:
        rows = rows.take(pa.array(np.argsort(slice_ends(rows), kind="stable")))
    yield rows


def _cut(rows: pa.Table, most_bytes: int) -> Iterator[pa.Table]:
    """``rows`` in slices of about so many bytes."""
    each = max(1, most_bytes * rows.num_rows // max(1, rows.nbytes))
    for start in range(0, rows.num_rows, each):
        yield rows.slice(start, each)


def as_arriving(plan: GroupTables, windows: pa.Table) -> pa.Table:
    """Rows of `GroupTables.windows` as rows of `GroupTables.arriving`."""
    columns: dict[str, Values] = dict(zip(windows.column_names, windows.columns, strict=True))
    columns[START] = pc.subtract(windows[END].cast(pa.int64()), plan.slices.size).cast(plan.bound_type)
    if ELEMENTS not in columns:
        columns[ELEMENTS] = pa.array(np.maximum(column_numbers(windows, plan.counted_by), 1))
    return pa.table([columns[name] for name in plan.arriving.schema.names], schema=plan.arriving.schema)


def parts_between(rows: pa.Table, first: int | None, last: int | None) -> pa.Table:
    """Parts with ``first <= end < last``."""
    ends = slice_ends(rows)
    inside = np.ones(len(ends), bool)
    if first is not None:
        inside &= ends >= first
    if last is not None:
        inside &= ends < last
    return rows if inside.all() else rows.filter(pa.array(inside))


def slice_ends(parts: pa.Table) -> Numbers:
    """The end of each part. Int64 of shape ``(parts,)``."""
    ends: Numbers = parts[SLICE_END].cast(pa.int64()).to_numpy()
    return ends
