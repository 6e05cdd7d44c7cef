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
from typing import Any, Generic, Self, TypeVar

import pyarrow as pa

from tidestate.operators.describe.runs import JobHook
from tidestate.operators.embedded.stepped import StepResult
from tidestate.operators.engine.delivery import read_rows
from tidestate.operators.engine.driver import Driver
from tidestate.operators.engine.in_process import InProcess
from tidestate.operators.engine.job import Job, Position
from tidestate.operators.engine.partition import PartitionResult, Round, step_times, write_result
from tidestate.operators.plan.graph import single_operator
from tidestate.operators.plan.plan import Plan
from tidestate.operators.plan.transition import StepTimes, total
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
    """What has happened since the last flush, beside the state."""

    panes: tuple[pa.Table, ...] = ()
    rejected: tuple[pa.Table, ...] = ()
    counters: dict[str, int] = field(default_factory=dict)
    messages: int = 0
    max_event_us: int | None = None
    origins: tuple[str, ...] = ()

    def and_then(self, step: StepResult, messages: int) -> Unflushed:
        """With one more step."""
        seen = [time for time in (self.max_event_us, step.max_event_us) if time is not None]
        return Unflushed(
            (*self.panes, *([step.panes] if step.panes.num_rows else [])),
            (*self.rejected, *step.rejected),
            total([self.counters, step.counters]),
            self.messages + messages,
            max(seen, default=None),
            step.origins or self.origins,
        )


@dataclass(frozen=True)
class EmbeddedState:
    """Everything that a call changes, but for the state itself: how far time has come, and what is not flushed."""

    progress: Progress
    now_us: int | None
    due_us: int | None
    newest: int | None = None
    since: Unflushed = field(default_factory=Unflushed)


class ByHand(ABC, Generic[_P]):
    """A plan at work on a checkpoint folder: one process, one state partition. Close it, or use a ``with`` block."""

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
    def _move(self, state: OverlayView, at: StepTimes) -> StepResult:
        """Watermark and clock go on without messages."""

    def timeout(self, now_us: int, *, watermark_us: int | None = None) -> None:
        """The clock shows ``now_us``, and every event before ``watermark_us`` has been seen: what is due fires.

        Steps back are ignored. Processing time moves by this alone.
        """
        self._not_drained()
        at = self._standing
        was = at.now_us if at.now_us is not None else now_us
        now = max(was, now_us)
        after = Rounds(self._plan.watermarks).after(at.progress, [], now)
        if watermark_us is not None:
            after = advanced_to(after, watermark_us)
        with self._all_or_nothing():
            state = self._current().fork()
            step = self._move(state, self._moments(after, was, now))
            self._adopt(state, step, 0, replace(at, now_us=now, progress=after))
            if step.purged or step.panes.num_rows:
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
            state = self._current().fork()
            step = self._move(state, self._moments(after, now, now))
            self._adopt(state, step, 0, replace(at, progress=after))
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
        return self._job.head.operators[self._plan.name].partitions[0]

    @property
    def _moved(self) -> bool:
        head = self._job.head
        return (self.watermark_us, self._standing.now_us) != (head.watermark_us, head.processing_us)

    def _round(self, was: int = 0, now: int = 0) -> Round:
        """The next checkpoint, where time is as it stands."""
        whole = self._job.round().rounds[self._plan.name]
        return replace(whole, progress=self._standing.progress, was_us=was, now_us=now)

    def _moments(self, after: Progress, was: int, now: int) -> StepTimes:
        return step_times(self._round(was, now), after)

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

    def _adopt(self, state: OverlayView, step: StepResult, messages: int, at: EmbeddedState) -> None:
        self._state = state
        self._standing = replace(
            at,
            progress=step.progress or at.progress,
            due_us=step.due_us,
            since=at.since.and_then(step, messages),
        )

    def _took(self, state: OverlayView, step: StepResult, messages: int, now_us: int | None) -> dict[str, int]:
        """A step that took messages: durable at once where it showed something, opened a window or forgot one."""
        at = self._standing
        opened = step.newest is not None and (at.newest is None or step.newest > at.newest)
        at = replace(at, now_us=now_us, newest=step.newest if opened else at.newest)
        with self._all_or_nothing():
            self._adopt(state, step, messages, at)
            full = self._standing.since.messages >= MAX_UNFLUSHED
            if opened or step.purged or step.panes.num_rows or full:
                self._flush()
        return step.counters

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

    def _written(self, since: Unflushed, base: PartitionState) -> PartitionResult:
        return write_result(
            self._job.checkpoint.objects,
            replace(self._round(), base=(base,)),
            0,
            self._current().changes(),
            pa.concat_tables(since.panes) if since.panes else None,
            since.rejected,
            progress=self._standing.progress,
            due_us=self._standing.due_us,
            max_event_us=since.max_event_us,
            inputs=1 if since.messages else 0,
            counters=since.counters,
            origins=since.origins,
            restored=self._watch.restored,
        )

    def _durable(self) -> EmbeddedState:
        """As the newest checkpoint has it."""
        head, name = self._job.head, self._plan.name
        return EmbeddedState(self._job.progress[name], head.processing_us, head.operators[name].due_us)


def as_table(batch: Any) -> pa.Table:
    """Record batches as tables. Raises `UsageError` for what is neither."""
    if isinstance(batch, pa.RecordBatch):
        return pa.Table.from_batches([batch])
    if not isinstance(batch, pa.Table):
        raise UsageError("messages come as an Arrow table or record batch", code="batch-type", found=str(type(batch)))
    return batch


def _check_whole(head: Manifest | None) -> None:
    if head is not None and head.partitions != 1:
        raise IncompatibleError(
            "an operator that is fed by hand has one state partition: run tidestate rescale with --partitions 1",
            code="by-hand-partitions",
            found=head.partitions,
        )
