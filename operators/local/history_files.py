"""Files with the history of a stream, read in this process as Spark would read them."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset as ds

from tidestate.operators.expressions.sql_types import SPARK_TYPES
from tidestate.recovery.log.spark_log import file_url
from tidestate.statestore.errors import ConflictError, UsageError
from tidestate.statestore.spec.plain import plain_type
from tidestate.statestore.spec.tables import TIME

FORMATS = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".arrow": "ipc",
    ".feather": "ipc",
}
"""The format of a file by the suffix of its name."""
TYPES = SPARK_TYPES | {"byte": pa.int8(), "short": pa.int16(), "integer": pa.int32(), "long": pa.int64()}
"""Spark's plain types by all their names."""
_COLUMN = re.compile(r"\s*`?(\w+)`?\s+(\w+)\s*(?:\(\s*(\d+)\s*,\s*(\d+)\s*\))?\s*(?:,|$)")

_Column = TypeVar("_Column", pa.Array, pa.ChunkedArray)
_ZONE = re.compile(r"(Z|[+-]\d\d:?\d\d)$")


@dataclass(frozen=True)
class HistoryFiles:
    """The files of one stream; modification time (ms) and size of each when it was found; Spark's schema."""

    files: tuple[Path, ...]
    stamps: tuple[tuple[int, int], ...]
    schema: pa.Schema

    @classmethod
    def find(cls, names: Sequence[str], schema: pa.Schema | None = None) -> HistoryFiles:
        """Find the files: each name is a file, a folder with everything below it, or a pattern with ``*``.

        ``schema``: the columns and types; by default those of the first file. Raises `UsageError` if there are no
        files, or their formats are different or unknown.
        """
        files = tuple(dict.fromkeys(path.absolute() for name in names for path in _meant(name)))
        if not files:
            raise UsageError("these files do not exist", code="bootstrap-input", found=list(names))
        stamps = tuple(_stamp(path) for path in files)
        try:
            columns = schema or pa.schema(
                [field.with_type(spark_type(field.type)) for field in _dataset(files, None).schema]
            )
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(error) from None
        return cls(files, stamps, columns)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """All rows in batches, only these ``columns``. Raises `UsageError` if a file cannot be read."""
        schema = pa.schema([self.schema.field(name) for name in columns])
        try:
            for batch in _dataset(self.files, self.schema).to_batches(columns=list(columns), batch_size=1 << 18):
                cast = [cast_as_spark(batch[field.name], field.type) for field in schema]
                # A table made of no columns has no rows; that of the batch has.
                yield pa.table(cast, schema=schema) if cast else pa.Table.from_batches([batch])
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(error) from None

    def read(self) -> tuple[str, ...]:
        """The files as Spark's source of files records them."""
        return tuple(
            f"{file_url(path)} {time_ms}" for path, (time_ms, _) in zip(self.files, self.stamps, strict=True)
        )

    def check_unchanged(self) -> None:
        """Raise `ConflictError` if a file has changed since it was found."""
        pairs = zip(self.files, self.stamps, strict=True)
        if changed_files := [path for path, stamp in pairs if not path.exists() or _stamp(path) != stamp]:
            raise ConflictError(
                "files of the history changed while they were read: bootstrap again, from files that do not change",
                code="bootstrap-files-changed",
                files=len(changed_files),
                first=str(changed_files[0]),
            )


def schema_of(text: str) -> pa.Schema:
    """The schema of a text like Spark's ``schema("t timestamp, k string")``. Raises `UsageError`."""
    fields, tail = [], text
    while tail.strip():
        match = _COLUMN.match(tail)
        kind = None if match is None else TYPES.get(match[2].lower())
        if match is not None and match[2].lower() == "decimal" and match[3]:
            kind = pa.decimal128(int(match[3]), int(match[4]))
        if match is None or kind is None:
            raise UsageError(
                "columns must be given as NAME TYPE, NAME TYPE, such as t timestamp, k string, v bigint, p "
                "decimal(10,2)",
                code="bootstrap-schema",
                found=tail.strip(),
            )
        fields.append(pa.field(match[1], kind))
        tail = tail[match.end() :]
    return pa.schema(fields)


def _meant(name: str) -> list[Path]:
    path = Path(name).expanduser()
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.is_file() and not _hidden(file.relative_to(path)))
    return [path] if path.is_file() else sorted(Path(match) for match in glob.glob(str(path), recursive=True))


def _hidden(path: Path) -> bool:
    """Whether Spark ignores the file."""
    return any(part.startswith(("_", ".")) for part in path.parts)


def _dataset(files: Sequence[Path], schema: pa.Schema | None) -> ds.Dataset:
    formats = {FORMATS.get(path.suffix.lower()) for path in files}
    (form,) = formats if len(formats) == 1 else (None,)
    if form is None:
        raise UsageError(
            "the files of a stream must all be Parquet, CSV, JSON or Arrow, with the suffix of that format",
            code="bootstrap-input",
            found=sorted({path.suffix for path in files}),
        )
    paths = [str(path) for path in files]
    if form not in ("csv", "json"):
        return ds.dataset(paths, format=form)
    # They have no types, so they are read with the types of the schema, times as text. As in Spark only an empty
    # field is null.
    options = pa.csv.ConvertOptions(null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False)
    texts = schema and pa.schema([f.with_type(pa.string()) if pa.types.is_timestamp(f.type) else f for f in schema])
    return ds.dataset(
        paths, format=ds.CsvFileFormat(convert_options=options) if form == "csv" else form, schema=texts
    )


def spark_type(kind: pa.DataType) -> pa.DataType:
    """The type that Spark reads a type as."""
    if pa.types.is_timestamp(kind):
        return TIME if kind.tz else pa.timestamp("us")
    return {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}.get(kind, plain_type(kind))


def cast_as_spark(column: _Column, kind: pa.DataType) -> _Column:
    """A column of a file in the type that a stream has, as Spark reads it."""
    if pa.types.is_timestamp(column.type) and pa.types.is_timestamp(kind):
        # Finer times are truncated as in Spark; those without a zone are in UTC.
        return column.cast(pa.timestamp("us", tz=column.type.tz), safe=column.type.unit != "ns").cast(kind)
    if pa.types.is_string(column.type) and pa.types.is_timestamp(kind):
        has_zone = any(_ZONE.search(text) for text in column.drop_null().slice(0, 1).to_pylist())
        return column.cast(TIME if has_zone else pa.timestamp("us")).cast(kind)
    return column.cast(kind)


def _stamp(path: Path) -> tuple[int, int]:
    """Modification time in milliseconds, and size."""
    status = path.stat()
    return status.st_mtime_ns // 1_000_000, status.st_size


def _unreadable(error: Exception) -> UsageError:
    return UsageError(
        f"the files cannot be read: {str(error).splitlines()[0]}; for CSV and JSON give schema=",
        code="bootstrap-input",
    )
