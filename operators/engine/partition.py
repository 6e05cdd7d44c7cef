"""One state partition through one checkpoint: open its store, take the step, write the files.

The same function runs in a Spark task and in the standalone loop. It publishes nothing: the files get fresh names
that nobody refers to until a manifest does. It is safe to run it twice, or in a zombie.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidestate.operators.engine.job_log import Rejections, rejections_of
from tidestate.operators.engine.pieces import Arrivals
from tidestate.operators.plan.classify import Intake
from tidestate.operators.plan.plan import Plan
from tidestate.operators.plan.transition import StepTimes
from tidestate.operators.progress.rounds import Progress, Rounds, watermark_of
from tidestate.statestore.checksums import checksum
from tidestate.statestore.errors import CorruptionError, invariant
from tidestate.statestore.files.partition_log import PartitionLog
from tidestate.statestore.files.refs import FileRef, PartitionState
from tidestate.statestore.files.tails import tail_of
from tidestate.statestore.spec.changes import ChangeSet
from tidestate.statestore.spec.combiners import Registration
from tidestate.statestore.spec.keyhash import partition_of
from tidestate.statestore.spec.store import Restored, StateStore, StoreConfig
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.stores.opening import forget_cache, open_store
from tidestate.statestore.stores.restore_monitor import RestoreMonitor, Told, progress_text

logger = logging.getLogger("tidestate")

WORTH_TELLING_S = 1.0
"""A restore that takes longer is logged."""
CHECKED = 1000
"""Of how many of the rows that arrive the partition is computed again, spread over all of them."""


@dataclass(frozen=True)
class Round:
    """What the driver tells every partition of an operator for one checkpoint. ``tables``: those of its plan, as
    files know their columns; ``shows``: its panes are the job's; ``combiners``: those of the driver, which a worker
    knows once it has read this.
    """

    root: str
    job_id: str
    plan: Plan
    tables: tuple[TableSpec, ...]
    store: StoreConfig
    base: tuple[PartitionState, ...]
    sequence: int
    progress: Progress
    was_us: int = 0
    now_us: int = 0
    origins: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()
    reprocessing: bool = False
    shows: bool = True
    combiners: tuple[Registration, ...] = ()

    @property
    def before_us(self) -> int | None:
        """The watermark that classifies the batch; None before the first."""
        return watermark_of(self.progress)

    @property
    def intake(self) -> Intake:
        """How the batch is taken in."""
        budget = self.store.budget_bytes
        return Intake(
            self.before_us,
            self.now_us,
            self.reprocessing,
            budget,
            self.origins,
            began=self.progress,
            so_far=self.progress,
        )

    @property
    def partitions(self) -> int:
        """How many state partitions there are."""
        return len(self.base)

    def identity(self, partition: int) -> str:
        """Of a partition in caches. The root is part of it: a copy of a checkpoint must not meet the original's."""
        return f"{self.root}/{self.job_id}/{self.plan.name}/{partition}/{self.partitions}"

    def open(self, objects: Objects, partition: int, watch: RestoreMonitor) -> AbstractContextManager[StateStore]:
        """The state of a partition, before the round."""
        identity = self.identity(partition)
        return open_store(self.store, objects, identity, self.tables, self.base[partition], watch)


class PartitionResult(msgspec.Struct, frozen=True):
    """What one partition wrote and saw; the driver puts these into a manifest. ``host`` is where it ran, empty in the
    driver's own process.
    """

    operator: str
    partition: int
    base_lineage: str
    state: PartitionState
    progress: Progress
    max_event_us: int | None
    inputs: int
    due_us: int | None = None
    panes: tuple[FileRef, ...] = ()
    late: tuple[FileRef, ...] = ()
    counters: dict[str, int] = {}
    origins: tuple[str, ...] = ()
    restored: Restored = Restored()
    host: str = ""
    rejected: Rejections = Rejections()

    def written(self, base: PartitionState) -> tuple[FileRef, ...]:
        """The files that are new: those that ``base`` does not name."""
        known = {ref.path for ref in base.files}
        return (*(ref for ref in self.state.files if ref.path not in known), *self.panes, *self.late)


def run_partition(
    round_: Round, partition: int, arrivals: Arrivals, after: Progress
) -> tuple[PartitionResult, pa.Table]:
    """Take ``arrivals`` into the partition's state; write segments, panes and ledger. Raises on damaged files.

    ``after`` is the progress at the end of the round. Beside the result stand the panes.
    """
    objects = Objects(round_.root, bases=round_.bases)
    try:
        return _attempt(round_, partition, arrivals, after, objects)
    except CorruptionError as error:
        if not error.code.startswith("rocksdb-"):
            raise
        # Only the local cache is damaged. The step is pure, so it is simply taken again.
        forget_cache(round_.store, round_.identity(partition))
        return _attempt(round_, partition, arrivals, after, objects)


def _attempt(
    round_: Round, partition: int, arrivals: Arrivals, after: Progress, objects: Objects
) -> tuple[PartitionResult, pa.Table]:
    check_partition(round_.plan, partition, round_.partitions, arrivals.partials)
    watch = RestoreMonitor(_told(f"operator {round_.plan.name}, partition {partition}"))
    with round_.open(objects, partition, watch) as store:
        moved = round_.plan.step(store, arrivals.partials, step_times(round_, after))
        result = write_result(
            objects,
            round_,
            partition,
            moved.changes,
            moved.panes if round_.shows else None,
            [rows for rows in (arrivals.rejected, moved.rejected) if rows is not None],
            progress=after,
            due_us=moved.due_us,
            max_event_us=arrivals.max_event_us,
            inputs=arrivals.inputs,
            counters=arrivals.counters | moved.counters,
            origins=arrivals.origins,
            restored=watch.restored,
        )
    return result, moved.panes


def check_partition(plan: Plan, partition: int, partitions: int, rows: pa.Table) -> None:
    """Raise `InvariantError` where rows of another state partition arrived. Of many rows, some are checked."""
    if partitions == 1 or not rows.num_rows:
        return
    # Taken before selected: without a key, a selection has no columns to take rows of.
    some = rows.take(pa.array(np.arange(0, rows.num_rows, 1 + rows.num_rows // CHECKED)))
    found = np.unique(partition_of(some.select(plan.key_names), partitions)).tolist()
    invariant(
        found == [partition],
        "a row arrives in the state partition of its key",
        operator=plan.name,
        partition=partition,
        found=found,
    )


def write_result(
    objects: Objects,
    round_: Round,
    partition: int,
    changes: ChangeSet,
    panes: pa.Table | None,
    rejected: Sequence[pa.Table],
    **seen: Any,
) -> PartitionResult:
    """Write a partition's changes, panes and ledger rows; ``seen`` are the other fields of the result."""
    plan, base, attempt = round_.plan, round_.base[partition], uuid.uuid4().hex
    log = PartitionLog(objects, round_.tables, round_.store, plan.name, partition, round_.partitions, attempt)
    ledger = pa.concat_tables(rejected) if rejected else None
    return PartitionResult(
        operator=plan.name,
        partition=partition,
        base_lineage=base.lineage,
        state=log.append(base, changes, round_.sequence),
        panes=write_output(objects, f"panes/{plan.name}", panes, round_.sequence, attempt),
        late=write_output(objects, f"late/{plan.name}", ledger, round_.sequence, attempt),
        rejected=rejections_of(plan, ledger),
        **seen,
    )


def _told(who: str) -> Told:
    """Where a restore lasts, how far it is."""

    def tell(done: Restored, whole: Restored) -> None:
        if done.seconds >= WORTH_TELLING_S:
            logger.info("%s: restored %s", who, progress_text(done, whole))

    return tell


def step_times(round_: Round, after: Progress) -> StepTimes:
    """Where time is before and after the step of a round."""
    before = round_.progress.watermark_us
    marks = Rounds(round_.plan.watermarks)
    return StepTimes(
        before,
        max(before, after.watermark_us),
        round_.was_us,
        round_.now_us,
        round_.reprocessing,
        sides_before=marks.newest(round_.progress),
        sides=marks.newest(after),
        steps=marks.steps(after),
        budget_bytes=round_.store.budget_bytes,
    )


def write_output(
    objects: Objects, folder: str, rows: pa.Table | None, sequence: int, attempt: str
) -> tuple[FileRef, ...]:
    """Panes or ledger rows as one Parquet file under a fresh name; nothing where there are no rows."""
    if rows is None or not rows.num_rows:
        return ()
    sink = pa.BufferOutputStream()
    repeated = {"window_start", "window_end", "pane", "timing", "kind", "reason", "watermark"}
    dictionary = [field.name for field in rows.schema if field.name in repeated]
    pq.write_table(rows, sink, compression="snappy", use_dictionary=dictionary, write_statistics=True)
    data = sink.getvalue()
    path = f"{folder}/{sequence:020d}-{attempt}.parquet"
    objects.put(path, data)
    facts = FileRef(path=path, bytes=data.size, checksum=checksum(data), rows=rows.num_rows, tail=tail_of(data))
    return (facts,)
