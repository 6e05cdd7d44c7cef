"""Decimals as whole numbers of their last digit, and back. Pure and vectorised.

Sums of whole numbers and of decimals are stored as decimals, which cannot overflow; nearly all of them fit 64 bits,
where numpy adds them up several times faster.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidestate.statestore.arrays import Numbers, Values

_WORD_BYTES = 8


def whole_units(values: Values) -> pa.Array | None:
    """Decimals without their point as int64, null where they are null; None if one does not fit."""
    chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    parts = []
    for chunk in chunks:
        words = _words(chunk)
        is_null = None
        if chunk.null_count:
            is_null = np.asarray(chunk.is_null())
            words = np.where(is_null[:, None], 0, words)  # what lies under a null may be anything
        low = words[:, 0].copy()
        sign = low >> 63
        if not all((words[:, index] == sign).all() for index in range(1, words.shape[1])):
            return None
        parts.append(pa.array(low, mask=is_null))
    return parts[0] if len(parts) == 1 else pa.concat_arrays([pa.array([], pa.int64()), *parts])


def decimals_of(units: pa.Array, kind: pa.Decimal128Type | pa.Decimal256Type) -> pa.Array:
    """Int64 as decimals with the point of ``kind``. Raises `pa.ArrowInvalid` for one of too many digits."""
    widest = pa.decimal128(38, kind.scale) if pa.types.is_decimal128(kind) else pa.decimal256(76, kind.scale)
    is_null = np.asarray(units.is_null()) if units.null_count else None
    low = (units.fill_null(0) if units.null_count else units).to_numpy()
    words = np.empty((len(low), widest.bit_width // 64), np.int64)
    words[:, 0] = low
    words[:, 1:] = (low >> 63)[:, None]
    valid = None if is_null is None else pa.py_buffer(np.packbits(~is_null, bitorder="little"))
    return pa.Array.from_buffers(widest, len(low), [valid, pa.py_buffer(words)]).cast(kind)


def _words(decimals: pa.Array) -> Numbers:
    """Their words of 64 bits, the lowest first. Shape ``(rows, words)``."""
    width = decimals.type.bit_width // 64
    data = decimals.buffers()[1]
    if data is None or not len(decimals):
        return np.zeros((len(decimals), width), np.int64)
    start = decimals.offset * width * _WORD_BYTES
    return np.frombuffer(memoryview(data), np.int64, len(decimals) * width, start).reshape(-1, width)
