"""Rows in the folders of their partitions, as Hive names them: ``k=a/window_start_day=2026-01-01``. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from tidestate.operators.sinks.partitions import NULL_FOLDER, TargetPartitions
from tidestate.statestore.arrays import Numbers
from tidestate.statestore.errors import UsageError

_LONGEST = 255
"""Bytes of a name in most file systems."""


def by_folder(rows: pa.Table, partitions: TargetPartitions) -> Iterator[tuple[str, pa.Table]]:
    """The folder of each partition that has some of ``rows``, and these, in order, without the columns that the names
    of folders have. Raises `UsageError` (``sink-partition``) for a value that no folder can have as its name.
    """
    if not partitions:
        yield "", rows
        return
    partitions.check_values(rows)
    rows = partitions.added(rows)
    # Each row gets the number of its combination of values; a stable sort by it keeps the order within a partition.
    codes: Numbers = np.zeros(rows.num_rows, np.int64)
    levels = []
    for name in partitions.names:
        encoded = rows[name].combine_chunks().dictionary_encode("encode")
        encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
        values = encoded.dictionary.to_pylist()
        levels.append([_folder(name, value) for value in values])
        codes = codes * max(1, len(values)) + encoded.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    begins = np.flatnonzero(np.diff(codes[order], prepend=-1))
    kept = rows.take(pa.array(order)).drop_columns(partitions.names)
    for begin, end in zip(begins, [*begins[1:], len(order)], strict=True):
        code, parts = int(codes[order[begin]]), []
        for level in reversed(levels):
            code, place = divmod(code, len(level))
            parts.append(level[place])
        yield "/".join(reversed(parts)), kept.slice(int(begin), int(end - begin))


def without_partitions(schema: pa.Schema, partitions: TargetPartitions) -> pa.Schema:
    """The columns that are in the files."""
    return pa.schema([field for field in schema if field.name not in partitions.names])


def _folder(name: str, value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    folder = f"{_escaped(name)}={NULL_FOLDER if value is None else _escaped(text)}"
    if len(folder) > _LONGEST:
        raise UsageError(
            f"a value of a partition is too long for the name of a folder, {_LONGEST} bytes: partition by another "
            "column",
            code="sink-partition",
            found=folder[:100],
        )
    return folder


def _escaped(text: str) -> str:
    return quote(text, safe=" ")
