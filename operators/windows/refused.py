"""Refuses elements of windows whose composite trigger has finished. Pure.

Such a session neither grows nor merges: an element that overlaps it is refused, and the other elements of its key
form sessions without it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidestate.operators.windows.groups import column_numbers, trigger_finished
from tidestate.operators.windows.names import END, START
from tidestate.statestore.arrays import Numbers
from tidestate.statestore.table.sorting import lasts, shared_ranks


def without_closed(
    stored: pa.Table, arriving: pa.Table, names: list[str], *, sessions: bool
) -> tuple[pa.Table, pa.Table]:
    """``arriving`` without the elements that finished windows of ``stored`` refuse; and those, with the bounds of the
    window.

    ``names``: the columns of the key, and, except for ``sessions``, of the window.
    """
    nothing = arriving.slice(0, 0)
    if not (stored.num_rows and arriving.num_rows):
        return arriving, nothing
    finished = stored.filter(pa.array(trigger_finished(stored)))
    if not finished.num_rows:
        return arriving, nothing
    place = _overlapped(finished, arriving, names) if sessions else _same(finished, arriving, names)
    refused = arriving.filter(pa.array(place >= 0))
    windows = finished.select([START, END]).take(pa.array(place[place >= 0]))
    for name in (START, END):
        refused = refused.set_column(refused.column_names.index(name), name, windows[name])
    return arriving.filter(pa.array(place < 0)), refused


def _same(finished: pa.Table, arriving: pa.Table, names: list[str]) -> Numbers:
    """For each of ``arriving`` the index of its window in ``finished``; -1 for none."""
    (of_finished, of_new), count = shared_ranks([rows.select(names) for rows in (finished, arriving)])
    return lasts(of_finished, count)[of_new]


def _overlapped(finished: pa.Table, arriving: pa.Table, names: list[str]) -> Numbers:
    """For each of ``arriving`` the index of the session in ``finished`` that it overlaps; -1 for none.

    Sessions of a key do not overlap, so only the last one that starts before an interval ends can overlap it.
    """
    (of_finished, of_new), _ = shared_ranks([rows.select(names) for rows in (finished, arriving)])
    key = np.concatenate([of_finished, of_new])
    begins = np.concatenate([column_numbers(finished, START), column_numbers(arriving, END)])
    is_session = np.arange(len(key)) < finished.num_rows
    sequence = np.lexsort((is_session, begins, key))
    last = np.maximum.accumulate(np.where(is_session[sequence], np.arange(len(key)), -1))
    candidate = np.full(len(key), -1)
    candidate[sequence] = np.where(last >= 0, sequence[last], -1)
    session = candidate[finished.num_rows :]
    ends = column_numbers(finished, END)[session]
    overlaps = (session >= 0) & (key[session] == of_new) & (ends > column_numbers(arriving, START))
    return np.where(overlaps, session, -1)
