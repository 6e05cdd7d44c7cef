"""The Parquet files of a batch as tasks read them: divided into ranges, checked by their footers, and read with
Arrow, in one thread and a few pages at a time; only the rows of the filters are kept.

The division depends on paths and sizes alone: not on the number of cores, and not on what else runs. So a batch that
is repeated after a crash arrives in the same order, and its sums have the same bits.

What a footer may have is listed; anything else needs the JVM. Spark's own reader decides then, with its own errors.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial, reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidestate.operators.expressions.sql_types import type_named
from tidestate.operators.spark.scan.decide import (
    Branch,
    Condition,
    Constant,
    DirectScan,
    FileColumn,
    NeedsJvmError,
    PathValue,
    ReadColumn,
)
from tidestate.recovery.log.ranges import merged_ranges
from tidestate.recovery.spark.parquet_types import is_written_as
from tidestate.statestore.arrays import in_shares
from tidestate.statestore.errors import TidestateError, expect
from tidestate.statestore.storage.foreign import HeldRanges, foreign_files

CODECS = frozenset({"UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD"})
ENCODINGS = frozenset({"PLAIN", "RLE", "BIT_PACKED", "PLAIN_DICTIONARY", "RLE_DICTIONARY"}) | {
    "DELTA_BINARY_PACKED",
    "DELTA_LENGTH_BYTE_ARRAY",
    "DELTA_BYTE_ARRAY",
}
CALENDAR = {"date": -25202, "timestamp": -25202 * 86_400_000_000}
"""1901-01-01: up to 1900, Spark may read a value in the Julian calendar, or in the time zone's local mean time."""
WRITER, LEGACY = b"org.apache.spark.version", b"org.apache.spark.legacyDateTime"


def check_footer(
    footer: pq.FileMetaData, columns: Sequence[FileColumn], *, rebased: bool, row_group_bytes: int
) -> tuple[dict[FileColumn, str], frozenset[FileColumn], list[int]]:
    """What a file calls those of these ``columns`` that it has; which of them are undated, with times of which no
    footer says how old they are, so that each value must be looked at; and the middle of each row group.
    ``rebased``: as in `DirectScan`; ``row_group_bytes``: the most that the columns of a row group may have. Raises
    `NeedsJvmError`.
    """
    leaves = [footer.schema.column(place).path for place in range(len(footer.schema))]
    places = {column: _place(leaves, column) for column in columns}
    used = {column: place for column, place in places.items() if place is not None}
    undated = frozenset(column for column, place in used.items() if _is_int96_of_spark(footer, place, column))
    for column, place in used.items():
        if column not in undated:
            _check_type(footer.schema.column(place), column, leaves[place])
    exact = _says_calendar(footer.metadata or {}) or not (rebased or _is_old(footer.metadata or {}))
    middles = []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        chunks = {column: group.column(place) for column, place in used.items()}
        _check_chunks(chunks, row_group_bytes)
        if not exact:
            for column, chunk in chunks.items():
                if column not in undated:
                    _check_calendar(column, chunk)
        middles.append(_middle(group))
    return {column: leaves[place] for column, place in used.items()}, undated, middles


@cache
def arrow_type(kind: str) -> pa.DataType:
    """The Arrow type of a column of Spark's type ``kind``."""
    return expect(type_named(kind), "a column has a type that can be read", type=kind)


def check_arrow(found: pa.DataType, column: FileColumn, undated: frozenset[FileColumn] = frozenset()) -> None:
    """Raise `NeedsJvmError` unless Arrow reads the column in a type that is the expected one in another layout."""
    wanted = arrow_type(column.type)
    if column in undated and found == pa.timestamp("us"):
        return
    if pa.types.is_dictionary(found):
        found = found.value_type
    if column.type == "timestamp" and pa.types.is_timestamp(found) and found.unit == "us" and found.tz:
        return
    if found != wanted and not (column.type == "string" and pa.types.is_large_string(found)):
        raise NeedsJvmError(f"the column {column.name} is written as {found}")


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


def check_dated(column: FileColumn, values: pa.Array) -> None:
    """Raise `NeedsJvmError` if a time of an undated column may be one of the old calendar."""
    oldest = pc.min(values.view(pa.int64())).as_py()
    if oldest is not None and oldest < CALENDAR[column.type]:
        raise NeedsJvmError(f"the column {column.name} has dates of the old calendar")


def _is_int96_of_spark(footer: pq.FileMetaData, place: int, column: FileColumn) -> bool:
    """Whether a column has times as Spark writes them by default, of a day and the nanoseconds in it. Others write
    nanoseconds that no microsecond has, or days beyond what 64 bits hold, of which Arrow and Spark make other times.
    """
    leaf = footer.schema.column(place)
    plain = leaf.physical_type == "INT96" and leaf.max_definition_level <= 1 and not leaf.max_repetition_level
    by_spark = WRITER in (footer.metadata or {}) and str(footer.created_by).startswith("parquet-mr")  # type: ignore[attr-defined]
    return plain and by_spark and column.type == "timestamp"


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
    return WRITER in facts and not _is_old(facts)


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
    if found is None or not found.has_min_max or int(found.min_raw) < CALENDAR[column.type]:
        raise NeedsJvmError(f"the column {column.name} may have dates of the old calendar")


def _middle(group: pq.RowGroupMetaData) -> int:
    chunks = [group.column(place) for place in range(group.num_columns)]
    if not chunks:
        return 0
    return min(map(_start, chunks)) + sum(chunk.total_compressed_size for chunk in chunks) // 2


def chunk_spans(group: pq.RowGroupMetaData, names: Sequence[str]) -> list[tuple[int, int]]:
    """The bytes of some columns of a row group, in order: ranges that are close are one."""
    chunks = [group.column(place) for place in range(group.num_columns)]
    needed = [chunk for chunk in chunks if chunk.path_in_schema in names]
    spans = [(start := _start(chunk), start + chunk.total_compressed_size) for chunk in needed]
    return list(merged_ranges(spans, HOLE_BYTES))


def _start(chunk: pq.ColumnChunkMetaData) -> int:
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        return min(chunk.data_page_offset, chunk.dictionary_page_offset)
    return chunk.data_page_offset


MIB = 1 << 20
HOLE_BYTES = MIB
"""In remote storage it is cheaper to read so many bytes for nothing than to ask once more."""
OPENING_BYTES = 4 * MIB
"""A file costs as much as reading so many bytes, as in Spark's ``openCostInBytes``."""
LEAST_BYTES, MOST_BYTES, TASKS = 16 * MIB, 128 * MIB, 32
"""A batch makes about so many tasks, as long as a task has no less and no more than this."""
RANGE_BYTES = 64 * MIB
"""A larger file is divided."""


@dataclass(frozen=True, order=True)
class FileRange:
    """Bytes ``[start, end)`` of a file, which one branch of the plan reads."""

    branch: int
    path: str
    """A local path, or what follows ``root``."""
    start: int
    end: int
    size: int
    """Of the whole file."""
    root: str = ""
    """The bucket of a file in remote storage, with the options by which it is reached."""
    version: str = ""
    """Of a file in remote storage: what its storage calls its bytes of when it was looked at."""
    values: tuple[PathValue, ...] = ()
    """Of the branch's partition columns."""


@dataclass(frozen=True)
class DirectBatch:
    """A batch that tasks read: the ranges of each."""

    scan: DirectScan
    tasks: tuple[tuple[FileRange, ...], ...]
    row_group_bytes: int


def divide(files: Iterable[FileRange]) -> tuple[tuple[FileRange, ...], ...]:
    """The ranges of each task, in order, of whole files."""
    ranges = [part for file in sorted(files, key=_order) for part in _parts(file)]
    weight = sum(_weight(file_range) for file_range in ranges)
    most = min(max(weight // TASKS, LEAST_BYTES), MOST_BYTES)
    return tuple(tuple(share) for share in in_shares(ranges, _weight, most))


def row_groups(middles: Sequence[int], file_range: FileRange) -> list[int]:
    """The numbers of the row groups whose middle is in the range. Each is in exactly one range of a file."""
    within = (min(max(middle, 0), file_range.size - 1) for middle in middles)
    return [number for number, middle in enumerate(within) if file_range.start <= middle < file_range.end]


def _order(file: FileRange) -> tuple[int, str, str, int]:
    return file.branch, file.root, file.path, file.size


def _parts(file: FileRange) -> list[FileRange]:
    starts = range(0, file.size, RANGE_BYTES) or [0]
    return [replace(file, start=start, end=min(start + RANGE_BYTES, file.size)) for start in starts]


def _weight(file_range: FileRange) -> int:
    return file_range.end - file_range.start + OPENING_BYTES


READ_ROWS = 1 << 17
"""The most rows of a batch."""
BUFFER_BYTES = 1 << 20
"""What is read at once of each column."""
_BLOCK = 1 << 20
_SUMS = b"crc\x00"


TAIL_BYTES = 1 << 18
"""What is read first of a file in remote storage: its footer, or all of it."""


def read_ranges(scan: DirectScan, ranges: Sequence[FileRange], row_group_bytes: int) -> Iterator[pa.RecordBatch]:
    """The rows of ranges in the columns of ``scan``, in order; times are microseconds, as integers.

    All footers are checked before the first row. Raises `NeedsJvmError` for whatever is not certain to be as Spark
    has it: a file that cannot be read, too, for Spark's own error then ends the batch.
    """
    schema = pa.schema([(name, seen_type(kind)) for name, kind in zip(scan.names, scan.types, strict=True)])
    try:
        # A list: once a row has gone on, Spark cannot be asked to read the batch.
        for read in [_checked(scan, file_range, row_group_bytes) for file_range in ranges]:
            yield from read(schema)
    except (OSError, ValueError, KeyError, pa.ArrowException, TidestateError) as error:
        raise NeedsJvmError(f"{type(error).__name__}: {error}") from None


def columns_read(branch: Branch) -> list[FileColumn]:
    """The columns of the files that a branch needs, for its values and its filters, each once."""
    needed = [*branch.values, *(column for condition in branch.filters for column in condition.columns)]
    return list(dict.fromkeys(column for column in needed if isinstance(column, FileColumn)))


def seen_type(kind: str) -> pa.DataType:
    """The Arrow type in which tasks get a column of Spark's type ``kind``."""
    return pa.int64() if kind == "timestamp" else arrow_type(kind)


def _checked(
    scan: DirectScan, file_range: FileRange, row_group_bytes: int
) -> Callable[[pa.Schema], Iterator[pa.RecordBatch]]:
    """Check the footer of the file of a range: what reads the rows of the range then, as columns of a schema."""
    held = _held(file_range) if file_range.root else None
    with _open(file_range, held) as file:
        branch = scan.branches[file_range.branch]
        columns = columns_read(branch)
        names, undated, middles = check_footer(
            file.metadata, columns, rebased=scan.rebased, row_group_bytes=row_group_bytes
        )
        arrow = file.schema_arrow
        for column, name in names.items():
            check_arrow(arrow.field(name).type, column, undated)
        groups = row_groups(middles, file_range)
        if held is None:
            _check_sums(file_range)
        elif file_range.size > TAIL_BYTES:
            held.hold([])
        footer = None if held is None else file.metadata
        return partial(_read, branch, file_range, names, undated, groups, held, footer)


def _held(file_range: FileRange) -> HeldRanges:
    """A file in remote storage, of which the end is held."""
    files = foreign_files(file_range.root)
    if files is None:
        raise NeedsJvmError(f"tasks do not read files of {file_range.root.partition(':')[0]}://")
    held = HeldRanges(lambda start, end: files.read(file_range.path, start, end, file_range.version), file_range.size)
    held.hold([(max(0, file_range.size - TAIL_BYTES), file_range.size)])
    return held


def _open(file_range: FileRange, held: HeldRanges | None, footer: pq.FileMetaData | None = None) -> pq.ParquetFile:
    how: dict[str, Any] = {"buffer_size": BUFFER_BYTES, "pre_buffer": False, "memory_map": False}
    how["coerce_int96_timestamp_unit"] = "us"
    if held is not None:
        return pq.ParquetFile(pa.PythonFile(held, mode="r"), metadata=footer, **how)
    if (found := os.stat(file_range.path).st_size) != file_range.size:
        raise NeedsJvmError(f"a file has changed: expected {file_range.size} bytes, found {found}")
    return pq.ParquetFile(file_range.path, **how)


def _read(
    branch: Branch,
    file_range: FileRange,
    names: Mapping[FileColumn, str],
    undated: Iterable[FileColumn],
    groups: Sequence[int],
    held: HeldRanges | None,
    footer: pq.FileMetaData | None,
    schema: pa.Schema,
) -> Iterator[pa.RecordBatch]:
    """Rows of these row groups. ``names``: what the columns that are needed are called in the file, where it has
    them; ``held``: of a file in remote storage what was read of it, with its ``footer``.
    """
    if not groups:
        return
    with _open(file_range, held, footer) as file:
        chosen = list(names.values())
        # Of a file in remote storage one row group after the other is in memory.
        for part in [groups] if held is None else [[group] for group in groups]:
            if held is not None and file_range.size > TAIL_BYTES:
                held.hold(chunk_spans(file.metadata.row_group(part[0]), chosen))
            for batch in file.iter_batches(READ_ROWS, row_groups=part, columns=chosen, use_threads=False):
                columns: dict[ReadColumn, pa.Array] = {
                    column: _as_expected(batch, names.get(column), column) for column in columns_read(branch)
                }
                for column in undated:
                    check_dated(column, columns[column])
                columns |= path_arrays(branch, file_range.values, batch.num_rows)
                yield _row_batch(schema, branch, columns, batch.num_rows)
        if held is not None:
            held.hold([])


def path_arrays(branch: Branch, values: Sequence[PathValue], rows: int) -> dict[ReadColumn, pa.Array]:
    """The partition columns of a file, which have these values, as so many rows."""
    return {
        column: pa.repeat(_values([value], column.type)[0], rows)
        for column, value in zip(branch.partitions, values, strict=True)
    }


def _as_expected(batch: pa.RecordBatch, name: str | None, column: FileColumn) -> pa.Array:
    """A column in the type that Spark expects; null in each row if the file lacks it."""
    wanted = arrow_type(column.type)
    if name is None:
        return pa.nulls(batch.num_rows, wanted)
    found = batch.column(name)
    return found if found.type == wanted else found.cast(wanted)


def _row_batch(
    schema: pa.Schema, branch: Branch, columns: Mapping[ReadColumn, pa.Array], rows: int
) -> pa.RecordBatch:
    mask = kept_rows(branch.filters, columns) if branch.filters else None
    arrays = []
    for value, field in zip(branch.values, schema, strict=True):
        array = _constant(value, rows) if isinstance(value, Constant) else columns[value]
        array = array if mask is None else array.filter(mask)
        arrays.append(array if array.type == field.type else array.view(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _constant(value: Constant, rows: int) -> pa.Array:
    kind = arrow_type(value.type)
    return pa.nulls(rows, kind) if value.value is None else pa.repeat(pa.scalar(value.value, kind), rows)


def _check_sums(file_range: FileRange) -> None:
    """Compare the range with Hadoop's checksums, if the file has any: Spark would. Raises `NeedsJvmError`."""
    path = Path(file_range.path)
    sums_path = path.with_name(f".{path.name}.crc")
    try:
        sums = sums_path.read_bytes()
    except FileNotFoundError:
        return
    step = int.from_bytes(sums[4:8], "big")
    if not sums.startswith(_SUMS) or step <= 0 or len(sums) < 8:
        raise NeedsJvmError(f"the checksums of {path.name} are damaged")
    first = file_range.start // step
    with path.open("rb") as file:
        file.seek(first * step)
        while (start := file.tell()) < file_range.end:
            block = memoryview(file.read(max(_BLOCK // step, 1) * step))
            if not block:
                break
            found = b"".join(
                zlib.crc32(block[at : at + step]).to_bytes(4, "big") for at in range(0, len(block), step)
            )
            place = 8 + 4 * (start // step)
            if found != sums[place : place + len(found)]:
                raise NeedsJvmError(f"{path.name} does not match its checksums")


_COMPARED: dict[str, Callable[[pa.Array, pa.Scalar], pa.Array]] = {
    "=": pc.equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def kept_rows(filters: tuple[Condition, ...], columns: Mapping[ReadColumn, pa.Array]) -> pa.Array:
    """Per row true, false or null; only rows with true are kept. There is at least one filter."""
    return reduce(pc.and_kleene, (_truth(condition, columns) for condition in filters))


def _truth(condition: Condition, columns: Mapping[ReadColumn, pa.Array]) -> pa.Array:
    if condition.column is None:
        inside = [_truth(inner, columns) for inner in condition.inside]
        if condition.kind == "not":
            return pc.invert(inside[0])
        return reduce(pc.and_kleene if condition.kind == "and" else pc.or_kleene, inside)
    rows = columns[condition.column]
    if condition.kind == "true":
        return rows
    if condition.kind == "null":
        return pc.is_null(rows)
    values = _values(condition.values, condition.column.type)
    if condition.kind == "in":
        return pc.if_else(pc.invert(pc.is_null(rows)), pc.is_in(rows, value_set=values), pa.scalar(None, pa.bool_()))
    return _COMPARED[condition.kind](rows, values[0])


def _values(values: Sequence[Any], kind: str) -> pa.Array:
    """Literals as Spark keeps them: dates in days, times in microseconds."""
    wanted = arrow_type(kind)
    if pa.types.is_temporal(wanted):
        plain = pa.int32() if kind == "date" else pa.int64()
        return pa.array(values, plain).view(wanted)
    return pa.array(values, wanted)
