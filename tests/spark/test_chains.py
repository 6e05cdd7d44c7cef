"""Chains on Spark: a shuffle for each key within one batch, with the panes of the standalone runner."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import tidestate as ts
from tests.helpers import two_ledgers
from tests.helpers.process import LONG
from tests.helpers.spark_inputs import START, batch, sample, two_streams, write
from tests.helpers.spark_runs import output, stream
from tidestate import agg, watermark
from tidestate.operators.spark import tasks
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB

pytestmark = pytest.mark.spark


def aggregates() -> Any:
    """Sessions per key, then of all keys together by half minute, then the largest of those by minute."""
    visits = (
        ts.stream(event_time="t", watermark_delay="5 seconds")
        .group_by("k")
        .window(ts.sessions("4 seconds"))
        .aggregate(n=agg.count(), total=agg.sum("v"))
        .allowed_lateness("30 seconds", ledger_columns="id")
        .accumulation("retracting")
        .named("visits")
    )
    together = (
        visits.group_by()
        .window(ts.tumbling("30 seconds"))
        .aggregate(visits=agg.count(), n=agg.sum("n"), most=agg.max("n"))
        .named("together")
    )
    largest = (
        together.allowed_lateness("60 seconds")
        .accumulation("retracting")
        .group_by()
        .window(ts.tumbling("1 minute"))
        .aggregate(most=agg.max("visits"), n=agg.sum("n"))
        .named("largest")
    )
    return largest.allowed_lateness("60 seconds").accumulation("retracting")


# In every run `tests.spark.test_in_driver` has windows into a join, and `test_joins` a join into windows; state
# partitions go by broadcasts in `tests.spark.test_cluster`.
@pytest.mark.long
@pytest.mark.parametrize("store", [RocksDB(), Parquet(max_levels=2, snapshot_bytes=1), Memory()])
def test_three_operators_equal_the_standalone_runner(
    spark: SparkSession, tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    *tables, more = sample(6, 60)
    for number, table in enumerate(tables):
        write(tmp_path / "input", number, table)

    def run(drain: bool) -> None:
        query = aggregates().on_spark(
            stream(spark, tmp_path / "input"),
            checkpoint=tmp_path / "spark",
            store=store,
            partitions=11 if LONG else 3,
        )
        query = query.start()
        query.processAllAvailable()
        query.stop(drain=drain)

    run(drain=False)
    write(tmp_path / "input", len(tables), more)
    monkeypatch.setattr(tasks, "INLINE_BYTES", 0)  # tasks get their state partitions by broadcasts
    run(drain=True)
    tables.append(more)
    aggregates().standalone(checkpoint=tmp_path / "alone", partitions=2).run(tables, drain=True)
    panes = output(tmp_path / "spark", "panes")
    assert panes == output(tmp_path / "alone", "panes")
    assert sum(map(len, panes.values())) > 3
    assert sum(map(len, output(tmp_path / "spark", "late", "visits").values())) > 10
    for name in ("visits", "together"):
        assert output(tmp_path / "spark", "late", name) == output(tmp_path / "alone", "late", name)


# In every run `tests.spark.test_in_driver` compares this job with the standalone runner, by tasks and in the driver.
@pytest.mark.long
def test_two_streams_equal_the_standalone_runner(spark: SparkSession, tmp_path: Path) -> None:
    orders, prices = sample(4, 60, seed=1), sample(4, 60, seed=2)
    for number, (left, right) in enumerate(zip(orders, prices, strict=True)):
        write(tmp_path / "orders", number, left)
        write(tmp_path / "prices", number, right)

    def run(drain: bool) -> None:
        streams = {name: stream(spark, tmp_path / name) for name in ("prices", "orders")}
        query = two_streams().on_spark(streams, checkpoint=tmp_path / "spark", partitions=3).start()
        query.processAllAvailable()
        query.stop(drain=drain)

    run(drain=False)
    run(drain=True)
    both = [{"orders": left, "prices": right} for left, right in zip(orders, prices, strict=True)]
    two_streams().standalone(checkpoint=tmp_path / "alone").run(both, drain=True)
    panes = output(tmp_path / "spark", "panes")
    assert panes == output(tmp_path / "alone", "panes")
    assert sum(map(len, panes.values())) > 50
    for name in ("counted", "met"):
        assert output(tmp_path / "spark", "late", name) == output(tmp_path / "alone", "late", name)


def test_a_deduplication_takes_its_late_rows_again(spark: SparkSession, tmp_path: Path) -> None:
    once = ts.stream(event_time="t").deduplicate("v", within="10 seconds", name="once")
    visits = once.group_by("k").window(ts.sessions("4 seconds")).aggregate(n=agg.count()).named("visits")
    described = visits.allowed_lateness("5 seconds").retain_windows("1 hour").accumulation("retracting")
    batches = [batch([(100, "a", 1)]), batch([(95, "b", 2), (94, "c", 3), (94, "d", 3)])]
    for number, rows in enumerate(batches):
        write(tmp_path / "input", number, rows)
    query = described.on_spark(stream(spark, tmp_path / "input"), checkpoint=tmp_path / "spark", partitions=1).start()
    query.processAllAvailable()
    assert [query.reprocess_late(operator=name) for name in ("visits", "once", "once")] == [0, 2, 0]
    query.stop()
    totals = query.manifest.totals
    assert (totals["once.very_late"], totals["once.duplicates"]) == (2, 1)
    assert (totals["visits.accepted"], totals["visits.fed_accepted"]) == (2, 1)


def test_late_rows_of_one_operator_do_not_come_back_with_those_of_another(
    spark: SparkSession, tmp_path: Path
) -> None:
    for number, rows in enumerate(two_ledgers.ARRIVING):
        write(tmp_path / "input", number, rows)
    arrived, root = stream(spark, tmp_path / "input").select("t", "k", "v"), tmp_path / "spark"
    query = two_ledgers.united().on_spark(arrived, checkpoint=root, partitions=2).start()
    query.processAllAvailable()
    assert [query.reprocess_late(operator=name) for name in ("wide", "wide")] == [2, 0]
    query.stop()
    query = two_ledgers.united().on_spark(arrived, checkpoint=root).start()
    assert [query.reprocess_late(operator=name) for name in ("wide", "short", None)] == [0, 4, 0]
    query.stop(drain=True)
    assert two_ledgers.put_out(root) == two_ledgers.EACH_ONCE


@pytest.mark.long
def test_time_alone_goes_through_all_operators(spark: SparkSession, tmp_path: Path) -> None:
    first = (
        ts.stream(event_time="t")
        .watermark(watermark.fixed("1 second"))
        .group_by("k")
        .window(ts.tumbling("1 second"))
        .aggregate(n=agg.count())
        .allowed_lateness("0 seconds")
        .named("first")
    )
    second = (
        first.group_by()
        .window(ts.tumbling("2 seconds"))
        .aggregate(n=agg.sum("n"))
        .allowed_lateness("0 seconds")
        .named("second")
    )
    (tmp_path / "input").mkdir()
    query = second.on_spark(
        stream(spark, tmp_path / "input"), checkpoint=tmp_path / "root", partitions=2, tick="100 milliseconds"
    )
    running = query.start()
    soon = (datetime.now(UTC) - START).total_seconds() + 10
    write(tmp_path / "input", 0, batch([(soon + number / 20, "ab"[number % 2], number) for number in range(40)]))
    running.processAllAvailable()
    observed, patience = 0, time.monotonic() + 120
    while observed < 40 and time.monotonic() < patience:
        running.awaitTermination(0.2)
        panes = [row for rows in output(tmp_path / "root", "panes").values() for row in rows]
        observed = sum(row[2] for row in panes)  # type: ignore[misc]
    running.stop()
    assert observed == running.manifest.totals["first.accepted"] == 40
    assert running.manifest.kind == "tick"
    assert 'operator="second"' in running.prometheus()
    with pytest.raises(UsageError, match="operator"):
        running.metrics("nobody")


def test_an_error_of_a_later_operator_reaches_the_driver_whole(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 0, sample(1, 30)[0])
    first = (
        ts.stream(event_time="t")
        .group_by("k")
        .window(ts.tumbling("1 second"))
        .aggregate(n=agg.max("v"))
        .named("first")
    )
    grown = (
        first.allowed_lateness("0 seconds")
        .group_by()
        .window(ts.tumbling("1 minute"))
        .aggregate(total=agg.sum("n"))
        .allowed_lateness("0 seconds")
        .named("second")
    )
    described = grown
    query = described.on_spark(stream(spark, tmp_path / "input"), checkpoint=tmp_path / "root", partitions=2).start()
    data = next((tmp_path / "root").rglob("tidestate.json"))
    assert data.exists()
    query.processAllAvailable()
    for path in (tmp_path / "root" / "data" / "second").rglob("*"):
        if path.is_file():
            path.write_bytes(b"damaged")
    write(tmp_path / "input", 1, pa.concat_tables(sample(8, 30)))
    with pytest.raises(Exception, match=r"checksum|damaged"):
        query.processAllAvailable()
    with pytest.raises(Exception, match=r"checksum|damaged"):
        query.stop()
