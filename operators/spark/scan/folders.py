"""The values of partition columns, which are in the path of each file: ``day=2024-01-05/hour=07/a.parquet``. Pure.

Spark infers them again for each batch, from the paths of its files and the types that the stream has. What is read
here is what each Spark reads in the same way. Anything else needs the JVM: other types, other names of columns,
folders between them, escapes that are no ASCII.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date

from tidestate.operators.spark.scan.decide import NeedsJvmError, PathColumn, PathValue

NULL = "__HIVE_DEFAULT_PARTITION__"
_PLAIN = re.compile(r"(?:[^%]|%[0-7][0-9A-Fa-f])+", re.DOTALL)
_ESCAPED = re.compile(r"%([0-7][0-9A-Fa-f])")
_WHOLE = re.compile(r"-?[0-9]{1,18}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_EPOCH = date(1970, 1, 1).toordinal()


def path_values(path: str, base: str, columns: Sequence[PathColumn]) -> tuple[PathValue, ...]:
    """The value of each partition column of a file, dates as days since 1970. ``base`` is the folder of the stream,
    in the same form as ``path``. Raises `NeedsJvmError` where they are not certain.
    """
    below = path.removeprefix(f"{base.rstrip('/')}/")
    *folders, _ = below.split("/")
    if below == path or len(folders) != len(columns):
        raise NeedsJvmError("a file is not directly in the folders of its partition columns")
    values = []
    for folder, column in zip(folders, columns, strict=True):
        name, found, text = folder.partition("=")
        if not found or name != column.name or "%" in name:
            raise NeedsJvmError(f"a folder is called {folder}, where the partition column {column.name} is expected")
        try:
            values.append(None if text == NULL else folder_value(text, column.type))
        except ValueError:
            why = f"a folder is called {folder}, which may not be a value of type {column.type}"
            raise NeedsJvmError(why) from None
    return tuple(values)


def folder_value(text: str, kind: str) -> PathValue:
    """The value of a partition column that a text stands for. Raises `ValueError` for what Spark might read in
    another way, or not at all.
    """
    if kind == "string" and _PLAIN.fullmatch(text):
        return _ESCAPED.sub(lambda escaped: chr(int(escaped[1], 16)), text)
    if kind == "date" and _DATE.fullmatch(text):
        return date.fromisoformat(text).toordinal() - _EPOCH
    if kind in ("int", "bigint") and _WHOLE.fullmatch(text):
        number = int(text)
        if kind == "bigint" or -(1 << 31) <= number < 1 << 31:
            return number
    raise ValueError(text)
