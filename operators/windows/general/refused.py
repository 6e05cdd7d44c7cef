"""Elements of windows that have closed for good, because their composite trigger has finished. Pure.

A closed session neither grows nor merges: an element that overlaps it is refused, and the others of its key go by
each other alone.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidestate.operators.windows.general.groups import closed, column_numbers
from tidestate.operators.windows.general.names import END, START
from tidestate.statestore.arrays import Numbers
from tidestate.statestore.table.sorting import lasts, shared_ranks


def without_closed(
    stored: pa.Table, arriving: pa.Table, names: list[str], *, sessions: bool
) -> tuple[pa.Table, pa.Table]:
    """``arriving`` without what closed windows of ``stored`` refuse; and that, with the bounds of these windows.

    ``names``: of ``sessions`` the columns of their key, of other windows those by which they are known.
    """
    nothing = arriving.slice(0, 0)
    if not (stored.num_rows and arriving.num_rows):
        return arriving, nothing
    shut = stored.filter(pa.array(closed(stored)))
    if not shut.num_rows:
        return arriving, nothing
    place = _overlapped(shut, arriving, names) if sessions else _same(shut, arriving, names)
    refused = arriving.filter(pa.array(place >= 0))
    windows = shut.select([START, END]).take(pa.array(place[place >= 0]))
    for name in (START, END):
        refused = refused.set_column(refused.column_names.index(name), name, windows[name])
    return arriving.filter(pa.array(place < 0)), refused


def _same(shut: pa.Table, arriving: pa.Table, names: list[str]) -> Numbers:
    """For each of ``arriving`` the row of ``shut`` that is its window; -1 for none."""
    (of_shut, of_new), count = shared_ranks([rows.select(names) for rows in (shut, arriving)])
    return lasts(of_shut, count)[of_new]


def _overlapped(shut: pa.Table, arriving: pa.Table, names: list[str]) -> Numbers:
    """For each of ``arriving`` the row of ``shut`` that its interval overlaps; -1 for none.

    Sessions of a key do not overlap each other, so only the last that begins before an interval ends may overlap it.
    """
    (of_shut, of_new), _ = shared_ranks([rows.select(names) for rows in (shut, arriving)])
    key = np.concatenate([of_shut, of_new])
    begins = np.concatenate([column_numbers(shut, START), column_numbers(arriving, END)])
    is_session = np.arange(len(key)) < shut.num_rows
    sequence = np.lexsort((is_session, begins, key))
    last = np.maximum.accumulate(np.where(is_session[sequence], np.arange(len(key)), -1))
    candidate = np.full(len(key), -1)
    candidate[sequence] = np.where(last >= 0, sequence[last], -1)
    found = candidate[shut.num_rows :]
    overlaps = (
        (found >= 0) & (key[found] == of_new) & (column_numbers(shut, END)[found] > column_numbers(arriving, START))
    )
    return np.where(overlaps, found, -1)
