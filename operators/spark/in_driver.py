"""Small micro-batches in the driver itself: a Spark job would take longer than their work.

What tasks would do is done by the same functions, over the same pieces of input: either may process any batch. If
a function of the user's fails here, tasks call it, which may have what the driver lacks: nothing has been published.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from tidestate.operators.engine.micro_batch import Block, MicroBatch, TaskResult
from tidestate.operators.engine.tasks import InProcess, admit_rows, in_threads
from tidestate.operators.progress.progress import Progress
from tidestate.operators.spark.scan.reader import DirectBatch, read_ranges
from tidestate.operators.spark.tasks import stream_pieces
from tidestate.statestore.errors import UsageError
from tidestate.statestore.process_memory import prefer_allocators

log = logging.getLogger("tidestate")


@dataclass(frozen=True)
class Limits:
    """A micro-batch up to this size is small: its input in files and in memory, and the state partitions that it may
    open. From ``thread_bytes`` of files on the state partitions are divided among threads: below, one is faster.
    Functions of the user's have one: they need not be made for several. ``block_bytes``: of what tasks make of rows
    that Spark hands over, for the driver to go on from.
    """

    files: int = 64
    file_bytes: int = 64 << 20
    read_bytes: int = 256 << 20
    partitions: int = 64
    state_bytes: int = 256 << 20
    thread_bytes: int = 1 << 20
    block_bytes: int = 64 << 20


LIMITS = Limits()
BLOCK_SHARE = 4
"""Blocks that the driver goes on from have at most this part of the budget of a store, as they are its memory."""


class _TooLargeError(Exception):
    """The files of a small batch have more in them than their size promises."""


class InDriver:
    """Runs small micro-batches over Parquet stores, in up to so many ``threads``. Other stores have caches, in the
    processes of the tasks.
    """

    def __init__(self, threads: int) -> None:
        prefer_allocators(apart=True)
        self._transport, self._threads = InProcess(), threads
        self._too_large = sys.maxsize
        """The least size of files that turned out to be too large: such batches are not tried again."""

    def take(self, batch: MicroBatch, direct: DirectBatch) -> list[TaskResult] | None:
        """The results of a batch, whose files are read here; None if tasks must take it. Raises `NeedsJvmError` if
        Spark must read it.
        """
        size = sum(file_range.end - file_range.start for task in direct.tasks for file_range in task)
        files = sum(map(len, direct.tasks))
        small = files <= LIMITS.files and size <= LIMITS.file_bytes and size < self._too_large
        if not small or not _small_state(batch, None):
            return None
        threads = size >= LIMITS.thread_bytes and not calls_user_code(batch)
        here = batch.divided(self._threads if threads else 1)
        try:
            return _tried(lambda: self._transport.run(here, blocks=_blocks(here, direct)))
        except _TooLargeError:
            self._too_large = size
            return None

    def finish(self, batch: MicroBatch, made: Callable[[MicroBatch], list[Block] | None]) -> list[TaskResult] | None:
        """The results of a batch whose blocks Spark has ``made``; None if tasks must take it: the state is large, or
        it has made none.
        """
        if not _small_state(batch, None):
            return None
        here = batch.divided(1 if calls_user_code(batch) else self._threads)
        blocks = made(here)
        return None if blocks is None else _tried(lambda: self._transport.run(here, blocks=blocks))

    def tick(self, batch: MicroBatch, after: Mapping[str, Progress]) -> list[TaskResult] | None:
        """The micro-batch without input that ends with this progress; None if tasks must run it."""
        if not _small_state(batch, after):
            return None
        return _tried(lambda: self._transport.run(replace(batch, tasks=1), after=after))


def calls_user_code(batch: MicroBatch) -> bool:
    """Whether functions of the user's are called in a batch."""
    return any(plan.calls_user_code for plan in batch.graph.plans.values())


def most_block_bytes(batch: MicroBatch) -> int:
    """How many bytes of blocks the driver takes of a batch."""
    return min(LIMITS.block_bytes, batch.store.budget_bytes // BLOCK_SHARE)


def _tried(run: Callable[[], list[TaskResult]]) -> list[TaskResult] | None:
    try:
        return run()
    except UsageError as error:
        if error.code != "own-function":
            raise
        log.warning("a function of yours failed in the driver, so tasks process this small batch instead: %s", error)
        return None


def _small_state(batch: MicroBatch, after: Mapping[str, Progress] | None) -> bool:
    """Whether all state partitions that it may open are small; ``after``: its progress, if it has no input."""
    if batch.store.name != "parquet":
        return False
    if after is not None and batch.graph.levels == 1:
        opened = []
        for name, operator in batch.inputs.items():
            context = batch.context(operator, operator.observed(after[name], ()))
            opened += [operator.base[number] for number in operator.stepping(context)]
    elif batch.partitions <= LIMITS.partitions:
        opened = [state for operator in batch.inputs.values() for state in operator.base.values()]
    else:
        return False
    few = len(opened) <= LIMITS.partitions * len(batch.inputs)
    return few and sum(file.bytes for state in opened for file in state.files) <= LIMITS.state_bytes


def _blocks(batch: MicroBatch, direct: DirectBatch) -> list[Block]:
    """The blocks that tasks would make of their ranges."""
    seen: list[int] = []

    def read(task: int) -> Iterator[pa.RecordBatch]:
        for rows in read_ranges(direct.scan, direct.tasks[task], direct.row_group_bytes):
            seen.append(rows.nbytes)
            if sum(seen) > LIMITS.read_bytes:
                raise _TooLargeError
            yield rows

    def made(task: int) -> list[Block]:
        return list(admit_rows(batch, task, stream_pieces(batch, read(task)), "read"))

    return [block for blocks in in_threads(made, len(direct.tasks), len(batch.spans)) for block in blocks]
