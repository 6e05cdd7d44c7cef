"""Reads the ranges of a task with Arrow, in one thread and a few pages at a time, and keeps those of its filters."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidestate.operators.spark.scan.decide import Branch, Condition, Constant, DirectScan, FileColumn
from tidestate.operators.spark.scan.files import (
    FileRange,
    NeedsJvmError,
    arrow_type,
    check_arrow,
    check_footer,
    row_groups,
)

READ_ROWS = 1 << 17
"""The most rows of a batch."""
BUFFER_BYTES = 1 << 20
"""What is read at once of each column."""
_BLOCK = 1 << 20
_SUMS = b"crc\x00"


def read_ranges(scan: DirectScan, ranges: Sequence[FileRange], row_group_bytes: int) -> Iterator[pa.RecordBatch]:
    """The rows of ranges in the columns of ``scan``, in order; times are microseconds, as integers.

    All footers are checked before the first row. Raises `NeedsJvmError` for whatever is not certain to be as Spark
    has it: a file that cannot be read, too, for Spark's own error then ends the batch.
    """
    schema = pa.schema([(name, seen_type(kind)) for name, kind in zip(scan.names, scan.types, strict=True)])
    try:
        checked = [(one, *_check(scan, one, row_group_bytes)) for one in ranges]
        for one, names, groups in checked:
            yield from _read(schema, scan.branches[one.branch], one, names, groups)
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise NeedsJvmError(f"{type(error).__name__}: {error}") from None


def columns_read(branch: Branch) -> list[FileColumn]:
    """The columns of the files that a branch needs, for its values and its filters, each once."""
    values = [value for value in branch.values if isinstance(value, FileColumn)]
    return list(dict.fromkeys([*values, *(column for condition in branch.filters for column in condition.columns)]))


def seen_type(kind: str) -> pa.DataType:
    """The Arrow type in which tasks get a column of Spark's type ``kind``."""
    return pa.int64() if kind == "timestamp" else arrow_type(kind)


def _check(scan: DirectScan, one: FileRange, row_group_bytes: int) -> tuple[dict[FileColumn, str], list[int]]:
    """What the columns that are needed are called in the file, where it has them, and the row groups of the range."""
    with _open(one) as file:
        branch = scan.branches[one.branch]
        columns = columns_read(branch)
        places, middles = check_footer(file.metadata, columns, rebased=scan.rebased, row_group_bytes=row_group_bytes)
        arrow = file.schema_arrow
        leaves = [file.schema.column(place).path for place in range(len(file.schema))]
        names = {column: leaves[place] for column, place in places.items() if place is not None}
        for column, name in names.items():
            check_arrow(arrow.field(name).type, column)
        _check_sums(one)
    return names, row_groups(middles, one)


def _open(one: FileRange) -> pq.ParquetFile:
    if (found := os.stat(one.path).st_size) != one.size:
        raise NeedsJvmError(f"a file has changed: expected {one.size} bytes, found {found}")
    return pq.ParquetFile(one.path, buffer_size=BUFFER_BYTES, pre_buffer=False, memory_map=False)


def _read(
    schema: pa.Schema, branch: Branch, one: FileRange, names: Mapping[FileColumn, str], groups: Sequence[int]
) -> Iterator[pa.RecordBatch]:
    if not groups:
        return
    with _open(one) as file:
        chosen = list(names.values())
        for batch in file.iter_batches(READ_ROWS, row_groups=groups, columns=chosen, use_threads=False):
            columns = {column: _as_expected(batch, names.get(column), column) for column in columns_read(branch)}
            yield _row_batch(schema, branch, columns, batch.num_rows)


def _as_expected(batch: pa.RecordBatch, name: str | None, column: FileColumn) -> pa.Array:
    """A column in the type that Spark expects; null in each row if the file lacks it."""
    wanted = arrow_type(column.type)
    if name is None:
        return pa.nulls(batch.num_rows, wanted)
    found = batch.column(name)
    return found if found.type == wanted else found.cast(wanted)


def _row_batch(
    schema: pa.Schema, branch: Branch, columns: Mapping[FileColumn, pa.Array], rows: int
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


def _check_sums(one: FileRange) -> None:
    """Compare the range with Hadoop's checksums, if the file has any: Spark would. Raises `NeedsJvmError`."""
    path = Path(one.path)
    sums_path = path.with_name(f".{path.name}.crc")
    try:
        sums = sums_path.read_bytes()
    except FileNotFoundError:
        return
    step = int.from_bytes(sums[4:8], "big")
    if not sums.startswith(_SUMS) or step <= 0 or len(sums) < 8:
        raise NeedsJvmError(f"the checksums of {path.name} are damaged")
    first = one.start // step
    with path.open("rb") as file:
        file.seek(first * step)
        while (start := file.tell()) < one.end:
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


def kept_rows(filters: tuple[Condition, ...], columns: Mapping[FileColumn, pa.Array]) -> pa.Array:
    """Per row true, false or null; only rows with true are kept. There is at least one filter."""
    return reduce(pc.and_kleene, (_truth(one, columns) for one in filters))


def _truth(one: Condition, columns: Mapping[FileColumn, pa.Array]) -> pa.Array:
    if one.column is None:
        inside = [_truth(inner, columns) for inner in one.inside]
        if one.kind == "not":
            return pc.invert(inside[0])
        return reduce(pc.and_kleene if one.kind == "and" else pc.or_kleene, inside)
    rows = columns[one.column]
    if one.kind == "true":
        return rows
    if one.kind == "null":
        return pc.is_null(rows)
    values = _values(one.values, one.column.type)
    if one.kind == "in":
        return pc.if_else(pc.invert(pc.is_null(rows)), pc.is_in(rows, value_set=values), pa.scalar(None, pa.bool_()))
    return _COMPARED[one.kind](rows, values[0])


def _values(values: tuple[Any, ...], kind: str) -> pa.Array:
    """Literals as Spark keeps them: dates in days, times in microseconds."""
    wanted = arrow_type(kind)
    if pa.types.is_temporal(wanted):
        plain = pa.int32() if kind == "date" else pa.int64()
        return pa.array(values, plain).view(wanted)
    return pa.array(values, wanted)
