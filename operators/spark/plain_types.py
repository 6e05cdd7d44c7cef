"""The Arrow types of Spark's plain ones. Pure."""

from __future__ import annotations

import pyarrow as pa

PLAIN_TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp_ntz": pa.timestamp("us"),
}
"""By Spark's name; without timestamps, decimals and nested types."""


def decimal_of(kind: str) -> tuple[int, int] | None:
    """Precision and scale of a decimal type as Spark writes it; None for any other."""
    if not (kind.startswith("decimal(") and kind.endswith(")")):
        return None
    precision, _, scale = kind[8:-1].partition(",")
    return int(precision), int(scale)
