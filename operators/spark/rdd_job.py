"""The Spark job of a batch whose files the tasks read, as an RDD: a DataFrame would be analysed and planned again in
every batch, for a fifth of a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from tidestate.operators.spark.scan.batch import DirectBatch
from tidestate.operators.spark.scan.footer import NeedsJvmError
from tidestate.operators.spark.tasks import TaskRound, level_side, needing_jvm, scan_side

if TYPE_CHECKING:
    from pyspark import SparkContext

SHUFFLED_BYTES = 1 << 30
"""What a task may send: an RDD writes several rows at once, and less than 2 GiB."""
Row = tuple[int, pa.RecordBatch]
"""A row of the exchange, or several of one task, and the task."""


def answers(context: SparkContext, sent: TaskRound, direct: DirectBatch) -> list[bytes]:
    """The answers of all tasks."""
    tasks, spans = len(direct.tasks), len(sent.round_.spans)
    rows = context.parallelize(range(tasks), tasks).mapPartitions(partial(_scan, sent, direct, SHUFFLED_BYTES))
    for level in range(1, sent.round_.graph.levels + 1):
        rows = rows.partitionBy(spans, int).mapPartitions(partial(_level, sent, level, SHUFFLED_BYTES))
    return [header for _, batch in rows.collect() for header in batch["header"].to_pylist()]


def _scan(sent: TaskRound, direct: DirectBatch, most: int, numbers: Iterable[int]) -> Iterator[Row]:
    return _bounded(sent, most, scan_side(sent.round_, direct.scan, direct.tasks, direct.row_group_bytes, numbers))


def _level(sent: TaskRound, level: int, most: int, rows: Iterable[Row]) -> Iterator[Row]:
    return _bounded(sent, most, level_side(sent, level, (batch for _, batch in rows)))


def _bounded(sent: TaskRound, most: int, batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """Rows, up to so many bytes: with more, Spark must read the batch."""
    held = 0
    for batch in batches:
        held += batch.nbytes
        if held > most:
            yield from _by_task(needing_jvm(sent.round_, NeedsJvmError(f"a task sends more than {most} bytes")))
            return
        yield from _by_task([batch])


def _by_task(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """Each batch with the task of its rows."""
    return ((batch["task"][0].as_py(), batch) for batch in batches if batch.num_rows)
