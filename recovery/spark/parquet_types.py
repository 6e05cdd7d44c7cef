"""Which types of a column in a Parquet file are those of Spark: as Spark writes them, and others that it reads. Pure.

A type in a file is physical and logical, in the words of pyarrow; one of Spark is named as in its SQL.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

_INT = "Int(bitWidth={}, isSigned={})"
_MICROS = "Timestamp(isAdjustedToUTC={}, timeUnit=microseconds"
_MILLIS = "Timestamp(isAdjustedToUTC={}, timeUnit=milliseconds"
_BYTE, _SHORT, _WORD = (("INT32", _INT.format(bits, "true")) for bits in (8, 16, 32))
_NULLS = ("INT32", "Null")
"""What pyarrow writes for a column without any value and type. Spark reads that as numbers alone."""
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")

_WRITTEN: Mapping[str, tuple[tuple[str, str], ...]] = {
    "boolean": (("BOOLEAN", "None"),),
    "tinyint": (_BYTE,),
    "smallint": (_SHORT,),
    "int": (("INT32", "None"), _WORD),
    "bigint": (("INT64", "None"), ("INT64", _INT.format(64, "true"))),
    "float": (("FLOAT", "None"),),
    "double": (("DOUBLE", "None"),),
    "string": (("BYTE_ARRAY", "String"),),
    "binary": (("BYTE_ARRAY", "None"),),
    "date": (("INT32", "Date"),),
    "timestamp": (("INT64", _MICROS.format("true")),),
    "timestamp_ntz": (("INT64", _MICROS.format("false")),),
}
"""By Spark's type: the physical type, and how the logical one begins."""
_READ: Mapping[str, tuple[tuple[str, str], ...]] = {
    "smallint": (_BYTE, ("INT32", _INT.format(8, "false"))),
    "int": (_BYTE, _SHORT, ("INT32", _INT.format(16, "false")), _NULLS),
    "bigint": (_BYTE, _SHORT, _WORD, ("INT32", "None"), ("INT32", _INT.format(32, "false")), _NULLS),
    "double": (("FLOAT", "None"), _NULLS),
    "string": (("BYTE_ARRAY", "None"), ("BYTE_ARRAY", "Enum"), ("BYTE_ARRAY", "JSON")),
    "binary": (("BYTE_ARRAY", "String"), ("FIXED_LEN_BYTE_ARRAY", "None")),
    # Spark takes a time without a zone for one in UTC where it expects an instant, and not the other way round.
    "timestamp": (
        ("INT64", _MICROS.format("false")),
        ("INT64", _MILLIS.format("true")),
        ("INT64", _MILLIS.format("false")),
        ("INT96", "None"),
    ),
    "timestamp_ntz": (("INT64", _MILLIS.format("false")),),
    "decimal(20,0)": (("INT64", _INT.format(64, "false")),),
}
"""What Spark reads as a type without a loss, though it would not write it so. Spark 3.5 does not widen numbers."""


@lru_cache
def is_written_as(physical: str, logical: str, kind: str) -> bool:
    """Whether a column of a file has the type as which Spark writes ``kind``."""
    if (decimal := _DECIMAL.fullmatch(kind)) is not None:
        precision, scale = decimal.groups()
        fits = logical == f"Decimal(precision={precision}, scale={scale})"
        return fits and physical in ("INT32", "INT64", "FIXED_LEN_BYTE_ARRAY")
    return _is_among(_WRITTEN.get(kind, ()), physical, logical)


def is_read_as(physical: str, logical: str, kind: str) -> bool:
    """Whether every Spark that reads a column of a file as ``kind`` has the values that were written."""
    return is_written_as(physical, logical, kind) or _is_among(_READ.get(kind, ()), physical, logical)


def _is_among(types: Iterable[tuple[str, str]], physical: str, logical: str) -> bool:
    # What follows in the text of a timestamp says where Arrow has it from.
    return any(
        physical == one and (logical == beginning or (beginning in logical and logical.startswith(f"{beginning},")))
        for one, beginning in types
    )
