"""The Parquet files of a batch: divided into the ranges that tasks read, and whether they can be read without Spark,
by their footers. Pure.

The division depends on paths and sizes alone: not on the number of cores, and not on what else runs. So a batch that
is repeated after a crash arrives in the same order, and its sums have the same bits.

What a footer may have is listed; anything else needs the JVM. Spark's own reader decides then, with its own errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidestate.operators.spark.plain_types import PLAIN_TYPES, decimal_of
from tidestate.operators.spark.scan.decide import FileColumn
from tidestate.recovery.spark.parquet_types import is_written_as
from tidestate.statestore.spec.tables import TIME

CODECS = frozenset({"UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD"})
ENCODINGS = frozenset({"PLAIN", "RLE", "BIT_PACKED", "PLAIN_DICTIONARY", "RLE_DICTIONARY"}) | {
    "DELTA_BINARY_PACKED",
    "DELTA_LENGTH_BYTE_ARRAY",
    "DELTA_BYTE_ARRAY",
}
CALENDAR = {"date": -25202, "timestamp": -25202 * 86_400_000_000}
"""1901-01-01: up to 1900, Spark may read a value in the Julian calendar, or in the time zone's local mean time."""
WRITER, LEGACY = b"org.apache.spark.version", b"org.apache.spark.legacyDateTime"

_ARROW = PLAIN_TYPES | {"timestamp": TIME}


class NeedsJvmError(Exception):
    """A file or a batch that Spark must read, and why."""


def check_footer(
    footer: pq.FileMetaData, columns: Sequence[FileColumn], *, rebased: bool, row_group_bytes: int
) -> tuple[dict[FileColumn, int | None], list[int]]:
    """The place of each of these ``columns`` in a file, None if the file lacks it; and the middle of each row group.
    ``rebased``: as in `DirectScan`; ``row_group_bytes``: the most that the
    columns of a row group may have. Raises `NeedsJvmError`.
    """
    names = _top_names(footer)
    places = {column: _place(names, column) for column in columns}
    used = {column: place for column, place in places.items() if place is not None}
    for column, place in used.items():
        _check_type(footer.schema.column(place), column, names[place])
    exact = _says_calendar(footer.metadata or {}) or not (rebased or _is_old(footer.metadata or {}))
    middles = []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        chunks = {column: group.column(place) for column, place in used.items()}
        _check_chunks(chunks, row_group_bytes)
        if not exact:
            for column, chunk in chunks.items():
                _check_calendar(column, chunk)
        middles.append(_middle(group))
    return places, middles


@cache
def arrow_type(kind: str) -> pa.DataType:
    """The Arrow type of a column of Spark's type ``kind``."""
    decimal = decimal_of(kind)
    return pa.decimal128(*decimal) if decimal is not None else _ARROW[kind]


def check_arrow(found: pa.DataType, column: FileColumn) -> None:
    """Raise `NeedsJvmError` unless Arrow reads the column in a type that is the expected one in another layout."""
    wanted = arrow_type(column.type)
    if pa.types.is_dictionary(found):
        found = found.value_type
    if column.type == "timestamp" and pa.types.is_timestamp(found) and found.unit == "us" and found.tz:
        return
    if found != wanted and not (column.type == "string" and pa.types.is_large_string(found)):
        raise NeedsJvmError(f"the column {column.name} is written as {found}")


def _top_names(footer: pq.FileMetaData) -> list[str]:
    """The path of each leaf."""
    return [footer.schema.column(place).path for place in range(len(footer.schema))]


def _place(paths: Sequence[str], column: FileColumn) -> int | None:
    """The leaf of a column, whose name may differ in case. Raises `NeedsJvmError` where that is not certain."""
    wanted = column.name.casefold()
    if "." in column.name:
        raise NeedsJvmError(f"the column {column.name} has a dot in its name")
    found = [place for place, path in enumerate(paths) if path.partition(".")[0].casefold() == wanted]
    if not found:
        return None
    if len(found) > 1 or "." in paths[found[0]]:
        raise NeedsJvmError(f"the column {column.name} is nested or there twice")
    (place,) = found
    if paths[place] != column.name and not (paths[place].isascii() and column.name.isascii()):
        raise NeedsJvmError(f"the column {column.name} is written {paths[place]}")
    return place


def _check_type(leaf: pq.ColumnSchema, column: FileColumn, path: str) -> None:
    if leaf.max_repetition_level or leaf.max_definition_level > 1:
        raise NeedsJvmError(f"the column {path} is nested")
    physical, logical = str(leaf.physical_type), str(leaf.logical_type)
    if not is_written_as(physical, logical, column.type):
        raise NeedsJvmError(f"the column {path} is {physical} {logical}, not {column.type}")


def _check_chunks(chunks: Mapping[FileColumn, pq.ColumnChunkMetaData], most: int) -> None:
    total = 0
    for column, chunk in chunks.items():
        if chunk.compression not in CODECS:
            raise NeedsJvmError(f"the column {column.name} is compressed with {chunk.compression}")
        if strange := sorted(set(chunk.encodings) - ENCODINGS):
            raise NeedsJvmError(f"the column {column.name} is encoded as {strange[0]}")
        total += chunk.total_uncompressed_size
    if total > most:
        raise NeedsJvmError("a row group is too large for the memory budget")


def _says_calendar(facts: Mapping[bytes, bytes]) -> bool:
    """Whether the file was written by a Spark that writes all dates in the new calendar."""
    version = facts.get(WRITER)
    return version is not None and not _is_old(facts)


def _is_old(facts: Mapping[bytes, bytes]) -> bool:
    """Whether the file was written by a Spark that wrote dates in the old calendar."""
    if LEGACY in facts:
        return True
    version = facts.get(WRITER)
    return version is not None and version < b"3.0.0"  # as text, as Spark compares it


def _check_calendar(column: FileColumn, chunk: pq.ColumnChunkMetaData) -> None:
    if column.type not in CALENDAR:
        return
    found = chunk.statistics
    if found is not None and found.has_null_count and found.null_count == chunk.num_values:
        return
    if found is None or not found.has_min_max or _raw(found) < CALENDAR[column.type]:
        raise NeedsJvmError(f"the column {column.name} may have dates of the old calendar")


def _raw(found: Any) -> int:
    return int(found.min_raw)


def _middle(group: pq.RowGroupMetaData) -> int:
    chunks = [group.column(place) for place in range(group.num_columns)]
    if not chunks:
        return 0
    return min(map(_start, chunks)) + sum(one.total_compressed_size for one in chunks) // 2


def _start(chunk: pq.ColumnChunkMetaData) -> int:
    return min(_offsets(chunk))


def _offsets(chunk: pq.ColumnChunkMetaData) -> Iterator[int]:
    yield chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        yield chunk.dictionary_page_offset


MIB = 1 << 20
OPENING_BYTES = 4 * MIB
"""A file costs as much as reading so many bytes, as in Spark's ``openCostInBytes``."""
LEAST_BYTES, MOST_BYTES, TASKS = 16 * MIB, 128 * MIB, 32
"""A batch makes about so many tasks, as long as a task has no less and no more than this."""
RANGE_BYTES = 64 * MIB
"""A larger file is divided."""


@dataclass(frozen=True, order=True)
class FileRange:
    """Bytes ``[start, end)`` of a file of ``size`` bytes, which one branch of the plan reads. ``path`` is local."""

    branch: int
    path: str
    start: int
    end: int
    size: int


def divide(files: Iterable[tuple[int, str, int]]) -> tuple[tuple[FileRange, ...], ...]:
    """The ranges of each task, in order; ``files``: the branch, path and size of each."""
    ranges = [one for file in sorted(files) for one in _ranges(*file)]
    weight = sum(_weight(one) for one in ranges)
    most = min(max(weight // TASKS, LEAST_BYTES), MOST_BYTES)
    tasks: list[list[FileRange]] = []
    full = 0
    for one in ranges:
        if not tasks or full + _weight(one) > most:
            tasks.append([])
            full = 0
        tasks[-1].append(one)
        full += _weight(one)
    return tuple(map(tuple, tasks))


def row_groups(middles: Sequence[int], one: FileRange) -> list[int]:
    """The numbers of the row groups whose middle is in the range. Each is in exactly one range of a file."""
    within = (min(max(middle, 0), one.size - 1) for middle in middles)
    return [number for number, middle in enumerate(within) if one.start <= middle < one.end]


def _ranges(branch: int, path: str, size: int) -> list[FileRange]:
    starts = range(0, size, RANGE_BYTES) or [0]
    return [FileRange(branch, path, start, min(start + RANGE_BYTES, size), size) for start in starts]


def _weight(one: FileRange) -> int:
    return one.end - one.start + OPENING_BYTES
