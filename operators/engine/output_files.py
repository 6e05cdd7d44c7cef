"""The files of what a task emits and rejects. They have fresh names that only a manifest refers to."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq

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
