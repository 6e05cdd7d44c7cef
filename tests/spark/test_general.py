"""Every kind of window and trigger on real Spark: the panes and ledger of the standalone runner, row for row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import tidestate as ts
from tests.helpers.process import LONG
from tests.helpers.spark_inputs import sample, write
from tests.helpers.spark_runs import finish, output, stream
from tidestate import Aggregation, OperatorStream, agg, trigger
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB, StoreConfig

pytestmark = pytest.mark.spark


def job(window: Any, **more: Any) -> Aggregation:
    grouped = ts.stream(event_time="t", watermark_delay="5 seconds").group_by("k").window(window)
    return grouped.aggregate(n=agg.count(), s=agg.sum("v"), **more)


DESCRIPTIONS: dict[str, tuple[OperatorStream, StoreConfig]] = {
    "sessions, retracting": (
        job(ts.sessions("3 seconds"))
        .allowed_lateness("20 seconds")
        .accumulation("retracting")
        .trigger(early=trigger.after_count(2)),
        Parquet(),
    ),
    "sliding by window, early by event time": (
        job(ts.sliding("20 seconds", "10 seconds"))
        .allowed_lateness("10 seconds", rule="window")
        .trigger(early=trigger.every_event_time("5 seconds"), late=trigger.after_count(2), only_updated=True),
        RocksDB(),
    ),
    "rolling, retracting": (
        job(ts.rolling("7 seconds"), all=agg.list("id")).allowed_lateness("20 seconds").accumulation("retracting"),
        RocksDB(),
    ),
    "counted, discarding": (job(ts.count_windows(7, 5)).accumulation("discarding"), Memory()),
    "global, composite": (
        ts.stream(event_time="t")
        .group_by()
        .window(ts.global_window())
        .aggregate(n=agg.count(), most=agg.max("v"), middle=agg.median("v"))
        .trigger(when=trigger.repeatedly(trigger.after_count(100))),
        Parquet(max_levels=2, snapshot_bytes=1),
    ),
    "composite that finishes": (
        job(ts.tumbling("10 seconds"), all=agg.list("id")).trigger(
            when=trigger.or_finally(
                trigger.repeatedly(trigger.after_count(9)),
                trigger.any_of(trigger.after_watermark(), trigger.after_count(30)),
            )
        ),
        Parquet(),
    ),
    "offsets, a pane at each third": (
        ts.stream(offset="id")
        .group_by("k")
        .window(ts.offset_windows(40, 20))
        .aggregate(n=agg.count(), all=agg.list("id"))
        .trigger(early=trigger.after_count(3), evaluate="element")
        .accumulation("retracting"),
        Parquet(),
    ),
    "sliding, by the current window": (
        job(ts.sliding("20 seconds", "10 seconds")).allowed_lateness("5 seconds", window_timing=True),
        Parquet(),
    ),
    "sessions of offsets": (
        ts.stream(offset="id")
        .group_by("k")
        .window(ts.offset_sessions(6))
        .aggregate(n=agg.count())
        .accumulation("retracting"),
        Memory(),
    ),
    "sessions of messages": (
        ts.stream(offset="id").group_by("k").window(ts.message_sessions(2)).aggregate(n=agg.count(), s=agg.sum("v")),
        RocksDB(),
    ),
    "deduplicated": (
        ts.stream(event_time="t", watermark_delay="20 seconds").deduplicate(
            ["k", "v"], within="10 seconds", allowed_lateness="10 seconds"
        ),
        Parquet(),
    ),
}


BOUNDED = ["rolling, retracting", "sliding, by the current window"]
"""In CI windows that follow from events and from their times, with the sessions below and the deduplication of
`tests.spark.test_chains`; Spark runs in a partition what the standalone runner runs, and that has them all.
"""


@pytest.mark.parametrize("name", DESCRIPTIONS if LONG else BOUNDED)
def test_panes_and_ledger_equal_the_standalone_runner(spark: SparkSession, tmp_path: Path, name: str) -> None:
    description, store = DESCRIPTIONS[name]
    tables = sample(4, 150) if LONG else sample(2, 120)
    for number, table in enumerate(tables):
        write(tmp_path / "input", number, table)
    finish(description, spark, tmp_path, store, tmp_path / "spark")
    description.standalone(checkpoint=tmp_path / "alone").run(tables, drain=True)
    panes = output(tmp_path / "spark", "panes")
    assert panes == output(tmp_path / "alone", "panes")
    assert len(panes) > 1
    assert output(tmp_path / "spark", "late") == output(tmp_path / "alone", "late")
    counters, others = (Checkpoint.open(tmp_path / name).head().manifest.totals for name in ("spark", "alone"))
    assert counters == others
    if name == "sliding, by the current window":
        assert min(counters[f"window_{timing}"] for timing in ("in_time", "past", "future")) > 0
        late = ts.Root(tmp_path / "spark").late().to_table()
        assert {"in_time", "past"} <= set(late["window_timing"].to_pylist())


FED: dict[str, Aggregation] = {
    "tumbling, retained": job(ts.tumbling("10 seconds")).allowed_lateness("5 seconds").retain_windows("30 seconds"),
    "overlapping, only two kept": job(ts.sliding("20 seconds", "10 seconds"))
    .allowed_lateness("0 seconds")
    .retain_windows(windows=3),
    "sessions": job(ts.sessions("3 seconds"))
    .allowed_lateness("5 seconds")
    .retain_windows("1 minute")
    .trigger(late=trigger.after_count(2)),
}


@pytest.mark.parametrize("name", FED if LONG else ["sessions"])
def test_feeding_the_ledger_back_equals_the_standalone_runner(spark: SparkSession, tmp_path: Path, name: str) -> None:
    description = FED[name].accumulation("retracting")
    tables = sample(4, 150) if LONG else sample(3, 60)
    for number, table in enumerate(tables):
        write(tmp_path / "input", number, table)
    query = description.on_spark(
        stream(spark, tmp_path / "input"), checkpoint=tmp_path / "spark", partitions=3
    ).start()
    query.processAllAvailable()
    fed = query.reprocess_late()
    assert query.reprocess_late() == 0
    query.stop(drain=True)
    alone = description.standalone(checkpoint=tmp_path / "alone")
    alone.run(tables)
    again = alone.reprocess_late()
    assert again.num_rows
    alone.drain()
    assert output(tmp_path / "spark", "panes") == output(tmp_path / "alone", "panes")
    assert output(tmp_path / "spark", "late") == output(tmp_path / "alone", "late")
    totals = query.manifest.totals
    assert totals["fed"] == fed
    assert 0 < totals["fed_accepted"] < fed
    assert totals["purged"] == fed - totals["fed_accepted"]
