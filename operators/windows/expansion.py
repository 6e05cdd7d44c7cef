"""Combines rows by window if each is in many windows: a band of (row, window) pairs at a time. Pure.

With windows of a day that slide by a minute, a slice is in 1,440 windows. Only the requested pairs are made, and only
so many at once that their copies fit into a share of the store's budget; each band is combined at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa

from tidestate.statestore.arrays import Numbers
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.table.fold import combine
from tidestate.statestore.table.sorting import ranks, sorting

MakePairs = Callable[[Numbers, Numbers], pa.Table]
"""Makes the rows of pairs, from the index of each row and the number of its window, from 0."""

SHARE = 16
"""Pairs may use one of so many parts of the budget."""
PAIR_BYTES = 64
"""The cost of a pair in addition to the copies of its row: key numbers and indices."""
COPIES = 2
MERGE_SHARE = 2
"""A part is folded into the one before unless that has more than so many times its rows."""


def expand_windows(
    spec: TableSpec, rows: pa.Table, by: list[str], counts: Numbers, make: MakePairs, budget_bytes: int
) -> Iterator[pa.Table]:
    """Combine ``rows``, each in ``counts`` windows, in parts for `combined_parts`.

    Rows of one window have equal columns ``by``, and keep their order.
    """
    most = pairs_within(rows, budget_bytes)
    order = None
    if int(counts.sum()) > most:  # rows that combine with each other are in the same band
        order = sorting(ranks(rows.select(by))[0])
        counts = counts[order]
    for index, nth in bands(counts, most):
        yield combine(spec, make(index if order is None else order[index], nth))


def pairs_within(rows: pa.Table, budget_bytes: int) -> int:
    """The number of pairs of these rows in one band."""
    each: int = PAIR_BYTES + COPIES * rows.nbytes // max(1, rows.num_rows)
    return max(1, budget_bytes // SHARE // each)


def bands(counts: Numbers, most: int) -> Iterator[tuple[Numbers, Numbers]]:
    """Pairs of rows with ``counts`` windows each, ``most`` at a time: the row, and the number of its window."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    for low in range(0, total, most):
        high = min(low + most, total)
        first, last = np.searchsorted(ends, [low, high - 1], side="right")
        here = slice(int(first), int(last) + 1)
        inside = np.clip(ends[here], low, high)
        index = np.repeat(np.arange(here.start, here.stop), inside - np.append(low, inside[:-1]))
        yield index, np.arange(low, high) - (ends[index] - counts[index])


def combined_parts(spec: TableSpec, parts: Iterable[pa.Table]) -> pa.Table:
    """Combine parts, each with distinct keys, in their order.

    Parts of similar size are combined as they arrive, so a row is combined only a few times.
    """
    held: list[pa.Table] = []
    for part in parts:
        held.append(part)
        while len(held) > 1 and MERGE_SHARE * held[-1].num_rows >= held[-2].num_rows:
            held[-2:] = [combine(spec, pa.concat_tables(held[-2:]))]
    if not held:
        return spec.schema.empty_table()
    return held[0] if len(held) == 1 else combine(spec, pa.concat_tables(held))
