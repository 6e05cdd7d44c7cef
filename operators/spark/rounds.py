"""The Spark job of a round, be it a batch, a tick or the ledger coming back: what every state partition answers."""

from __future__ import annotations

from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import TimestampType

from operators.partition import PartitionResult, Round
from operators.plan import Plan
from operators.prepare import prepare
from operators.spark.tasks import EXCHANGE, RESULTS, decode_answer, exchange_rows, map_side, state_side, tick_side
from operators.watermarks import Progress

BATCH_ROWS = 100_000
"""Rows in one Arrow batch from Spark to Python."""


def run_batch(batch: DataFrame, round_: Round) -> list[PartitionResult]:
    """The one job of a batch: prepare, exchange, step."""
    # The session of a batch is a clone: these settings do not reach the user's.
    conf = batch.sparkSession.conf
    conf.set("spark.sql.adaptive.enabled", "false")
    conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(BATCH_ROWS))
    exchanged = _in_order(_times_as_numbers(batch), round_.plan).mapInArrow(partial(map_side, round_), EXCHANGE)
    placed = exchanged.repartitionById(round_.partitions, sf.col("partition"))
    rows = placed.mapInArrow(partial(state_side, round_), RESULTS).collect()
    return [decode_answer(bytes(row["result"])) for row in rows]


def _times_as_numbers(batch: DataFrame) -> DataFrame:
    """Timestamps as microseconds: Spark writes a long to Arrow in a third of the time it needs for a timestamp."""
    times = {f.name for f in batch.schema.fields if isinstance(f.dataType, TimestampType)}
    quoted = {name: sf.col(f"`{name}`") for name in batch.columns}
    return batch.select(*(sf.unix_micros(c).alias(n) if n in times else c for n, c in quoted.items()))


def _in_order(batch: DataFrame, plan: Plan) -> DataFrame:
    """Where the order of its rows counts, each source as a whole in one task, in that order."""
    order = [sf.col(f"`{name}`") for name in plan.watermarks.order]
    if not order:
        return batch
    tasks = batch.sparkSession.sparkContext.defaultParallelism if plan.watermarks.by else 1
    by = [sf.col(f"`{plan.watermarks.by}`")] if plan.watermarks.by else []
    return batch.repartition(tasks, *by).sortWithinPartitions(*order)


def run_feed(session: SparkSession, round_: Round, rows: pa.Table) -> list[PartitionResult]:
    """The ledger is read and prepared here; the state takes it where it is."""
    prepared = prepare(round_.plan, rows, round_.intake, round_.partitions)
    exchanged = pa.Table.from_batches(exchange_rows(prepared, 0, round_.partitions))
    placed = session.createDataFrame(exchanged).repartitionById(round_.partitions, sf.col("partition"))
    answers = placed.mapInArrow(partial(state_side, round_), RESULTS).collect()
    return [decode_answer(bytes(row["result"])) for row in answers]


def run_tick(session: SparkSession, round_: Round, after: Progress) -> list[PartitionResult]:
    """No input: every state partition moves to ``after``."""
    numbers = session.range(0, round_.partitions, 1, round_.partitions)
    rows = numbers.mapInArrow(partial(tick_side, round_, after), RESULTS).collect()
    return [decode_answer(bytes(row["result"])) for row in rows]
