"""Rows of Spark's state in one round of a job: each state partition takes its own, and nothing else happens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from tidestate.operators.adopt.adopted import Adopted
from tidestate.operators.engine.delivery import Delivery
from tidestate.operators.engine.micro_batch import Block, MicroBatch, OperatorInput, PartitionResult, TaskResult
from tidestate.operators.engine.tasks import InProcess, finished, write_panes, write_state
from tidestate.operators.plan.classify import PartitionedRows
from tidestate.operators.plan.transition import Transition
from tidestate.operators.progress.progress import Context, Progress, first_progress
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.arrays import total
from tidestate.statestore.spec.store import Restored
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.stores.memory import MemoryStore


@dataclass(frozen=True)
class AdoptingTransport:
    """A `Transport` whose rows are what a job takes over, in this process."""

    _inner: InProcess = InProcess()  # noqa: RUF009  it has no state

    parallelism = 1
    max_tasks = 1

    def run(
        self,
        batch: MicroBatch,
        rows: Adopted | None = None,
        *,
        blocks: Iterable[Block] = (),
        after: Mapping[str, Progress] | None = None,
    ) -> list[TaskResult]:
        """As in `Transport`; the job has one operator."""
        if rows is None:
            return self._inner.run(batch, blocks=blocks, after=after)
        (operator,) = batch.inputs.values()
        name, objects = operator.plan.name, Objects(batch.root, bases=batch.bases)
        rows_by_partition = PartitionedRows.of(rows.rows, operator.plan.input.key_names, batch.partitions)
        answers, panes, counters = [], [], []
        for partition in range(batch.partitions):
            answer, transition = _taken(batch, operator, objects, partition, rows_by_partition[partition], rows)
            panes += [transition.panes] if transition.panes.num_rows else []
            answers.append(answer)
            counters.append(transition.counters)
        result = TaskResult(
            operator=name,
            span=(0, batch.partitions),
            answers=tuple(answers),
            progress=progress_reached(operator, rows),
            max_event_us=rows.max_event_us,
            panes=write_panes(objects, batch, operator, rows.watermark_us, panes),
            chunks=len(panes),
            counters=total(counters),
            gone_us=rows.gone_us,
        )
        return [result]

    def read(self, checkpoint: Checkpoint, delivery: Delivery) -> pa.Table:
        """As in `Transport`, on the calling thread."""
        return self._inner.read(checkpoint, delivery)


def _taken(
    batch: MicroBatch, operator: OperatorInput, objects: Objects, partition: int, rows: pa.Table, takeover: Adopted
) -> tuple[PartitionResult, Transition]:
    plan, mark = operator.plan, takeover.watermark_us
    context = Context.between(mark, mark, batch.was_us, batch.now_us, batch.store.budget_bytes)
    store = MemoryStore(operator.tables)
    transition = finished(plan, store, takeover.take(plan, store, rows, context), context)
    changes, due_us = transition.changes, transition.due_us
    # When something is due next by the watermark, only the next step can tell.
    return write_state(objects, batch, operator, partition, changes, None, due_us, Restored()), transition


def progress_reached(operator: OperatorInput, batch: Adopted) -> Progress:
    """The progress of the job's one source, as the query had it."""
    initial = first_progress(operator.plan.input.watermarks)
    sources = {
        name: msgspec.structs.replace(source, watermark_us=batch.reached_us)
        for name, source in initial.sources.items()
    }
    return msgspec.structs.replace(initial, sources=sources, watermark_us=batch.watermark_us)
