"""A folder of Parquet files as input of a standalone run, which reads the files that Spark's source of files would.

Which files a folder has, and in which order they come, follows ``FileStreamSource`` and ``InMemoryFileIndex`` of
Spark. A file is known by its path alone: one that is written again is not read again.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from tidestate.operators.describe.runs import Batch, Schemas, SparkInput, SparkOffsets
from tidestate.operators.local.history_files import schema_of
from tidestate.operators.local.parquet_columns import columns_of_file, rows_of_file
from tidestate.recovery.log.spark_log import NOTHING_READ, file_url, is_data_file, local_file, log_offset, path_of
from tidestate.statestore.arguments import checked
from tidestate.statestore.durations import Span, span_us
from tidestate.statestore.errors import UsageError

MAX_FILE_AGE = "7 days"
"""The ``maxFileAge`` of Spark's source, by default."""
FileColumns = str | pa.Schema
"""The columns of a stream: a schema, or a text as for ``schema`` of Spark's reader."""
_PATTERN = frozenset("*?[]{}\\")
"""Characters of Hadoop's patterns: Spark would take such a path for one."""


class ParquetFolder(SparkInput):
    """The Parquet files of a folder, as ``spark.readStream.parquet(folder)`` reads them: in the order of their
    modification times, each once, whoever read it. So a job goes on standalone where Spark has stopped, and back.

    ``folder``: a local folder, or one by the name of each stream. ``files_per_batch``: at most so many files of each
    folder in a batch, as Spark's ``maxFilesPerTrigger``; without it all files that are there are one batch.
    ``schema``: the columns, a ``pyarrow.Schema`` or a text such as ``"t timestamp, k string"``, by stream if there
    are several; by default those of the oldest file. Names may differ in case from those of a file, as in Spark, and
    types may not. Columns that a file lacks are null. ``max_file_age``: files that are older than the newest one that
    was read by more than this are left out, as by Spark's ``maxFileAge``.

    A run reads what is there when it starts, and ends. Files in folders below are not read, as Spark does not read
    them either. Raises `UsageError` (``parquet-folder``) for a folder that Spark would read in another way: one with
    partitions (``day=1/``), with a log of Spark's sink of files, or whose path is a pattern; and for a file that is
    gone or damaged, has a column of another type, or two whose names differ in case alone: nothing of its batch is
    taken.
    """

    @checked
    def __init__(
        self,
        folder: str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]],
        *,
        files_per_batch: int | None = None,
        schema: FileColumns | Mapping[str, FileColumns] | None = None,
        max_file_age: Span = MAX_FILE_AGE,
    ) -> None:
        is_mapping = isinstance(folder, Mapping)
        folders = dict(folder) if isinstance(folder, Mapping) else {"": folder}
        columns = dict(schema) if isinstance(schema, Mapping) else dict.fromkeys(folders, schema)
        if not folders or columns.keys() != folders.keys() or (is_mapping and isinstance(schema, str | pa.Schema)):
            raise UsageError(
                "give a folder for each stream by its name, and a schema for all of them or for none",
                code="streams",
                streams=sorted(folders),
                found=sorted(columns),
            )
        if files_per_batch is not None and files_per_batch < 1:
            raise UsageError(
                "a batch has at least one file: give files_per_batch a number from 1 on, or leave it out",
                code="argument",
                found=files_per_batch,
            )
        self._is_named, self._files_per_batch = is_mapping, files_per_batch
        self._max_age_ms = span_us(max_file_age) // 1000
        self._folders = {name: _Folder(_plain_path(path), columns[name]) for name, path in folders.items()}

    @property
    def schema(self) -> Schemas:
        schemas = {name: folder.schema for name, folder in self._folders.items()}
        return schemas if self._is_named else schemas[""]

    @property
    def sources(self) -> int:
        return len(self._folders)

    def numbered(self, streams: Sequence[str]) -> ParquetFolder:
        if not self._is_named or set(streams) != set(self._folders):
            return self  # a run says which streams it lacks
        clone = copy(self)
        clone._folders = {name: self._folders[name] for name in streams}
        return clone

    def read_again(self, start: SparkOffsets | None, end: SparkOffsets) -> Batch:
        """The rows of the files of ``end``, in the order in which `seek` has them."""
        rows = {
            name: folder.recorded_rows(end.files.get(number, ()))
            for number, (name, folder) in enumerate(self._folders.items())
        }
        return rows if self._is_named else rows[""]

    def seek(self, position: SparkOffsets | None) -> Iterator[tuple[SparkOffsets, Batch]]:
        """The batches after ``position``: the files that are there now and not among those of the position."""
        ends = list(position.ends) if position is not None else [NOTHING_READ] * self.sources
        read = position.files if position is not None else {}
        unread = [
            folder.unread(read.get(number, ()), self._max_age_ms)
            for number, folder in enumerate(self._folders.values())
        ]
        while any(unread):
            batch_files = [files[: self._files_per_batch] for files in unread]
            unread = [files[len(part) :] for files, part in zip(unread, batch_files, strict=True)]
            for number, files in enumerate(batch_files):
                last = log_offset(ends[number])
                ends[number] = _entry(0 if last is None else last + 1) if files else ends[number]
            rows = {
                name: folder.rows(files)
                for (name, folder), files in zip(self._folders.items(), batch_files, strict=True)
            }
            files_by_source = {n: tuple(file.recorded for file in files) for n, files in enumerate(batch_files)}
            yield SparkOffsets(tuple(ends), files_by_source), rows if self._is_named else rows[""]


def _entry(number: int) -> str:
    """Spark's offset of a source of files whose log ends with this entry."""
    return f'{{"logOffset":{number}}}'


class _File(NamedTuple):
    """A file that Spark lists: time in milliseconds, URL, size in bytes."""

    time_ms: int
    url: str
    path: Path
    size: int

    @property
    def recorded(self) -> str:
        """The file as Spark's source records it."""
        return f"{self.url} {self.time_ms}"

    @property
    def has_rows(self) -> bool:
        """Whether Spark reads rows of it: it lists empty files and summaries of Parquet too."""
        return self.size > 0 and is_data_file(self.path.name)


class _Folder:
    """The folder of one stream."""

    def __init__(self, path: Path, columns: FileColumns | None) -> None:
        self._path = path
        self._schema = _schema_of_text(columns) if isinstance(columns, str) else columns

    @property
    def schema(self) -> pa.Schema:
        """The columns that were given, or those of the oldest file."""
        if self._schema is None:
            first = next((file for file in self._listed() if file.has_rows), None)
            if first is None:
                raise UsageError(
                    "the columns are not known, as the folder has no file yet: give "
                    'ParquetFolder(…, schema="t timestamp, k string")',
                    code="parquet-folder",
                    folder=str(self._path),
                )
            self._schema = columns_of_file(first.path)
        return self._schema

    def unread(self, read: Collection[str], max_age_ms: int) -> list[_File]:
        """The files that are not among those which were ``read``, oldest first."""
        urls = {path_of(file) for file in read}
        newest_ms = max((int(file.rpartition(" ")[2]) for file in read), default=None)
        oldest_ms = None if newest_ms is None else newest_ms - max_age_ms
        new = [file for file in self._listed() if file.url not in urls]
        new = new if oldest_ms is None else [file for file in new if file.time_ms >= oldest_ms]
        for file in new:
            if ":" in file.path.name and file.has_rows:
                raise UsageError(
                    "Spark cannot read a file with a colon in its name: rename it; nothing was taken",
                    code="parquet-folder",
                    file=str(file.path),
                )
        return new

    def recorded_rows(self, records: Iterable[str]) -> pa.Table:
        """The rows of files as Spark records them. Raises `OSError` for one that is gone or has another time."""
        files = []
        for file in records:
            path = local_file(path_of(file))
            if path is None:
                raise FileNotFoundError(f"this is no local file: {file}")
            files.append(_file_of(path))
            if files[-1].recorded != file:
                raise FileNotFoundError(f"this file has changed since it was read: {file}")
        return self.rows(sorted(files))

    def rows(self, files: Iterable[_File]) -> pa.Table:
        """The rows of these files."""
        schema = self.schema
        return pa.concat_tables(
            [schema.empty_table(), *(rows_of_file(file.path, schema) for file in files if file.has_rows)]
        )

    def _listed(self) -> list[_File]:
        try:
            with os.scandir(self._path) as entries:
                folder_entries = [(entry, entry.is_dir()) for entry in entries]
        except OSError as error:
            raise UsageError(
                f"the folder of the input cannot be read: {error.strerror}",
                code="parquet-folder",
                folder=str(self._path),
            ) from None
        for name in (entry.name for entry, is_folder in folder_entries if is_folder):
            if name == "_spark_metadata" or ("=" in name and not name.startswith(".")):
                raise UsageError(
                    "Spark reads this folder by its partitions, or by the log of the query that wrote it, and "
                    "ParquetFolder does not: give a folder of plain files",
                    code="parquet-folder",
                    folder=str(self._path),
                    found=name,
                )
        files = []
        for entry, is_folder in folder_entries:
            if not is_folder and not _is_hidden(entry.name):
                with suppress(FileNotFoundError):  # removed meanwhile
                    files.append(_file_of(self._path / entry.name))
        return sorted(files)


def _file_of(path: Path) -> _File:
    status = path.stat()
    return _File(status.st_mtime_ns // 1_000_000, file_url(path), path, status.st_size)


def _schema_of_text(text: str) -> pa.Schema:
    try:
        return schema_of(text)
    except UsageError as error:
        raise UsageError(
            "ParquetFolder(…, schema=…) takes columns of plain types as a text, NAME TYPE, NAME TYPE, such as "
            "t timestamp, k string, p decimal(10,2); give those with arrays, maps or structs as a pyarrow.Schema",
            code="parquet-folder-schema",
            **error.context,
        ) from None


def _plain_path(path: str | os.PathLike[str]) -> Path:
    if _PATTERN & set(os.fspath(path)) or "://" in os.fspath(path):
        raise UsageError(
            "a folder is a local path without patterns, as Spark would find other files by them",
            code="parquet-folder",
            folder=os.fspath(path),
        )
    return Path(os.path.abspath(os.path.expanduser(path)))


def _is_hidden(name: str) -> bool:
    """Whether Spark leaves out a file, as ``shouldFilterOutPathName`` of its ``HadoopFSUtils`` says."""
    left_out = (name.startswith("_") and "=" not in name) or name.startswith(".") or name.endswith("._COPYING_")
    return left_out and not name.startswith(("_common_metadata", "_metadata"))
