"""Tasks as a Spark job over an RDD, for batches whose files the tasks read: a DataFrame would be analysed and planned
again in every batch, for a fifth of a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import pyarrow as pa

from tidestate.operators.engine.micro_batch import MicroBatch
from tidestate.operators.engine.partitions import TaskResult
from tidestate.operators.spark.platform import Platform
from tidestate.operators.spark.scan.batch import DirectBatch
from tidestate.operators.spark.scan.files import NeedsJvmError
from tidestate.operators.spark.tasks import SentStates, StatesOfTasks, failed, level_side, results_of, scan_side

SHUFFLED_BYTES = 1 << 30
"""What a task may send: an RDD writes several rows at once, and less than 2 GiB."""
Row = tuple[int, pa.RecordBatch]
"""A row of the exchange, or several of one task, and the task."""


def run_by_rdd(platform: Platform, states: SentStates, batch: MicroBatch, direct: DirectBatch) -> list[TaskResult]:
    """Run a batch whose files the first stage reads. Raises `NeedsJvmError` if Spark must read a file."""
    batch, of_tasks = states.sent(batch)
    context, readers, tasks = platform.session.sparkContext, len(direct.tasks), len(batch.spans)
    rows = context.parallelize(range(readers), readers).mapPartitions(partial(_scan, batch, direct, SHUFFLED_BYTES))
    for level in range(1, batch.graph.levels + 1):
        rows = rows.partitionBy(tasks, int).mapPartitions(partial(_level, batch, of_tasks, level, SHUFFLED_BYTES))
    return results_of([header for _, answer in rows.collect() for header in answer["header"].to_pylist()])


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
