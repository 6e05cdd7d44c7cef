"""What SQL calls the types that a cast may make, and how it quotes names. Pure."""

from __future__ import annotations

import re

import pyarrow as pa

from tidestate.operators.expressions.tree import INSTANT, LOCAL

SPARK_TYPES: dict[str, pa.DataType] = {
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
    "timestamp": INSTANT,
    "timestamp_ntz": LOCAL,
}
"""Spark's plain types by their names; without decimals."""
_NAMES = SPARK_TYPES | {
    "utinyint": pa.uint8(),
    "usmallint": pa.uint16(),
    "uint": pa.uint32(),
    "ubigint": pa.uint64(),
}
_BY_TYPE = {kind: name for name, kind in _NAMES.items()}
_DECIMAL = re.compile(r"decimal\(\s*(\d{1,2})\s*,\s*(\d{1,2})\s*\)")


def type_named(name: str) -> pa.DataType | None:
    """The type that SQL calls so; None if no cast makes one."""
    if (match := _DECIMAL.fullmatch(name.lower())) is not None:
        precision, scale = int(match[1]), int(match[2])
        return pa.decimal128(precision, scale) if 0 < precision <= 38 and scale <= precision else None
    return _NAMES.get(name.lower())


def sql_name(kind: pa.DataType) -> str | None:
    """What SQL calls a type; None if no cast makes it."""
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})" if 0 <= kind.scale <= kind.precision else None
    return _BY_TYPE.get(kind)


def quoted(name: str) -> str:
    """A name of a column in backquotes, in which each letter stands for itself."""
    return "`" + name.replace("`", "``") + "`"


def double_quoted(name: str) -> str:
    """The same in double quotes, as databases but Spark have it."""
    return '"' + name.replace('"', '""') + '"'
