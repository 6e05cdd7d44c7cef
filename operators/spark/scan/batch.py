"""For each batch of a query: whether its files can be read by the tasks, and which task reads what."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from tidestate.operators.spark.plans import analysed_plan
from tidestate.operators.spark.scan.decide import DirectScan, Fallback, decide
from tidestate.operators.spark.scan.files import FileRange, divide
from tidestate.recovery.log.input_files import path_of
from tidestate.recovery.log.manifest import Scan
from tidestate.recovery.log.manifest_file import REASON_CHARACTERS
from tidestate.recovery.spark.spark_log import is_data_file, local_file

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
    """Decides for the batches of one query; ``refusal``: why none of them can be scanned, if that is known.

    After a batch whose files needed the JVM one batch is read by Spark without a try, then two, four and so on: a try
    costs a small Spark job.
    """

    def __init__(self, stream: DataFrame, budget_bytes: int, refusal: str | None = None) -> None:
        self._plan = analysed_plan(stream, columns=True) if refusal is None else None
        self._decided: DirectScan | Fallback | None = None if refusal is None else Fallback(refusal)
        self._row_group_bytes = budget_bytes // ROW_GROUP_SHARE
        self._pause = self._paused = 0
        self._reason, self._logged = "", set[str]()

    def of(self, session: SparkSession, files: Mapping[str, Sequence[str]]) -> DirectBatch | None:
        """How the tasks read a batch with these files, each with its time, by the number of the source; None if Spark
        must read it. ``session`` is that of the batch.
        """
        if self._decided is None and self._plan is not None:
            from tidestate.operators.spark.scan.extract import reader_settings  # py4j, which no client of Connect has

            self._decided = decide(self._plan, reader_settings(session))
        if not isinstance(self._decided, DirectScan):
            self._reason = self._decided.reason if self._decided is not None else ""
            return None
        if self._paused:
            self._paused -= 1
            return None
        found = _located(self._decided, files)
        self._reason = found if isinstance(found, str) else ""
        if isinstance(found, str):
            return None
        return DirectBatch(self._decided, divide(found), self._row_group_bytes)

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


def _located(scan: DirectScan, files: Mapping[str, Sequence[str]]) -> list[tuple[int, str, int]] | str:
    """The branch, local path and size of each file; or why Spark must read them."""
    found = []
    for number, branch in enumerate(scan.branches):
        for url in map(path_of, files.get(str(branch.source), ())):
            file = local_file(url)
            if file is None:
                return "the files are not local"
            if any("=" in part for part in file.parts[:-1]):
                return "the files lie in folders with = in the name, which may be partitions"
            try:
                size = os.stat(file).st_size
                if size > 0 and is_data_file(file.name):
                    found.append((number, str(file), size))
            except OSError as error:
                return f"{type(error).__name__}: {file.name}"
    return found or "no file of the batch has rows"
