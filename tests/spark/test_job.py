"""The job on real Spark: the same panes as without it, for every store; stopping, restarting, draining, sinks."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import tidestate as ts
from tests.helpers.apis import Notes, raises_foreign
from tests.helpers.process import some
from tests.helpers.spark_inputs import SCHEMA, batch, job, sample, write
from tests.helpers.spark_runs import finish, output, stream
from tidestate import agg, trigger
from tidestate.recovery.log import spark_log
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import DeliveryId
from tidestate.statestore.errors import FencedError, UsageError
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB, StoreConfig

pytestmark = pytest.mark.spark

STORES = {
    "parquet": Parquet(),
    "memory": Memory(),
    "rocksdb": RocksDB(),
    "parquet, small limits": Parquet(max_levels=2, snapshot_bytes=1),
}


@pytest.mark.parametrize("store", some(STORES.values(), 1), ids=some(STORES, 1))
def test_panes_and_ledger_equal_the_standalone_runner(
    spark: SparkSession, tmp_path: Path, store: StoreConfig
) -> None:
    tables = sample(3, 150)
    for number, table in enumerate(tables):
        write(tmp_path / "input", number, table)
    finish(job(), spark, tmp_path, store, tmp_path / "spark")
    job().standalone(checkpoint=tmp_path / "alone").run(tables, drain=True)
    panes = output(tmp_path / "spark", "panes")
    assert panes == output(tmp_path / "alone", "panes")
    assert any("retract" in row for found in panes.values() for row in found)
    late = output(tmp_path / "spark", "late")
    assert late == output(tmp_path / "alone", "late")
    reasons = {row[-2] for found in late.values() for row in found}
    assert reasons == {"very_late", "null_key", "null_event_time"}


@pytest.mark.long  # in every run: operators/windows/test_each_element.py
def test_panes_of_elements_by_arrival_equal_the_standalone_runner(spark: SparkSession, tmp_path: Path) -> None:
    """Of sessions, which elements merge, and without an order of offsets: a file is a batch."""
    tables = sample(2, 60, seed=5)
    for number, table in enumerate(tables):
        write(tmp_path / "input", number, table)
    grouped = ts.stream(event_time="t", watermark_delay="20 seconds").group_by("k").window(ts.sessions("3 seconds"))
    described = grouped.aggregate(n=agg.count(), values=agg.list("id")).allowed_lateness("40 seconds")
    described = described.trigger(early=trigger.each_element()).accumulation("retracting")
    finish(described, spark, tmp_path, Parquet(), tmp_path / "spark")
    described.standalone(checkpoint=tmp_path / "alone").run(tables, drain=True)
    panes = output(tmp_path / "spark", "panes")
    assert panes == output(tmp_path / "alone", "panes")
    assert sum(map(len, panes.values())) > 2 * 60


@pytest.mark.long
def test_sliding_windows_without_a_key(spark: SparkSession, tmp_path: Path) -> None:
    tables = sample(2, 100, seed=3)
    for number, table in enumerate(tables):
        write(tmp_path / "input", number, table)
    description = (
        ts.stream(event_time="t", watermark_delay="5 seconds")
        .group_by()
        .window(ts.sliding("30 seconds", "10 seconds", offset="3 seconds"))
        .aggregate(n=agg.count(), total=agg.sum("v"))
    )
    finish(description, spark, tmp_path, Parquet(), tmp_path / "spark")
    description.standalone(checkpoint=tmp_path / "alone").run(tables, drain=True)
    assert output(tmp_path / "spark", "panes") == output(tmp_path / "alone", "panes")


def test_a_stopped_job_continues_and_may_change_its_store(spark: SparkSession, tmp_path: Path) -> None:
    tables = sample(3, 100)
    root = tmp_path / "spark"
    for number, store in enumerate((Parquet(), RocksDB(), Memory())):
        write(tmp_path / "input", number, tables[number])
        query = job().on_spark(stream(spark, tmp_path / "input"), checkpoint=root, store=store, partitions=2).start()
        query.processAllAvailable()
        query.stop()
        assert not query.isActive
    finish(job(), spark, tmp_path, Parquet(), root)
    job().standalone(checkpoint=tmp_path / "alone").run(tables, drain=True)
    assert output(root, "panes") == output(tmp_path / "alone", "panes")


def test_due_windows_fire_in_the_checkpoint_that_made_them_due(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 0, batch([(1, "a", 1)]))
    write(tmp_path / "input", 1, batch([(15, "a", 2)]))
    query = job().on_spark(stream(spark, tmp_path / "input"), checkpoint=tmp_path / "cp").start()
    query.processAllAvailable()
    query.stop()
    manifest = query.manifest
    assert manifest.kind == "batch"
    assert manifest.counters["panes_on_time"] == 1
    assert [ref.rows for ref in manifest.panes] == [1]


def test_a_drained_checkpoint_refuses_new_input(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 0, batch([(1, "a", 1)]))
    finish(job(), spark, tmp_path, Parquet(), tmp_path / "cp")
    with pytest.raises(UsageError) as caught:
        job().on_spark(stream(spark, tmp_path / "input"), checkpoint=tmp_path / "cp").start()
    assert caught.value.code == "drained"


def test_a_refused_delivery_comes_again_with_the_same_id(spark: SparkSession, tmp_path: Path) -> None:
    for number, table in enumerate(sample(4, 30)):
        write(tmp_path / "input", number, table)
    seen: Notes[tuple[DeliveryId, list[tuple[object, ...]]]] = Notes(tmp_path / "seen")
    refused: Notes[tuple[DeliveryId, list[tuple[object, ...]]]] = Notes(tmp_path / "refused")

    def sink(panes: DataFrame, one: DeliveryId) -> None:
        found = (one, sorted(map(tuple, panes.collect()), key=repr))
        if len(seen) == 2 and not refused:
            refused.append(found)
            raise RuntimeError("the sink is full")
        seen.append(found)

    root = tmp_path / "cp"
    query = job().on_spark(stream(spark, tmp_path / "input"), checkpoint=root, sink=sink).start()
    with raises_foreign(RuntimeError, match="the sink is full"):
        query.processAllAvailable()
    with raises_foreign(RuntimeError, match="the sink is full"):
        query.stop()
    query = job().on_spark(stream(spark, tmp_path / "input"), checkpoint=root, sink=sink).start()
    query.processAllAvailable()
    query.stop(drain=True)
    assert seen[2] == refused[0]
    ids = [one.checkpoint for one, _ in seen]
    assert ids == sorted(set(ids))
    assert sum(len(found) for _, found in seen) == sum(len(found) for found in output(root, "panes").values())


def test_a_root_whose_name_is_a_pattern_elsewhere(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 0, sample(1, 80)[0])
    root, seen = tmp_path / "a [1] {b,c} *?%20é", Notes[int](tmp_path / "seen")

    def sink(panes: DataFrame, _delivery: DeliveryId) -> None:
        seen.append(panes.count())

    for _ in range(2):
        query = job().on_spark(stream(spark, tmp_path / "input"), checkpoint=root, sink=sink).start()
        query.processAllAvailable()
        query.stop()
    assert list(seen) == [len(found) for found in output(root, "panes").values()] != []


@pytest.fixture
def running(spark: SparkSession, tmp_path: Path) -> Iterator[object]:
    write(tmp_path / "input", 0, batch([(1, "a", 1)]))
    query = job().on_spark(stream(spark, tmp_path / "input"), checkpoint=tmp_path / "cp").start()
    query.processAllAvailable()
    yield query
    if query.isActive:
        query.stop()


def test_a_query_that_is_overtaken_stops_with_nothing_published(running: object, tmp_path: Path) -> None:
    import msgspec

    from tidestate.operators.describe.runs import DurableQuery

    assert isinstance(running, DurableQuery)
    checkpoint = Checkpoint.open(tmp_path / "cp")
    head = checkpoint.head()
    assert head is not None
    fence = msgspec.structs.replace(
        head.manifest, id=head.manifest.id + 1, parent=head.checksum, epoch=head.manifest.epoch + 1, kind="fence"
    )
    checkpoint.publish(fence)
    write(tmp_path / "input", 1, batch([(30, "a", 1)]))
    with pytest.raises(FencedError) as caught:
        running.processAllAvailable()
    assert caught.value.code == "fenced"
    assert checkpoint.ids()[-1] == fence.id


@pytest.mark.classic("patched")
def test_a_long_list_of_files_stands_in_a_file_of_its_own(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_log, "INLINE_FILES", 10)
    for number in range(12):
        write(tmp_path / "input", number, batch([(number, "a", 1)], number))
    whole = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "input"))
    query = job().on_spark(whole, checkpoint=tmp_path / "cp").start()
    query.processAllAvailable()
    query.stop()
    taken = query.manifest.spark
    assert taken is not None
    assert taken.files == {}
    assert taken.files_ref is not None
    write(tmp_path / "input", 12, batch([(500, "a", 1)]))
    query = job().on_spark(whole, checkpoint=tmp_path / "cp").start()
    query.processAllAvailable()
    query.stop(drain=True)
    assert query.manifest.totals["accepted"] == 13


def test_rows_that_are_given_are_taken_in_and_the_endpoint_says_so(spark: SparkSession, tmp_path: Path) -> None:
    first, second = batch([(1, "a", 1), (45, "a", 2)]), batch([(30, "b", 3)], 9)
    write(tmp_path / "input", 0, first)
    started = job().on_spark(
        stream(spark, tmp_path / "input"), checkpoint=tmp_path / "spark", partitions=2, metrics=0
    )
    query = started.start()
    query.processAllAvailable()
    assert query.reprocess_late(second) == 1
    assert query.metrics_url is not None
    with urllib.request.urlopen(query.metrics_url) as answer:
        text = answer.read().decode()
    assert 'tidestate_counted_total{class="fed_accepted",operator="job",query="job"} 1.0\n' in text
    query.stop(drain=True)
    assert query.metrics_url is None
    alone = job().standalone(checkpoint=tmp_path / "alone")
    alone.run([first])
    alone.reprocess_late(second)
    alone.drain()
    assert output(tmp_path / "spark", "panes") == output(tmp_path / "alone", "panes")
    assert query.manifest.totals == alone.head.totals


def test_a_query_of_what_is_there_ends_by_itself(spark: SparkSession, tmp_path: Path) -> None:
    for number, table in enumerate(sample(2, 20)):
        write(tmp_path / "input", number, table)
    described = job().on_spark(stream(spark, tmp_path / "input"), checkpoint=tmp_path / "cp")
    query = described.trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert not query.isActive
    assert query.manifest.totals["events"] == 40
