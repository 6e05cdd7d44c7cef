"""How many bytes a message counts for when a store is limited by size. Pure, the same for equal values anywhere.

Not the bytes of any file: the width of fixed-width values, the length of text and binary, nested values by what
they hold, nothing for a null.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.statestore.spec.lists import list_values, struct_fields

Sizes = npt.NDArray[np.int64]


def row_bytes(rows: pa.Table) -> Sizes:
    """Bytes of each row. Shape ``(rows,)``, int64."""
    total = np.zeros(rows.num_rows, np.int64)
    for column in rows.columns:
        if column.num_chunks:
            total += np.concatenate([_sizes(chunk) for chunk in column.chunks])
    return total


def _sizes(values: pa.Array) -> Sizes:
    kind = values.type
    if pa.types.is_null(kind):
        return np.zeros(len(values), np.int64)
    if isinstance(values, pa.MapArray):
        return _within(values.offsets.to_numpy(), _sizes(values.keys) + _sizes(values.items), values)
    if pa.types.is_struct(kind):
        return sum((_sizes(part) for part in struct_fields(values)), np.zeros(len(values), np.int64))
    if pa.types.is_nested(kind):
        lengths = _numbers(pc.list_value_length(values))
        return _within(np.concatenate([[0], np.cumsum(lengths)]), _sizes(list_values(values)), values)
    if _has_length(kind):
        return _numbers(pc.binary_length(values))
    fixed: Sizes = values.is_valid().to_numpy(zero_copy_only=False) * np.int64((kind.bit_width + 7) // 8)
    return fixed


def _within(offsets: npt.NDArray[Any], sizes: Sizes, values: pa.Array) -> Sizes:
    """The sum of ``sizes`` between neighbouring ``offsets``; nothing where ``values`` is null."""
    sums = np.concatenate([[0], np.cumsum(sizes)])
    result: Sizes = (sums[offsets[1:]] - sums[offsets[:-1]]) * values.is_valid().to_numpy(zero_copy_only=False)
    return result


def _numbers(lengths: pa.Array) -> Sizes:
    result: Sizes = pc.fill_null(lengths.cast(pa.int64()), 0).to_numpy()
    return result


def _has_length(kind: pa.DataType) -> bool:
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return bool(text or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
