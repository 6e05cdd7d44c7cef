"""The input of a standalone run in Spark's positions: batches are recorded as those of Spark's query are.

Spark's own checkpoint stays as it is. A start on Spark finds it behind ours, and writes it again.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from functools import partial
from typing import NoReturn

from tidestate.operators.describe.runs import JobHook, SparkOffsets
from tidestate.operators.engine.job import Position, no_job_hook
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest, SparkPosition
from tidestate.recovery.log.spark_log import (
    NOTHING_READ,
    Entries,
    FilesRead,
    SparkLog,
    followed,
    log_offset,
    store_lists,
)
from tidestate.recovery.spark.agreement import may_follow
from tidestate.recovery.spark.spark_checkpoint import check_stateless, files_read
from tidestate.recovery.start.policy import Policy
from tidestate.recovery.start.spark_repair import SparkRepair
from tidestate.statestore.errors import CorruptionError, UsageError


class SparkPositions:
    """What a run records of its input on a root of which Spark's query may be the next reader; ``sources`` is how
    many the input has.
    """

    def __init__(self, checkpoint: Checkpoint, sources: int, hook: JobHook = no_job_hook) -> None:
        self._checkpoint, self._sources = checkpoint, sources
        self._query_id = ""
        self._read: dict[int, list[str]] = {}
        self._all_files = partial(files_read, checkpoint)
        self._files_read = FilesRead({}, self._all_files)
        self._next: SparkPosition | None = None
        """The newest position that was made, which is in a checkpoint or not."""
        # Whatever it differs in, Spark's checkpoint is not used here: a policy that stops is for a start on Spark.
        self._repair = SparkRepair(checkpoint, Policy(), hook=hook, sources=sources)

    def compare(self, head: Manifest | None) -> None:
        """Compare Spark's own checkpoint with the newest one before this run takes over. Raises `IncompatibleError`
        as a start on Spark would, and where Spark has state of its own, which nothing here would carry on.
        """
        check_stateless(self._checkpoint.objects)
        self._repair.compare(head)

    def begin(self, head: Manifest) -> None:
        """Learn what was read, after this run has taken over with ``head``."""
        self._learn(self._repair.leave(head))
        if head.spark is not None:
            self._query_id = head.spark.query_id
            return
        try:
            # That of a query which has planned its first batch, and died before it was taken.
            query_id = SparkLog(self._checkpoint.objects).query_id()
        except CorruptionError:
            query_id = None
        self._query_id = query_id or str(uuid.uuid4())

    def newest(self, head: Manifest) -> SparkOffsets | None:
        """Where the input of a checkpoint ended, with all files that were read."""
        self._settle(head)
        if head.spark is None:
            return None
        return SparkOffsets(head.spark.end, {source: tuple(files) for source, files in self._read.items()})

    def after(self, head: Manifest, offsets: SparkOffsets, *, has_rows: bool) -> SparkPosition:
        """The position of the batch that follows ``head`` and ends at these ``offsets``. Raises `UsageError` where
        Spark could not go on from them, or they have not moved though the batch ``has_rows``, and
        `IncompatibleError` for a file that was read before.
        """
        self._settle(head)
        start = head.spark.end if head.spark is not None else ()
        before = start or (NOTHING_READ,) * self._sources
        check_offsets(before, offsets)
        if has_rows and all(map(_is_same, before, offsets.ends)):
            raise UsageError(
                "a batch with rows has other offsets than the batch before it: Spark would read its rows again",
                code="position",
                found=offsets.ends,
            )
        batch_id = head.spark.batch_id + 1 if head.spark is not None else 0
        files = {
            str(source): tuple(sorted(set(offsets.files.get(source, ()))))
            for source, end in enumerate(offsets.ends)
            if log_offset(end) is not None
        }
        position = SparkPosition(self._query_id, batch_id, start, tuple(offsets.ends), files)
        self._files_read.check(head, position)
        self._next = position
        return followed(head.spark, position)

    def stored(self, position: SparkPosition, number: int) -> Position:
        """A position for the manifest of this number. Long lists of files are written."""
        return Position(spark=store_lists(self._checkpoint.objects, position, number))

    def _settle(self, head: Manifest) -> None:
        """Add the files of the newest position if ``head`` has it: a sink may have raised after the commit."""
        position, self._next = self._next, None
        if position is None or head.spark is None or head.spark.batch_id != position.batch_id:
            return
        self._files_read.add(position)
        for source, files in position.files.items():
            self._read.setdefault(int(source), []).extend(files)

    def _learn(self, read: dict[int, Entries]) -> None:
        self._read = {
            source: [file for files in entries.values() for file in files] for source, entries in read.items()
        }
        self._files_read = FilesRead(read, self._all_files)


def offsets_of(position: SparkPosition) -> SparkOffsets:
    """The offsets after a batch, with its files."""
    return SparkOffsets(position.end, {int(source): files for source, files in position.files.items()})


def check_offsets(before: Sequence[str], offsets: object) -> None:
    """Raise `UsageError` unless a batch of Spark could go from ``before`` to these ``offsets``, with their files."""
    if not isinstance(offsets, SparkOffsets):
        raise UsageError(
            "a SparkInput gives each batch with SparkOffsets: the offset of each source as Spark writes it",
            code="position",
            found=f"{offsets!r:.100} ({type(offsets).__name__})",
        )
    ends = offsets.ends
    fits = isinstance(ends, tuple) and len(ends) == len(before) and all(isinstance(end, str) for end in ends)
    if not fits or not all(map(_may_end, before, ends)):
        raise UsageError(
            "offsets are JSON texts as Spark writes them, in one line, one for each source; no number in them falls "
            "and no name of them goes: Spark could not go on from these",
            code="position",
            before=list(before),
            found=ends,
        )
    of_files = {source for source, end in enumerate(ends) if log_offset(end) is not None and end != before[source]}
    if of_files != {source for source, files in offsets.files.items() if files}:
        raise UsageError(
            "the offset of a source of files moves with the files of a batch: give these, by the number of the "
            "source, and leave the offset as it is without files",
            code="position",
            sources_with_new_offsets=sorted(of_files),
            sources_with_files=sorted(source for source, files in offsets.files.items() if files),
        )


def _may_end(before: str, after: str) -> bool:
    """Whether the offset of a source may go from ``before`` to ``after``, which must be JSON in one line."""
    # Spark's log has an offset a line, and is UTF-8: what follows a break would be the offset of the next source.
    if any(ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 or 0xD800 <= ord(char) < 0xE000 for char in after):
        return False
    if after == NOTHING_READ:
        return before == NOTHING_READ
    try:
        later = _parse(after)
    except (ValueError, RecursionError):
        return False
    if not may_follow(before, after):
        return False
    try:
        return _has_all(_parse(before), later)
    except (ValueError, RecursionError):  # nothing was read, or a source of Spark's has no JSON: nothing to compare
        return True


def _is_same(before: str, after: str) -> bool:
    try:
        return before == after or _parse(before) == _parse(after)
    except (ValueError, RecursionError):
        return False


def _has_all(before: object, after: object) -> bool:
    """Whether each number of ``before`` is in ``after``, at the same place, and is not smaller there. What is null
    may become anything; texts may change, as nobody knows their order.
    """
    if isinstance(before, dict):
        return isinstance(after, dict) and all(
            name in after and _has_all(value, after[name]) for name, value in before.items()
        )
    if isinstance(before, list):
        return isinstance(after, list) and len(after) >= len(before) and all(map(_has_all, before, after))
    if isinstance(before, int | float) and not isinstance(before, bool):
        return isinstance(after, int | float) and not isinstance(after, bool) and after >= before
    return before is None or isinstance(after, type(before))


def _parse(text: str) -> object:
    """The value of a text in strict JSON: without NaN, and each name once. Raises `ValueError`."""
    return json.loads(text, parse_constant=_refuse, object_pairs_hook=_as_object)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _as_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    names = dict(pairs)
    if len(names) < len(pairs):
        raise ValueError("a name is there twice")
    return names
