"""The checkpoint of a query of Spark's own as it was last committed, for a job that goes on from there. Read-only."""

from __future__ import annotations

import json
import posixpath
from dataclasses import dataclass

from tidestate.recovery.log.manifest import SPARK_BATCHES
from tidestate.recovery.log.spark_log import NOTHING_READ, UNREADABLE, SparkLog, log_offset, read_file, unusable
from tidestate.statestore.errors import CorruptionError, NotFoundError, UsageError
from tidestate.statestore.storage.objects import Objects


@dataclass(frozen=True)
class SparkQuery:
    """A query up to ``batch_id``, the last batch that it has committed. Times in microseconds, 0 for no watermark.

    ``end``: where each source goes on, verbatim. ``files``: those that each file source had read by then, by the
    number of the source; ``upcoming``: those of batches that were ``planned`` after it, but not committed.
    ``others``: contents of what the other sources keep in the log, by number and name. The next batch drops what is
    behind ``watermark_us``, and what ends at or before it is not in the state any more; ``next_us`` is the watermark
    that the events read so far have reached.
    """

    query_id: str
    batch_id: int
    planned: int
    end: tuple[str, ...]
    watermark_us: int
    next_us: int
    files: dict[int, tuple[str, ...]]
    upcoming: dict[int, tuple[str, ...]]
    others: dict[int, dict[str, bytes]]
    stateful: tuple[str, ...]
    """The ids of its stateful operators."""


def open_log(location: str) -> SparkLog:
    """The log of the Spark checkpoint at a path or URL."""
    folder, name = posixpath.split(location.rstrip("/"))
    return SparkLog(Objects(folder or ("/" if location.startswith("/") else ".")), name)


def read_query(log: SparkLog) -> SparkQuery:
    """Read the checkpoint of a query. Raises `NotFoundError` where there is none, `UsageError` if no batch was
    committed, `CorruptionError` for damage, `IncompatibleError` for an unknown version of the log.
    """
    try:
        return _read(log)
    except CorruptionError as error:
        raise CorruptionError(
            "a file of this spark checkpoint cannot be used: nothing was written; start the query once with "
            "spark, which repairs the checkpoint or reports why it cannot",
            code="adopt-damaged",
            path=error.context.get("path"),
            why=error.context.get("why", error.message),
        ) from None


def _read(log: SparkLog) -> SparkQuery:
    query_id, planned, committed = log.query_id(), log.newest("offsets"), log.newest("commits")
    if query_id is None:
        raise NotFoundError(
            "this folder has no spark checkpoint: give the checkpointLocation of the query",
            code="adopt-no-checkpoint",
            path=log.objects.locate(log.folder),
        )
    if committed is None or planned is None:
        raise UsageError(
            "this query has not committed a batch, so there is nothing to adopt: start the job in a new root, "
            "from the beginning",
            code="adopt-nothing",
            path=log.objects.locate(log.folder),
        )
    end = log.offsets(committed)
    files, upcoming, others = {}, {}, {}
    for source, text in enumerate(end):
        last = log_offset(text)
        if last is not None or (text == NOTHING_READ and log.is_of_files(source)):
            entries = log.entries(source)
            first = -1 if last is None else last
            files[source] = tuple(one for number in sorted(entries) if number <= first for one in entries[number])
            upcoming[source] = tuple(one for number in sorted(entries) if number > first for one in entries[number])
        elif own := log.own_files(source):
            others[source] = {path.rpartition("/")[2]: read_file(log.objects, path) for path in own}
    return SparkQuery(
        query_id,
        committed,
        max(planned, committed),
        end,
        _watermark_us(log, f"offsets/{committed}", "batchWatermarkMs"),
        _watermark_us(log, f"commits/{committed}", "nextBatchWatermarkMs"),
        files,
        upcoming,
        others,
        tuple(sorted(name for name in log.objects.names(f"{log.folder}/state") if name.isdecimal())),
    )


def _watermark_us(log: SparkLog, name: str, field: str) -> int:
    path = f"{log.folder}/{name}"
    try:
        found = json.loads(read_file(log.objects, path).split(b"\n")[1])[field]
    except (IndexError, *UNREADABLE):
        raise unusable(path, "it is truncated or garbled") from None
    if type(found) is not int or not 0 <= found <= SPARK_BATCHES // 1000:
        raise unusable(path, "it has no watermark")
    return found * 1000
