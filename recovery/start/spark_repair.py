"""Spark's own checkpoint at the start of a job: compared before the job takes over, rewritten afterwards.

Compared before, so that a refused start changes nothing; rewritten after, because an older run may use it until then.
"""

from __future__ import annotations

import logging

from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.input_files import Entries, KnownFiles, known_files, path_of
from tidestate.recovery.log.manifest import Manifest, SparkPosition
from tidestate.recovery.spark.agreement import Agreement, compare
from tidestate.recovery.spark.position import check_sources, load_files
from tidestate.recovery.spark.spark_checkpoint import (
    COMPACTED,
    CrashHook,
    check_stateless,
    files_read,
    finish_checkpoint,
    no_crash_hook,
    rewrite_spark_checkpoint,
    unfinished_move,
)
from tidestate.recovery.spark.spark_log import SparkLog
from tidestate.recovery.start.policy import Policy
from tidestate.statestore.errors import IncompatibleError

log = logging.getLogger("tidestate")


class FilesRead:
    """The files that file sources have read; none may be read twice."""

    def __init__(self, checkpoint: Checkpoint, known: dict[str, KnownFiles]) -> None:
        self._checkpoint = checkpoint
        self._known = known

    def check(self, head: Manifest, batch: SparkPosition) -> None:
        """Raise `IncompatibleError` if a batch that follows ``head`` contains a file that an earlier one has read,
        even if its time has changed.
        """
        for source, files in batch.files.items():
            again = [file for file in files if file in self._known.get(source, ())]
            if again and (again := self._confirmed(head, source, again)):
                raise IncompatibleError(
                    "an earlier batch has already read this file (was it changed?), so its events would count "
                    "twice: nothing was processed; remove it from the input, and write new data under a new name",
                    code="spark-file-again",
                    batch=batch.batch_id,
                    source=int(source),
                    files=[path_of(one) for one in again[:10]],
                )

    def _confirmed(self, head: Manifest, source: str, again: list[str]) -> list[str]:
        """Without files that only share a hash with another. Slow, but rare."""
        entries = files_read(self._checkpoint, head).get(int(source), {})
        paths = {path_of(file) for files in entries.values() for file in files}
        return [file for file in again if path_of(file) in paths]

    def add(self, batch: SparkPosition) -> None:
        """Add the files of a batch."""
        for source, files in batch.files.items():
            self._known.setdefault(source, KnownFiles(())).add(files)


class SparkRepair:
    """Compares and repairs Spark's checkpoint at a start. Spark folds its lists every ``interval`` entries. The query
    will read so many ``sources``; None where that is not known.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        policy: Policy,
        interval: int = COMPACTED,
        hook: CrashHook = no_crash_hook,
        sources: int | None = None,
    ) -> None:
        self._checkpoint = checkpoint
        self._policy = policy
        self._interval = interval
        self._hook = hook
        self._sources = sources
        self._found = Agreement()
        self._read: dict[int, Entries] = {}

    def compare(self, head: Manifest | None) -> None:
        """Compare with the newest checkpoint; nothing is written. Raises `IncompatibleError` if Spark's checkpoint
        belongs to another run or to another number of sources, or if it differs and cannot be rewritten or the
        policy is to stop.
        """
        if head is not None and head.drained:
            return  # Spark will not start
        check_sources(head.spark if head is not None else None, self._sources)
        if head is not None and unfinished_move(self._checkpoint, head) is not None:
            return  # its checkpoint is rewritten anyway
        objects = self._checkpoint.objects
        position = load_files(objects, head.spark) if head is not None else None
        found = compare(position, SparkLog(objects), self._interval, self._sources)
        if found.refusal is not None:
            found.check()
        if found.differs and self._policy.spark == "stop":
            # By the interval of the log itself: a changed interval loses nothing, and `repair` cannot know it.
            compare(position, SparkLog(objects), sources=self._sources).check()
        if found.differs:
            check_stateless(objects)
        self._found = found
        if found.read is not None:
            self._read = found.read
        elif head is not None:
            self._read = files_read(self._checkpoint, head)

    def leave(self, head: Manifest) -> dict[int, Entries]:
        """All files that file sources have read at ``head``, by source and entry of its log, for a runner that goes
        on without Spark, after it has taken over with ``head``.

        Spark's checkpoint stays as it is, but for one that a move has left unwritten. It will differ from ours after
        the next batch, and a start on Spark rewrites it then.
        """
        if head.drained or finish_checkpoint(self._checkpoint, head, self._hook, self._interval):
            return files_read(self._checkpoint, head)
        read, self._read = self._read, {}
        return read

    def repair(self, head: Manifest) -> FilesRead:
        """Rewrite Spark's checkpoint if it differs, after the job has taken over with ``head``. After a crash it
        still differs, so the next start does it again.
        """
        if not head.drained and finish_checkpoint(self._checkpoint, head, self._hook, self._interval):
            self._read = files_read(self._checkpoint, head)
        elif self._found.differs:
            kept = rewrite_spark_checkpoint(self._checkpoint, head, self._read, self._interval, self._hook)
            log.warning(
                "spark's checkpoint did not match checkpoint %d and was rewritten from ours; the old one is kept "
                "in %s: %s",
                head.id,
                kept,
                "; ".join(map(str, self._found.differs)),
            )
        read, self._read = self._read, {}
        return FilesRead(self._checkpoint, known_files(read))
