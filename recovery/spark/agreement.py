"""Whether Spark's own checkpoint agrees with ours, in everything that Spark reads when it starts.

Ours decides: the offsets of the newest batch, and a digest of all files read by then. Spark may be one batch ahead,
planned but not committed. Nothing of ours depends on that batch, but if its files are intact they are kept, so that
the batch has the rows and the processing time with which it was planned.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tidestate.recovery.log.manifest import ReadFiles, SparkPosition
from tidestate.recovery.log.spark_log import (
    NOTHING,
    NOTHING_READ,
    SPARK_FOLDER,
    Entries,
    KnownFiles,
    SparkLog,
    log_offset,
    path_of,
    read_as_patterns,
    read_of,
)
from tidestate.statestore.errors import CorruptionError, IncompatibleError, NotFoundError

_T = TypeVar("_T")


@dataclass(frozen=True)
class Difference:
    """A file of Spark's checkpoint that differs from ours, and how."""

    path: str
    why: str

    def __str__(self) -> str:
        return f"{self.path}: {self.why}"


@dataclass(frozen=True)
class Agreement:
    """The result of a comparison. ``refusal``: the two belong to different runs, and a person must decide. ``read``:
    all files read up to our newest batch, by source and entry; None if Spark's list of them differs.
    """

    differs: tuple[Difference, ...] = ()
    refusal: IncompatibleError | None = None
    read: dict[int, Entries] | None = None

    def check(self) -> None:
        """Raise `IncompatibleError` unless Spark's checkpoint may be used as it is."""
        if self.refusal is not None:
            raise self.refusal
        if self.differs:
            raise IncompatibleError(
                "spark's checkpoint does not match ours (was its end lost in a power cut, or has a standalone run "
                "gone on since?): nothing was processed; run tidestate repair ROOT --resync-spark, or start with "
                'Policy(spark="rewrite")',
                code="spark-log-differs",
                differs=[str(one) for one in self.differs[:10]],
            )


def compare(
    head: SparkPosition | None, log: SparkLog, interval: int | None = None, sources: int | None = None
) -> Agreement:
    """Compare Spark's checkpoint with our newest batch, whose list of files must be loaded; nothing is written.

    Cost: as Spark's own start, the list of files is read once. ``interval`` is the number of entries after which
    Spark folds that list, and ``sources`` the number of them that the query will read, if known.
    """
    found = _Differences()
    try:
        if (refusal := _of_another_run(head, log, found)) is not None:
            return Agreement(refusal=refusal)
        upcoming = _offsets(head, log, found, sources)
    except IncompatibleError as error:  # an unknown version of Spark's log
        return Agreement(refusal=error)
    read: dict[int, Entries] | None = {}
    for source in _sources(head, log):
        files = _Source(head, source, upcoming[source] if source < len(upcoming) else None)
        if files.is_of_files or (files.is_unread and log.is_of_files(source)):
            entries = files.compare(log, interval, found)
            read = read | {source: entries} if read is not None and entries is not None else None
        else:
            for path in log.own_files(source):
                found.tried(path, lambda path=path: log.check_own(path))  # type: ignore[misc]
    return Agreement(tuple(found.all), read=read)


class _Differences:
    """Collects differences."""

    def __init__(self) -> None:
        self.all: list[Difference] = []

    def add(self, path: str, why: str) -> None:
        self.all.append(Difference(path, why))

    def tried(self, path: str, read: Callable[[], _T]) -> _T | None:
        """The result of ``read``; None, and a difference, if the file cannot be read."""
        try:
            return read()
        except NotFoundError:
            self.add(path, "it is gone")
        except CorruptionError as error:
            self.add(str(error.context.get("path", path)), str(error.context.get("why", error.message)))
        return None


def _of_another_run(head: SparkPosition | None, log: SparkLog, found: _Differences) -> IncompatibleError | None:
    """The error if Spark's checkpoint cannot belong to ours, whatever was lost of either."""
    query_id = found.tried(f"{SPARK_FOLDER}/metadata", log.query_id)
    planned, committed = log.newest("offsets"), log.newest("commits")
    for folder in ("offsets", "commits"):
        found.tried(f"{SPARK_FOLDER}/{folder}", lambda folder=folder: log.check_names(folder))  # type: ignore[misc]
    ours = -1 if head is None else head.batch_id
    if head is not None and query_id is None and not found.all:
        found.add(f"{SPARK_FOLDER}/metadata", "it is gone")
    if head is not None and query_id not in (None, head.query_id):
        return IncompatibleError(
            "the spark folder belongs to another query: restore the right one, or run tidestate repair ROOT "
            "--resync-spark",
            code="spark-query-changed",
            expected=head.query_id,
            found=query_id,
        )
    if (planned is not None and planned > ours + 1) or (committed is not None and committed > ours):
        return IncompatibleError(
            "spark has committed batches that this root lacks (were manifests deleted?): restore the manifests, "
            "or run tidestate repair ROOT --resync-spark, and spark reads that input again"
            if head is not None
            else "spark has committed batches that this root lacks (were manifests deleted?): "
            "restore the manifests, or remove the spark folder to read the input from its beginning",
            code="spark-ahead",
            ours="none" if head is None else head.batch_id,
            spark_offsets=planned,
            spark_commits=committed,
        )
    return None


def _offsets(head: SparkPosition | None, log: SparkLog, found: _Differences, sources: int | None) -> tuple[str, ...]:
    """Compare the offsets and commits that Spark reads; returns the ends of the batch planned next, if any."""
    ours = -1 if head is None else head.batch_id
    if head is not None:
        for batch_id, end in head.ends.items():
            path = f"{SPARK_FOLDER}/offsets/{batch_id}"
            offsets = found.tried(path, lambda batch_id=batch_id: log.offsets(batch_id))  # type: ignore[misc]
            if offsets is not None and offsets != end:
                found.add(path, "its offsets are not those of the batch")
    elif log.has_torn_plan():
        found.add(f"{SPARK_FOLDER}/offsets", "spark died while it planned its first batch")
    committed = log.newest("commits")
    if committed is not None:
        found.tried(f"{SPARK_FOLDER}/commits/{committed}", lambda: log.check_commit(committed))
    if log.newest("offsets") != ours + 1:
        return ()
    path = f"{SPARK_FOLDER}/offsets/{ours + 1}"
    upcoming = found.tried(path, lambda: log.offsets(ours + 1))
    if upcoming is None:
        return ()
    before = head.end if head is not None else (NOTHING_READ,) * len(upcoming)
    if len(upcoming) != len(before) or not all(map(may_follow, before, upcoming)):
        found.add(path, "it is truncated or garbled")
    elif head is None and sources is not None and len(upcoming) != sources:
        found.add(path, f"it has offsets of {len(upcoming)} sources, and the job reads {sources}")
    return upcoming


def may_follow(before: str, after: str) -> bool:
    """Whether a source that was read up to ``before`` can have planned up to ``after``."""
    if after == NOTHING_READ:
        return before == NOTHING_READ
    last, upcoming = log_offset(before), log_offset(after)
    if last is not None:
        return upcoming is not None and upcoming >= last
    was, now = _plain(before), _plain(after)
    if isinstance(was, int) and isinstance(now, int):
        return now >= was
    return now is not None or (was is None and before != NOTHING_READ)


def _plain(text: str) -> object:
    """The value of an offset; None if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _sources(head: SparkPosition | None, log: SparkLog) -> list[int]:
    """Sources that have written something, and sources that must have."""
    ends = enumerate(head.end if head is not None else ())
    return sorted(log.sources() | {source for source, text in ends if log_offset(text) is not None})


class _Source:
    """A source as of our newest batch, and what Spark has planned for it next."""

    def __init__(self, head: SparkPosition | None, number: int, upcoming: str | None) -> None:
        ends = head.end if head is not None else ()
        starts = head.start if head is not None else ()
        end = ends[number] if number < len(ends) else NOTHING_READ
        self.number = number
        self.is_unread = end == NOTHING_READ
        self.last = -1 if (last := log_offset(end)) is None else last
        self.upcoming = log_offset(upcoming) if upcoming is not None else None
        self.is_of_files = last is not None or (self.is_unread and self.upcoming is not None)
        before = log_offset(starts[number]) if number < len(starts) else None
        self.before = -1 if before is None else before
        self.files = head.files.get(str(number), ()) if head is not None else ()
        self.read: ReadFiles = head.read.get(str(number), NOTHING) if head is not None else NOTHING

    def compare(self, log: SparkLog, interval: int | None, found: _Differences) -> Entries | None:
        """All files read up to our newest batch; None if Spark's list differs."""
        folder = f"{SPARK_FOLDER}/sources/{self.number}"
        entries = found.tried(folder, lambda: log.entries(self.number, interval))
        if entries is None:
            return None
        read = {number: files for number, files in entries.items() if number <= self.last}
        newest, listed = max(entries, default=-1), read_of(read)
        if newest < self.last:
            found.add(folder, f"its entries end at {newest}, but the newest batch needs {self.last}")
            return None
        if listed != self.read:
            found.add(folder, f"it lists {listed.files:,} files as read, but batches have read {self.read.files:,}")
            return None
        batch = [one for number in range(self.before + 1, self.last + 1) for one in read.get(number, ())]
        if sorted(set(batch)) != sorted(set(self.files)):
            found.add(folder, "its files are not those of the newest batch")
            return None
        if self.upcoming is not None and self.upcoming > newest:
            found.add(folder, f"its entries end at {newest}, but the planned batch needs {self.upcoming}")
        self._check_later([files for number, files in entries.items() if number > self.last], read, found)
        return read

    def _check_later(self, later: list[tuple[str, ...]], read: Entries, found: _Differences) -> None:
        """Check the entries of batches to come."""
        folder, new = f"{SPARK_FOLDER}/sources/{self.number}", [one for files in later for one in files]
        known = KnownFiles(one for files in read.values() for one in files) if new else ()
        if not all(later):
            found.add(folder, "an entry of a planned batch lists no files")
        if len(set(map(path_of, new))) < len(new) or any(one in known for one in new):
            found.add(folder, "a file that has been read already is listed again")
        if read_as_patterns({"": new}):  # planned anew, for the file may have another name by now
            found.add(folder, "a planned batch has several files, and Spark takes the path of one for a pattern")
