"""Rows of a root that Spark's tasks read: each of them a state partition, or some files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from tidestate.operators.spark.compat import arrow_schema_of
from tidestate.statestore.errors import UsageError

ReadPartition = Callable[[int], Iterable[pa.Table]]
"""The rows of a partition, in tables of bounded size. A task calls it, so it can be pickled."""


def read_by_tasks(session: SparkSession, read: ReadPartition, partitions: range, schema: pa.Schema) -> DataFrame:
    """What ``read`` finds in these partitions, with the columns of ``schema``. Nothing is read before Spark needs it.

    Raises `UsageError` for a type that Spark has not, and for what is no session.
    """
    if not hasattr(session, "range"):
        raise UsageError(
            "spark= must be a Spark session, such as SparkSession.builder.getOrCreate()",
            code="argument",
            parameter="spark",
            found=f"{session!r:.100} ({type(session).__name__})",
        )
    columns = spark_columns(schema)
    numbers = session.range(partitions.start, partitions.stop, 1, max(1, len(partitions)))
    return numbers.mapInArrow(partial(_read, read, arrow_schema_of(columns)), columns)


def spark_columns(schema: pa.Schema) -> StructType:
    """The columns as Spark has them. Raises `UsageError` for a type that Spark has not."""
    try:
        return from_arrow_schema(pa.schema([pa.field(field.name, _plain(field.type)) for field in schema]))
    except (PySparkException, TypeError) as error:
        raise UsageError(
            f"Spark has no type for a column ({error}): cast it, or leave it out",
            code="spark-type",
            columns=schema.names,
        ) from None


def _read(read: ReadPartition, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            for rows in read(number):
                yield from rows.cast(schema).to_batches()


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind
