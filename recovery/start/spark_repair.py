"""Spark's own checkpoint at the start of a job: compared before the job takes over, and rewritten after that.

Before, because a start that is refused changes nothing; after, because until then an older run may be using it.
"""

from __future__ import annotations

import logging

from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.input_files import Entries, KnownFiles, known_files, path_of
from tidestate.recovery.log.manifest import Manifest, SparkPosition
from tidestate.recovery.spark.agreement import Agreement, compare
from tidestate.recovery.spark.position import load_files
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
    """The files that sources of files have read: none comes twice."""

    def __init__(self, checkpoint: Checkpoint, known: dict[str, KnownFiles]) -> None:
        self._checkpoint = checkpoint
        self._known = known

    def check(self, head: Manifest, batch: SparkPosition) -> None:
        """Raise `IncompatibleError` where a batch that follows ``head`` brings a file that an earlier one has read,
        whatever its time is now.
        """
        for source, files in batch.files.items():
            again = [one for one in files if one in self._known.get(source, ())]
            if again and (again := self._really(head, source, again)):
                raise IncompatibleError(
                    "a file comes again that an earlier batch has read (was it changed?), so its events would count "
                    "twice: nothing was processed; take it out of the input, and put new data under a new name",
                    code="spark-file-again",
                    batch=batch.batch_id,
                    source=int(source),
                    files=[path_of(one) for one in again[:10]],
                )

    def _really(self, head: Manifest, source: str, again: list[str]) -> list[str]:
        """Without those that merely have the hash of another: rare, so this may take its time."""
        entries = files_read(self._checkpoint, head).get(int(source), {})
        paths = {path_of(one) for files in entries.values() for one in files}
        return [one for one in again if path_of(one) in paths]

    def add(self, batch: SparkPosition) -> None:
        """A batch has read these."""
        for source, files in batch.files.items():
            self._known.setdefault(source, KnownFiles(())).add(files)


class SparkRepair:
    """What one start does about Spark's checkpoint. ``interval`` is every how many entries Spark folds its lists."""

    def __init__(
        self, checkpoint: Checkpoint, policy: Policy, interval: int = COMPACTED, hook: CrashHook = no_crash_hook
    ) -> None:
        self._checkpoint = checkpoint
        self._policy = policy
        self._interval = interval
        self._hook = hook
        self._found = Agreement()
        self._read: dict[int, Entries] = {}

    def look(self, head: Manifest | None) -> None:
        """Compare. Changes nothing. Raises `IncompatibleError` where Spark's checkpoint is that of another run, where
        it differs and the policy is to stop, and where it differs and cannot be rewritten.
        """
        if head is not None and (head.drained or unfinished_move(self._checkpoint, head) is not None):
            return  # Spark will not start, or its checkpoint is rewritten whatever it says
        objects = self._checkpoint.objects
        position = load_files(objects, head.spark) if head is not None else None
        found = compare(position, SparkLog(objects), self._interval)
        if found.refusal is not None:
            found.check()
        if found.differs and self._policy.spark == "stop":
            # As it is folded now: a changed interval loses nothing, and no repair knows the new one.
            compare(position, SparkLog(objects)).check()
        if found.differs:
            check_stateless(objects)
        self._found = found
        if found.read is not None:
            self._read = found.read
        elif head is not None:
            self._read = files_read(self._checkpoint, head)

    def done(self, head: Manifest) -> FilesRead:
        """Rewrite what differs, now that the job has taken over with ``head``. It may die anywhere: what it leaves
        differs too, so the next start does it again.
        """
        if not head.drained and finish_checkpoint(self._checkpoint, head, self._hook, self._interval):
            self._read = files_read(self._checkpoint, head)
        elif self._found.differs:
            kept = rewrite_spark_checkpoint(self._checkpoint, head, self._read, self._interval, self._hook)
            log.warning(
                "spark's checkpoint was not what checkpoint %d says, so it was rewritten from ours; the old one is "
                "kept in %s: %s",
                head.id,
                kept,
                "; ".join(map(str, self._found.differs)),
            )
        read, self._read = self._read, {}
        return FilesRead(self._checkpoint, known_files(read))
