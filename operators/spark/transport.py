"""Where the tasks of a job on Spark run: small micro-batches in the driver, others as a job over an RDD if tasks read
the files themselves, else as a job over a DataFrame.

A DataFrame serves any input and any session; each level is a shuffle. It is analysed and planned again in every
batch, for a fifth of a second; an RDD is not.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import partial

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import TimestampType

from tidestate.operators.engine.delivery import Delivery
from tidestate.operators.engine.micro_batch import Block, MicroBatch, TaskResult
from tidestate.operators.expressions.sql_types import quoted
from tidestate.operators.plan.graph import STREAM, Graph, sent_name
from tidestate.operators.progress.progress import Progress
from tidestate.operators.spark.compat import SPARK_4, frame_of, to_tasks
from tidestate.operators.spark.in_driver import InDriver, calls_user_code, most_block_bytes
from tidestate.operators.spark.platform import SPARK_ERRORS, Platform
from tidestate.operators.spark.scan.batch import Pause, SparkRows
from tidestate.operators.spark.scan.decide import NeedsJvmError
from tidestate.operators.spark.scan.reader import DirectBatch
from tidestate.operators.spark.sql_partials import SqlPartials
from tidestate.operators.spark.tasks import (
    EXCHANGE,
    SentStates,
    bounded_map_side,
    exchanged_rows,
    level_rows,
    level_side,
    map_side,
    results_of,
    scan_rows,
    sent_blocks,
)
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.renames import columns_now
from tidestate.recovery.log.spark_log import literal_path
from tidestate.statestore.errors import UsageError
from tidestate.statestore.files.segments import read_verified

SHUFFLED_BYTES = 1 << 30
"""What a task may send: an RDD writes several rows at once, and less than 2 GiB."""
BATCH_ROWS = 100_000
"""The rows of an Arrow batch from Spark to Python."""


BATCH_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH_ROWS),
    "spark.sql.shuffle.partitions": "1",
}
"""For the batches of a query: speed, no more. What a job shuffles says into how many partitions, but for partials,
which are few.
"""


def configured(batch: DataFrame, platform: Platform) -> DataFrame:
    """A batch of a query, with `BATCH_SETTINGS` where its session is a clone: the user's own keeps its settings. A
    place that lets nobody set them goes on without.
    """
    session = batch.sparkSession
    if platform.has_same_session(session) or session is platform.configured_session:
        return batch
    for name, value in BATCH_SETTINGS.items():
        try:
            session.conf.set(name, value)
        except SPARK_ERRORS:
            if not platform.is_connect:
                raise
    platform.configured_session = session
    return batch


class FrameTransport:
    """Runs tasks over DataFrames: classify, exchange, step; exchange and step again for each further level."""

    def __init__(self, platform: Platform, states: SentStates) -> None:
        self._platform, self._states = platform, states

    def run(
        self,
        batch: MicroBatch,
        rows: DataFrame | None = None,
        *,
        blocks: Iterable[Block] = (),
        after: Mapping[str, Progress] | None = None,
    ) -> list[TaskResult]:
        """As in `Transport`; in the session of the rows. Blocks are encoded in the driver."""
        batch, states = self._states.sent(batch)
        session, tasks, level = self._platform.session, len(batch.spans), 1
        if rows is not None:
            exchange = self._read(rows, batch.graph).mapInArrow(partial(map_side, batch), EXCHANGE)
        elif after is None:
            exchange = frame_of(session, pa.Table.from_batches(exchanged_rows(blocks)))
        else:
            first = partial(level_side, batch, states, 1, after=dict(after))
            exchange, level = session.range(0, tasks, 1, tasks).mapInArrow(first, EXCHANGE), 2
        while level <= batch.graph.levels:
            run_level = partial(level_side, batch, states, level)
            exchange, level = to_tasks(exchange, tasks).mapInArrow(run_level, EXCHANGE), level + 1
        return results_of([bytes(row["header"]) for row in exchange.select("header").collect()])

    def blocks(self, batch: MicroBatch, rows: DataFrame, most: int) -> list[Block]:
        """The blocks of a batch, which tasks make and the driver collects. Raises `NeedsJvmError` if they have more
        than so many bytes together, else as `run`.
        """
        # More input partitions share these tasks: how many send has to be known before, so that each has its part of
        # the limit, and nothing says how many partitions a batch has but its plan.
        tasks = self._platform.parallelism
        run = partial(bounded_map_side, batch.with_states({}), most // tasks)
        return sent_blocks(self._read(rows.coalesce(tasks), batch.graph).mapInArrow(run, EXCHANGE).toArrow())

    def _read(self, rows: DataFrame, graph: Graph) -> DataFrame:
        """The rows as tasks take them. Where their order matters, all of a source are in one task, in that order."""
        rows = times_as_numbers(rows)
        if not graph.orders:
            return rows
        several = len(graph.streams) > 1
        prefixes = {name: f"{name}__" if several else "" for name in graph.streams}
        order = [
            sf.col(quoted(prefixes[name] + sent_name(column)))
            for name, of_stream in graph.orders.items()
            for column in of_stream.columns
        ]
        by = [sf.col(quoted(prefixes[name] + sent_name(own.by))) for name, own in graph.orders.items() if own.by]
        if several:
            # Rows of a stream without an order stay as spread as they are.
            ordered = sf.col(f"`{STREAM}`").isin(*graph.orders)
            by = [sf.col(f"`{STREAM}`"), *by, sf.when(~ordered, sf.spark_partition_id())]
        tasks = self._platform.parallelism if by else 1
        return rows.repartition(tasks, *by).sortWithinPartitions(*order)


def run_by_rdd(platform: Platform, states: SentStates, batch: MicroBatch, direct: DirectBatch) -> list[TaskResult]:
    """Run a batch whose files the first stage reads. Raises `NeedsJvmError` if Spark must read a file."""
    batch, of_tasks = states.sent(batch)
    context, readers, tasks = platform.session.sparkContext, len(direct.tasks), len(batch.spans)
    rows = context.parallelize(range(readers), readers).mapPartitions(
        partial(scan_rows, batch, direct, SHUFFLED_BYTES)
    )
    for level in range(1, batch.graph.levels + 1):
        rows = rows.partitionBy(tasks, int).mapPartitions(partial(level_rows, batch, of_tasks, level, SHUFFLED_BYTES))
    return results_of([header for _, answer in rows.collect() for header in answer["header"].to_pylist()])


def times_as_numbers(rows: DataFrame) -> DataFrame:
    """Timestamps as microseconds: Spark converts a long to Arrow three times faster than a timestamp."""
    times = {field.name for field in rows.schema.fields if isinstance(field.dataType, TimestampType)}
    columns = {name: sf.col(quoted(name)) for name in rows.columns}
    return rows.select(
        *(sf.unix_micros(column).alias(name) if name in times else column for name, column in columns.items())
    )


RESULT_SIZE = "spark.driver.maxResultSize"
TASKS_PER_CORE = 4
"""The tasks of a level, at most; more state partitions share them."""


class SparkTransport:
    """The `Transport` of a job on Spark; with ``in_driver`` small micro-batches are run without a Spark job."""

    def __init__(self, platform: Platform, *, in_driver: bool = False, sql_partials: bool = False) -> None:
        self._platform = platform
        self.parallelism = platform.parallelism
        self.max_tasks = TASKS_PER_CORE * self.parallelism
        self._in_driver = InDriver(min(self.parallelism, os.cpu_count() or 1)) if in_driver else None
        self._partials = SqlPartials() if sql_partials else None
        self._pause = Pause()
        """Of batches whose blocks the driver collects."""
        states = SentStates(platform.broadcast)
        self._states, self._by_frame = states, FrameTransport(platform, states)

    def run(
        self,
        batch: MicroBatch,
        rows: SparkRows | None = None,
        *,
        blocks: Iterable[Block] = (),
        after: Mapping[str, Progress] | None = None,
    ) -> list[TaskResult]:
        """As in `Transport`; in the session of the batch, with its settings.

        If a task finds a file that it cannot read as Spark would, Spark reads the whole batch: nothing has been
        published yet.
        """
        here = self._in_driver
        if rows is None:
            results = here.tick(batch, after) if here is not None and after is not None else None
            return self._by_frame.run(batch, blocks=blocks, after=after) if results is None else results
        # Cheapest first: no Spark job, a job without a plan, a job that is planned anew.
        if rows.direct is not None:
            try:
                results = here.take(batch, rows.direct) if here is not None else None
                rows.in_driver = results is not None
                if results is None:
                    results = run_by_rdd(self._platform, self._states, batch, rows.direct)
                return results
            except NeedsJvmError as why:
                rows.needs_jvm = str(why)  # for the manifest
        results = self._by_partials(batch, rows)
        if results is not None:
            return results
        results = self._by_blocks(batch, rows)
        if results is None:
            results = self._by_frame.run(batch, rows.checked())
        if self._partials is not None:
            self._partials.learn(results)
        return results

    def _by_partials(self, batch: MicroBatch, rows: SparkRows) -> list[TaskResult] | None:
        """The results of a batch of whose rows Spark SQL makes partials; None if they are handed over."""
        partials, here = self._partials, self._in_driver
        if partials is None or here is None:
            rows.no_partials = "paths without sql_partials" if partials is None else "paths without in_driver"
            return None
        if self._platform.has_same_session(rows.frame.sparkSession):
            rows.no_partials = "the session of its rows is that of the user, whose settings stay"
            return None
        rows.no_partials = "the state is large, or not in a store of Parquet files"

        def made(of_driver: MicroBatch) -> list[Block] | None:
            blocks = partials.blocks(of_driver, rows.checked())
            rows.no_partials = blocks if isinstance(blocks, str) else ""
            return None if isinstance(blocks, str) else blocks

        results = here.finish(batch, made)
        if results is None and not rows.no_partials:
            rows.no_partials = "a function of yours failed in the driver"
        rows.in_driver, rows.partials = results is not None, None if results is None else partials.entries
        return results

    def _by_blocks(self, batch: MicroBatch, rows: SparkRows) -> list[TaskResult] | None:
        """The results of a batch whose rows are handed over to tasks, and whose steps the driver takes, as a second
        stage would take longer; None if tasks must take them.
        """
        driver, pause = self._in_driver, self._pause
        # Functions of the user's may take long: tasks call them in several processes, the driver in one thread.
        if driver is None or not SPARK_4 or calls_user_code(batch) or pause.skips():
            return None
        most = most_block_bytes(batch)
        try:
            results = driver.finish(batch, lambda of_driver: self._by_frame.blocks(of_driver, rows.checked(), most))
        except NeedsJvmError:
            pause.lengthen()
            return None
        except SPARK_ERRORS as error:
            # Spark collects no more than a setting of the user's allows, which the headers of two stages fit in.
            if RESULT_SIZE not in str(error):
                raise
            pause.lengthen()
            return None
        pause.end()
        rows.in_driver = results is not None
        return results

    def read(self, checkpoint: Checkpoint, delivery: Delivery) -> DataFrame:
        """As in `Transport`, in the columns of the files, under the names of today."""
        objects = checkpoint.objects
        for ref in delivery.files:
            read_verified(objects, ref)
        paths = [literal_path(objects.url(ref.path)) for ref in delivery.files]
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
    if not names:
        return frame
    columns = columns_now(frame.columns, names)
    return frame.drop(*({*frame.columns} - columns.keys())).toDF(*columns.values())
