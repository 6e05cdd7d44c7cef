"""`run_task`, the one function of all tasks, of Spark's and of threads; and where they run: in this process, one as a
rule, else a thread each, or on Spark.

Stage 0 is next to the input: it judges rows and makes blocks of them. Stage n is next to the state: it steps the
operators of level n of the graph, in the state partitions of the task, and makes blocks of their panes for readers.
A state partition without arrivals and with nothing due is not opened (`step_partitions`, which operators by hand call
too). Nothing here publishes: a task may run twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeAlias, TypeVar

import msgspec
import pyarrow as pa

from tidestate.operators.engine.delivery import Delivery, read_delivery
from tidestate.operators.engine.micro_batch import (
    Block,
    MicroBatch,
    OperatorInput,
    PartitionSpan,
    blocks_of,
    rows_by_partition,
)
from tidestate.operators.engine.partitions import (
    DurablePartitions,
    Partitions,
    TaskResult,
    pane_files,
    rejections_of,
    run_partition,
    write_outputs,
    write_state,
)
from tidestate.operators.engine.process import Stopwatch
from tidestate.operators.plan.classify import classify
from tidestate.operators.plan.graph import downstream_rows, one_batch
from tidestate.operators.plan.reasons import PUT_BACK
from tidestate.operators.plan.transition import Transition
from tidestate.operators.progress.progress import Context, Progress
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.arrays import total
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.store import Restored
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.storage.write_behind import WriteBehind

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


def run_task(
    batch: MicroBatch,
    stage: int,
    task: int,
    given: Iterable[StreamRows | Block],
    *,
    after: Mapping[str, Progress] | None = None,
    phase: str | None = None,
) -> Iterator[Block | TaskResult]:
    """Run one stage of a task. Stage 0 is given pieces of the streams, one after another, and gives blocks of stage
    1; waiting for them is time of this ``phase``, if one is given. A later stage is given all blocks that have come
    for the task, and gives a result for each operator of its level, and the blocks of their readers.

    ``after``: the progress of all operators at the end, where it does not follow from the blocks.
    """
    if stage == 0:
        return _admitted(batch, task, (rows for rows in given if not isinstance(rows, Block)), phase)
    return _stepped(batch, stage, task, [block for block in given if isinstance(block, Block)], after)


def _admitted(batch: MicroBatch, task: int, pieces: Iterable[StreamRows], phase: str | None) -> Iterator[Block]:
    """The blocks of the pieces of a task. The first one of each piece brings the times of them all."""
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
            yield blocks[0].with_times(watch.take())
            yield from blocks[1:]


def ledger_blocks(batch: MicroBatch, rows: Mapping[str, pa.Table]) -> Iterator[Block]:
    """Blocks of late events to reprocess, which are ``rows`` by operator."""
    for operator, node in enumerate(batch.graph.nodes):
        if node.plan.name in rows:
            start = batch.start(batch.inputs[node.plan.name])
            classified = classify(node.plan, rows[node.plan.name], start, batch.partitions)
            yield from blocks_of(classified, operator, 0, batch.spans)


def _stepped(
    batch: MicroBatch, level: int, task: int, blocks: Sequence[Block], after: Mapping[str, Progress] | None
) -> Iterator[Block | TaskResult]:
    by_operator: dict[int, list[Block]] = {}
    for block in blocks:
        by_operator.setdefault(block.operator, []).append(block)
    after = _progress_after(batch, level, by_operator) if after is None else after
    for number, node in batch.graph.at(level):
        operator, arrived = batch.inputs[node.plan.name], by_operator.get(number, ())
        progress = operator.observed(after[node.plan.name], [block.header.claims for block in arrived])
        watch = Stopwatch()
        with watch.timed("write"), WriteBehind(batch.root, bases=batch.bases) as objects:
            result, panes = _step(batch, operator, batch.spans[task], arrived, progress, objects, watch)
        spent_us = total([*(block.header.spent_us for block in arrived), watch.take()])
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
        claims = {names[n]: [block.header.claims for block in arrived] for n, arrived in by_operator.items()}
        return batch.after(claims)
    headers = (block.header for blocks in by_operator.values() for block in blocks)
    return {name: progress for header in headers for name, progress in (header.after or {}).items()}


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
    name, context = operator.plan.name, batch.context(operator, after)
    is_output, is_read = name == batch.graph.output.name, bool(batch.graph.readers(name))
    files = pane_files(objects, operator.plan, batch.checkpoint_id, context.watermark, operator.emitted)
    counters, emitted = [block.header.counters for block in arrived], Panes()
    times = [block.header.max_event_us for block in arrived if block.header.max_event_us is not None]
    ordered = sorted(arrived, key=lambda block: block.number)
    rejected = [block.rejected for block in ordered if block.rejected is not None]
    ledger = [pa.concat_tables(rejected)] if rejected else []
    partitions = DurablePartitions(batch, operator, objects, watch)
    for partition, moved in step_partitions(batch, operator, span, rows_by_partition(ordered), context, partitions):
        counters.append(moved.counters)
        ledger += [moved.rejected] if moved.rejected is not None else []
        if is_output:
            files.add(moved.panes)
        if moved.panes.num_rows and is_read:
            emitted[partition] = moved.panes
    reasons, example = rejections_of(operator.plan, pa.concat_tables(ledger) if ledger else None)
    result = TaskResult(
        operator=name,
        span=span,
        answers=tuple(partitions.answers),
        progress=after,
        expire=operator.plan.expiry(context) if len(partitions.answers) < span[1] - span[0] else {},
        max_event_us=max(times, default=None),
        inputs=len(arrived),
        arrived=sum(block.rows.rows.num_rows for block in arrived if block.rows is not None),
        panes=files.finish(),
        chunks=files.chunks,
        late=write_outputs(objects, f"late/{name}", batch.checkpoint_id, ledger),
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
            pieces = (one_batch(batch.graph, piece) for piece in rows)
            blocks = (block for block in run_task(batch, 0, 0, pieces) if isinstance(block, Block))
            after = None if self._generate else batch.progress
        waiting: list[list[Block]] = [[] for _ in range(tasks)]
        for block in blocks:
            waiting[block.task].append(block)
        for level in range(1, batch.graph.levels + 1):
            run_level = partial(_at_level, batch, level, waiting, after)
            # Blocks are for later levels alone: those of this one were all there before its first task began.
            for answers in in_threads(run_level, tasks, tasks):
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


def _at_level(
    batch: MicroBatch,
    level: int,
    waiting: Sequence[Sequence[Block]],
    after: Mapping[str, Progress] | None,
    task: int,
) -> list[Block | TaskResult]:
    return list(run_task(batch, level, task, waiting[task], after=after))
