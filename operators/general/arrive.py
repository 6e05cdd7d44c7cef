"""The general operator next to the input: windows of the accepted events, and what they bring to each. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from operators.general.names import END, START
from operators.general.sessions import merge_sessions
from operators.transition import BEGINNING_US
from operators.windows import Counted, Global, Sessions, Sliding
from statestore.errors import UsageError
from statestore.fold import combine
from statestore.tables import TIME

if TYPE_CHECKING:
    from operators.general.plan import GeneralPlan

Times = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
FIRST_US, LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""Where the global window begins and ends: the years 1 to 9999, which every tool can show."""


def assign(plan: GeneralPlan, times: Times, events: pa.Table) -> tuple[Times, Times, Times]:
    """Every (event, window) pair: indices of events, starts and ends of windows; each of shape ``(pairs,)``."""
    kind = plan.kind
    each = np.arange(len(times))
    if isinstance(kind, Global):
        return each, np.full(len(times), FIRST_US), np.full(len(times), LAST_US)
    if isinstance(kind, Sessions):
        return each, times, times + _gaps(kind, events)
    if isinstance(kind, Counted):
        return each, np.zeros(len(times), np.int64), np.zeros(len(times), np.int64)
    return _sliding(kind, times)


def _sliding(kind: Sliding, times: Times) -> tuple[Times, Times, Times]:
    newest = (times - kind.offset_us) // kind.slide_us * kind.slide_us + kind.offset_us
    most = -(-kind.size_us // kind.slide_us)
    starts = (newest[:, None] - np.arange(most, dtype=np.int64)[::-1] * kind.slide_us).ravel()
    index = np.repeat(np.arange(len(times)), most)
    holds = starts + kind.size_us > times[index]
    return index[holds], starts[holds], starts[holds] + kind.size_us


def _gaps(kind: Sessions, events: pa.Table) -> Times | int:
    if kind.gap_column is None:
        return kind.gap_us
    column = events[kind.gap_column]
    gaps: Times = column.cast(pa.duration("us")).cast(pa.int64()).to_numpy()
    if len(gaps) and (column.null_count or int(gaps.min()) <= 0):
        raise UsageError("each event's gap is longer than nothing", code="session-gap", column=kind.gap_column)
    return gaps


def closed_to(plan: GeneralPlan, ends: Times, watermark_us: int) -> Flags:
    """Of windows with these ends, which take no event any more, by the rule ``window``."""
    return ends <= max(-(2**63), watermark_us - plan.allowed_us)


def arrivals(plan: GeneralPlan, events: pa.Table, times: Times, watermark_us: int | None) -> pa.Table:
    """What accepted events bring: rows of `GeneralPlan.arriving`, one per window and key; counted ones per event."""
    index, starts, ends = assign(plan, times, events)
    if plan.rule == "window" and watermark_us is not None and not plan.by_number:
        open_ = ~closed_to(plan, ends, watermark_us)
        index, starts, ends = index[open_], starts[open_], ends[open_]
    places = pa.array(index)
    keys = [events[name].take(places) for name in plan.key_names] or [_alone(len(index))]
    bounds = [pa.array(values).cast(plan.bound_type) for values in (starts, ends)]
    columns = [column.take(places) for column in plan.lifted(events)]
    ones = pa.array(np.ones(len(index), np.int64))
    rows = pa.table([*keys, *bounds, ones, *columns], schema=plan.arriving.schema)
    if plan.by_number:
        return rows
    return combine(plan.arriving, with_owners(plan, rows) if plan.sessions else rows)


def with_owners(plan: GeneralPlan, rows: pa.Table) -> pa.Table:
    """``rows`` of sessions with the bounds of the sessions they merge to."""
    merged = merge_sessions(plan.group_keys, int_bounds(rows))
    for name in (START, END):
        bounds = merged.windows[name].take(pa.array(merged.owner)).cast(plan.bound_type)
        rows = rows.set_column(rows.column_names.index(name), name, bounds)
    return rows


def int_bounds(rows: pa.Table) -> pa.Table:
    """``rows`` with window bounds as whole numbers."""
    for name in (START, END):
        rows = rows.set_column(rows.column_names.index(name), name, rows[name].cast(pa.int64()))
    return rows


def _alone(count: int) -> pa.Array:
    return pa.array(np.zeros(count, np.int8))


def too_late(plan: GeneralPlan, events: pa.Table, times: Times, watermark_us: int) -> Flags:
    """Events that are taken no more."""
    if plan.rule == "window":
        if plan.by_number:
            return np.zeros(len(times), bool)
        return _all_closed(plan, events, times, watermark_us)
    late: Flags = times < max(BEGINNING_US, watermark_us - plan.allowed_us)
    return late


def refused(plan: GeneralPlan, accepted: pa.Table, times: Times, watermark_us: int) -> pa.Table | None:
    """Ledger rows of the windows that are closed to accepted events: the event, why, and which window."""
    index, starts, ends = assign(plan, times, accepted)
    closed = closed_to(plan, ends, watermark_us)
    if not closed.any():
        return None
    count = int(closed.sum())
    rows = accepted.take(pa.array(index[closed]))
    marks = pa.array(np.full(count, watermark_us)).cast(TIME)
    facts = [pa.array(["very_late"] * count, pa.string()), marks]
    bounds = [pa.array(values[closed]).cast(TIME) for values in (starts, ends)]
    return pa.table([*rows.columns, *facts, *bounds], schema=plan.late_schema)


def _all_closed(plan: GeneralPlan, events: pa.Table, times: Times, watermark_us: int) -> Flags:
    """Events that no window takes any more, by the rule ``window``; one that lies in none at all is not late."""
    index, _, ends = assign(plan, times, events)
    held = np.bincount(index, minlength=len(times))
    open_ = np.bincount(index[~closed_to(plan, ends, watermark_us)], minlength=len(times))
    closed: Flags = (held > 0) & (open_ == 0)
    return closed
