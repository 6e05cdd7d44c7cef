"""What operators fed by hand share: what a call does is in RAM until the next flush, and a flush is one checkpoint.

A flush holds state, progress, panes and ledger together; panes are given when they are durable, and again until they
are acknowledged. A call whose flush fails has taken nothing: what is in RAM is as before.
"""

from __future__ import annotations

import logging
import os
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, Self, TypeVar

import numpy as np
import pyarrow as pa

from tidestate.operators.describe.runs import JobHook
from tidestate.operators.describe.sinks import Sinks
from tidestate.operators.embedded.pending import OpenPartitions, PendingPartition, PendingPartitions, Unflushed
from tidestate.operators.engine.delivery import read_rows
from tidestate.operators.engine.driver import Driver, MeasuredByDriver, outstanding
from tidestate.operators.engine.emitted import emitted_by
from tidestate.operators.engine.job import Job, Position
from tidestate.operators.engine.micro_batch import MicroBatch, OperatorInput
from tidestate.operators.engine.rebuild import check_replayed
from tidestate.operators.engine.reprocess import LateRows
from tidestate.operators.engine.tasks import InProcess, step_partitions, with_rebuild
from tidestate.operators.plan.classify import Classified, PartitionedRows, classify, nothing_classified
from tidestate.operators.plan.graph import single_operator
from tidestate.operators.plan.plan import Plan, RowKind
from tidestate.operators.plan.reasons import DUPLICATES
from tidestate.operators.plan.transition import Transition
from tidestate.operators.progress.progress import Context, Progress, stored_progress, watermark_of
from tidestate.operators.windows.messages.edits import Edited
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import END_OF_TIME_US, CheckpointKind, DeliveryId, output_of
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.recovery.start.policy import Policy
from tidestate.statestore.arguments import checked
from tidestate.statestore.arrays import Counters, Flags, total
from tidestate.statestore.durations import clock_us, moment_us
from tidestate.statestore.errors import CorruptionError, UsageError, of_type
from tidestate.statestore.spec.changes import ChangeSet
from tidestate.statestore.spec.store import Parquet, StateView, StoreConfig
from tidestate.statestore.table.overlay import OverlayView

log = logging.getLogger("tidestate")

MAX_UNFLUSHED = 1_000_000
"""Messages after which an operator flushes whatever they brought."""
_P = TypeVar("_P", bound=Plan)
_PLACE = "__place"
_NOT_OF_A_LEDGER = LateRows({})


@dataclass(frozen=True)
class EmbeddedResult:
    """The panes of one checkpoint. A receiver that remembers the highest one it took of each run has every pane
    exactly once.
    """

    id: DeliveryId
    panes: pa.Table


class Flushed(NamedTuple):
    """What a flush leaves: the id of the newest ``checkpoint``, and how many results are ``pending``: they are not
    acknowledged, so `get_result` returns them.
    """

    checkpoint: int
    pending: int


@dataclass(frozen=True)
class EmbeddedState:
    """Everything that a call changes, without the state tables: how far time is, and what is not flushed."""

    progress: Progress
    now_us: int | None
    newest: int | None = None
    since: Unflushed = field(default_factory=Unflushed)


@dataclass(frozen=True)
class CallResult:
    """What the steps of a call gave: counters; whether they emitted panes, or a window is over; and `_newest`."""

    counters: Counters
    ends: bool
    newest: int | None


class EmbeddedOperator(MeasuredByDriver, Generic[_P]):
    """A plan on a checkpoint folder, in one process. Close it, or use a ``with`` block. Its metrics are those of its
    newest checkpoint.
    """

    def __init__(
        self,
        plan: _P,
        checkpoint: str | os.PathLike[str],
        store: StoreConfig | None,
        policy: Policy | None,
        hook: JobHook,
        partitions: int | None,
        retain: CheckpointRetention | None,
        metrics: int | str | None,
        pending_limit: int | None,
    ) -> None:
        self._pending_limit = _checked_limit(pending_limit)
        job = Job.begin(
            single_operator(plan),
            Checkpoint.open_or_create(checkpoint),
            store or Parquet(),
            partitions=partitions,
            runner="by hand",
            hook=hook,
            policy=policy or Policy(),
        )
        # As it goes on from the checkpoint: a setting that is not named may have meant something else then.
        self._plan = of_type(job.plan, type(plan))
        self._job, self._closed = job, False
        self._driver = Driver(job, InProcess(), retain=retain, metrics=metrics)
        self._driver.begin()
        self._standing = self._durable()
        self._ready = [output for output in outstanding(self._job, self._job.delivered.panes) if output.panes]
        self._open = OpenPartitions()

    @abstractmethod
    def _admit(self, batch: pa.Table, context: Context) -> Classified:
        """Classify messages; without those that are known, where lateness is decided before the state is read."""

    @abstractmethod
    def _forgets(self, plan: _P, view: StateView, changes: ChangeSet, context: Context) -> bool:
        """Whether a window is over, or what is kept longer is forgotten: by the ``changes`` of a step on ``view``, of
        this variant of the plan.
        """

    @abstractmethod
    def _newest(self, steps: Sequence[Transition], max_event_us: int | None, context: Context) -> int | None:
        """A number that grows when a window later than any before is opened, after ``steps`` with accepted events up
        to ``max_event_us``; None where these open none.
        """

    @checked
    def timeout(self, now_us: int, *, watermark_us: int | None = None) -> None:
        """Advance the clock to ``now_us`` and the watermark to ``watermark_us``, and fire what is due.

        Steps back are ignored. Processing time moves by this alone.
        """
        clock, mark_us = clock_us(now_us), moment_us(watermark_us)
        self._check_taking()
        batch = self._micro_batch(clock)
        after = batch.after({})[self._plan.name]
        if mark_us is not None:
            after = after.advanced_to(mark_us)
        with self._all_or_nothing():
            if self._advance(batch, after, batch.now_us):
                self._flush()

    def get_result(self) -> list[EmbeddedResult]:
        """Panes that are ready and not acknowledged, oldest first: the same ones until `acknowledge`. Each result has
        ``panes``, a table, and ``id``, which `acknowledge` takes.
        """
        self._check_open()
        return [self.deliver(delivery_id) for delivery_id in self.ready]

    @checked
    def acknowledge(self, delivery_id: DeliveryId) -> None:
        """The results up to this one have been handled, and are given no more; durable with the next flush.

        What is not when the process dies is given again, under the same id. Raises `UsageError` for an id that no
        result of this operator has; one that was acknowledged already is fine.
        """
        self._check_open()
        ids = self.ready
        if delivery_id in ids:
            self._job.mark_delivered(delivery_id.checkpoint)
            self._ready = self._ready[ids.index(delivery_id) + 1 :]
        elif delivery_id.checkpoint > self._job.delivered.panes:
            raise UsageError(
                "no result has this id: acknowledge the id that get_result returned",
                code="acknowledge",
                id=str(delivery_id),
                ready=[str(one) for one in ids],
            )

    def hold(self, sinks: Sinks[pa.Table], wait: Callable[[float], None]) -> None:
        """Wait until these sinks are ready to take more."""
        self._check_open()
        self._driver.hold(sinks, wait)

    def deliver_to(
        self, sinks: Sinks[pa.Table], wait: Callable[[float], None], timeout_s: float | None = None
    ) -> None:
        """Offer these sinks all that is pending until they accept it, which acknowledges it. After ``timeout_s``
        raises `UnavailableError` (``sink-refuses``).
        """
        self._check_open()
        sinks.fit([emitted_by(self._plan, [self._plan])])
        try:
            with self._driver.offers.within(timeout_s):
                self._driver.deliver(sinks, wait)
        finally:
            self._ready = [output for output in self._ready if output.id > self._job.delivered.panes]

    @checked
    def skip_idle_time(self, now_us: int) -> None:
        """No source was idle until ``now_us``: a sink was waited for, and none was polled."""
        progress = self._standing.progress.skipping_idle_time(clock_us(now_us))
        self._standing = replace(self._standing, progress=progress)

    def flush(self) -> Flushed:
        """Everything so far is durable, acknowledgements too: what was acknowledged is not returned again, by any
        process. Raises `UsageError` (``operator-closed``), and errors of the storage: nothing has changed then.
        """
        self._check_open()
        if self._standing.since != Unflushed() or self._moved:
            with self._all_or_nothing():
                if self._standing.since.edits:
                    self._find_dues()
                self._flush()
        self._job.acknowledge()
        return Flushed(self._job.head.id, len(self._ready))

    def drain(self) -> None:
        """The input has ended: everything shows what is due; no message is taken any more. Raises `UsageError`
        (``rebuilding``) while rows of an outer join are missing.
        """
        self._check_open()
        if self._job.head.drained:
            return
        self._job.micro_batch().graph.check_whole()
        at = self._standing
        with self._all_or_nothing():
            self._advance(self._micro_batch(), at.progress.advanced_to(END_OF_TIME_US), at.now_us)
            self._flush(drained=True)

    @property
    def watermark_us(self) -> int | None:
        """Every event before this has been seen; None before the first."""
        return watermark_of(self._standing.progress)

    @property
    def due_us(self) -> int | None:
        """The processing time at which `timeout` would show something that is held until then; None for nothing."""
        states = self._input(self._micro_batch()).base.values()
        return min((state.due_us for state in states if state.due_us is not None), default=None)

    @property
    def drained(self) -> bool:
        """Whether the input has ended: no message is taken any more."""
        return self._job.head.drained

    @property
    def _measured(self) -> Driver[Any, Any]:
        return self._driver

    @property
    def counters(self) -> dict[str, int]:
        """Messages and panes by class, since the beginning."""
        return total([dict(self._job.head.totals), self._standing.since.counters])

    def close(self) -> None:
        """Let go of store and lease; idempotent. What is not flushed is gone, and no call is taken any more."""
        self._closed = True
        self._driver.end(acknowledge=False)
        self._let_go()
        self._standing = self._durable()

    def _let_go(self) -> None:
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
        self._check_open()
        self._job.check_newest()
        panes = [ref for output in self._ready if output.delivery_id == delivery_id for ref in output.panes]
        return EmbeddedResult(delivery_id, read_rows(self._job.checkpoint, tuple(panes), self._plan.delivered_schema))

    @property
    def _moved(self) -> bool:
        head = self._job.head
        return (self.watermark_us, self._standing.now_us) != (head.watermark_us, head.processing_us)

    def _micro_batch(self, now_us: int | None = None, rows_are: RowKind = "live") -> MicroBatch:
        """The next checkpoint, from what is in RAM, at this processing time: by default that of the last call."""
        batch, name, at = self._job.micro_batch(rows_are=rows_are), self._plan.name, self._standing
        operator = batch.inputs[name]
        operator = replace(operator, progress=at.progress, base=at.since.states(operator.base))
        now = max((time for time in (at.now_us, now_us) if time is not None), default=0)
        return replace(batch, inputs={name: operator}, was_us=now if at.now_us is None else at.now_us, now_us=now)

    def _input(self, batch: MicroBatch) -> OperatorInput:
        """What the only operator begins with."""
        return batch.inputs[self._plan.name]

    def _check_open(self) -> None:
        """Raise `UsageError` (``operator-closed``) after `close`: the root may be another process's by now."""
        if self._closed:
            raise UsageError(
                "this operator was closed: open another one on its folder, .by_hand(…, checkpoint=…)",
                code="operator-closed",
                operator=self._plan.name,
            )

    def _check_taking(self) -> None:
        """Raise `UsageError` if no input is taken any more: it has ended, or the operator was closed."""
        self._check_open()
        self._job.check_open()

    def _check_pending(self) -> None:
        """Raise `UsageError` (``outputs-pending``), and warn, while too many results are not acknowledged."""
        if self._pending_limit is None or len(self._ready) <= self._pending_limit:
            return
        error = UsageError(
            "results wait for their acknowledgement, so no message is taken: handle those of get_result(), and "
            "acknowledge(id) the last one, or make the operator with another pending_limit=",
            code="outputs-pending",
            operator=self._plan.name,
            pending=len(self._ready),
            limit=self._pending_limit,
        )
        log.warning("%s", error)
        raise error

    def _view(self, number: int) -> OverlayView:
        """A state partition as it is now."""
        self._check_open()
        if number in self._standing.since.partitions:
            return self._standing.since.partitions[number].view
        self._driver.begin()
        batch = self._micro_batch()
        return self._open.view(self._job.checkpoint.objects, batch, self._input(batch), number)

    def _views(self, partitions: Iterable[int] | None = None) -> list[OverlayView]:
        """State partitions as they are now, by default all."""
        return [self._view(number) for number in partitions or range(self._job.head.partitions)]

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """What raises inside leaves everything as it was, unless it was durable by then."""
        head, standing = self._job.head, self._standing
        try:
            with self._open.unless_raised():
                yield
        except BaseException as error:
            if self._job.head is head:
                self._standing = standing
            if isinstance(error, CorruptionError):
                raise with_rebuild(error, self._input(self._micro_batch())) from None
            raise

    def _take(self, rows: pa.Table, now_us: int | None = None) -> dict[str, int]:
        """Process messages; durable at once if panes are emitted, a later window is opened or one expires."""
        self._check_taking()
        self._check_pending()
        batch, standing = self._micro_batch(clock_us(now_us)), self._standing
        with self._all_or_nothing():
            admitted = self._admit(rows, batch.start(self._input(batch)))
            after = batch.after({self._plan.name: [admitted.claims]})[self._plan.name]
            call = self._run(batch, admitted, after, rows.num_rows)
            opened = call.newest is not None and (standing.newest is None or call.newest > standing.newest)
            self._standing = replace(
                self._standing,
                now_us=standing.now_us if now_us is None else batch.now_us,
                newest=call.newest if opened else standing.newest,
            )
            if opened or call.ends or self._standing.since.messages >= MAX_UNFLUSHED:
                self._flush()
        return call.counters

    def _edit(self, numbers: Iterable[int], edit: Callable[[_P, StateView], Edited]) -> dict[str, int]:
        """Edit state partitions by hand: part of the next checkpoint. Returns how many windows and messages that
        concerned.
        """
        self._check_taking()
        batch = self._micro_batch()
        operator, edited, total_of = self._input(batch), dict[int, PendingPartition](), Counter[str]()
        plan = of_type(operator.plan, type(self._plan))
        with self._all_or_nothing():
            for number in numbers:
                view = self._view(number)
                made = edit(plan, view)
                total_of.update(windows=made.windows, messages=made.messages)
                if made.changes:
                    after = view.fork()
                    after.apply(made.changes)
                    # Which windows are due next is not known any more: the next step looks.
                    edited[number] = PendingPartition(after, None, operator.base[number].due_us)
            if edited:
                since = self._standing.since.with_edits(edited, sum(total_of.values()))
                self._standing = replace(self._standing, since=since)
        return dict(total_of)

    def _classify_new(
        self,
        rows: pa.Table,
        is_known: Callable[[StateView, pa.Table], Flags],
        context: Context,
        again: Flags | None = None,
    ) -> Classified:
        """Classify ``rows`` of the input, without those that come ``again`` in it or are known."""
        known, count = np.zeros(rows.num_rows, bool) if again is None else again, self._job.head.partitions
        numbered = rows.append_column(_PLACE, pa.array(np.arange(rows.num_rows)))
        for number, own in PartitionedRows.of(numbered, self._plan.input.key_names, count).parts():
            known[own[_PLACE]] |= is_known(self._view(number), own)
        admitted = classify(self._plan, rows.filter(pa.array(~known)) if known.any() else rows, context, count)
        duplicates = {DUPLICATES: int(np.count_nonzero(known))} if known.any() else {}
        return replace(admitted, counters=total([admitted.counters, duplicates]))

    def _reprocess(self, rows: pa.Table, rows_are: RowKind, late: LateRows = _NOT_OF_A_LEDGER) -> dict[str, int]:
        """Process late messages or a replay, durable at once; ``late``: which rows of the late ledger they are."""
        batch = self._micro_batch(rows_are=rows_are)
        operator = self._input(batch)
        with self._all_or_nothing():
            admitted = classify(operator.plan, rows, batch.start(operator), batch.partitions)
            call = self._run(batch, admitted, operator.progress)
            self._flush(fed=late, rebuilt=rows_are == "replay")
        return call.counters

    def _rebuild(self, replay: Iterable[pa.Table]) -> None:
        """Put back lost messages of a replay; each table is durable at once."""
        check_replayed(self._job.graph)
        self._check_taking()
        self.flush()
        for rows in replay:
            self._reprocess(rows, "replay")

    def _advance(self, batch: MicroBatch, after: Progress, clock_us: int | None) -> bool:
        """A step without messages; whether it must be durable."""
        call = self._run(batch, nothing_classified(self._plan), after)
        self._standing = replace(self._standing, now_us=clock_us)
        return call.ends

    def _find_dues(self) -> None:
        """A step at the time as it is, of the state partitions of which it is not known when something is due: those
        that were edited since their last step, and a checkpoint leaves out none of them.
        """
        standing = self._standing
        self._advance(self._micro_batch(), standing.progress, standing.now_us)

    def _run(self, batch: MicroBatch, admitted: Classified, after: Progress, messages: int = 0) -> CallResult:
        """The steps of state partitions, with what was ``admitted`` of so many ``messages``."""
        operator = self._input(batch)
        plan = of_type(operator.plan, type(self._plan))
        partitions = PendingPartitions(plan, self._view)
        after = operator.observed(after, [admitted.claims])
        context, arriving = batch.context(operator, after), dict(admitted.partials.parts())
        steps, ends = list[Transition](), False
        span = 0, batch.partitions
        for number, moved in step_partitions(batch, operator, span, arriving, context, partitions):
            steps.append(moved)
            ends = ends or moved.panes.num_rows > 0 or self._forgets(plan, self._view(number), moved.changes, context)
        since = self._standing.since.with_steps(admitted, messages, partitions.stepped, steps)
        self._standing = replace(self._standing, progress=stored_progress(after), since=since)
        counters = total([admitted.counters, *(moved.counters for moved in steps)])
        return CallResult(counters, ends, self._newest(steps, admitted.claims.newest_us, context) if steps else None)

    def _flush(self, *, drained: bool = False, fed: LateRows | None = None, **how: bool) -> None:
        """One checkpoint of everything since the last; ``fed``: what of it was no input."""
        job, head, at = self._job, self._job.head, self._standing
        batch = job.micro_batch(at.now_us)
        result = at.since.written(job.checkpoint.objects, batch, self._input(batch), at.progress, self._open.restored)
        kind: CheckpointKind = "feed" if fed is not None else "batch" if at.since.messages else "tick"
        back = fed or _NOT_OF_A_LEDGER
        position = Position(processing_us=at.now_us, fed=back.ledgers, fed_by_reason=back.by_reason)
        try:
            drained = drained or head.drained
            self._driver.commit(head.id + 1, [result], kind, position, drained=drained, **how)
        finally:
            if job.head is not head:  # it is durable, whatever was raised after that
                self._standing = replace(at, since=Unflushed())
                self._ready += [output_of(job.head)] if result.panes else []
                self._let_go()

    def _durable(self) -> EmbeddedState:
        """The state as of the newest checkpoint."""
        return EmbeddedState(self._job.progress[self._plan.name], self._job.head.processing_us)


def not_by_hand(description: object) -> UsageError:
    """The error for a description that is not fed by hand."""
    return UsageError(
        "an operator that is fed by hand must have windows, or be a merge, a join or a session join: run others in "
        "this process with .standalone(checkpoint=…)",
        code="operator-window",
        found=type(description).__name__,
    )


def _checked_limit(pending_limit: int | None) -> int | None:
    """Raises `UsageError` (``pending-limit``) for what is no whole number of at least 0."""
    is_integer = isinstance(pending_limit, int) and not isinstance(pending_limit, bool)
    if pending_limit is not None and (not is_integer or pending_limit < 0):
        raise UsageError(
            "pending_limit= is how many results may wait for acknowledge(): give a whole number, 0 or more, or None "
            "for any number",
            code="pending-limit",
            found=pending_limit,
        )
    return pending_limit
