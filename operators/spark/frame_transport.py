"""Tasks as a Spark job over a DataFrame: any input, any session. Each level is a shuffle."""

from __future__ import annotations

from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import TimestampType

from tidestate.operators.engine.micro_batch import MicroBatch
from tidestate.operators.engine.partition import TaskResult
from tidestate.operators.engine.transport import BatchInput
from tidestate.operators.plan.graph import STREAM, Graph, sent_name
from tidestate.operators.spark.compat import frame_of, to_tasks
from tidestate.operators.spark.platform import Platform
from tidestate.operators.spark.sent_states import SentStates
from tidestate.operators.spark.tasks import EXCHANGE, exchanged_rows, level_side, map_side, results_of
from tidestate.operators.spark.types import quoted

BATCH_ROWS = 100_000
"""The rows of an Arrow batch from Spark to Python."""


def configured(batch: DataFrame) -> DataFrame:
    """A batch of a query, with settings for it. Its session is a clone: the user's own keeps its settings."""
    conf = batch.sparkSession.conf
    conf.set("spark.sql.adaptive.enabled", "false")
    conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(BATCH_ROWS))
    return batch


class FrameTransport:
    """Runs tasks over DataFrames: classify, exchange, step; exchange and step again for each further level."""

    def __init__(self, platform: Platform, states: SentStates) -> None:
        self._platform, self._states = platform, states

    def run(self, batch: MicroBatch, given: BatchInput[DataFrame]) -> list[TaskResult]:
        """As in `Transport`; in the session of the rows. Blocks are encoded in the driver."""
        batch, states = self._states.sent(batch)
        session, tasks, level = self._platform.session, len(batch.spans), 1
        if given.rows is not None:
            read = self._in_order(times_as_numbers(given.rows), batch.graph)
            exchange = read.mapInArrow(partial(map_side, batch), EXCHANGE)
        elif given.after is None:
            exchange = frame_of(session, pa.Table.from_batches(exchanged_rows(given.blocks)))
        else:
            first = partial(level_side, batch, states, 1, after=dict(given.after))
            exchange, level = session.range(0, tasks, 1, tasks).mapInArrow(first, EXCHANGE), 2
        while level <= batch.graph.levels:
            run_level = partial(level_side, batch, states, level)
            exchange, level = to_tasks(exchange, tasks).mapInArrow(run_level, EXCHANGE), level + 1
        return results_of([bytes(row["header"]) for row in exchange.select("header").collect()])

    def _in_order(self, rows: DataFrame, graph: Graph) -> DataFrame:
        """Where the order of rows matters: all rows of a source in one task, in that order."""
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


def times_as_numbers(rows: DataFrame) -> DataFrame:
    """Timestamps as microseconds: Spark converts a long to Arrow three times faster than a timestamp."""
    times = {field.name for field in rows.schema.fields if isinstance(field.dataType, TimestampType)}
    columns = {name: sf.col(quoted(name)) for name in rows.columns}
    return rows.select(
        *(sf.unix_micros(column).alias(name) if name in times else column for name, column in columns.items())
    )
