"""Windows and messages of a checkpoint that Spark's tasks read: the same as one process reads."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.helpers.arrow_rows import arrow_of
from tests.helpers.operator_messages import SCHEMA, SECOND, stream, table
from tidestate.agg import apply_rows, count
from tidestate.agg import sum as sum_
from tidestate.operators import Harness, sliding
from tidestate.operators.describe.windowed import windowed
from tidestate.operators.inspect.on_spark import messages_on_spark, windows_on_spark
from tidestate.operators.inspect.query import query
from tidestate.statestore.errors import UsageError

pytestmark = pytest.mark.spark


def longest(rows: pa.Table) -> int:
    return max(rows["v"].to_pylist())


def test_tasks_answer_as_one_process_does(spark: SparkSession, tmp_path: Path) -> None:
    job = windowed(event_time="t", key="k", watermark_delay="6 seconds").window(sliding("6 seconds", "2 seconds"))
    most = apply_rows(longest, columns=["v"], result_type=pa.int64(), per_group=True)
    job = job.aggregate(n=count(), total=sum_("v"), most=most).late("8 seconds")
    job = job.messages(identity=("part", "at"))
    harness = Harness(job, SCHEMA, folder=tmp_path, partitions=3)
    for batch in stream(2, 4):
        harness.feed(table(batch))
    asked = query(tmp_path, description=job, schema=SCHEMA)
    described = {"description": job, "schema": SCHEMA}
    order = ["window_start", "k"]
    low, high = -6 * SECOND, 0
    frames = [
        (windows_on_spark(spark, tmp_path, **described), asked.get_windows()),
        (windows_on_spark(spark, tmp_path, low, high, values=["n"]), asked.get_windows(low, high, values=["n"])),
        (windows_on_spark(spark, tmp_path, key="a", values=[]), asked.get_windows(key="a", values=[])),
    ]
    harness.feed(table(stream(3, 1)[0]))  # a frame stays at its checkpoint
    for frame, wanted in frames:
        found = arrow_of(frame.orderBy(*order))
        assert found.column_names == wanted.column_names
        assert found.to_pylist() == wanted.to_pylist() != []
    assert [frame.rdd.getNumPartitions() for frame, _ in frames] == [3, 3, 1]
    at = asked.checkpoint
    kept = messages_on_spark(spark, tmp_path, low, end_time=high, equal="a", checkpoint=at)
    wanted = asked.get_messages(low, end_time=high, equal="a")
    assert arrow_of(kept.orderBy("time", "offset", "origin")).to_pylist() == wanted.to_pylist() != []
    with pytest.raises(UsageError, match="query-description"):
        windows_on_spark(spark, tmp_path)
