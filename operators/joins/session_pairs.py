"""Pairs of rows of sessions, and which sessions a key has. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidestate.operators.describe.windows import END, START
from tidestate.operators.joins.tables import JoinTables
from tidestate.statestore.arrays import Numbers
from tidestate.statestore.spec.lists import places_within
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.table.sorting import each_once, sorting


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
    return view[table].ranges(each_once(asked)).rows
