"""What not every Spark from 3.5 on has: `repartitionById` is of 4.1; DataFrames of Arrow tables, and progress reports
that are objects, are of 4.0.

Before 4.2 times of Arrow schemas are in UTC, and there is no parameter for their zone.
"""

from __future__ import annotations

import inspect
import json
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.types import StructType

from tidestate.statestore.arrays import Numbers

_SEED = 42
"""Of Spark's hash partitioning: Murmur3 of the value, modulo the number of partitions."""

SPARK_4 = int(pyspark.__version__.split(".")[0]) >= 4

_ZONE = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}


def arrow_schema_of(columns: StructType) -> pa.Schema:
    """The schema of these columns in Arrow, with times in UTC."""
    schema: pa.Schema = to_arrow_schema(columns, **_ZONE)
    return schema


def frame_of(session: SparkSession, rows: pa.Table) -> DataFrame:
    """A DataFrame of few ``rows``."""
    if SPARK_4:
        return session.createDataFrame(rows)
    return session.createDataFrame([tuple(row.values()) for row in rows.to_pylist()], from_arrow_schema(rows.schema))


def report_of(progress: Any) -> dict[str, Any]:
    """A progress report of a query as in its JSON, which before 4.0 it is."""
    report: dict[str, Any] = json.loads(progress.json) if SPARK_4 else progress
    return report


def as_spark_progress(report: dict[str, Any]) -> StreamingQueryProgress:
    """A report as queries of Spark hand it out, from 4.0 on a mapping with attributes; with what else is in it."""
    if not SPARK_4:
        return report
    progress = StreamingQueryProgress.fromJson(report)
    progress.update({name: report[name] for name in report.keys() - progress.keys()})
    return progress


def to_tasks(rows: DataFrame, tasks: int) -> DataFrame:
    """``rows`` in ``tasks`` partitions, each row in the one that its column ``task`` names."""
    keys = sf.array(*(sf.lit(key) for key in keys_of_partitions(tasks)))
    return rows.repartition(tasks, sf.get(keys, sf.col("task")))


@cache
def keys_of_partitions(count: int) -> list[int]:
    """For each of ``count`` partitions the smallest number from 0 on that Spark's hash places there."""
    drawn = 16 * count
    while True:
        found, first = np.unique(murmur3(np.arange(drawn)) % count, return_index=True)
        if len(found) == count:
            return [int(place) for place in first]
        drawn *= 2


def murmur3(values: Numbers) -> Numbers:
    """Spark's hash of ints: Murmur3 (x86, 32 bits) of four bytes, as a signed int."""
    mixed = _rotated(values.astype(np.uint32) * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    mixed = _rotated(np.uint32(_SEED) ^ mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    mixed ^= np.uint32(4)
    mixed = (mixed ^ (mixed >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    mixed = (mixed ^ (mixed >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return (mixed ^ (mixed >> np.uint32(16))).astype(np.int32).astype(np.int64)


def _rotated(values: np.typing.NDArray[np.uint32], bits: int) -> np.typing.NDArray[np.uint32]:
    return (values << np.uint32(bits)) | (values >> np.uint32(32 - bits))
