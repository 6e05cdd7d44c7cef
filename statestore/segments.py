"""The durable files of a state partition: changelog segments, folded runs and snapshots.

A **changelog** segment is one Arrow IPC file: an ``op`` column (0 merge, 1 put, 2 delete), the key columns, the
value columns; record batches each of one op, in the order delete, put, merge, sorted by the leading key column.
A **run** is several segments folded, in the same form. A **snapshot** is everything up to its
last sequence, in Parquet, sorted by key, without the ``op`` column. All describe themselves in their metadata.
See docs/FORMAT.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from statestore.changes import DELETE, PUT, Layer
from statestore.checksums import checksum
from statestore.errors import CorruptionError, NotFoundError
from statestore.layers import clustered, leading_values, ordered
from statestore.objects import Objects
from statestore.tables import TableSpec

FileKind = Literal["changelog", "run", "snapshot"]
FORMAT = "1"


class FileRef(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file as a manifest names it. ``first`` and ``last`` are the sequences (checkpoint ids) it covers."""

    path: str
    bytes: int
    checksum: str
    rows: int
    table: str = ""
    kind: FileKind = "changelog"
    segment: str = ""
    previous: str = ""
    first: int = 0
    last: int = 0
    expiry_min: int | None = None
    expiry_max: int | None = None


class PartitionState(msgspec.Struct, frozen=True):
    """All durable state of one state partition: files oldest first, and per table the expiry bound in force.

    Changes up to sequence ``floor`` have been folded: a cache that is older cannot catch up from files any more.
    """

    files: tuple[FileRef, ...] = ()
    expired: dict[str, int] = {}
    lineage: str = ""
    sequence: int = 0
    floor: int = 0


class SegmentName(msgspec.Struct, frozen=True):
    """Where a new file goes and what its metadata says."""

    folder: str
    operator: str
    partition: int
    partitions: int
    first: int
    last: int
    segment: str
    previous: str
    attempt: str


def write_segment(
    objects: Objects, spec: TableSpec, layers: Sequence[Layer], kind: FileKind, name: SegmentName
) -> FileRef:
    """Write one file and return how a manifest names it."""
    parts = [_with_op(spec, layer, kind) for layer in layers]
    schema = _schema(spec, kind).with_metadata(_metadata(spec, kind, name))
    data = _encode(parts, schema, kind)
    suffix = "parquet" if kind == "snapshot" else "arrow"
    path = f"{name.folder}/{name.first}-{name.last}-{name.attempt}.{spec.name}.{kind}.{suffix}"
    objects.put(path, data)
    low, high = _expiry_range(spec, parts)
    return FileRef(
        path=path,
        bytes=data.size,
        checksum=checksum(data),
        rows=sum(part.num_rows for part in parts),
        table=spec.name,
        kind=kind,
        segment=name.segment,
        previous=name.previous,
        first=name.first,
        last=name.last,
        expiry_min=low,
        expiry_max=high,
    )


def read_segment(objects: Objects, spec: TableSpec, ref: FileRef, *, mapped: bool) -> list[Layer]:
    """The layers of a file, oldest first. Raises `CorruptionError` when a byte is not what was written."""
    data = read_verified(objects, ref, mapped=mapped)
    try:
        snapshot = ref.kind == "snapshot"
        tables = [pq.read_table(pa.BufferReader(data))] if snapshot else _record_batches(data)
        return [layer for table in tables for layer in _split(spec, table, ref.kind)]
    except (pa.ArrowInvalid, OSError, KeyError) as error:
        raise CorruptionError(
            f"a state file cannot be read ({error}): restore an older checkpoint",
            code="file-damaged",
            path=ref.path,
        ) from error


_verified: dict[tuple[str, str], None] = {}
_VERIFIED_MAX = 4096


def read_verified(objects: Objects, ref: FileRef, *, mapped: bool) -> pa.Buffer:
    """The bytes of ``ref``, checked against size and checksum once per process and file."""
    try:
        data = objects.map(ref.path) if mapped else pa.py_buffer(objects.read(ref.path))
    except NotFoundError:
        raise CorruptionError(
            "a file that the manifest names is missing: restore it or an older checkpoint",
            code="file-missing",
            path=ref.path,
        ) from None
    known = (objects.root, ref.path)
    if known in _verified and data.size == ref.bytes:
        return data
    if data.size != ref.bytes or checksum(data) != ref.checksum:
        raise CorruptionError(
            "a file does not hold the bytes that were written: restore it or an older checkpoint",
            code="file-damaged",
            path=ref.path,
            expected_bytes=ref.bytes,
            found_bytes=data.size,
        )
    if len(_verified) >= _VERIFIED_MAX:
        _verified.clear()
    _verified[known] = None
    return data


def _schema(spec: TableSpec, kind: FileKind) -> pa.Schema:
    op = [] if kind == "snapshot" else [pa.field("op", pa.int8(), nullable=False)]
    return pa.schema([*op, *spec.schema])


def _metadata(spec: TableSpec, kind: FileKind, name: SegmentName) -> dict[str, str]:
    described = {"tidemark.format": FORMAT, "kind": kind, "table": msgspec.json.encode(spec).decode()}
    return described | {field: str(getattr(name, field)) for field in name.__struct_fields__ if field != "folder"}


def _with_op(spec: TableSpec, layer: Layer, kind: FileKind) -> pa.Table:
    if kind == "snapshot":
        return ordered(spec, layer.rows)
    rows = clustered(layer.rows)
    if layer.op == DELETE:
        for column in spec.values:
            rows = rows.append_column(column.name, pa.nulls(rows.num_rows, column.arrow))
    op = pa.array(np.full(rows.num_rows, layer.op, np.int8))
    return spec.conform(rows).add_column(0, pa.field("op", pa.int8(), nullable=False), op)


def _encode(parts: Sequence[pa.Table], schema: pa.Schema, kind: FileKind) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    if kind != "snapshot":
        with pa.ipc.new_file(sink, schema) as writer:
            for part in parts:
                for batch in part.combine_chunks().to_batches():
                    writer.write_batch(batch.replace_schema_metadata(schema.metadata))
    else:
        with pq.ParquetWriter(sink, schema, compression="zstd", compression_level=1) as writer:
            for part in parts:
                writer.write_table(part.replace_schema_metadata(schema.metadata), row_group_size=1 << 18)
    return sink.getvalue()


def _record_batches(data: pa.Buffer) -> list[pa.Table]:
    reader = pa.ipc.open_file(pa.BufferReader(data))
    batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
    return [pa.Table.from_batches([batch]) for batch in batches if batch.num_rows]


def _split(spec: TableSpec, table: pa.Table, kind: FileKind) -> list[Layer]:
    """A table with an ``op`` column, cut where the op changes."""
    if kind == "snapshot":
        return [Layer(PUT, spec.conform(table))] if table.num_rows else []
    op = table["op"].to_numpy()
    cuts = [0, *(np.flatnonzero(np.diff(op)) + 1).tolist(), len(op)]
    return [
        Layer(int(op[first]), _columns(spec, table.slice(first, last - first), int(op[first])))
        for first, last in pairwise(cuts)
        if last > first
    ]


def _columns(spec: TableSpec, rows: pa.Table, op: int) -> pa.Table:
    return rows.select(spec.key_names if op == DELETE else spec.schema.names)


def _expiry_range(spec: TableSpec, parts: Sequence[pa.Table]) -> tuple[int | None, int | None]:
    if spec.expiry is None:
        return None, None
    columns = [leading_values(part.select([spec.expiry])) for part in parts if part.num_rows]
    ranges = [(int(values.min()), int(values.max())) for values in columns if values is not None]
    return (min(r[0] for r in ranges), max(r[1] for r in ranges)) if ranges else (None, None)
