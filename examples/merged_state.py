"""The balance of each shop and day: its orders less what it paid back.

Orders and refunds have different columns and one state: the window of a shop and a day takes rows of both, and
knows them by the name of the stream in front of their columns. (A join would make pairs of them, a union one kind
of row.) An aggregate of one's own may read all streams: ``balance`` lifts each into the same sum.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

import tidestate as ts
from runner import TIME, Batch, Pane, at, rows, run
from tidestate import agg

orders = ts.stream("orders", event_time="ordered", watermark_delay="10 minutes")
refunds = ts.stream("refunds", event_time="refunded", watermark_delay="10 minutes")
balance = agg.accumulate(
    name="balance",
    columns={"orders": ["orders_price"], "refunds": ["refunds_amount"]},
    state={"sum": pa.int64()},
    lift={
        "orders": lambda batch: pa.table({"sum": batch["orders_price"]}),
        "refunds": lambda batch: pa.table({"sum": pc.negate(batch["refunds_amount"])}),
    },
    merge=lambda older, newer: pa.table({"sum": pc.add(older["sum"], newer["sum"])}),
    result=lambda state: state["sum"],
    result_type=pa.int64(),
)
job = (
    ts.merge(orders, refunds)
    .group_by("shop")
    .window(ts.tumbling("1 day"))
    .aggregate(orders=agg.count("orders_price"), refunds=agg.count("refunds_amount"), balance=balance)
    .named("balances")
)

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
    counts = f"{pane['orders']} orders, {pane['refunds']} refunds"
    return f"{pane['window_start']:%d %B}: shop {pane['shop']} had {counts} and earned {pane['balance']}"


def main() -> None:
    """Run it."""
    run(job, batches(), words)


if __name__ == "__main__":
    main()
