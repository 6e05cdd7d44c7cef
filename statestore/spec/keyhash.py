"""Which state partition a key belongs to: a contiguous range of crc32 over the key's canonical text.

The text of a column is ``<bytes>:<value>``; integers in decimal, timestamps and times of day as microseconds, dates
as days, booleans ``true``/``false``, binary in hexadecimal. Columns follow one another without a separator. Spark SQL
can compute the same with ``crc32(concat(octet_length(k), ':', k, …))``, so anybody can find the partition of a key.
"""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.statestore.arrays import ends_of
from tidestate.statestore.errors import UsageError

_POLYNOMIAL = np.uint32(0xEDB88320)


def _crc_table() -> npt.NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ _POLYNOMIAL, table >> 1).astype(np.uint32)
    return table


_TABLE = _crc_table()


def partition_of(keys: pa.Table, partitions: int) -> npt.NDArray[np.int64]:
    """The state partition of each row of ``keys``: ``(crc32 * partitions) >> 32``. Shape ``(rows,)``, int64."""
    if partitions == 1 or not keys.num_columns:
        return np.zeros(keys.num_rows, np.int64)
    hashes = key_hash(keys).astype(np.uint64)
    return ((hashes * np.uint64(partitions)) >> np.uint64(32)).astype(np.int64)


def hash_range(partition: int, partitions: int) -> tuple[int, int]:
    """The hashes of one state partition of so many, half-open."""
    return -(-(partition << 32) // partitions), -(-((partition + 1) << 32) // partitions)


def key_hash(keys: pa.Table) -> npt.NDArray[np.uint32]:
    """crc32 of each row's canonical key text. Shape ``(rows,)``, uint32. A null, which no table has in its key,
    counts as an empty text.
    """
    hashes = np.full(keys.num_rows, 0xFFFFFFFF, np.uint32)
    for index, column in enumerate(keys.columns):
        text = pc.fill_null(_text(column), "") if column.null_count else _text(column)
        if index == 0:
            hashes = _extend(_prefix_states(pc.binary_length(text).to_numpy()), text)
        else:
            length = pc.binary_length(text).cast(pa.string())
            hashes = _extend(hashes, pc.binary_join_element_wise(length, text, ":"))
    return hashes ^ np.uint32(0xFFFFFFFF)


def _prefix_states(lengths: npt.NDArray[np.int32]) -> npt.NDArray[np.uint32]:
    """The state after ``<bytes>:`` of the first column: few lengths, so one table look-up a row."""
    if not len(lengths):
        return np.empty(0, np.uint32)
    states = [zlib.crc32(b"%d:" % length) ^ 0xFFFFFFFF for length in range(int(lengths.max()) + 1)]
    return np.array(states, np.uint32)[lengths]


def _text(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    kind = values.type
    if isinstance(values, pa.DictionaryArray):
        return _text(values.dictionary_decode())
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        return values.cast(pa.timestamp("us", tz=kind.tz)).view(pa.int64()).cast(pa.string())
    if kind == pa.time64("us"):
        return values.view(pa.int64()).cast(pa.string())
    if pa.types.is_date32(kind):
        return values.view(pa.int32()).cast(pa.string())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        # Hexadecimal per distinct value: keys of this type are rare and short.
        codes = values.dictionary_encode()
        names = pa.array([v.as_py().hex() for v in codes.dictionary], pa.string())
        return pa.DictionaryArray.from_arrays(codes.indices, names).dictionary_decode()
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return values.cast(pa.string())
    if pa.types.is_decimal128(kind):
        return _decimal_text(values, kind)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return values.cast(pa.string())
    raise UsageError("a key column cannot have this type: cast it", code="key-type", type=str(kind))


def _decimal_text(values: pa.Array, kind: pa.Decimal128Type) -> pa.Array:
    """Plain digits with the point, as Spark writes them; Arrow alone would write 1E-8."""
    scale = kind.scale
    integers = pa.Array.from_buffers(
        pa.decimal128(kind.precision, 0), len(values), values.buffers(), offset=values.offset
    )
    text = integers.cast(pa.string())
    if scale <= 0:
        return text
    sign = pc.if_else(pc.starts_with(text, "-"), "-", "")
    digits = pc.utf8_lpad(pc.utf8_ltrim(text, "-"), scale + 1, "0")
    units, fraction = pc.utf8_slice_codeunits(digits, 0, -scale), pc.utf8_slice_codeunits(digits, -scale)
    return pc.binary_join_element_wise(pc.binary_join_element_wise(sign, units, ""), fraction, ".")


def _extend(hashes: npt.NDArray[np.uint32], text: pa.Array) -> npt.NDArray[np.uint32]:
    """Feed each row's bytes to its hash: a loop over byte positions, not over rows."""
    if not len(text):
        return hashes
    letters, offsets = text.buffers()[2], ends_of(text)
    data = np.frombuffer(memoryview(letters or b""), np.uint8)
    starts, lengths = offsets[:-1], np.diff(offsets)
    shortest = int(lengths.min())
    for position in range(int(lengths.max())):
        if position < shortest:
            byte = data[starts + position]
            hashes = _TABLE[(hashes ^ byte) & 0xFF] ^ (hashes >> 8)
        else:
            rows = np.flatnonzero(lengths > position)
            old = hashes[rows]
            hashes[rows] = _TABLE[(old ^ data[starts[rows] + position]) & 0xFF] ^ (old >> 8)
    return hashes
