"""Aggregates of some rows and of expressions on Spark: whoever reads the rows, they are those of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.spark_inputs import write
from tidestate import Aggregation, agg, trigger
from tidestate.operators.expressions.builder import expr
from tidestate.operators.spark import in_driver
from tidestate.recovery.log.checkpoint import Checkpoint

pytestmark = pytest.mark.spark
SCHEMA = pa.schema({"t": pa.timestamp("us", "UTC"), "k": pa.string(), "v": pa.int64(), "w": pa.int64()})
READ: dict[str, Any] = {
    "direct": lambda frame: frame,
    "jvm": lambda frame: frame.withColumn("v", sf.col("v") + 0),
}


def batches() -> list[pa.Table]:
    found = []
    for number in range(3):
        places = range(60)
        columns: dict[str, list[Any]] = {
            "t": [(20 * number + place % 30) * 1_000_000 for place in places],
            "k": ["abc"[place % 3] for place in places],
            "v": [place if place % 11 else None for place in places],
            "w": [place % 4 if place % 5 else None for place in places],
        }
        found.append(
            pa.table(columns, schema=pa.schema({**dict.fromkeys("tvw", pa.int64()), "k": pa.string()}))
            .select(list("tkvw"))
            .cast(SCHEMA)
        )
    return found


def totals() -> Aggregation:
    windows = ts.stream(event_time="t").group_by("k").window(ts.tumbling("10 seconds"))
    results = {
        "some": agg.count(where="w > 1"),
        "total": agg.sum("v", where="w > 1 and v < 50"),
        "product": agg.max(expr("v * w")),
        "kinds": agg.count_distinct("v", where="w is null"),
        "all": agg.count(),
    }
    return windows.aggregate(**results).allowed_lateness("10 seconds")


def shown() -> Aggregation:
    """The same, with a column of two results, only where it is high: panes are taken back and come again."""
    described = totals().derive(share="some / `all`").having("share > 0.4 and k != 'c'")
    return described.accumulation("retracting").trigger(early=trigger.each_batch())


@pytest.mark.parametrize("read", READ)
def test_whoever_reads_the_rows_takes_the_same_ones(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    monkeypatch.setattr(in_driver, "LIMITS", in_driver.Limits())  # else no test asks for partials of Spark SQL
    for number, rows in enumerate(batches()):
        write(tmp_path / "in", number, rows)
    stream = spark.readStream.schema("t timestamp, k string, v long, w long").option("maxFilesPerTrigger", 1)
    frame = READ[read](stream.parquet(str(tmp_path / "in")))
    query = totals().on_spark(frame, checkpoint=tmp_path / "root", partitions=2).start()
    query.processAllAvailable()
    query.stop(drain=True)
    scans = [manifest.scan for manifest in Checkpoint.open(tmp_path / "root").history() if manifest.scan is not None]
    assert {scan.direct for scan in scans} == {read == "direct"}
    if read == "jvm":
        assert [scan.partials for scan in scans] == [None] * 3
        assert all("'kinds' is count_distinct" in scan.no_partials for scan in scans), scans
    totals().standalone(checkpoint=tmp_path / "alone", partitions=2).run(batches(), drain=True)
    assert evidence.panes(tmp_path / "root") == evidence.panes(tmp_path / "alone")
    assert any(row["some"] < row["all"] for row in ts.Root(tmp_path / "root").panes(net=True).to_table().to_pylist())


def test_panes_are_shown_on_spark_as_in_one_process(spark: SparkSession, tmp_path: Path) -> None:
    for number, rows in enumerate(batches()):
        write(tmp_path / "in", number, rows)
    stream = spark.readStream.schema("t timestamp, k string, v long, w long").option("maxFilesPerTrigger", 1)
    frame = stream.parquet(str(tmp_path / "in"))
    query = shown().on_spark(frame, checkpoint=tmp_path / "root", partitions=2).start()
    query.processAllAvailable()
    query.stop(drain=True)
    shown().standalone(checkpoint=tmp_path / "alone", partitions=2).run(batches(), drain=True)
    panes = evidence.panes(tmp_path / "root")
    assert panes == evidence.panes(tmp_path / "alone")
    rows = ts.Root(tmp_path / "root").panes().to_table().to_pylist()
    assert all(row["share"] > 0.4 for row in rows)
    assert any(row["kind"] == "retract" for row in rows)


def test_spark_sql_makes_the_partials_that_columns_are_derived_of(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_driver, "LIMITS", in_driver.Limits())
    windows = ts.stream(event_time="t").group_by("k").window(ts.tumbling("10 seconds"))
    described = windows.aggregate(n=agg.count(), v=agg.sum("v")).derive(mean="v / n").having("mean > 20")
    described = described.allowed_lateness("0 seconds")
    for number, rows in enumerate(batches()):
        write(tmp_path / "in", number, rows)
    stream = spark.readStream.schema("t timestamp, k string, v long, w long").option("maxFilesPerTrigger", 1)
    frame = READ["jvm"](stream.parquet(str(tmp_path / "in")))
    query = described.on_spark(frame, checkpoint=tmp_path / "root", partitions=2).start()
    query.processAllAvailable()
    query.stop(drain=True)
    described.standalone(checkpoint=tmp_path / "alone", partitions=2).run(batches(), drain=True)
    assert evidence.panes(tmp_path / "root") == evidence.panes(tmp_path / "alone")
    scans = [manifest.scan for manifest in Checkpoint.open(tmp_path / "root").history() if manifest.scan is not None]
    assert all(scan.partials for scan in scans)
