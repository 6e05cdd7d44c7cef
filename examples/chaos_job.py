"""A job and its sink, and the same with a fault in each: `tidestate chaos` finds them.

See docs/how-to/put-a-job-under-faults.md.

python examples/chaos_job.py FOLDER writes its input: ten files of clicks, some of them late.
"""

from __future__ import annotations

import random
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import tidestate as ts
from tidestate import agg

WORDS = {"word": pa.int64()}
Sink = Callable[[pa.Table, ts.DeliveryId], None]


def clicks(**more: Any) -> ts.Aggregation:
    """Clicks of each user in each minute, and what they cost."""
    events = ts.stream(event_time="t", watermark_delay="30 seconds")
    per_minute = events.group_by("user").window(ts.tumbling("1 minute"))
    job = per_minute.aggregate(clicks=agg.count(), cost=agg.sum("cost"), mean=agg.mean("cost"), **more)
    return job.allowed_lateness("2 minutes").accumulation("retracting").named("clicks")


class Target:
    """A table in SQLite, which remembers the highest checkpoint of each run in the transaction of its rows."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "target.db"
        with self.open() as db:
            db.execute("create table if not exists panes (row text)")
            db.execute("create table if not exists had (run text primary key, checkpoint integer)")

    def open(self) -> sqlite3.Connection:
        """A connection of this thread."""
        return sqlite3.connect(self.file, timeout=30, isolation_level="IMMEDIATE")

    def rows(self) -> pa.Table:
        """What is there."""
        with self.open() as db:
            return pa.table({"row": [row for (row,) in db.execute("select row from panes")]}, schema=pa.schema(ROW))

    def store(self, panes: pa.Table, delivery: ts.DeliveryId, *, known: bool = True) -> None:
        """In one transaction. Unless ``known``, a delivery that comes again is stored again."""
        with self.open() as db:
            db.execute("insert or ignore into had values (?, 0)", [delivery.run])
            rule = "update had set checkpoint = ? where run = ? and checkpoint < ?"
            new = db.execute(rule, [delivery.checkpoint, delivery.run, delivery.checkpoint]).rowcount
            if new or not known:
                rows = [[" ".join(map(str, row.values()))] for row in panes.to_pylist()]
                db.executemany("insert into panes values (?)", rows)


ROW = [("row", pa.string())]


def sink(folder: Path) -> Sink:
    """Follows the rule of docs/how-to/own-sink.md."""
    return Target(folder).store


def sink_rows(folder: Path) -> pa.Table:
    """What the target of any of these sinks has."""
    return Target(folder).rows()


def sink_that_repeats(folder: Path) -> Sink:
    """Stores a delivery again that comes again."""
    target = Target(folder)
    return lambda panes, delivery: target.store(panes, delivery, known=False)


def sink_that_is_hasty(folder: Path) -> Sink:
    """Accepts deliveries, keeps the last few in memory, and stores these when the program ends."""
    target = Target(folder)
    waiting: list[tuple[pa.Table, ts.DeliveryId]] = []

    def at_the_end() -> None:
        threading.main_thread().join()
        for delivery in waiting:
            target.store(*delivery)

    def keep(panes: pa.Table, delivery: ts.DeliveryId) -> None:
        waiting.append((panes, delivery))
        if len(waiting) > 2:
            target.store(*waiting.pop(0))

    threading.Thread(target=at_the_end).start()
    return keep


def sink_that_counts(folder: Path) -> Sink:
    """Numbers the rows of a delivery in the order in which they come, which no job promises."""
    target = Target(folder)

    def store(panes: pa.Table, delivery: ts.DeliveryId) -> None:
        target.store(panes.append_column("place", pa.array(range(panes.num_rows))), delivery)

    return store


def clicks_by_the_clock() -> ts.Aggregation:
    """Its aggregate asks what time it is."""

    def lift(rows: pa.Table) -> pa.Table:
        return pa.table({"word": pa.array([time.time_ns()] * rows.num_rows)})

    return clicks(seen=_own("by-the-clock", lift, _larger))


def clicks_by_hash() -> ts.Aggregation:
    """Its aggregate uses Python's hash of a text, which is another one in each process."""

    def lift(rows: pa.Table) -> pa.Table:
        return pa.table({"word": pa.array([hash(user) for user in rows["user"].to_pylist()], pa.int64())})

    return clicks(seen=_own("by-hash", lift, _larger))


def clicks_that_remember() -> ts.Aggregation:
    """Its aggregate counts in a variable of the process, which a restart loses."""
    seen = 0

    def lift(rows: pa.Table) -> pa.Table:
        nonlocal seen
        seen += rows.num_rows
        return pa.table({"word": pa.array([seen] * rows.num_rows, pa.int64())})

    return clicks(seen=_own("remembers", lift, _larger))


def clicks_not_associative() -> ts.Aggregation:
    """Its merge is not associative: what comes out depends on how rows were put together."""

    def lift(rows: pa.Table) -> pa.Table:
        return pa.table({"word": rows["cost"]})

    def halves(older: pa.Table, newer: pa.Table) -> pa.Table:
        return pa.table({"word": pc.divide(pc.add(older["word"], newer["word"]), 2)})

    return clicks(seen=_own("not-associative", lift, halves))


def _larger(older: pa.Table, newer: pa.Table) -> pa.Table:
    return pa.table({"word": pc.max_element_wise(older["word"], newer["word"])})


def _own(name: str, lift: Callable[[pa.Table], pa.Table], merge: Callable[[pa.Table, pa.Table], pa.Table]) -> Any:
    return agg.accumulate(
        name=name,
        columns=["user", "cost"],
        state=WORDS,
        lift=lift,
        merge=merge,
        result=lambda state: state["word"],
        result_type=pa.int64(),
    )


def write_input(folder: Path, files: int = 10, rows: int = 60) -> None:
    """Files of clicks, half a minute each; some clicks come a minute late, a few far too late."""
    chance, begin = random.Random(7), datetime(2026, 1, 1, tzinfo=UTC)
    folder.mkdir(parents=True)
    for number in range(files):
        behind = [chance.choice([0] * 16 + [60, 60, 90, 600 if number > files // 2 else 0]) for _ in range(rows)]
        seconds = [number * 30 + chance.random() * 30 - late for late in behind]
        times = [begin + timedelta(seconds=second) for second in seconds]
        table = pa.table(
            {
                "t": pa.array(times, pa.timestamp("us", tz="UTC")),
                "user": pa.array([chance.choice("abcdefgh") for _ in range(rows)]),
                "cost": pa.array([chance.randrange(100) for _ in range(rows)], pa.int64()),
            }
        )
        pq.write_table(table, folder / f"clicks-{number:03d}.parquet")


if __name__ == "__main__":
    write_input(Path(sys.argv[1]))
