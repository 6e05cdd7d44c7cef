"""The driver of a job, whoever runs it: every checkpoint is computed, published, logged and delivered from here.

What differs between runners is the engine, which runs the tasks of a round, and who says when something happens:
Spark with its batches, a loop over tables, a test, or calls of an operator by hand. The order is always this:

1. a round is made from the newest checkpoint, and the engine runs it: everything can be thrown away until here
2. the results are checked and published as the next manifest
3. it is logged, with warnings of what was rejected
4. panes go to the sink, oldest first; while it refuses, nothing else is done
5. what the sink took is acknowledged with the next manifest, or at the `end`
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

from tidestate.operators.describe.sinks import Sink
from tidestate.operators.engine.delivery import Offers, read_rows
from tidestate.operators.engine.job import Job, Position
from tidestate.operators.engine.partition import PartitionResult
from tidestate.operators.engine.reprocess import warn_of_purged
from tidestate.operators.engine.round import GraphRound, Outgoing, fed_back
from tidestate.operators.progress.rounds import Progress
from tidestate.recovery.log.checkpoint import now_us
from tidestate.recovery.log.manifest import CheckpointKind, Manifest
from tidestate.recovery.log.outputs import Output, output_of
from tidestate.recovery.start.heartbeat import Heartbeat
from tidestate.statestore.errors import TidestateError, invariant

log = logging.getLogger("tidestate")

B = TypeVar("B")
B_contra = TypeVar("B_contra", contravariant=True)
_P = TypeVar("_P")
P_co = TypeVar("P_co", covariant=True)


class Engine(Protocol[B_contra, P_co]):
    """Where the tasks of a round run: in this process or on Spark. It takes batches of type B, publishes nothing,
    and reads panes as a sink of its kind takes them, P.
    """

    @property
    def parallel(self) -> int:
        """How many state partitions are at work at once."""

    def take(self, round_: GraphRound, batch: B_contra) -> list[PartitionResult]:
        """Rows of the streams through all operators."""

    def run(
        self, round_: GraphRound, pieces: Iterable[Outgoing], after: Mapping[str, Progress] | None = None
    ) -> list[PartitionResult]:
        """Pieces that are prepared through all operators, or none and the progress ``after`` the round."""

    def panes(self, job: Job, output: Output) -> P_co:
        """The panes of a checkpoint, checked against their checksums."""


class Driver(Generic[B, _P]):
    """A job at work with one engine and, where there is one, a sink; ``wait`` as in `Offers.make`.

    ``still`` is asked now and then whether the job goes on, else its lease is given back. One thread at a time may
    call: where there are several, they take the ``lock``.
    """

    def __init__(
        self,
        job: Job,
        engine: Engine[B, _P],
        sink: Sink[_P] | None = None,
        *,
        wait: Callable[[float], None] = time.sleep,
        still: Callable[[], bool] = lambda: True,
    ) -> None:
        self.job, self._engine, self._sink, self._wait = job, engine, sink, wait
        job.parallel = engine.parallel
        self.lock = threading.Lock()
        self.offers = offers = Offers(job.check_newest)
        # Not `self`: a driver that is let go of gives its lease back.
        waiting = lambda: offers.waiting_since_us  # noqa: E731
        self._heartbeat = Heartbeat(job.checkpoint, job.head.epoch, still=still, waiting=waiting)

    @property
    def head(self) -> Manifest:
        """The newest checkpoint."""
        return self.job.head

    def begin(self) -> None:
        """The root says that this driver is at work, until `end`; again is fine. A drained job has no work."""
        if not self.head.drained:
            self._heartbeat.begin()

    def end(self, *, acknowledge: bool = True) -> None:
        """Stop working. What the sink has taken is recorded; where that fails it comes again, under its id."""
        try:
            if acknowledge:
                self.job.acknowledge()
        except TidestateError as error:
            log.warning("what the sink has taken could not be recorded, and comes again at the next start: %s", error)
        finally:
            self._heartbeat.end()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """`begin`, and `end` whatever happens."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def batch(self, batch: B, clock_us: int, position: Callable[[int], Position]) -> Manifest:
        """Take a batch when the clock shows ``clock_us``.

        ``position``: where the input stands then, asked with the id of the checkpoint when everything is computed.
        """
        return self._take("batch", batch, clock_us, position)

    def bootstrap(self, history: B, position: Callable[[int], Position], *, deliver: bool) -> Manifest:
        """Take a batch of history; without ``deliver`` no sink gets its panes. ``position`` as in `batch`."""
        return self._take("bootstrap", history, now_us(), position, withheld=not deliver)

    def reprocess_late(self, rows: Mapping[str, pa.Table], *, whole: bool, clock_us: int | None = None) -> Manifest:
        """Take ``rows``, by operator, that came too late; ``whole``: they are all that the late ledger has."""
        round_ = self._round(clock_us, reprocessing=True)
        results = self._engine.run(round_, fed_back(round_, rows))
        return self.commit(round_.sequence, results, "feed", _clock(round_, clock_us), fed=whole)

    def tick(
        self, after: Callable[[GraphRound], dict[str, Progress]], clock_us: int | None = None, **how: bool
    ) -> Manifest:
        """Time moves to what ``after`` says, without input; ``drained``: to its end."""
        round_ = self._round(clock_us)
        results = self._engine.run(round_, [], after(round_))
        return self.commit(round_.sequence, results, "tick", _clock(round_, clock_us), **how)

    def advance(self, clock_us: int) -> None:
        """The clock goes on without input: a checkpoint, where that moves a watermark or something is due."""
        head, round_ = self.head, self._round(clock_us)
        after = round_.after({})
        due = head.due_us is not None and head.due_us <= round_.now_us
        if due or any(one.watermark_us != round_.progress[name].watermark_us for name, one in after.items()):
            self.tick(lambda _round: after, clock_us)
        else:
            self.job.waited(after)

    def drain(self) -> bool:
        """The input has ended: every window fires, and nothing is taken any more. False where that had been so."""
        if self.head.drained:
            self.deliver()
            return False
        self.tick(GraphRound.finished, drained=True)
        return True

    def commit(
        self, sequence: int, results: Sequence[PartitionResult], kind: CheckpointKind, position: Position, **how: bool
    ) -> Manifest:
        """Publish and deliver the checkpoint with this id, see `Job.commit` and `deliver`: here and nowhere else."""
        invariant(sequence == self.head.id + 1, "a round is published next after its base", id=sequence)
        manifest = self.job.commit(results, kind, position, **how)
        if kind == "feed":
            warn_of_purged(self.job, manifest)
        self.deliver()
        return manifest

    def deliver(self) -> None:
        """Give the sink what is outstanding, the newest checkpoint included. What it does not take stays due.

        Without a sink nothing is acknowledged: one that is added later gets everything from the beginning. Raises
        `FencedError` where a newer run or a reset has published meanwhile: its line may not have these panes.
        """
        if self._sink is None:
            return
        job = self.job
        for output in self.outstanding():
            invariant(job.delivered < output.id <= job.head.id, "ids of deliveries rise", id=output.id)
            if output.panes:
                panes = self._engine.panes(job, output)
                self.offers.make(self._sink, panes, output.delivery_id, self._wait)
            job.took(output.id, something=bool(output.panes))

    def outstanding(self) -> Iterator[Output]:
        """What no sink has taken, oldest first; checkpoints without panes too."""
        job, head = self.job, self.job.head
        if job.delivered < head.id - 1:
            yield from job.checkpoint.outputs(job.delivered + 1, head.id - 1)
        if job.delivered < head.id:
            yield output_of(head)

    def rows(self, manifest: Manifest | None) -> pa.Table:
        """The panes of a checkpoint of this job as a table; of none, none."""
        panes = manifest.panes if manifest is not None else ()
        return read_rows(self.job.checkpoint, panes, self.job.plan.pane_schema)

    def _round(self, clock_us: int | None, *, reprocessing: bool = False) -> GraphRound:
        self.job.check_open()
        return self.job.round(clock_us, reprocessing=reprocessing)

    def _take(
        self, kind: CheckpointKind, batch: B, clock_us: int, position: Callable[[int], Position], **how: bool
    ) -> Manifest:
        round_ = self._round(clock_us)
        results = self._engine.take(round_, batch)
        stands = replace(position(round_.sequence), processing_us=round_.now_us)
        return self.commit(round_.sequence, results, kind, stands, **how)


def _clock(round_: GraphRound, clock_us: int | None) -> Position:
    """The input stands where it did; the clock has moved where one was read."""
    return Position(processing_us=None if clock_us is None else round_.now_us)
