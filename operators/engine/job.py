"""The driver's side of a job: begin, commit, drain. Shared by the standalone and the Spark runner.

One method publishes, `commit`; everything before it can be thrown away, everything after it repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from tidestate.operators.bind.evolve import Choose, after_step, check_followed, new_operator, take_over
from tidestate.operators.describe.runs import JobHook
from tidestate.operators.engine.job_log import Logged, Strides
from tidestate.operators.engine.partition import PartitionResult, Round
from tidestate.operators.engine.results import by_operator, operator_after
from tidestate.operators.engine.round import GraphRound
from tidestate.operators.plan.graph import Graph
from tidestate.operators.plan.plan import Plan
from tidestate.operators.plan.transition import total
from tidestate.operators.progress.advance_time import Advance
from tidestate.operators.progress.buffered import BufferState
from tidestate.operators.progress.maxima import STEP_BYTES
from tidestate.operators.progress.rounds import Progress, Rounds, restarted
from tidestate.operators.progress.tracker import Tracker
from tidestate.recovery.log.acknowledgements import acknowledge, delivered
from tidestate.recovery.log.checkpoint import Checkpoint, now_us
from tidestate.recovery.log.lease import check_idle
from tidestate.recovery.log.manifest import (
    CheckpointKind,
    Head,
    InputPosition,
    Manifest,
    OperatorState,
    SparkPosition,
)
from tidestate.recovery.log.successor import origin, successor
from tidestate.recovery.moves.repair import open_for_start
from tidestate.recovery.moves.rescale import check_partitions
from tidestate.recovery.start.policy import Policy
from tidestate.recovery.start.restore_budget import budgeted, restore_of, restore_text
from tidestate.recovery.start.visibility import WrittenFile, check_visible
from tidestate.statestore.errors import CorruptionError, UsageError, invariant
from tidestate.statestore.spec.combiners import registrations
from tidestate.statestore.spec.store import StoreConfig
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.storage.objects import Objects

log = logging.getLogger("tidestate")


def no_job_hook(_moment: str, _checkpoint_id: int) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Position:
    """Where the input stands after a checkpoint: one of the two, as the runner has it."""

    spark: SparkPosition | None = None
    input: InputPosition | None = None
    processing_us: int | None = None


class Job:
    """A graph of operators on an opened checkpoint, in one writer epoch."""

    def __init__(self, graph: Graph, checkpoint: Checkpoint, store: StoreConfig, head: Head, hook: JobHook) -> None:
        self.graph = graph
        self.checkpoint = checkpoint
        self._store = budgeted(store, head.manifest)
        self._begun, self._strides = False, Strides()
        self.parallel: int | None = None
        """How many state partitions are at work at once, where the runner knows."""
        self._head = head
        self._hook = hook
        kept = {name: progress_of(operator) for name, operator in self.head.operators.items()}
        self.delivered = delivered(checkpoint, head.manifest)
        """Up to which checkpoint a sink has taken everything."""
        self._recorded = True
        self._progress = {name: restarted(kept.get(name) or begun, begun) for name, begun in graph.begin().items()}

    @classmethod
    def begin(
        cls,
        graph: Graph,
        checkpoint: Checkpoint,
        store: StoreConfig,
        *,
        partitions: int | None,
        otherwise: int = 1,
        check: Callable[[Manifest | None], None] = lambda _head: None,
        hook: JobHook = no_job_hook,
        policy: Policy = Policy(),  # noqa: B008  immutable
        choose: Choose | None = None,
    ) -> Job:
        """Check that the job may continue here, then fence: publish the next manifest under a new writer epoch.
        With ``choose`` its configuration may have changed, where the state can follow; see `evolve`.

        Raises `IncompatibleError` for another job or a changed configuration, `UsageError` (``running``) where the
        ``policy`` refuses to take over from a running driver, and what ``check`` raises; nothing has changed then.
        ``partitions`` are those of a new checkpoint, ``otherwise`` where none are asked for.
        """
        checkpoint = checkpoint.as_new_run()
        newest = open_for_start(checkpoint, policy, partial(check_followed, graph, choose))
        head = newest.manifest if newest else None
        if head is not None:
            for operator in head.operators.values():
                progress_of(operator)  # what cannot be read is found before anything is published
        taken = take_over(graph, head, choose) if head is not None else None
        check(head)
        if newest is not None and newest.manifest.drained:
            return cls(graph, checkpoint, store, newest, hook)  # nothing can follow, so nothing is fenced
        if policy.second == "refuse":
            check_idle(checkpoint, instead='Policy(second="takeover")')
        if newest is None or taken is None:
            partitions = otherwise if partitions is None else partitions
            check_partitions(partitions)
            begins = origin(checkpoint.marker.job_id)
            operators = {node.plan.name: new_operator(node, partitions, 1) for node in graph.nodes}
            manifest = successor(begins, "fence", checkpoint.writer, now_us(), operators=operators)
        else:
            graph = taken.graph
            _warn_of_other(partitions, newest.manifest, checkpoint)
            manifest = successor(
                newest,
                "fence",
                checkpoint.writer,
                now_us(),
                operators=taken.operators,
                input=taken.input_of(newest.manifest),
                delivered=delivered(checkpoint, newest.manifest),
            )
        job = cls(graph, checkpoint, store, checkpoint.publish(manifest), hook)
        if taken is not None and head is not None:
            for line in taken.lines(head):
                log.warning(line)
        return job

    @property
    def head(self) -> Manifest:
        """The newest checkpoint of this job."""
        return self._head.manifest

    def tables(self, operator: str) -> tuple[TableSpec, ...]:
        """The state tables of an operator, as files know their columns."""
        return self.head.operators[operator].tables

    @property
    def plan(self) -> Plan:
        """The operator whose panes the job shows."""
        return self.graph.output

    def check_open(self) -> None:
        """Raise `UsageError` once drained."""
        if self.head.drained:
            raise UsageError(
                "this checkpoint is drained: every window has fired, so it takes no new input; "
                "start with a new checkpoint folder",
                code="drained",
                id=self.head.id,
            )

    def round(self, now_us: int | None = None, *, reprocessing: bool = False) -> GraphRound:
        """What all are told about the next checkpoint, at this processing time (default: the last one's).
        ``reprocessing``: its input comes back from the late ledger.
        """
        was = self.head.processing_us
        now = max(known) if (known := [t for t in (was, now_us) if t is not None]) else 0
        rounds = {
            name: Round(
                root=self.checkpoint.objects.root,
                bases=self.checkpoint.objects.bases,
                job_id=self.checkpoint.marker.job_id,
                plan=plan,
                tables=self.tables(name),
                store=self._store,
                base=self.head.operators[name].partitions,
                sequence=self.head.id + 1,
                progress=self._progress[name],
                was_us=now if was is None else was,
                now_us=now,
                origins=self.head.operators[name].origins,
                reprocessing=reprocessing,
                shows=plan is self.graph.output,
                combiners=registrations(self.tables(name)),
            )
            for name, plan in self.graph.plans.items()
        }
        return GraphRound(self.graph, rounds)

    @property
    def progress(self) -> dict[str, Progress]:
        """How far the sources of each operator have come."""
        return self._progress

    def waited(self, progress: dict[str, Progress]) -> None:
        """Time has gone by and nothing has changed but for how long sources have been quiet: nothing is published."""
        self._progress = progress

    def commit(
        self,
        results: Sequence[PartitionResult],
        kind: CheckpointKind,
        position: Position,
        *,
        drained: bool = False,
        fed: bool = False,
        withheld: bool = False,
    ) -> Manifest:
        """Publish the next checkpoint; with ``fed``, as one that took the whole ledger so far; ``withheld``, as one
        whose panes no sink gets.

        Raises `FencedError` or `ConflictError`, and `UsageError` (``file-unseen``) where a file that another process
        has written is not here; nothing was published then.
        """
        head, plans = self.head, self.graph.plans
        answers = by_operator(plans, head, results)
        _check_written(self.checkpoint.objects, head, results)
        self._hook("before-manifest", head.id + 1)
        progress = {
            name: Rounds(plans[name].watermarks).between_rounds(own[0].progress) for name, own in answers.items()
        }
        operators = {name: operator_after(head.operators[name], own, progress[name]) for name, own in answers.items()}
        ordered = [one for own in answers.values() for one in own]
        restored = restore_of(head, self._store, [(one.partition, one.restored) for one in ordered], self.parallel)
        counters = total([self._named(one) for one in ordered])
        invariant(_adds_up(counters), "accepted events are those on time, late or of the future", counters=counters)
        manifest = successor(
            self._head,
            kind,
            self.checkpoint.writer,
            now_us(),
            operators=operators,
            max_event_us=_latest(head.max_event_us, *(one.max_event_us for one in ordered)),
            processing_us=_latest(head.processing_us, position.processing_us),
            drained=drained,
            spark=position.spark or head.spark,
            input=position.input or head.input,
            panes=tuple(ref for one in ordered for ref in one.panes),
            late=tuple(ref for one in ordered for ref in one.late),
            delivered=head.id + 1 if withheld else self.delivered,
            counters=counters,
            fed=head.id if fed else head.fed,
            restored=head.restored if self._begun else restored,
        )
        self._publish(manifest)
        self._progress = progress
        if not self._begun:
            self._begun = True
            log.info(restore_text(restored))
        logged = Logged(self.checkpoint.objects.root, self.graph.plans, progress, manifest)
        logged.report(self._strides, {name: [one.rejected for one in own] for name, own in answers.items()})
        self._hook("after-manifest", manifest.id)
        return manifest

    def _publish(self, manifest: Manifest) -> None:
        invariant(self.checkpoint.published < manifest.id, "the ids of a run rise", id=manifest.id)
        self._head = self.checkpoint.publish(manifest)
        self.delivered, self._recorded = manifest.delivered, True
        self.graph = after_step(self.graph)

    def check_newest(self) -> None:
        """Raise `FencedError` where a newer run or a reset has published after our newest checkpoint."""
        self.checkpoint.check_newest(self.head)

    def took(self, checkpoint_id: int, *, something: bool = True) -> None:
        """A sink has everything up to this checkpoint; durable with the next one, or `acknowledge`. ``something``:
        there were panes.
        """
        invariant(
            checkpoint_id <= self.head.id, "a sink takes what is published", id=checkpoint_id, head=self.head.id
        )
        self.delivered = max(self.delivered, checkpoint_id)
        self._recorded = self._recorded and not something

    def acknowledge(self) -> None:
        """What sinks took is durable, without a checkpoint of its own. Raises `UnavailableError`."""
        if not self._recorded:
            up_to = self.delivered  # first, for a batch may be committed meanwhile
            acknowledge(self.checkpoint, self.head, up_to)
            self._recorded = True

    def _named(self, result: PartitionResult) -> dict[str, int]:
        """Its counters, with the operator's name where there are several."""
        if self.graph.single:
            return result.counters
        return {f"{result.operator}.{name}": count for name, count in result.counters.items()}


def _adds_up(counters: dict[str, int]) -> bool:
    """Whether each operator accepted no more events than came, each in one class of how late it was."""
    fronts = [name.removesuffix("events") for name in counters if name.rpartition(".")[2] == "events"]
    classes = ("on_time", "mildly_late", "future")
    return all(
        sum(counters.get(front + one, 0) for one in classes) == counters.get(f"{front}accepted", 0)
        and counters.get(f"{front}accepted", 0) <= counters[f"{front}events"]
        for front in fronts
    )


def _check_written(objects: Objects, head: Manifest, results: Sequence[PartitionResult]) -> None:
    """What other processes have written is here too; of its own files this process knows."""
    pairs = [(one, head.operators[one.operator].partitions[one.partition]) for one in results if one.host]
    check_visible(objects, [WrittenFile(one.host, ref) for one, base in pairs for ref in one.written(base)])


def progress_of(operator: OperatorState) -> Progress | None:
    """How far its sources had come; None before the first batch. Raises `CorruptionError` for what is not ours."""
    if operator.progress is None:
        return None
    try:
        buffers = msgspec.convert(operator.buffers, BufferState) if operator.buffers is not None else None
        advances = msgspec.convert(operator.advances, dict[str, Advance])
        tracker = msgspec.convert(operator.progress, Tracker)
        if any(len(steps) % STEP_BYTES for steps in tracker.ahead.values()):
            raise msgspec.ValidationError("steps are pairs of a time and a position")
        return Progress(tracker, advances, buffers)
    except msgspec.ValidationError as error:
        raise CorruptionError(
            f"the manifest is damaged ({error}): nothing was changed; put back a good copy",
            code="manifest-damaged",
            part="progress",
        ) from None


def _warn_of_other(partitions: int | None, head: Manifest, checkpoint: Checkpoint) -> None:
    if partitions not in (None, head.partitions):
        log.warning(
            "partitions=%d is for a new checkpoint, this one has %d: stop the job and run tidestate rescale %s "
            "--partitions %d --confirm to divide its state anew",
            partitions,
            head.partitions,
            checkpoint.objects.root,
            partitions,
        )


def _latest(*times: int | None) -> int | None:
    return max((time for time in times if time is not None), default=None)
