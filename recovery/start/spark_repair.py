"""Spark's own checkpoint at the start of a job: compared before the job takes over, rewritten afterwards.

Compared before, so that a refused start changes nothing; rewritten after, because an older run may use it until then.
"""

from __future__ import annotations

import logging
from functools import partial

from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.log.spark_log import Entries, FilesRead, SparkLog, check_sources, load_files
from tidestate.recovery.spark.agreement import Agreement, compare
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
from tidestate.recovery.start.policy import Policy

log = logging.getLogger("tidestate")


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
        return FilesRead(read, partial(files_read, self._checkpoint))
