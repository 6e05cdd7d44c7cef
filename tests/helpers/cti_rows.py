"""Rows with shapes, ends, sources and offsets, and a job with advance-time settings over them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import tidestate as ts
from tidestate import Aggregation, agg, watermark

SECOND = 1_000_000
TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [("t", TIME), ("end", TIME), ("shape", pa.string()), ("k", pa.string()), ("src", pa.string()), ("at", pa.int64())]
)
Row = tuple[Any, ...]


def rows(*given: Row) -> pa.Table:
    """Rows as (second, offset), then source, shape and end."""
    whole = [(*row, *("orders", "point", None)[len(row) - 2 :]) for row in given]
    columns = [
        [None if row[0] is None else row[0] * SECOND for row in whole],
        [None if row[4] is None else row[4] * SECOND for row in whole],
        [row[3] for row in whole],
        ["a"] * len(whole),
        [row[2] for row in whole],
        [row[1] for row in whole],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.table(arrays, schema=SCHEMA)


def job(
    at_query: Any = None,
    *,
    origin: str | None = "src",
    late: str | None = None,
    at_source: Any = None,
    **sources: Any,
) -> Aggregation:
    lifetime = ts.lifetime("end", shape="point", shape_column="shape")
    events = ts.stream(event_time="t", offset="at", origin=origin, lifetime=lifetime, cti_settings=at_source)
    events = events.watermark(watermark.ctis(at_query), **sources)
    described = events.group_by("k").window(ts.tumbling("10 seconds")).aggregate(n=agg.count(), times=agg.list("t"))
    return described.allowed_lateness(late, ledger_columns=["at"]).named("job")


SETTINGS = [
    watermark.cti_settings("drop", generate=watermark.generate_ctis(3, delay="4 seconds")),
    watermark.cti_settings("adjust", generate=watermark.generate_ctis(2)),
    watermark.cti_settings("adjust", generate=watermark.generate_ctis("5 seconds", delay="1 second")),
    watermark.cti_settings("drop", generate=watermark.generate_ctis(1, delay="-1 microseconds")),
]
