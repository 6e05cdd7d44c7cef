"""The engine on Spark: one job for a micro-batch: input, a tick or reprocessed late events."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import TimestampType

from tidestate.operators.engine.blocks import Block
from tidestate.operators.engine.delivery import Delivery
from tidestate.operators.engine.micro_batch import MicroBatch
from tidestate.operators.engine.partition import TaskResult
from tidestate.operators.plan.graph import STREAM, Graph, sent_name
from tidestate.operators.progress.progress import Progress
from tidestate.operators.spark.compat import frame_of, to_tasks
from tidestate.operators.spark.in_driver import InDriver
from tidestate.operators.spark.rdd_job import answers
from tidestate.operators.spark.scan.batch import DirectBatch
from tidestate.operators.spark.scan.footer import NeedsJvmError
from tidestate.operators.spark.sent_states import SentStates
from tidestate.operators.spark.tasks import (
    EXCHANGE,
    StatesOfTasks,
    exchanged_rows,
    level_side,
    map_side,
    results_of,
)
from tidestate.operators.spark.types import quoted
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import UsageError
from tidestate.statestore.files.segments import read_verified

BATCH_ROWS = 100_000
"""The rows of an Arrow batch from Spark to Python."""
TASKS_PER_CORE = 4
"""The tasks of a level, at most; more state partitions share them."""
_LITERAL = {ord(character): f"\\{character}" for character in "{}[]*?\\"}
"""Spark reads a path with one of these as a pattern, unless it is escaped."""


def configured(batch: DataFrame) -> DataFrame:
    """A batch of a query, with settings for it. Its session is a clone: the user's own keeps its settings."""
    conf = batch.sparkSession.conf
    conf.set("spark.sql.adaptive.enabled", "false")
    conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(BATCH_ROWS))
    return batch


@dataclass
class SparkBatch:
    """A batch for the engine: its rows, and how tasks can read its files themselves, if they can. Where the files say
    otherwise, ``needs_jvm`` has the reason afterwards; ``in_driver``: whether the driver has processed it.
    """

    rows: DataFrame
    direct: DirectBatch | None = None
    needs_jvm: str | None = None
    in_driver: bool = False


class OnSpark:
    """An `Engine` with one Spark job per micro-batch: classify, exchange, step; exchange and step again for each
    level. With ``in_driver`` small ones have none.
    """

    def __init__(self, session: SparkSession, *, in_driver: bool = False) -> None:
        self._session = session
        self.parallel = session.sparkContext.defaultParallelism
        self._in_driver = InDriver(min(self.parallel, os.cpu_count() or 1)) if in_driver else None
        self.tasks = TASKS_PER_CORE * self.parallel
        self._states = SentStates(session.sparkContext.broadcast)

    def take(self, batch: MicroBatch, rows: SparkBatch) -> list[TaskResult]:
        """As in `Engine`; in the session of the batch, with its settings.

        If a task finds a file that it cannot read as Spark would, the whole batch is read by Spark: nothing has been
        published yet.
        """
        if rows.direct is not None:
            try:
                return self._scan(batch, rows, rows.direct)
            except NeedsJvmError as why:
                rows.needs_jvm = str(why)  # for the manifest
        sent, states = self._states.sent(batch)
        read = _in_order(times_as_numbers(rows.rows), batch.graph)
        return _levels(read.mapInArrow(partial(map_side, sent), EXCHANGE), sent, states, 1)

    def _scan(self, batch: MicroBatch, rows: SparkBatch, direct: DirectBatch) -> list[TaskResult]:
        """Run a batch whose files are read here or by the tasks. Raises `NeedsJvmError`."""
        if self._in_driver is not None and (results := self._in_driver.take(batch, direct)) is not None:
            rows.in_driver = True
            return results
        return results_of(answers(self._session.sparkContext, *self._states.sent(batch), direct))

    def run(
        self, batch: MicroBatch, blocks: Iterable[Block], after: Mapping[str, Progress] | None = None
    ) -> list[TaskResult]:
        """As in `Engine`. Blocks are encoded in the driver and processed in the tasks of their state partitions."""
        if after is not None and self._in_driver is not None:
            results = self._in_driver.tick(batch, after)
            if results is not None:
                return results
        sent, states = self._states.sent(batch)
        if after is None:
            return _levels(frame_of(self._session, pa.Table.from_batches(exchanged_rows(blocks))), sent, states, 1)
        tasks = len(batch.spans)
        numbers = self._session.range(0, tasks, 1, tasks)
        first = numbers.mapInArrow(partial(level_side, sent, states, 1, after=dict(after)), EXCHANGE)
        return _levels(first, sent, states, 2)

    def read(self, checkpoint: Checkpoint, delivery: Delivery) -> DataFrame:
        """As in `Engine`, in the columns of the files."""
        objects = checkpoint.objects
        for ref in delivery.files:
            read_verified(objects, ref)
        paths = [objects.url(ref.path).translate(_LITERAL) for ref in delivery.files]
        try:
            return self._session.read.parquet(*paths)
        except AnalysisException as error:
            if "COLUMN_ALREADY_EXISTS" not in str(error):
                raise
            raise UsageError(
                "Spark takes two columns of these rows for one: set spark.sql.caseSensitive to true until the sink "
                "has them",
                code="column-twice",
                delivery=str(delivery),
            ) from None


def _levels(rows: DataFrame, batch: MicroBatch, states: StatesOfTasks, first: int) -> list[TaskResult]:
    """Run ``rows`` of the exchange through all levels from ``first``, with a shuffle for each."""
    for level in range(first, batch.graph.levels + 1):
        here = to_tasks(rows, len(batch.spans))
        rows = here.mapInArrow(partial(level_side, batch, states, level), EXCHANGE)
    return results_of([bytes(row["header"]) for row in rows.select("header").collect()])


def times_as_numbers(batch: DataFrame) -> DataFrame:
    """Timestamps as microseconds: Spark converts a long to Arrow three times faster than a timestamp."""
    times = {f.name for f in batch.schema.fields if isinstance(f.dataType, TimestampType)}
    columns = {name: sf.col(quoted(name)) for name in batch.columns}
    return batch.select(*(sf.unix_micros(c).alias(n) if n in times else c for n, c in columns.items()))


def _in_order(batch: DataFrame, graph: Graph) -> DataFrame:
    """Where the order of rows matters: all rows of a source in one task, in that order."""
    if not graph.orders:
        return batch
    several = len(graph.streams) > 1
    named = {name: f"{name}__" if several else "" for name in graph.streams}
    order = [
        sf.col(quoted(named[name] + sent_name(column)))
        for name, own in graph.orders.items()
        for column in own.columns
    ]
    by = [sf.col(quoted(named[name] + sent_name(own.by))) for name, own in graph.orders.items() if own.by]
    if several:
        # Rows of a stream without an order stay as spread as they are.
        ordered = sf.col(f"`{STREAM}`").isin(*graph.orders)
        by = [sf.col(f"`{STREAM}`"), *by, sf.when(~ordered, sf.spark_partition_id())]
    tasks = batch.sparkSession.sparkContext.defaultParallelism if by else 1
    return batch.repartition(tasks, *by).sortWithinPartitions(*order)
