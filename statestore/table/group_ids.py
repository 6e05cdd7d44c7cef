"""Which values are equal, of any type, nested too; NaN equals NaN, and there is one zero. Pure and vectorised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast, overload

import numpy as np
import pyarrow as pa

from tidestate.statestore.arrays import Numbers
from tidestate.statestore.spec.lists import flat, lengths_of, struct_fields
from tidestate.statestore.table.sorting import ranks


def group_ids(columns: Sequence[pa.Array], first: Numbers) -> Numbers:
    """A number for each row, the same for rows that agree in all ``columns`` and ``first``. Shape ``(rows,)``."""
    return _together([first, *(_of(column) for column in columns)])


@overload
def map_entries(maps: pa.Array) -> pa.Array: ...
@overload
def map_entries(maps: pa.ChunkedArray) -> pa.ChunkedArray: ...
def map_entries(maps: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Maps as lists of what they hold."""
    kind = cast(pa.MapType, maps.type)
    pair = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
    return maps.cast(pa.list_(pair))


def _of(values: pa.Array) -> Numbers:
    """A number for each value, the same for equal ones; nulls are equal."""
    kind = values.type
    if pa.types.is_map(kind):
        return _of(map_entries(values))
    if pa.types.is_struct(kind):
        return _together([_known(values), *(_of(part) for part in struct_fields(values))])
    if kind.num_fields:
        return _together([_known(values), _lists(values)])
    if pa.types.is_floating(kind):
        doubles = values.to_numpy(zero_copy_only=False).astype(np.float64) + 0.0
        doubles[np.isnan(doubles)] = np.nan
        return _together([_known(values), doubles.view(np.int64)])
    found: Numbers = values.dictionary_encode("encode").indices.to_numpy().astype(np.int64)
    return found


def _lists(values: pa.Array) -> Numbers:
    """Lists by what they hold: the numbers of their values side by side are one string of bytes."""
    ends = np.append(0, np.cumsum(lengths_of(values))) * 8
    inside = np.ascontiguousarray(_of(flat(values)[0]))
    buffers = [None, pa.py_buffer(ends.astype(np.int64)), pa.py_buffer(inside)]
    strings = pa.Array.from_buffers(pa.large_binary(), len(values), buffers)
    found: Numbers = strings.dictionary_encode().indices.to_numpy().astype(np.int64)
    return found


def _known(values: pa.Array) -> Numbers:
    known: Numbers = np.asarray(values.is_valid()).astype(np.int64)
    return known


def _together(columns: Sequence[Numbers]) -> Numbers:
    return ranks(pa.table(list(columns), names=[str(number) for number in range(len(columns))]))[0]
