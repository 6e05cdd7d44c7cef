"""Accepted events as partials of their windows, next to the input. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidestate.operators.aggregates.signed import signs
from tidestate.operators.describe.windows import Sliding
from tidestate.operators.progress.instants import BEGINNING_US
from tidestate.operators.progress.progress import Context, watermark_of
from tidestate.operators.windows.assignment import (
    assign_windows,
    narrowed,
    own_windows,
    windows_touched,
)
from tidestate.operators.windows.expansion import combined_parts, expand_windows
from tidestate.operators.windows.groups import int_bounds
from tidestate.operators.windows.names import END, SLICE_END
from tidestate.operators.windows.parts.intake import events_as_parts
from tidestate.operators.windows.sessions import merge_sessions
from tidestate.operators.windows.tables import GroupTables
from tidestate.statestore.arrays import Times, Values
from tidestate.statestore.errors import of_type
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.table.fold import combine, combine_values


def arriving_parts(plan: GroupTables, events: pa.Table, times: Times, context: Context) -> pa.Table:
    """Accepted events as rows of `GroupTables.taken`: one per window and key, or one per event and window."""
    if plan.lazy and plan.in_cells:
        return _as_windows(plan, events, times, context)
    if plan.lazy and (plan.reprocessing or plan.touching):
        return _as_parts(plan, events, times, context)
    if plan.lazy:
        return events_as_parts(plan, events, times, watermark_of(context.before))
    return _as_windows(plan, events, times, context)


def _as_parts(plan: GroupTables, events: pa.Table, times: Times, context: Context) -> pa.Table:
    """Whole windows in the columns of parts: late events that are reprocessed may be for one window alone, and a
    lifetime may touch several tumbling ones.
    """
    rows = _as_windows(plan, events, times, context).rename_columns({END: SLICE_END})
    return rows.select(plan.parts.schema.names).cast(plan.parts.schema)


def _as_windows(plan: GroupTables, events: pa.Table, times: Times, context: Context) -> pa.Table:
    if plan.overlapping and not plan.per_event:
        return _overlapping(plan, events, times, context)
    index, starts, ends = assign_windows(plan.kind, times, events)
    watermark = context.watermark_before
    if watermark != BEGINNING_US and plan.refuses_by_windows(watermark) and not plan.by_number:
        open_ = ends > plan.refused_at(watermark)
        index, starts, ends = index[open_], starts[open_], ends[open_]
    places = pa.array(index)
    keys: list[Values] = [events[name].take(places) for name in plan.key_names] or [_single_key(len(index))]
    bounds = [pa.array(values).cast(plan.bound_type) for values in (starts, ends)]
    columns = [column.take(places) for column in plan.lifted(events)]
    sizes = [pa.array(np.ones(len(index), np.int64))]
    if plan.signed:
        sizes.append(pa.array(signs(events)[index]))
    if plan.per_event:
        extra: list[Values] = [events[name].take(places) for name in plan.order]
        if plan.in_order:
            extra.append(pa.array(times[index]))
        if plan.triggers.finishes:
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
    kind, spec = of_type(plan.kind, Sliding), plan.slices_of_events
    ends = pa.array(kind.slice_ends(times)).cast(plan.bound_type)
    keys: list[Values] = [events[name] for name in plan.key_names] or [_single_key(len(times))]
    sizes = [pa.array(np.ones(len(times), np.int64)), *([pa.array(signs(events))] if plan.signed else [])]
    rows = _typed(spec, [*keys, ends, *sizes, *plan.lifted(events)])
    only = own_windows(events)
    if only is None and plan.orderless and not plan.touching:
        rows = combine(spec, rows)
    closed, watermark = None, context.watermark_before
    if watermark != BEGINNING_US and plan.refuses_by_windows(watermark):
        closed = plan.refused_at(watermark)
    if plan.touching:
        first, counts = windows_touched(kind, times, events, closed)
    else:
        first, counts = kind.windows_of(rows["slice_end"].cast(pa.int64()).to_numpy(), closed)
    if only is not None:
        first, counts = narrowed(kind, first, counts, only)

    def pairs(index: Times, nth: Times) -> pa.Table:
        columns = rows.take(pa.array(index))
        ends = first[index] + nth * kind.slide
        bounds = [pa.array(values).cast(plan.bound_type) for values in (ends - kind.size, ends)]
        by_key, values = columns.select(plan.group_keys), columns.drop_columns([*plan.group_keys, "slice_end"])
        return pa.table([*by_key.columns, *bounds, *values.columns], schema=plan.arriving.schema)

    parts = expand_windows(plan.arriving, rows, plan.group_keys, counts, pairs, context.budget_bytes)
    return combined_parts(plan.arriving, parts)


def _whole(plan: GroupTables, events: pa.Table) -> pa.Array:
    """Each event as one struct, for the ledger."""
    columns = [events[name].combine_chunks() for name in plan.input_schema.names]
    names = [f"_{number}" for number in range(len(columns))]
    return pa.StructArray.from_arrays(columns, names=names)


def _merged(plan: GroupTables, rows: pa.Table) -> pa.Table:
    """``rows`` of sessions, merged."""
    merged = merge_sessions(plan.group_keys, int_bounds(rows))
    values = combine_values(plan.arriving, rows, merged.owner, merged.windows.num_rows)
    return pa.table([*merged.windows.columns, *values.columns], schema=plan.arriving.schema)


def _single_key(count: int) -> pa.Array:
    return pa.array(np.zeros(count, np.int8))
