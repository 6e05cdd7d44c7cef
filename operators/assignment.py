"""Which windows an event lies in, and which of them take it no more. Pure and vectorised."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from operators.plan import ONLY, Flags, Plan
from operators.transition import END_US
from operators.windows import Counted, Given, Global, Sessions, Times, Windows
from statestore.errors import UsageError

START, END = "window_start", "window_end"
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
