"""Folded files: runs and snapshots. Parquet, sorted by the whole key, each key once, read block by block.

A **run** is several files folded: an ``__op`` column, the key columns, the value columns. A **snapshot** is all there
is up to its last sequence, without ``__op``. A block is a row group; the footer holds the last key of each,
so that a reader finds the blocks of a key range without reading any. Parquet's page checksums guard the blocks,
``tail`` in the manifest guards the footer.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidestate.statestore.arrays import in_lots, in_pieces
from tidestate.statestore.errors import CorruptionError
from tidestate.statestore.files import footers
from tidestate.statestore.files.arrowfile import read_stream
from tidestate.statestore.files.footers import Footer
from tidestate.statestore.files.refs import Contents, FileKind, FileRef, SegmentName
from tidestate.statestore.files.segments import OP, check_described, check_ops, damaged, expiry_range
from tidestate.statestore.files.tails import check_metadata, checked_rows, open_verified, read_tail, tail_of
from tidestate.statestore.spec.changes import DELETE, MERGE, PUT, Layer
from tidestate.statestore.spec.keyrange import Cut, Key, KeyRange, bisect, comparable
from tidestate.statestore.spec.schema_evolution import project_columns
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.table.layers import cut

BLOCK_BYTES = 2 << 20
"""Uncompressed bytes of a row group: what is read at once."""

COPY_SHARE = 4
"""A file on remote storage is copied to this host once a store has read this share of its blocks, a quarter."""

_T = TypeVar("_T")

INDEX = "tidestate.index"


class _Tail:
    """A sink that remembers the end of what passes through it, from a moment on."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self.kept: list[bytes] | None = None
        self.closed = False

    def write(self, data: Any) -> int:
        if self.kept is not None:
            self.kept.append(bytes(data))
        self._sink.write(data)
        return len(memoryview(data).cast("B"))

    def tell(self) -> int:
        return int(self._sink.tell())

    def flush(self) -> None:
        self._sink.flush()

    def close(self) -> None:
        self.closed = True

    def end(self) -> bytes:
        return b"".join(self.kept or [])


def write_sorted(
    objects: Objects,
    spec: TableSpec,
    kind: FileKind,
    name: SegmentName,
    batches: Iterable[pa.Table],
    file_bytes: int | None = None,
    most_in_block: int = BLOCK_BYTES,
) -> list[FileRef]:
    """Write ``batches`` (in key order, each key once; with ``__op`` for a run) as files of about ``file_bytes``, in
    blocks of about `BLOCK_BYTES`, or ``most_in_block``.

    Streams: memory is a block and what ``batches`` holds. No file without a row. When it raises, files that nobody
    names may remain.
    """
    block_bytes = min(BLOCK_BYTES, most_in_block)
    # Small batches put together, so that they do not become small blocks.
    lots = in_lots((batch for batch in batches if batch.num_rows), lambda batch: batch.nbytes, block_bytes)
    filled = map(pa.concat_tables, lots)
    refs: list[FileRef] = []
    for first in filled:
        part = msgspec.structs.replace(name, part=len(refs))
        batches = _as_far_as(first, filled, file_bytes)
        refs.append(_write_file(objects, spec, kind, part, batches, block_bytes))
    return refs


def _write_file(
    objects: Objects,
    spec: TableSpec,
    kind: FileKind,
    name: SegmentName,
    batches: Iterable[pa.Table],
    block_bytes: int,
) -> FileRef:
    schema = stored_schema(spec, kind)
    rows, expiries, ends = 0, [], []
    with objects.writer(name.path(spec.name, kind)) as sink:
        tail = _Tail(sink)
        # Pages are small; the sink gets them by the block.
        buffered = pa.BufferedOutputStream(pa.PythonFile(tail, mode="w"), BLOCK_BYTES)
        with pq.ParquetWriter(
            buffered,
            schema.with_metadata(name.metadata(spec, kind)),
            compression="lz4",
            use_dictionary=False,
            column_encoding={field.name: "DELTA_BINARY_PACKED" for field in schema if _is_whole(field.type)},
            write_page_checksum=True,
            # For other readers; ours has the index. Of values they would cost a tenth of the time.
            write_statistics=spec.key_names,
            # Rows encoded at once; by default so few that a fifth of the time is lost.
            write_batch_size=1 << 16,
        ) as writer:
            for batch in batches:
                for block in in_pieces(batch.cast(schema), block_bytes):
                    writer.write_table(block, row_group_size=block.num_rows)
                    # Taken, not sliced: a slice would keep the whole block in memory.
                    end = block.select(spec.key_names).take(pa.array([block.num_rows - 1]))
                    ends.append(end.cast(spec.key_schema))
                rows += batch.num_rows
                expiries.append(expiry_range(spec, [batch]))
            contents = Contents(rows, *_spread(expiries))
            writer.add_key_value_metadata({INDEX: _pack(pa.concat_tables(ends)), **contents.metadata()})
            buffered.flush()
            tail.kept = []
        buffered.flush()
    return name.ref(spec, kind, contents, bytes=sink.bytes, checksum=sink.checksum, tail=tail_of(tail.end()))


def stored_schema(spec: TableSpec, kind: FileKind) -> pa.Schema:
    """Columns as Parquet keeps them: it has no times in seconds, so those are whole numbers there."""
    fields = [pa.field(f.name, pa.int64()) if _in_seconds(f.type) else f for f in spec.schema]
    return pa.schema([*([] if kind == "snapshot" else [OP]), *fields])


def _is_whole(kind: pa.DataType) -> bool:
    """Whether differences of neighbours make it small: half the bytes, and the time, of numbers written plainly."""
    return bool(pa.types.is_integer(kind) or pa.types.is_temporal(kind))


def _in_seconds(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.unit == "s")


class SortedFile:
    """A folded file. Between two reads it holds its footer and one block, no descriptor and no mapping."""

    def __init__(self, objects: Objects, spec: TableSpec, ref: FileRef) -> None:
        self._objects, self._spec, self._ref = objects.at(ref.root), spec, ref
        self._held: tuple[int, pa.Table] | None = None
        self._settled = False
        self._wanted: set[int] = set()

    @property
    def end(self) -> Key:
        """The last key of all."""
        return self._footer.ends[-1]

    def splits(self, keys: KeyRange) -> list[tuple[Key, int]]:
        """The last key of each block that ``keys`` touches, and the block's size in bytes."""
        footer = self._footer
        return [(footer.ends[block], footer.sizes[block]) for block in self._blocks(keys)]

    def layers(self, keys: KeyRange, wanted: pa.Table | None = None) -> list[Layer]:
        """Rows within ``keys``; of blocks that hold none of the ``wanted`` prefixes (sorted) nothing is read."""
        blocks = [block for block in self._blocks(keys) if wanted is None or self._holds(block, wanted)]
        if not blocks:
            self._held = None  # a scan is past it, or before it
            return []
        self._settle(blocks)
        return split(self._spec, self._ref.kind, pa.concat_tables(self._read(blocks)), keys)

    def arrange(self, keys: KeyRange, limit_bytes: int) -> None:
        """Do nothing: the rows of a file are sorted already."""

    def _settle(self, wanted: Iterable[int]) -> None:
        """Take a local copy of a file on remote storage once a good part of it has been wanted."""
        self._wanted.update(wanted)
        if not self._settled and len(self._wanted) * COPY_SHARE >= len(self._footer.ends):
            self._objects.map(self._ref.path, self._ref.bytes)
            self._settled = True

    def _blocks(self, keys: KeyRange) -> range:
        index, width = self._footer.index, len(self._spec.key)
        first = 0 if keys.lower is None else bisect(index, keys.lower, width)
        last = index.num_rows if keys.upper is None else bisect(index, keys.upper, width) + 1
        return range(first, min(last, index.num_rows))

    def _holds(self, block: int, wanted: pa.Table) -> bool:
        """Whether a wanted prefix may lie in ``block``."""
        width = wanted.num_columns
        if not width:
            return True
        ends = self._footer.ends
        before = bisect(wanted, Cut(ends[block - 1][:width]), width) if block else 0
        return bisect(wanted, Cut(ends[block][:width], after=True), width) > before

    def _read(self, blocks: Sequence[int]) -> list[pa.Table]:
        """The rows of each. The last block stays: the next band often begins in it."""
        held = dict([self._held] if self._held else [])
        new = [block for block in blocks if block not in held]
        if new:
            held |= zip(new, self._once_more(lambda: self._read_blocks(new)), strict=True)
        self._held = blocks[-1], held[blocks[-1]]
        return [held[block] for block in blocks]

    def _read_blocks(self, blocks: Sequence[int]) -> list[pa.Table]:
        op = [] if self._ref.kind == "snapshot" else [OP]
        written, metadata = self._found.written, self._found.metadata
        schema = pa.schema([*op, *written.schema])
        with open_verified(self._objects, self._ref) as source:
            file = pq.ParquetFile(source, metadata=metadata, page_checksum_verification=True)
            return [project_columns(written, self._spec, self._block(file, block, schema)) for block in blocks]

    def _block(self, file: pq.ParquetFile, block: int, schema: pa.Schema) -> pa.Table:
        rows = file.read_row_group(block, use_threads=False).cast(schema)
        checked_rows(self._ref, rows, file.metadata.row_group(block).num_rows)
        if OP.name in schema.names:
            check_ops(self._ref, rows)
        return rows

    def _once_more(self, read: Callable[[], _T]) -> _T:
        """What a first reading finds damaged may be this host's copy: without it, once more."""
        try:
            return read()
        except CorruptionError:
            self._objects.forget(self._ref.path)
            footers.forget(self._name)
            self.__dict__.pop("_found", None)
            return read()

    @property
    def _footer(self) -> Footer:
        return self._once_more(lambda: self._found)

    @cached_property
    def _found(self) -> Footer:
        """The footer that this process has kept, else read."""
        # A local file is known again by inode, size and time of change: one damaged in place since is noticed.
        version = self._objects.local_version(self._ref.path)
        footer = footers.find(self._name, version)
        if footer is None:
            footer = self._read_footer()
            footers.keep_footer(self._name, version, footer)
        return footer

    @property
    def _name(self) -> footers.FooterName:
        return self._objects.root, self._spec, self._ref

    def _read_footer(self) -> Footer:
        with open_verified(self._objects, self._ref) as source:
            metadata = pq.read_metadata(pa.BufferReader(read_tail(source, self._ref)))
            described = metadata.metadata or {}
            written = check_described(self._spec, self._ref, described)
            check_metadata(self._ref, metadata, metadata.schema.to_arrow_schema())
            index = _unpack(described[INDEX.encode()])
            if index.schema.types != written.key_schema.types or any(column.null_count for column in index.columns):
                raise damaged(self._ref, "its index lacks the key columns of the table")
            index = checked_rows(self._ref, index, max(1, metadata.num_row_groups))
            index = index.rename_columns(self._spec.key_names).cast(self._spec.key_schema)
            columns = [[comparable(value) for value in column] for column in index.columns]
        sizes = [_block_bytes(metadata.row_group(number), written) for number in range(metadata.num_row_groups)]
        return Footer(written, metadata, index, list(zip(*columns, strict=True)), sizes)


def _block_bytes(block: pq.RowGroupMetaData, written: TableSpec) -> int:
    """About what a block takes in memory: columns of fixed width may take a tenth of that in the file."""
    widths = (field.type.bit_width for field in written.schema if pa.types.is_primitive(field.type))
    return int(max(block.total_byte_size, block.num_rows * sum(widths) // 8))


def split(spec: TableSpec, kind: FileKind, rows: pa.Table, keys: KeyRange) -> list[Layer]:
    """Rows of a folded file within ``keys`` as layers, one per op. A key stands in one of them only."""
    if kind == "snapshot":
        return [cut(Layer(PUT, spec.conform(rows), ordered=True), keys)]
    ops = pc.unique(rows[OP.name]).to_pylist()
    layers = []
    for op in (DELETE, PUT, MERGE):
        if op in ops:
            part = rows if len(ops) == 1 else rows.filter(pc.equal(rows[OP.name], op))
            own = spec.conform_keys(part) if op == DELETE else spec.conform(part)
            layers.append(cut(Layer(op, own, ordered=True), keys))
    return [layer for layer in layers if layer.rows.num_rows]


def _as_far_as(first: pa.Table, rest: Iterator[pa.Table], limit_bytes: int | None) -> Iterator[pa.Table]:
    """``first`` and of the ``rest`` what fits."""
    yield first
    size = first.nbytes
    while limit_bytes is None or size < limit_bytes:
        batch = next(rest, None)
        if batch is None:
            return
        yield batch
        size += batch.nbytes


def _spread(ranges: Sequence[tuple[int | None, int | None]]) -> tuple[int | None, int | None]:
    lows, highs = [low for low, _ in ranges if low is not None], [high for _, high in ranges if high is not None]
    return (min(lows), max(highs)) if len(lows) == len(ranges) else (None, None)


def _pack(index: pa.Table) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, index.schema) as writer:
        writer.write_table(index.combine_chunks())
    return base64.b64encode(sink.getvalue()).decode()


def _unpack(packed: bytes) -> pa.Table:
    schema, batches = read_stream(pa.py_buffer(base64.b64decode(packed)))
    return pa.Table.from_batches(batches, schema)
