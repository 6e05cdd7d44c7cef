"""Assigns events to windows, and finds the windows that are closed to them. Pure and vectorised."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.describe.windows import (
    END,
    START,
    Counted,
    Global,
    NamedWindow,
    Rolling,
    Sessions,
    Sliding,
    Windows,
)
from tidestate.operators.plan.gaps import gaps_us
from tidestate.operators.plan.plan import ONLY, Plan, WindowedPlan
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
from tidestate.statestore.arrays import Flags, Times
from tidestate.statestore.errors import of_type

FIRST_US, LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""Start and end of the global window: the years 1 to 9999, which every tool can display."""


def assign_windows(kind: Windows, times: Times, events: pa.Table) -> tuple[Times, Times, Times]:
    """Every (event, window) pair: indices of events, starts and ends of windows; each of shape ``(pairs,)``.

    A late event that is reprocessed for one window (`ONLY`) is in no other.
    """
    index, starts, ends = _assign(kind, times, events)
    only = own_windows(events)
    if only is None:
        return index, starts, ends
    chosen = (only[index] == END_US) | (only[index] == starts)
    return index[chosen], starts[chosen], ends[chosen]


def _assign(kind: Windows, times: Times, events: pa.Table) -> tuple[Times, Times, Times]:
    each = np.arange(len(times))
    if isinstance(kind, Global):
        return each, np.full(len(times), FIRST_US), np.full(len(times), LAST_US)
    if isinstance(kind, Rolling):  # its own window: those of later events are in the state
        ends = kind.ends(times)
        return each, ends - kind.size, ends
    if isinstance(kind, Sessions):
        return each, times, times + gaps_of(kind, events)
    if isinstance(kind, Counted):
        return each, np.zeros(len(times), np.int64), np.zeros(len(times), np.int64)
    if isinstance(kind, NamedWindow):
        starts, ends = (pc.fill_null(events[name].cast(pa.int64()), 0).to_numpy() for name in (START, END))
        return each, starts, ends
    if kind.end_column is None:
        return kind.assign(times)
    return kind.pairs(*windows_touched(kind, times, events))


def windows_touched(
    kind: Sliding, times: Times, events: pa.Table, low: int | None = None, high: int | None = None
) -> tuple[Times, Times]:
    """The end of the first window with ``low < end <= high`` that each event's lifetime touches, and how many
    consecutive ones there are. An event without an end is a point.
    """
    return kind.touched(times, lifetime_ends(kind, times, events), low, high)


def lifetime_ends(kind: Sliding, times: Times, events: pa.Table) -> Times:
    """When the lifetime of each event ends, exclusive."""
    column = events[kind.end_column or ""].cast(pa.int64())
    ends: Times = np.where(column.is_null().to_numpy(), times + 1, pc.fill_null(column, 0).to_numpy())
    return ends


def gaps_of(kind: Sessions, events: pa.Table) -> Times | int:
    """The gap of each event in microseconds; of one that has none, and so no window, the shortest there is."""
    if kind.gap_column is None:
        return kind.gap
    gaps: Times = np.maximum(gaps_us(events[kind.gap_column]).to_numpy(), 1)
    return gaps


def too_late(plan: WindowedPlan, events: pa.Table, times: Times, watermark: int) -> Flags:
    """Events whose windows are all closed, by the rule ``window``; one without windows is not late."""
    last = last_ends(plan.kind, times, events)
    closed: Flags = (last != BEGINNING_US) & (last <= plan.refused_at(watermark))
    return closed


def late_outside(plan: WindowedPlan, events: pa.Table, times: Times, watermark: int) -> Flags:
    """Events without windows that are too late to be in one, where windows have gaps."""
    late: Flags = times < plan.closed_at(watermark)
    return late & (last_ends(plan.kind, times, events) == BEGINNING_US) if late.any() else late


def last_ends(kind: Windows, times: Times, events: pa.Table) -> Times:
    """The end of the last window of each event; `BEGINNING_US` for one without windows."""
    if isinstance(kind, Sliding):
        first, counts = sliding_windows(kind, times, events)
        return np.where(counts > 0, first + (counts - 1) * kind.slide, BEGINNING_US)
    index, _, ends = assign_windows(kind, times, events)
    last = np.full(len(times), BEGINNING_US)
    np.maximum.at(last, index, ends)
    return last


def refused_windows(plan: WindowedPlan, accepted: pa.Table, times: Times, watermark: int) -> pa.Table | None:
    """Accepted events with each of their windows that is closed; None if there are none."""
    kind = of_type(plan.kind, Sliding)
    windows = sliding_windows(kind, times, accepted, high=plan.refused_at(watermark))
    index, starts, ends = kind.pairs(*windows)
    if not len(index):
        return None
    rows = accepted.take(pa.array(index))
    for name, values in zip(plan.ledger_bounds, (starts, ends), strict=True):
        rows = rows.append_column(name, pa.array(values).cast(plan.bound_type))
    return rows


def sliding_windows(
    kind: Sliding, times: Times, events: pa.Table, low: int | None = None, high: int | None = None
) -> tuple[Times, Times]:
    """The end of each event's first window with ``low < end <= high``, and how many consecutive ones there are."""
    if kind.end_column is not None:
        first, counts = windows_touched(kind, times, events, low, high)
    else:
        first, counts = kind.windows_of(kind.slice_ends(times), low, high)
    only = own_windows(events)
    return (first, counts) if only is None else narrowed(kind, first, counts, only)


def own_windows(events: pa.Table) -> Times | None:
    """The start of the one window that each late event is reprocessed for, `END_US` for all of its windows; None if
    every event is for all of its windows.
    """
    if ONLY not in events.column_names or events[ONLY].null_count == events.num_rows:
        return None
    only: Times = pc.fill_null(events[ONLY], END_US).to_numpy()
    return only


def narrowed(kind: Sliding, first: Times, counts: Times, only: Times) -> tuple[Times, Times]:
    """The windows of events, reduced to the one that an event is reprocessed for."""
    single = only != END_US
    end = np.where(single, only, 0) + kind.size
    inside = (end >= first) & (end < first + counts * kind.slide)
    return np.where(single, end, first), np.where(single, inside, counts)


def open_to(plan: Plan, sessions: pa.Table, watermark: int) -> pa.Table:
    """The ``sessions`` that an event may still join: the others are only retained."""
    ends = sessions[END].cast(pa.int64()).to_numpy()
    closed = ends <= plan.closed_at(watermark)
    return sessions.filter(pa.array(~closed)) if closed.any() else sessions
