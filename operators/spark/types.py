"""Spark's types as those of Arrow, and schemas of Spark as Arrow's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StructType

from tidestate.operators.expressions.sql_types import quoted, type_named
from tidestate.operators.plan.graph import sent_name
from tidestate.operators.spark.platform import setting_of
from tidestate.statestore.errors import UsageError

ROW_COLUMN = "__row"
"""The column of rows of which no column is read."""


def arrow_schema(schema: StructType, columns: list[str]) -> pa.Schema:
    """The Arrow schema of ``columns``, as far as the stream has them; times in UTC microseconds. ``a.b`` is a field
    of a struct. Raises `UsageError` for two columns of one name, and for a type that cannot be read.
    """
    names = [field.name for field in schema.fields]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError("two columns have the same name: rename or drop one", code="column-twice", columns=twice)
    fields = [pa.field(field.name, _arrow_type(field.dataType)) for field in schema.fields if field.name in columns]
    inside = ((name, _field_of(schema, name)) for name in dict.fromkeys(columns) if name not in names)
    return pa.schema([*fields, *(pa.field(name, _arrow_type(kind)) for name, kind in inside if kind is not None)])


def _field_of(schema: StructType, path: str) -> DataType | None:
    """The type of a field of a struct, or of one in that; None where there is none."""
    kind: DataType = schema
    for name in path.split("."):
        if not isinstance(kind, StructType) or name not in kind.names:
            return None
        kind = kind[name].dataType
    return kind


def column_at(stream: DataFrame, name: str) -> Column:
    """The column of this name, or the field of a struct that has this path, named as in `sent_name`."""
    path = quoted(name) if name in stream.columns else ".".join(map(quoted, name.split(".")))
    return sf.col(path) if sent_name(name) == name else sf.col(path).alias(sent_name(name))


def read_columns(stream: DataFrame, names: Sequence[str]) -> DataFrame:
    """``stream`` with these columns; where there are none with a constant, which keeps the number of rows: a batch
    that Spark sends to Python without columns has none.
    """
    if not names:
        return stream.select(sf.lit(None).cast("boolean").alias(ROW_COLUMN))
    return stream.select(*(column_at(stream, name) for name in names))


def check_case(session: SparkSession, columns: Sequence[str], available: Sequence[str]) -> None:
    """That Spark, for which ``k`` and ``K`` are one name, can read these columns. Raises `UsageError`."""
    if setting_of(session, "spark.sql.caseSensitive", "false") == "true":
        return
    folded = Counter(column.lower() for column in available)
    read = {column.lower() for column in columns}
    if same := sorted(column for column in available if folded[column.lower()] > 1 and column.lower() in read):
        raise UsageError(
            "Spark treats these column names as the same: rename or drop one, or set spark.sql.caseSensitive to true",
            code="column-twice",
            columns=same,
        )


def _arrow_type(kind: DataType) -> pa.DataType:
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, ArrayType):
        return pa.list_(_arrow_type(kind.elementType))
    if isinstance(kind, StructType):
        return pa.struct([pa.field(f.name, _arrow_type(f.dataType)) for f in kind.fields])
    if isinstance(kind, MapType):
        return pa.map_(_arrow_type(kind.keyType), _arrow_type(kind.valueType))
    plain = type_named(kind.simpleString())
    if plain is None:
        raise UsageError(
            "a column has a type that cannot be read: cast it", code="spark-type", type=kind.simpleString()
        )
    return plain
