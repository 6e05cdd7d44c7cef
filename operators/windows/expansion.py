"""Rows that count in many windows each, combined by window: a band of (row, window) pairs at a time. Pure.

A slice of a day that slides by the minute lies in 1,440 windows. Only pairs that are asked for are made, and only so
many at once that their copies stay within a share of the store's budget; what each band amounts to is folded at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa

from tidestate.statestore.arrays import Numbers
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.table.fold import combine
from tidestate.statestore.table.sorting import ranks

Made = Callable[[Numbers, Numbers], pa.Table]
"""Pairs as rows of a table: of which rows they are, and of which of the row's windows, from 0."""

SHARE = 8
"""Pairs take this share of the budget."""
PAIR_BYTES = 64
"""What a pair costs beside two copies of its row: numbers of its key and places."""
COPIES = 2
MERGE_SHARE = 2
"""Parts are folded while the newer one has at least this share of the older one's rows."""


def expand_windows(
    spec: TableSpec, rows: pa.Table, by: list[str], counts: Numbers, made: Made, budget_bytes: int
) -> Iterator[pa.Table]:
    """``rows`` in ``counts`` windows each, combined in parts that `combined_parts` puts together.

    ``by`` names the columns that a row shares with others of its windows. Rows of one window keep their order.
    """
    most = pairs_within(rows, budget_bytes)
    order = None
    if int(counts.sum()) > most:  # rows that combine with each other come in the same band
        order = np.argsort(ranks(rows.select(by))[0], kind="stable")
        counts = counts[order]
    for index, nth in bands(counts, most):
        yield combine(spec, made(index if order is None else order[index], nth))


def pairs_within(rows: pa.Table, budget_bytes: int) -> int:
    """How many pairs of these rows go into one band."""
    each: int = PAIR_BYTES + COPIES * rows.nbytes // max(1, rows.num_rows)
    return max(1, budget_bytes // SHARE // each)


def bands(counts: Numbers, most: int) -> Iterator[tuple[Numbers, Numbers]]:
    """Pairs of rows with ``counts`` windows each, at most ``most`` at a time: the row, and which of its windows."""
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
    """Parts in their order, each with a key once, as one table with each key once.

    Neighbours are folded as they come, so a row is folded a few times, however many parts there are.
    """
    held: list[pa.Table] = []
    for part in parts:
        held.append(part)
        while len(held) > 1 and MERGE_SHARE * held[-1].num_rows >= held[-2].num_rows:
            held[-2:] = [combine(spec, pa.concat_tables(held[-2:]))]
    if not held:
        return spec.schema.empty_table()
    return held[0] if len(held) == 1 else combine(spec, pa.concat_tables(held))
