"""Which windows an event lies in, and which of them take it no more. Pure and vectorised."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.describe.windows import END, START, Counted, Global, NamedWindow, Sessions, Sliding, Windows
from tidestate.operators.plan.plan import ONLY, Plan
from tidestate.operators.progress.instants import BEGINNING_US, END_US
from tidestate.statestore.arrays import Flags, Times
from tidestate.statestore.errors import UsageError, of_type
from tidestate.statestore.spec.lists import places_within

FIRST_US, LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""Where the global window begins and ends: the years 1 to 9999, which every tool can show."""


def assign_windows(kind: Windows, times: Times, events: pa.Table) -> tuple[Times, Times, Times]:
    """Every (event, window) pair: indices of events, starts and ends of windows; each of shape ``(pairs,)``.

    An event that comes back for one window only (`ONLY`) is in no other.
    """
    index, starts, ends = _assign(kind, times, events)
    only = own_windows(events)
    if only is None:
        return index, starts, ends
    meant = (only[index] == END_US) | (only[index] == starts)
    return index[meant], starts[meant], ends[meant]


def _assign(kind: Windows, times: Times, events: pa.Table) -> tuple[Times, Times, Times]:
    each = np.arange(len(times))
    if isinstance(kind, Global):
        return each, np.full(len(times), FIRST_US), np.full(len(times), LAST_US)
    if isinstance(kind, Sessions):
        return each, times, times + _gaps(kind, events)
    if isinstance(kind, Counted):
        return each, np.zeros(len(times), np.int64), np.zeros(len(times), np.int64)
    if isinstance(kind, NamedWindow):
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


def refusing(plan: Plan, ends: Times, watermark: int, *, reprocessing: bool) -> Flags:
    """Of windows with these ends, which take no event any more; ``reprocessing``: none that comes back either."""
    return ends <= last_refused(plan, watermark, reprocessing=reprocessing)


def last_refused(plan: Plan, watermark: int, *, reprocessing: bool) -> int:
    """Windows that end at or before this take no event any more."""
    return plan.expired_at(watermark) if reprocessing else plan.closed_at(watermark)


def too_late(plan: Plan, events: pa.Table, times: Times, watermark: int, *, reprocessing: bool) -> Flags:
    """Events that no window takes any more, by the rule ``window``; one that lies in none at all is not late."""
    last = last_ends(plan.kind, times, events)
    closed: Flags = (last != BEGINNING_US) & refusing(plan, last, watermark, reprocessing=reprocessing)
    return closed


def last_ends(kind: Windows, times: Times, events: pa.Table) -> Times:
    """Where the last window of each event ends; the beginning of time for one that lies in none."""
    if isinstance(kind, Sliding):
        first, counts = sliding_windows(kind, times, events)
        return np.where(counts > 0, first + (counts - 1) * kind.slide, BEGINNING_US)
    index, _, ends = assign_windows(kind, times, events)
    last = np.full(len(times), BEGINNING_US)
    np.maximum.at(last, index, ends)
    return last


def refused_windows(
    plan: Plan, accepted: pa.Table, times: Times, watermark: int, *, reprocessing: bool
) -> pa.Table | None:
    """Accepted events with each window that takes them no more; None where there are none."""
    kind = of_type(plan.kind, Sliding)
    first, counts = sliding_windows(
        kind, times, accepted, high=last_refused(plan, watermark, reprocessing=reprocessing)
    )
    index = np.repeat(np.arange(len(times)), counts)
    if not len(index):
        return None
    ends = first[index] + places_within(counts) * kind.slide
    rows = accepted.take(pa.array(index))
    for name, values in ((START, ends - kind.size), (END, ends)):
        rows = rows.append_column(name, pa.array(values).cast(plan.bound_type))
    return rows


def sliding_windows(
    kind: Sliding, times: Times, events: pa.Table, low: int | None = None, high: int | None = None
) -> tuple[Times, Times]:
    """Of each event the end of the first window with ``low < end <= high``, and how many there are; neighbours."""
    first, counts = kind.windows_of(kind.slice_ends(times), low, high)
    only = own_windows(events)
    return (first, counts) if only is None else narrowed(kind, first, counts, only)


def own_windows(events: pa.Table) -> Times | None:
    """For each event the start of the one window that it comes back for, the end of time for all; None where each
    comes for all of its windows.
    """
    if ONLY not in events.column_names or events[ONLY].null_count == events.num_rows:
        return None
    only: Times = pc.fill_null(events[ONLY], END_US).to_numpy()
    return only


def narrowed(kind: Sliding, first: Times, counts: Times, only: Times) -> tuple[Times, Times]:
    """Windows of events, without others than the one that each comes back for."""
    meant = only != END_US
    end = np.where(meant, only, 0) + kind.size
    among = (end >= first) & (end < first + counts * kind.slide)
    return np.where(meant, end, first), np.where(meant, among, counts)


def open_to(plan: Plan, sessions: pa.Table, watermark: int) -> pa.Table:
    """Those of ``sessions`` that an event may still join: others are only kept."""
    ends = sessions[END].cast(pa.int64()).to_numpy()
    over = refusing(plan, ends, watermark, reprocessing=False)
    return sessions.filter(pa.array(~over)) if over.any() else sessions
