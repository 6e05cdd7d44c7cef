"""Visits to a site: what each user looked at until half an hour passed without a click.

Clicks come out of order. The one of 09:25 comes last, and makes one visit of what would have been two; as the job
processes rows ``in_order`` of their times, the path of that visit is in order too. A late click that changes a
visit takes back what was printed of it.
"""

from __future__ import annotations

import pyarrow as pa

import tidestate as ts
from runner import TIME, Batch, Pane, at, clock, rows, run
from tidestate import agg

clicks = ts.stream("clicks", event_time="at", watermark_delay="30 minutes")
visits = clicks.group_by("user").window(ts.sessions("30 minutes"))
job = visits.aggregate(pages=agg.count(), path=agg.list("page")).accumulation("retracting").in_order()

SCHEMA = pa.schema([("at", TIME), ("user", pa.string()), ("page", pa.string())])


def batches() -> list[Batch]:
    """The watermark is half an hour behind the latest click: at 09:20, then at 10:30."""
    first = rows(SCHEMA, (at("09:00"), "ada", "home"), (at("09:50"), "ada", "buy"), (at("09:05"), "bob", "home"))
    second = rows(SCHEMA, (at("09:25"), "ada", "search"), (at("11:00"), "bob", "help"))
    return [{"clicks": first}, {"clicks": second}]


def words(pane: Pane) -> str:
    """A pane as a sentence."""
    path = ", ".join(pane["path"])
    return f"{pane['user']} came at {clock(pane['window_start'])} and looked at {pane['pages']} pages: {path}"


def main() -> None:
    """Run the job over `batches`, and print its panes."""
    run(job, batches(), words)


if __name__ == "__main__":
    main()
