"""Orders per shop and day in a Delta table, which late orders correct.

``python orders_into_delta.py [FOLDER]`` runs the job without Spark, and prints what it emits and the table that it
makes. The second time it finds everything in its checkpoint, and the table stays as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

import tidestate as ts
from tidestate import agg, sinks

orders = ts.stream("orders", event_time="ordered", watermark_delay="1 hour")
per_day = orders.group_by("shop").window(ts.tumbling("1 day"))
totals = per_day.aggregate(orders=agg.count(), amount=agg.sum("amount"))
job = totals.allowed_lateness("2 days", future_tolerance="7 days").accumulation("retracting").named("orders_per_day")

TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("order_id", pa.int64()), ("ordered", TIME), ("shop", pa.string()), ("amount", pa.int64())])


def batches() -> list[dict[str, pa.Table]]:
    """Four deliveries, by stream. Order 4 is late, order 7 too late."""
    deliveries = [
        [(1, "05T09:30", "centre", 30), (2, "05T17:00", "station", 12), (3, "06T10:00", "centre", 8)],
        [(4, "05T23:50", "centre", 45), (5, "06T11:00", "station", 20)],
        [(6, "09T12:00", "centre", 16)],
        [(7, "05T08:00", "station", 99)],
    ]
    return [{"orders": pa.Table.from_pylist([order(*row) for row in rows], SCHEMA)} for rows in deliveries]


def order(order_id: int, time: str, shop: str, amount: int) -> dict[str, Any]:
    """A row of the input, of January 2026."""
    ordered = datetime.fromisoformat(f"2026-01-{time}Z")
    return {"order_id": order_id, "ordered": ordered, "shop": shop, "amount": amount}


def words(row: Mapping[str, Any]) -> str:
    """A result as text."""
    return f"{row['window_start']:%d January}, {row['shop']}: {row['amount']}, orders: {row['orders']}"


def main() -> None:
    """Run the job into the table, and print both."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "orders")
    sink = sinks.DeltaSink(folder / "orders_per_day", changes="upsert")
    running = job.standalone(checkpoint=folder / "checkpoint", sink=sink)
    for panes in running.stream(batches()):
        for pane in panes.to_pylist():
            print(f"{pane['kind']:8} {words(pane)}")
    print("In the table:")
    table = pq.read_table(DeltaTable(str(folder / "orders_per_day")).file_uris())
    for row in sorted(table.to_pylist(), key=lambda row: (row["window_start"], row["shop"])):
        print(f"  {words(row)}")
    print("Rejected:")
    for row in ts.Root(folder / "checkpoint").late().to_table().to_pylist():
        print(f"  {row['ordered']:%d January}, {row['shop']}, {row['amount']}: {row['reason']}")


if __name__ == "__main__":
    main()
