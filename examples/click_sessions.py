"""Visits to a site, and a rewind: clicks of a robot are taken out of the past as if they had never come.

``python click_sessions.py [FOLDER]`` runs the job without Spark in a new folder, and prints the visits before and
after the rewind.
"""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import tidestate as ts
from tidestate import agg, sinks

clicks = ts.stream("clicks", event_time="at", watermark_delay="5 minutes")
visits = clicks.group_by("user").window(ts.sessions("30 minutes"))
pages = visits.aggregate(pages=agg.count(), entered=agg.earliest("page"), left=agg.latest("page"))
job = pages.allowed_lateness("1 day", future_tolerance="1 day").accumulation("retracting").named("visits")

SCHEMA = pa.schema([("at", pa.timestamp("us", tz="UTC")), ("user", pa.string()), ("page", pa.string())])


def click(time: str, user: str, page: str) -> dict[str, Any]:
    """A row of the click log, of the 1st of January 2026."""
    return {"at": datetime.fromisoformat(f"2026-01-01T{time}Z"), "user": user, "page": page}


NINE = [click("09:00", "ada", "home"), click("09:20", "ada", "search"), click("09:05", "bob", "home")]
TEN = [click("09:40", "ada", "buy"), click("10:10", "bob", "help"), click("11:00", "cleo", "home")]
ROBOT = [click(f"09:{minute}", "bob", "trap") for minute in range(30, 60, 5)]


def batches(*hours: list[dict[str, Any]]) -> list[dict[str, pa.Table]]:
    """The log, a file for each hour; without ``hours`` as it should have been."""
    return [{"clicks": pa.Table.from_pylist(rows, SCHEMA)} for rows in hours or (NINE, TEN)]


def words(pane: dict[str, Any]) -> str:
    """A visit as text."""
    times = f"{pane['window_start']:%H:%M} to {pane['window_end']:%H:%M}"
    return f"{pane['user']}, {times}: {pane['entered']} to {pane['left']}, pages: {pane['pages']}"


def print_visits(root: ts.Root, sink_folder: Path) -> None:
    """The visits that count, and how many rows the sink has."""
    for pane in root.panes(net=True).to_table().sort_by("window_start").to_pylist():
        print(f"  {words(pane)}")
    print(f"  rows in the sink: {pq.read_table(sink_folder).num_rows}")


def main() -> None:
    """Run the job over a log with clicks of a robot, go back, and run it over the log without them."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "clicks")
    root = ts.Root(folder / "checkpoint")
    sink = sinks.ParquetSink(folder / "visits")

    print("With the robot:")
    job.standalone(checkpoint=root.url, sink=sink).run(batches(NINE, TEN + ROBOT))
    print_visits(root, folder / "visits")

    print("The rewind:")
    checkpoints = root.checkpoints().to_table().to_pylist()
    nine = next(row["checkpoint"] for row in checkpoints if row["kind"] == "batch")
    rewind = root.rewind(nine)
    print(rewind)
    rewind.execute()
    root.withdraw(sink).execute()

    print("Without the robot:")
    job.standalone(checkpoint=root.url, sink=sink).run(batches(NINE, TEN))
    print_visits(root, folder / "visits")


if __name__ == "__main__":
    main()
