"""Combines ranges of rows, of which many overlap: each in about as many steps as its length has binary digits. Pure.

Neighbouring rows are combined to blocks of 2, these to blocks of 4, and so on; a range is at most two blocks of each
size, as in a segment tree. Only the blocks of ranges are made, and always in order. So rows that are in no range
together are never combined, and what sees the order of rows is exact.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tidestate.statestore.arrays import Flags, Numbers
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.table.fold import combine_values


class _Level(NamedTuple):
    """The blocks of one size that ranges are made of: their numbers, the ranges that have them, and whether each is
    at the left end of its range, in front of all larger blocks, or at the right end, behind them.
    """

    blocks: Numbers
    ranges: Numbers
    left: Flags


def combined_ranges(spec: TableSpec, rows: pa.Table, first: Numbers, counts: Numbers) -> pa.Table:
    """The value columns of ``spec``, a row for each range of ``counts`` rows from ``first`` on, which are combined in
    order. No range is empty.
    """
    if not len(first):
        return pa.table([pa.nulls(0, column.arrow) for column in spec.values], names=[c.name for c in spec.values])
    levels = _levels(first, first + counts)
    made = _made(levels, rows.num_rows)
    blocks = rows.select([column.name for column in spec.values]).filter(pa.array(made[0]))
    pieces = []
    for number, level in enumerate(levels):
        if number:
            blocks = _doubled(spec, blocks, made[number - 1], made[number])
        pieces.append(blocks.take(pa.array((np.cumsum(made[number]) - 1)[level.blocks])))
    # In a range the blocks at the left grow and those at the right shrink.
    turn = [np.where(level.left, number, 2 * len(levels) - number) for number, level in enumerate(levels)]
    ranges = np.concatenate([level.ranges for level in levels])
    order = np.lexsort((np.concatenate(turn), ranges))
    return combine_values(spec, pa.concat_tables(pieces).take(pa.array(order)), ranges[order], len(first))


def _levels(low: Numbers, high: Numbers) -> list[_Level]:
    """The blocks that the rows from ``low`` to before ``high`` are made of, by size."""
    levels, ranges = [], np.arange(len(low))
    while len(ranges):
        left, right = (low & 1) == 1, (high & 1) == 1
        levels.append(
            _Level(
                np.concatenate([low[left], high[right] - 1]),
                np.concatenate([ranges[left], ranges[right]]),
                np.repeat([True, False], [np.count_nonzero(left), np.count_nonzero(right)]),
            )
        )
        low, high = (low + left) >> 1, (high - right) >> 1
        longer = low < high
        low, high, ranges = low[longer], high[longer], ranges[longer]
    return levels


def _made(levels: list[_Level], rows: int) -> list[Flags]:
    """Of each size the blocks that are made: those of ranges, and the halves of larger ones."""
    made = [np.zeros((rows >> number) + 2, bool) for number in range(len(levels))]
    for number in range(len(levels) - 1, -1, -1):
        made[number][levels[number].blocks] = True
        if number:
            whole = np.flatnonzero(made[number])
            made[number - 1][2 * whole] = made[number - 1][2 * whole + 1] = True
    made[0] = made[0][:rows]
    return made


def _doubled(spec: TableSpec, blocks: pa.Table, there: Flags, made: Flags) -> pa.Table:
    """The blocks that are ``made`` of two of the smaller ``blocks``, which are those ``there``."""
    place, whole = np.cumsum(there) - 1, np.flatnonzero(made)
    halves = np.stack([place[2 * whole], place[2 * whole + 1]], axis=1).ravel()
    return combine_values(spec, blocks.take(pa.array(halves)), np.repeat(np.arange(len(whole)), 2), len(whole))
