"""The driver of a job: it computes, publishes, logs and delivers every checkpoint, for every runner.

Runners differ in the transport, which runs the tasks of a micro-batch, and in what triggers one: Spark with its
batches, a loop over tables, a test, or calls of an embedded operator. The order is always this:

1. a micro-batch is made from the newest checkpoint, and the transport runs it; until here everything can be discarded
2. the results are checked and published as the next manifest
3. it is logged, with warnings of rejected rows
4. panes and late rows go to their sinks, oldest first; while one refuses that may not be behind, the driver waits
5. what a sink has accepted is acknowledged with the next manifest, or at the `end`

Before 1 the driver waits until the sinks are ready. Each sink has a lane, which knows how far it has come in this
run. One that refuses holds the intake, unless it may be behind: then its output waits in files of the root, which no
collection takes, and it is asked again later. A job that restarts goes on from what all of its sinks have accepted.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec
import pyarrow as pa

from tidestate.operators.describe.runs import Measured
from tidestate.operators.describe.sinks import Refused, Sink, Sinks, may_be_behind, sink_name
from tidestate.operators.engine.delivery import (
    LONGEST_PAUSE_S,
    PATIENCE_S,
    PAUSE_S,
    CountedRows,
    Delivery,
    NotAskedError,
    Offers,
    delivered_to,
    deliveries,
    read_rows,
)
from tidestate.operators.engine.exposition import Endpoint, address_of, exposition_text, instrument
from tidestate.operators.engine.job import Job, Position
from tidestate.operators.engine.job_metrics import JobFigures, job_families
from tidestate.operators.engine.micro_batch import MicroBatch, TaskResult
from tidestate.operators.engine.rebuild import check_replayed, needs_side_run
from tidestate.operators.engine.replay_start import rebuilt
from tidestate.operators.engine.reprocess import LateRows, warn_of_purged
from tidestate.operators.engine.tasks import (
    RowsOfPartitions,
    Stopwatch,
    Transport,
    as_phased,
    ledger_blocks,
    round_times,
    seconds,
    with_rows,
    without_input,
)
from tidestate.operators.plan.plan import RowKind
from tidestate.operators.progress.figures import SinkWaits
from tidestate.operators.progress.metrics import Family
from tidestate.operators.progress.progress import Progress
from tidestate.recovery.control.watch import AskedRun, RequestWatch
from tidestate.recovery.log.checkpoint import Checkpoint, now_us
from tidestate.recovery.log.manifest import (
    CheckpointKind,
    DeliveryId,
    Manifest,
    Output,
    OutputKind,
    Spent,
    output_of,
    panes_of,
)
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

_P = TypeVar("_P")
LEFT_ALONE = 9
"""A sink that is behind is left alone for so many times as long as its refusal took: the job has nine tenths."""


@dataclass
class Lane(Generic[_P]):
    """A sink of these rows, which has accepted everything up to checkpoint ``had``, and ``parts`` of the next one."""

    name: str
    kind: OutputKind
    sink: Sink[_P]
    behind: int
    had: int
    parts: set[DeliveryId] = field(default_factory=set)
    lagging: bool = False
    """Whether it was refused, and is behind."""
    counted: int = 0
    """Up to which checkpoint the root counts everything as delivered, as far as this lane has heard."""
    operator: str = ""
    """The output whose panes it gets, of a job with several."""
    asked: bool = False
    """Whether its target has answered what it has, if it can, or has taken something since."""
    tried: bool = False
    _pause_s: float = PAUSE_S
    _asked_again_s: float = 0.0

    def due(self, head: Manifest) -> int:
        """Up to which checkpoint it has to accept everything, before more is processed."""
        return head.id if head.drained else head.id - self.behind

    def full(self, head: Manifest) -> bool:
        """Whether the sink is as far behind as it may be."""
        return head.id - self.had >= self.behind

    def lags(self, head: Manifest) -> bool:
        """Whether the sink is behind and its retry delay has passed."""
        return self.had < head.id and time.monotonic() >= self._asked_again_s

    def refused(self, took_s: float) -> None:
        """Leave it alone for a while."""
        self._asked_again_s = time.monotonic() + max(self._pause_s, LEFT_ALONE * took_s)
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        if not self.lagging:
            self.lagging = True
            log.warning(
                "%s refuses rows: it may fall behind by up to %d checkpoints, while input is processed",
                self.name,
                self.behind,
            )

    def hear(self, counted: int) -> None:
        """What the root counts as delivered: what was acknowledged by hand, or withheld, this sink has too."""
        if counted > self.counted:
            self.had, self.counted = max(self.had, counted), counted

    def accepted(self, output: Output, head: Manifest) -> None:
        """Record that the sink has accepted this output."""
        self.had, self.parts, self._pause_s, self._asked_again_s = output.id, set(), PAUSE_S, 0.0
        if self.lagging and self.had == head.id:
            self.lagging = False
            log.warning("%s is no longer behind", self.name)


class _BehindError(Exception):
    """A target has answered only now that it lacks more than was thought."""


class Lanes(Generic[_P]):
    """All lanes of a job. ``read`` reads what is offered."""

    def __init__(
        self, job: Job, read: Callable[[Checkpoint, Delivery], _P], offers: Offers, sinks: Sinks[_P]
    ) -> None:
        self.sinks, self._job, self._offers, self._read = sinks, job, offers, read
        self._each = [
            Lane(
                name,
                kind,
                sink,
                may_be_behind(sink),
                up_to,
                counted=up_to,
                operator=output,
                asked=not hasattr(sink, "last"),
            )
            for kind, output, several in sinks.by_output
            for up_to in [job.delivered.up_to(kind, output)]
            for name, sink in zip(_names(several, output), several, strict=True)
        ]
        job.late_sink = job.late_sink or "late" in sinks.each
        with_sink = {lane.operator for lane in self._each if lane.kind == "panes"}
        job.sinkless = tuple(name for name in job.graph.several if name not in with_sink) if with_sink else ()

    def hold(self, wait: Callable[[float], None]) -> None:
        """Wait until all sinks that can be no further behind are ready to take more."""
        self._offers.hold(self._full(), wait)

    def ready(self) -> bool:
        """Whether they are ready now. Sinks that are behind are offered what they lack first."""
        self.catch_up()
        return self._offers.ready(self._full())

    def deliver(self, wait: Callable[[float], None]) -> None:
        """Offer all that is outstanding, the newest checkpoint included; wait for sinks until they are no further
        behind than they may be, and after a drain until they have everything.
        """
        while not self._delivered(wait):
            pass

    def _delivered(self, wait: Callable[[float], None]) -> bool:
        """As `deliver`; False where a target has answered only now that it lacks more."""
        head, lanes = self._job.head, self._asked()
        held = [lane for lane in lanes if lane.had < lane.due(head)]
        for output in outstanding(self._job, min((lane.had for lane in held), default=head.id)):
            rows: dict[DeliveryId, _P] = {}
            for lane in held:
                if lane.had < output.id <= lane.due(head):
                    try:
                        self._hand_over(lane, output, partial(self._offer, lane, rows, wait))
                    except _BehindError:
                        return False
        self.catch_up()
        return True

    def catch_up(self) -> None:
        """Offer sinks that are behind what they lack, until they refuse; does not wait."""
        head = self._job.head
        for lane in self._asked():
            if lane.lags(head):
                with suppress(_BehindError):  # it is asked for more the next time
                    for output in outstanding(self._job, lane.had):
                        if not self._hand_over(lane, output, partial(self._attempt, lane)):
                            break

    def waits(self) -> SinkWaits:
        """How this run has waited for its sinks, and what is not delivered to each."""
        head, lanes = self._job.head.id, self._known()
        behind = tuple((lane.name, lane.kind, head - lane.had) for lane in lanes)
        most = max((found for _, _, found in behind), default=0)
        return SinkWaits(self._offers.waiting_since_us, self._offers.waited_us, most, behind)

    def _full(self) -> list[Sink[_P]]:
        return [lane.sink for lane in self._known() if lane.full(self._job.head)]

    def _known(self) -> list[Lane[_P]]:
        """The lanes, which have heard of what was acknowledged."""
        for lane in self._each:
            lane.hear(self._job.delivered.up_to(lane.kind, lane.operator))
        return self._each

    def _asked(self) -> list[Lane[_P]]:
        """The lanes, whose targets have been asked once what they have."""
        for lane in self._known():
            if not (lane.asked or lane.tried):
                lane.tried = True
                try:
                    self._ask(lane)
                except (Refused, NotAskedError) as error:
                    log.warning(
                        "%s cannot be asked what it has stored, so rows that it may lack are not delivered again: %s",
                        lane.name,
                        error,
                    )
        return self._each

    def _ask(self, lane: Lane[_P]) -> bool:
        """Ask the target what it has of what counts as delivered; whether it lacks some. Raises as `delivered_to`."""
        counted = self._job.delivered.up_to(lane.kind, lane.operator)
        root = CountedRows(self._job.checkpoint, self._job.graph.plans, lane.kind, counted, lane.operator)
        had = delivered_to(root, lane.name, getattr(lane.sink, "last")) if counted else 0  # noqa: B009
        lane.asked = True
        if had < counted:
            lane.had, lane.parts = min(lane.had, had), set()
        return had < counted

    def _give(self, lane: Lane[_P], rows: _P, delivery: Delivery) -> bool | None:
        """Call the sink. A target that was down when it was asked what it has is asked before. Raises `Refused`, and
        `_BehindError`.
        """
        if not lane.asked:
            with suppress(NotAskedError):
                if self._ask(lane):
                    raise _BehindError
        return lane.sink(rows, delivery.id)

    def _hand_over(self, lane: Lane[_P], output: Output, offer: Callable[[Delivery], bool]) -> bool:
        """Offer what a sink lacks of an output; False once it is refused."""
        job, head = self._job, self._job.head
        invariant(output.id <= head.id, "what is delivered is published", id=output.id)
        due = deliveries(lane.kind, output, job.graph.plans, head.operators, lane.operator)
        for delivery in due:
            if delivery.id not in lane.parts:
                if not offer(delivery):
                    return False
                lane.parts.add(delivery.id)
        lane.accepted(output, head)
        of_same = (other.had for other in self._each if (other.kind, other.operator) == (lane.kind, lane.operator))
        least = min(of_same)
        if least > job.delivered.up_to(lane.kind, lane.operator):
            job.mark_delivered(least, lane.kind, lane.operator, any_rows=bool(due))
        return True

    def _offer(
        self, lane: Lane[_P], rows: dict[DeliveryId, _P], wait: Callable[[float], None], delivery: Delivery
    ) -> bool:
        if delivery.id not in rows:  # several sinks get the same
            rows[delivery.id] = self._read(self._job.checkpoint, delivery)
        self._offers.offer(lane.sink, partial(self._give, lane, rows[delivery.id], delivery), delivery, wait)
        lane.asked = True  # or it cannot be asked
        return True

    def _attempt(self, lane: Lane[_P], delivery: Delivery) -> bool:
        began = time.monotonic()
        accepted = self._offers.attempt(
            lane.sink, lambda: self._give(lane, self._read(self._job.checkpoint, delivery), delivery)
        )
        lane.asked = lane.asked or accepted
        if not accepted:
            lane.refused(time.monotonic() - began)
        return accepted


def _names(sinks: Sequence[Sink[_P]], output: str) -> list[str]:
    """The name of each, with its number where two have the same; of several outputs with the name of its own."""
    names = [f"{sink_name(sink)} of {output}" if output else sink_name(sink) for sink in sinks]
    return [name if names.count(name) == 1 else f"{name} {place}" for place, name in enumerate(names, 1)]


def outstanding(job: Job, had: int) -> Iterator[Output]:
    """The outputs after checkpoint ``had``, oldest first; also those without any rows."""
    head = job.head
    if had < head.id - 1:
        yield from job.checkpoint.outputs(had + 1, head.id - 1)
    if had < head.id:
        yield output_of(head)


B = TypeVar("B")


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
        numbered = [name for name, plan in self.job.graph.outputs.items() if plan.output_origin is not None]
        if not deliver and numbered:
            raise UsageError(
                "readers of a numbered output would wait for the buffer of the history, which no sink gets: deliver "
                "it, or begin without .origins() and add them at the next start",
                code="origins-withheld",
                operator=", ".join(numbered),
            )
        return self._take("bootstrap", history, now_us(), position, withheld=not deliver)

    def reprocess_late(self, rows: LateRows, clock_us: int | None = None) -> Manifest:
        """Reprocess late ``rows``. Rows of a ledger are those up to the newest checkpoint, and not put back again."""
        self.hold()
        micro_batch = self._micro_batch(clock_us, "ledger")
        with self._computing():
            results = self._transport.run(micro_batch, blocks=ledger_blocks(micro_batch, rows.tables))
        position = replace(_clock(micro_batch, clock_us), fed=rows.ledgers, fed_by_reason=rows.by_reason)
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
        self.job.set_progress(
            {name: progress.skipping_idle_time(now_us) for name, progress in self.job.progress.items()}
        )

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
        parallel = min(self._transport.parallelism, len({result.span for result in results}))
        made = round_times(self._watch.take(), [result.spent_us for result in results], parallel)
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

    def rows(self, manifest: Manifest | None) -> Any:
        """The panes of a checkpoint of this job as a table; empty without one. Of several outputs a table of each."""
        panes = manifest.panes if manifest is not None else ()
        checkpoint, graph = self.job.checkpoint, self.job.graph
        with self._unless_fenced():
            if not graph.several:
                return read_rows(checkpoint, panes, graph.output.delivered_schema)
            return {
                name: read_rows(checkpoint, panes_of(panes, name), plan.delivered_schema)
                for name, plan in graph.outputs.items()
            }

    def all_rows(self, parts: Sequence[Any]) -> Any:
        """The panes of several checkpoints, each as `rows` has it, together."""
        nothing = self.rows(None)
        if isinstance(nothing, pa.Table):
            return pa.concat_tables([nothing, *parts])
        return {name: pa.concat_tables([empty, *(part[name] for part in parts)]) for name, empty in nothing.items()}

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
