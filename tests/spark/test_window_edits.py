"""A window of a Spark job is put by hand between two runs of its query, which goes on from there."""

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
