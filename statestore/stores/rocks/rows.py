"""Arrow rows as bytes, for stores that take one byte string a row. Column by column, never row by row. Pure.

A column is a few *streams*: its validity (a byte each), then its fixed-width values, or u32 lengths and the bytes;
a nested column has the streams of its children, each child's run in a row taken together. A packed row is first the
row's part of all streams whose width the schema gives, then its part of all others. Numbers are little-endian.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import pyarrow as pa

from tidestate.statestore.arrays import Numbers
from tidestate.statestore.spec.arrowtypes import item_type
from tidestate.statestore.stores.rocks.bytestrings import (
    Bytes,
    Strings,
    concatenated,
    fixed_width,
    flags,
    from_arrow,
    gather_strings,
    matrix,
)


def encode_rows(rows: pa.Table) -> Strings:
    """One packed row per row."""
    columns = (c.chunk(0) if c.num_chunks == 1 else c.combine_chunks() for c in rows.columns)
    streams = [stream for column in columns for stream in _streams(column)]
    in_order = [s for s in streams if s.fixed] + [s for s in streams if not s.fixed]
    return concatenated(in_order, rows.num_rows)


def decode_rows(packed: Sequence[bytes], schema: pa.Schema) -> pa.Table:
    """The rows again, as a table of ``schema``. Raises `ValueError` for byte strings that are no rows of it."""
    if not packed:
        return schema.empty_table()
    rows = _Rows(packed, sum(_head(field.type) for field in schema))
    cells = _Cells(rows, np.arange(len(packed) + 1), 1)
    found = pa.table([_read(cells, field.type) for field in schema], schema=schema)
    rows.check_end()
    found.validate()
    return found


def _is_text(kind: pa.DataType) -> bool:
    small = pa.types.is_string(kind) or pa.types.is_binary(kind)
    return bool(small or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind))


def _is_view(kind: pa.DataType) -> bool:
    return kind in (pa.string_view(), pa.binary_view())


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind))


def _width(kind: pa.DataType) -> int:
    return 1 if pa.types.is_boolean(kind) else int(kind.bit_width) // 8


def _head(kind: pa.DataType) -> int:
    """Bytes that a column of this type has at the front of every row."""
    if pa.types.is_null(kind):
        return 0
    if pa.types.is_struct(kind):
        return 1 + sum(_head(field.type) for field in kind)
    if pa.types.is_fixed_size_list(kind):
        return 1 + int(kind.list_size) * _head(kind.value_type)
    return 5 if _is_list(kind) or _is_text(kind) or _is_view(kind) else 1 + _width(kind)


def _streams(column: pa.Array) -> list[Strings]:
    kind, count = column.type, len(column)
    if pa.types.is_null(kind):
        return []
    valid = [_flags(column.is_valid()) if column.null_count else matrix(np.ones((count, 1), np.uint8), fixed=True)]
    if pa.types.is_struct(kind):
        structs = cast(pa.StructArray, column)
        return valid + [stream for place in range(kind.num_fields) for stream in _streams(structs.field(place))]
    if pa.types.is_fixed_size_list(kind):
        size = int(kind.list_size)
        values = cast(pa.FixedSizeListArray, column).values.slice(column.offset * size, count * size)
        return valid + [stream.every(size, count) for stream in _streams(values)]
    if _is_list(kind):
        return valid + _list_streams(cast(pa.ListArray, column))  # or another kind of list, or a map
    if _is_text(kind) or _is_view(kind):
        text = from_arrow(column.cast(pa.large_binary()) if _is_view(kind) else column)
        return [*valid, _lengths(text.ends()), text]
    return [
        *valid,
        _flags(column) if pa.types.is_boolean(kind) else matrix(fixed_width(column, _width(kind)), fixed=True),
    ]


def _list_streams(column: pa.ListArray) -> list[Strings]:
    offsets = column.offsets.to_numpy().astype(np.int64) if len(column) else np.zeros(1, np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    children = _streams(column.values.slice(first, last - first))
    return [_lengths(offsets), *(stream.regrouped(offsets - first) for stream in children)]


def _flags(column: pa.Array) -> Strings:
    return matrix(flags(column).reshape(-1, 1), fixed=True)


def _lengths(offsets: Numbers) -> Strings:
    return matrix(np.diff(offsets).astype("<u4").view(np.uint8).reshape(-1, 4), fixed=True)


class _Rows:
    """Packed rows and how far they have been read."""

    def __init__(self, packed: Sequence[bytes], head: int) -> None:
        self._data = np.frombuffer(b"".join(packed), np.uint8)
        sizes = np.fromiter(map(len, packed), np.int64, len(packed))
        self._ends = np.cumsum(sizes)
        self._at = self._ends - sizes
        uniform = bool((sizes == sizes[0]).all())
        # Rows of one length are a matrix, and slices of a matrix cost next to nothing.
        self._matrix = self._data.reshape(len(packed), -1) if uniform else None
        self._column = 0
        self._heads = self.take(np.full(len(packed), head)).reshape(len(packed), head)
        self._head = 0

    def head(self, width: int) -> Bytes:
        """The next ``width`` bytes at the front of every row."""
        piece = self._heads[:, self._head : self._head + width]
        self._head += width
        return np.array(piece).reshape(-1)  # a copy: Arrow wants its buffers aligned

    def take(self, sizes: Numbers) -> Bytes:
        """The next bytes of every row, ``sizes[i]`` of row ``i``, one row after the other."""
        if self._matrix is not None and bool((sizes == sizes[0]).all()):
            piece = self._matrix[:, self._column : self._column + int(sizes[0])]
            _check(piece.shape[1] == int(sizes[0]))
            self._column += int(sizes[0])
            return np.array(piece).reshape(-1)
        if self._matrix is not None:
            self._at += self._column
            self._matrix = None
        _check(bool((self._at + sizes <= self._ends).all()))  # Arrow would read what lies behind
        piece = gather_strings(self._data, self._at, sizes)
        self._at += sizes
        return piece

    def check_end(self) -> None:
        """Raise `ValueError` unless all rows have been read to their ends."""
        _check(bool((self._at + (self._column if self._matrix is not None else 0) == self._ends).all()))


def _check(fits: bool) -> None:
    if not fits:
        raise ValueError("a packed row that is cut, or too long")


@dataclass(frozen=True)
class _Cells:
    """Values of one level: those of row ``i`` lie in ``bounds[i:i + 2]``, always ``stride`` of them unless None."""

    rows: _Rows
    bounds: Numbers
    stride: int | None

    @property
    def count(self) -> int:
        return int(self.bounds[-1])

    def fixed(self, width: int) -> Bytes:
        """The next stream, of ``width`` bytes a value."""
        if self.stride is not None:
            return self.rows.head(width * self.stride)
        return self.rows.take(np.diff(self.bounds) * width)

    def variable(self, ends: Numbers) -> Bytes:
        """The next stream, value ``i`` between ``ends[i:i + 2]``."""
        return self.rows.take(np.diff(ends[self.bounds]))

    def within(self, ends: Numbers) -> _Cells:
        """Children: those of value ``i`` lie in ``ends[i:i + 2]``."""
        return _Cells(self.rows, ends[self.bounds], None)

    def every(self, size: int) -> _Cells:
        """Children, ``size`` of them a value."""
        return _Cells(self.rows, self.bounds * size, None if self.stride is None else self.stride * size)


def _read(cells: _Cells, kind: pa.DataType) -> pa.Array:
    count = cells.count
    if pa.types.is_null(kind):
        return pa.nulls(count)
    valid = cells.fixed(1)
    validity = None if valid.all() else _packed(valid)
    if pa.types.is_struct(kind):
        children = [_read(cells, field.type) for field in kind]
        return pa.Array.from_buffers(kind, count, [validity], children=children)
    if pa.types.is_fixed_size_list(kind):
        children = [_read(cells.every(int(kind.list_size)), kind.value_type)]
        return pa.Array.from_buffers(kind, count, [validity], children=children)
    if _is_list(kind) or _is_text(kind) or _is_view(kind):
        return _read_variable(cells, kind, validity)
    data = cells.fixed(_width(kind))
    return pa.Array.from_buffers(
        kind, count, [validity, _packed(data) if pa.types.is_boolean(kind) else pa.py_buffer(data)]
    )


def _read_variable(cells: _Cells, kind: pa.DataType, validity: pa.Buffer | None) -> pa.Array:
    lengths = cells.fixed(4).view("<u4")
    ends = np.zeros(cells.count + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    if _is_view(kind):
        buffers = [validity, pa.py_buffer(ends), pa.py_buffer(cells.variable(ends))]
        large = pa.large_string() if kind == pa.string_view() else pa.large_binary()
        return pa.Array.from_buffers(large, cells.count, buffers).cast(kind)
    long = any(test(kind) for test in (pa.types.is_large_list, pa.types.is_large_string, pa.types.is_large_binary))
    _check(long or int(ends[-1]) < 1 << 31)
    offsets = pa.py_buffer(ends if long else ends.astype(np.int32))
    if _is_text(kind):
        return pa.Array.from_buffers(kind, cells.count, [validity, offsets, pa.py_buffer(cells.variable(ends))])
    return pa.Array.from_buffers(
        kind, cells.count, [validity, offsets], children=[_read(cells.within(ends), _entry(kind))]
    )


def _entry(kind: pa.DataType) -> pa.DataType:
    return pa.struct([kind.key_field, kind.item_field]) if pa.types.is_map(kind) else item_type(kind)


def _packed(flags: Bytes) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))
