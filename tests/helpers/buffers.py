"""Buffers of origins in numbered chunks, and a job whose watermark follows them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import tidestate as ts
from tidestate import Aggregation, agg, watermark

SECOND = 1_000_000
TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("t", TIME),
        ("k", pa.string()),
        ("origin", pa.int32()),
        ("sequence", pa.int64()),
        ("chunk", pa.int16()),
        ("last", pa.bool_()),
        ("mark", TIME),
    ]
)


def buffer(
    origin: int | None, sequence: int | None, *seconds: int, mark: int = 0, chunk: int = 0, last: bool = True
) -> pa.Table:
    """A buffer with an event at each second."""
    row = {"k": "a", "origin": origin, "sequence": sequence, "chunk": chunk, "last": last, "mark": mark * SECOND}
    return pa.Table.from_pylist([{"t": second * SECOND, **row} for second in seconds], SCHEMA)


def job(sources: list[str], patience: str | None = None, **settings: Any) -> Aggregation:
    progress = watermark.buffers(
        origin="origin", sequence="sequence", watermark="mark", chunk="chunk", last="last", patience=patience
    )
    events = ts.stream(event_time="t").watermark(progress, sources=sources, **settings)
    described = events.group_by("k").window(ts.tumbling("10 seconds")).aggregate(n=agg.count()).named("job")
    return described.allowed_lateness("0 seconds", ledger_columns=["sequence"])
