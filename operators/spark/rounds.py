"""The Spark job of a round, be it a batch, a tick or the ledger coming back: what every state partition answers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import TimestampType

from tidestate.operators.engine.partition import PartitionResult
from tidestate.operators.engine.round import GraphRound, fed_back
from tidestate.operators.plan.graph import Graph
from tidestate.operators.progress.rounds import Progress
from tidestate.operators.spark.tasks import EXCHANGE, decode_answers, exchange_rows, level_side, map_side, tick_side

BATCH_ROWS = 100_000
"""Rows in one Arrow batch from Spark to Python."""


def run_batch(batch: DataFrame, round_: GraphRound) -> list[PartitionResult]:
    """The one job of a batch: prepare, exchange, step; exchange and step again for each level of operators."""
    # The session of a batch is a clone: these settings do not reach the user's.
    conf = batch.sparkSession.conf
    conf.set("spark.sql.adaptive.enabled", "false")
    conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(BATCH_ROWS))
    return run_history(batch, round_)


def run_history(rows: DataFrame, round_: GraphRound) -> list[PartitionResult]:
    """Any rows as a batch, in a session that is the user's, with its settings as they are."""
    exchanged = _in_order(_times_as_numbers(rows), round_.graph).mapInArrow(partial(map_side, round_), EXCHANGE)
    return _levels(exchanged, round_, 1)


def _levels(rows: DataFrame, round_: GraphRound, first: int) -> list[PartitionResult]:
    """``rows`` of the exchange through all levels from ``first``: a shuffle for each."""
    for level in range(first, round_.graph.levels + 1):
        placed = rows.repartitionById(round_.partitions, sf.col("partition"))
        rows = placed.mapInArrow(partial(level_side, round_, level), EXCHANGE)
    return decode_answers([bytes(row["header"]) for row in rows.select("header").collect()])


def _times_as_numbers(batch: DataFrame) -> DataFrame:
    """Timestamps as microseconds: Spark writes a long to Arrow in a third of the time it needs for a timestamp."""
    times = {f.name for f in batch.schema.fields if isinstance(f.dataType, TimestampType)}
    quoted = {name: sf.col(f"`{name}`") for name in batch.columns}
    return batch.select(*(sf.unix_micros(c).alias(n) if n in times else c for n, c in quoted.items()))


def _in_order(batch: DataFrame, graph: Graph) -> DataFrame:
    """Where the order of its rows counts, each source as a whole in one task, in that order."""
    order = [sf.col(f"`{name}`") for name in graph.order]
    if not order:
        return batch
    tasks = batch.sparkSession.sparkContext.defaultParallelism if graph.by else 1
    by = [sf.col(f"`{graph.by}`")] if graph.by else []
    return batch.repartition(tasks, *by).sortWithinPartitions(*order)


def run_feed(session: SparkSession, round_: GraphRound, rows: Mapping[str, pa.Table]) -> list[PartitionResult]:
    """The ledger is read and prepared here, by operator; the state takes it where it is."""
    exchanged = pa.Table.from_batches(exchange_rows(fed_back(round_, rows)))
    return _levels(session.createDataFrame(exchanged), round_, 1)


def run_tick(session: SparkSession, round_: GraphRound, after: dict[str, Progress]) -> list[PartitionResult]:
    """No input: every state partition moves to ``after``."""
    numbers = session.range(0, round_.partitions, 1, round_.partitions)
    return _levels(numbers.mapInArrow(partial(tick_side, round_, after), EXCHANGE), round_, 2)
