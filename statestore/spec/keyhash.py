"""Which state partition a key belongs to: a contiguous range of crc32 over the key's canonical text.

The text of a column is ``<bytes>:<value>``; integers in decimal, timestamps and times of day as microseconds, dates
as days, booleans ``true``/``false``, binary in hexadecimal. Columns follow one another without a separator. Spark SQL
can compute the same with ``crc32(concat(octet_length(k), ':', k, …))``, so anybody can find the partition of a key.
"""

from __future__ import annotations

import zlib
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.statestore.arrays import ends_of
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.arrowtypes import is_position, positions
from tidestate.statestore.spec.lists import whole

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
        if index == 0 and (states := _states_of_numbers(column)) is not None:
            hashes = states
            continue
        text = pc.fill_null(_text(column), "") if column.null_count else _text(column)
        if index == 0:
            hashes = _extend(_prefix_states(pc.binary_length(text).to_numpy()), text)
        else:
            length = pc.binary_length(text).cast(pa.string())
            hashes = _extend(hashes, pc.binary_join_element_wise(length, text, ":"))
    return hashes ^ np.uint32(0xFFFFFFFF)


DIGITS_AT_ONCE = 4
CHUNK = 10**DIGITS_AT_ONCE
CHUNKS = -(-len(str(2**63 - 1)) // DIGITS_AT_ONCE)


def _states_of_numbers(column: pa.ChunkedArray) -> npt.NDArray[np.uint32] | None:
    """The state after a first column of whole numbers from 0 on; None for other columns.

    A state is linear in the bytes that are fed, so it is the exclusive or of what each four digits add to it, which
    tables say: nothing is written as text. Of the digits in front there is another table: they have no zeros before
    them, and tell how long the text is, and so what stands before it.
    """
    if not is_position(column.type) or column.null_count or not len(column):
        return None
    if pa.types.is_timestamp(column.type) and column.type.unit != "us":
        return None
    rest = positions(column)
    if rest.min() < 0:
        return None
    states = np.zeros(len(rest), np.uint32)
    for chunk in range(CHUNKS):
        above = rest // CHUNK
        digits = rest - above * CHUNK
        in_front = above == 0
        if chunk:  # numbers that ended before add nothing
            digits[rest == 0] = CHUNK
        states ^= _chunk_table(chunk)[digits + in_front * (CHUNK + 1)]
        if in_front.all():
            break
        rest = above
    return states


@cache
def _chunk_table(chunk: int) -> npt.NDArray[np.uint32]:
    """What four digits add to a state, with ``chunk`` times as many after them: first of all numbers with digits in
    front of these, then of those without. After each, what no digits add.
    """
    table = np.zeros((2, CHUNK + 1), np.uint32)
    numbers = np.arange(CHUNK)
    length = np.searchsorted(10 ** np.arange(1, DIGITS_AT_ONCE), numbers, "right") + 1
    for place in range(DIGITS_AT_ONCE):
        after = b"\0" * (chunk * DIGITS_AT_ONCE + place)
        added = np.array([_fed(b"%d" % digit + after, 0) for digit in range(10)], np.uint32)
        each = added[numbers // 10**place % 10]
        table[0, :CHUNK] ^= each
        table[1, :CHUNK] ^= np.where(place < length, each, np.uint32(0))
    many = chunk * DIGITS_AT_ONCE + length
    before = {size: _fed(b"%d:" % size + b"\0" * size, 0xFFFFFFFF) for size in set(many.tolist())}
    table[1, :CHUNK] ^= np.array([before[size] for size in many.tolist()], np.uint32)
    return table.reshape(-1)


def _fed(data: bytes, state: int) -> int:
    """The state of a crc32 after ``data``."""
    return zlib.crc32(data, state ^ 0xFFFFFFFF) ^ 0xFFFFFFFF


def _prefix_states(lengths: npt.NDArray[np.int32]) -> npt.NDArray[np.uint32]:
    """The state after ``<bytes>:`` of the first column: few lengths, so one table look-up a row."""
    if not len(lengths):
        return np.empty(0, np.uint32)
    states = [zlib.crc32(b"%d:" % length) ^ 0xFFFFFFFF for length in range(int(lengths.max()) + 1)]
    return np.array(states, np.uint32)[lengths]


def _text(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    values = whole(column)
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
