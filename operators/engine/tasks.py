"""What all tasks run, those of Spark and those of threads; and where: in this process, one as a rule, else a thread
each, or on Spark.

Stage 0 (`admit_rows`) is next to the input: it judges rows and makes blocks of them. Stage n (`step_level`) is next
to the state: it steps the operators of level n of the graph, in the state partitions of the task, and makes blocks of
their panes for readers.
A state partition without arrivals and with nothing due is not opened (`step_partitions`, which operators by hand call
too); another one is opened for its step, and the files of its state are written then (`DurablePartitions`). Those of
panes are written as partitions emit them, and those of ledger rows when all have taken their steps. Nothing here
publishes: files have fresh names that only a manifest refers to, and a task may run twice, or as a zombie.

An output operator that is an origin has the columns of buffers in its panes. A task numbers the chunks of its own
state partitions; see `tidestate.operators.engine.numbered_chunks`. How long the phases take is measured where they
run, and the answers of tasks bring their times to the driver.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeAlias, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidestate.operators.engine.delivery import Delivery, read_delivery
from tidestate.operators.engine.micro_batch import (
    Block,
    MicroBatch,
    OperatorInput,
    PartitionResult,
    PartitionSpan,
    TaskResult,
    blocks_of,
    rows_by_partition,
)
from tidestate.operators.plan.classify import classify
from tidestate.operators.plan.dues import with_dues, with_expiry
from tidestate.operators.plan.graph import downstream_rows, one_batch
from tidestate.operators.plan.output_buffers import in_buffer
from tidestate.operators.plan.plan import Plan
from tidestate.operators.plan.reasons import PUT_BACK
from tidestate.operators.plan.transition import Transition
from tidestate.operators.progress.progress import Context, Progress, in_words
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.arrays import total
from tidestate.statestore.checksums import checksum
from tidestate.statestore.errors import CorruptionError, invariant
from tidestate.statestore.files.partition_log import PartitionLog
from tidestate.statestore.files.refs import FileRef
from tidestate.statestore.files.tails import tail_of
from tidestate.statestore.process_memory import ROOM_BYTES, prefer_allocators, release_freed
from tidestate.statestore.spec.changes import ChangeSet, TableChanges
from tidestate.statestore.spec.keyhash import partition_of
from tidestate.statestore.spec.store import Restored, StateStore, StateView
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.storage.write_behind import WriteBehind
from tidestate.statestore.stores.opening import forget_cache, open_store
from tidestate.statestore.stores.restore_monitor import RestoreCallback, RestoreMonitor, progress_text

PHASES = ("read", "transfer", "classify", "group", "step", "fold", "write", "publish", "deliver", "other")
"""In the order of a round. ``read``: files that tasks read themselves; ``transfer``: rows that Spark hands over, with
its reading; ``group``: partials next to the input; ``step``: steps, with the state that they read; ``fold``: files of
state; ``other``: the engine, such as scheduling.
"""

_T = TypeVar("_T")


class Stopwatch:
    """Microseconds by phase. A phase inside another one counts by itself alone."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: list[str] = []
        self._since = 0.0
        self._spent: dict[str, float] = {}

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Time counts for this phase meanwhile."""
        self._count()
        self._open.append(phase)
        try:
            yield
        finally:
            self._count()
            self._open.pop()

    def awaited(self, phase: str, items: Iterable[_T]) -> Iterator[_T]:
        """``items``; the time until each counts for this phase."""
        waiting = iter(items)
        while True:
            with self.timed(phase):
                item = next(waiting, None)
            if item is None:
                return
            yield item

    def take(self) -> dict[str, int]:
        """The time since the last call, in microseconds."""
        self._count()
        spent, self._spent = self._spent, {}
        return {phase: round(seconds * 1e6) for phase, seconds in spent.items()}

    def _count(self) -> None:
        now = self._clock()
        if self._open:
            self._spent[self._open[-1]] = self._spent.get(self._open[-1], 0.0) + now - self._since
        self._since = now


def round_times(
    driver_us: Mapping[str, int], tasks_us: Sequence[Mapping[str, int]], parallel: int
) -> dict[str, float]:
    """Seconds of a round by phase: those of tasks as if ``parallel`` of them always ran at once, and ``other`` for
    the rest of the time of the ``engine``.
    """
    summed = total([dict(one) for one in tasks_us])
    of_tasks = {phase: us / max(1, parallel) for phase, us in summed.items()}
    rest = max(0.0, driver_us.get("engine", 0) - sum(of_tasks.values()))
    return seconds({**of_tasks, **{phase: us for phase, us in driver_us.items() if phase != "engine"}, "other": rest})


def seconds(spent_us: Mapping[str, float]) -> dict[str, float]:
    """Seconds by phase, in the order of a round."""
    return as_phased({phase: round(us / 1e6, 6) for phase, us in spent_us.items()})


def as_phased(times: Mapping[str, float]) -> dict[str, float]:
    """Times by phase, in the order of a round."""
    return {phase: times[phase] for phase in PHASES if phase in times}


logger = logging.getLogger("tidestate")

LOGGED_AFTER_S = 1.0
"""The progress of a restore is logged after this time."""
CHECKED = 1000
"""The partition of this many arriving rows, evenly spread, is checked."""


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
        prefer_allocators()
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
        operator.plan.message_tables,
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
"""Columns that mostly have so few values that a dictionary of them is smaller than the column."""
SAMPLED_ROWS = 1024
"""So many rows show whether a column has few values: of sessions nearly each has bounds of its own."""


def write_panes(
    objects: Objects, batch: MicroBatch, operator: OperatorInput, watermark: int, panes: Iterable[pa.Table]
) -> tuple[FileRef, ...]:
    """Write what state partitions have emitted in a step that ends at ``watermark``, one after the other."""
    plan = operator.plan
    if plan.output_origin is not None:
        panes = in_buffer(plan, plan.output_origin, panes, operator.emitted + 1, watermark)
    return write_outputs(objects, pane_folder(plan), batch.checkpoint_id, panes)


def write_outputs(objects: Objects, folder: str, sequence: int, tables: Iterable[pa.Table]) -> tuple[FileRef, ...]:
    """Write these rows, as they come, as files in ``folder``: one, or several if there is much; none without rows."""
    refs, waiting, waiting_bytes = list[FileRef](), list[pa.Table](), 0
    for rows in tables:
        if not rows.num_rows:
            continue
        waiting.append(rows)
        waiting_bytes += rows.nbytes
        if waiting_bytes >= OUTPUT_BYTES:
            refs.append(_write_output(objects, folder, sequence, pa.concat_tables(waiting)))
            waiting, waiting_bytes = [], 0
    if waiting:
        refs.append(_write_output(objects, folder, sequence, pa.concat_tables(waiting)))
    return tuple(refs)


def _write_output(objects: Objects, folder: str, sequence: int, rows: pa.Table) -> FileRef:
    sink, sample = pa.BufferOutputStream(), rows.slice(0, SAMPLED_ROWS)
    named = [name for name in rows.column_names if name in ENCODED]
    dictionary = [name for name in named if 2 * len(sample[name].unique()) <= sample.num_rows]
    pq.write_table(rows, sink, compression="snappy", use_dictionary=dictionary, write_statistics=True)
    data = sink.getvalue()
    path = f"{folder}/{sequence:020d}-{uuid.uuid4().hex}.parquet"
    objects.put(path, data)
    return FileRef(path, data.size, checksum(data), rows.num_rows, tail=tail_of(data))


def pane_folder(plan: Plan) -> str:
    """Where the files of an operator's panes are."""
    return f"panes/{plan.name}"


FEEDS = 1 << 40
"""The distance between the numbers of the pieces of two feeds of an operator: they are numbered within a feed."""
PIECES = 1 << 20
"""The distance between the numbers of the pieces of two tasks of stage 0."""
StreamRows: TypeAlias = Mapping[str, pa.Table]
"""A piece of the input: rows by stream."""
RowsOfPartitions: TypeAlias = Mapping[str, Mapping[int, Mapping[str, pa.Table]]]
"""Rows of state tables: by operator, state partition and table."""
Panes = dict[int, pa.Table]
"""The panes of an operator by state partition."""


def admit_rows(
    batch: MicroBatch, task: int, pieces: Iterable[StreamRows], phase: str | None = None
) -> Iterator[Block]:
    """Run stage 0 of a task: pieces of the streams, one after another, to blocks of stage 1. Waiting for pieces is
    time of this ``phase``, if one is given. The first block of each piece brings the times of them all.
    """
    watch = Stopwatch()
    states = {name: operator.progress.generator for name, operator in batch.inputs.items()}
    # Pieces are ordered by task, then as they come: sums do not depend on what arrives first.
    awaited = pieces if phase is None else watch.awaited(phase, pieces)
    for number, rows in enumerate(awaited, task * PIECES):
        with watch.timed("classify"):
            blocks: list[Block] = []
            for stream, of_stream in rows.items():
                for operator, node, feed_number, feed in batch.graph.readers(stream):
                    name = node.plan.name
                    start, seen = batch.start(batch.inputs[name]), node.rows(feed, of_stream)
                    classified = classify(node.plan, seen, start, batch.partitions, watch.timed, states[name])
                    # For the next piece of the same sources, if their order matters.
                    states[name] = states[name].following(classified.claims)
                    blocks += blocks_of(classified, operator, feed_number * FEEDS + number, batch.spans)
        if blocks:
            yield msgspec.structs.replace(blocks[0], spent_us=watch.take())
            yield from blocks[1:]


def ledger_blocks(batch: MicroBatch, rows: Mapping[str, pa.Table]) -> Iterator[Block]:
    """Blocks of late events to reprocess, which are ``rows`` by operator."""
    for operator, node in enumerate(batch.graph.nodes):
        if node.plan.name in rows:
            start = batch.start(batch.inputs[node.plan.name])
            classified = classify(node.plan, rows[node.plan.name], start, batch.partitions)
            yield from blocks_of(classified, operator, 0, batch.spans)


def step_level(
    batch: MicroBatch, level: int, task: int, blocks: Sequence[Block], after: Mapping[str, Progress] | None = None
) -> Iterator[Block | TaskResult]:
    """Run a later stage of a task, with all ``blocks`` that have come for it. Gives a result for each operator of the
    level, and the blocks of their readers.

    ``after``: the progress of all operators at the end, where it does not follow from the blocks.
    """
    by_operator: dict[int, list[Block]] = {}
    for block in blocks:
        by_operator.setdefault(block.operator, []).append(block)
    after = _progress_after(batch, level, by_operator) if after is None else after
    for number, node in batch.graph.at(level):
        operator, arrived = batch.inputs[node.plan.name], by_operator.get(number, ())
        progress = operator.observed(after[node.plan.name], [block.claims for block in arrived])
        watch = Stopwatch()
        with watch.timed("write"), WriteBehind(batch.root, bases=batch.bases) as objects:
            result, panes = _step(batch, operator, batch.spans[task], arrived, progress, objects, watch)
        spent_us = total([*(block.spent_us for block in arrived), watch.take()])
        yield msgspec.structs.replace(result, spent_us=spent_us)
        yield from _to_readers(batch, operator, batch.spans[task], panes, after)


def _progress_after(
    batch: MicroBatch, level: int, by_operator: Mapping[int, Sequence[Block]]
) -> Mapping[str, Progress]:
    """The progress of operators at the end, from what arrived at a task of this level: claims, or what operators
    upstream have computed from them.
    """
    if level == 1:
        names = [node.plan.name for node in batch.graph.nodes]
        claims = {names[n]: [block.claims for block in arrived] for n, arrived in by_operator.items()}
        return batch.after(claims)
    arrived = (block for blocks in by_operator.values() for block in blocks)
    return {name: progress for block in arrived for name, progress in (block.after or {}).items()}


def without_input(batch: MicroBatch, after: Mapping[str, Progress]) -> list[TaskResult]:
    """The results of a micro-batch that has nothing to do and ends with this progress."""
    return [
        TaskResult(name, (0, batch.partitions), (), ends, operator.plan.expiry(batch.context(operator, ends)))
        for name, operator in batch.inputs.items()
        for ends in [operator.observed(after[name], ())]
    ]


def with_rows(batch: MicroBatch, rows: RowsOfPartitions) -> list[TaskResult]:
    """The results of a micro-batch that puts ``rows`` into state tables, and does nothing else: time stands still."""
    results = []
    for name, operator in batch.inputs.items():
        answers, count = [], 0
        with WriteBehind(batch.root, bases=batch.bases) as objects:
            for number, base in operator.base.items():
                tables = rows.get(name, {}).get(number, {})
                changes = {table: TableChanges(put=put) for table, put in tables.items() if put.num_rows}
                count += sum(put.num_rows for put in tables.values())
                due = base.due_mark, base.due_us
                answers.append(write_state(objects, batch, operator, number, changes, *due, Restored()))
        counters = {PUT_BACK: count} if count else {}
        results.append(TaskResult(name, (0, batch.partitions), tuple(answers), operator.progress, counters=counters))
    return results


def _step(
    batch: MicroBatch,
    operator: OperatorInput,
    span: PartitionSpan,
    arrived: Sequence[Block],
    after: Progress,
    objects: Objects,
    watch: Stopwatch,
) -> tuple[TaskResult, Panes]:
    """Step the state partitions of ``span`` that have something to do."""
    plan, context = operator.plan, batch.context(operator, after)
    is_output, is_read = plan.name in batch.graph.outputs, bool(batch.graph.readers(plan.name))
    counters, emitted, chunks = [block.counters for block in arrived], Panes(), list[int]()
    times = [block.claims.peak.time_us for block in arrived if block.claims.peak is not None]
    ordered = sorted(arrived, key=lambda block: block.number)
    rejected = [block.rejected for block in ordered if block.rejected is not None]
    ledger = [pa.concat_tables(rejected)] if rejected else []
    partitions = DurablePartitions(batch, operator, objects, watch)

    def panes() -> Iterator[pa.Table]:
        """What the steps emit for sinks: they are taken while it is written."""
        for number, moved in step_partitions(batch, operator, span, rows_by_partition(ordered), context, partitions):
            counters.append(moved.counters)
            ledger.extend([moved.rejected] if moved.rejected is not None else [])
            if moved.panes.num_rows and is_read:
                emitted[number] = moved.panes
            if moved.panes.num_rows and is_output:
                chunks.append(number)
                yield moved.panes

    files = write_panes(objects, batch, operator, context.watermark, panes())
    reasons, example = rejections_of(plan, pa.concat_tables(ledger) if ledger else None)
    result = TaskResult(
        operator=plan.name,
        span=span,
        answers=tuple(partitions.answers),
        progress=after,
        expire=plan.expiry(context) if len(partitions.answers) < span[1] - span[0] else {},
        max_event_us=max(times, default=None),
        inputs=len(arrived),
        arrived=sum(block.rows.rows.num_rows for block in arrived if block.rows is not None),
        panes=files,
        chunks=len(chunks),
        late=write_outputs(objects, f"late/{plan.name}", batch.checkpoint_id, ledger),
        counters=total(counters),
        rejected=reasons,
        example=example,
    )
    return result, emitted


def step_partitions(
    batch: MicroBatch,
    operator: OperatorInput,
    span: PartitionSpan,
    arriving: Mapping[int, pa.Table],
    context: Context,
    partitions: Partitions,
) -> Iterator[tuple[int, Transition]]:
    """Let the state partitions of ``span`` that get some of what is ``arriving``, or have something due, take their
    steps, one after another. Gives the number of each, and what its step did.
    """
    stepping = operator.stepping(context)
    for number in range(*span):
        if number in arriving or number in stepping:
            # Where nothing stored is due, a step need not look at it: when that is due next is known.
            of_partition = (
                context if number in stepping else replace(context, stored_due=operator.base[number].due_mark)
            )
            rows = arriving[number] if number in arriving else operator.plan.exchanged.schema.empty_table()
            yield number, run_partition(batch, operator, number, rows, of_partition, partitions)


def _to_readers(
    batch: MicroBatch, upstream: OperatorInput, span: PartitionSpan, panes: Panes, after: Mapping[str, Progress]
) -> Iterator[Block]:
    """The panes of an operator's state partitions as blocks for its readers; one without rows if there are none."""
    plan = upstream.plan
    panes = panes or {span[0]: plan.pane_schema.empty_table()}
    for number, node, feed_number, feed in batch.graph.readers(plan.name):
        start = batch.start(batch.inputs[node.plan.name])
        names = (other.plan.name for other in batch.graph.nodes if other.level >= node.level)
        downstream = {name: after[name] for name in names}
        for partition, rows in panes.items():
            seen = node.rows(feed, downstream_rows(plan, rows))
            classified = classify(node.plan, seen, start, batch.partitions)
            yield from blocks_of(classified, number, feed_number * FEEDS + partition, batch.spans, downstream)


R_contra = TypeVar("R_contra", contravariant=True)
P_co = TypeVar("P_co", covariant=True)


class Transport(Protocol[R_contra, P_co]):
    """Runs the tasks of micro-batches, and publishes nothing: rows of type R, and for sinks panes of type P."""

    @property
    def parallelism(self) -> int:
        """The number of tasks that run at once."""

    @property
    def max_tasks(self) -> int:
        """The number of tasks, at most, that the state partitions of a micro-batch are divided among."""

    def run(
        self,
        batch: MicroBatch,
        rows: R_contra | None = None,
        *,
        blocks: Iterable[Block] = (),
        after: Mapping[str, Progress] | None = None,
    ) -> list[TaskResult]:
        """Run ``rows`` of the streams through all operators, or ``blocks`` of which stage 0 is done, or neither.
        ``after``: the progress of all operators at the end, where no rows and no blocks say it. May run a task twice.
        """

    def read(self, checkpoint: Checkpoint, delivery: Delivery) -> P_co:
        """The rows of a delivery, whose checksums are verified; see `read_delivery`."""


T = TypeVar("T")
Batches: TypeAlias = Iterable[pa.Table | Mapping[str, pa.Table]]
"""One batch in pieces: each a table of the only stream, or tables by stream."""


class InProcess:
    """A `Transport`. With ``generate=False`` events do not move the watermark."""

    parallelism = 1
    max_tasks = 1

    def __init__(self, *, generate: bool = True) -> None:
        self._generate = generate

    def run(
        self,
        batch: MicroBatch,
        rows: Batches | None = None,
        *,
        blocks: Iterable[Block] = (),
        after: Mapping[str, Progress] | None = None,
    ) -> list[TaskResult]:
        """As in `Transport`. Of the rows only one piece is in memory, and the partials of earlier ones."""
        tasks, results = len(batch.spans), []
        if rows is not None:
            blocks = admit_rows(batch, 0, (one_batch(batch.graph, piece) for piece in rows))
            after = None if self._generate else batch.progress
        waiting: list[list[Block]] = [[] for _ in range(tasks)]
        for block in blocks:
            waiting[block.task].append(block)

        def at_level(level: int, task: int) -> list[Block | TaskResult]:
            return list(step_level(batch, level, task, waiting[task], after))

        for level in range(1, batch.graph.levels + 1):
            # Blocks are for later levels alone: those of this one were all there before its first task began.
            for answers in in_threads(partial(at_level, level), tasks, tasks):
                for answer in answers:
                    if isinstance(answer, Block):
                        waiting[answer.task].append(answer)
                    else:
                        results.append(answer)
        return results

    def read(self, checkpoint: Checkpoint, delivery: Delivery) -> pa.Table:
        """As in `Transport`, on the calling thread."""
        return read_delivery(checkpoint, delivery)


def in_threads(work: Callable[[int], T], tasks: int, threads: int) -> list[T]:
    """What ``work`` gives for each task by its number, in so many threads. Raises what the first task raised, when
    all have ended.
    """
    if threads == 1:
        return [work(task) for task in range(tasks)]
    from concurrent.futures import ThreadPoolExecutor  # takes a while to import

    with ThreadPoolExecutor(threads, "tidestate-tasks") as pool:
        return list(pool.map(work, range(tasks)))
