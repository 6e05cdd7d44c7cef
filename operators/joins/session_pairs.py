"""Pairs of rows of sessions, and which session holds a row. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidestate.operators.describe.windows import END, START
from tidestate.operators.joins.tables import JoinTables
from tidestate.statestore.arrays import Numbers, Times
from tidestate.statestore.spec.lists import places_within
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.table.sorting import firsts, ranks, shared_ranks, sorting


def matched_places(left: Numbers, right: Numbers) -> tuple[Numbers, Numbers]:
    """The places of all pairs of an equal number of either side, by the left one's place."""
    by_match = sorting(right)
    there = right[by_match]
    first = np.searchsorted(there, left, "left")
    counts = np.searchsorted(there, left, "right") - first
    return np.repeat(np.arange(len(left)), counts), by_match[np.repeat(first, counts) + places_within(counts)]


def session_panes(plan: JoinTables, windows: pa.Table, of: Numbers, rows: dict[str, pa.Table], kind: str) -> pa.Table:
    """Panes of ``rows`` of one side, or of both, in the windows with the numbers ``of``."""
    starts, ends = (windows[name].to_numpy()[of] for name in (START, END))
    return plan.panes(rows, pa.array(ends - 1), kind, (starts, ends))


def sessions_of_keys(names: list[str], view: StateView, table: str, rows: list[pa.Table]) -> pa.Table:
    """The sessions in a table that have a key of these rows, in the columns ``names``."""
    asked = pa.concat_tables([part.select(names) for part in rows])
    return view[table].ranges(asked.take(pa.array(firsts(*ranks(asked))))).rows


def session_of(names: list[str], sessions: pa.Table, rows: pa.Table, times: Times) -> Numbers:
    """The place among ``sessions``, which do not overlap, of the one that holds each row; −1 where none does."""
    count = sessions.num_rows
    (own, theirs), _ = shared_ranks([sessions.select(names), rows.select(names)])
    starts, ends = sessions[START].to_numpy(), sessions[END].to_numpy()
    is_row = np.concatenate([np.zeros(count, bool), np.ones(len(times), bool)])
    order = np.lexsort((is_row, np.concatenate([starts, times]), np.concatenate([own, theirs])))
    latest = np.maximum.accumulate(np.where(order < count, np.arange(len(order)), -1))
    found = np.full(len(times), -1)
    of_rows = order >= count
    found[order[of_rows] - count] = np.where(latest >= 0, order[latest], -1)[of_rows]
    if not count:
        return found
    held = (found >= 0) & (own[found] == theirs) & (times < ends[found])
    return np.where(held, found, -1)
