"""For each batch of a query: whether its files can be read by the tasks, and which task reads what."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from tidestate.operators.spark.plans import analysed_plan
from tidestate.operators.spark.platform import SPARK_ERRORS, Platform
from tidestate.operators.spark.scan.analysed import ReaderSettings
from tidestate.operators.spark.scan.decide import DELTA, DirectScan, Fallback, decide
from tidestate.operators.spark.scan.files import FileRange, divide
from tidestate.operators.spark.scan.located import InputFiles
from tidestate.recovery.log.manifest import Scan
from tidestate.recovery.log.manifest_file import REASON_CHARACTERS

log = logging.getLogger("tidestate")

SWITCHED_OFF = "paths without direct_scan"
NO_PLAN = "a client of Spark Connect has no plan of the stream"
IN_ORDER = "rows are processed in the order of columns"
ROW_GROUP_SHARE = 2
"""The columns of a row group may have half the memory budget."""
LONGEST_PAUSE = 64
"""The most batches that are not tried after some that needed the JVM."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")


@dataclass(frozen=True)
class DirectBatch:
    """A batch that tasks read: the ranges of each."""

    scan: DirectScan
    tasks: tuple[tuple[FileRange, ...], ...]
    row_group_bytes: int


class BatchScans:
    """Decides for the batches of one query; ``refusal``: why none of them can be scanned, if that is known. ``root``
    is that of the job.

    After a batch whose files needed the JVM one batch is read by Spark without a try, then two, four and so on: a try
    costs a small Spark job.
    """

    def __init__(
        self, stream: DataFrame, platform: Platform, root: str, budget_bytes: int, refusal: str | None = None
    ) -> None:
        self._plan = analysed_plan(stream, columns=True) if refusal is None else None
        self._decided: DirectScan | Fallback | None = None if refusal is None else Fallback(refusal)
        self._row_group_bytes = budget_bytes // ROW_GROUP_SHARE
        self._files, self._platform = InputFiles(root, platform.file_stamp), platform
        self._settings = ReaderSettings()
        relations = [step.relation for step in self._plan.steps()] if self._plan is not None else []
        self._has_tables = any(relation is not None and relation.format == DELTA for relation in relations)
        self._pause = self._paused = 0
        self._reason, self._logged = "", set[str]()

    def of(self, session: SparkSession, files: Mapping[str, Sequence[str]]) -> DirectBatch | None:
        """How the tasks read a batch with these files, each with its time, by the number of the source; None if Spark
        must read it. ``session`` is that of the batch.
        """
        if self._decided is None and self._plan is not None:
            from tidestate.operators.spark.scan.extract import reader_settings  # py4j, which no client of Connect has

            self._settings = reader_settings(session)
            self._decided = decide(self._plan, self._settings)
        if not isinstance(self._decided, DirectScan):
            self._reason = self._decided.reason if self._decided is not None else ""
            return None
        if self._paused:
            self._paused -= 1
            return None
        found = self._of_tables(session) if self._has_tables else self._of_files(self._decided, files)
        self._reason = found if isinstance(found, str) else ""
        return None if isinstance(found, str) else found

    def _of_files(self, scan: DirectScan, files: Mapping[str, Sequence[str]]) -> DirectBatch | str:
        found = self._files.of(scan, files)
        return found if isinstance(found, str) else DirectBatch(scan, divide(found), self._row_group_bytes)

    def _of_tables(self, session: SparkSession) -> DirectBatch | str:
        """A batch of a stream of tables: which files it has only the plan says by which Spark would read it."""
        from tidestate.operators.spark.scan.extract import plan_of_batch

        try:
            plan = plan_of_batch(self._platform.session, session)
        except SPARK_ERRORS as error:
            return f"the plan of the batch is not known: {str(error).partition(chr(10))[0]}"
        if isinstance(plan, str):
            return plan
        scan = decide(plan, self._settings)
        if isinstance(scan, Fallback):
            return scan.reason
        relations = [step.relation for step in plan.steps() if step.relation is not None]
        if any(relation.delta is None for relation in relations):
            return "the stream has a table and files"
        found = self._files.of_tables(scan, {relation.source: relation for relation in relations})
        return found if isinstance(found, str) else DirectBatch(scan, divide(found), self._row_group_bytes)

    def outcome(self, needs_jvm: str | None, *, in_driver: bool) -> Scan:
        """How the batch was read; ``needs_jvm``: why a task could not read its files. A new reason is logged."""
        if needs_jvm is not None:
            self._pause = min(2 * self._pause or 1, LONGEST_PAUSE)
            self._paused, self._reason = self._pause, needs_jvm
        elif not self._reason:
            self._pause = 0
            return Scan(direct=True, in_driver=in_driver)
        reason = printable_reason(self._reason)
        if reason not in self._logged:
            self._logged.add(reason)
            log.info("spark reads the input, as the tasks cannot: %s", reason)
        return Scan(direct=False, reason=reason)


def printable_reason(reason: str) -> str:
    """A reason as a manifest takes it."""
    return _CONTROL.sub(" ", reason)[:REASON_CHARACTERS]
