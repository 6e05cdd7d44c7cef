"""Origins that the engine gives on real Spark: files, rates, a connector with partitions, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.utils import AnalysisException

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.buffers import SECOND
from tests.helpers.process import REMOTE
from tests.helpers.spark_inputs import START, batch, write
from tests.helpers.spark_runs import stream
from tidestate import Aggregation, UsageError, agg, watermark
from tidestate.operators.spark.scan import origins

pytestmark = pytest.mark.spark
BASE = int(START.timestamp())


def job(events: ts.Stream, **more: Any) -> Aggregation:
    of_sources = events.watermark(watermark.buffers(), **more)
    return of_sources.group_by("k").window(ts.tumbling("10 seconds")).aggregate(n=agg.count()).named("job")


def run(frame: DataFrame, root: Path, described: Aggregation) -> dict[str, Any]:
    """What the newest manifest has after all that there is was read."""
    query = described.on_spark(frame, checkpoint=str(root)).trigger(availableNow=True).start()
    query.awaitTermination()
    return evidence.manifests(root)[-1]


def origins_in(manifest: dict[str, Any]) -> tuple[dict[str, int], list[tuple[int, int, int]], int]:
    """Ids by source; id, number of buffers and watermark of each; W: in seconds after the start."""
    buffers = evidence.operator(manifest)["buffers"]
    rows = [(number, count, mark // SECOND - BASE) for number, count, mark, _ in buffers["origins"]["origins"]]
    return buffers["ids"], rows, manifest["watermark_us"] // SECOND - BASE


def files_of(folder: Path, *batches: list[tuple[int, int]]) -> None:
    """Files of events: second, and number of the device."""
    folder.mkdir(exist_ok=True)
    for events in batches:
        write(folder, len(list(folder.iterdir())), batch([(second, "a", device) for second, device in events]))


def test_files_are_one_source_and_a_column_of_theirs_has_several(spark: SparkSession, tmp_path: Path) -> None:
    files_of(tmp_path / "in", [(5, 1), (9, 2)], [(21, 2)])
    files = stream(spark, tmp_path / "in").select("t", "k", sf.expr("v % 3").alias("device")).where("k is not null")
    if not REMOTE:  # a client has no plan with columns: one must be named
        one = job(ts.stream(event_time="t"))
        assert origins_in(run(files, tmp_path / "one", one)) == ({"input": 1}, [(1, 2, 21)], 21)
    several = job(ts.stream(event_time="t"), by="device")
    first = run(files, tmp_path / "several", several)
    assert origins_in(first) == ({"1": 1, "2": 2}, [(1, 1, 5), (2, 2, 21)], 5)
    files_of(tmp_path / "in", [(30, 1), (3, 3)])
    second = run(files, tmp_path / "several", several)
    assert origins_in(second) == ({"1": 1, "2": 2, "0": 3}, [(1, 2, 30), (2, 2, 21), (3, 1, 5)], 5)


def test_sources_that_are_combined_need_a_column(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("orders", "prices"):
        files_of(tmp_path / name, [(5 if name == "orders" else 8, 1)])
    both = [stream(spark, tmp_path / name).withColumn("topic", sf.lit(name)) for name in ("orders", "prices")]
    union = both[0].unionByName(both[1])
    with pytest.raises(UsageError) as caught:
        job(ts.stream(event_time="t")).on_spark(union, checkpoint=str(tmp_path / "root"))
    assert caught.value.code == "origin-unknown"
    assert not (tmp_path / "root").exists()
    by_topic = run(union, tmp_path / "root", job(ts.stream(event_time="t"), by="topic"))
    assert origins_in(by_topic)[0] == {"orders": 1, "prices": 2}
    assert origins_in(by_topic)[2] == 5


@pytest.mark.classic("plan")
def test_the_plans_of_spark_are_read(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connector of one's own stands in for Kafka's, which is not installed here: its plan is of the same class. A
    column that a projection has dropped can be filtered by, but no projection has it again.
    """
    datasource = pytest.importorskip("pyspark.sql.datasource")
    windows = job(ts.stream(event_time="timestamp"))

    class Shards(datasource.DataSource):  # type: ignore[misc, name-defined]
        @classmethod
        def name(cls) -> str:
            return "shards"

        def schema(self) -> str:
            return "topic string, partition int, k string, timestamp timestamp"

        def simpleStreamReader(self, schema: Any) -> None:  # noqa: N802
            """Nothing is read: only the plan is asked."""

    def by(frame: DataFrame) -> Any:
        description: Any = windows.on_spark(frame, checkpoint=str(tmp_path / "root"))
        return description.description.watermarks.by

    rate = spark.readStream.format("rate").load().withColumn("k", sf.lit("a"))
    assert by(rate.where("value > 0").drop("value")) is None
    spark.dataSource.register(Shards)
    shards = spark.readStream.format("shards").option("subscribe", "orders").load()
    with pytest.raises(UsageError, match="this connector"):
        by(shards)
    monkeypatch.setattr(origins, "PARTITIONED", {"shards": ("topic", "partition")})
    assert by(shards) == "partition"
    assert by(shards.withColumnRenamed("partition", "shard").where("shard > 0")) == "shard"
    dropped = shards.select("k", "timestamp")
    for frame in (dropped, shards.repartition(2)):
        with pytest.raises(UsageError) as caught:
            by(frame)
        assert caught.value.code == "origin-unknown"
    assert dropped.where(shards["partition"] > 0).columns == ["k", "timestamp"]
    with pytest.raises(AnalysisException):
        dropped.select("*", shards["partition"])
