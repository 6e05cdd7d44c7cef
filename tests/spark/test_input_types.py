"""Input on Spark: fields of structs, columns of one name, a source that has become quiet, buffers that are cut."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.helpers import evidence
from tests.helpers.spark_inputs import at, batch, write
from tests.helpers.spark_runs import stream
from tidestate.agg import count
from tidestate.agg import max as max_
from tidestate.agg import min as min_
from tidestate.agg import sum as sum_
from tidestate.operators import DurableQuery, tumbling
from tidestate.operators.describe.chain import chain
from tidestate.operators.describe.deduplicate import deduplicated
from tidestate.operators.describe.windowed import Windowed, windowed
from tidestate.operators.progress.generators import max_event_time
from tidestate.operators.progress.watermarks import BufferProgress
from tidestate.statestore.errors import UsageError

pytestmark = pytest.mark.spark


def nested(spark: SparkSession, folder: Path) -> DataFrame:
    columns = ("t", "named_struct('name', k, 'deep', named_struct('v', v)) as who", "k > 'a' as later")
    return stream(spark, folder).selectExpr(*columns)


def per_name() -> Windowed:
    described = windowed(event_time="t", key="who.name", name="names").window(tumbling("10 seconds"))
    return described.aggregate(total=sum_("who.deep.v"), low=min_("who.name"), any=max_("later")).late("0 seconds")


EVENTS = [(1, "a", 1), (2, "b", 2), (3, "a", 5), (4, None, 7)]


@pytest.mark.parametrize("chained", [False, True])
def test_fields_of_structs(spark: SparkSession, tmp_path: Path, chained: bool) -> None:
    write(tmp_path / "in", 0, batch(EVENTS))  # type: ignore[arg-type]
    once = deduplicated(event_time="t", on=["who.deep.v", "t"], name="once")
    described = chain(once, per_name()) if chained else per_name()
    query = described.on_spark(nested(spark, tmp_path / "in"), checkpoint=tmp_path / "root", partitions=2).start()
    query.processAllAvailable()
    query.stop(drain=True)
    rows = [row for found in evidence.panes(tmp_path / "root") for row in found.elements()]
    assert sorted(row[2:6] for row in rows) == [("a", 6, "a", False), ("b", 2, "b", True)]


def test_two_columns_of_one_name(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "in", 0, batch([(1, "a", 1)]))
    twice = stream(spark, tmp_path / "in").selectExpr("t", "k", "k as k")
    described = windowed(event_time="t", key="k").window(tumbling("10 seconds")).aggregate(n=count())
    with pytest.raises(UsageError, match="column-twice"):
        described.on_spark(twice, checkpoint=tmp_path / "root").start()
    other_case = stream(spark, tmp_path / "in").selectExpr("t", "k", "k as K")
    with pytest.raises(UsageError, match=r"column-twice.*'K', 'k'"):
        described.on_spark(other_case, checkpoint=tmp_path / "root").start()
    lacking = windowed(event_time="t", key="city").window(tumbling("10 seconds")).aggregate(n=count())
    with pytest.raises(UsageError, match=r"column-missing.*'city'.*'t', 'k', 'v'"):
        lacking.on_spark(stream(spark, tmp_path / "in"), checkpoint=tmp_path / "root").start()
    whole = windowed(event_time="t", key="who").window(tumbling("10 seconds")).aggregate(n=count())
    with pytest.raises(UsageError, match=r'"who.name", "who.deep"'):
        whole.on_spark(nested(spark, tmp_path / "in"), checkpoint=tmp_path / "root").start()
    assert not (tmp_path / "root").exists()


def until(found: Callable[[], object], seconds: float = 60) -> None:
    ends = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < ends, "it never came"
        time.sleep(0.1)


def test_the_last_window_of_a_quiet_source_fires_also_after_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "in", 0, batch([(1, "a", 1), (8, "a", 1)]))
    described = windowed(event_time="t", key="k").window(tumbling("10 seconds")).aggregate(n=count())
    described = described.late("0 seconds").watermark(max_event_time("t", quiet="2 seconds"))

    def start() -> DurableQuery:
        return described.on_spark(
            stream(spark, tmp_path / "in"), checkpoint=tmp_path / "root", partitions=2, tick="200 ms"
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
    buffers = BufferProgress("origin", "v", "mark", whole="rows", empty="empty")
    described = windowed(event_time="t", key="k").window(tumbling("10 seconds")).aggregate(n=count())
    described = described.late("0 seconds").watermark(buffers, sources=["1"])
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
