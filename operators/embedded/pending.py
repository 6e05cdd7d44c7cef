"""What calls of an operator have done since its last flush: state partitions in RAM, panes, ledger rows, counters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

import msgspec
import pyarrow as pa

from tidestate.operators.engine.micro_batch import MicroBatch, OperatorInput, PartitionResult, TaskResult
from tidestate.operators.engine.tasks import (
    open_partition,
    rejections_of,
    take_step,
    write_outputs,
    write_panes,
    write_state,
)
from tidestate.operators.plan.classify import Classified
from tidestate.operators.plan.plan import Plan
from tidestate.operators.plan.transition import Transition
from tidestate.operators.progress.progress import Context, Progress
from tidestate.statestore.arrays import one_table, total
from tidestate.statestore.files.refs import PartitionState
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.stores.restore_monitor import RestoreMonitor
from tidestate.statestore.table.overlay import OverlayView


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
class PendingPartition:
    """A state partition with its changes, and when something is due next in it, as `Transition` has it."""

    view: OverlayView
    due: int | None
    due_us: int | None


class PendingPartitions:
    """The state partitions of one call: what their steps change is laid over copies of them, in RAM. ``stepped``:
    those that have taken a step, after it; ``view`` gives them as they were before the call.
    """

    def __init__(self, plan: Plan, view: Callable[[int], OverlayView]) -> None:
        self._plan, self._view = plan, view
        self.stepped: dict[int, PendingPartition] = {}

    def take(self, partition: int, arriving: pa.Table, context: Context) -> Transition:
        """As in `Partitions`: a copy of the partition takes the step, and is in ``stepped``."""
        view = self._view(partition)
        moved = take_step(self._plan, view, arriving, context)
        # A copy: if a later step of this call raises, the partition is as it was before all of them.
        after = view.fork()
        after.apply(moved.changes)
        self.stepped[partition] = PendingPartition(after, moved.due, moved.due_us)
        return moved


@dataclass(frozen=True)
class Unflushed:
    """What calls did since the last flush. ``partitions``: those that took a step or were edited, by number;
    ``edits``: how many windows and messages edits have concerned.
    """

    partitions: Mapping[int, PendingPartition] = field(default_factory=dict, compare=False)
    panes: tuple[pa.Table, ...] = ()
    rejected: tuple[pa.Table, ...] = ()
    counters: dict[str, int] = field(default_factory=dict)
    messages: int = 0
    max_event_us: int | None = None
    edits: int = 0

    def with_edits(self, partitions: Mapping[int, PendingPartition], edits: int) -> Unflushed:
        """These, and state partitions as edits have left them."""
        return replace(self, partitions={**self.partitions, **partitions}, edits=self.edits + edits)

    def with_steps(
        self,
        admitted: Classified,
        messages: int,
        partitions: Mapping[int, PendingPartition],
        steps: Sequence[Transition],
    ) -> Unflushed:
        """These, and ``steps`` of some partitions with what was ``admitted`` of so many ``messages``."""
        times = [time for time in (self.max_event_us, admitted.claims.newest_us) if time is not None]
        rejected = [admitted.rejected, *(moved.rejected for moved in steps)]
        return Unflushed(
            {**self.partitions, **partitions},
            (*self.panes, *(moved.panes for moved in steps if moved.panes.num_rows)),
            (*self.rejected, *(rows for rows in rejected if rows is not None)),
            total([self.counters, admitted.counters, *(moved.counters for moved in steps)]),
            self.messages + messages,
            max(times, default=None),
            self.edits,
        )

    def states(self, base: Mapping[int, PartitionState]) -> dict[int, PartitionState]:
        """The state partitions of the newest checkpoint, in which something is due when calls have left it to be."""
        own = {
            number: msgspec.structs.replace(base[number], due_mark=pending.due, due_us=pending.due_us)
            for number, pending in self.partitions.items()
        }
        return {number: own.get(number, state) for number, state in base.items()}

    def written(
        self,
        objects: Objects,
        batch: MicroBatch,
        operator: OperatorInput,
        after: Progress,
        restored: Callable[[int], RestoreMonitor],
    ) -> TaskResult:
        """All of this as files, and the result for the checkpoint that follows the newest one."""
        plan, sequence, context = operator.plan, batch.checkpoint_id, batch.context(operator, after)
        bounds = plan.expiry(context) if len(self.partitions) < batch.partitions else {}

        def answer(number: int, pending: PendingPartition) -> PartitionResult:
            # One that took its last step before others did is expired as far as these.
            view = pending.view.fork()
            view.apply({table: TableChanges(expire=bound) for table, bound in bounds.items()})
            monitor = restored(number).restored
            return write_state(objects, batch, operator, number, view.changes(), pending.due, pending.due_us, monitor)

        reasons, example = rejections_of(plan, one_table(self.rejected))
        return TaskResult(
            operator=plan.name,
            span=(0, batch.partitions),
            answers=tuple(answer(number, self.partitions[number]) for number in sorted(self.partitions)),
            progress=after,
            expire=bounds,
            max_event_us=self.max_event_us,
            inputs=1 if self.messages else 0,
            panes=write_panes(objects, batch, operator, context.watermark, self.panes),
            chunks=len(self.panes),
            late=write_outputs(objects, f"late/{plan.name}", sequence, self.rejected),
            counters=self.counters,
            rejected=reasons,
            example=example,
        )
