"""Parquet files as a manifest names them: panes, ledgers, folded state. Nothing of one is used before it is checked.

Parquet describes a file in its footer, which has no checksum, and its readers trust it: one wrong bit there gives
other rows, errors of any kind, or aborts the process. So the manifest has a checksum of the footer, ``FileRef.tail``,
and a reader of only a part of the file checks that first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from tidestate.statestore.checksums import checksum
from tidestate.statestore.errors import CorruptionError
from tidestate.statestore.files.arrowfile import read_batches
from tidestate.statestore.files.refs import FileRef
from tidestate.statestore.files.segments import check_count, check_described, damaged, read_verified, understood
from tidestate.statestore.spec.limits import CHANGE_BYTES
from tidestate.statestore.storage.objects import Objects

RATIO = 1024
"""No file of ours unpacks to more than so many times its size, unless that is less than `CHANGE_BYTES` anyway."""

THREADED_ROWS = 1 << 16
"""From here on the columns of a file are read in threads."""

_T = TypeVar("_T")
_ENDING = 8
"""Parquet ends in the length of its footer and four letters."""


def tail_of(end: bytes | pa.Buffer) -> str:
    """What `FileRef.tail` says of a Parquet file that ends in these bytes: all of it, or the footer at least."""
    held = memoryview(end)
    size = int.from_bytes(held[-_ENDING:-4], "little") + _ENDING
    return f"{size}:{checksum(bytes(held[-size:]))}"


def read_file_rows(objects: Objects, ref: FileRef) -> pa.Table:
    """All rows of a pane or ledger file. Raises `CorruptionError` unless it is the file that the manifest means."""
    data = read_verified(objects, ref)
    with understood(objects.at(ref.root), ref), pq.ParquetFile(pa.BufferReader(data)) as file:
        check_metadata(ref, file.metadata, file.schema_arrow)
        return checked_rows(ref, file.read(use_threads=ref.rows >= THREADED_ROWS), ref.rows)


def read_schema(objects: Objects, ref: FileRef) -> pa.Schema:
    """The columns of a pane or ledger file; of its bytes the footer is read. Raises `CorruptionError`."""
    return read_metadata(objects, ref).schema.to_arrow_schema()


def read_metadata(objects: Objects, ref: FileRef) -> pq.FileMetaData:
    """What a file says of itself, with statistics: its footer, checked. Raises `CorruptionError`."""
    return _tried_twice(_metadata, objects.at(ref.root), ref)


def read_ending(objects: Objects, ref: FileRef, start: int) -> pa.Buffer:
    """The bytes of a file from ``start`` on, of which the footer is checked. Raises `CorruptionError`."""

    def ending(objects: Objects, ref: FileRef) -> pa.Buffer:
        with open_verified(objects, ref) as source:
            read_tail(source, ref)
            source.seek(start)
            return pa.py_buffer(source.read(ref.bytes - start))

    return _tried_twice(ending, objects.at(ref.root), ref)


def _tried_twice(read: Callable[[Objects, FileRef], _T], objects: Objects, ref: FileRef) -> _T:
    try:
        return read(objects, ref)
    except CorruptionError:
        objects.forget(ref.path)  # it may be this host's copy that is damaged
        return read(objects, ref)


def _metadata(objects: Objects, ref: FileRef) -> pq.FileMetaData:
    with open_verified(objects, ref) as source:
        metadata = pq.read_metadata(pa.BufferReader(read_tail(source, ref)))
        check_metadata(ref, metadata, metadata.schema.to_arrow_schema())
        return metadata


def read_tail(source: pa.NativeFile, ref: FileRef) -> pa.Buffer:
    """The footer in an open file. Raises `CorruptionError` where it is not the one that the manifest means."""
    size, _, expected = ref.tail.partition(":")
    if not size.isascii() or not size.isdecimal():
        raise damaged(ref, "the manifest has no checksum for its footer")
    source.seek(ref.bytes - int(size))
    tail = source.read_buffer(int(size))
    if checksum(tail) != expected:
        raise damaged(ref, "its footer does not match the manifest")
    return tail


def check_metadata(ref: FileRef, metadata: pq.FileMetaData, schema: pa.Schema) -> None:
    """Raise `CorruptionError` where a footer has other rows than the manifest says, or unpacks to far too much."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    if metadata.num_rows != ref.rows or sum(group.num_rows for group in groups) != ref.rows:
        raise damaged(ref, f"{metadata.num_rows} rows, expected {ref.rows}")
    packed = sum(group.total_byte_size for group in groups)
    if max(packed, ref.rows * width_of(schema)) > max(CHANGE_BYTES, RATIO * ref.bytes):
        raise damaged(ref, f"{ref.bytes} bytes that would expand to {max(packed, ref.rows * width_of(schema))}")


def width_of(schema: pa.Schema) -> int:
    """Bytes that each row takes at least, once it is unpacked."""
    return sum(max(1, field.type.bit_width // 8) for field in schema if _fixed(field.type))


def _fixed(kind: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind))


def checked_rows(ref: FileRef, rows: pa.Table, expected: int) -> pa.Table:
    """``rows`` as they are. Raises `CorruptionError` unless there are as many as ``expected``, all of them valid."""
    check_count(ref, rows.num_rows, expected)
    rows.validate(full=True)
    return rows


def examine(objects: Objects, ref: FileRef) -> None:
    """Read all of a file, of whatever kind. Raises `CorruptionError` unless it is the one that the manifest means."""
    data = read_verified(objects, ref)
    if ref.table and ref.kind == "changelog":
        with understood(objects, ref):
            schema, batches = read_batches(data)
            check_described(None, ref, schema.metadata or {})
            check_count(ref, sum(batch.num_rows for batch in batches), ref.rows)
    elif ref.table:
        with understood(objects, ref):
            check_described(None, ref, read_metadata(objects, ref).metadata or {})
    elif ref.path.endswith(".parquet"):
        read_metadata(objects, ref)


@contextmanager
def open_verified(objects: Objects, ref: FileRef) -> Iterator[pa.NativeFile]:
    """The file for one read, of the size that the manifest says. ``objects`` are those of its root."""
    with understood(objects, ref), objects.open_input(ref.path, ref.bytes) as source:
        if (size := source.size()) != ref.bytes:
            raise damaged(ref, f"{size} bytes, expected {ref.bytes}")
        yield source
