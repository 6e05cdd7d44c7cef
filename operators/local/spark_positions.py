"""The input of a standalone run in Spark's positions: batches are recorded as those of Spark's query are.

Spark's own checkpoint stays as it is. A start on Spark finds it behind ours, and writes it again.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from tidestate.operators.describe.runs import JobHook, SparkOffsets
from tidestate.operators.engine.job import Position, no_job_hook
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.input_files import Entries, followed, known_files
from tidestate.recovery.log.manifest import Manifest, SparkPosition
from tidestate.recovery.spark.agreement import may_follow
from tidestate.recovery.spark.position import store_lists
from tidestate.recovery.spark.spark_checkpoint import check_stateless
from tidestate.recovery.spark.spark_log import NOTHING_READ, SparkLog, log_offset
from tidestate.recovery.start.policy import Policy
from tidestate.recovery.start.spark_repair import FilesRead, SparkRepair
from tidestate.statestore.errors import CorruptionError, UsageError


class SparkPositions:
    """What a run records of its input on a root of which Spark's query may be the next reader; ``sources`` is how
    many the input has.
    """

    def __init__(self, checkpoint: Checkpoint, sources: int, hook: JobHook = no_job_hook) -> None:
        self._checkpoint, self._sources = checkpoint, sources
        self._query_id = ""
        self._read: dict[int, list[str]] = {}
        self._known = FilesRead(checkpoint, {})
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
            found = SparkLog(self._checkpoint.objects).query_id()
        except CorruptionError:
            found = None
        self._query_id = found or str(uuid.uuid4())

    def newest(self, head: Manifest) -> SparkOffsets | None:
        """Where the input of a checkpoint ended, with all files that were read."""
        self._settle(head)
        if head.spark is None:
            return None
        return SparkOffsets(head.spark.end, {source: tuple(files) for source, files in self._read.items()})

    def after(self, head: Manifest, offsets: SparkOffsets) -> SparkPosition:
        """The position of the batch that follows ``head`` and ends at these ``offsets``. Raises `UsageError` where
        Spark could not go on from them, and `IncompatibleError` for a file that was read before.
        """
        self._settle(head)
        start = head.spark.end if head.spark is not None else ()
        before = start or (NOTHING_READ,) * self._sources
        check_offsets(before, offsets)
        batch_id = head.spark.batch_id + 1 if head.spark is not None else 0
        files = {
            str(source): tuple(sorted(set(offsets.files.get(source, ()))))
            for source, end in enumerate(offsets.ends)
            if log_offset(end) is not None
        }
        position = SparkPosition(self._query_id, batch_id, start, tuple(offsets.ends), files)
        self._known.check(head, position)
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
        self._known.add(position)
        for source, files in position.files.items():
            self._read.setdefault(int(source), []).extend(files)

    def _learn(self, read: dict[int, Entries]) -> None:
        self._read = {
            source: [file for files in entries.values() for file in files] for source, entries in read.items()
        }
        self._known = FilesRead(self._checkpoint, known_files(read))


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
    if not fits or not all(map(may_follow, before, ends)):
        raise UsageError(
            "offsets are JSON texts as Spark writes them, one for each source, and none goes back: Spark could not "
            "go on from these",
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
