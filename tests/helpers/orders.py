"""Orders and shipments: two small streams to join."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

SECOND = 1_000_000
TIME = pa.timestamp("us", tz="UTC")
ORDERS = pa.schema([("order", pa.string()), ("ordered", TIME), ("price", pa.int64())])
SHIPMENTS = pa.schema([("order", pa.string()), ("shipped", TIME), ("weight", pa.int64())])


@dataclass(frozen=True)
class Row:
    side: str
    key: str
    at: int
    value: int


def tables(rows: list[Row]) -> dict[str, pa.Table]:
    found = {}
    for side, schema in (("left", ORDERS), ("right", SHIPMENTS)):
        own = [row for row in rows if row.side == side]
        columns = [
            pa.array([row.key for row in own], pa.string()),
            pa.array([row.at * SECOND for row in own], pa.int64()).cast(TIME),
            pa.array([row.value for row in own], pa.int64()),
        ]
        found[side] = pa.table(columns, schema=schema)
    return found
