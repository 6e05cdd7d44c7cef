"""Groups of rows whose keys are whole numbers and times that lie close together. Pure and vectorised.

Each column of a key lies on a *grid*: its least value, the distance of its values, and how many fit between the
least and the largest one; starts of windows are a window apart. The places on the grids together are the *address* of
a key in an array. So a row is added up where its key says: no hash table, no sorting, and the groups come in order of
their keys, as addresses rise with these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidestate.statestore.arrays import Numbers, flags_at
from tidestate.statestore.spec.arrowtypes import is_position, positions

ROOM = 4
"""Addresses per row, up to which an array of them costs less than hashing keys."""
MOST_ADDRESSES = 1 << 20
"""More than this there are of as many rows only, so that an array of them is no larger than a column."""
SAMPLE = 1000
LARGEST = 2**63 - 1


@dataclass(frozen=True)
class ValueGrid:
    """Values from ``low`` on, each ``step`` from the next; there is room for ``size`` of them."""

    low: int
    step: int
    size: int


@dataclass(frozen=True)
class Addresses:
    """``of_rows``: the address of each row's key, of shape ``(rows,)``, below ``count``; ``groups``: those that rows
    have, ascending.
    """

    of_rows: Numbers
    count: int
    groups: Numbers
    grids: tuple[ValueGrid, ...]

    def keys(self, schema: pa.Schema) -> pa.Table:
        """The keys at `groups`, in its order, with these columns and types."""
        # An address is a number with a digit for each column, of as many values as its grid; the last is the lowest.
        columns, digits = [], self.groups
        for grid, field in zip(reversed(self.grids), reversed(list(schema)), strict=True):
            digits, slots = (
                (digits // grid.size, digits % grid.size) if grid is not self.grids[0] else (digits, digits)
            )
            # Times and dates are counted in their own unit, so they go through whole numbers both ways.
            columns.append(pa.array(slots * grid.step + grid.low).cast(_whole(field.type)).cast(field.type))
        return pa.table(columns[::-1], schema=schema)


def addresses_of(columns: Sequence[pa.ChunkedArray]) -> Addresses | None:
    """The addresses of keys with these columns, at least one, each of the same number of rows; None where there is no
    room for them, or a value has no place: a null, a text, a number far from the others.
    """
    rows = len(columns[0])
    if not rows or not all(is_position(column.type) and not column.null_count for column in columns):
        return None
    room = max(rows, min(ROOM * rows, MOST_ADDRESSES))
    codes, count, grids = np.zeros(0, np.int64), 1, list[ValueGrid]()
    for column in columns:
        layout = on_grid(positions(column), room // count)
        if layout is None:
            return None
        grid, slots = layout
        if grids:
            # In place: each of these arrays is as long as the rows.
            codes *= grid.size
            codes += slots
        else:
            codes = slots
        count *= grid.size
        grids.append(grid)
    # What has a mark is a group: this sorts the groups without sorting a row.
    return Addresses(codes, count, np.flatnonzero(flags_at(count, codes)), tuple(grids))


def on_grid(values: Numbers, room: int) -> tuple[ValueGrid, Numbers] | None:
    """A grid of at most ``room`` places, and the place of each of ``values``, of which there is at least one; None if
    no such grid is seen.
    """
    low, high = int(values.min()), int(values.max())
    if high - low < room:
        return ValueGrid(low, 1, high - low + 1), values - low
    # From here on differences of values are taken as 64 bits.
    if high - low > LARGEST:
        return None
    step = int(np.gcd.reduce(values[:: len(values) // SAMPLE + 1] - low))
    if step <= 1 or (high - low) // step >= room:
        return None
    distances = values - low
    slots = distances // step
    # The sample does not show all values.
    exact = np.array_equal(slots * step, distances)
    return (ValueGrid(low, step, (high - low) // step + 1), slots) if exact else None


def _whole(kind: pa.DataType) -> pa.DataType:
    """The type of whole numbers that Arrow casts to ``kind``, which has a position."""
    return pa.int32() if pa.types.is_date32(kind) else pa.int64()
