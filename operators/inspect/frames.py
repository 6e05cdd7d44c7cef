"""Rows of a root as DataFrames: tasks of Spark read the files, or ask a state partition each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.dataset as ds

from tidestate.recovery.inspect.scans import RowScan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ReadAnswer: TypeAlias = Callable[..., Iterator[pa.Table]]
"""What a task calls for the rows of a state ``partition``, so it can be pickled. Its first table has no rows."""


def frame_of_scan(spark: SparkSession, scan: RowScan, where: ds.Expression | None) -> DataFrame:
    """The rows of a scan. Files without rows for the filter ``where`` are not read."""
    shares = scan.within(where).shares()
    return _frame(spark, partial(_share, shares, where), range(len(shares)), scan.schema)


def frame_of_answer(spark: SparkSession, answer: ReadAnswer, form: Mapping[str, Any], partitions: range) -> DataFrame:
    """What ``answer`` has for the question ``form``, in these state partitions."""
    columns = next(answer(**form)).schema
    return _frame(spark, partial(_of_partition, answer, dict(form)), partitions, columns)


def _share(shares: Sequence[RowScan], where: ds.Expression | None, number: int) -> Iterator[pa.Table]:
    return (pa.Table.from_batches([batch]) for batch in shares[number].batches(where))


def _of_partition(answer: ReadAnswer, form: Mapping[str, Any], number: int) -> Iterator[pa.Table]:
    return answer(**form, partition=number)


def _frame(spark: SparkSession, read: Any, partitions: range, columns: pa.Schema) -> DataFrame:
    from tidestate.operators.spark.partitioned_reads import read_by_tasks  # pyspark is an extra

    return read_by_tasks(spark, read, partitions, columns)
