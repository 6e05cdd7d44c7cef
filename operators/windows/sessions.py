"""Merges sessions: intervals of one key that overlap become one. Pure and vectorised.

The session of an event at t is ``[t, t + gap)``; two sessions merge if they overlap, so events less than the gap
apart are together, and sessions that only touch stay apart. Overlap is transitive: a new event between two sessions
makes all three one. Sorted by start, a session ends where no earlier interval reaches the next start.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidestate.operators.windows.names import END, START
from tidestate.statestore.arrays import Flags, Numbers
from tidestate.statestore.spec.arrowtypes import is_position, positions
from tidestate.statestore.table.sorting import firsts, lasts, order, ranks, shared_ranks


@dataclass(frozen=True)
class MergedSessions:
    """The sessions that intervals form where they overlap, and which session each interval is in."""

    windows: pa.Table
    """Key columns as given, ``window_start`` and ``window_end`` (int64): a row per session, by key, then start."""
    owner: Numbers
    """Of shape ``(intervals,)``: the row of ``windows`` that contains each interval."""

    def apart(self, stored: pa.Table) -> tuple[Numbers, Numbers, Flags]:
        """Where the first intervals were these ``stored`` sessions: the owners of these, and of the others; and which
        of them have the bounds of their owner.
        """
        of_stored, of_others = np.split(self.owner, [stored.num_rows])
        same = [positions(self.windows[name])[of_stored] == positions(stored[name]) for name in (START, END)]
        return of_stored, of_others, np.logical_and(*same)


def merge_sessions(keys: list[str], intervals: pa.Table) -> MergedSessions:
    """Merge ``intervals`` into sessions.

    ``intervals`` has the columns ``keys`` (none for a single key), without nulls, and ``window_start`` and
    ``window_end``, each end after its start; other columns are ignored. Rows are in any order, which the sessions do
    not depend on; ``owner`` has the same order.
    """
    key_of = in_key_order(intervals.select(keys))
    starts, ends = positions(intervals[START]), positions(intervals[END])
    by_start = order(pa.table({"key": key_of, "start": starts}))
    key_of, starts, ends = key_of[by_start], starts[by_start], ends[by_start]
    first_of_key = np.append(True, key_of[1:] != key_of[:-1])[: len(key_of)]
    first = _first_of_session(first_of_key, starts, ends)
    heads, session = np.flatnonzero(first), np.cumsum(first) - 1
    owner = np.empty(len(starts), np.int64)
    owner[by_start] = session
    of_windows = intervals.select(keys).take(pa.array(by_start[heads]))
    latest = ends[heads]
    np.maximum.at(latest, session, ends)
    columns = [*of_windows.columns, pa.array(starts[heads]), pa.array(latest)]
    return MergedSessions(pa.table(columns, names=[*keys, START, END]), owner)


def overlapped(names: list[str], windows: pa.Table, rows: pa.Table, starts: Numbers, ends: Numbers) -> Numbers:
    """For each of ``rows``, which last from ``starts`` to ``ends``, the place of the window of its key, the columns
    ``names``, that it overlaps: of several the one that ends last; -1 for none.

    Windows and rows are sorted by key and by where a window begins that a row overlaps; the latest end so far of a
    key is then a running maximum. As each key begins at 0 again, ends are counted by rank, and those of a key lie
    above those of all keys before it.
    """
    count = windows.num_rows
    if not count or not rows.num_rows:
        return np.full(rows.num_rows, -1)
    key = np.concatenate(shared_ranks([windows.select(names), rows.select(names)])[0])
    begins = np.concatenate([positions(windows[START]), ends])
    # A window that begins where a row ends does not overlap it.
    sequence = np.lexsort((np.arange(len(key)) < count, begins, key))
    window_ends, base = positions(windows[END]), key * (count + 1)
    by_end = np.argsort(window_ends, kind="stable")
    rank = np.zeros(len(key), np.int64)
    rank[by_end] = np.arange(1, count + 1)
    latest = np.empty(len(key), np.int64)
    latest[sequence] = np.maximum.accumulate((base + rank)[sequence])
    nth = (latest - base)[count:]
    last = by_end[nth - 1]
    return np.where((nth > 0) & (window_ends[last] > starts), last, -1)


def holding_window(names: list[str], windows: pa.Table, rows: pa.Table, places: Numbers) -> Numbers:
    """For each of ``rows`` the place of the window of its key in which it lies, as `overlapped` says."""
    return overlapped(names, windows, rows, places, places + 1)


def in_key_order(keys: pa.Table) -> Numbers:
    """The rank of each row's key among all keys: only distinct keys are compared."""
    numbers, count = ranks(keys)
    if count < 2 or all(is_position(column.type) and not column.null_count for column in keys.columns):
        return numbers
    by_key = order(keys.take(pa.array(firsts(numbers, count))))
    return lasts(by_key, count)[numbers]


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
    stretch: Numbers = np.cumsum(first_of_key, dtype=np.int64)
    if (latest - earliest + 1) * int(stretch[-1]) >= 2**63:
        distinct, places = np.unique(np.concatenate([starts, ends]), return_inverse=True)
        starts, ends = np.split(places.astype(np.int64), 2)
        earliest, latest = 0, len(distinct) - 1
    stretch -= 1
    stretch *= latest - earliest + 1
    stretch -= earliest  # may wrap around, and is right again where a time is added
    return stretch + starts, stretch + ends
