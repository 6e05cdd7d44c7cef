"""What operators fed by hand share: what a call does is in RAM until the next flush, and a flush is one checkpoint.

A flush holds state, progress, panes and ledger together; panes are given when they are durable, and again until they
are acknowledged.
"""

from __future__ import annotations

import os
import uuid
from abc import ABC, abstractmethod
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

import pyarrow as pa

from operators.chains.graph import alone
from operators.delivery import read_rows
from operators.job import Hook, Job, Position
from operators.partition import PartitionResult, write_output
from operators.plan import Plan
from operators.reporting import rejections_of
from operators.transition import Moments, total
from operators.watermarks import Progress, at_least, mark_of
from operators.window_operator.overlay import Overlay
from operators.window_operator.step import Stepped
from recovery.checkpoint import Checkpoint
from recovery.manifest import END_OF_TIME_US, Kind, Manifest
from recovery.policy import Policy
from recovery.presence import Presence
from statestore.errors import IncompatibleError
from statestore.files.partition_log import PartitionLog
from statestore.files.segments import FileRef, PartitionState
from statestore.objects import Objects
from statestore.opening import open_store
from statestore.restoring import Restoring
from statestore.store import Parquet, StoreConfig

MAX_UNFLUSHED = 1_000_000
"""Messages after which an operator flushes whatever they brought."""
P = TypeVar("P", bound=Plan)


@dataclass(frozen=True)
class Result:
    """The panes of one checkpoint. A receiver that remembers the last id it took in has every pane exactly once."""

    id: int
    panes: pa.Table


@dataclass(frozen=True)
class Since:
    """What has happened since the last flush, beside the state."""

    panes: tuple[pa.Table, ...] = ()
    rejected: tuple[pa.Table, ...] = ()
    counters: dict[str, int] = field(default_factory=dict)
    messages: int = 0
    max_event_us: int | None = None
    origins: tuple[str, ...] = ()

    def and_then(self, step: Stepped, messages: int) -> Since:
        """With one more step."""
        seen = [time for time in (self.max_event_us, step.max_event_us) if time is not None]
        return Since(
            (*self.panes, *([step.panes] if step.panes.num_rows else [])),
            (*self.rejected, *step.rejected),
            total([self.counters, step.counters]),
            self.messages + messages,
            max(seen, default=None),
            step.origins or self.origins,
        )


class ByHand(ABC, Generic[P]):
    """A plan at work on a checkpoint folder: one process, one state partition. Close it, or use a ``with`` block."""

    def __init__(
        self,
        plan: P,
        checkpoint: str | os.PathLike[str],
        store: StoreConfig | None,
        policy: Policy | None,
        hook: Hook,
    ) -> None:
        self._plan = plan
        self._store = store or Parquet()
        self._job = Job.begin(
            alone(plan),
            Checkpoint.open_or_create(checkpoint),
            self._store,
            partitions=1,
            check=_check_whole,
            hook=hook,
            policy=policy or Policy(),
            evolves=False,
        )
        self._job.parallel = 1
        head = self._job.head
        self._presence = Presence(self._job.checkpoint, head.epoch)
        if not head.drained:
            self._presence.begin()
        self._progress, self._now = self._job.progress[plan.name], head.processing_us
        self._due = head.operators[plan.name].due_us
        self._newest: int | None = None
        self._since = Since()
        self._acknowledged, self._taken = head.delivered, head.delivered
        self._ready = self._outstanding()
        self._open, self._watch = ExitStack(), Restoring()
        self._state: Overlay | None = None

    @abstractmethod
    def _move(self, state: Overlay, at: Moments) -> Stepped:
        """Watermark and clock go on without messages."""

    def timeout(self, now_us: int, *, watermark_us: int | None = None) -> None:
        """The clock shows ``now_us``, and every event before ``watermark_us`` has been seen: what is due fires.

        Steps back are ignored. Processing time moves by this alone.
        """
        self._not_drained()
        was = self._now if self._now is not None else now_us
        now = max(was, now_us)
        after = self._plan.watermarks.after(self._progress, [], now)
        if watermark_us is not None:
            after = at_least(after, watermark_us)
        state = self._current().fork()
        step = self._move(state, self._moments(after, was, now))
        self._now, self._progress = now, after
        self._adopt(state, step, 0)
        if step.purged or step.panes.num_rows:
            self._flush()

    def get_result(self) -> list[Result]:
        """Panes that are ready and have not been taken, oldest first. The next `flush` acknowledges them."""
        results = [self._result(checkpoint_id) for checkpoint_id in self._ready]
        if self._ready:
            self._taken = self._ready[-1]
        self._ready = []
        return results

    def flush(self) -> int:
        """Everything so far is durable, and what `get_result` gave is acknowledged. The id of the newest checkpoint.

        What was taken and not yet acknowledged when the process dies is given again, under the same id.
        """
        self._acknowledged = max(self._acknowledged, self._taken)
        if self._since != Since() or self._acknowledged > self._job.head.delivered or self._moved:
            self._flush()
        return self._job.head.id

    def drain(self) -> None:
        """The input has ended: everything shows what is due; no message is taken any more."""
        if self._job.head.drained:
            return
        now, after = self._now or 0, at_least(self._progress, END_OF_TIME_US)
        state = self._current().fork()
        step = self._move(state, self._moments(after, now, now))
        self._progress = after
        self._adopt(state, step, 0)
        self._flush(drained=True)

    @property
    def watermark_us(self) -> int | None:
        """Every event before this has been seen; None before the first."""
        return mark_of(self._progress)

    @property
    def due_us(self) -> int | None:
        """The processing time at which `timeout` would show something that is held until then; None for nothing."""
        return self._due

    @property
    def drained(self) -> bool:
        """Whether the input has ended: no message is taken any more."""
        return self._job.head.drained

    @property
    def counters(self) -> dict[str, int]:
        """Messages and panes by class, since the beginning."""
        return total([dict(self._job.head.totals), self._since.counters])

    def close(self) -> None:
        """Let go of the store. What is not flushed is gone."""
        self._presence.end()
        self._let_go()

    def _let_go(self) -> None:
        self._state = None
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def ready(self) -> list[int]:
        """Checkpoints whose panes have not been taken."""
        return list(self._ready)

    def deliver(self, checkpoint_id: int) -> Result:
        """One of them; say `delivered` when it has been taken in."""
        return self._result(checkpoint_id)

    def delivered(self, checkpoint_id: int) -> None:
        """The receiver has everything up to here; durable with the next flush, of whatever kind."""
        self._acknowledged = self._taken = max(self._acknowledged, checkpoint_id)
        self._ready = [ready for ready in self._ready if ready > checkpoint_id]

    @property
    def _base(self) -> PartitionState:
        return self._job.head.operators[self._plan.name].partitions[0]

    @property
    def _moved(self) -> bool:
        head = self._job.head
        return (self.watermark_us, self._now) != (head.watermark_us, head.processing_us)

    def _moments(self, after: Progress, was: int, now: int) -> Moments:
        marks, before = self._plan.watermarks, self._progress
        newest = marks.newest(before), marks.newest(after), marks.steps(after)
        return Moments(before.watermark_us, after.watermark_us, was, now, False, *newest)

    def _not_drained(self) -> None:
        self._job.round()

    def _current(self) -> Overlay:
        """The state as it is now, over an opened store."""
        if self._state is None:
            if not self.drained:
                self._presence.begin()
            self._watch = Restoring()
            head, plan = self._job.head, self._plan
            objects = self._job.checkpoint.objects
            identity = f"{objects.root}/{head.job_id}/{plan.name}/0/1"
            tables = self._job.tables(plan.name)
            opening = open_store(self._store, objects, identity, tables, self._base, self._watch)
            store = self._open.enter_context(opening)
            self._state = Overlay(store, tables)
        return self._state

    def _adopt(self, state: Overlay, step: Stepped, messages: int) -> None:
        self._state = state
        self._since = self._since.and_then(step, messages)
        self._progress = step.progress or self._progress
        self._due = step.due_us

    def _took(self, state: Overlay, step: Stepped, messages: int) -> dict[str, int]:
        """A step that took messages: durable at once where it showed something, opened a window or forgot one."""
        opened = step.newest is not None and (self._newest is None or step.newest > self._newest)
        self._newest = step.newest if opened else self._newest
        self._adopt(state, step, messages)
        if opened or step.purged or step.panes.num_rows or self._since.messages >= MAX_UNFLUSHED:
            self._flush()
        return step.counters

    def _flush(self, *, drained: bool = False, fed: bool | None = None, base: PartitionState | None = None) -> None:
        """One checkpoint of everything since the last."""
        since = self._since
        result = self._written(since, base or self._base)
        kind: Kind = "feed" if fed is not None else "batch" if since.messages else "tick"
        position, drained = Position(processing_us=self._now), drained or self._job.head.drained
        self._job.commit([result], kind, position, delivered=self._acknowledged, drained=drained, fed=bool(fed))
        self._since = Since()
        if result.panes:
            self._ready.append(self._job.head.id)
        self._let_go()

    def _written(self, since: Since, base: PartitionState) -> PartitionResult:
        plan, objects, attempt = self._plan, self._job.checkpoint.objects, uuid.uuid4().hex
        sequence = self._job.head.id + 1
        log = PartitionLog(objects, self._job.tables(plan.name), self._store, plan.name, 0, 1, attempt)
        return PartitionResult(
            operator=plan.name,
            partition=0,
            base_lineage=base.lineage,
            state=log.append(base, self._current().changes(), sequence),
            progress=self._progress,
            due_us=self._due,
            max_event_us=since.max_event_us,
            inputs=1 if since.messages else 0,
            panes=_file(objects, f"panes/{plan.name}", since.panes, sequence, attempt),
            late=_file(objects, f"late/{plan.name}", since.rejected, sequence, attempt),
            counters=since.counters,
            origins=since.origins,
            restored=self._watch.restored,
            rejected=rejections_of(plan, pa.concat_tables(since.rejected) if since.rejected else None),
        )

    def _outstanding(self) -> list[int]:
        """Checkpoints with panes that nobody has acknowledged."""
        checkpoint, head = self._job.checkpoint, self._job.head
        outputs = checkpoint.outputs(head.delivered + 1, head.id)
        return [output.id for output in outputs if output.panes]

    def _result(self, checkpoint_id: int) -> Result:
        checkpoint = self._job.checkpoint
        panes = tuple(ref for one in checkpoint.outputs(checkpoint_id, checkpoint_id) for ref in one.panes)
        return Result(checkpoint_id, read_rows(checkpoint, panes, self._plan.pane_schema))


def as_table(batch: Any) -> pa.Table:
    """Record batches as tables."""
    return pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch


def _file(
    objects: Objects, folder: str, tables: tuple[pa.Table, ...], sequence: int, attempt: str
) -> tuple[FileRef, ...]:
    return write_output(objects, folder, pa.concat_tables(tables) if tables else None, sequence, attempt)


def _check_whole(head: Manifest | None) -> None:
    if head is not None and head.partitions != 1:
        raise IncompatibleError(
            "an operator that is fed by hand has one state partition: run tidemark rescale with --partitions 1",
            code="by-hand-partitions",
            found=head.partitions,
        )
