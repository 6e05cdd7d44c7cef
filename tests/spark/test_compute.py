"""Streams that are filtered and computed, on Spark: whoever reads the rows, and between operators."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import tidestate as ts
from tests.children.computed import ORDER_FIELDS, computed_sums, orders
from tests.helpers import evidence
from tests.helpers.process import REMOTE
from tests.helpers.runners import panes
from tests.helpers.spark_inputs import write
from tests.helpers.zoned import (
    SPRING,
    changed_rules,
    host_without_zones,
    installation,
    local_days,
    without_tzdata,
    zoned_rows,
)
from tidestate import agg, col
from tidestate.operators.streams.running import SHORTCUTS
from tidestate.operators.zones.installed import installed_rules
from tidestate.recovery.log.checkpoint import Checkpoint

pytestmark = pytest.mark.spark
COLUMNS = "at timestamp, item string, price long, count long"


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(str(folder))


READ: dict[str, Any] = {
    # Files by the tasks themselves, and rows of the JVM.
    "direct": lambda frame: frame,
    "jvm": lambda frame: frame.withColumn("price", sf.col("price") + sf.length(sf.lit(""))),
}


def ledger(root: Path) -> list[Any]:
    rows = ts.Root(root).late(operator="sums").to_table().to_pylist()
    return sorted((row["item"], row["price"], row["total"], row["reason"], row["watermark"]) for row in rows)


def totals(root: Path) -> dict[str, int]:
    head = Checkpoint.open(root).newest()
    assert head is not None
    return dict(head.manifest.totals)


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("shortcuts", [("direct_scan",), SHORTCUTS], ids=["in_tasks", "in_driver"])
def test_whoever_reads_the_rows(spark: SparkSession, tmp_path: Path, read: str, shortcuts: Any) -> None:
    for number, rows in enumerate(orders()):
        write(tmp_path / "in", number, rows)
    frame = READ[read](stream(spark, tmp_path / "in"))
    job = computed_sums().on_spark(frame, checkpoint=tmp_path / "root", partitions=2, paths=shortcuts)
    query = job.start()
    query.processAllAvailable()
    assert query.manifest.scan is not None
    # A client of Spark Connect has no plan of the stream.
    assert query.manifest.scan.direct == (read == "direct" and not REMOTE)
    query.stop(drain=True)
    computed_sums().standalone(checkpoint=tmp_path / "alone", partitions=2).run(orders(), drain=True)
    assert evidence.panes(tmp_path / "root") == evidence.panes(tmp_path / "alone")
    assert ledger(tmp_path / "root") == ledger(tmp_path / "alone") != []
    assert totals(tmp_path / "root") == totals(tmp_path / "alone")


def test_a_filter_and_a_column_are_those_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    """In the job, and in the plan of Spark in front of it."""
    for number, rows in enumerate(orders()):
        write(tmp_path / "in", number, rows)
    frame = stream(spark, tmp_path / "in")
    source = ts.stream(event_time="at", watermark_delay="1 minute")
    jobs = {
        "ours": (source.where(col("count") > 0).with_columns(total=col("price") * col("count")), frame),
        "spark": (source, frame.where("count > 0").withColumn("total", sf.col("price") * sf.col("count"))),
    }
    for name, (rows_of, read) in jobs.items():
        windows = rows_of.group_by("item").window(ts.tumbling("4 seconds"))
        made = windows.aggregate(n=agg.count(), total=agg.sum("total"))
        query = made.on_spark(read, checkpoint=tmp_path / name, partitions=1).start()
        query.processAllAvailable()
        query.stop(drain=True)
    assert evidence.panes(tmp_path / "ours") == evidence.panes(tmp_path / "spark")
    assert ORDER_FIELDS.names == ["at", "item", "price", "count"]


@pytest.mark.classic("patched")
def test_tasks_go_by_the_rules_of_the_start(spark: SparkSession, tmp_path: Path) -> None:
    """The driver's host has other rules of zones than the hosts of workers."""
    batches = [zoned_rows([(second + 7 * number, 1) for second in range(0, 90_000, 5_000)]) for number in range(3)]
    for number, rows in enumerate(batches):
        write(tmp_path / "in", number, rows)
    frame = spark.readStream.schema("t timestamp, v long").option("maxFilesPerTrigger", 1)
    with installation(lambda name: changed_rules(name, 40_000, 5_400)):
        job = local_days("Asia/Kathmandu").on_spark(
            frame.parquet(str(tmp_path / "in")), checkpoint=tmp_path / "root", partitions=2, paths=("direct_scan",)
        )
        query = job.start()
        query.processAllAvailable()
        query.stop(drain=True)
        local_days("Asia/Kathmandu").standalone(checkpoint=tmp_path / "alone").run(batches, drain=True)
    assert evidence.panes(tmp_path / "root") == evidence.panes(tmp_path / "alone") != []


def test_local_days_are_those_of_the_standalone_runner(spark: SparkSession, tmp_path: Path) -> None:
    """Columns, expectations, aggregates and panes by the clock of a zone, over a change of it, with a start in
    between; and readers by the rules in the manifest.
    """
    times = [range(SPRING - 40_000 + 7 * number, SPRING + 50_000, 5_000) for number in range(3)]
    batches = [zoned_rows([(second, 1) for second in seconds]) for seconds in times]
    frame = spark.readStream.schema("t timestamp, v long").option("maxFilesPerTrigger", 1)
    for first, end in ((0, 2), (2, 3)):
        for number in range(first, end):
            write(tmp_path / "in", number, batches[number])
        # The second driver is on a host that has no tzdata, and goes by the rules in the manifest.
        with host_without_zones(tmp_path / "zones") if first else nullcontext():
            job = local_days("Europe/Berlin").on_spark(
                frame.parquet(str(tmp_path / "in")), checkpoint=tmp_path / "root", partitions=2
            )
            query = job.start()
            query.processAllAvailable()
            query.stop(drain=end == 3)
    local_days("Europe/Berlin").standalone(checkpoint=tmp_path / "alone").run(batches, drain=True)
    assert evidence.panes(tmp_path / "root") == evidence.panes(tmp_path / "alone") != []
    head = Checkpoint.open(tmp_path / "root").newest()
    assert head is not None
    assert head.manifest.operators["days"].zones == {"Europe/Berlin": installed_rules("Europe/Berlin").text}
    with installation(without_tzdata):
        found, alone = (sorted(map(repr, panes(tmp_path / name))) for name in ("root", "alone"))
    assert found == alone


def test_rows_that_are_taken_back_by_the_stream(spark: SparkSession, tmp_path: Path) -> None:
    """And rows with a column of that name that says something else."""
    times = pa.array([1_000_000 * second for second in (1, 2, 3)], pa.int64()).cast(pa.timestamp("us", "UTC"))
    batches = [
        pa.table({"at": times, "item": ["a", "a", "b"], "count": [3, 4, 5], "kind": kinds})
        for kinds in (["emit", "emit", "emit"], ["retract", "emit", "retract"], ["emit", "retract", None])
    ]
    for number, rows in enumerate(batches):
        write(tmp_path / "in", number, rows)
    frame = spark.readStream.schema("at timestamp, item string, count long, kind string")
    read = frame.option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    loud, silent = ts.stream(event_time="at", retractions=True), ts.stream(event_time="at")
    for name, rows_of in {"said": loud, "own": silent.where("count > 0").shift_time("1 second")}.items():
        results = (
            rows_of.group_by("item").window(ts.tumbling("4 seconds")).aggregate(n=agg.count(), s=agg.sum("count"))
        )
        job = results.accumulation("retracting")
        query = job.on_spark(read, checkpoint=tmp_path / name, partitions=2).start()
        query.processAllAvailable()
        query.stop(drain=True)
        job.standalone(checkpoint=tmp_path / f"{name}_alone", partitions=2).run(batches, drain=True)
        assert evidence.panes(tmp_path / name) == evidence.panes(tmp_path / f"{name}_alone") != []
