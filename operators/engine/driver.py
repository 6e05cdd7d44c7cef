"""The driver of a job: it computes, publishes, logs and delivers every checkpoint, for every runner.

Runners differ in the transport, which runs the tasks of a micro-batch, and in what triggers one: Spark with its
batches, a loop over tables, a test, or calls of an embedded operator. The order is always this:

1. a micro-batch is made from the newest checkpoint, and the transport runs it; until here everything can be discarded
2. the results are checked and published as the next manifest
3. it is logged, with warnings of rejected rows
4. panes and late rows go to their sinks, oldest first; while one refuses that may not be behind, the driver waits
5. what a sink has accepted is acknowledged with the next manifest, or at the `end`

Before 1 the driver waits until the sinks are ready.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Generic, TypeVar

import msgspec
import pyarrow as pa

from tidestate.operators.describe.runs import Measured
from tidestate.operators.describe.sinks import Sinks
from tidestate.operators.engine.delivery import PATIENCE_S, Offers, read_rows
from tidestate.operators.engine.exposition import Endpoint, address_of, exposition_text, instrument
from tidestate.operators.engine.job import Job, Position
from tidestate.operators.engine.job_metrics import JobFigures, job_families
from tidestate.operators.engine.lanes import Lanes
from tidestate.operators.engine.micro_batch import MicroBatch
from tidestate.operators.engine.partitions import TaskResult
from tidestate.operators.engine.process import Stopwatch, as_phased, round_times, seconds
from tidestate.operators.engine.rebuild import check_replayed, needs_side_run
from tidestate.operators.engine.replay_start import rebuilt
from tidestate.operators.engine.reprocess import LateRows, warn_of_purged
from tidestate.operators.engine.tasks import (
    RowsOfPartitions,
    Transport,
    ledger_blocks,
    with_rows,
    without_input,
)
from tidestate.operators.plan.plan import RowKind
from tidestate.operators.progress.figures import SinkWaits
from tidestate.operators.progress.metrics import Family
from tidestate.operators.progress.progress import Progress
from tidestate.recovery.control.watch import AskedRun, RequestWatch
from tidestate.recovery.log.checkpoint import now_us
from tidestate.recovery.log.manifest import CheckpointKind, Manifest, Spent
from tidestate.recovery.log.topic_offsets import TopicOffsets
from tidestate.recovery.retention.rules import CheckpointRetention, Upkept
from tidestate.recovery.retention.upkeep import Upkeep
from tidestate.recovery.start.heartbeat import Heartbeat
from tidestate.statestore.errors import (
    CorruptionError,
    NotFoundError,
    TidestateError,
    UnavailableError,
    UsageError,
    invariant,
)

log = logging.getLogger("tidestate")

B = TypeVar("B")
_P = TypeVar("_P")


class Driver(Generic[B, _P]):
    """Runs a job on a transport, and offers its sinks what it emits; ``wait`` as in `Offers.offer`.

    The lease is given back once ``still`` returns False. With ``retain`` old checkpoints are collected
    meanwhile, and with ``metrics`` those are served; ``behind`` gives what `JobFigures.behind` is now. Only one
    thread at a time may call: several must take the ``lock``.
    """

    def __init__(
        self,
        job: Job,
        transport: Transport[B, _P],
        sinks: Sinks[_P] | None = None,
        *,
        wait: Callable[[float], None] = time.sleep,
        still: Callable[[], bool] = lambda: True,
        retain: CheckpointRetention | None = None,
        metrics: int | str | None = None,
        behind: Callable[[], Sequence[TopicOffsets]] = tuple,
    ) -> None:
        self._behind = behind
        self.job, self._transport, self._wait = job, transport, wait
        job.parallel = transport.parallelism
        self.lock = threading.Lock()
        self._watch, self._finished = Stopwatch(), Spent()
        self.offers = offers = Offers(job.check_newest)
        self._lanes = self._by_hand = Lanes(job, transport.read, offers, sinks or Sinks())
        # Not `self`: a driver that is garbage collected gives its lease back.
        waiting = lambda: offers.waiting_since_us  # noqa: E731
        self._heartbeat = Heartbeat(job.checkpoint, job.head.epoch, still=still, waiting=waiting)
        self._upkeep = None if retain is None else Upkeep(job.checkpoint, job.head.epoch, retain)
        self._served_at = None if metrics is None else address_of(metrics)
        self._endpoint: Endpoint | None = None
        self._published, self._seconds = 0, dict[str, float]()
        self._requests: RequestWatch | None = None
        self._is_running = False
        """Whether all that `begin` starts is running."""
        self._may_collect = False
        """Whether nothing is lost, so that old checkpoints need not be kept for it: once so, always in this run."""
        self._answering = threading.local()

    @property
    def head(self) -> Manifest:
        """The manifest of the newest checkpoint."""
        return self.job.head

    def begin(self, *, replays: bool = False) -> None:
        """Take the lease of the root, until `end`; idempotent. A drained job needs none. With ``replays`` nothing is
        collected before messages that were lost are back.
        """
        if self._is_running:
            return
        if self._served_at is not None and self._endpoint is None:
            # Not `self`, as above.
            this = weakref.ref(self)
            families = lambda: driver.families() if (driver := this()) else []  # noqa: E731
            self._endpoint = Endpoint(self._served_at, families, self.job.checkpoint)
        if not self.head.drained:
            self._heartbeat.begin()
            # A checkpoint from before a loss is where recorded batches are run again from.
            self._may_collect = self._may_collect or not (
                needs_side_run(self.job.graph, self.head) or (replays and rebuilt(self.job.graph, self.head))
            )
            if self._may_collect and self._upkeep is not None:
                self._upkeep.begin()
            self._is_running = self._may_collect  # until then each call looks again

    def serve_requests(self, run: AskedRun) -> None:
        """Let others ask this run by files in the root, until `end`. A run is asked once, and a drained job never."""
        if self._requests is None and not self.head.drained:
            self._requests = RequestWatch(self.job.checkpoint.objects, self.head.epoch, run)
            self._requests.begin()

    @contextmanager
    def answering(self, number: int) -> Iterator[None]:
        """The checkpoint that this thread publishes meanwhile records that it is the answer to this request."""
        self._answering.number = number
        try:
            yield
        finally:
            self._answering.number = 0

    def end(self, *, acknowledge: bool = True) -> None:
        """Give the lease back. Deliveries that the sink accepted are recorded; if that fails they are repeated. A
        request that is being done is done first.
        """
        self._is_running = False
        if self._requests is not None:
            self._requests.end()
        try:
            if acknowledge:
                self.job.acknowledge()
        except TidestateError as error:
            log.warning(
                "the last deliveries could not be recorded, so they are repeated at the next start: %s", error
            )
        finally:
            self.job.log.end()
            self.offers.give_up()
            if self._upkeep is not None:
                self._upkeep.end()
            endpoint, self._endpoint = self._endpoint, None
            if endpoint is not None:
                endpoint.close()
            self._heartbeat.end()

    @contextmanager
    def running(self) -> Iterator[None]:
        """`begin`, and `end` at the end, also after an error."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def batch(self, batch: B, clock_us: int, position: Callable[[int], Position]) -> Manifest:
        """Process a batch at processing time ``clock_us``.

        ``position`` is called with the id of the checkpoint after everything is computed, and returns the input
        position after the batch.
        """
        return self._take("batch", batch, clock_us, position)

    def bootstrap(self, history: B, position: Callable[[int], Position], *, deliver: bool) -> Manifest:
        """Process a batch of history; without ``deliver`` no sink gets its panes. ``position`` as in `batch`. Raises
        `UsageError` (``origins-withheld``) where readers would miss them.
        """
        if not deliver and self.job.plan.output_origin is not None:
            raise UsageError(
                "readers of a numbered output would wait for the buffer of the history, which no sink gets: deliver "
                "it, or begin without .origins() and add them at the next start",
                code="origins-withheld",
                operator=self.job.plan.name,
            )
        return self._take("bootstrap", history, now_us(), position, withheld=not deliver)

    def reprocess_late(self, rows: LateRows, clock_us: int | None = None) -> Manifest:
        """Reprocess late ``rows``. Rows of a ledger are those up to the newest checkpoint, and not put back again."""
        self.hold()
        micro_batch = self._micro_batch(clock_us, "ledger")
        with self._computing():
            results = self._transport.run(micro_batch, blocks=ledger_blocks(micro_batch, rows.tables))
        position = replace(_clock(micro_batch, clock_us), fed=rows.ledgers)
        return self.commit(micro_batch.checkpoint_id, results, "feed", position)

    def rebuild(self, replay: B) -> Manifest:
        """Put back messages that were lost, from a ``replay`` of the streams: rows in any order, any number of times.
        Raises `UsageError` where none can be put back.
        """
        check_replayed(self.job.graph)
        self.hold()
        micro_batch = self._micro_batch(None, "replay")
        with self._computing():
            results = self._transport.run(micro_batch, replay)
        return self.commit(micro_batch.checkpoint_id, results, "feed", _clock(micro_batch, None), rebuilt=True)

    def put_rows_back(self, rows: RowsOfPartitions) -> Manifest:
        """Put ``rows`` of state tables, all that was lost and no more, into the state as it is."""
        self.hold()
        micro_batch = self._micro_batch(None)
        with self._computing():
            results = with_rows(micro_batch, rows)
        manifest = self.commit(micro_batch.checkpoint_id, results, "feed", _clock(micro_batch, None), mended=True)
        if self._upkeep is not None:
            self._upkeep.begin()
        return manifest

    def tick(
        self, after: Callable[[MicroBatch], dict[str, Progress]], clock_us: int | None = None, **how: bool
    ) -> Manifest:
        """Advance time to the progress ``after``, without input; ``drained``: the input has ended. Where nothing is
        due no task is started.
        """
        micro_batch = self._micro_batch(clock_us)
        ends = after(micro_batch)
        with self._computing():
            if micro_batch.idle(ends):
                results = without_input(micro_batch, ends)
            else:
                results = self._transport.run(micro_batch, after=ends)
        return self.commit(micro_batch.checkpoint_id, results, "tick", _clock(micro_batch, clock_us), **how)

    def advance(self, clock_us: int) -> None:
        """Advance the clock without input. Publishes a checkpoint if something is due, or a watermark moves that the
        clock alone would not restore after a restart; see `MicroBatch.keeps`. Does nothing while a sink is not ready;
        one that may be behind is offered what it lacks. A job without a clock has nothing else to do.
        """
        if not self._lanes.ready() or not self.job.graph.clocked:
            return
        head, micro_batch = self.head, self._micro_batch(clock_us)
        after = micro_batch.after({})
        due = head.due_us is not None and head.due_us <= micro_batch.now_us
        if due or micro_batch.keeps(after, head.processing_us):
            self.tick(lambda _batch: after, clock_us)
        else:
            self.job.set_progress(after)

    def skip_idle_time(self, now_us: int) -> None:
        """No source was idle until ``now_us``: a batch was running, or a sink was waited for, and none was polled."""
        self.job.set_progress({name: one.skipping_idle_time(now_us) for name, one in self.job.progress.items()})

    def drain(self, timeout_s: float | None = PATIENCE_S) -> bool:
        """End the input: every window fires, and no more input is accepted. False if it had ended before.

        Raises `UnavailableError` (``sink-refuses``) if the sinks have not accepted everything after ``timeout_s``.
        """
        with self.offers.within(timeout_s):
            if self.head.drained:
                self.deliver()
                return False
            self.tick(MicroBatch.finished, drained=True)
            return True

    def commit(
        self, sequence: int, results: Sequence[TaskResult], kind: CheckpointKind, position: Position, **how: bool
    ) -> Manifest:
        """Publish the checkpoint with this id, see `Job.commit`, and `deliver` it."""
        invariant(sequence == self.head.id + 1, "a round is published right after its base", id=sequence)
        parallel = min(self._transport.parallelism, len({one.span for one in results}))
        made = round_times(self._watch.take(), [one.spent_us for one in results], parallel)
        spent = msgspec.structs.replace(self._finished, made=made)
        with self._unless_fenced(), self._watch.timed("publish"):
            manifest = self.job.commit(results, kind, position, spent=spent, request=self._request, **how)
        if self._upkeep is not None:
            self._upkeep.published()
        if kind == "feed":
            warn_of_purged(self.job, manifest)
        with self._watch.timed("deliver"):
            self.deliver()
        finished = seconds(self._watch.take())
        self._finished = Spent(earlier=manifest.id, finished=finished)
        self._published += 1
        # A new one: another thread may read it.
        spent_now = made | finished
        self._seconds = {p: self._seconds.get(p, 0.0) + spent_now.get(p, 0.0) for p in self._seconds | spent_now}
        log.debug("checkpoint %d: seconds by phase: %s", manifest.id, as_phased(made | finished))
        return manifest

    @property
    def waits(self) -> SinkWaits:
        """How this run has waited for its sinks, those to which a caller delivers by hand too."""
        return self._by_hand.waits()

    def families(self) -> list[Family]:
        """The metrics of this run, as they are now; from any thread."""
        job = self.job
        figures = JobFigures(job.plan.name, job.head, job.progress, self.waits, self.upkept)
        figures = replace(figures, published=self._published, seconds=self._seconds, behind=self._behind())
        return job_families(figures)

    @property
    def finished(self) -> Spent:
        """How long the end of the newest checkpoint took."""
        return self._finished

    @property
    def metrics_url(self) -> str | None:
        """Where metrics are served; None if they are not."""
        return self._endpoint.url if self._endpoint is not None else None

    @property
    def upkept(self) -> Upkept | None:
        """What this run has collected; None if it keeps everything."""
        return None if self._upkeep is None else self._upkeep.done

    def hold(self, sinks: Sinks[_P] | None = None, wait: Callable[[float], None] | None = None) -> None:
        """Wait until the sinks, by default those of the job, are ready to take more. Raises `UsageError` if the input
        has ended.
        """
        self.job.check_open()
        self._to(sinks).hold(wait or self._wait)

    def deliver(self, sinks: Sinks[_P] | None = None, wait: Callable[[float], None] | None = None) -> None:
        """Offer the sinks, by default those of the job, all that is outstanding, see `Lanes.deliver`.

        Without a sink nothing is acknowledged: one that is added later gets everything from the beginning. Raises
        `FencedError` if a newer run or a reset has published meanwhile: its line may not have these rows.
        """
        with self._unless_fenced():
            self._to(sinks).deliver(wait or self._wait)

    def _to(self, sinks: Sinks[_P] | None) -> Lanes[_P]:
        """The lanes to the sinks of the job, or to those that a caller delivers to by hand."""
        if sinks is None:
            return self._lanes
        if sinks is not self._by_hand.sinks:
            self._by_hand = Lanes(self.job, self._transport.read, self.offers, sinks)
        return self._by_hand

    def rows(self, manifest: Manifest | None) -> pa.Table:
        """The panes of a checkpoint of this job as a table; empty without one."""
        panes = manifest.panes if manifest is not None else ()
        with self._unless_fenced():
            return read_rows(self.job.checkpoint, panes, self.job.plan.delivered_schema)

    @contextmanager
    def _unless_fenced(self) -> Iterator[None]:
        """A file that is missing since a newer run has taken over, and collected it, is no damage: raises
        `FencedError` then.
        """
        try:
            yield
        except (CorruptionError, NotFoundError, UsageError):
            with suppress(UnavailableError):
                self.job.check_newest()
            raise

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """The work of the tasks."""
        with self._unless_fenced(), self._watch.timed("engine"):
            yield

    @property
    def _request(self) -> int:
        """The request that this thread answers; 0 for none."""
        return getattr(self._answering, "number", 0)

    def _micro_batch(self, clock_us: int | None, rows_are: RowKind = "live") -> MicroBatch:
        self.job.check_open()
        return self.job.micro_batch(clock_us, rows_are).divided(self._transport.max_tasks)

    def _take(
        self, kind: CheckpointKind, batch: B, clock_us: int, position: Callable[[int], Position], **how: bool
    ) -> Manifest:
        self.hold()
        micro_batch = self._micro_batch(clock_us)
        with self._computing():
            results = self._transport.run(micro_batch, batch)
        after = replace(position(micro_batch.checkpoint_id), processing_us=micro_batch.now_us)
        return self.commit(micro_batch.checkpoint_id, results, kind, after, **how)


class MeasuredByDriver(Measured):
    """What runs by a driver has the metrics of that."""

    @property
    @abstractmethod
    def _measured(self) -> Driver[Any, Any]:
        """The driver. Raises `UsageError` before there is one."""

    @property
    def waits(self) -> SinkWaits:
        return self._measured.waits

    def prometheus(self) -> str:
        return exposition_text(self._measured.families())

    def opentelemetry(self, provider: Any = None) -> None:
        instrument(self._measured.families, provider)

    @property
    def metrics_url(self) -> str | None:
        return self._measured.metrics_url


def _clock(micro_batch: MicroBatch, clock_us: int | None) -> Position:
    """The input position has not changed; the clock has, if one was read."""
    return Position(processing_us=None if clock_us is None else micro_batch.now_us)
