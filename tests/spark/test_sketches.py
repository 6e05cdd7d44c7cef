"""Sketches of a job on Spark, and what Spark's own functions of sketches make of their bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

import tidestate as ts
from tests.helpers.process import forget
from tests.helpers.spark_inputs import batch, write
from tests.helpers.spark_runs import stream
from tidestate import agg

pytestmark = pytest.mark.spark

NUMBERS = {"a": 20_000, "b": 300, "c": 1}
OWN = """
    select k, hll_sketch_agg(v) own_hll, hll_sketch_agg(name) own_hll_name,
           theta_sketch_agg(v) own_theta, theta_sketch_agg(name) own_theta_name, theta_sketch_agg(x) own_theta_x
    from events group by k
"""
COMPARED = """
    select panes.k,
           hll_sketch_estimate(hll) hll, hll_sketch_estimate(own_hll) own_hll,
           hll_sketch_estimate(hll_union(hll, own_hll)) both_hll,
           hll_sketch_estimate(hll_name) hll_name,
           hll_sketch_estimate(hll_union(hll_name, own_hll_name)) both_hll_name,
           theta_sketch_estimate(theta) theta, theta_sketch_estimate(theta_union(theta, own_theta)) both_theta,
           theta_sketch_estimate(theta_name) theta_name,
           theta_sketch_estimate(theta_union(theta_name, own_theta_name)) both_theta_name,
           theta_sketch_estimate(theta_x) theta_x,
           theta_sketch_estimate(theta_union(theta_x, own_theta_x)) both_theta_x
    from panes join own on panes.k = own.k order by panes.k
"""


def test_sketches_of_a_job_merge_with_those_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    """The same values hash to the same: what both saw is as many as each saw alone."""
    for part in range(2):
        rows = [(1, key, value) for key, number in NUMBERS.items() for value in range(part, number, 2)]
        write(tmp_path / "in", part, batch(rows))
    columns = ("t", "k", "v", "concat('é', v) as name", "v / 8 as x")
    events = stream(spark, tmp_path / "in").selectExpr(*columns)
    job = (
        ts.stream(event_time="t")
        .group_by("k")
        .window(ts.tumbling("1 hour"))
        .aggregate(
            hll=agg.hll("v"),
            hll_name=agg.hll("name"),
            theta=agg.theta("v"),
            theta_name=agg.theta("name"),
            theta_x=agg.theta("x"),
            middle=agg.quantile_approx("v", 0.5),
            common=agg.most_common("v", 1),
        )
    )
    query = job.on_spark(events, checkpoint=tmp_path / "root", partitions=2).start()
    query.processAllAvailable()
    query.stop(drain=True)
    panes = ts.Root(tmp_path / "root").panes().to_table()
    middles = dict(zip(panes["k"].to_pylist(), panes["middle"].to_pylist(), strict=True))
    assert middles["c"] == 0.0
    assert abs(middles["a"] - 10_000) <= 0.03 * 20_000
    assert panes["common"].to_pylist() == [[{"value": 0, "count": 1}]] * 3
    spark.createDataFrame(panes.to_pandas()).createOrReplaceTempView("panes")
    spark.read.parquet(str(tmp_path / "in")).selectExpr(*columns).createOrReplaceTempView("events")
    spark.sql(OWN).createOrReplaceTempView("own")
    for row in spark.sql(COMPARED).toArrow().to_pylist():
        number = NUMBERS[row["k"]]
        for name in ("hll", "hll_name", "theta", "theta_name", "theta_x"):
            assert abs(row[name] - number) <= 0.06 * number
            # An estimate of HLL depends on the way to the sketch; theta's does not.
            assert (
                row[f"both_{name}"] == row[name]
                if "theta" in name
                else np.isclose(row[f"both_{name}"], row[name], rtol=0.01)
            )
        if number <= 300:
            assert row["theta"] == row["hll"] == number


def test_sketches_go_on_after_a_restart_and_merge_over_windows(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's aggregate of the sketches of all windows is of all values, as a reader would ask for a day."""
    job = (
        ts.stream(event_time="t")
        .group_by()
        .window(ts.tumbling("10 seconds"))
        .aggregate(hll=agg.hll("v", precision=10), theta=agg.theta("v", lg_k=10))
        .allowed_lateness("1 hour")
        .accumulation("retracting")
    )
    for number in range(3):
        rows = [(second * 10 + 1, "a", 100 * second + value) for second in range(4) for value in range(150 + number)]
        write(tmp_path / "in", number, batch(rows))
        query = job.on_spark(stream(spark, tmp_path / "in"), checkpoint=tmp_path / "root", partitions=2).start()
        query.processAllAvailable()
        query.stop(drain=number == 2)
        forget()
    net = ts.Root(tmp_path / "root").panes(net=True).to_table()
    assert net.num_rows == 4
    spark.createDataFrame(net.to_pandas()).createOrReplaceTempView("panes")
    (total,) = (
        spark.sql(
            "select hll_sketch_estimate(hll_union_agg(hll)) hll, "
            "theta_sketch_estimate(theta_union_agg(theta, 10)) theta from panes"
        )
        .toArrow()
        .to_pylist()
    )
    distinct = len({100 * second + value for second in range(4) for value in range(152)})
    assert total["theta"] == distinct
    assert abs(total["hll"] - distinct) <= 0.1 * distinct
