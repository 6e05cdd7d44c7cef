"""What each customer spends in an hour, on the web, in the app and in the shop.

Three streams with the same columns are one, whose column ``side`` says which it was. Its watermark is the smallest
of the three: nothing is printed before the shop has reported, although the other two are hours ahead.
"""

from __future__ import annotations

import pyarrow as pa

import tidestate as ts
from runner import TIME, Batch, Pane, at, clock, rows, run
from tidestate import agg

web, app, shop = (ts.stream(name, event_time="at") for name in ("web", "app", "shop"))
per_hour = ts.union(web, app, shop).group_by("customer").window(ts.tumbling("1 hour"))
job = per_hour.aggregate(spent=agg.sum("amount"), where=agg.set("side"))

SCHEMA = pa.schema([("at", TIME), ("customer", pa.string()), ("amount", pa.int64())])


def batches() -> list[Batch]:
    """The shop is silent at first; then it has reached 10:00, and so has the watermark."""
    first = {
        "web": rows(SCHEMA, (at("09:00"), "ada", 10), (at("09:05"), "bob", 5)),
        "app": rows(SCHEMA, (at("09:30"), "ada", 7)),
        "shop": rows(SCHEMA),
    }
    second = {
        "web": rows(SCHEMA, (at("12:00"), "cleo", 1)),
        "app": rows(SCHEMA, (at("11:00"), "bob", 2)),
        "shop": rows(SCHEMA, (at("10:00"), "ada", 3)),
    }
    return [first, second]


def words(pane: Pane) -> str:
    """A pane as a sentence."""
    where = ", ".join(sorted(pane["where"]))
    return f"{clock(pane['window_start'])}: {pane['customer']} spent {pane['spent']} ({where})"


def main() -> None:
    """Run the job over `batches`, and print its panes."""
    run(job, batches(), words)


if __name__ == "__main__":
    main()
