"""Reading Spark's own checkpoint of the query: what Spark has planned, and whether it agrees with ours.

Spark never fsyncs these files. After a power cut it can plan the same batch id with the same offset text and
more rows, so for a file source the list of files is part of a batch's identity.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass

import msgspec

from recovery.manifest import SparkPosition
from statestore.checksums import checksum
from statestore.errors import CorruptionError, IncompatibleError, NotFoundError
from statestore.files.segments import FileRef, damaged, read_verified
from statestore.objects import Objects

FOLDER = "spark"
_UNREADABLE = (ValueError, KeyError, TypeError, RecursionError)
"""What reading JSON raises that says something else than it should."""


@dataclass(frozen=True)
class Planned:
    """One planned Spark batch: its position and the processing time Spark gave it (milliseconds)."""

    position: SparkPosition
    timestamp_ms: int


class SparkLog:
    """The log under ``<root>/spark``. Reads only."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects

    def has_marker(self) -> bool:
        """Whether the root around this log is a checkpoint of ours already."""
        return self.objects.exists("tidemark.json")

    def query_id(self) -> str | None:
        """Spark's id of the query, None while Spark has no checkpoint."""
        try:
            data = self.objects.read(f"{FOLDER}/metadata")
        except NotFoundError:
            return None
        try:
            return str(json.loads(data)["id"])
        except _UNREADABLE:
            raise _damaged(f"{FOLDER}/metadata") from None

    def newest(self, log: str) -> int | None:
        """The highest batch id in ``offsets`` or ``commits``."""
        numbers = [int(name) for name in self.objects.names(f"{FOLDER}/{log}") if _is_number(name)]
        return max(numbers, default=None)

    def planned(self, query_id: str, batch_id: int) -> Planned:
        """The batch as Spark's log has it. Raises `NotFoundError` when it is not there."""
        timestamp_ms, end = self._offsets(batch_id)
        start: tuple[str, ...] = ()
        if batch_id > 0:
            _, start = self._offsets(batch_id - 1)
        files = {}
        for source, text in enumerate(end):
            last = log_offset(text)
            if last is not None:
                before = log_offset(start[source]) if source < len(start) else None
                files[str(source)] = self._files(source, -1 if before is None else before, last)
        return Planned(SparkPosition(query_id, batch_id, start, end, files), timestamp_ms)

    def entry(self, source: int, number: int) -> tuple[str, ...] | None:
        """Files, each with its time, of one entry of a file source's log; None where the log lacks or garbled it."""
        try:
            return self._files(source, number - 1, number)
        except (NotFoundError, CorruptionError, UnicodeDecodeError):
            return None

    def _lines(self, path: str) -> list[str]:
        try:
            return self.objects.read(path).decode().splitlines()
        except UnicodeDecodeError:
            raise _damaged(path) from None

    def _offsets(self, batch_id: int) -> tuple[int, tuple[str, ...]]:
        path = f"{FOLDER}/offsets/{batch_id}"
        lines = self._lines(path)
        if not lines or lines[0] != "v1" or len(lines) < 3:
            raise IncompatibleError(
                "this version of spark's offset log is not known: set spark.sql.streaming.offsetLog.formatVersion=1",
                code="spark-log-format",
                path=path,
                found=lines[0] if lines else "nothing",
            )
        try:
            return int(json.loads(lines[1])["batchTimestampMs"]), tuple(lines[2:])
        except _UNREADABLE:
            raise _damaged(path) from None

    def _files(self, source: int, after: int, last: int) -> tuple[str, ...]:
        """Paths (with modification time) of a file source's log entries in ``(after, last]``."""
        folder = f"{FOLDER}/sources/{source}"
        names = self.objects.names(folder)
        compacts = sorted(int(n.removesuffix(".compact")) for n in names if n.endswith(".compact"))
        entries: set[str] = set()
        for number in range(after + 1, last + 1):
            if str(number) in names:
                name = str(number)
            else:
                later = [c for c in compacts if c >= number]
                if not later:
                    raise NotFoundError(
                        "spark's log of the file source lacks an entry", code="spark-source-log", entry=number
                    )
                name = f"{later[0]}.compact"
            entries.update(self._entries(f"{folder}/{name}", number))
        return tuple(sorted(entries))

    def _entries(self, path: str, number: int) -> list[str]:
        lines = self._lines(path)[1:]
        try:
            records = [json.loads(line) for line in lines if line.strip()]
            return [f"{r['path']} {r['timestamp']}" for r in records if r["batchId"] == number]
        except _UNREADABLE:
            raise _damaged(path) from None


INLINE_FILES = 100
"""Longer lists of files go into a file of their own, so that a manifest stays small."""


def store_files(objects: Objects, position: SparkPosition, checkpoint_id: int) -> SparkPosition:
    """``position`` as a manifest holds it: a long list of files replaced by a reference."""
    if sum(map(len, position.files.values())) <= INLINE_FILES:
        return position
    data = msgspec.json.encode(position.files)
    path = f"data/spark/{checkpoint_id}-{uuid.uuid4().hex}.files.json"
    objects.put(path, data)
    ref = FileRef(path=path, bytes=len(data), checksum=checksum(data), rows=len(position.files))
    return msgspec.structs.replace(position, files={}, files_ref=ref)


def load_files(objects: Objects, position: SparkPosition | None) -> SparkPosition | None:
    """``position`` with its list of files, wherever it lies."""
    if position is None or position.files_ref is None:
        return position
    data = read_verified(objects, position.files_ref).to_pybytes()
    try:
        files = msgspec.json.decode(data, type=dict[str, tuple[str, ...]])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise damaged(position.files_ref, str(error)) from None
    return msgspec.structs.replace(position, files=files, files_ref=None)


def check_agreement(head: SparkPosition | None, log: SparkLog) -> None:
    """Raise `IncompatibleError` when Spark's checkpoint and ours do not belong together. Changes nothing.

    They agree when Spark has planned at least the batch our newest checkpoint holds, exactly as we hold it, and
    has committed none that we lack.
    """
    query_id, planned, committed = log.query_id(), log.newest("offsets"), log.newest("commits")
    if head is None:
        if committed is not None:
            raise _disagree(
                "spark's checkpoint has finished batches that this checkpoint lacks (was it wiped?): "
                "put the manifests back, or remove the spark folder to read the input from its beginning",
                "spark-ahead",
                ours="none",
                spark_commits=committed,
            )
        return
    if query_id is None or planned is None:
        raise _disagree(
            "spark's checkpoint is gone but ours is not, and without it spark would read the input again: "
            "put the spark folder back from a copy, or run tidemark repair ROOT --resync-spark",
            "spark-checkpoint-gone",
            ours=head.batch_id,
        )
    if query_id != head.query_id:
        raise _disagree(
            "the spark folder belongs to another query: put the right one back, "
            "or run tidemark repair ROOT --resync-spark",
            "spark-query-changed",
            expected=head.query_id,
            found=query_id,
        )
    if planned < head.batch_id:
        raise _disagree(
            "spark's newest log files are lost, so it would plan a committed batch anew: "
            "put the spark folder back from a copy, or run tidemark repair ROOT --resync-spark",
            "spark-log-lost",
            ours=head.batch_id,
            spark_offsets=planned,
        )
    if planned > head.batch_id + 1 or (committed is not None and committed > head.batch_id):
        raise _disagree(
            "spark has finished batches that this checkpoint lacks: put the missing manifests back, "
            "or run tidemark repair ROOT --resync-spark, and spark reads that input again",
            "spark-ahead",
            ours=head.batch_id,
            spark_offsets=planned,
            spark_commits=committed,
        )
    try:
        same = log.planned(query_id, head.batch_id).position
    except NotFoundError as error:
        raise _disagree(
            "spark's log lacks a file of the newest committed batch: put the spark folder back from a copy, "
            "or run tidemark repair ROOT --resync-spark",
            "spark-log-lost",
            ours=head.batch_id,
            missing=error.context.get("path") or error.context.get("entry"),
        ) from None
    check_same(head, same)


def check_same(ours: SparkPosition, planned: SparkPosition) -> None:
    """Raise `IncompatibleError` unless Spark's batch is the very one we committed under its id."""
    for part in ("query_id", "batch_id", "start", "end", "files"):
        expected, found = getattr(ours, part), getattr(planned, part)
        if expected != found:
            raise _disagree(
                f"spark planned a batch under a committed id with another {part.replace('_', ' ')}: "
                "nothing was processed; put the spark folder back from a copy, "
                "or run tidemark repair ROOT --resync-spark",
                "spark-batch-differs",
                batch=ours.batch_id,
                part=part,
                expected=_short(expected),
                found=_short(found),
            )


def check_follows(head: SparkPosition | None, planned: SparkPosition) -> None:
    """Raise `IncompatibleError` unless Spark's batch continues exactly where our newest checkpoint ends."""
    expected_id, expected_start = (0, ()) if head is None else (head.batch_id + 1, head.end)
    same_query = head is None or head.query_id == planned.query_id
    if planned.batch_id != expected_id or planned.start != expected_start or not same_query:
        raise _disagree(
            "spark's batch does not follow the newest checkpoint: put the spark folder and the manifests "
            "back from copies of the same time; nothing was processed",
            "spark-batch-gap",
            expected_batch=expected_id,
            found_batch=planned.batch_id,
            expected_start=_short(expected_start),
            found_start=_short(planned.start),
        )


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal()


def log_offset(text: str) -> int | None:
    """The offset of a file source, None for any other source."""
    try:
        offset = json.loads(text)
    except _UNREADABLE:
        return None
    found = offset["logOffset"] if isinstance(offset, dict) and set(offset) == {"logOffset"} else None
    return found if isinstance(found, int) else None


def _disagree(message: str, code: str, **context: object) -> IncompatibleError:
    return IncompatibleError(message, code=code, **context)


def _damaged(path: str) -> CorruptionError:
    return CorruptionError(
        "a file of spark's checkpoint is damaged: put back a good copy", code="spark-log-damaged", path=path
    )


def _short(value: object, limit: int = 200) -> str:
    text = str(value)
    return text if len(text) <= limit else text[:limit] + "…"
