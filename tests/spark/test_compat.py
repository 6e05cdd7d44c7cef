"""What stands in for calls that older Sparks lack."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors.exceptions import captured
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from tests.helpers.spark_inputs import sample, write
from tests.helpers.spark_runs import run
from tidestate.operators.spark.compat import (
    arrow_schema_of,
    frame_of,
    keys_of_partitions,
    murmur3,
    to_tasks,
)

pytestmark = pytest.mark.spark


def test_our_hash_is_that_of_spark(spark: SparkSession) -> None:
    values = [0, 1, -1, 42, 2**31 - 1, -(2**31), *range(1_000, 1_100)]
    rows = spark.createDataFrame([(one,) for one in values], "value int").select(sf.hash("value")).collect()
    assert [row[0] for row in rows] == murmur3(np.array(values)).tolist()


@pytest.mark.parametrize("count", [1, 2, 7, 64, 1_000])
def test_a_partition_has_a_key(count: int) -> None:
    keys = keys_of_partitions(count)
    assert (murmur3(np.array(keys)) % count).tolist() == list(range(count))


def test_rows_reach_the_task_that_they_name(spark: SparkSession) -> None:
    rows = frame_of(
        spark, pa.table({"task": pa.array([4, 0, 3, 3, 1, 4], pa.int32()), "blob": [b"\0", b"", *4 * [b"x"]]})
    )
    found = to_tasks(rows, 5).select(sf.spark_partition_id().alias("at"), "task", "blob").collect()
    assert sorted((row["at"], row["task"]) for row in found) == [(0, 0), (1, 1), (3, 3), (3, 3), (4, 4), (4, 4)]
    assert sorted(bytes(row["blob"]) for row in found) == [b"", b"\0", *4 * [b"x"]]


def test_times_of_arrow_are_in_utc(spark: SparkSession) -> None:
    columns = spark.range(1).select(sf.current_timestamp().alias("t"), "id").schema
    assert arrow_schema_of(columns).types == [pa.timestamp("us", "UTC"), pa.int64()]


def test_a_query_meets_no_error_of_the_jvm(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An iterator of Java ends with one, and PySpark looks into each with forty calls: half a second of a start."""
    met: list[str] = []
    convert = captured.convert_exception
    monkeypatch.setattr(captured, "convert_exception", lambda error: met.append(str(error)) or convert(error))
    for number, rows in enumerate(sample(2, 10)):
        write(tmp_path / "input", number, rows)
    run(spark, tmp_path / "input", tmp_path / "root", drain=True)
    assert met == []
