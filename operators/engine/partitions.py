"""The step of one state partition, where its state is, and the files of what is emitted and rejected.

The same function runs in a Spark task, in the standalone loop and under the calls of operators by hand. In a
micro-batch a partition is opened for its step, and the files of its state are written then (`DurablePartitions`);
those of panes and ledger rows, when all partitions of a task have taken theirs (`OutputFiles`). Nothing is published:
files have fresh names that only a manifest refers to. It is safe to run a step twice, or in a zombie.

An output operator that is an origin has the columns of buffers in its panes. A task numbers the chunks of its own
state partitions; see `tidestate.operators.engine.numbered_chunks`.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidestate.operators.engine.micro_batch import MicroBatch, OperatorInput
from tidestate.operators.engine.process import ROOM_BYTES, Stopwatch, prefer_heap, prefer_jemalloc, release_freed
from tidestate.operators.plan.dues import with_dues, with_expiry
from tidestate.operators.plan.output_buffers import in_chunk, output_mark
from tidestate.operators.plan.plan import Plan
from tidestate.operators.plan.transition import Transition
from tidestate.operators.progress.input_progress import in_words
from tidestate.operators.progress.progress import Context, Progress
from tidestate.statestore.checksums import checksum
from tidestate.statestore.errors import CorruptionError, expect, invariant
from tidestate.statestore.files.partition_log import PartitionLog
from tidestate.statestore.files.refs import FileRef, PartitionState
from tidestate.statestore.files.tails import tail_of
from tidestate.statestore.spec.changes import ChangeSet
from tidestate.statestore.spec.keyhash import partition_of
from tidestate.statestore.spec.store import Restored, StateStore, StateView
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.stores.opening import forget_cache, open_store
from tidestate.statestore.stores.restore_monitor import RestoreCallback, RestoreMonitor, progress_text

logger = logging.getLogger("tidestate")

LOGGED_AFTER_S = 1.0
"""The progress of a restore is logged after this time."""
CHECKED = 1000
"""The partition of this many arriving rows, evenly spread, is checked."""


class PartitionResult(msgspec.Struct, frozen=True):
    """The answer of one partition, for the next manifest: it started from ``base_lineage``, and ``state`` is the
    partition after the micro-batch.
    """

    partition: int
    base_lineage: str
    state: PartitionState
    restored: Restored = Restored()


class TaskResult(msgspec.Struct, frozen=True):
    """The answer of one task for one operator: of the partitions in ``span``, from the first to before the last,
    those in ``answers`` had arrivals or something due; the others are as they were, except that rows ``expire`` up to
    these bounds.

    ``inputs`` is the number of pieces that the input had, ``arrived`` that of the rows which were sent to the task,
    ``chunks`` that of the chunks in the ``panes`` of an origin (`tidestate.operators.plan.output_buffers`).
    ``rejected``: the number of ledger rows by reason, with an ``example`` in words. ``host`` is where it ran, empty
    in the driver's own process. ``gone_us``: windows up to this end had been closed before the job began, by the
    query that it takes over from.
    """

    operator: str
    span: tuple[int, int]
    answers: tuple[PartitionResult, ...]
    progress: Progress
    expire: dict[str, int] = {}
    max_event_us: int | None = None
    inputs: int = 0
    arrived: int = 0
    panes: tuple[FileRef, ...] = ()
    chunks: int = 0
    late: tuple[FileRef, ...] = ()
    counters: dict[str, int] = {}
    host: str = ""
    rejected: dict[str, int] = {}
    example: str = ""
    spent_us: dict[str, int] = {}
    gone_us: int | None = None

    def written(self, base: Sequence[PartitionState]) -> tuple[FileRef, ...]:
        """The new files: those that the partitions in ``base`` do not have."""
        known = {ref.path for one in self.answers for ref in base[one.partition].files}
        new = (ref for one in self.answers for ref in one.state.files if ref.path not in known)
        return (*new, *self.panes, *self.late)


def rejections_of(plan: Plan, ledger: pa.Table | None) -> tuple[dict[str, int], str]:
    """For the log: the number of ledger rows by reason, and one of them in words."""
    if ledger is None or not ledger.num_rows:
        return {}, ""
    reasons = {row["values"]: row["counts"] for row in pc.value_counts(ledger["reason"]).to_pylist()}
    return reasons, in_words(ledger, plan.named_by)


def cache_identity(batch: MicroBatch, operator: OperatorInput, partition: int) -> str:
    """The name of a partition in local caches. It contains the root: a copy of a root needs caches of its own."""
    return f"{batch.root}/{batch.job_id}/{operator.plan.name}/{partition}/{batch.partitions}"


def open_partition(
    batch: MicroBatch, operator: OperatorInput, objects: Objects, partition: int, watch: RestoreMonitor
) -> AbstractContextManager[StateStore]:
    """Open the state of a partition as it was before the micro-batch."""
    name = cache_identity(batch, operator, partition)
    return open_store(batch.store, objects, name, operator.tables, operator.state(partition), watch)


class Partitions(Protocol):
    """Where state partitions are: in files that a micro-batch adds to, or in RAM until they are flushed."""

    def take(self, partition: int, arriving: pa.Table, context: Context) -> Transition:
        """Let a state partition take a step with the rows that arrive there, and keep what that changes and when
        something is due next. Returns what the step did. If it raises, the partition is as it was.
        """


def run_partition(
    batch: MicroBatch,
    operator: OperatorInput,
    partition: int,
    arriving: pa.Table,
    context: Context,
    partitions: Partitions,
) -> Transition:
    """Run the step of a partition. Raises `CorruptionError` for damaged files."""
    check_partition(operator.plan, partition, batch.partitions, arriving)
    return partitions.take(partition, arriving, context)


class DurablePartitions:
    """State partitions of an operator in one micro-batch: each is opened for its step, and its files are written
    then. ``answers``: those that have taken a step.
    """

    def __init__(self, batch: MicroBatch, operator: OperatorInput, objects: Objects, watch: Stopwatch) -> None:
        self._batch, self._operator, self._objects, self._watch = batch, operator, objects, watch
        self.answers: list[PartitionResult] = []

    def take(self, partition: int, arriving: pa.Table, context: Context) -> Transition:
        """As in `Partitions`: the partition is opened for the step, and its files are written."""
        prefer_jemalloc()
        prefer_heap()
        try:
            return self._attempt(partition, arriving, context)
        except CorruptionError as error:
            if not error.code.startswith("rocksdb-"):
                raise with_rebuild(error, self._operator) from None
            # Only the local cache is damaged. The step is pure, so it can run again.
            forget_cache(self._batch.store, cache_identity(self._batch, self._operator, partition))
            return self._attempt(partition, arriving, context)

    def _attempt(self, partition: int, arriving: pa.Table, context: Context) -> Transition:
        batch, operator, objects, watch = self._batch, self._operator, self._objects, self._watch
        restore = RestoreMonitor(_log_restore(f"operator {operator.plan.name}, partition {partition}"))
        with open_partition(batch, operator, objects, partition, restore) as store, watch.timed("step"):
            moved = take_step(operator.plan, store, arriving, context)
        # The store is closed: what it has read is not held while levels are folded.
        release_freed(arriving.nbytes + moved.panes.nbytes, context.budget_bytes + ROOM_BYTES)
        folding = partial(watch.timed, "fold")
        self.answers.append(
            write_state(
                objects, batch, operator, partition, moved.changes, moved.due, moved.due_us, restore.restored, folding
            )
        )
        return moved


def take_step(plan: Plan, view: StateView, arriving: pa.Table, context: Context) -> Transition:
    """What a step with these arrivals does to ``view``, with what expires then, and when something is due next.
    Nothing is changed yet.
    """
    return finished(plan, view, plan.step(view, arriving, context), context)


def finished(plan: Plan, view: StateView, moved: Transition, context: Context) -> Transition:
    """What a step did to ``view`` with what expires then, and when something is due next."""
    changes = with_expiry(moved.changes, plan.expiry(context))
    return with_dues(replace(moved, changes=changes), plan.timers(context), view, context)


def with_rebuild(error: CorruptionError, operator: OperatorInput) -> CorruptionError:
    """The error, with what to do if the file has messages that a replay can put back."""
    path, files = error.context.get("path"), (ref for state in operator.base.values() for ref in state.files)
    tables = {ref.table for ref in files if ref.path == path}
    if not tables & {*operator.replayable, *operator.side_run}:
        return error
    by_hand = (
        'or start without these messages, Policy(messages="rebuild"), and replay them, or give up on them, '
        'Policy(messages="forget")'
    )
    by_itself = 'or let the job run its input again for these messages, Policy(messages="replay")'
    return CorruptionError(
        f"{error.message}; {by_hand if tables & {*operator.replayable} else by_itself}",
        code=error.code,
        **error.context,
    )


def check_partition(plan: Plan, partition: int, partitions: int, rows: pa.Table) -> None:
    """Raise `InvariantError` if rows of another state partition arrived. Of many rows, a sample is checked."""
    if partitions == 1 or not rows.num_rows:
        return
    # ``take`` before ``select``: without a key, the selection has no columns.
    some = rows.take(pa.array(np.arange(0, rows.num_rows, 1 + rows.num_rows // CHECKED)))
    found = np.unique(partition_of(some.select(plan.input.key_names), partitions)).tolist()
    invariant(
        found == [partition],
        "a row arrives in the state partition of its key",
        operator=plan.name,
        partition=partition,
        found=found,
    )


def write_state(
    objects: Objects,
    batch: MicroBatch,
    operator: OperatorInput,
    partition: int,
    changes: ChangeSet,
    due_mark: int | None,
    due_us: int | None,
    restored: Restored,
    folding: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> PartitionResult:
    """Write the changes of a partition, after which something is due next at the watermark ``due_mark`` and at the
    processing time ``due_us``, as `Transition` has them. ``folding`` is entered while files are folded.
    """
    base, attempt = operator.state(partition), uuid.uuid4().hex
    log = PartitionLog(
        objects,
        operator.tables,
        batch.store,
        operator.plan.name,
        partition,
        batch.partitions,
        attempt,
        folding,
    )
    state = log.append(base, changes, batch.checkpoint_id)
    state = msgspec.structs.replace(state, due_mark=due_mark, due_us=due_us)
    return PartitionResult(partition, base.lineage, state, restored)


def _log_restore(name: str) -> RestoreCallback:
    """A callback that logs the progress of a long restore."""

    def callback(done: Restored, whole: Restored) -> None:
        if done.seconds >= LOGGED_AFTER_S:
            logger.info("%s: restored %s", name, progress_text(done, whole))

    return callback


OUTPUT_BYTES = 32 << 20
"""The rows in memory from which they are written."""
ENCODED = {"window_start", "window_end", "pane", "timing", "kind", "reason", "watermark"}
"""Columns with so few values that a dictionary of them is smaller than the column."""


def write_outputs(objects: Objects, folder: str, sequence: int, tables: Iterable[pa.Table]) -> tuple[FileRef, ...]:
    """Write these rows as files in ``folder``."""
    files = OutputFiles(objects, folder, sequence)
    for rows in tables:
        files.add(rows)
    return files.finish()


class OutputFiles:
    """The files of one kind that a task writes for one operator, in ``folder``: one, or several if there is much."""

    def __init__(self, objects: Objects, folder: str, sequence: int) -> None:
        self._objects, self._folder, self._sequence = objects, folder, sequence
        self._held: list[pa.Table] = []
        self._bytes = 0
        self.chunks = 0
        """How many state partitions have emitted rows, where these are numbered."""
        self._files: list[FileRef] = []

    def add(self, rows: pa.Table | None) -> None:
        """Write these rows, now or later; in the order of the calls."""
        if rows is None or not rows.num_rows:
            return
        self._held.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= OUTPUT_BYTES:
            self._write()

    def finish(self) -> tuple[FileRef, ...]:
        """The files of all rows; none without rows."""
        if self._held:
            self._write()
        return tuple(self._files)

    def _write(self) -> None:
        rows, self._held, self._bytes = pa.concat_tables(self._held), [], 0
        sink = pa.BufferOutputStream()
        dictionary = [name for name in rows.column_names if name in ENCODED]
        pq.write_table(rows, sink, compression="snappy", use_dictionary=dictionary, write_statistics=True)
        data = sink.getvalue()
        path = f"{self._folder}/{self._sequence:020d}-{uuid.uuid4().hex}.parquet"
        self._objects.put(path, data)
        self._files.append(FileRef(path, data.size, checksum(data), rows.num_rows, tail=tail_of(data)))


class ChunkFiles(OutputFiles):
    """The panes of an output operator that is an ``origin``, with the columns of buffers: the rows of a state
    partition are a chunk of the buffer ``sequence``, at this ``mark``.
    """

    def __init__(
        self, objects: Objects, folder: str, checkpoint_id: int, origin: int, sequence: int, mark: int | None
    ) -> None:
        super().__init__(objects, folder, checkpoint_id)
        self._origin, self._buffer, self._mark = origin, sequence, mark
        self._chunk: pa.Table | None = None

    def add(self, rows: pa.Table | None) -> None:
        """The panes of the next state partition."""
        if rows is None or not rows.num_rows:
            return
        self._number(last=False)
        self._chunk = rows

    def finish(self) -> tuple[FileRef, ...]:
        self._number(last=True)
        return super().finish()

    def _number(self, *, last: bool) -> None:
        """Number the chunk that was held back until it is known whether another one follows."""
        if self._chunk is None:
            return
        super().add(in_chunk(self._chunk, self._origin, self._buffer, self.chunks, last=last, mark=self._mark))
        self._chunk = None
        self.chunks += 1


def pane_files(objects: Objects, plan: Plan, checkpoint_id: int, watermark: int, emitted: int) -> OutputFiles:
    """The files of the panes of a task, in a step that ends at this ``watermark``. ``emitted``: the number of the
    last buffer, of an operator that is an origin.
    """
    folder, origin = pane_folder(plan), plan.output_origin
    if origin is None:
        return OutputFiles(objects, folder, checkpoint_id)
    number = expect(origin.origin, "what is stored of an origin has its number")
    return ChunkFiles(objects, folder, checkpoint_id, number, emitted + 1, output_mark(plan, origin, watermark))


def pane_folder(plan: Plan) -> str:
    """Where the files of an operator's panes are."""
    return f"panes/{plan.name}"
