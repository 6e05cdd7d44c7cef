"""Windows and messages of a checkpoint that Spark's tasks read: the same as one process reads."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import tidestate as ts
from tests.helpers.arrow_rows import arrow_of
from tests.helpers.operator_messages import SCHEMA, SECOND, stream, table
from tidestate import agg
from tidestate.operators.inspect.query import query
from tidestate.statestore.errors import UsageError

pytestmark = pytest.mark.spark


def longest(rows: pa.Table) -> int:
    return max(rows["v"].to_pylist())


def test_tasks_answer_as_one_process_does(spark: SparkSession, tmp_path: Path) -> None:
    job = (
        ts.stream(event_time="t", watermark_delay="6 seconds")
        .group_by("k")
        .window(ts.sliding("6 seconds", "2 seconds"))
    )
    most = agg.apply_rows(longest, columns=["v"], result_type=pa.int64(), per_group=True)
    job = job.aggregate(n=agg.count(), total=agg.sum("v"), most=most).allowed_lateness("8 seconds")
    job = job.messages(identity=("part", "at"))
    harness = job.harness(SCHEMA, folder=tmp_path, partitions=3)
    for batch in stream(2, 4):
        harness.feed(table(batch))
    asked = query(tmp_path, description=job.graph.description, schema=SCHEMA)
    root = ts.Root(tmp_path)
    order = ["window_start", "k"]
    low, high = -6 * SECOND, 0
    frames = [
        (root.windows(job=job, spark=spark), asked.get_windows()),
        (
            root.windows(low, high, key="a", values=["n"], spark=spark),
            asked.get_windows(low, high, key="a", values=["n"]),
        ),
    ]
    harness.feed(table(stream(3, 1)[0]))  # a frame stays at its checkpoint
    for frame, wanted in frames:
        found = arrow_of(frame.orderBy(*order))
        assert found.column_names == wanted.column_names
        assert found.to_pylist() == wanted.to_pylist() != []
    assert [frame.select(sf.spark_partition_id()).distinct().count() for frame, _ in frames] == [3, 1]
    kept = root.at(asked.checkpoint).messages(low, end_time=high, equal="a", spark=spark)
    wanted = asked.get_messages(low, end_time=high, equal="a")
    assert arrow_of(kept.orderBy("time", "offset", "origin")).to_pylist() == wanted.to_pylist() != []
    with pytest.raises(UsageError, match="query-description"):
        root.windows(spark=spark)
