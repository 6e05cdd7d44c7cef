"""Changelog segments, the first kind of durable files of a state partition; and what all kinds have in common.

A **changelog** segment is one Arrow IPC file: an ``__op`` column (0 merge, 1 put, 2 delete), the key columns, the
value columns; record batches each of one op, in the order delete, put, merge, sorted by the leading key column where
that is a number or a time. Folded files are in `files.sortedfile`. All describe themselves in their
metadata. See docs/reference/format.md.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import msgspec
import numpy as np
import pyarrow as pa

from tidestate.statestore.arrays import Numbers, are_smaller, padded
from tidestate.statestore.checksums import checksum
from tidestate.statestore.decoding import prepare
from tidestate.statestore.errors import (
    CorruptionError,
    IncompatibleError,
    NotFoundError,
    UnavailableError,
    UsageError,
)
from tidestate.statestore.files.arrowfile import read_batches
from tidestate.statestore.files.refs import EXPIRY, FILE_FORMAT, Contents, FileRef, SegmentName, fact
from tidestate.statestore.spec.arrowtypes import positions
from tidestate.statestore.spec.changes import DELETE, MERGE, Layer
from tidestate.statestore.spec.schema_evolution import project_columns, readable
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.storage.objects import FileWriter, Objects

OP = pa.field("__op", pa.int8(), nullable=False)


APART_BYTES = 1 << 20
"""Changes of two stretches of time are in two files if there are at least so many bytes of them."""


def write_segments(objects: FileWriter, spec: TableSpec, layers: Sequence[Layer], name: SegmentName) -> list[FileRef]:
    """Write admitted layers as one changelog segment, or two with the rows before and after a long time without any,
    so that files of different checkpoints overlap less. Returns how a manifest names them.
    """
    stretches = _stretches(spec, layers)
    return [
        write_segment(objects, spec, part, msgspec.structs.replace(name, part=number))
        for number, part in enumerate(stretches)
    ]


def _stretches(spec: TableSpec, layers: Sequence[Layer]) -> list[list[Layer]]:
    """Layers that are sorted by the leading column, cut where most of the range of its values is missing."""
    if not spec.expires_in_order or are_smaller([layer.rows for layer in layers], APART_BYTES):
        return [list(layers)]
    values = [positions(layer.rows.column(0)) for layer in layers]
    known = np.sort(np.concatenate([_distinct(some) for some in values]))
    known = known if len(values) == 1 else _distinct(known)
    holes = known[1:] - known[:-1]
    if len(holes) < 2 or 2 * int(holes.max()) <= int(known[-1]) - int(known[0]):
        return [list(layers)]
    upper = known[int(holes.argmax()) + 1]
    cuts = [int(np.searchsorted(some, upper)) for some in values]
    early = [replace(layer, rows=layer.rows.slice(0, cut)) for layer, cut in zip(layers, cuts, strict=True)]
    later = [replace(layer, rows=layer.rows.slice(cut)) for layer, cut in zip(layers, cuts, strict=True)]
    return [[layer for layer in part if layer.rows.num_rows] for part in (early, later)]


def write_segment(objects: FileWriter, spec: TableSpec, layers: Sequence[Layer], name: SegmentName) -> FileRef:
    """Write one changelog segment of admitted layers and return how a manifest names it."""
    rows = [layer.rows for layer in layers]
    contents = Contents(sum(part.num_rows for part in rows), *expiry_range(spec, rows))
    described = name.metadata(spec, "changelog") | contents.metadata()
    schema = pa.schema([OP, *spec.schema]).with_metadata(described)
    batches = [batch for layer in layers for batch in with_op(spec, layer).combine_chunks().to_batches()]
    data = _as_file(schema, [batch.replace_schema_metadata(schema.metadata) for batch in batches])
    objects.put(name.path(spec.name, "changelog"), data)
    return name.ref(spec, "changelog", contents, bytes=data.size, checksum=checksum(data))


def _distinct(ordered: Numbers) -> Numbers:
    """Each of ``ordered`` once. NumPy would hash them."""
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def _as_file(schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> pa.Buffer:
    """The bytes of an Arrow file. A stream that grows copies what it has again and again, so a large one gets memory
    for all of it: of the batches, and twice the schema and where each batch is.
    """
    if sum(batch.nbytes for batch in batches) < APART_BYTES:
        growing = pa.BufferOutputStream()
        _write_file(growing, schema, batches)
        return growing.getvalue()
    size = sum(pa.ipc.get_record_batch_size(batch) for batch in batches)
    buffer = pa.allocate_buffer(size + 4 * schema.serialize().size + 64 * len(batches) + 1024)
    sink = pa.FixedSizeBufferWriter(buffer)
    _write_file(sink, schema, batches)
    return buffer.slice(0, sink.tell())


def _write_file(sink: pa.NativeFile, schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> None:
    with pa.ipc.new_file(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def read_segment(objects: Objects, spec: TableSpec, ref: FileRef) -> list[Layer]:
    """The layers of a changelog segment, oldest first. Raises `CorruptionError` or `IncompatibleError`."""
    data = read_verified(objects, ref)
    with understood(objects, ref):
        schema, batches = read_batches(data)
        written = check_described(spec, ref, schema.metadata or {})
        if not schema.equals(pa.schema([OP, *written.schema])):
            raise damaged(ref, "its columns are not the columns of its table")
        tables = [pa.Table.from_batches([batch]) for batch in batches if batch.num_rows]
        check_count(ref, sum(table.num_rows for table in tables), ref.rows)
        return [_layer(spec, ref, project_columns(written, spec, table)) for table in tables]


def read_verified(objects: Objects, ref: FileRef) -> pa.Buffer:
    """The bytes of ``ref``, checked against size and checksum. A damaged copy of a remote file is fetched again."""
    objects = objects.at(ref.root)
    try:
        data = map_part(objects, ref)
        if not _whole(data, ref):
            objects.forget(ref.path)
            data = map_part(objects, ref)
    except NotFoundError:
        raise missing(objects, ref) from None
    if not _whole(data, ref):
        sized = data.size == ref.bytes
        raise damaged(ref, "checksum" if sized else f"{data.size} bytes, expected {ref.file_bytes}")
    return data


def map_part(objects: Objects, ref: FileRef) -> pa.Buffer:
    """The bytes of ``ref``, mapped and not checked; of a file of another size all. ``objects`` are those of its root.

    Raises `NotFoundError` or `UnavailableError`.
    """
    data = objects.map(ref.path, ref.file_bytes)
    return data.slice(ref.start, ref.bytes) if ref.bundle_bytes and data.size == ref.bundle_bytes else data


def _whole(data: pa.Buffer, ref: FileRef) -> bool:
    return bool(data.size == ref.bytes and checksum(data) == ref.checksum)


def check_described(spec: TableSpec | None, ref: FileRef, metadata: Mapping[bytes, bytes]) -> TableSpec:
    """The table as it was when the file was written, which may be an older form of ``spec`` (None: any).

    Raises `IncompatibleError` for another format, `CorruptionError` for a file of somewhere else.
    """
    says = {key.decode(): value.decode() for key, value in metadata.items() if key != b"ARROW:schema"}
    if says.get("tidestate.format") != FILE_FORMAT:
        raise IncompatibleError(
            "this state file has an unknown format: use the tidestate version that wrote it, or a newer one",
            code="file-format",
            path=ref.path,
            expected=FILE_FORMAT,
            found=says.get("tidestate.format", "none"),
        )
    table = _described(says.get("table", ""))
    expected = {name: fact(getattr(ref, name)) for name in _FACTS}
    found = {name: says.get(name, "") for name in expected}
    expected["path"], found["path"] = ref.path, _path(says, ref, table)
    fits = table is not None and table.name == ref.table and (spec is None or readable(table, spec))
    if found != expected or table is None or not fits:
        raise CorruptionError(
            "this state file is not the one that the manifest names: restore a good copy, or go back: tidestate "
            "repair ROOT --to newest-good",
            code="file-foreign",
            path=ref.path,
            expected=expected if found != expected else ref.table,
            found=found if found != expected else table and table.name,
        )
    # The caller's own where they are equal: it is kept with every footer, and has its schema ready.
    return spec if spec is not None and table == spec else table


_FACTS = ("kind", "segment", "previous", "first", "last", *EXPIRY)
"""What a file and the manifest both say of it."""


def _path(says: Mapping[str, str], ref: FileRef, table: TableSpec | None) -> str:
    """Where a file that says so of itself was written to."""
    try:
        written = ref.path.rpartition("/")[2].partition("-")[0]
        name = msgspec.convert({**says, "written": written}, SegmentName, strict=False)
    except msgspec.ValidationError:
        return ""
    return name.bundle_path if ref.bundle_bytes else name.path(table.name if table else "", ref.kind)


prepare(SegmentName)
_TABLE = msgspec.json.Decoder(TableSpec)


def _described(text: str) -> TableSpec | None:
    try:
        return _TABLE.decode(text)
    except (msgspec.DecodeError, RecursionError, UsageError):
        return None


def missing(objects: Objects, ref: FileRef) -> CorruptionError:
    """The file is gone, or all of the root below which it lay."""
    if ref.root and not objects.exists(""):
        return CorruptionError(
            "this root was forked from another one, which is missing, and files there are still needed: restore "
            "that root",
            code="base-missing",
            root=objects.root,
            path=ref.path,
        )
    return CorruptionError(
        "a file that the manifest names is missing: restore a good copy, or go back: tidestate repair ROOT --to "
        "newest-good",
        code="file-missing",
        path=ref.path,
    )


def read_refused(ref: FileRef, error: OSError) -> UnavailableError:
    """The disk did not give the bytes."""
    return UnavailableError(
        f"storage refused to read the file ({(error.strerror or str(error)).lower()}): fix the cause, then retry",
        code="storage",
        path=ref.path,
        reason=errno.errorcode.get(error.errno or 0, type(error).__name__),
    )


def damaged(ref: FileRef, reason: str) -> CorruptionError:
    """The file does not hold what was written."""
    return CorruptionError(
        f"the bytes of this state file are not those that were written ({reason.lower()}): restore a good copy, or "
        "go back: tidestate repair ROOT --to newest-good",
        code="file-damaged",
        path=ref.path,
    )


@contextmanager
def understood(objects: Objects, ref: FileRef) -> Iterator[None]:
    """Whatever reading a file raises, as `CorruptionError` or `UnavailableError`."""
    try:
        yield
    except NotFoundError:
        raise missing(objects, ref) from None
    except OSError as error:
        if error.errno is not None:  # of the disk, not of what stands on it
            raise read_refused(ref, error) from error
        raise damaged(ref, str(error)) from error
    except (pa.ArrowException, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise damaged(ref, str(error)) from error


def with_op(spec: TableSpec, layer: Layer) -> pa.Table:
    """The rows of a layer with an ``__op`` column in front; the values of deletes are null."""
    rows = padded(layer.rows, spec.schema) if layer.op == DELETE else layer.rows
    return spec.conform(rows).add_column(0, OP, pa.array(np.full(rows.num_rows, layer.op, np.int8)))


def expiry_range(spec: TableSpec, parts: Sequence[pa.Table]) -> tuple[int | None, int | None]:
    """The smallest and largest expiry among rows; none where a row holds none or a delete hides it."""
    if spec.expiry is None or any(spec.expiry not in part.column_names for part in parts):
        return None, None
    columns = [part[spec.expiry] for part in parts if part.num_rows]
    if not columns or any(column.null_count for column in columns):
        return None, None
    ranges = [(int(values.min()), int(values.max())) for values in map(positions, columns)]
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def check_count(ref: FileRef, rows: int, expected: int) -> None:
    """Raise `CorruptionError` where a file has other rows than it should."""
    if rows != expected:
        raise damaged(ref, f"{rows} rows, expected {expected}")


def check_ops(ref: FileRef, rows: pa.Table) -> tuple[int, int]:
    """The smallest and largest op of rows. Raises `CorruptionError` where there is one that is none."""
    import pyarrow.compute as pc  # takes a while to import, and looking at checkpoints needs none

    found = pc.min_max(rows[OP.name]).as_py()
    low, high = found["min"], found["max"]
    if low is None or rows[OP.name].null_count or low < MERGE or high > DELETE:
        raise damaged(ref, f"an operation that is not put, merge or delete: {low} to {high}")
    return low, high


def _layer(spec: TableSpec, ref: FileRef, rows: pa.Table) -> Layer:
    op, last = check_ops(ref, rows)
    if op != last:
        raise damaged(ref, "one batch has several operations")
    if any(rows[name].null_count for name in spec.key_names):
        raise damaged(ref, "a key is null")
    return Layer(op, spec.conform_keys(rows) if op == DELETE else spec.conform(rows))
