"""Orders of each day and country, and how many of them were shipped within two hours.

``python join_and_daily_totals.py [FOLDER]`` runs the job without Spark, and prints its results.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

import tidestate as ts
from tidestate import agg

orders = ts.stream("orders", event_time="ordered", watermark_delay="5 minutes")
shipments = ts.stream("shipments", event_time="shipped", watermark_delay="5 minutes")

pairs = orders.join(shipments, on="order_id", within=("0 seconds", "2 hours"), how="left", allowed_lateness="1 hour")

per_day = pairs.timed_by("left_ordered").group_by("left_country").window(ts.tumbling("1 day"))
totals = per_day.aggregate(orders=agg.count(), shipped=agg.count("right_weight"), amount=agg.sum("left_amount"))
job = totals.allowed_lateness("1 hour").named("orders_per_day")

TIME = pa.timestamp("us", tz="UTC")
ORDERS = pa.schema([("ordered", TIME), ("order_id", pa.int64()), ("country", pa.string()), ("amount", pa.int64())])
SHIPMENTS = pa.schema([("shipped", TIME), ("order_id", pa.int64()), ("weight", pa.float64())])


def table(schema: pa.Schema, *rows: tuple[Any, ...]) -> pa.Table:
    """Rows of a stream, of which the first value is a time in January 2026."""
    each = [(datetime.fromisoformat(f"2026-01-{time}Z"), *values) for time, *values in rows]
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in each], schema)


def batches() -> list[dict[str, pa.Table]]:
    """Two deliveries, each with what is new of both streams. Order 2 is shipped late, order 3 after midnight."""
    first = {
        "orders": table(ORDERS, ("01T09:00", 1, "nl", 50), ("01T09:30", 2, "nl", 20), ("01T23:30", 3, "be", 30)),
        "shipments": table(SHIPMENTS, ("01T10:00", 1, 0.5), ("01T12:30", 2, 0.2)),
    }
    second = {
        "orders": table(ORDERS, ("02T12:00", 4, "nl", 10)),
        "shipments": table(SHIPMENTS, ("02T00:30", 3, 0.3), ("02T12:30", 4, 0.1)),
    }
    return [first, second]


def words(pane: Mapping[str, Any]) -> str:
    """A result as a sentence."""
    what = f"{pane['orders']} orders from {pane['left_country']} over {pane['amount']}"
    return f"{pane['window_start']:%d January}: {what}, {pane['shipped']} of them shipped within two hours"


def main() -> None:
    """Run the job over both deliveries, and end every window; print the results."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "shipped")
    print(job.explain())
    panes = job.standalone(checkpoint=folder / "checkpoint").run(batches(), drain=True)
    for pane in panes.to_pylist():
        print(words(pane))


if __name__ == "__main__":
    main()
