"""What calls of an operator have done since its last flush: state partitions in RAM, panes, ledger rows, counters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

import msgspec
import pyarrow as pa

from tidestate.operators.engine.job_log import rejections_of
from tidestate.operators.engine.micro_batch import MicroBatch, OperatorInput, is_due
from tidestate.operators.engine.outputs import write_outputs
from tidestate.operators.engine.partition import PartitionResult, TaskResult, finished, open_partition, write_state
from tidestate.operators.plan.classify import Classified
from tidestate.operators.plan.step_result import StepResult
from tidestate.operators.progress.progress import Context, Progress
from tidestate.statestore.arrays import total
from tidestate.statestore.files.refs import PartitionState
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.stores.restore_monitor import RestoreMonitor
from tidestate.statestore.table.overlay import OverlayView

PartitionStep: TypeAlias = Callable[[OverlayView, pa.Table, Context], StepResult]
"""The step of a state partition with what arrives there, which applies its changes."""


@dataclass(frozen=True)
class ChangedPartition:
    """A state partition with its changes, and the watermark and processing time at which something is due next, as
    in `Dues`.
    """

    view: OverlayView
    due_mark: int | None
    due_us: int | None


class OpenPartitions:
    """The state partitions that calls have needed, as the newest checkpoint has them, open until the next flush."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[OverlayView, ExitStack, RestoreMonitor]] = {}

    def view(self, objects: Objects, batch: MicroBatch, operator: OperatorInput, number: int) -> OverlayView:
        """A state partition, which is opened if it is not open."""
        if number not in self._open:
            with ExitStack() as stack:
                watch = RestoreMonitor()
                store = stack.enter_context(open_partition(batch, operator, objects, number, watch))
                self._open[number] = OverlayView(store, operator.tables), stack.pop_all(), watch
        return self._open[number][0]

    def restored(self, number: int) -> RestoreMonitor:
        """What was read to open it."""
        return self._open[number][2]

    @contextmanager
    def unless_raised(self) -> Iterator[None]:
        """What is opened inside is closed again if that raises."""
        before = {*self._open}
        try:
            yield
        except BaseException:
            self._close({*self._open} - before)
            raise

    def close(self) -> None:
        """Close the stores of all state partitions that are open."""
        self._close({*self._open})

    def _close(self, numbers: set[int]) -> None:
        with ExitStack() as stack:
            for number in numbers:
                stack.push(self._open.pop(number)[1])


@dataclass(frozen=True)
class Unflushed:
    """What calls did since the last flush. ``partitions``: those that took a step, by number."""

    partitions: Mapping[int, ChangedPartition] = field(default_factory=dict, compare=False)
    panes: tuple[pa.Table, ...] = ()
    rejected: tuple[pa.Table, ...] = ()
    counters: dict[str, int] = field(default_factory=dict)
    messages: int = 0
    max_event_us: int | None = None

    def with_step(
        self,
        admitted: Classified,
        messages: int,
        partitions: Mapping[int, ChangedPartition],
        steps: Sequence[StepResult],
    ) -> Unflushed:
        """These, and ``steps`` of some partitions with what was ``admitted`` of so many ``messages``."""
        times = [time for time in (self.max_event_us, admitted.max_event_us) if time is not None]
        moved = [step.moved for step in steps]
        rejected = [admitted.rejected, *(one.rejected for one in moved)]
        return Unflushed(
            {**self.partitions, **partitions},
            (*self.panes, *(one.panes for one in moved if one.panes.num_rows)),
            (*self.rejected, *(rows for rows in rejected if rows is not None)),
            total([self.counters, admitted.counters, *(one.counters for one in moved)]),
            self.messages + messages,
            max(times, default=None),
        )

    def due_us(self, base: Mapping[int, PartitionState]) -> int | None:
        """The processing time at which something is due; None for never."""
        due = ((self.partitions.get(number) or one).due_us for number, one in base.items())
        return min((at for at in due if at is not None), default=None)


def run_partitions(
    since: Unflushed,
    batch: MicroBatch,
    operator: OperatorInput,
    admitted: Classified,
    after: Progress,
    view: Callable[[int], OverlayView],
    step: PartitionStep,
) -> tuple[dict[int, ChangedPartition], list[StepResult]]:
    """A step of each state partition that gets some of what was ``admitted``, or has something due."""
    plan, ends = operator.plan, batch.context(operator, after)
    changed, steps = dict[int, ChangedPartition](), []
    together = plan.steps_together or plan.wakes(ends)
    for number, base in operator.base.items():
        own, arriving = since.partitions.get(number) or base, admitted.partials[number]
        state = PartitionState(due_mark=own.due_mark, due_us=own.due_us)
        due = together or is_due(state, ends.watermark, ends.now_us)
        if due or arriving.num_rows:
            fork = view(number).fork()
            context = replace(ends, stored_due=None if due else own.due_mark)
            done = step(fork, arriving, context)
            moved, dues = finished(plan, view(number), done.moved, context)
            fork.apply({table: TableChanges(expire=made.expire) for table, made in moved.changes.items()})
            changed[number] = ChangedPartition(fork, *dues)
            steps.append(done)
    return changed, steps


def written(
    objects: Objects,
    batch: MicroBatch,
    operator: OperatorInput,
    since: Unflushed,
    after: Progress,
    restored: Callable[[int], RestoreMonitor],
) -> TaskResult:
    """All of this as files, and the result for the checkpoint that follows the newest one."""
    plan, count = operator.plan, batch.partitions
    bounds = plan.expiry(batch.context(operator, after)) if len(since.partitions) < count else {}
    write = partial(_written, objects, batch, operator, bounds)
    rejected = pa.concat_tables(since.rejected) if since.rejected else None
    return TaskResult(
        operator=plan.name,
        span=(0, count),
        answers=tuple(write(n, since.partitions[n], restored(n)) for n in sorted(since.partitions)),
        progress=after,
        expire=bounds,
        max_event_us=since.max_event_us,
        inputs=1 if since.messages else 0,
        panes=write_outputs(objects, f"panes/{plan.name}", batch.checkpoint_id, since.panes),
        late=write_outputs(objects, f"late/{plan.name}", batch.checkpoint_id, since.rejected),
        counters=since.counters,
        rejected=rejections_of(plan, rejected),
    )


def _written(
    objects: Objects,
    batch: MicroBatch,
    operator: OperatorInput,
    bounds: Mapping[str, int],
    number: int,
    changed: ChangedPartition,
    restored: RestoreMonitor,
) -> PartitionResult:
    """A partition that took its last step before others did is expired as far as these."""
    view = changed.view.fork()
    view.apply({table: TableChanges(expire=bound) for table, bound in bounds.items()})
    answer = write_state(objects, batch, operator, number, view.changes(), restored.restored)
    state = msgspec.structs.replace(answer.state, due_mark=changed.due_mark, due_us=changed.due_us)
    return msgspec.structs.replace(answer, state=state)
