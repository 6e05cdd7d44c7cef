"""Which files of a Delta table a batch has, and whether their rows are those of plain Parquet files. Pure.

Spark's connector reads the log of the table, by the offsets of the batch, and makes a plan whose leaf has the files.
Nothing is decided anew here: the files are those of that plan. What would make rows of a file differ from what is in
it is refused: deletion vectors, mapped columns, widened types, a feature that is not known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote

from tidestate.operators.spark.scan.analysed import DeltaFiles
from tidestate.operators.spark.scan.decide import NeedsJvmError, PathColumn, PathValue
from tidestate.operators.spark.scan.folders import folder_value

FEATURES = frozenset(
    {"columnMapping", "deletionVectors", "timestampNtz", "vacuumProtocolCheck", "v2Checkpoint", "icebergCompatV1"}
)
"""What a table may ask of readers. Of mapped columns the mode is looked at, of deletion vectors each file."""
OF_A_FILE = frozenset(
    {"path", "partitionValues", "size", "modificationTime", "dataChange", "stats", "tags", "baseRowId"}
    | {"defaultRowCommitVersion", "clusteringProvider"}
)
"""What the log may say of a file that does not change its rows."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:")


def delta_files(
    files: DeltaFiles, partitions: Sequence[PathColumn]
) -> Iterator[tuple[str, int, tuple[PathValue, ...]]]:
    """The files of a batch: the path of each below the table's folder, its size, and the values of the partition
    columns. Raises `NeedsJvmError` where rows of a file may not be what is in it.
    """
    _check_plain(files)
    for entry in json.loads(files.added):
        if strange := sorted({name for name, value in entry.items() if value is not None} - OF_A_FILE):
            raise NeedsJvmError(f"a file of the table has {strange[0]}")
        path = entry["path"]
        if _SCHEME.match(path) or path.startswith("/") or ".." in unquote(path).split("/"):
            raise NeedsJvmError("a file of the table lies outside of its folder")
        try:
            values = tuple(_value(entry["partitionValues"], column) for column in partitions)
        except (KeyError, ValueError) as error:
            why = f"a file of the table has another partition column, or value, than expected: {error}"
            raise NeedsJvmError(why) from None
        yield unquote(path), int(entry["size"]), values


def _check_plain(files: DeltaFiles) -> None:
    """Raise `NeedsJvmError` where the table, not a file, says that rows may not be what is in its files."""
    protocol, metadata = json.loads(files.protocol)["protocol"], json.loads(files.metadata)["metaData"]
    if protocol["minReaderVersion"] > 3:
        raise NeedsJvmError(f"the table's reader version is {protocol['minReaderVersion']}")
    if unknown := sorted(set(protocol.get("readerFeatures") or ()) - FEATURES):
        raise NeedsJvmError(f"the table has {unknown[0]}")
    mode = (metadata.get("configuration") or {}).get("delta.columnMapping.mode", "none")
    if mode != "none":
        raise NeedsJvmError(f"the table's columns are mapped by {mode}")
    if metadata["format"]["provider"] != "parquet":
        raise NeedsJvmError(f"the table's files are {metadata['format']['provider']}")


def _value(values: dict[str, Any], column: PathColumn) -> PathValue:
    """Raises `ValueError` for what is not certain, as an empty text, which may be null."""
    text = values[column.name]
    if text is None:
        return None
    if column.type == "string":
        if not text:
            raise ValueError(text)
        return str(text)
    return folder_value(text, column.type)
