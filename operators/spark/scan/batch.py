"""For each batch of a query: whether its files can be read by the tasks, where they are, and which task reads what.

A file is a local path, or a version of one in remote storage, with the values of its partition columns.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import quote

from pyspark.sql import DataFrame, SparkSession

from tidestate.operators.spark.plans import analysed_plan
from tidestate.operators.spark.platform import SPARK_ERRORS, Platform
from tidestate.operators.spark.scan.analysed import DeltaFiles, ReaderSettings
from tidestate.operators.spark.scan.decide import (
    DELTA,
    Branch,
    Condition,
    DirectScan,
    NeedsJvmError,
    PathColumn,
    PathValue,
    decide,
)
from tidestate.operators.spark.scan.delta import delta_files
from tidestate.operators.spark.scan.folders import path_values
from tidestate.operators.spark.scan.reader import (
    DirectBatch,
    FileRange,
    divide,
    kept_rows,
    path_arrays,
)
from tidestate.recovery.log.manifest import Scan
from tidestate.recovery.log.manifest_file import REASON_CHARACTERS
from tidestate.recovery.log.spark_log import LEGAL, is_data_file, local_file
from tidestate.statestore.errors import IncompatibleError, TidestateError
from tidestate.statestore.storage.foreign import REQUESTS, ForeignFiles, bucket_and_key, foreign_files
from tidestate.statestore.storage.local import is_local
from tidestate.statestore.storage.options import of_roots


@dataclass(frozen=True)
class _ListedFile:
    """A file of a batch, as Spark has listed it."""

    bucket: str
    """The URL of its bucket; empty of a local file."""
    path: str
    """A local path, or the key in the bucket."""
    url: str = ""
    size: int | None = None
    """None where the list does not say it."""
    changed_s: int | None = None
    """When it was written, where the list says so of a file in remote storage."""
    values: tuple[PathValue, ...] | None = None
    """Of its partition columns, where the list has them; else they are in its path."""


class InputFiles:
    """The files of the batches of one query. ``root`` is that of the job, whose options are also those of the files
    in its bucket; ``stamp`` says of a URL when its file was modified, in milliseconds, and its size, as Spark has it.
    """

    def __init__(self, root: str, stamp: Callable[[str], tuple[int, int]]) -> None:
        self._roots, self._stamp = [] if is_local(root) else [root], stamp
        self._buckets: dict[str, str] = {}
        """By the URL of a bucket: the same with its options, once Spark was seen to read the same files there."""

    def of(self, scan: DirectScan, files: Mapping[str, Sequence[str]]) -> list[FileRange]:
        """Each file of a batch, whole, that may have rows. ``files`` has URLs, each with its time, by the number of
        the source. Raises `NeedsJvmError`.
        """
        return self._located(scan, lambda branch: map(_listed_file, files.get(str(branch.source), ())))

    def of_tables(self, scan: DirectScan, tables: Mapping[int, DeltaFiles]) -> list[FileRange]:
        """As `of`, of a batch that has files of these tables, by the number of the source."""
        return self._located(
            scan, lambda branch: _files_of_table(tables[branch.source], branch) if branch.source in tables else ()
        )

    def _located(self, scan: DirectScan, files: Callable[[Branch], Iterable[_ListedFile]]) -> list[FileRange]:
        try:
            found = [
                file
                for number, branch in enumerate(scan.branches)
                for file in self._of_branch(number, branch, list(files(branch)))
            ]
        except (OSError, ValueError, TidestateError) as error:
            raise NeedsJvmError(f"{type(error).__name__}: {error}") from None
        if not found:
            raise NeedsJvmError("no file of the batch has rows")
        return found

    def _of_branch(self, number: int, branch: Branch, files: Sequence[_ListedFile]) -> Iterator[FileRange]:
        known = []
        for file in files:
            values = _values(branch, file) if file.values is None else file.values
            if is_data_file(file.path.rpartition("/")[2]) and _may_have_rows(branch, values):
                known.append((file, values))
        remote = [(file, values) for file, values in known if file.bucket]
        readers = {file.bucket: self._files(file) for file, _ in reversed(remote)}
        for file, values in known:
            if not file.bucket:
                size = os.stat(file.path).st_size
                _check_seen(file, size)
                if size > 0:
                    yield FileRange(number, file.path, 0, size, size, values=values)
        if not remote:
            return
        with ThreadPoolExecutor(REQUESTS) as pool:
            looks = [pool.submit(readers[file.bucket][1].look, file.path) for file, _ in remote]
            for (file, values), look in zip(remote, looks, strict=True):
                seen = look.result()
                _check_seen(file, seen.size, seen.changed_s)
                if seen.size > 0:
                    root = readers[file.bucket][0]
                    yield FileRange(number, file.path, 0, seen.size, seen.size, root, seen.version, values)

    def _files(self, file: _ListedFile) -> tuple[str, ForeignFiles]:
        """The files of a bucket, whose root takes its options along, if they are those that Spark reads: that
        is compared once, by one of them.
        """
        bucket = file.bucket
        root = self._buckets.get(bucket) or of_roots(self._roots, bucket)
        files = foreign_files(root)
        if files is None:
            raise NeedsJvmError(f"tasks do not read files of {bucket.partition(':')[0]}://")
        if bucket not in self._buckets:
            seen = files.look(file.path)
            try:
                changed_ms, size = self._stamp(file.url)
            except SPARK_ERRORS as error:
                raise NeedsJvmError(f"Spark does not find {file.path}: {type(error).__name__}") from None
            if (seen.changed_s, seen.size) != (changed_ms // 1000, size):
                raise NeedsJvmError(f"the storage of {bucket} that Spark reads has another {file.path}")
            self._buckets[bucket] = root
        return root, files


def _listed_file(entry: str) -> _ListedFile:
    """A file as a source of files records it: its URL, and its time."""
    url, _, changed_ms = entry.rpartition(" ")
    local, place = local_file(url), bucket_and_key(url)
    if local is not None:
        return _ListedFile("", str(local), url)
    if place is None:
        raise NeedsJvmError(f"the files are at {url.partition(':')[0]}:")
    return _ListedFile(*place, url, changed_s=int(changed_ms) // 1000)


def _files_of_table(delta: DeltaFiles, branch: Branch) -> Iterator[_ListedFile]:
    """The files of a Delta table that a batch has. Raises `NeedsJvmError` where they are not plain ones."""
    local = delta.folder.removeprefix("file:") if delta.folder.startswith(("file:", "/")) else None
    place = bucket_and_key(_escaped(delta.folder))
    for path, size, values in delta_files(delta, branch.partitions):
        if local is not None:
            yield _ListedFile("", f"{local}/{path}", size=size, values=values)
        elif place is not None:
            bucket, folder = place
            url = quote(f"{delta.folder}/{path}", safe=LEGAL)
            yield _ListedFile(bucket, f"{folder}/{path}", url, size=size, values=values)
        else:
            raise NeedsJvmError(f"the table is at {delta.folder.partition(':')[0]}:")


def _check_seen(file: _ListedFile, size: int, changed_s: int | None = None) -> None:
    """Raise `NeedsJvmError` if a file is not what it was when Spark listed it, as far as that is known."""
    if file.size not in (None, size):
        raise NeedsJvmError(f"a file has changed: expected {file.size} bytes, found {size}")
    if None not in (file.changed_s, changed_s) and file.changed_s != changed_s:
        raise NeedsJvmError(f"a file was written after Spark has listed it: {file.path}")


def _values(branch: Branch, file: _ListedFile) -> tuple[PathValue, ...]:
    """The values of the partition columns. Raises `NeedsJvmError` where they are not certain."""
    if file.bucket:
        path, base = f"{file.bucket}/{file.path}", _spelled(branch.folder)
    else:
        path, base = file.path, os.path.abspath(branch.folder.removeprefix("file:"))
    if not branch.partitions:
        # Where the stream has no such column, Spark may take these names for values all the same.
        if any("=" in part for part in path.split("/")[:-1]):
            raise NeedsJvmError("the files lie in folders with = in the name, which may be partitions")
        return ()
    return path_values(path, base, branch.partitions)


def _may_have_rows(branch: Branch, values: Sequence[PathValue]) -> bool:
    """Whether no filter on the partition columns alone leaves out a whole file, as Spark would."""
    arrays = path_arrays(branch, values, 1)
    return all(
        kept_rows((condition,), arrays)[0].as_py() for condition in branch.filters if _is_about_folders(condition)
    )


def _is_about_folders(condition: Condition) -> bool:
    return all(isinstance(column, PathColumn) for column in condition.columns)


def _spelled(url: str) -> str:
    """The URL of a folder as those of its files are spelled."""
    place = bucket_and_key(_escaped(url))
    return "/".join(place) if place is not None else url


def _escaped(path: str) -> str:
    """A path of Hadoop's as a URL, of which what is escaped is undone once."""
    return path.replace("%", "%25")


log = logging.getLogger("tidestate")

SWITCHED_OFF = "paths without direct_scan"
NO_PLAN = "a client of Spark Connect has no plan of the stream"
IN_ORDER = "rows are processed in the order of columns"
ROW_GROUP_SHARE = 2
"""The columns of a row group may have half the memory budget."""
LONGEST_PAUSE = 64
"""The most batches that go without a try."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")


class Pause:
    """After a try in vain one batch goes without one, then two, four and so on."""

    def __init__(self) -> None:
        self._length = self._left = 0

    def skips(self) -> bool:
        """Whether the next batch goes without a try, which counts it."""
        skipped = self._left > 0
        self._left -= skipped
        return skipped

    def lengthen(self) -> None:
        """A try was in vain."""
        self._length = min(2 * self._length or 1, LONGEST_PAUSE)
        self._left = self._length

    def end(self) -> None:
        """A try has worked: the next pause is short again."""
        self._length = 0


@dataclass
class SparkRows:
    """The rows of a batch, and how tasks can read its files themselves, if they can. Where the files say otherwise,
    ``needs_jvm`` has the reason afterwards; ``in_driver``: whether the driver has processed them. ``patterns``: files
    with names because of which Spark would read others twice.
    """

    frame: DataFrame
    direct: DirectBatch | None = None
    needs_jvm: str | None = None
    in_driver: bool = False
    patterns: Sequence[str] = ()
    partials: int | None = None
    """How many partials Spark SQL has made of the rows; None: the rows were handed over."""
    no_partials: str = ""
    """Why they were handed over."""

    def checked(self) -> DataFrame:
        """The rows as Spark reads them. Raises `IncompatibleError` (``spark-file-pattern``) if some are twice."""
        if self.patterns:
            raise IncompatibleError(
                "Spark takes the name of this file for a pattern, and reads the other files of the batch twice: "
                "nothing was processed; rename it, and start again",
                code="spark-file-pattern",
                files=list(self.patterns[:10]),
            )
        return self.frame


class BatchScans:
    """Decides for the batches of one query; ``refusal``: why none of them can be scanned, if that is known. ``root``
    is that of the job.

    After a batch whose files needed the JVM there is a `Pause`: a try costs a small Spark job.
    """

    def __init__(
        self, stream: DataFrame, platform: Platform, root: str, budget_bytes: int, refusal: str | None = None
    ) -> None:
        self._plan = analysed_plan(stream, columns=True) if refusal is None else None
        self._scan: DirectScan | None = None
        self._refusal = refusal
        """Why no batch can be scanned; the first one tells, with the settings of its session."""
        self._row_group_bytes = budget_bytes // ROW_GROUP_SHARE
        self._files, self._platform = InputFiles(root, platform.file_stamp), platform
        self._settings = ReaderSettings()
        relations = [step.relation for step in self._plan.steps()] if self._plan is not None else []
        self._has_tables = any(relation is not None and relation.format == DELTA for relation in relations)
        self._pause = Pause()
        self._reason, self._logged = "", set[str]()

    def of(self, session: SparkSession, files: Mapping[str, Sequence[str]]) -> DirectBatch | None:
        """How the tasks read a batch with these files, each with its time, by the number of the source; None if Spark
        must read it. ``session`` is that of the batch.
        """
        try:
            scan = self._of_stream(session)
            if self._pause.skips():
                return None
            scan, ranges = self._of_tables(session) if self._has_tables else (scan, self._files.of(scan, files))
        except NeedsJvmError as why:
            self._reason = str(why)
            return None
        self._reason = ""
        return DirectBatch(scan, divide(ranges), self._row_group_bytes)

    def _of_stream(self, session: SparkSession) -> DirectScan:
        if self._scan is None and self._refusal is None and self._plan is not None:
            from tidestate.operators.spark.scan.extract import reader_settings  # py4j, which no client of Connect has

            self._settings = reader_settings(session)
            try:
                self._scan = decide(self._plan, self._settings)
            except NeedsJvmError as why:
                self._refusal = str(why)
        if self._scan is None:
            raise NeedsJvmError(self._refusal)
        return self._scan

    def _of_tables(self, session: SparkSession) -> tuple[DirectScan, list[FileRange]]:
        """A batch of a stream of tables: which files it has only the plan says by which Spark would read it."""
        from tidestate.operators.spark.scan.extract import plan_of_batch

        try:
            plan = plan_of_batch(self._platform.session, session)
        except SPARK_ERRORS as error:
            why = f"the plan of the batch is not known: {str(error).partition(chr(10))[0]}"
            raise NeedsJvmError(why) from None
        scan, tables = decide(plan, self._settings), dict[int, DeltaFiles]()
        for relation in (step.relation for step in plan.steps() if step.relation is not None):
            if relation.delta is None:
                raise NeedsJvmError("the stream has a table and files")
            tables[relation.source] = relation.delta
        return scan, self._files.of_tables(scan, tables)

    def outcome(self, rows: SparkRows) -> Scan:
        """How a batch was read, and, if Spark has read it, whether Spark SQL has made partials of its rows. A new
        reason why tasks could not read its files is logged.
        """
        if rows.needs_jvm is not None:
            self._pause.lengthen()
            self._reason = rows.needs_jvm
        elif not self._reason:
            self._pause.end()
            return Scan(direct=True, in_driver=rows.in_driver)
        reason = _printable(self._reason)
        if reason not in self._logged:
            self._logged.add(reason)
            log.info("spark reads the input, as the tasks cannot: %s", reason)
        no_partials = _printable(rows.no_partials)
        return Scan(False, reason, in_driver=rows.in_driver, partials=rows.partials, no_partials=no_partials)


def _printable(reason: str) -> str:
    """A reason as a manifest takes it."""
    return _CONTROL.sub(" ", reason)[:REASON_CHARACTERS]
