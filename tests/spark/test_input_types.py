"""Input on Spark: fields of structs, columns of one name, a source that has become quiet, buffers that are cut."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.process import longer
from tests.helpers.spark_inputs import at, batch, write
from tests.helpers.spark_runs import stream
from tidestate import Aggregation, Stream, agg, sinks, watermark
from tidestate.operators import (
    DurableQuery,
)
from tidestate.statestore.errors import UsageError

pytestmark = pytest.mark.spark
LARGE = "spark.sql.execution.arrow.useLargeVarTypes"


def nested(spark: SparkSession, folder: Path) -> DataFrame:
    columns = ("t", "named_struct('name', k, 'deep', named_struct('v', v)) as who", "k > 'a' as later")
    return stream(spark, folder).selectExpr(*columns)


def per_name(events: Stream) -> Aggregation:
    described = events.group_by("who.name").window(ts.tumbling("10 seconds"))
    return (
        described.aggregate(total=agg.sum("who.deep.v"), low=agg.min("who.name"), any=agg.max("later"))
        .named("names")
        .allowed_lateness("0 seconds")
    )


EVENTS = [(1, "a", 1), (2, "b", 2), (3, "a", 5), (4, None, 7)]


@pytest.mark.parametrize("chained", [*longer(False), True])
def test_fields_of_structs(spark: SparkSession, tmp_path: Path, chained: bool) -> None:
    write(tmp_path / "in", 0, batch(EVENTS))  # type: ignore[arg-type]
    events = ts.stream(event_time="t")
    described = per_name(events.deduplicate(["who.deep.v", "t"], name="once") if chained else events)
    query = described.on_spark(nested(spark, tmp_path / "in"), checkpoint=tmp_path / "root", partitions=2).start()
    query.processAllAvailable()
    query.stop(drain=True)
    rows = [row for found in evidence.panes(tmp_path / "root") for row in found.elements()]
    assert sorted(row[2:6] for row in rows) == [("a", 6, "a", False), ("b", 2, "b", True)]


@pytest.mark.parametrize("chained", [*longer(False), True])
def test_rows_that_spark_sends_with_long_offsets(spark: SparkSession, tmp_path: Path, chained: bool) -> None:
    write(tmp_path / "in", 0, batch(EVENTS))  # type: ignore[arg-type]
    events = ts.stream(event_time="t")
    described = per_name(events.deduplicate(["who.deep.v", "t"], name="once") if chained else events)
    spark.conf.set(LARGE, "true")
    try:
        started = described.on_spark(nested(spark, tmp_path / "in"), checkpoint=tmp_path / "root", paths=())
        query = started.start()
        query.processAllAvailable()
        query.stop(drain=True)
    finally:
        spark.conf.unset(LARGE)
    rows = [row for found in evidence.panes(tmp_path / "root") for row in found.elements()]
    assert sorted(row[2:6] for row in rows) == [("a", 6, "a", False), ("b", 2, "b", True)]


@pytest.mark.parametrize("paths", [(), ("in_driver", "sql_partials")])
def test_names_that_mean_something_to_spark(spark: SparkSession, tmp_path: Path, paths: tuple[Any, ...]) -> None:
    write(tmp_path / "in", 0, batch([(1, "a", 1), (2, "a", 2)]))
    read = stream(spark, tmp_path / "in").selectExpr("t", "k", "v", "v * 10 as w", "v * 100 as x")
    named = read.toDF("t", "*", "v", "v${x}", "{v}")
    described = ts.stream(event_time="t").group_by("*").window(ts.tumbling("10 seconds"))
    totals = described.aggregate(v=agg.sum("v"), w=agg.sum("v${x}"), x=agg.sum("{v}"))
    query = totals.on_spark(named, checkpoint=tmp_path / "root", partitions=2, paths=paths).start()
    query.processAllAvailable()
    query.stop(drain=True)
    (row,) = (row for found in evidence.panes(tmp_path / "root") for row in found.elements())
    assert row[2:6] == ("a", 3, 30, 300)


def test_two_columns_of_one_name(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "in", 0, batch([(1, "a", 1)]))
    twice = stream(spark, tmp_path / "in").selectExpr("t", "k", "k as k")
    described = ts.stream(event_time="t").group_by("k").window(ts.tumbling("10 seconds")).aggregate(n=agg.count())
    with pytest.raises(UsageError, match="column-twice"):
        described.on_spark(twice, checkpoint=tmp_path / "root").start()
    other_case = stream(spark, tmp_path / "in").selectExpr("t", "k", "k as K")
    with pytest.raises(UsageError, match=r"column-twice.*'K', 'k'"):
        described.on_spark(other_case, checkpoint=tmp_path / "root").start()
    lacking = ts.stream(event_time="t").group_by("city").window(ts.tumbling("10 seconds")).aggregate(n=agg.count())
    with pytest.raises(UsageError, match=r"column-missing.*'city'.*'t', 'k', 'v'"):
        lacking.on_spark(stream(spark, tmp_path / "in"), checkpoint=tmp_path / "root").start()
    whole = ts.stream(event_time="t").group_by("who").window(ts.tumbling("10 seconds")).aggregate(n=agg.count())
    with pytest.raises(UsageError, match=r'"who.name", "who.deep"'):
        whole.on_spark(nested(spark, tmp_path / "in"), checkpoint=tmp_path / "root").start()
    assert not (tmp_path / "root").exists()


def test_names_of_panes(spark: SparkSession, tmp_path: Path) -> None:
    """Those that differ in case alone end the start of a job with a sink; what an earlier one has committed is
    delivered where Spark tells case apart. A name may have a backtick.
    """
    write(tmp_path / "in", 0, batch([(1, "a", 1), (25, "a", 2)]))
    events = stream(spark, tmp_path / "in").withColumnRenamed("k", "k`.k")
    grouped = ts.stream(event_time="t").group_by("k`.k").window(ts.tumbling("10 seconds"))

    def fail(_rows: DataFrame, _id: ts.DeliveryId) -> None:
        raise ValueError("for good")

    def start(sink: Any, *, apart: bool, **results: Any) -> None:
        spark.conf.set("spark.sql.caseSensitive", str(apart).lower())
        job = grouped.aggregate(**results)
        job = job if "Pane" in results else job.renamed(aggregates={"Pane": "n"})
        running = job.on_spark(events, checkpoint=tmp_path / "root", sink=sink).trigger(availableNow=True)
        running.start().awaitTermination()

    target = sinks.ParquetSink(tmp_path / "target")
    try:
        with pytest.raises(UsageError, match=r"column-twice.*'Pane', 'pane'"):
            start(target, apart=False, Pane=agg.count())
        assert not (tmp_path / "root").exists()
        with pytest.raises(Exception, match="for good"):
            start(fail, apart=True, Pane=agg.count())
        with pytest.raises(UsageError, match=r"caseSensitive to true until the sink has them.*column-twice"):
            start(target, apart=False, n=agg.count())
        start(target, apart=True, n=agg.count())
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    stored = pq.read_table(tmp_path / "target").select(["k`.k", "n", "pane"])
    assert stored.to_pylist() == [{"k`.k": "a", "n": 1, "pane": 0}]


def until(found: Callable[[], object], seconds: float = 60) -> None:
    ends = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < ends, "it never came"
        time.sleep(0.1)


def test_the_last_window_of_a_quiet_source_fires_also_after_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "in", 0, batch([(1, "a", 1), (8, "a", 1)]))
    events = ts.stream(event_time="t").watermark(watermark.bounded(quiet="1 second"))
    described = events.group_by("k").window(ts.tumbling("10 seconds")).aggregate(n=agg.count())
    described = described.allowed_lateness("0 seconds")

    def start() -> DurableQuery:
        return described.on_spark(
            stream(spark, tmp_path / "in"), checkpoint=tmp_path / "root", partitions=2, tick="100 ms"
        ).start()

    query = start()
    query.processAllAvailable()
    query.stop()
    made = len(evidence.work(tmp_path / "root"))
    assert made == 1
    query = start()  # no batch ever comes to this run
    until(lambda: sum(map(len, evidence.panes(tmp_path / "root"))))
    query.stop()
    work = evidence.work(tmp_path / "root")
    assert [one["kind"] for one in work] == ["batch", "tick"]
    assert len(work) == made + 1, "one checkpoint: the one that fired the window"


@pytest.mark.long
def test_a_buffer_that_a_micro_batch_cuts_is_waited_for(spark: SparkSession, tmp_path: Path) -> None:
    """A file a batch: the first buffer in two, an empty one announced, then all of the first one again."""
    seconds = [[1, 2], [3, 4], [None, 12], [1, 2, 3, 4]]
    sequences = [[1, 1], [1, 1], [2, 3], [1, 1, 1, 1]]
    marks = {1: 5, 2: 5, 3: 30}
    tables = [
        batch([(second, "a", number) for second, number in zip(times, numbers, strict=True)])
        .append_column("origin", pa.array([1] * len(times), pa.int64()))
        .append_column("mark", pa.array([at(marks[number]) for number in numbers], pa.timestamp("us", tz="UTC")))
        .append_column("rows", pa.array([{1: 4, 2: 0, 3: 1}[number] for number in numbers], pa.int64()))
        .append_column("empty", pa.array([second is None for second in times]))
        for times, numbers in zip(seconds, sequences, strict=True)
    ]
    for number, table in enumerate(tables):
        write(tmp_path / "in", number, table)
    buffers = watermark.buffers(origin="origin", sequence="v", watermark="mark", whole="rows", empty="empty")
    events = ts.stream(event_time="t").watermark(buffers, sources=["1"])
    described = events.group_by("k").window(ts.tumbling("10 seconds")).aggregate(n=agg.count())
    described = described.allowed_lateness("0 seconds")
    schema = "t timestamp, k string, v long, id long, origin long, mark timestamp, rows long, empty boolean"
    source = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    query = described.on_spark(source, checkpoint=tmp_path / "root", partitions=2).start()
    query.processAllAvailable()
    query.stop()
    alone = described.standalone(checkpoint=tmp_path / "alone")
    alone.run(tables)
    for root in (tmp_path / "root", tmp_path / "alone"):
        work = evidence.work(root)
        found = [one.get("watermark_us") for one in work]
        assert found == [None, at(5).timestamp() * 1e6, at(30).timestamp() * 1e6, at(30).timestamp() * 1e6]
        assert [sorted(rows.elements())[0][3] for rows in evidence.panes(root) if rows] == [4]
        assert work[-1]["totals"]["duplicate_buffer"] == 4
        assert work[-1]["totals"]["control_rows"] == 1
