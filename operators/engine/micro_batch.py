"""A micro-batch: one step of a job from a checkpoint to the next, with or without input, as its tasks are told;
blocks, which are all that tasks send to each other; and what they answer. Pure.

A block has rows for one operator and one task. Every task gets a block of each piece of input, even without rows for
it: the facts in it are those of the whole piece, so that all tasks compute the same watermark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import msgspec
import pyarrow as pa

from tidestate.operators.plan.classify import Classified, PartitionedRows
from tidestate.operators.plan.graph import Graph
from tidestate.operators.plan.plan import Plan
from tidestate.operators.progress.progress import Claims, Context, Progress, observed_progress
from tidestate.operators.progress.watermarks import END_US
from tidestate.statestore.files.refs import FileRef, PartitionState
from tidestate.statestore.spec.combiners import Registration
from tidestate.statestore.spec.store import Restored, StoreConfig
from tidestate.statestore.spec.tables import TableSpec

QUIET_KEPT_US = 60_000_000
"""How far the clock may be ahead of the newest checkpoint while a quiet source moves the watermark."""
PartitionSpan = tuple[int, int]
"""State partitions from the first to before the last."""
TaskStates = dict[str, dict[int, PartitionState]]
"""State partitions by operator and number."""


def spans(partitions: int, tasks: int) -> tuple[PartitionSpan, ...]:
    """The state partitions of each task: as many as of any other, or one more."""
    tasks = max(1, min(partitions, tasks))
    return tuple((task * partitions // tasks, (task + 1) * partitions // tasks) for task in range(tasks))


@dataclass(frozen=True)
class OperatorInput:
    """What a micro-batch begins with, for one operator."""

    plan: Plan
    """The variant that it takes: see `Plan.rows_are` and `ReplayedPlan`."""
    progress: Progress
    tables: tuple[TableSpec, ...]
    """The state tables of the plan, with the column ids of its files."""
    base: Mapping[int, PartitionState]
    """Its state partitions, by number; in a task only its own."""
    expired: Mapping[str, int] = field(default_factory=dict)
    """Rows of these tables have expired up to these bounds, in all state partitions."""
    replayable: tuple[str, ...] = ()
    """The tables whose rows a replay of the streams can put back."""
    side_run: tuple[str, ...] = ()
    """The tables whose rows only a side run, of the recorded input, can put back."""
    emitted: int = 0
    """The number of the last buffer that it put out, as the origin that it is."""

    def state(self, partition: int) -> PartitionState:
        """A state partition with the bounds in force."""
        return self.base[partition].under(self.expired)

    def observed(self, after: Progress, claims: Iterable[Claims]) -> Progress:
        """The progress after the micro-batch, with what the operator's observers read in pieces of these claims."""
        return observed_progress(self.plan.observers, after, claims)

    def due(self, context: Context) -> set[int]:
        """The state partitions in which a step without arrivals may do anything."""
        if self.plan.wakes(context):
            return {*self.base}
        return {number for number, state in self.base.items() if is_due(state, context.watermark, context.now_us)}

    def stepping(self, context: Context) -> set[int]:
        """The state partitions that take a step without arrivals, if there are tasks at all."""
        return {*self.base} if self.plan.steps_together else self.due(context)


@dataclass(frozen=True)
class MicroBatch:
    """What all tasks of a micro-batch are told; it is pickled to them. ``inputs``: by operator, in the order of the
    ``graph``. At each level of the graph so many ``tasks`` run the state ``partitions``.
    """

    checkpoint_id: int
    """The checkpoint that it makes."""
    root: str
    bases: tuple[str, ...]
    job_id: str
    store: StoreConfig
    partitions: int
    graph: Graph
    inputs: Mapping[str, OperatorInput]
    was_us: int
    """Processing time of the checkpoint before."""
    now_us: int
    tasks: int = 1
    combiners: tuple[Registration, ...] = ()
    """Those of the driver, which a worker registers when it unpickles them."""

    @cached_property
    def spans(self) -> tuple[PartitionSpan, ...]:
        """The state partitions of each task."""
        return spans(self.partitions, self.tasks)

    def divided(self, tasks: int) -> MicroBatch:
        """The same in so many tasks, at most one for each state partition."""
        return replace(self, tasks=min(tasks, self.partitions))

    def states(self, task: int) -> TaskStates:
        """The state partitions of a task."""
        numbers = range(*self.spans[task])
        return {name: {number: operator.base[number] for number in numbers} for name, operator in self.inputs.items()}

    def with_states(self, states: TaskStates) -> MicroBatch:
        """The same with these state partitions only."""
        inputs = {name: replace(operator, base=states.get(name, {})) for name, operator in self.inputs.items()}
        return replace(self, inputs=inputs)

    def start(self, operator: OperatorInput) -> Context:
        """The context of an operator's rows next to the input."""
        return operator.plan.standing(self._between(operator.progress, operator.progress))

    def context(self, operator: OperatorInput, after: Progress) -> Context:
        """The context of an operator's step that ends with this progress: never with an earlier watermark."""
        watermark = max(operator.progress.watermark_us, after.watermark_us)
        return self._between(operator.progress, after.with_watermark(watermark))

    def _between(self, before: Progress, after: Progress) -> Context:
        return Context(before, after, self.was_us, self.now_us, self.store.budget_bytes)

    @property
    def progress(self) -> dict[str, Progress]:
        """The progress of all operators at the start."""
        return {name: operator.progress for name, operator in self.inputs.items()}

    def after(self, claims: Mapping[str, Sequence[Claims]]) -> dict[str, Progress]:
        """The progress of all operators at the end, by the claims of the streams' blocks; rows that were read before
        move none.
        """
        if self.graph.output.reprocessing:
            return self.progress
        return self.graph.after(self.progress, claims, self.now_us)

    def finished(self) -> dict[str, Progress]:
        """The progress of all operators at the end of time. Raises `UsageError` (``rebuilding``) while rows of an
        outer join are missing.
        """
        return self.graph.finished(self.progress)

    def idle(self, after: Mapping[str, Progress]) -> bool:
        """Whether there is nothing to do without input, if it ends with this progress."""
        operators = self.inputs.items()
        return not any(op.due(self.context(op, op.observed(after[name], ()))) for name, op in operators)

    def keeps(self, after: Mapping[str, Progress], kept_us: int | None) -> bool:
        """Whether a micro-batch without input that ends with this progress is worth a checkpoint, if the last one was
        made at processing time ``kept_us``.

        A watermark that goes on with the clock needs none before something is due; one that does so only while its
        source is quiet needs one every `QUIET_KEPT_US`, if a window waits, as a restart would set it back.
        """
        moved = [name for name, ends in after.items() if ends.watermark_us != self.inputs[name].progress.watermark_us]
        if not moved:
            return False
        if not self.idle(after):
            return True
        settings = [self.inputs[name].plan.input.watermarks for name in moved if self.graph.reads_streams(name)]
        if any(not setting.by_clock and setting.quiet_us is None for setting in settings):
            return True
        waits = any(state.due_mark != END_US for operator in self.inputs.values() for state in operator.base.values())
        lost = kept_us is None or self.now_us - kept_us >= QUIET_KEPT_US
        return waits and lost and not all(setting.by_clock for setting in settings)


def is_due(state: PartitionState, watermark: int, now_us: int | None = None) -> bool:
    """Whether a step without arrivals that reaches this watermark and clock may do anything."""
    by_clock = now_us is not None and state.due_us is not None and state.due_us <= now_us
    return by_clock or state.due_mark is None or watermark == END_US or state.due_mark <= watermark


class Block(msgspec.Struct, frozen=True):
    """Part of piece ``number`` of an operator's input, for one task. ``operator``: its number in the graph. Every
    task gets the facts of the piece; ledger rows, counters and times go to only one of them.
    """

    operator: int
    task: int
    number: int
    rows: PartitionedRows | None = None
    """Rows of `Plan.exchanged`, by state partition; None if there are none for the task."""
    claims: Claims = Claims()
    after: dict[str, Progress] | None = None
    """From an operator upstream: the progress of its reader, and those downstream of that, at the end."""
    rejected: pa.Table | None = None
    """Rows of the late ledger."""
    counters: dict[str, int] = {}
    spent_us: dict[str, int] = {}
    """How long the phases of its making, and of that of others, took, see `PHASES`."""


def blocks_of(
    classified: Classified,
    operator: int,
    number: int,
    of_tasks: Sequence[PartitionSpan],
    after: dict[str, Progress] | None = None,
) -> Iterator[Block]:
    """A classified piece as a block for each task; ledger rows and counters go to one of them.

    With ``after`` it is from another operator: then the watermark is known, and its rows claim none.
    """
    owner = number % len(of_tasks)
    claims = classified.claims if after is None else classified.claims.of_panes
    for task, span in enumerate(of_tasks):
        rows = classified.partials.between(*span)
        block = Block(operator, task, number, rows if rows.counts else None, claims, after)
        if task == owner:
            block = msgspec.structs.replace(block, rejected=classified.rejected, counters=classified.counters)
        yield block


def rows_by_partition(blocks: Iterable[Block]) -> dict[int, pa.Table]:
    """The rows of an operator's blocks by state partition, in the order of the input; none of one without rows."""
    parts: dict[int, list[pa.Table]] = {}
    for block in sorted(blocks, key=lambda block: block.number):
        for partition, rows in block.rows.parts() if block.rows is not None else ():
            parts.setdefault(partition, []).append(rows)
    return {partition: pa.concat_tables(parts[partition]) for partition in sorted(parts)}


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
    ``chunks`` that of the state partitions that have emitted ``panes``, which are the chunks of an origin
    (`tidestate.operators.plan.output_buffers`).
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
        """The new files, of a bundle the last part: those that the partitions in ``base`` do not have."""
        known = {ref.path for answer in self.answers for ref in base[answer.partition].files}
        refs = (ref for answer in self.answers for ref in answer.state.files if ref.path not in known)
        new = {ref.path: ref for ref in refs}
        return (*new.values(), *self.panes, *self.late)
