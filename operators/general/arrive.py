"""The general operator next to the input: windows of the accepted events, and what they bring to each. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from operators.general.names import END, START
from operators.general.sessions import merge_sessions
from operators.plan import ONLY, Intake, Plan
from operators.transition import END_US
from operators.windows import Counted, Given, Global, Sessions, Windows
from statestore.errors import UsageError
from statestore.fold import combine, combine_values

if TYPE_CHECKING:
    from operators.general.plan import GeneralPlan

Times = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
FIRST_US, LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""Where the global window begins and ends: the years 1 to 9999, which every tool can show."""


def assign(kind: Windows, times: Times, events: pa.Table) -> tuple[Times, Times, Times]:
    """Every (event, window) pair: indices of events, starts and ends of windows; each of shape ``(pairs,)``.

    An event that comes back for one window only (`ONLY`) is in no other.
    """
    index, starts, ends = _assign(kind, times, events)
    if ONLY not in events.column_names:
        return index, starts, ends
    only = pc.fill_null(events[ONLY], END_US).to_numpy()[index]
    meant = (only == END_US) | (only == starts)
    return index[meant], starts[meant], ends[meant]


def _assign(kind: Windows, times: Times, events: pa.Table) -> tuple[Times, Times, Times]:
    each = np.arange(len(times))
    if isinstance(kind, Global):
        return each, np.full(len(times), FIRST_US), np.full(len(times), LAST_US)
    if isinstance(kind, Sessions):
        return each, times, times + _gaps(kind, events)
    if isinstance(kind, Counted):
        return each, np.zeros(len(times), np.int64), np.zeros(len(times), np.int64)
    if isinstance(kind, Given):
        starts, ends = (pc.fill_null(events[name].cast(pa.int64()), 0).to_numpy() for name in (START, END))
        return each, starts, ends
    return kind.assign(times)


def _gaps(kind: Sessions, events: pa.Table) -> Times | int:
    if kind.gap_column is None:
        return kind.gap
    column = events[kind.gap_column]
    gaps: Times = column.cast(pa.duration("us")).cast(pa.int64()).to_numpy()
    if len(gaps) and (column.null_count or int(gaps.min()) <= 0):
        raise UsageError("each event's gap is longer than nothing", code="session-gap", column=kind.gap_column)
    return gaps


def refusing(plan: Plan, ends: Times, watermark: int, *, feeding: bool) -> Flags:
    """Of windows with these ends, which take no event any more; ``feeding``: none that comes back either."""
    return ends <= (plan.forgotten(watermark) if feeding else plan.closed_at(watermark))


def open_to(plan: Plan, sessions: pa.Table, watermark: int) -> pa.Table:
    """Those of ``sessions`` that an event may still join: others are only kept."""
    ends = sessions[END].cast(pa.int64()).to_numpy()
    over = refusing(plan, ends, watermark, feeding=False)
    return sessions.filter(pa.array(~over)) if over.any() else sessions


def arrivals(plan: GeneralPlan, events: pa.Table, times: Times, intake: Intake) -> pa.Table:
    """What accepted events bring: rows of `GeneralPlan.exchanged`; one per window and key, or one per event."""
    index, starts, ends = assign(plan.kind, times, events)
    if (plan.rule == "window" or intake.feeding) and intake.watermark_us is not None and not plan.by_number:
        open_ = ~refusing(plan, ends, intake.watermark_us, feeding=intake.feeding)
        index, starts, ends = index[open_], starts[open_], ends[open_]
    places = pa.array(index)
    keys = [events[name].take(places) for name in plan.key_names] or [_alone(len(index))]
    bounds = [pa.array(values).cast(plan.bound_type) for values in (starts, ends)]
    columns = [column.take(places) for column in plan.lifted(events)]
    ones = pa.array(np.ones(len(index), np.int64))
    if plan.per_event:
        beside = [events[name].take(places) for name in plan.order]
        if plan.triggers.finishes:
            beside.append(_whole(plan, events).take(places))
        return pa.table([*keys, *bounds, ones, *columns, *beside], schema=plan.exchanged.schema)
    rows = pa.table([*keys, *bounds, ones, *columns], schema=plan.arriving.schema)
    return _merged(plan, rows) if plan.sessions else combine(plan.arriving, rows)


def _whole(plan: GeneralPlan, events: pa.Table) -> pa.Array:
    """Each event as one value, for the ledger."""
    columns = [events[name].combine_chunks() for name in plan.input_schema.names]
    return pa.StructArray.from_arrays(columns, fields=list(plan.input_schema))


def _merged(plan: GeneralPlan, rows: pa.Table) -> pa.Table:
    """``rows`` of sessions as those they merge to."""
    merged = merge_sessions(plan.group_keys, int_bounds(rows))
    values = combine_values(plan.arriving, rows, merged.owner, merged.windows.num_rows)
    return pa.table([*merged.windows.columns, *values.columns], schema=plan.arriving.schema)


def int_bounds(rows: pa.Table) -> pa.Table:
    """``rows`` with window bounds as whole numbers."""
    for name in (START, END):
        rows = rows.set_column(rows.column_names.index(name), name, rows[name].cast(pa.int64()))
    return rows


def _alone(count: int) -> pa.Array:
    return pa.array(np.zeros(count, np.int8))


def too_late(plan: Plan, events: pa.Table, times: Times, watermark: int, *, feeding: bool) -> Flags:
    """Events that no window takes any more, by the rule ``window``; one that lies in none at all is not late."""
    index, _, ends = assign(plan.kind, times, events)
    held = np.bincount(index, minlength=len(times))
    open_ = np.bincount(index[~refusing(plan, ends, watermark, feeding=feeding)], minlength=len(times))
    closed: Flags = (held > 0) & (open_ == 0)
    return closed


def refused(plan: Plan, accepted: pa.Table, times: Times, watermark: int, *, feeding: bool) -> pa.Table | None:
    """Accepted events with each window that takes them no more; None where there are none."""
    index, starts, ends = assign(plan.kind, times, accepted)
    closed = refusing(plan, ends, watermark, feeding=feeding)
    if not closed.any():
        return None
    rows = accepted.take(pa.array(index[closed]))
    for name, values in ((START, starts), (END, ends)):
        rows = rows.append_column(name, pa.array(values[closed]).cast(plan.bound_type))
    return rows
