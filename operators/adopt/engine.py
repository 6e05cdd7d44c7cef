"""Rows of Spark's state in one round of a job: each state partition takes its own, and nothing else happens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from tidestate.operators.adopt.adopted import Adopted
from tidestate.operators.engine.delivery import Delivery
from tidestate.operators.engine.in_process import InProcess
from tidestate.operators.engine.outputs import OutputFiles
from tidestate.operators.engine.partition import OperatorResult, PartitionResult, Round, finished, write_state
from tidestate.operators.engine.round import GraphRound, Outgoing
from tidestate.operators.plan.partitioned_rows import PartitionedRows
from tidestate.operators.plan.transition import Transition
from tidestate.operators.progress.input_progress import first_progress
from tidestate.operators.progress.progress import Context, Progress
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.arrays import total
from tidestate.statestore.spec.store import Restored
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.stores.memory import MemoryStore


@dataclass(frozen=True)
class AdoptingEngine:
    """An `Engine` whose batch is what a job takes over, in this process."""

    _inner: InProcess = InProcess()  # noqa: RUF009  it has no state

    parallel = 1
    tasks = 1

    def take(self, round_: GraphRound, batch: Adopted) -> list[OperatorResult]:
        """As in `Engine`; the round has one operator."""
        one = round_.first
        objects = Objects(one.root, bases=one.bases)
        owned = PartitionedRows.of(batch.rows, one.plan.key_names, one.partitions)
        panes = OutputFiles(objects, f"panes/{one.plan.name}", one.sequence)
        answers, counters = [], []
        for partition in range(one.partitions):
            answer, moved = _taken(one, objects, partition, owned[partition], batch)
            panes.add(moved.panes)
            answers.append(answer)
            counters.append(moved.counters)
        result = OperatorResult(
            operator=one.plan.name,
            span=(0, one.partitions),
            answers=tuple(answers),
            progress=progress_reached(one, batch),
            max_event_us=batch.max_event_us,
            panes=panes.finish(),
            counters=total(counters),
            gone_us=batch.gone_us,
        )
        return [result]

    def run(
        self, round_: GraphRound, pieces: Iterable[Outgoing], after: Mapping[str, Progress] | None = None
    ) -> list[OperatorResult]:
        """As in `Engine`, by the engine of this process."""
        return self._inner.run(round_, pieces, after)

    def read(self, checkpoint: Checkpoint, delivery: Delivery) -> pa.Table:
        """As in `Engine`, by the engine of this process."""
        return self._inner.read(checkpoint, delivery)


def _taken(
    round_: Round, objects: Objects, partition: int, rows: pa.Table, batch: Adopted
) -> tuple[PartitionResult, Transition]:
    mark = batch.watermark_us
    context = Context.between(mark, mark, round_.was_us, round_.now_us, round_.store.budget_bytes)
    store = MemoryStore(round_.tables)
    moved, dues = finished(round_.plan, store, batch.take(round_.plan, store, rows, context), context)
    result = write_state(objects, round_, partition, moved.changes, Restored())
    state = msgspec.structs.replace(result.state, due_mark=None, due_us=dues.clock_us)
    return msgspec.structs.replace(result, state=state), moved


def progress_reached(round_: Round, batch: Adopted) -> Progress:
    """The progress of the job's one source, as the query had it."""
    begun = first_progress(round_.plan.watermarks)
    sources = {
        name: msgspec.structs.replace(source, watermark_us=batch.reached_us)
        for name, source in begun.tracker.sources.items()
    }
    tracker = msgspec.structs.replace(begun.tracker, sources=sources, watermark_us=batch.watermark_us)
    return msgspec.structs.replace(begun, tracker=tracker)
