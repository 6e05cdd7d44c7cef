"""Buffers of origins in numbered chunks, and a job whose watermark follows them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tidestate.agg import count
from tidestate.operators import tumbling
from tidestate.operators.describe.windowed import Windowed, windowed
from tidestate.operators.progress.watermarks import BufferProgress

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


def job(sources: list[str], patience: str | None = None, **settings: Any) -> Windowed:
    described = windowed(event_time="t", key="k", name="job").window(tumbling("10 seconds")).aggregate(n=count())
    progress = BufferProgress("origin", "sequence", "mark", "chunk", "last", patience)
    return described.late("0 seconds", keep=["sequence"]).watermark(progress, sources=sources, **settings)
