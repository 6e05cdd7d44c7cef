"""A job on a checkpoint root, as the driver sees it: begin, rounds, commit.

One method publishes, `commit`: everything before it can be discarded, everything after it repeated.

What is published was checked before: the answers of the tasks, and whether the checkpoint belongs to this runner, as
each knows its input by something else.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import msgspec

from tidestate.operators.bind.evolve import TakenOver, after_step, new_operator, take_over
from tidestate.operators.bind.needs import needs_of_graph
from tidestate.operators.bind.signs import as_it_began
from tidestate.operators.describe.configuration import BY_HAND
from tidestate.operators.describe.runs import JobHook
from tidestate.operators.engine.expectations import check_expectation
from tidestate.operators.engine.job_log import JobLog
from tidestate.operators.engine.micro_batch import MicroBatch, OperatorInput, TaskResult, is_due
from tidestate.operators.engine.numbered_chunks import numbered_through
from tidestate.operators.engine.rebuild import (
    after_replay,
    check_replay,
    replayed,
    served_by_side_run,
    variants_of,
    with_all_back,
    without_lost,
)
from tidestate.operators.plan.graph import Graph
from tidestate.operators.plan.plan import Plan, RowKind
from tidestate.operators.plan.reasons import INCOMPLETE
from tidestate.operators.progress.advance_time import Advance
from tidestate.operators.progress.maxima import STEP_BYTES
from tidestate.operators.progress.origins import BufferState
from tidestate.operators.progress.progress import (
    GeneratorState,
    Numbering,
    Progress,
    restarted_progress,
    stored_progress,
    watermark_of,
)
from tidestate.recovery.log.acknowledgements import acknowledge, delivered
from tidestate.recovery.log.checkpoint import Checkpoint, check_visible, now_us
from tidestate.recovery.log.lease import check_idle
from tidestate.recovery.log.manifest import (
    AnsweredRequest,
    CheckpointKind,
    Delivered,
    Head,
    InputPosition,
    Manifest,
    OperatorState,
    OutputKind,
    Restore,
    Scan,
    SparkPosition,
    Spent,
    delivered_for,
)
from tidestate.recovery.log.manifest_file import grown_needs, origin, successor
from tidestate.recovery.moves.repair import open_for_start
from tidestate.recovery.moves.rescale import check_partitions
from tidestate.recovery.start.letter_case import check_letter_case
from tidestate.recovery.start.policy import Policy
from tidestate.recovery.start.restore_budget import budgeted, restore_of, restore_text
from tidestate.statestore.arrays import total
from tidestate.statestore.decoding import prepare
from tidestate.statestore.errors import CorruptionError, IncompatibleError, UsageError, invariant
from tidestate.statestore.spec.combiners import registrations
from tidestate.statestore.spec.store import StoreConfig
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.storage.objects import Objects

Runner = Literal["spark", "standalone", "harness", "by hand"]
"""What a root knows its input by: Spark's offsets, whoever reads them; batches that a standalone run counts; or none.
"""
_CONTINUED = {
    "spark": "Spark's offsets say where the input of this checkpoint ended: continue with on_spark, or with "
    "standalone over a ParquetFolder or another SparkInput",
    "standalone": "the standalone runner has been writing this checkpoint: continue with standalone, over the input "
    "that it had",
    "harness": "a test harness has been writing this checkpoint: continue with harness",
    "by hand": "an operator by hand has been writing this checkpoint: continue with by_hand",
}


def runner_of(head: Manifest) -> Runner | None:
    """The runner whose form of input a checkpoint has; None where none has given any."""
    if head.spark is not None:
        return "spark"
    if head.input is not None:
        return "standalone"
    if any(BY_HAND in operator.configuration for operator in head.operators.values()):
        return "by hand"
    return "harness" if any(head.totals.values()) else None


def runner_note(head: Manifest) -> str | None:
    """Which runner a checkpoint belongs to, for a plan that does not know which one would start."""
    runner = runner_of(head)
    return None if runner is None else f"{_CONTINUED[runner]}; anything else is refused"


def drained_error(checkpoint_id: int) -> UsageError:
    """Why a root takes no more input."""
    return UsageError(
        "this checkpoint is drained: every window has fired, and no more input is accepted; start with a new "
        "checkpoint folder",
        code="drained",
        id=checkpoint_id,
    )


def check_runner(head: Manifest | None, runner: Runner | None) -> None:
    """Raises `IncompatibleError` (``other-runner``) where another one has given the input of this checkpoint:
    this one would not know where it ended. A standalone run over a `SparkInput` counts as Spark.
    """
    runner_before = runner_of(head) if head is not None else None
    if head is not None and runner is not None and runner_before not in (None, runner):
        raise IncompatibleError(
            f"{_CONTINUED[runner_before]}, or use another folder", code="other-runner", id=head.id
        )


SAME = ("progress", "max_event_us", "inputs")
"""The fields that are equal in the answers of all tasks for an operator."""
CLASSES = ("on_time", "mildly_late", "future")
"""An accepted event has one of these classes."""


def by_operator(names: Iterable[str], head: Manifest, results: Sequence[TaskResult]) -> dict[str, list[TaskResult]]:
    """The answers for each operator, by partition. Raises `InvariantError` if they contradict each other."""
    answers: dict[str, list[TaskResult]] = {name: [] for name in names}
    for result in sorted(results, key=lambda result: result.span):
        invariant(result.operator in answers, "only an operator of the round answers", operator=result.operator)
        answers[result.operator].append(result)
    for name, of_name in answers.items():
        _check_partitions(name, head.operators[name], of_name)
        _check_counters(name, of_name)
    return answers


def _check_partitions(name: str, operator: OperatorState, results: Sequence[TaskResult]) -> None:
    """Every partition has answered once, from its base, or had nothing to do; all saw the same input."""
    asked = [number for result in results for number in range(*result.span)]
    answers = [answer for result in results for answer in result.answers]
    inside = all(
        result.span[0] <= answer.partition < result.span[1] for result in results for answer in result.answers
    )
    bases = {answer.partition: operator.partitions[answer.partition].lineage for answer in answers} if inside else {}
    answered = [(answer.partition, answer.base_lineage) for answer in answers]
    invariant(
        asked == list(range(len(operator.partitions))) and answered == sorted(bases.items()),
        "each partition answers once, from its base",
        operator=name,
        asked=[result.span for result in results],
        found=answered,
    )
    for part in SAME:
        values = [getattr(result, part) for result in results]
        invariant(
            all(value == values[0] for value in values),
            "all partitions saw the same input",
            operator=name,
            part=part,
            values=values,
        )
    mark = results[0].progress.watermark_us
    left = [number for number in asked if number not in bases]
    due = [number for number in left if is_due(operator.partitions[number], mark)]
    invariant(not due, "a partition with something to do answers", operator=name, due=due)


def _check_counters(name: str, results: Sequence[TaskResult]) -> None:
    """No event is lost: each is accepted, with one class, or has a row in the late ledger."""
    counters = total([result.counters for result in results])
    count = counters.get
    classes = sum(count(lateness, 0) for lateness in CLASSES)
    invariant(count("accepted", 0) == classes, "an accepted event has one class", operator=name, counters=counters)
    refused = count("events", 0) - count("accepted", 0) + count("fed", 0) - count("fed_accepted", 0)
    rows = sum(ref.rows for result in results for ref in result.late)
    invariant(
        0 <= refused <= rows,
        "an event that is not accepted has a row in the ledger",
        operator=name,
        counters=counters,
        rows=rows,
    )


def operator_after(operator: OperatorState, results: Sequence[TaskResult], progress: Progress) -> OperatorState:
    """The operator after its partitions have answered."""
    plain = msgspec.to_builtins(progress)  # plain values: `recovery` knows nothing of operators
    generator = plain.pop("generator")
    states = {answer.partition: answer.state for result in results for answer in result.answers}
    expire = next((result.expire for result in results if result.expire), {})
    return msgspec.structs.replace(
        operator.stepped(states, expire),
        watermark_us=watermark_of(progress),
        origins=progress.generator.origins or operator.origins,
        progress=plain,
        advances=generator["advances"],
        buffers=generator["buffers"].get(""),
        buffers_by_side={side: saved for side, saved in generator["buffers"].items() if side},
        numbering=generator["numbering"],
        resumes=False,
        gone_us=operator.gone_us if results[0].gone_us is None else results[0].gone_us,
    )


prepare(BufferState, Advance, Progress, Numbering)


def progress_of(operator: OperatorState) -> Progress | None:
    """The stored progress of an operator; None before the first batch. Raises `CorruptionError` if it is invalid."""
    if operator.progress is None:
        return None
    try:
        by_side = operator.buffers_by_side if operator.buffers is None else {"": operator.buffers}
        buffers = msgspec.convert(by_side, dict[str, BufferState])
        advances = msgspec.convert(operator.advances, dict[str, Advance])
        progress = msgspec.convert(operator.progress, Progress)
        if any(len(steps) % STEP_BYTES for steps in progress.ahead.values()):
            raise msgspec.ValidationError("steps are pairs of a time and a position")
        numbering = msgspec.convert(operator.numbering, Numbering) if operator.numbering is not None else None
        state = GeneratorState(advances, buffers, operator.origins, numbering=numbering)
        return msgspec.structs.replace(progress, generator=state)
    except msgspec.ValidationError as error:
        raise CorruptionError(
            f"the manifest is damaged ({error}): nothing was changed; restore a good copy",
            code="manifest-damaged",
            part="progress",
        ) from None


log = logging.getLogger("tidestate")


def no_job_hook(_moment: str, _checkpoint_id: int) -> None:
    """The hook of a job that has none."""


@dataclass(frozen=True)
class Position:
    """The input position after a checkpoint: ``spark`` or ``input``, by the runner; the processing time; how a Spark
    batch was read; and the operators that are ``fed`` all late events that waited for them in the ledger, or
    ``fed_by_reason`` those of one reason.
    """

    spark: SparkPosition | None = None
    input: InputPosition | None = None
    processing_us: int | None = None
    scan: Scan | None = None
    fed: tuple[str, ...] = ()
    fed_by_reason: Mapping[str, str] = field(default_factory=dict)


class Job:
    """A graph of operators on an open checkpoint root, in one writer epoch."""

    def __init__(self, graph: Graph, checkpoint: Checkpoint, store: StoreConfig, head: Head, hook: JobHook) -> None:
        self.graph = graph
        self.checkpoint = checkpoint
        self._store = budgeted(store, head.manifest)
        self._begun, self.log = False, JobLog(checkpoint.objects.root)
        self._stepped = False
        """Whether this run has made a step: what its plans know of earlier settings holds up to the first."""
        self.parallel: int | None = None
        """The number of state partitions that run at once, if the runner knows it."""
        self._head = head
        self._hook = hook
        self._replayed, self._side_run = replayed(graph), served_by_side_run(graph)
        """The operators with messages that a replay can put back, and those that only a side run serves."""
        stored = {name: progress_of(operator) for name, operator in self.head.operators.items()}
        self.delivered = delivered(checkpoint, head.manifest)
        """What sinks have accepted."""
        self.late_sink = False
        """Whether this run has a sink for late rows."""
        self.sinkless: tuple[str, ...] = ()
        """The outputs for which this run has no sink, where it has some for others."""
        self._recorded = True
        self._progress = {
            name: restarted_progress(graph.plans[name].input.watermarks, stored.get(name) or begun)
            for name, begun in graph.begin().items()
        }
        self._kept = self._progress

    @classmethod
    def begin(
        cls,
        graph: Graph,
        checkpoint: Checkpoint,
        store: StoreConfig,
        *,
        partitions: int | None,
        runner: Runner | None = None,
        otherwise: int = 1,
        check: Callable[[Manifest | None], None] = lambda _head: None,
        hook: JobHook = no_job_hook,
        policy: Policy = Policy(),  # noqa: B008  immutable
        may_change: bool = False,
    ) -> Job:
        """Check that the job may continue here, then fence: publish the next manifest under a new writer epoch.

        With ``may_change`` the configuration may have changed, as far as the state can follow; see `evolve`.
        ``partitions`` is for a new root, ``otherwise`` its default; ``runner`` is the only one that may have given it
        input. Raises `IncompatibleError` for another job or a changed configuration, `UsageError` (``running``) if
        the ``policy`` refuses to take over from a running driver, and what ``check`` raises; nothing has changed
        then.
        """
        if policy.messages == "replay":
            check_replay(graph, runner)
        checkpoint = checkpoint.as_new_run()
        follow = partial(take_over, graph, may_change=may_change, dropped=policy.dropped)
        newest = open_for_start(checkpoint, policy, follow)
        head = newest.manifest if newest else None
        check_runner(head, runner)
        if head is not None:
            for operator in head.operators.values():
                progress_of(operator)  # raises before anything is published
        check_letter_case(checkpoint, graph.plans, head.operators if head is not None else ())
        taken = follow(head) if head is not None else None
        graph = as_it_began(graph, head)
        check(head)
        if newest is not None and newest.manifest.drained:
            return cls(graph, checkpoint, store, newest, hook)  # nothing can follow: no fence
        if policy.second == "refuse":
            check_idle(checkpoint, instead='Policy(second="takeover")')
        if newest is None or taken is None:
            manifest = _first(graph, checkpoint, otherwise if partitions is None else partitions)
        else:
            graph = taken.graph
            _warn_of_other(partitions, newest.manifest, checkpoint)
            manifest = _fence(checkpoint, newest, taken, policy)
        job = cls(graph, checkpoint, store, checkpoint.publish(manifest), hook)
        if taken is not None and head is not None:
            for line in taken.lines(head):
                log.warning(line)
        return job

    @property
    def head(self) -> Manifest:
        """The manifest of this job's newest checkpoint."""
        return self._head.manifest

    def tables(self, operator: str) -> tuple[TableSpec, ...]:
        """The state tables of an operator, with the column ids of its files."""
        return self.head.operators[operator].tables

    @property
    def plan(self) -> Plan:
        """The last operator, whose panes the job delivers, beside those of further outputs."""
        return self.graph.output

    def check_open(self) -> None:
        """Raise `UsageError` (``drained``) if the input has ended."""
        if self.head.drained:
            raise drained_error(self.head.id)

    def micro_batch(self, now_us: int | None = None, rows_are: RowKind = "live") -> MicroBatch:
        """The micro-batch of the next checkpoint, at this processing time (default: that of the last one)."""
        head, objects = self.head, self.checkpoint.objects
        now = _latest(head.processing_us, now_us) or 0
        graph = self.graph
        # Only after a loss, and for rows that come again, does an operator take another variant.
        if rows_are != "live" or any(operator.rebuilding or operator.resumes for operator in head.operators.values()):
            graph = variants_of(graph, head.operators, rows_are)
        inputs = {
            name: OperatorInput(
                plan=plan,
                progress=self._progress[name].with_watermark(self._kept[name].watermark_us),
                tables=self.tables(name),
                base=dict(enumerate(head.operators[name].partitions)),
                expired=head.operators[name].expired,
                replayable=self._replayed[name].replayable if name in self._replayed else (),
                side_run=self._side_run[name].message_tables if name in self._side_run else (),
                emitted=_last_buffer(plan, head.operators[name]),
            )
            for name, plan in graph.plans.items()
        }
        return MicroBatch(
            checkpoint_id=head.id + 1,
            root=objects.root,
            bases=objects.bases,
            job_id=self.checkpoint.marker.job_id,
            store=self._store,
            partitions=head.partitions,
            graph=graph,
            inputs=inputs,
            was_us=now if head.processing_us is None else head.processing_us,
            now_us=now,
            combiners=registrations([table for own in inputs.values() for table in own.tables]),
        )

    @property
    def progress(self) -> dict[str, Progress]:
        """The progress of each operator, with what the clock has moved since the newest checkpoint."""
        return self._progress

    def set_progress(self, progress: dict[str, Progress]) -> None:
        """Replace the progress, without a checkpoint: only what follows from the clock may differ. The next round
        begins at the watermark of the newest checkpoint, as it would after a restart.
        """
        self._progress = progress

    def commit(
        self,
        results: Sequence[TaskResult],
        kind: CheckpointKind,
        position: Position,
        *,
        drained: bool = False,
        withheld: bool = False,
        rebuilt: bool = False,
        mended: bool = False,
        spent: Spent | None = None,
        request: int = 0,
    ) -> Manifest:
        """Publish the next checkpoint. ``withheld``: no sink gets its output; ``rebuilt``: it was a replay for
        messages that were lost; ``mended``: it put all of them back. ``spent``: where its time went. ``request``:
        which request to this run has made it, 0 for none.

        Raises `FencedError` or `ConflictError`, and `UsageError` if a file that another process has written is not
        visible here (``file-unseen``), or rows fail an ``expectation``; nothing was published then.
        """
        head, plans, answers = self.head, self.graph.plans, self._checked(results)
        self._hook("before-manifest", head.id + 1)
        progress = {name: stored_progress(first.progress) for name, (first, *_) in answers.items()}
        operators = self._operators_after(answers, progress, rebuilt=rebuilt, mended=mended)
        ordered = [answer for of_name in answers.values() for answer in of_name]
        restored = head.restored if self._begun else self._restored(head, ordered)
        manifest = successor(
            self._head,
            kind,
            self.checkpoint.writer,
            now_us(),
            operators=operators,
            max_event_us=_latest(head.max_event_us, *(result.max_event_us for result in ordered)),
            processing_us=_latest(head.processing_us, position.processing_us),
            drained=drained,
            spark=position.spark or head.spark,
            input=position.input or head.input,
            scan=position.scan,
            panes=tuple(ref for result in ordered for ref in result.panes),
            late=tuple(ref for result in ordered for ref in result.late),
            delivered=self._delivered(withheld),
            counters=total([self._named(result) for result in ordered]),
            restored=restored,
            spent=spent,
            **self._asked_for(position, request),
        )
        self._publish(manifest)
        self._progress = self._kept = progress
        if not self._begun and restored is not None:
            self._begun = True
            log.info(restore_text(restored))
        self.log.published(manifest, plans, progress, answers, time.monotonic())
        self._hook("after-manifest", manifest.id)
        return manifest

    def _checked(self, results: Sequence[TaskResult]) -> dict[str, list[TaskResult]]:
        """The answers for each operator, as the next checkpoint may have them. Raises as `commit` does."""
        objects = self.checkpoint.objects
        answers = by_operator(self.graph.plans, self.head, results)
        _check_written(objects, self.head, results)
        for name, plan in self.graph.plans.items():
            for expectation in () if plan.input.stages is None else plan.input.stages.expectations:
                check_expectation(self.checkpoint, plan, expectation, answers[name])
        for name, output in self.graph.outputs.items():
            if output.output_origin is not None:
                answers[name] = numbered_through(objects, output, self.head.id + 1, answers[name])
        return answers

    def _asked_for(self, position: Position, request: int) -> dict[str, Any]:
        """What the next checkpoint says of calls between batches: up to where ledgers were put back, after one that
        has put back what ``position`` says, and the newest request, which may be the one that makes it.
        """
        head = self.head
        reprocessing = (name for name, plan in self.graph.plans.items() if plan.reprocesses)
        fed, fed_by_operator = head.fed_after(position.fed, reprocessing)
        return {
            "fed": fed,
            "fed_by_operator": fed_by_operator,
            "fed_by_reason": head.fed_by_reason_after(fed, fed_by_operator, position.fed_by_reason),
            "answered": AnsweredRequest(head.epoch, request, head.id + 1) if request else head.answered,
        }

    def _operators_after(
        self,
        answers: Mapping[str, Sequence[TaskResult]],
        progress: Mapping[str, Progress],
        *,
        rebuilt: bool,
        mended: bool,
    ) -> dict[str, OperatorState]:
        head = self.head
        operators = {name: operator_after(head.operators[name], answers[name], progress[name]) for name in answers}
        for name, output in self.graph.outputs.items():
            operators[name] = _numbered(output, operators[name], answers[name])
        for name, plan in self._replayed.items() if rebuilt else ():
            operators[name] = after_replay(plan, head.operators[name], operators[name], answers[name], head.id + 1)
        if mended:
            operators = {name: with_all_back(head.operators[name], state) for name, state in operators.items()}
        return operators

    def _publish(self, manifest: Manifest) -> None:
        invariant(self.checkpoint.published < manifest.id, "the ids of a run rise", id=manifest.id)
        self._head = self.checkpoint.publish(manifest)
        self.delivered, self._recorded = manifest.delivered, True
        if not self._stepped:
            self.graph, self._stepped = after_step(self.graph), True

    def check_newest(self) -> None:
        """Raise `FencedError` if a newer run or a reset has published after this job's newest checkpoint."""
        self.checkpoint.check_newest(self.head)

    def _delivered(self, withheld: bool) -> Delivered:
        """What the next checkpoint records as delivered; its own output too if no sink gets it."""
        delivered = msgspec.structs.replace(self.delivered, late_sink=self.late_sink, sinkless=self.sinkless)
        own_id = self.head.id + 1
        return delivered.reached("panes", own_id).reached("late", own_id) if withheld else delivered

    def mark_delivered(
        self, checkpoint_id: int, kind: OutputKind = "panes", operator: str = "", *, any_rows: bool = True
    ) -> None:
        """A sink has accepted all output of a kind up to this checkpoint, of several outputs the panes of this
        ``operator``; durable with the next, or `acknowledge`.
        """
        invariant(
            checkpoint_id <= self.head.id,
            "a sink accepts only what is published",
            id=checkpoint_id,
            head=self.head.id,
        )
        several = self.graph.several if kind == "panes" else ()
        if several:
            up_to = {name: self.delivered.up_to(kind, name) for name in several}
            self.delivered = self.delivered.of_outputs({**up_to, operator: max(up_to[operator], checkpoint_id)})
        else:
            self.delivered = self.delivered.reached(kind, checkpoint_id)
        self._recorded = self._recorded and not any_rows

    def acknowledge(self) -> None:
        """Make durable what the sink has accepted, without a checkpoint. Raises `UnavailableError`."""
        if not self._recorded:
            so_far = self.delivered  # read first: a batch may be committed meanwhile
            acknowledge(self.checkpoint, self.head, so_far)
            self._recorded = True

    def _restored(self, head: Manifest, results: Sequence[TaskResult]) -> Restore:
        """What the first step of this run has read."""
        parts = [(answer.partition, answer.restored) for result in results for answer in result.answers]
        return restore_of(head, self._store, parts, self.parallel)

    def _named(self, result: TaskResult) -> dict[str, int]:
        """The counters of an answer that a manifest keeps, prefixed with the operator's name if there are several."""
        prefix = "" if self.graph.single else f"{result.operator}."
        return {f"{prefix}{name}": count for name, count in result.counters.items() if name != INCOMPLETE}


def _last_buffer(plan: Plan, operator: OperatorState) -> int:
    """The number of the last buffer that an operator put out as the origin that it is; 0 for none."""
    origin = plan.output_origin
    return 0 if origin is None or origin.origin is None else operator.emitted.get(origin.origin, 0)


def _numbered(plan: Plan, operator: OperatorState, answers: Sequence[TaskResult]) -> OperatorState:
    """The output operator after a step, which was a buffer of it where anything was emitted."""
    origin = plan.output_origin
    if origin is None or origin.origin is None or not any(answer.panes for answer in answers):
        return operator
    counted = {**operator.emitted, origin.origin: _last_buffer(plan, operator) + 1}
    return msgspec.structs.replace(operator, emitted=counted)


def _check_written(objects: Objects, head: Manifest, results: Sequence[TaskResult]) -> None:
    """Raise `UsageError` if a file that another process has written is not visible here."""
    pairs = [(result, head.operators[result.operator].partitions) for result in results if result.host]
    if pairs:
        files = [(result.host, ref) for result, base in pairs for ref in result.written(base)]
        check_visible(objects, files)


def _fence(checkpoint: Checkpoint, newest: Head, taken: TakenOver, policy: Policy) -> Manifest:
    """The first manifest of a run that goes on from ``newest``: its publication ends every older run."""
    head, operators = newest.manifest, taken.operators
    if policy.messages != "stop":
        operators = without_lost(checkpoint, taken.graph, operators, head.id + 1, messages=policy.messages)
    return successor(
        newest,
        "fence",
        checkpoint.writer,
        now_us(),
        operators=operators,
        outputs=taken.graph.several,
        needs=grown_needs(head.needs, needs_of_graph(taken.graph), taken.needs(head)),
        input=taken.input_of(head),
        # A new output has panes from the next checkpoint on: nothing of it is owed to anybody.
        delivered=delivered_for(delivered(checkpoint, head), head, [*taken.graph.outputs], lambda _: head.id + 1),
    )


def _first(graph: Graph, checkpoint: Checkpoint, partitions: int) -> Manifest:
    """The first manifest of a root."""
    check_partitions(partitions)
    operators = {node.plan.name: new_operator(node, partitions, 1) for node in graph.nodes}
    begun, needs = origin(checkpoint.marker.job_id), needs_of_graph(graph)
    return successor(
        begun, "fence", checkpoint.writer, now_us(), operators=operators, outputs=graph.several, needs=needs
    )


def _warn_of_other(partitions: int | None, head: Manifest, checkpoint: Checkpoint) -> None:
    if partitions not in (None, head.partitions):
        log.warning(
            "partitions=%d applies only to a new checkpoint, and this one has %d: to change the number, stop the "
            "job and run tidestate rescale %s --partitions %d --confirm",
            partitions,
            head.partitions,
            checkpoint.objects.root,
            partitions,
        )


def _latest(*times: int | None) -> int | None:
    return max((time for time in times if time is not None), default=None)
