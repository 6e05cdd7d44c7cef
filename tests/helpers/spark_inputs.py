"""Small inputs for the Spark tests: events in files, one file a batch, in a known order."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidestate.agg import count, mean
from tidestate.agg import max as max_
from tidestate.operators import tumbling
from tidestate.operators.describe.chain import chain
from tidestate.operators.describe.given_join import join
from tidestate.operators.describe.windowed import RETRACTING, Windowed, windowed

START = datetime(2024, 1, 1, tzinfo=UTC)
SCHEMA = "t timestamp, k string, v long, id long"
Event = tuple[float | None, str | None, int | None]


def at(second: float) -> datetime:
    """A time so many seconds after the start."""
    return START + timedelta(seconds=second)


def batch(events: list[Event], first_id: int = 0) -> pa.Table:
    """Events (second, key, value) as a batch; ids count up from ``first_id``."""
    return pa.table(
        {
            "t": pa.array([None if s is None else at(s) for s, _, _ in events], pa.timestamp("us", tz="UTC")),
            "k": pa.array([k for _, k, _ in events], pa.string()),
            "v": pa.array([v for _, _, v in events], pa.int64()),
            "id": pa.array(range(first_id, first_id + len(events)), pa.int64()),
        }
    )


def write(folder: Path, number: int, table: pa.Table) -> None:
    """Batch ``number`` as a file; modification times give Spark the order.

    A query that runs sees it whole and with its time, or not at all: of one with the time of now Spark would remember
    that, and pass over the next ones as far too old.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{number:04d}.parquet"
    hidden = folder / f".{path.name}"
    pq.write_table(table, hidden)
    os.utime(hidden, (1_000_000_000 + number, 1_000_000_000 + number))
    hidden.rename(path)


def write_int96(folder: Path, number: int, table: pa.Table) -> None:
    """As `write`, with times as INT96, which only Spark reads."""
    write(folder, number, table)
    path = folder / f"{number:04d}.parquet"
    stamp = path.stat().st_mtime
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)
    os.utime(path, (stamp, stamp))


def sample(batches: int, rows: int, seed: int = 7) -> list[pa.Table]:
    """Out-of-order events with nulls, late by anything, so that every class of lateness is there."""
    import random

    chance = random.Random(seed)
    tables = []
    for number in range(batches):
        events: list[Event] = []
        for _ in range(rows):
            second: float | None = (
                number * 12 + chance.uniform(0, 15) - (chance.random() < 0.2) * chance.uniform(0, 70)
            )
            if chance.random() < 0.02:
                second = None
            key = None if chance.random() < 0.02 else chance.choice("abcde")
            value = None if chance.random() < 0.1 else chance.randint(-50, 50)
            events.append((second, key, value))
        tables.append(batch(events, number * rows))
    return tables


def job(**changes: object) -> Windowed:
    """The computation most Spark tests run."""
    return (
        windowed(event_time="t", key="k", watermark_delay="5 seconds", name="job")
        .window(tumbling("10 seconds"))
        .aggregate(n=count(), m=mean("v"), x=max_("v"))
        .late("30 seconds", keep=["id"])
        .accumulation(RETRACTING)
    )


def rows(panes: pa.Table) -> list[tuple[object, ...]]:
    """Pane rows as sorted tuples: panes as a multiset."""
    plain = panes.cast(pa.schema([pa.field(f.name, _decoded(f.type)) for f in panes.schema]))
    return sorted((tuple(row.values()) for row in plain.to_pylist()), key=repr)


def _decoded(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def two_streams() -> Any:
    """Events per key and ten seconds, each with the rows of another stream in those ten seconds."""
    counted = (
        windowed(event_time="t", key="k", watermark_delay="5 seconds", name="counted")
        .window(tumbling("10 seconds"))
        .aggregate(n=count())
        .late("0 seconds")
    )
    met = join(
        event_time=("window_start", "t"),
        on="k",
        within=("0 seconds", "9999999 microseconds"),
        how="full",
        name="met",
        late="5 seconds",
    )
    return chain(counted, met, inputs={"counted": "orders", "met": ("counted", "prices")})
