"""What operators fed by hand share: what a call does is in RAM until the next flush, and a flush is one checkpoint.

A flush holds state, progress, panes and ledger together; panes are given when they are durable, and again until they
are acknowledged. A call whose flush fails has taken nothing: what is in RAM is as before.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Generic, Self, TypeVar

import msgspec
import pyarrow as pa

from tidestate.operators.describe.runs import JobHook
from tidestate.operators.embedded.step_result import StepResult
from tidestate.operators.engine.delivery import read_rows
from tidestate.operators.engine.driver import Driver
from tidestate.operators.engine.in_process import InProcess
from tidestate.operators.engine.job import Job, Position
from tidestate.operators.engine.job_log import rejections_of
from tidestate.operators.engine.outputs import write_outputs
from tidestate.operators.engine.partition import OperatorResult, Round, step_times, write_state
from tidestate.operators.plan.classify import Classified, Intake, classify, nothing_classified
from tidestate.operators.plan.graph import single_operator
from tidestate.operators.plan.plan import Plan
from tidestate.operators.plan.transition import StepTimes, Transition, total
from tidestate.operators.progress.rounds import Progress, Rounds, advanced_to, watermark_of
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import END_OF_TIME_US, CheckpointKind, Manifest
from tidestate.recovery.log.outputs import DeliveryId, output_of
from tidestate.recovery.start.policy import Policy
from tidestate.statestore.errors import IncompatibleError, UsageError
from tidestate.statestore.files.refs import PartitionState
from tidestate.statestore.spec.store import Parquet, StoreConfig
from tidestate.statestore.stores.restore_monitor import RestoreMonitor
from tidestate.statestore.table.overlay import OverlayView

MAX_UNFLUSHED = 1_000_000
"""Messages after which an operator flushes whatever they brought."""
_P = TypeVar("_P", bound=Plan)


@dataclass(frozen=True)
class EmbeddedResult:
    """The panes of one checkpoint. A receiver that remembers the highest one it took of each run has every pane
    exactly once.
    """

    id: DeliveryId
    panes: pa.Table


@dataclass(frozen=True)
class Unflushed:
    """What calls did since the last flush, without the state."""

    panes: tuple[pa.Table, ...] = ()
    rejected: tuple[pa.Table, ...] = ()
    counters: dict[str, int] = field(default_factory=dict)
    messages: int = 0
    max_event_us: int | None = None
    origins: tuple[str, ...] = ()

    def with_step(self, admitted: Classified, moved: Transition, messages: int) -> Unflushed:
        """These and a step that ``admitted`` some of so many ``messages``."""
        times = [time for time in (self.max_event_us, admitted.max_event_us) if time is not None]
        return Unflushed(
            (*self.panes, *([moved.panes] if moved.panes.num_rows else [])),
            (*self.rejected, *(rows for rows in (admitted.rejected, moved.rejected) if rows is not None)),
            total([self.counters, admitted.counters, moved.counters]),
            self.messages + messages,
            max(times, default=None),
            admitted.origins or self.origins,
        )


@dataclass(frozen=True)
class EmbeddedState:
    """Everything that a call changes, without the state tables: how far time is, and what is not flushed."""

    progress: Progress
    now_us: int | None
    due_us: int | None
    newest: int | None = None
    since: Unflushed = field(default_factory=Unflushed)


class EmbeddedOperator(ABC, Generic[_P]):
    """A plan on a checkpoint folder: one process, one state partition. Close it, or use a ``with`` block."""

    def __init__(
        self,
        plan: _P,
        checkpoint: str | os.PathLike[str],
        store: StoreConfig | None,
        policy: Policy | None,
        hook: JobHook,
    ) -> None:
        self._plan = plan
        self._store = store or Parquet()
        job = Job.begin(
            single_operator(plan),
            Checkpoint.open_or_create(checkpoint),
            self._store,
            partitions=1,
            check=_check_whole,
            hook=hook,
            policy=policy or Policy(),
        )
        self._job = job
        self._driver = Driver(job, InProcess())
        self.offers = self._driver.offers
        self._driver.begin()
        self._standing = self._durable()
        self._ready = [output for output in self._driver.outstanding() if output.panes]
        self._open, self._watch = ExitStack(), RestoreMonitor()
        self._state: OverlayView | None = None

    @abstractmethod
    def _admit(self, state: OverlayView, batch: pa.Table, intake: Intake) -> Classified:
        """Drop duplicates, classify the other messages, and record in ``state`` that they are known."""

    @abstractmethod
    def _move(self, state: OverlayView, admitted: Classified, at: StepTimes) -> StepResult:
        """Take the step, and apply its changes to ``state``."""

    def timeout(self, now_us: int, *, watermark_us: int | None = None) -> None:
        """Advance the clock to ``now_us`` and the watermark to ``watermark_us``, and fire what is due.

        Steps back are ignored. Processing time moves by this alone.
        """
        self._not_drained()
        was, now = self._clock(now_us)
        after = self._rounds.after(self._standing.progress, [], now)
        if watermark_us is not None:
            after = advanced_to(after, watermark_us)
        with self._all_or_nothing():
            if self._advance(was, now, after, now):
                self._flush()

    def get_result(self) -> list[EmbeddedResult]:
        """Panes that are ready and not acknowledged, oldest first: the same ones until `acknowledge`."""
        return [self.deliver(delivery_id) for delivery_id in self.ready]

    def acknowledge(self, delivery_id: DeliveryId) -> None:
        """The results up to this one have been handled, and are given no more; durable with the next flush.

        What is not when the process dies is given again, under the same id. Raises `UsageError` for an id that no
        result of this operator has; one that was acknowledged already is fine.
        """
        ids = self.ready
        if delivery_id in ids:
            self._job.mark_delivered(delivery_id.checkpoint)
            self._ready = self._ready[ids.index(delivery_id) + 1 :]
        elif delivery_id.checkpoint > self._job.delivered:
            raise UsageError(
                "no result has this id: acknowledge what get_result gave",
                code="acknowledge",
                id=str(delivery_id),
                ready=[str(one) for one in ids],
            )

    def flush(self) -> int:
        """Everything so far is durable, acknowledgements too. The id of the newest checkpoint."""
        if self._standing.since != Unflushed() or self._moved:
            self._flush()
        self._job.acknowledge()
        return self._job.head.id

    def drain(self) -> None:
        """The input has ended: everything shows what is due; no message is taken any more."""
        if self._job.head.drained:
            return
        at = self._standing
        now, after = at.now_us or 0, advanced_to(at.progress, END_OF_TIME_US)
        with self._all_or_nothing():
            self._advance(now, now, after, at.now_us)
            self._flush(drained=True)

    @property
    def watermark_us(self) -> int | None:
        """Every event before this has been seen; None before the first."""
        return watermark_of(self._standing.progress)

    @property
    def due_us(self) -> int | None:
        """The processing time at which `timeout` would show something that is held until then; None for nothing."""
        return self._standing.due_us

    @property
    def drained(self) -> bool:
        """Whether the input has ended: no message is taken any more."""
        return self._job.head.drained

    @property
    def counters(self) -> dict[str, int]:
        """Messages and panes by class, since the beginning."""
        return total([dict(self._job.head.totals), self._standing.since.counters])

    def close(self) -> None:
        """Let go of the store. What is not flushed is gone."""
        self._driver.end(acknowledge=False)
        self._let_go()
        self._standing = self._durable()

    def _let_go(self) -> None:
        self._state = None
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def ready(self) -> list[DeliveryId]:
        """The ids of the results that are not acknowledged, oldest first."""
        return [output.delivery_id for output in self._ready]

    def deliver(self, delivery_id: DeliveryId) -> EmbeddedResult:
        """One result of those that are ready. Raises `FencedError` where a newer run has taken over meanwhile: it may
        not count any more.
        """
        self._job.check_newest()
        panes = [ref for output in self._ready if output.delivery_id == delivery_id for ref in output.panes]
        return EmbeddedResult(delivery_id, read_rows(self._job.checkpoint, tuple(panes), self._plan.pane_schema))

    @property
    def _base(self) -> PartitionState:
        return self._job.head.operators[self._plan.name].states[0]

    @property
    def _moved(self) -> bool:
        head = self._job.head
        return (self.watermark_us, self._standing.now_us) != (head.watermark_us, head.processing_us)

    @property
    def _rounds(self) -> Rounds:
        return Rounds(self._plan.watermarks)

    def _clock(self, now_us: int | None) -> tuple[int, int]:
        """The processing time before and after a step that is given this one."""
        was = self._standing.now_us
        now = max((time for time in (was, now_us) if time is not None), default=0)
        return now if was is None else was, now

    def _round(self, was: int = 0, now: int = 0, *, reprocessing: bool = False) -> Round:
        """The next checkpoint, from what is in RAM."""
        round_, at = self._job.round().rounds[self._plan.name], self._standing
        return replace(
            round_,
            progress=at.progress,
            origins=at.since.origins or round_.origins,
            was_us=was,
            now_us=now,
            reprocessing=reprocessing,
        )

    def _not_drained(self) -> None:
        self._job.check_open()

    def _current(self) -> OverlayView:
        """The state as it is now, over an opened store."""
        if self._state is None:
            self._driver.begin()
            self._watch, round_ = RestoreMonitor(), self._round()
            opening = round_.open(self._job.checkpoint.objects, 0, self._watch)
            self._state = OverlayView(self._open.enter_context(opening), round_.tables)
        return self._state

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """What raises inside leaves state and standing as they were, unless it was durable by then."""
        head, state, standing = self._job.head, self._state, self._standing
        try:
            yield
        except BaseException:
            if self._job.head is head:
                self._standing = standing
                if state is None:
                    self._let_go()
                self._state = state
            raise

    def _take(self, batch: pa.Table, now_us: int | None = None) -> dict[str, int]:
        """Process messages; durable at once if panes are emitted, a later window is opened or one expires."""
        self._not_drained()
        was, now = self._clock(now_us)
        at, round_ = self._standing, self._round(was, now)
        with self._all_or_nothing():
            state = self._current().fork()
            admitted = self._admit(state, batch, round_.intake)
            after = self._rounds.after(at.progress, [admitted.claims], now)
            after = self._rounds.with_positions(after, [admitted.claims])
            step = self._move(state, admitted, step_times(round_, after))
            opened = step.newest is not None and (at.newest is None or step.newest > at.newest)
            clock_us = at.now_us if now_us is None else now
            newest = step.newest if opened else at.newest
            after = self._rounds.between_rounds(after)
            at = replace(at, now_us=clock_us, progress=after, newest=newest)
            self._adopt(state, at, admitted, step.moved, batch.num_rows)
            full = self._standing.since.messages >= MAX_UNFLUSHED
            if opened or step.purged or step.moved.panes.num_rows or full:
                self._flush()
        return total([admitted.counters, step.moved.counters])

    def _reprocess(self, rows: pa.Table, *, whole: bool) -> dict[str, int]:
        """Process late messages, durable at once; ``whole``: they are all that the late ledger has."""
        at = self._standing
        round_ = self._round(at.now_us or 0, at.now_us or 0, reprocessing=True)
        with self._all_or_nothing():
            state = self._current().fork()
            admitted = classify(self._plan, rows, round_.intake, 1)
            step = self._move(state, admitted, step_times(round_, at.progress))
            self._adopt(state, at, admitted, step.moved)
            self._flush(fed=whole)
        return total([admitted.counters, step.moved.counters])

    def _advance(self, was: int, now: int, after: Progress, clock_us: int | None) -> bool:
        """A step without messages; whether it must be durable."""
        state = self._current().fork()
        nothing = nothing_classified(self._plan)
        step = self._move(state, nothing, step_times(self._round(was, now), after))
        self._adopt(state, replace(self._standing, now_us=clock_us, progress=after), nothing, step.moved)
        return step.purged or bool(step.moved.panes.num_rows)

    def _adopt(
        self, state: OverlayView, at: EmbeddedState, admitted: Classified, moved: Transition, messages: int = 0
    ) -> None:
        self._state = state
        self._standing = replace(at, due_us=moved.due_us, since=at.since.with_step(admitted, moved, messages))

    def _flush(self, *, drained: bool = False, fed: bool | None = None, base: PartitionState | None = None) -> None:
        """One checkpoint of everything since the last."""
        job, head, since = self._job, self._job.head, self._standing.since
        result = self._written(since, base or self._base)
        kind: CheckpointKind = "feed" if fed is not None else "batch" if since.messages else "tick"
        position = Position(processing_us=self._standing.now_us)
        try:
            drained = drained or head.drained
            self._driver.commit(head.id + 1, [result], kind, position, drained=drained, fed=bool(fed))
        finally:
            if job.head is not head:  # it is durable, whatever was raised after that
                self._standing = replace(self._standing, since=Unflushed())
                self._ready += [output_of(job.head)] if result.panes else []
                self._let_go()

    def _written(self, since: Unflushed, base: PartitionState) -> OperatorResult:
        objects, round_, name = self._job.checkpoint.objects, self._round(), self._plan.name
        round_ = replace(round_, base={0: base}, expired={})
        rejected = pa.concat_tables(since.rejected) if since.rejected else None
        answer = write_state(objects, round_, 0, self._current().changes(), self._watch.restored)
        state = msgspec.structs.replace(answer.state, due_us=self._standing.due_us)
        return OperatorResult(
            operator=name,
            span=(0, 1),
            answers=(msgspec.structs.replace(answer, state=state),),
            progress=self._standing.progress,
            max_event_us=since.max_event_us,
            inputs=1 if since.messages else 0,
            panes=write_outputs(objects, f"panes/{name}", round_.sequence, since.panes),
            late=write_outputs(objects, f"late/{name}", round_.sequence, since.rejected),
            counters=since.counters,
            origins=since.origins,
            rejected=rejections_of(self._plan, rejected),
        )

    def _durable(self) -> EmbeddedState:
        """As the newest checkpoint has it."""
        head, name = self._job.head, self._plan.name
        return EmbeddedState(self._job.progress[name], head.processing_us, head.operators[name].due_us)


def _check_whole(head: Manifest | None) -> None:
    if head is not None and head.partitions != 1:
        raise IncompatibleError(
            "an operator that is fed by hand has one state partition: run tidestate rescale with --partitions 1",
            code="by-hand-partitions",
            found=head.partitions,
        )
