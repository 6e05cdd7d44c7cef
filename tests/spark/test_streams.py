"""Streams on Spark: DataFrames by the names of their streams, with the panes of the standalone runner."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tidestate as ts
from tests.helpers.spark_inputs import sample, write
from tests.helpers.spark_runs import output, stream
from tidestate import agg
from tidestate.operators.streams import inputs
from tidestate.statestore.errors import UsageError

pytestmark = pytest.mark.spark


@pytest.mark.long  # in every run: a join into windows in test_joins
def test_a_join_into_daily_totals_equals_the_standalone_runner(spark: SparkSession, tmp_path: Path) -> None:
    lefts, rights = sample(2, 40, seed=1), sample(2, 40, seed=2)
    for number, (left, right) in enumerate(zip(lefts, rights, strict=True)):
        write(tmp_path / "orders", number, left)
        write(tmp_path / "shipments", number, right)
    orders, shipments = (
        inputs.stream(name, event_time="t", watermark_delay="5 seconds") for name in ("orders", "shipments")
    )
    shipped = orders.join(
        shipments, on="k", within=("-1 second", "2 seconds"), how="left", allowed_lateness="5 seconds"
    )
    daily = shipped.group_by("k").window(ts.tumbling("1 day")).aggregate(n=agg.count(), total=agg.sum("right_v"))
    frames = {name: stream(spark, tmp_path / name) for name in ("shipments", "orders")}
    job = daily.on_spark(frames, checkpoint=tmp_path / "spark", partitions=3, paths={"direct_scan"})
    assert "orders, shipments" in job._repr_html_()
    query = job.start()
    query.processAllAvailable()
    query.stop(drain=True)
    assert f'<td style="text-align: left">{tmp_path}/spark</td>' in query._repr_html_()
    batches = [{"orders": left, "shipments": right} for left, right in zip(lefts, rights, strict=True)]
    daily.standalone(checkpoint=tmp_path / "alone").run(batches, drain=True)
    panes = output(tmp_path / "spark", "panes")
    assert panes == output(tmp_path / "alone", "panes")
    assert sum(map(len, panes.values())) >= 5
    assert output(tmp_path / "spark", "late") == output(tmp_path / "alone", "late")
    assert job.plan().changes == ()


def test_streams_are_given_by_their_names(spark: SparkSession, tmp_path: Path) -> None:
    orders, prices = (inputs.stream(name, event_time="t") for name in ("orders", "prices"))
    write(tmp_path / "orders", 0, sample(1, 5)[0])
    met = orders.join(prices, on="k", within=("0 seconds", "1 second"))
    with pytest.raises(UsageError, match="each stream by its name"):
        met.on_spark(stream(spark, tmp_path / "orders"), checkpoint=tmp_path / "root")


def test_a_single_stream_has_its_name_everywhere(spark: SparkSession, tmp_path: Path) -> None:
    past, new = sample(2, 40, seed=3)
    write(tmp_path / "orders", 0, past)
    per_minute = (
        inputs.stream("orders", event_time="t").group_by("k").window(ts.tumbling("1 minute")).aggregate(n=agg.count())
    )
    job = per_minute.on_spark({"orders": stream(spark, tmp_path / "orders")}, checkpoint=tmp_path / "spark")
    job.bootstrap({"orders": spark.read.parquet(str(tmp_path / "orders"))})
    write(tmp_path / "orders", 1, new)
    query = job.start()
    query.processAllAvailable()
    query.stop(drain=True)
    alone = per_minute.standalone(checkpoint=tmp_path / "alone")
    alone.bootstrap({"orders": past})
    alone.run([{"orders": new}], drain=True)
    assert output(tmp_path / "spark", "panes") == output(tmp_path / "alone", "panes")
