"""What each shop sells in a day, and what it pays back.

Orders and refunds have different columns and one state: the window of a shop and a day takes rows of both, whose
columns have the name of their stream in front. (A join would make pairs of them, a union rows of one kind.) A count
without a column is that of all rows.
"""

from __future__ import annotations

import pyarrow as pa

import tidestate as ts
from runner import TIME, Batch, Pane, at, rows, run
from tidestate import agg

orders = ts.stream("orders", event_time="ordered", watermark_delay="10 minutes")
refunds = ts.stream("refunds", event_time="refunded", watermark_delay="10 minutes")
per_day = ts.merge(orders, refunds).group_by("shop").window(ts.tumbling("1 day"))
job = per_day.aggregate(sold=agg.sum("orders_price"), repaid=agg.sum("refunds_amount"), rows=agg.count())

ORDERS = pa.schema([("ordered", TIME), ("shop", pa.string()), ("price", pa.int64())])
REFUNDS = pa.schema([("refunded", TIME), ("shop", pa.string()), ("amount", pa.int64())])


def batches() -> list[Batch]:
    """Both streams reach the second day, so the first is complete."""
    first = {
        "orders": rows(ORDERS, (at("09:00"), "a", 50), (at("09:05"), "a", 70), (at("09:30"), "b", 20)),
        "refunds": rows(REFUNDS, (at("09:10"), "a", 50)),
    }
    second = {
        "orders": rows(ORDERS, (at("08:00", day=2), "b", 5)),
        "refunds": rows(REFUNDS, (at("08:00", day=2), "b", 20)),
    }
    return [first, second]


def words(pane: Pane) -> str:
    """A pane as a sentence."""
    money = f"sold for {pane['sold']} and paid {pane['repaid'] or 0} back"
    return f"{pane['window_start']:%d %B}: shop {pane['shop']} {money}, in {pane['rows']} orders and refunds"


def main() -> None:
    """Run the job over `batches`, and print its panes."""
    run(job, batches(), words)


if __name__ == "__main__":
    main()
