"""Merges sessions: intervals of one key that overlap become one. Pure and vectorised.

The session of an event at t is ``[t, t + gap)``; two sessions merge if they overlap, so events less than the gap
apart are together, and sessions that only touch stay apart. Overlap is transitive: a new event between two sessions
makes all three one. Sorted by start, a session ends where no earlier interval reaches the next start.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidestate.statestore.arrays import Flags, Numbers
from tidestate.statestore.spec.arrowtypes import is_position
from tidestate.statestore.table.sorting import firsts, order, ranks


@dataclass(frozen=True)
class MergedSessions:
    """The sessions that intervals form where they overlap, and which session each interval is in."""

    windows: pa.Table
    """Key columns as given, ``window_start`` and ``window_end`` (int64): a row per session, by key, then start."""
    owner: Numbers
    """Of shape ``(intervals,)``: the row of ``windows`` that contains each interval."""


def merge_sessions(keys: list[str], intervals: pa.Table) -> MergedSessions:
    """Merge ``intervals`` into sessions.

    ``intervals`` has the columns ``keys`` (none for a single key), without nulls, and ``window_start`` and
    ``window_end`` (int64), each end after its start; other columns are ignored. Rows are in any order, which the
    sessions do not depend on; ``owner`` has the same order.
    """
    key_of = in_key_order(intervals.select(keys))
    starts, ends = _int64(intervals["window_start"]), _int64(intervals["window_end"])
    by_start = order(pa.table({"key": key_of, "start": starts}))
    key_of, starts, ends = key_of[by_start], starts[by_start], ends[by_start]
    first_of_key = np.append(True, key_of[1:] != key_of[:-1])[: len(key_of)]
    first = _first_of_session(first_of_key, starts, ends)
    heads, session = np.flatnonzero(first), np.cumsum(first) - 1
    owner = np.empty(len(starts), np.int64)
    owner[by_start] = session
    windows = intervals.select([*keys, "window_start"]).take(pa.array(by_start[heads]))
    latest = ends[heads]
    np.maximum.at(latest, session, ends)
    return MergedSessions(windows.append_column("window_end", pa.array(latest)), owner)


def in_key_order(keys: pa.Table) -> Numbers:
    """The rank of each row's key among all keys: only distinct keys are compared."""
    numbers, count = ranks(keys)
    if count < 2 or all(is_position(column.type) and not column.null_count for column in keys.columns):
        return numbers
    by_key = order(keys.take(pa.array(firsts(numbers, count))))
    places = np.empty(count, np.int64)
    places[by_key] = np.arange(count)
    return places[numbers]


def _first_of_session(first_of_key: Flags, starts: Numbers, ends: Numbers) -> Flags:
    """Whether each row begins a session, of rows sorted by key and start. All of shape ``(rows,)``.

    Keys are laid out on one line, one after another, so that one running maximum of the ends serves all keys: all
    ends of a key are before all starts of the next.
    """
    if not len(starts):
        return first_of_key
    begins, reached = on_a_line(first_of_key, starts, ends)
    np.maximum.accumulate(reached, out=reached)
    first = first_of_key.copy()
    first[1:] |= begins[1:] >= reached[:-1]
    return first


def on_a_line(first_of_key: Flags, starts: Numbers, ends: Numbers) -> tuple[Numbers, Numbers]:
    """``starts`` and ``ends`` with the keys laid out one after another: all of a key are before all of the next.

    Rows, at least one, are in the order of keys. Times are distances from the earliest, if those of all keys fit in
    int64, as in practice; else ranks.
    """
    earliest = int(min(starts.min(), ends.min()))
    latest = int(max(starts.max(), ends.max()))
    stretch = np.cumsum(first_of_key)
    if (latest - earliest + 1) * int(stretch[-1]) >= 2**63:
        distinct, places = np.unique(np.concatenate([starts, ends]), return_inverse=True)
        starts, ends = np.split(places.astype(np.int64), 2)
        earliest, latest = 0, len(distinct) - 1
    stretch -= 1
    stretch *= latest - earliest + 1
    stretch -= earliest  # may wrap around, and is right again where a time is added
    return stretch + starts, stretch + ends


def _int64(column: pa.ChunkedArray) -> Numbers:
    values: Numbers = column.to_numpy().astype(np.int64, copy=False)
    return values
