"""Array types that signatures name, arrays of one value, and where the entries of one lie. Docstrings have shapes and
units. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_T = TypeVar("_T")
Numbers: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]
Times: TypeAlias = npt.NDArray[np.int64]
"""Microseconds since 1970, or offsets where offsets take the place of times."""
Reasons: TypeAlias = npt.NDArray[np.int8]
"""Per row the index of a reason."""
Values: TypeAlias = pa.Array | pa.ChunkedArray
Counters: TypeAlias = dict[str, int]


def flags_at(count: int, places: Numbers | Flags) -> Flags:
    """Flags of shape ``(count,)``, set at these places."""
    flags = np.zeros(count, bool)
    flags[places] = True
    return flags


def are_smaller(parts: Sequence[pa.Table], limit_bytes: int) -> bool:
    """Whether these rows are smaller than that together: to say what is theirs of their buffers takes thirty times as
    long as to say how large these are.
    """
    buffer_bytes = sum(part.get_total_buffer_size() for part in parts)
    return buffer_bytes < limit_bytes or sum(part.nbytes for part in parts) < limit_bytes


def in_pieces(rows: pa.Table, most_bytes: int) -> Iterator[pa.Table]:
    """The rows in pieces of about so many bytes."""
    size = max(1, most_bytes * rows.num_rows // max(1, rows.nbytes))
    for start in range(0, rows.num_rows, size):
        yield rows.slice(start, size)


def in_lots(parts: Iterable[_T], size: Callable[[_T], int], least: int) -> Iterator[list[_T]]:
    """The parts in order, in lists whose sizes together are at least that, but for the last one."""
    lot: list[_T] = []
    lot_size = 0
    for part in parts:
        lot.append(part)
        lot_size += size(part)
        if lot_size >= least:
            yield lot
            lot, lot_size = [], 0
    if lot:
        yield lot


def in_shares(parts: Iterable[_T], size: Callable[[_T], int], most: int) -> Iterator[list[_T]]:
    """The parts in order, in lists whose sizes together are at most that, or which are one part."""
    share: list[_T] = []
    share_size = 0
    for part in parts:
        if share and share_size + size(part) > most:
            yield share
            share, share_size = [], 0
        share.append(part)
        share_size += size(part)
    if share:
        yield share


def one_table(parts: Iterable[pa.Table | None]) -> pa.Table | None:
    """The rows of all parts that are there, in order; None where none is."""
    tables = [rows for rows in parts if rows is not None]
    return pa.concat_tables(tables) if tables else None


def padded(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """``rows`` with a null in each column of the schema that they have not, behind those that they have."""
    names = set(rows.column_names)
    for field in schema:
        if field.name not in names:
            rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
    return rows


def total(many: Sequence[Counters]) -> Counters:
    """The sums of counters by name."""
    names = dict.fromkeys(name for counters in many for name in counters)
    return {name: sum(counters.get(name, 0) for counters in many) for name in names}


def counted_flags(**flags: Flags) -> Counters:
    """How many flags of each name are set; nothing of a name of which none is."""
    return {name: count for name, marks in flags.items() if (count := int(np.count_nonzero(marks)))}


def with_column(rows: pa.Table, name: str, column: Values) -> pa.Table:
    """``rows`` with a column of this name: in the place of the one that is there, else behind the others."""
    index = rows.schema.get_field_index(name)
    return rows.append_column(name, column) if index < 0 else rows.set_column(index, name, column)


def ends_of(texts: pa.Array) -> npt.NDArray[np.int32] | Numbers:
    """Where the entries of a text or binary array begin and end in its data, one more than there are; none if it has
    no such buffer. Who made the array may have left any number of bytes behind them.
    """
    wide = pa.types.is_large_string(texts.type) or pa.types.is_large_binary(texts.type)
    kind, ends = np.dtype(np.int64 if wide else np.int32), texts.buffers()[1]
    if ends is None or not len(texts):
        return np.zeros(0, kind)
    return np.frombuffer(memoryview(ends), kind, len(texts) + 1, texts.offset * kind.itemsize)


def constant(rows: int, value: str, values: tuple[str, ...]) -> pa.DictionaryArray:
    """``value``, one of ``values``, in every row."""
    codes = np.full(rows, values.index(value), np.int8)
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(values))
