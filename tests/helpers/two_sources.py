"""A job whose watermark is the least of its sources', and events of them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tidestate.agg import count
from tidestate.operators import tumbling
from tidestate.operators.describe.windowed import Windowed, windowed
from tidestate.operators.progress.generators import max_event_time

SECOND = 1_000_000
TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("t", TIME), ("k", pa.string()), ("src", pa.string()), ("end", pa.bool_())])


def rows(source: str | None, *seconds: float | None, key: str | None = "a", control: bool = False) -> pa.Table:
    """Events of one source."""
    times = [None if second is None else int(second * SECOND) for second in seconds]
    many = len(times)
    columns = [pa.array(times, TIME), [key] * many, [source] * many, [control] * many]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def job(**settings: Any) -> Windowed:
    described = windowed(event_time="t", key="k", name="job").window(tumbling("10 seconds")).aggregate(n=count())
    settings = {"by": "src", "sources": ["orders", "prices"], **settings}
    return described.late("0 seconds").watermark(settings.pop("generator", max_event_time("t")), **settings)
