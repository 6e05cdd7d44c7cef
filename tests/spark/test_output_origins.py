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
from tests.helpers.apis import Notes
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
FILES_A_BATCH = 2


JOB = (
    ts.stream(event_time="t")
    .group_by("k")
    .window(ts.tumbling("10 us"))
    .aggregate(n=agg.count())
    .named("tens")
    .allowed_lateness("0 us")
    .origins()
)


def batches(folder: Path) -> list[pa.Table]:
    """Four of one row a key, each a file of a folder, too."""
    tables = [table([(key, 10 * number + at) for at, key in enumerate("abcdef")]) for number in range(1, 5)]
    folder.mkdir()
    for number, rows in enumerate(tables):
        pq.write_table(rows, folder / f"{number}.parquet")
        # Spark reads the oldest file first, and files of one instant in any order.
        os.utime(folder / f"{number}.parquet", (BEGAN + number, BEGAN + number))
    return tables


def test_tasks_number_what_they_put_out(spark: SparkSession, tmp_path: Path) -> None:
    tables = batches(tmp_path / "input")
    stream = spark.readStream.schema("k string, t timestamp, v long").option("maxFilesPerTrigger", FILES_A_BATCH)
    delivered: Notes[pa.Table] = Notes(tmp_path / "delivered")

    def sink(frame: DataFrame, _delivery: DeliveryId) -> None:
        delivered.append(arrow_of(frame))

    # Without shortcuts tasks of Spark emit, each its own state partitions.
    query = JOB.on_spark(
        stream.parquet(str(tmp_path / "input")), checkpoint=tmp_path / "root", partitions=5, sink=sink, paths=set()
    ).start()
    query.processAllAvailable()
    query.stop(drain=True)
    rows = plain(pa.concat_tables(one.cast(delivered[0].schema) for one in delivered))
    check_line(sorted(rows, key=lambda row: (row["sequence"], row["chunk"])))  # Spark reads files in any order
    assert max(row["chunk"] for row in rows) > 0
    together = [pa.concat_tables(tables[at : at + FILES_A_BATCH]) for at in range(0, len(tables), FILES_A_BATCH)]
    alone = JOB.standalone(checkpoint=tmp_path / "alone", partitions=5).run(together, drain=True)
    assert sorted(map(_facts, rows)) == sorted(map(_facts, plain(alone)))
    assert sorted(map(_facts, plain(Root(tmp_path / "root").panes().to_table()))) == sorted(map(_facts, rows))


@pytest.mark.long  # in every run: tests/operators/engine/test_output_origins.py
def test_a_job_reads_the_buffers_of_another(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    JOB.standalone(checkpoint=tmp_path / "first", partitions=5).run(batches(tmp_path / "input"), drain=True)
    marks = watermark.buffers(**BUFFERS, watermark="origin_watermark")
    reads = ts.stream(event_time="window_start").watermark(marks, sources=["2"])
    twenties = reads.group_by().window(ts.tumbling("20 us")).aggregate(n=agg.sum("n")).allowed_lateness("0 us")
    panes = spark.readStream.format("tidestate").load(str(tmp_path / "first"))
    query = twenties.on_spark(panes, checkpoint=tmp_path / "second", partitions=2).start()
    query.processAllAvailable()
    query.stop()
    second = Root(tmp_path / "second")
    sums = {row["window_start"]: row["n"] for row in plain(second.panes().to_table())}
    # The last buffer says that nothing follows, so every window has fired.
    assert sums == {0: 6, 20: 12, 40: 6}
    (state,) = second.manifest().operators.values()
    assert state.buffers is not None
    assert not state.buffers["waiting"]
    assert second.late().to_table().num_rows == 0


def _facts(row: dict[str, Any]) -> str:
    return repr([row[name] for name in ("window_end", "k", "n", *BUFFERS.values(), "origin_watermark")])
