"""The files of what a task emits and rejects. They have fresh names that only a manifest refers to.

An output operator that is an origin has the columns of buffers in its panes. A task numbers the chunks of its own
state partitions; see `tidestate.operators.engine.numbered_chunks`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq

from tidestate.operators.plan.output_buffers import in_chunk, output_mark
from tidestate.operators.plan.plan import Plan
from tidestate.statestore.checksums import checksum
from tidestate.statestore.errors import expect
from tidestate.statestore.files.refs import FileRef
from tidestate.statestore.files.tails import tail_of
from tidestate.statestore.storage.objects import Objects

OUTPUT_BYTES = 32 << 20
"""The rows in memory from which they are written."""
ENCODED = {"window_start", "window_end", "pane", "timing", "kind", "reason", "watermark"}
"""Columns with so few values that a dictionary of them is smaller than the column."""


def write_outputs(objects: Objects, folder: str, sequence: int, tables: Iterable[pa.Table]) -> tuple[FileRef, ...]:
    """Write these rows as files in ``folder``."""
    files = OutputFiles(objects, folder, sequence)
    for rows in tables:
        files.add(rows)
    return files.finish()


class OutputFiles:
    """The files of one kind that a task writes for one operator, in ``folder``: one, or several if there is much."""

    def __init__(self, objects: Objects, folder: str, sequence: int) -> None:
        self._objects, self._folder, self._sequence = objects, folder, sequence
        self._held: list[pa.Table] = []
        self._bytes = 0
        self.chunks = 0
        """How many state partitions have emitted rows, where these are numbered."""
        self._files: list[FileRef] = []

    def add(self, rows: pa.Table | None) -> None:
        """Write these rows, now or later; in the order of the calls."""
        if rows is None or not rows.num_rows:
            return
        self._held.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= OUTPUT_BYTES:
            self._write()

    def finish(self) -> tuple[FileRef, ...]:
        """The files of all rows; none without rows."""
        if self._held:
            self._write()
        return tuple(self._files)

    def _write(self) -> None:
        rows, self._held, self._bytes = pa.concat_tables(self._held), [], 0
        sink = pa.BufferOutputStream()
        dictionary = [name for name in rows.column_names if name in ENCODED]
        pq.write_table(rows, sink, compression="snappy", use_dictionary=dictionary, write_statistics=True)
        data = sink.getvalue()
        path = f"{self._folder}/{self._sequence:020d}-{uuid.uuid4().hex}.parquet"
        self._objects.put(path, data)
        self._files.append(FileRef(path, data.size, checksum(data), rows.num_rows, tail=tail_of(data)))


class ChunkFiles(OutputFiles):
    """The panes of an output operator that is an ``origin``, with the columns of buffers: the rows of a state
    partition are a chunk of the buffer ``sequence``, at this ``mark``.
    """

    def __init__(
        self, objects: Objects, folder: str, checkpoint_id: int, origin: int, sequence: int, mark: int | None
    ) -> None:
        super().__init__(objects, folder, checkpoint_id)
        self._origin, self._buffer, self._mark = origin, sequence, mark
        self._chunk: pa.Table | None = None

    def add(self, rows: pa.Table | None) -> None:
        """The panes of the next state partition."""
        if rows is None or not rows.num_rows:
            return
        self._number(last=False)
        self._chunk = rows

    def finish(self) -> tuple[FileRef, ...]:
        self._number(last=True)
        return super().finish()

    def _number(self, *, last: bool) -> None:
        """Number the chunk that was held back until it is known whether another one follows."""
        if self._chunk is None:
            return
        super().add(in_chunk(self._chunk, self._origin, self._buffer, self.chunks, last=last, mark=self._mark))
        self._chunk = None
        self.chunks += 1


def pane_files(objects: Objects, plan: Plan, checkpoint_id: int, watermark: int, emitted: int) -> OutputFiles:
    """The files of the panes of a task, in a step that ends at this ``watermark``. ``emitted``: the number of the
    last buffer, of an operator that is an origin.
    """
    folder, origin = pane_folder(plan), plan.output_origin
    if origin is None:
        return OutputFiles(objects, folder, checkpoint_id)
    number = expect(origin.origin, "what is stored of an origin has its number")
    return ChunkFiles(objects, folder, checkpoint_id, number, emitted + 1, output_mark(plan, origin, watermark))


def pane_folder(plan: Plan) -> str:
    """Where the files of an operator's panes are."""
    return f"panes/{plan.name}"
