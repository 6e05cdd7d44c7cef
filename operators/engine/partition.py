"""One state partition in one round: open its store, run the step, write the files.

The same function runs in a Spark task and in the standalone loop. It publishes nothing: the files have fresh names
that only a manifest refers to. It is safe to run it twice, or in a zombie.
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
from tidestate.statestore.stores.restore_monitor import RestoreCallback, RestoreMonitor, progress_text

logger = logging.getLogger("tidestate")

LOGGED_AFTER_S = 1.0
"""The progress of a restore is logged after this time."""
CHECKED = 1000
"""The partition of this many arriving rows, evenly spread, is checked."""


@dataclass(frozen=True)
class Round:
    """An operator in a round: what each of its partitions gets from the driver; it is pickled to Spark's tasks.

    ``tables`` are those of its plan, with the column ids of its files; ``base`` the state partitions before the
    round, by number; ``sequence`` the id of the checkpoint; ``progress`` that before the round; ``was_us`` and
    ``now_us`` the processing times before and after. ``is_output``: the job delivers its panes; ``combiners``: those
    of the driver, registered in a worker when it unpickles this.
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
    is_output: bool = True
    combiners: tuple[Registration, ...] = ()

    @property
    def before_us(self) -> int | None:
        """The watermark that events are compared with; None before the first one."""
        return watermark_of(self.progress)

    @property
    def intake(self) -> Intake:
        """How events of this round are classified."""
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
        """The number of state partitions."""
        return len(self.base)

    def identity(self, partition: int) -> str:
        """The name of a partition in local caches. It contains the root: a copy of a root needs caches of its own."""
        return f"{self.root}/{self.job_id}/{self.plan.name}/{partition}/{self.partitions}"

    def open(self, objects: Objects, partition: int, watch: RestoreMonitor) -> AbstractContextManager[StateStore]:
        """Open the state of a partition as it was before the round."""
        identity = self.identity(partition)
        return open_store(self.store, objects, identity, self.tables, self.base[partition], watch)


class PartitionResult(msgspec.Struct, frozen=True):
    """The answer of one partition, for the next manifest.

    ``base_lineage`` is the lineage it started from, ``state`` the partition after the round. ``inputs`` is the number
    of pieces that arrived. ``host`` is where it ran, empty in the driver's own process.
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
        """The new files: those that ``base`` does not have."""
        known = {ref.path for ref in base.files}
        return (*(ref for ref in self.state.files if ref.path not in known), *self.panes, *self.late)


def run_partition(
    round_: Round, partition: int, arrivals: Arrivals, after: Progress
) -> tuple[PartitionResult, pa.Table]:
    """Run the step of a partition; write segments, panes and ledger. Returns its answer and the panes.

    ``after`` is the progress at the end of the round. Raises `CorruptionError` for damaged files.
    """
    objects = Objects(round_.root, bases=round_.bases)
    try:
        return _attempt(round_, partition, arrivals, after, objects)
    except CorruptionError as error:
        if not error.code.startswith("rocksdb-"):
            raise
        # Only the local cache is damaged. The step is pure, so it can run again.
        forget_cache(round_.store, round_.identity(partition))
        return _attempt(round_, partition, arrivals, after, objects)


def _attempt(
    round_: Round, partition: int, arrivals: Arrivals, after: Progress, objects: Objects
) -> tuple[PartitionResult, pa.Table]:
    check_partition(round_.plan, partition, round_.partitions, arrivals.partials)
    watch = RestoreMonitor(_log_restore(f"operator {round_.plan.name}, partition {partition}"))
    with round_.open(objects, partition, watch) as store:
        moved = round_.plan.step(store, arrivals.partials, step_times(round_, after))
        result = write_result(
            objects,
            round_,
            partition,
            moved.changes,
            moved.panes if round_.is_output else None,
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
    """Raise `InvariantError` if rows of another state partition arrived. Of many rows, a sample is checked."""
    if partitions == 1 or not rows.num_rows:
        return
    # `take` before `select`: without a key, the selection has no columns.
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
    **facts: Any,
) -> PartitionResult:
    """Write a partition's changes, panes and ledger rows; ``facts`` are the other fields of the result."""
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
        **facts,
    )


def _log_restore(name: str) -> RestoreCallback:
    """A callback that logs the progress of a long restore."""

    def callback(done: Restored, whole: Restored) -> None:
        if done.seconds >= LOGGED_AFTER_S:
            logger.info("%s: restored %s", name, progress_text(done, whole))

    return callback


def step_times(round_: Round, after: Progress) -> StepTimes:
    """Watermarks and processing times before and after the step of a round."""
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
    """Write panes or ledger rows as a Parquet file with a fresh name; no file without rows."""
    if rows is None or not rows.num_rows:
        return ()
    sink = pa.BufferOutputStream()
    repeated = {"window_start", "window_end", "pane", "timing", "kind", "reason", "watermark"}
    dictionary = [field.name for field in rows.schema if field.name in repeated]
    pq.write_table(rows, sink, compression="snappy", use_dictionary=dictionary, write_statistics=True)
    data = sink.getvalue()
    path = f"{folder}/{sequence:020d}-{attempt}.parquet"
    objects.put(path, data)
    return (FileRef(path=path, bytes=data.size, checksum=checksum(data), rows=rows.num_rows, tail=tail_of(data)),)
