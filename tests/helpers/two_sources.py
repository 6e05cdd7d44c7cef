"""A job whose watermark is the least of its sources', and events of them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import tidestate as ts
from tidestate import Aggregation, agg, watermark

SECOND = 1_000_000
TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("t", TIME), ("k", pa.string()), ("src", pa.string()), ("end", pa.bool_())])


def rows(source: str | None, *seconds: float | None, key: str | None = "a", control: bool = False) -> pa.Table:
    """Events of one ``source`` as a table of `SCHEMA`, one at each second since 1970 (None: without a time)."""
    times = [None if second is None else int(second * SECOND) for second in seconds]
    many = len(times)
    columns = [pa.array(times, TIME), [key] * many, [source] * many, [control] * many]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def job(generator: Any = None, **settings: Any) -> Aggregation:
    settings = {"by": "src", "sources": ["orders", "prices"], **settings}
    events = ts.stream(event_time="t").watermark(generator or watermark.bounded(), **settings)
    counted = events.group_by("k").window(ts.tumbling("10 seconds")).aggregate(n=agg.count())
    return counted.allowed_lateness("0 seconds").named("job")
