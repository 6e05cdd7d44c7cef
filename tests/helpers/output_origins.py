"""Rows that come in the buffers of `OperatorStream.origins`, and what must hold of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tests.helpers.two_streams import TIME

EVENT_SCHEMA = pa.schema([("k", "string"), ("t", TIME), ("v", "int64")])
BUFFER_COLUMNS = ["origin_id", "sequence", "chunk", "last_chunk", "origin_watermark"]
Event = tuple[str, int]
Rows = list[dict[str, Any]]
BUFFERS = {"origin": "origin_id", "sequence": "sequence", "chunk": "chunk", "last": "last_chunk"}


def table(events: Sequence[Event]) -> pa.Table:
    columns = list(zip(*events, strict=True)) or [(), ()]
    times = pa.array(columns[1], pa.int64()).cast(TIME)
    values = pa.array(range(len(events)), pa.int64())
    return pa.table([pa.array(columns[0], "string"), times, values], schema=EVENT_SCHEMA)


def plain(rows: pa.Table) -> Rows:
    """Rows with times as microseconds."""
    return [dict(zip(rows.column_names, row, strict=True)) for row in zip(*map(_values, rows.columns), strict=True)]


def _values(column: pa.ChunkedArray) -> list[Any]:
    return (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()


def check_line(rows: Rows) -> None:
    """Of each origin: sequences from 1 without gaps, chunks from 0 of which the last one alone is marked, a watermark
    that rises, and no row before it but late ones.
    """
    chunks: dict[int, dict[int, bool]] = {}
    marks: dict[int, int | None] = {}
    for row in rows:
        sequence = row["sequence"]
        assert marks.setdefault(sequence, row["origin_watermark"]) == row["origin_watermark"]
        assert chunks.setdefault(sequence, {}).setdefault(row["chunk"], row["last_chunk"]) == row["last_chunk"]
    assert list(chunks) == list(range(1, len(chunks) + 1))
    for flags in chunks.values():
        assert list(flags) == list(range(len(flags)))
        assert list(flags.values()) == [False] * (len(flags) - 1) + [True]
    known = [mark for mark in marks.values() if mark is not None]
    assert known == sorted(known)
    assert None not in list(marks.values())[len(marks) - len(known) :]
    for row in rows:
        before = marks.get(row["sequence"] - 1)
        time = row.get("window_end", row.get("time"))  # where rows of no window or pair pass, late ones do too
        if before is not None and time is not None and row.get("timing") != "late" and "v" not in row:
            assert time >= before
