"""One state partition in one round: open its store, run the step, write the files of its state.

The same function runs in a Spark task and in the standalone loop. It publishes nothing: the files have fresh names
that only a manifest refers to. It is safe to run it twice, or in a zombie.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec
import numpy as np
import pyarrow as pa

from tidestate.operators.engine.job_log import Rejections
from tidestate.operators.engine.memory_pool import prefer_jemalloc, release_freed
from tidestate.operators.engine.phases import Stopwatch
from tidestate.operators.plan.dues import Dues, dues_after, with_expiry
from tidestate.operators.plan.plan import Plan
from tidestate.operators.plan.transition import Transition
from tidestate.operators.progress.input_progress import observed_progress
from tidestate.operators.progress.instants import END_US
from tidestate.operators.progress.progress import Claims, Context, Progress
from tidestate.statestore.errors import CorruptionError, invariant
from tidestate.statestore.files.partition_log import PartitionLog
from tidestate.statestore.files.refs import FileRef, PartitionState
from tidestate.statestore.spec.changes import ChangeSet
from tidestate.statestore.spec.combiners import Registration
from tidestate.statestore.spec.keyhash import partition_of
from tidestate.statestore.spec.store import Restored, StateStore, StateView, StoreConfig
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

    ``plan``: the variant of the operator for this round (`Plan.for_late_rows`, `ReplayedPlan`). ``tables`` are those
    of its plan, with the column ids of its files; ``base`` the state partitions before the round, by number, in a
    task only its own, and ``expired`` the bounds that hold in all of them; ``sequence`` the id of the checkpoint;
    ``progress`` that before the round; ``was_us`` and ``now_us`` the processing times before and after.
    ``replayable``: the tables whose rows a replay of the streams can put back. ``is_output``: the job delivers its
    panes; ``is_read``: other operators read them; ``combiners``: those of the driver, registered in a worker when it
    unpickles this.
    """

    root: str
    job_id: str
    plan: Plan
    tables: tuple[TableSpec, ...]
    store: StoreConfig
    partitions: int
    base: Mapping[int, PartitionState]
    sequence: int
    progress: Progress
    expired: Mapping[str, int] = field(default_factory=dict)
    was_us: int = 0
    now_us: int = 0
    bases: tuple[str, ...] = ()
    replayable: tuple[str, ...] = ()
    is_output: bool = True
    is_read: bool = False
    combiners: tuple[Registration, ...] = ()

    @property
    def start(self) -> Context:
        """The context of its rows next to the input."""
        return self.plan.standing(self._between(self.progress, self.progress))

    def state(self, partition: int) -> PartitionState:
        """A partition before the round, with the bounds in force."""
        return self.base[partition].under(self.expired)

    def context(self, after: Progress) -> Context:
        """The context of a step of the round, which ends with this progress: never with an earlier watermark."""
        watermark = max(self.progress.watermark_us, after.watermark_us)
        return self._between(self.progress, after.with_watermark(watermark))

    def _between(self, before: Progress, after: Progress) -> Context:
        return Context(before, after, self.was_us, self.now_us, self.store.budget_bytes)

    def observed(self, after: Progress, claims: Iterable[Claims]) -> Progress:
        """The progress of the round, with what the operator's observers read in pieces of these claims."""
        return observed_progress(self.plan.observers, after, claims)

    def due(self, context: Context) -> set[int]:
        """The state partitions in which a step without arrivals may do anything."""
        every = self.plan.wakes(context)
        return {
            number for number, state in self.base.items() if every or is_due(state, context.watermark, context.now_us)
        }

    def stepping(self, context: Context) -> set[int]:
        """The state partitions that take a step without arrivals, in a round with tasks."""
        return {*self.base} if self.plan.steps_together else self.due(context)

    def identity(self, partition: int) -> str:
        """The name of a partition in local caches. It contains the root: a copy of a root needs caches of its own."""
        return f"{self.root}/{self.job_id}/{self.plan.name}/{partition}/{self.partitions}"

    def open(self, objects: Objects, partition: int, watch: RestoreMonitor) -> AbstractContextManager[StateStore]:
        """Open the state of a partition as it was before the round."""
        identity = self.identity(partition)
        return open_store(self.store, objects, identity, self.tables, self.state(partition), watch)


def is_due(state: PartitionState, watermark: int, now_us: int | None = None) -> bool:
    """Whether a step without arrivals that reaches this watermark and clock may do anything."""
    by_clock = now_us is not None and state.due_us is not None and state.due_us <= now_us
    return by_clock or state.due_mark is None or watermark == END_US or state.due_mark <= watermark


class PartitionResult(msgspec.Struct, frozen=True):
    """The answer of one partition, for the next manifest: it started from ``base_lineage``, and ``state`` is the
    partition after the round.
    """

    partition: int
    base_lineage: str
    state: PartitionState
    restored: Restored = Restored()


class OperatorResult(msgspec.Struct, frozen=True):
    """The answer of one task for one operator: of the partitions in ``span``, from the first to before the last,
    those in ``answers`` had arrivals or something due; the others are as they were, except that rows ``expire`` up to
    these bounds.

    ``inputs`` is the number of pieces that arrived. ``host`` is where it ran, empty in the driver's own process.
    ``gone_us``: windows up to this end had been closed before the job began, by the query that it takes over from.
    """

    operator: str
    span: tuple[int, int]
    answers: tuple[PartitionResult, ...]
    progress: Progress
    expire: dict[str, int] = {}
    max_event_us: int | None = None
    inputs: int = 0
    panes: tuple[FileRef, ...] = ()
    late: tuple[FileRef, ...] = ()
    counters: dict[str, int] = {}
    host: str = ""
    rejected: Rejections = Rejections()
    spent_us: dict[str, int] = {}
    gone_us: int | None = None

    def written(self, base: Sequence[PartitionState]) -> tuple[FileRef, ...]:
        """The new files: those that the partitions in ``base`` do not have."""
        known = {ref.path for one in self.answers for ref in base[one.partition].files}
        new = (ref for one in self.answers for ref in one.state.files if ref.path not in known)
        return (*new, *self.panes, *self.late)


def run_partition(
    round_: Round, partition: int, arriving: pa.Table, context: Context, objects: Objects, watch: Stopwatch
) -> tuple[PartitionResult, Transition]:
    """Run the step of a partition and write its state. Returns its answer, and what the step did.

    Raises `CorruptionError` for damaged files.
    """
    prefer_jemalloc()
    check_partition(round_.plan, partition, round_.partitions, arriving)
    try:
        return _attempt(round_, partition, arriving, context, objects, watch)
    except CorruptionError as error:
        if not error.code.startswith("rocksdb-"):
            raise with_rebuild(error, round_) from None
        # Only the local cache is damaged. The step is pure, so it can run again.
        forget_cache(round_.store, round_.identity(partition))
        return _attempt(round_, partition, arriving, context, objects, watch)


def _attempt(
    round_: Round, partition: int, arriving: pa.Table, context: Context, objects: Objects, watch: Stopwatch
) -> tuple[PartitionResult, Transition]:
    restore = RestoreMonitor(_log_restore(f"operator {round_.plan.name}, partition {partition}"))
    with round_.open(objects, partition, restore) as store, watch.timed("step"):
        moved, dues = finished(round_.plan, store, round_.plan.step(store, arriving, context), context)
    # The store is closed: what it has read is not held while levels are folded.
    release_freed(arriving.nbytes + moved.panes.nbytes)
    folding = partial(watch.timed, "fold")
    result = write_state(objects, round_, partition, moved.changes, restore.restored, folding)
    state = msgspec.structs.replace(result.state, due_mark=dues.watermark, due_us=dues.clock_us)
    return msgspec.structs.replace(result, state=state), moved


def finished(plan: Plan, view: StateView, moved: Transition, context: Context) -> tuple[Transition, Dues]:
    """What a step did to ``view`` with what expires then, and when something is due next."""
    changes = with_expiry(moved.changes, plan.expiry(context))
    return replace(moved, changes=changes), dues_after(plan.timers(context), view, changes, context, moved.due)


def with_rebuild(error: CorruptionError, round_: Round) -> CorruptionError:
    """The error, with what to do if the file has messages that a replay can put back."""
    path, files = error.context.get("path"), (ref for one in round_.base.values() for ref in one.files)
    if not any(ref.path == path and ref.table in round_.replayable for ref in files):
        return error
    return CorruptionError(
        f'{error.message}; or start without these messages, Policy(messages="rebuild"), and replay them, or give '
        'up on them, Policy(messages="forget")',
        code=error.code,
        **error.context,
    )


def check_partition(plan: Plan, partition: int, partitions: int, rows: pa.Table) -> None:
    """Raise `InvariantError` if rows of another state partition arrived. Of many rows, a sample is checked."""
    if partitions == 1 or not rows.num_rows:
        return
    # ``take`` before ``select``: without a key, the selection has no columns.
    some = rows.take(pa.array(np.arange(0, rows.num_rows, 1 + rows.num_rows // CHECKED)))
    found = np.unique(partition_of(some.select(plan.key_names), partitions)).tolist()
    invariant(
        found == [partition],
        "a row arrives in the state partition of its key",
        operator=plan.name,
        partition=partition,
        found=found,
    )


def write_state(
    objects: Objects,
    round_: Round,
    partition: int,
    changes: ChangeSet,
    restored: Restored,
    folding: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> PartitionResult:
    """Write the changes of a partition. What is due next is not known in the state that is returned. ``folding`` is
    entered while files are folded.
    """
    plan, base = round_.plan, round_.state(partition)
    attempt = uuid.uuid4().hex
    log = PartitionLog(
        objects, round_.tables, round_.store, plan.name, partition, round_.partitions, attempt, folding
    )
    return PartitionResult(partition, base.lineage, log.append(base, changes, round_.sequence), restored)


def _log_restore(name: str) -> RestoreCallback:
    """A callback that logs the progress of a long restore."""

    def callback(done: Restored, whole: Restored) -> None:
        if done.seconds >= LOGGED_AFTER_S:
            logger.info("%s: restored %s", name, progress_text(done, whole))

    return callback
