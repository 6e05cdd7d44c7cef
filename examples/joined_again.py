"""What share of all sales of an hour each shop has.

One stream is read by two operators, the sales of each shop and the sales of all, and their panes are joined: one
input and one checkpoint. Both have the same windows, so panes of one hour have the same time. A join takes no
corrections, so neither of them accepts late sales.
"""

from __future__ import annotations

import pyarrow as pa

import tidestate as ts
from runner import TIME, Batch, Pane, at, clock, rows, run
from tidestate import agg

sales = ts.stream("sales", event_time="sold", watermark_delay="5 minutes")
hour, amount = ts.tumbling("1 hour"), agg.sum("amount")
by_shop = sales.group_by("shop").window(hour).aggregate(amount=amount).allowed_lateness("0 seconds").named("by_shop")
of_all = sales.group_by().window(hour).aggregate(amount=amount).allowed_lateness("0 seconds").named("of_all")
job = by_shop.join(of_all, within=("0 seconds", "0 seconds"))

SCHEMA = pa.schema([("sold", TIME), ("shop", pa.string()), ("amount", pa.int64())])


def batches() -> list[Batch]:
    """The sale of 11:30 completes the hours before."""
    first = rows(SCHEMA, (at("09:10"), "centre", 30), (at("09:20"), "station", 10), (at("09:50"), "centre", 20))
    second = rows(SCHEMA, (at("10:05"), "station", 5), (at("11:30"), "centre", 1))
    return [{"sales": first}, {"sales": second}]


def words(pane: Pane) -> str:
    """A pane as a sentence."""
    share = pane["left_amount"] / pane["right_amount"]
    return f"{clock(pane['left_window_start'])}: {share:.0%} of sales in {pane['left_shop']}"


def main() -> None:
    """Run the job over `batches`, and print its panes."""
    run(job, batches(), words)


if __name__ == "__main__":
    main()
