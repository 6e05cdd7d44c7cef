"""Windows of a Spark job are put, or rows of a join retired, between two runs of its query, which goes on there."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tidestate as ts
from tests.helpers.command import tidestate
from tests.helpers.spark_inputs import at, batch, write
from tests.helpers.spark_runs import stream
from tidestate import Root, agg
from tidestate.stores import Parquet

pytestmark = pytest.mark.spark


def run(spark: SparkSession, folder: Path) -> None:
    """What the input has now."""
    job = ts.stream(event_time="t", watermark_delay="2 seconds").group_by("k").window(ts.tumbling("10 seconds"))
    job = job.aggregate(n=agg.count(), total=agg.sum("v"))
    made = job.on_spark(stream(spark, folder / "input"), checkpoint=folder / "root", store=Parquet(), partitions=2)
    query = made.start()
    query.processAllAvailable()
    query.stop()


def test_a_query_goes_on_from_a_window_that_was_put(spark: SparkSession, tmp_path: Path) -> None:
    root = Root(tmp_path / "root")
    write(tmp_path / "input", 0, batch([(1, "a", 5), (2, "b", 6)]))
    run(spark, tmp_path)
    root.put_window(at(0), key="a", events=3, values={"total": 50}).execute()
    root.del_window(at(0), key="b").execute()
    write(tmp_path / "input", 1, batch([(3, "a", 1), (30, "c", 0)]))
    run(spark, tmp_path)
    panes = [(row["k"], row["n"], row["total"]) for row in root.panes().to_table().to_pylist()]
    assert panes == [("a", 4, 51)]
    done = tidestate("verify", tmp_path / "root", "--read-data", 100, "--spark-checkpoint")
    assert (done.returncode, done.stderr) == (0, "")


def run_join(spark: SparkSession, folder: Path) -> None:
    """What both inputs have now."""
    left, right = (ts.stream(event_time="t", watermark_delay="2 seconds") for _ in "lr")
    job = left.join(right, on="k", within=("0 seconds", "20 seconds"), how="left", allowed_lateness="1 minute")
    inputs = {side: stream(spark, folder / side) for side in ("left", "right")}
    query = job.on_spark(inputs, checkpoint=folder / "root", store=Parquet(), partitions=2).start()
    query.processAllAvailable()
    query.stop()


def test_a_query_goes_on_without_rows_that_were_retired(spark: SparkSession, tmp_path: Path) -> None:
    root = Root(tmp_path / "root")
    write(tmp_path / "left", 0, batch([(1, "a", 5), (2, "b", 6), (3, "a", 7)]))
    write(tmp_path / "right", 0, batch([(1, "z", 0)]))
    run_join(spark, tmp_path)
    assert root.retire(at(2), at(4), side="left").execute().messages == 2
    write(tmp_path / "left", 1, batch([(30, "c", 0)]))
    write(tmp_path / "right", 1, batch([(4, "a", 1), (4, "b", 2), (60, "z", 0)]))
    run_join(spark, tmp_path)
    panes = [(row["k"], row["left_v"], row["right_v"]) for row in root.panes().to_table().to_pylist()]
    assert panes == [("a", 5, 1)]
    done = tidestate("verify", tmp_path / "root", "--read-data", 100, "--spark-checkpoint")
    assert (done.returncode, done.stderr) == (0, "")
