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


class PaneFiles:
    """The files of the panes of a task, in a step that ends at this ``watermark``. ``emitted``: the number of the
    operator's last buffer; ``chunks``: how many state partitions have emitted rows of the next one.
    """

    def __init__(self, objects: Objects, plan: Plan, checkpoint_id: int, watermark: int, emitted: int) -> None:
        self._files = OutputFiles(objects, pane_folder(plan), checkpoint_id)
        self._origin, self._mark = plan.output_origin, None
        if self._origin is not None:
            self._mark = output_mark(plan, self._origin, watermark)
        self._sequence = emitted + 1
        self._held: pa.Table | None = None
        self.chunks = 0

    def add(self, panes: pa.Table) -> None:
        """The panes of the next state partition."""
        if self._origin is None or not panes.num_rows:
            self._files.add(panes)
            return
        self._write_held(last=False)
        self._held = panes

    def finish(self) -> tuple[FileRef, ...]:
        """The files of all panes; none without rows."""
        self._write_held(last=True)
        return self._files.finish()

    def _write_held(self, *, last: bool) -> None:
        """Write what is held back until it is known whether another chunk follows."""
        if self._origin is None or self._origin.origin is None or self._held is None:
            return
        rows = in_chunk(self._held, self._origin.origin, self._sequence, self.chunks, last=last, mark=self._mark)
        self._files.add(rows)
        self._held = None
        self.chunks += 1


def pane_folder(plan: Plan) -> str:
    """Where the files of an operator's panes are."""
    return f"panes/{plan.name}"
