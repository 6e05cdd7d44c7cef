"""The Spark job of a batch whose files the tasks read, as an RDD: a DataFrame would be analysed and planned again in
every batch, for a fifth of a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from tidestate.operators.engine.micro_batch import MicroBatch
from tidestate.operators.spark.scan.batch import DirectBatch
from tidestate.operators.spark.scan.footer import NeedsJvmError
from tidestate.operators.spark.tasks import StatesOfTasks, failed, level_side, scan_side

if TYPE_CHECKING:
    from pyspark import SparkContext

SHUFFLED_BYTES = 1 << 30
"""What a task may send: an RDD writes several rows at once, and less than 2 GiB."""
Row = tuple[int, pa.RecordBatch]
"""A row of the exchange, or several of one task, and the task."""


def answers(context: SparkContext, batch: MicroBatch, states: StatesOfTasks, direct: DirectBatch) -> list[bytes]:
    """The answers of all tasks."""
    tasks, spans = len(direct.tasks), len(batch.spans)
    rows = context.parallelize(range(tasks), tasks).mapPartitions(partial(_scan, batch, direct, SHUFFLED_BYTES))
    for level in range(1, batch.graph.levels + 1):
        rows = rows.partitionBy(spans, int).mapPartitions(partial(_level, batch, states, level, SHUFFLED_BYTES))
    return [header for _, answer in rows.collect() for header in answer["header"].to_pylist()]


def _scan(batch: MicroBatch, direct: DirectBatch, most: int, numbers: Iterable[int]) -> Iterator[Row]:
    return _bounded(batch, most, scan_side(batch, direct.scan, direct.tasks, direct.row_group_bytes, numbers))


def _level(batch: MicroBatch, states: StatesOfTasks, level: int, most: int, rows: Iterable[Row]) -> Iterator[Row]:
    return _bounded(batch, most, level_side(batch, states, level, (row for _, row in rows)))


def _bounded(batch: MicroBatch, most: int, rows: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """Rows, up to so many bytes: with more, Spark must read the batch."""
    held = 0
    for row in rows:
        held += row.nbytes
        if held > most:
            yield from _by_task(failed(batch, NeedsJvmError(f"a task sends more than {most} bytes")))
            return
        yield from _by_task([row])


def _by_task(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """Each batch with the task of its rows."""
    return ((batch["task"][0].as_py(), batch) for batch in batches if batch.num_rows)
