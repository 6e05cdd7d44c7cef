"""Spark's types as Arrow's."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StructType, TimestampType

from tidestate.operators.spark.plain_types import PLAIN_TYPES
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.tables import TIME


def arrow_schema(schema: StructType, columns: list[str]) -> pa.Schema:
    """The Arrow schema of ``columns``, as far as the stream has them; times in UTC microseconds."""
    fields = [field for field in schema.fields if field.name in columns]
    return pa.schema([pa.field(field.name, _arrow_type(field.dataType)) for field in fields])


def _arrow_type(kind: DataType) -> pa.DataType:
    if isinstance(kind, TimestampType):
        return TIME
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, ArrayType):
        return pa.list_(_arrow_type(kind.elementType))
    if isinstance(kind, StructType):
        return pa.struct([pa.field(f.name, _arrow_type(f.dataType)) for f in kind.fields])
    if isinstance(kind, MapType):
        return pa.map_(_arrow_type(kind.keyType), _arrow_type(kind.valueType))
    plain = PLAIN_TYPES.get(kind.simpleString())
    if plain is None:
        raise UsageError(
            "a column has a type that cannot be read: cast it", code="spark-type", type=kind.simpleString()
        )
    return plain
