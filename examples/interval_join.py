"""Orders of each day and country, and how many of them were shipped within two hours.

Each order is joined with its shipment, if there is one in time, and the pairs are counted by day: a join and
windows in one job, with one checkpoint for both. An order without a shipment has none of its columns, so counting
one of them counts what was shipped.
"""

from __future__ import annotations

import pyarrow as pa

import tidestate as ts
from runner import TIME, Batch, Pane, at, rows, run
from tidestate import agg

orders = ts.stream("orders", event_time="ordered", watermark_delay="5 minutes")
shipments = ts.stream("shipments", event_time="shipped", watermark_delay="5 minutes")
pairs = orders.join(shipments, on="order_id", within=("0 seconds", "2 hours"), how="left", allowed_lateness="1 hour")
per_day = pairs.group_by("left_country").window(ts.tumbling("1 day"))
totals = per_day.aggregate(orders=agg.count(), shipped=agg.count("right_weight"), amount=agg.sum("left_amount"))
job = totals.allowed_lateness("1 hour")

ORDERS = pa.schema([("ordered", TIME), ("order_id", pa.int64()), ("country", pa.string()), ("amount", pa.int64())])
SHIPMENTS = pa.schema([("shipped", TIME), ("order_id", pa.int64()), ("weight", pa.float64())])


def batches() -> list[Batch]:
    """Order 2 is shipped three hours later. The second batch is of the next day, so the first day is complete."""
    first = {
        "orders": rows(
            ORDERS,
            (at("09:00"), 1, "nl", 50),
            (at("09:30"), 2, "nl", 20),
            (at("10:00"), 3, "be", 30),
        ),
        "shipments": rows(SHIPMENTS, (at("10:00"), 1, 0.5), (at("12:30"), 2, 0.2)),
    }
    second = {
        "orders": rows(ORDERS, (at("12:00", day=2), 4, "nl", 10)),
        "shipments": rows(SHIPMENTS, (at("12:30", day=2), 4, 0.1)),
    }
    return [first, second]


def words(pane: Pane) -> str:
    """A pane as a sentence."""
    day = f"{pane['window_start']:%d %B}"
    what = f"{pane['orders']} orders from {pane['left_country']} over {pane['amount']}"
    return f"{day}: {what}, {pane['shipped']} of them shipped within two hours"


def main() -> None:
    """Run the job over `batches`, and print its panes."""
    run(job, batches(), words)


if __name__ == "__main__":
    main()
