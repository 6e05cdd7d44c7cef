"""Where the tasks of a job on Spark run: small micro-batches in the driver, others as a job over an RDD if tasks read
the files themselves, else as a job over a DataFrame.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from tidestate.operators.engine.delivery import Delivery
from tidestate.operators.engine.micro_batch import MicroBatch
from tidestate.operators.engine.partition import TaskResult
from tidestate.operators.engine.transport import BatchInput
from tidestate.operators.spark.frame_transport import FrameTransport
from tidestate.operators.spark.in_driver import InDriver
from tidestate.operators.spark.platform import Platform
from tidestate.operators.spark.rdd_transport import RddTransport
from tidestate.operators.spark.scan.batch import DirectBatch
from tidestate.operators.spark.scan.footer import NeedsJvmError
from tidestate.operators.spark.sent_states import SentStates
from tidestate.recovery.inspect.rows import columns_now
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import UsageError
from tidestate.statestore.files.segments import read_verified

TASKS_PER_CORE = 4
"""The tasks of a level, at most; more state partitions share them."""
_LITERAL = {ord(character): f"\\{character}" for character in "{}[]*?\\"}
"""Spark reads a path with one of these as a pattern, unless it is escaped."""


@dataclass
class SparkRows:
    """The rows of a batch, and how tasks can read its files themselves, if they can. Where the files say otherwise,
    ``needs_jvm`` has the reason afterwards; ``in_driver``: whether the driver has processed them.
    """

    frame: DataFrame
    direct: DirectBatch | None = None
    needs_jvm: str | None = None
    in_driver: bool = False


class SparkTransport:
    """The `Transport` of a job on Spark; with ``in_driver`` small micro-batches are run without a Spark job."""

    def __init__(self, platform: Platform, *, in_driver: bool = False) -> None:
        self._platform = platform
        self.parallelism = platform.parallelism
        self.max_tasks = TASKS_PER_CORE * self.parallelism
        self._in_driver = InDriver(min(self.parallelism, os.cpu_count() or 1)) if in_driver else None
        states = SentStates(platform.broadcast)
        self._by_rdd, self._by_frame = RddTransport(platform, states), FrameTransport(platform, states)

    def run(self, batch: MicroBatch, given: BatchInput[SparkRows]) -> list[TaskResult]:
        """As in `Transport`; in the session of the batch, with its settings.

        If a task finds a file that it cannot read as Spark would, Spark reads the whole batch: nothing has been
        published yet.
        """
        rows, here = given.rows, self._in_driver
        if rows is None:
            results = here.tick(batch, given.after) if here is not None and given.after is not None else None
            if results is None:
                results = self._by_frame.run(batch, BatchInput(None, given.blocks, given.after))
            return results
        # Cheapest first: no Spark job, a job without a plan, a job that is planned anew.
        if rows.direct is not None:
            try:
                results = here.take(batch, rows.direct) if here is not None else None
                rows.in_driver = results is not None
                return results if results is not None else self._by_rdd.run(batch, rows.direct)
            except NeedsJvmError as why:
                rows.needs_jvm = str(why)  # for the manifest
        return self._by_frame.run(batch, BatchInput(rows.frame))

    def read(self, checkpoint: Checkpoint, delivery: Delivery) -> DataFrame:
        """As in `Transport`, in the columns of the files, under the names of today."""
        objects = checkpoint.objects
        for ref in delivery.files:
            read_verified(objects, ref)
        paths = [objects.url(ref.path).translate(_LITERAL) for ref in delivery.files]
        try:
            return _under_names(self._platform.session.read.parquet(*paths), delivery.names)
        except AnalysisException as error:
            if "COLUMN_ALREADY_EXISTS" not in str(error):
                raise
            raise UsageError(
                "Spark takes two columns of these rows for one: set spark.sql.caseSensitive to true until the sink "
                "has them",
                code="column-twice",
                delivery=str(delivery),
            ) from None


def _under_names(frame: DataFrame, names: Mapping[str, str]) -> DataFrame:
    columns = columns_now(frame.columns, names)
    return frame.drop(*({*frame.columns} - columns.keys())).toDF(*columns.values()) if names else frame
