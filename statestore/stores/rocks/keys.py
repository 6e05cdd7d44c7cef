"""Keys as bytes that compare as the keys do, for stores that order byte strings. Pure.

Integers, times, dates and decimals are big-endian with the sign flipped. Text has 0x00 written as 0x00 0xFF and ends
in 0x00 0x00; in the last key column, after which nothing comes, it stands as it is.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidestate.statestore.spec.arrowtypes import is_position
from tidestate.statestore.spec.keyrange import Cut, as_scalar
from tidestate.statestore.stores.rocks.bytestrings import (
    Strings,
    concatenated,
    fixed_width,
    flags,
    from_arrow,
    matrix,
    repeated,
)

_END = b"\x00\x00"


class KeyCodec:
    """Encodes the keys of one table, each behind the bytes ``start``."""

    def __init__(self, start: bytes, schema: pa.Schema) -> None:
        self.start = start
        self.end = prefix_end(start)
        self._schema = schema

    def encode(self, keys: pa.Table) -> Strings:
        """One string per row of ``keys``: all key columns, or the leading ones."""
        last, count = len(self._schema) - 1, keys.num_rows
        parts = [_part(_flat(column), place == last) for place, column in enumerate(keys.columns)]
        return concatenated([repeated(self.start, count), *parts], count)

    def cut(self, cut: Cut) -> bytes:
        """The smallest byte string of all keys behind ``cut``. Whole numbers may lie beyond their column."""
        fitting: list[pa.Array] = []
        for place, value in enumerate(cut.values):
            column = self._schema.field(place)
            side = _beyond(value, column.type)
            if side:
                here = self._one(fitting)
                return prefix_end(here) if side > 0 else here
            fitting.append(pa.repeat(as_scalar(value, column.type), 1))
        here = self._one(fitting)
        if not cut.after:
            return here
        return here + b"\x00" if len(fitting) == len(self._schema) else prefix_end(here)

    def _one(self, values: list[pa.Array]) -> bytes:
        if not values:
            return self.start
        return self.encode(pa.table(values, names=self._schema.names[: len(values)])).to_list()[0]


def prefix_end(start: bytes) -> bytes:
    """The smallest byte string after all that start with ``start``, which has a byte below 255."""
    cut = start.rstrip(b"\xff")
    return cut[:-1] + bytes([cut[-1] + 1])


def _beyond(value: Any, kind: pa.DataType) -> int:
    """-1 or 1 when a whole number lies below or above everything its column can hold."""
    if not (is_position(kind) or pa.types.is_uint64(kind)) or not isinstance(value, int):
        return 0
    stored = _stored(kind)
    least = 0 if pa.types.is_unsigned_integer(stored) else -(2 ** (stored.bit_width - 1))
    greatest = least + 2**stored.bit_width - 1
    return int(value > greatest) - int(value < least)


def _stored(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_date32(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(kind) else kind


def _part(column: pa.Array, last: bool) -> Strings:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        text = from_arrow(column)
        return text if last else _terminated(column, text)
    if pa.types.is_boolean(kind):
        return matrix(flags(column).reshape(-1, 1))
    return _number(column, kind.bit_width // 8, signed=not pa.types.is_unsigned_integer(kind))


def _number(column: pa.Array, width: int, *, signed: bool) -> Strings:
    big_endian = fixed_width(column, width)[:, ::-1].copy()
    if signed:
        big_endian[:, 0] ^= 0x80
    return matrix(big_endian)


def _terminated(column: pa.Array, text: Strings) -> Strings:
    # Most text has no zero byte, and looking is a fraction of replacing.
    if not text.data.all():
        escaped = pc.replace_substring(column.cast(pa.large_binary()), pattern=b"\x00", replacement=b"\x00\xff")
        text = from_arrow(escaped)
    return concatenated([text, repeated(_END, text.count)], text.count)


def _flat(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
