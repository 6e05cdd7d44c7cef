"""Rows with shapes, ends, sources and offsets, and a job with advance-time settings over them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tidestate.agg import count
from tidestate.agg import list as list_
from tidestate.operators import tumbling
from tidestate.operators.describe.windowed import Windowed, windowed
from tidestate.operators.progress.cti_settings import advance_time, generation

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


def job(at_query: Any = None, *, origin: str | None = "src", late: str | None = None, **about: Any) -> Windowed:
    described = windowed(event_time="t", key="k", name="job", offset="at", origin=origin).window(
        tumbling("10 seconds")
    )
    described = described.aggregate(n=count(), times=list_("t"))
    about = {"end": "end", "shape_column": "shape", **about}
    described = described.advance_time(at_query, **about)
    return described.late(late, keep=["at"])


SETTINGS = [
    advance_time("drop", generation(3, "4 seconds")),
    advance_time("adjust", generation(2)),
    advance_time("adjust", generation("5 seconds", "1 second")),
    advance_time("drop", generation(1, "-1 microseconds")),
]
