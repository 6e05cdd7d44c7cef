"""Buffers of what a job on Spark puts out: numbered through all tasks, and read by another job as a stream."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import tidestate as ts
from tests.helpers.arrow_rows import arrow_of
from tests.helpers.output_origins import BUFFERS, check_line, plain, table
from tidestate import agg, watermark
from tidestate.operators import DeliveryId, Root
from tidestate.operators.inspect.on_spark import register
from tidestate.operators.spark.compat import SPARK_4

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not SPARK_4, reason="Spark has had sources in Python since 4.0"),
]

BEGAN = time.time() - 60


def test_a_job_reads_the_buffers_of_another_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    folder, first, second = tmp_path / "input", tmp_path / "first", tmp_path / "second"
    folder.mkdir()
    batches = [table([(key, 10 * number + at) for at, key in enumerate("abcdef")]) for number in range(1, 5)]
    for number, rows in enumerate(batches):
        pq.write_table(rows, folder / f"{number}.parquet")
        # Spark reads the oldest file first, and files of one instant in any order.
        os.utime(folder / f"{number}.parquet", (BEGAN + number, BEGAN + number))
    stream = spark.readStream.schema("k string, t timestamp, v long").option("maxFilesPerTrigger", 1)
    delivered: list[pa.Table] = []

    def sink(frame: DataFrame, _delivery: DeliveryId) -> None:
        delivered.append(arrow_of(frame))

    job = ts.stream(event_time="t").group_by("k").window(ts.tumbling("10 us")).aggregate(n=agg.count()).named("tens")
    numbered = job.allowed_lateness("0 us").origins()
    # Without shortcuts tasks of Spark emit, each its own state partitions.
    query = numbered.on_spark(
        stream.parquet(str(folder)), checkpoint=first, partitions=5, sink=sink, paths=set()
    ).start()
    query.processAllAvailable()
    query.stop(drain=True)
    rows = plain(pa.concat_tables(one.cast(delivered[0].schema) for one in delivered))
    check_line(sorted(rows, key=lambda row: (row["sequence"], row["chunk"])))  # Spark reads files in any order
    assert max(row["chunk"] for row in rows) > 0
    alone = numbered.standalone(checkpoint=tmp_path / "alone", partitions=5).run(batches, drain=True)
    assert sorted(map(_facts, rows)) == sorted(map(_facts, plain(alone)))
    assert sorted(map(_facts, plain(Root(first).panes().to_table()))) == sorted(map(_facts, rows))

    marks = watermark.buffers(**BUFFERS, watermark="origin_watermark")
    reads = ts.stream(event_time="window_start").watermark(marks, sources=["2"])
    twenties = reads.group_by().window(ts.tumbling("20 us")).aggregate(n=agg.sum("n")).allowed_lateness("0 us")
    panes = spark.readStream.format("tidestate").load(str(first))
    query = twenties.on_spark(panes, checkpoint=second, partitions=2).start()
    query.processAllAvailable()
    query.stop()
    found = {row["window_start"]: row["n"] for row in plain(Root(second).panes().to_table())}
    # The last buffer says that nothing follows, so every window has fired.
    assert found == {0: 6, 20: 12, 40: 6}
    (state,) = Root(second).manifest().operators.values()
    assert state.buffers is not None
    assert not state.buffers["waiting"]
    assert Root(second).late().to_table().num_rows == 0


def _facts(row: dict[str, Any]) -> str:
    return repr([row[name] for name in ("window_end", "k", "n", *BUFFERS.values(), "origin_watermark")])
