"""Arrow rows as bytes: memcomparable keys and packed rows, for stores that take one bytes object a row.

Column by column, not row by row. A packed row is: one validity byte per column, the fixed-width values (little
endian; a variable-width column has its u32 length here), then the variable-width bytes in column order. In a
key, integers are big-endian with the sign flipped, text has 0x00 written as 0x00 0xFF and ends in 0x00 0x00, so
that bytes compare as the values do.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import UsageError

Bytes2D = npt.NDArray[np.uint8]


def encode_keys(prefix: bytes, keys: pa.Table) -> list[bytes]:
    """One memcomparable key per row, each starting with ``prefix``."""
    parts = [_key_part(column.combine_chunks()) for column in keys.columns]
    if not parts:
        return [prefix] * keys.num_rows
    start = pa.scalar(prefix, pa.binary())
    joined = pc.binary_join_element_wise(start, *parts, pa.scalar(b"", pa.binary()))
    encoded: list[bytes] = joined.to_pylist()
    return encoded


def encode_bound(prefix: bytes, value: int, kind: pa.DataType) -> bytes:
    """The smallest key of all rows whose leading column is at least ``value``."""
    stored = pa.int32() if pa.types.is_date32(kind) else pa.int64() if pa.types.is_timestamp(kind) else kind
    limits = np.iinfo(stored.to_pandas_dtype())
    if value > limits.max:
        return prefix_end(prefix)
    column = pa.array([max(value, int(limits.min))], stored)
    return encode_keys(prefix, pa.table({"bound": column}))[0]


def prefix_end(prefix: bytes) -> bytes:
    """The first key after every key that starts with ``prefix`` (whose last byte is below 255)."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def encode_rows(rows: pa.Table) -> list[bytes]:
    """One packed row of bytes per row."""
    if not rows.num_rows:
        return []
    columns = [_flat(column.combine_chunks()) for column in rows.columns]
    validity = np.stack([np.asarray(c.is_valid().to_numpy(zero_copy_only=False), np.uint8) for c in columns], 1)
    fixed = np.concatenate([validity, *(_fixed_part(column) for column in columns)], axis=1)
    heads = _as_binary(np.ascontiguousarray(fixed))
    tails = [pc.fill_null(_as_bytes(c), b"") for c in columns if _variable(c.type)]
    packed: list[bytes] = pc.binary_join_element_wise(heads, *tails, pa.scalar(b"", pa.binary())).to_pylist()
    return packed


def decode_rows(packed: Sequence[bytes], schema: pa.Schema) -> pa.Table:
    """The rows again, as a table of ``schema``."""
    data = np.frombuffer(b"".join(packed), np.uint8)
    lengths = np.fromiter(map(len, packed), np.int64, len(packed))
    starts = np.cumsum(lengths) - lengths
    widths = [4 if _variable(field.type) else _width(field.type) for field in schema]
    head = len(schema) + sum(widths)
    fixed = data[starts[:, None] + np.arange(head)] if len(packed) else np.empty((0, head), np.uint8)
    position, tail, columns = len(schema), starts + head, []
    for index, (field, width) in enumerate(zip(schema, widths, strict=True)):
        cell = np.ascontiguousarray(fixed[:, position : position + width])
        missing = fixed[:, index] == 0
        if _variable(field.type):
            size = cell.view(np.uint32).reshape(-1).astype(np.int64)
            columns.append(_gather(data, tail, size, missing, field.type))
            tail = tail + size
        else:
            columns.append(_unfixed(cell, missing, field.type))
        position += width
    return pa.table(columns, schema=schema)


def _key_part(column: pa.Array) -> pa.Array:
    kind = column.type
    if _variable(kind):
        text = _as_bytes(column)
        escaped = pc.replace_substring(text, pattern=b"\x00", replacement=b"\x00\xff")
        return pc.binary_join_element_wise(escaped, pa.scalar(b"\x00\x00", pa.binary()), pa.scalar(b"", pa.binary()))
    raw = _fixed_part(_flat(column))
    flipped = raw[:, ::-1].copy()
    if not pa.types.is_boolean(kind) and not pa.types.is_unsigned_integer(kind):
        flipped[:, 0] ^= 0x80
    return _as_binary(flipped)


def _flat(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _variable(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _width(kind: pa.DataType) -> int:
    if pa.types.is_boolean(kind):
        return 1
    try:
        return int(kind.bit_width) // 8
    except ValueError:
        raise UsageError("the rocksdb store cannot hold this type yet", code="rocksdb-type", type=str(kind)) from None


def _fixed_part(column: pa.Array) -> Bytes2D:
    """The column's fixed-width bytes, shape ``(rows, width)``; lengths for a variable-width one."""
    rows = len(column)
    if _variable(column.type):
        lengths = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False).astype("<u4")
        sizes: Bytes2D = lengths.view(np.uint8).reshape(rows, 4)
        return sizes
    if pa.types.is_boolean(column.type):
        flags = pc.fill_null(column, False).to_numpy(zero_copy_only=False)
        bits: Bytes2D = flags.astype(np.uint8).reshape(rows, 1)
        return bits
    width = _width(column.type)
    values = np.frombuffer(column.buffers()[1], np.uint8)
    return values[column.offset * width : (column.offset + rows) * width].reshape(rows, width)


def _unfixed(cell: Bytes2D, missing: npt.NDArray[np.bool_], kind: pa.DataType) -> pa.Array:
    if pa.types.is_boolean(kind):
        return pa.array(cell.reshape(-1).astype(bool), kind, mask=missing)
    validity = pa.array(~missing).buffers()[1] if missing.any() else None
    return pa.Array.from_buffers(kind, len(cell), [validity, pa.py_buffer(cell.tobytes())])


def _gather(
    data: Bytes2D,
    starts: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    missing: npt.NDArray[np.bool_],
    kind: pa.DataType,
) -> pa.Array:
    """Slices of ``data`` as one string or binary array."""
    ends = np.cumsum(sizes)
    index = np.repeat(starts - (ends - sizes), sizes) + np.arange(int(ends[-1]) if len(ends) else 0)
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    validity = pa.array(~missing).buffers()[1] if missing.any() else None
    buffers = [validity, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data[index].tobytes())]
    return pa.Array.from_buffers(kind, len(sizes), buffers)


def _as_binary(matrix: Bytes2D) -> pa.Array:
    width = matrix.shape[1]
    fixed = pa.Array.from_buffers(pa.binary(width), len(matrix), [None, pa.py_buffer(matrix.tobytes())])
    return fixed.cast(pa.binary())


def _as_bytes(column: pa.Array) -> pa.Array:
    return column if pa.types.is_binary(column.type) else column.cast(pa.binary())
