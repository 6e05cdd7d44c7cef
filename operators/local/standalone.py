"""The standalone runner: the same operator in one process, over batches of Arrow data. No Spark, no Java."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import TypeAlias

import pyarrow as pa

from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.describe.runnable import Runnable, root_text
from tidestate.operators.engine.bootstrap import begun, check_new, publish, take_history
from tidestate.operators.engine.delivery import ArrowSink, Delivery, read_panes, read_rows
from tidestate.operators.engine.job import Hook, Job, Position, no_hook
from tidestate.operators.engine.partition import PartitionResult
from tidestate.operators.engine.reprocess import to_feed, warn_of_purged
from tidestate.operators.engine.round import GraphRound, Intakes, fed_back, run_here
from tidestate.operators.plan.graph import Graph, one_batch
from tidestate.recovery.log.checkpoint import Checkpoint, now_us
from tidestate.recovery.log.manifest import InputPosition, Manifest
from tidestate.recovery.start.heartbeat import Presence
from tidestate.recovery.start.policy import Policy
from tidestate.statestore.errors import IncompatibleError, UsageError
from tidestate.statestore.spec.store import StoreConfig
from tidestate.statestore.spec.valuehash import hash_tables
from tidestate.statestore.storage.objects import Objects

Batch: TypeAlias = pa.Table | pa.RecordBatch | Mapping[str, pa.Table]
"""Rows of the one stream, or of some of several by name."""


class Standalone:
    """A description on a checkpoint folder, fed with batches. Each batch is one checkpoint.

    ``batches`` always means the whole input from its beginning, in the same batches: those the checkpoint holds
    already are skipped, so after a crash the same call continues where it stopped.
    """

    def __init__(
        self,
        description: Runnable,
        checkpoint: str,
        store: StoreConfig,
        sink: ArrowSink | None,
        partitions: int | None,
        hook: Hook = no_hook,
        policy: Policy | None = None,
    ) -> None:
        self._description = description
        self._root = checkpoint
        self._store = store
        self._sink = sink
        self._partitions = partitions
        self._hook = hook
        self._policy = policy or Policy()
        self._job: Job | None = None
        self._delivery: Delivery[pa.Table] | None = None
        self._presence: Presence | None = None

    def __repr__(self) -> str:
        newest = f", checkpoint_id={self._job.head.id}" if self._job is not None else ""
        return f"Standalone({self._description.name!r}, checkpoint={root_text(self._root)!r}{newest})"

    def run(self, batches: Iterable[Batch], *, drain: bool = False) -> pa.Table:
        """Take all batches, then with ``drain`` fire every window; the panes of this call, in order.

        Raises `IncompatibleError` when the input is not the one this checkpoint holds.
        """
        panes = list(self.stream(batches))
        if drain:
            panes.append(self.drain())
        if self._job is None:
            raise UsageError("give the input from its beginning; there was no batch", code="no-input")
        return pa.concat_tables([self._job.plan.pane_schema.empty_table(), *panes])

    def stream(self, batches: Iterable[Batch]) -> Iterator[pa.Table]:
        """As `run`, one table of panes per checkpoint, as soon as it is committed and delivered."""
        try:
            yield from self._stream(batches)
        finally:
            self._rest()

    def _stream(self, batches: Iterable[Batch]) -> Iterator[pa.Table]:
        number = -1
        for number, batch in enumerate(batches):
            table = _rows(batch)
            job = self._begin(table, _check_runner)
            taken = job.head.input or InputPosition(0, "")
            if number < taken.batches - 1:
                continue
            streams = one_batch(job.graph, table)
            mark = _mark(job.graph, streams)
            if number == taken.batches - 1:
                if mark != taken.last and taken.last:
                    raise IncompatibleError(
                        "the input is not the one this checkpoint holds: its newest batch differs",
                        code="input-differs",
                        batch=number,
                    )
                continue
            yield self._take(job, streams, InputPosition(number + 1, mark))
        if self._job is not None and self._job.head.input and number + 1 < self._job.head.input.batches:
            raise IncompatibleError(
                "the input is not the one this checkpoint holds: it has fewer batches",
                code="input-differs",
                expected=self._job.head.input.batches,
                found=number + 1,
            )

    @property
    def begun(self) -> bool:
        """Whether anything was taken in at this root, by this or an earlier run: then `bootstrap` is refused."""
        return begun(self._root)

    def bootstrap(self, history: Batch | Iterable[Batch], *, deliver: bool = True) -> pa.Table:
        """Begin a new root with the state that ``history`` leads to: one checkpoint, whole or not at all. Its panes.

        History is no part of ``batches``: what `run` is given afterwards goes on from it. Nothing in it is late.
        Without ``deliver`` the panes are recorded like any, and no sink gets them. Raises `UsageError`
        (``bootstrap-used``) where something was taken in already; a call that died is made again.
        """
        single = isinstance(history, (pa.Table, pa.RecordBatch, Mapping))
        batches = (_rows(one) for one in ([history] if single else history))
        first = next(batches, None)
        if first is None:
            raise UsageError("there is no history: give a table, or tables", code="no-input")
        check = check_new(Objects(self._root))
        if self._job is not None:
            check(self._job.head)
        try:
            job = self._begin(first, check)
            round_ = job.round(now_us())
            results = take_history(round_, chain([first], batches), lambda _rows: None)
            position = Position(input=InputPosition(0, ""), processing_us=round_.now_us)
            manifest = publish(job, results, position, deliver=deliver)
            return self._commit(job, manifest)
        finally:
            self._rest()

    def drain(self) -> pa.Table:
        """Move the watermark to the end of time: every window fires, and no new input is taken. The last panes."""
        if self._job is None:
            raise UsageError("feed a batch before draining", code="no-input")
        job = self._job
        if job.head.drained:
            self._deliver()
            self._rest()
            return job.plan.pane_schema.empty_table()
        with self._at_work():
            round_ = job.round()
            results = run_here(round_, [], round_.finished())
            return self._commit(job, job.commit(results, "tick", Position(), drained=True))

    def feed_back(self, rows: pa.Table | None = None, *, operator: str | None = None) -> pa.Table:
        """Take back what the late ledger holds of events that came too late, each once; the panes that changes.

        Or ``rows`` that you bring, each time you bring them; in a chain, to this ``operator``. Windows that are
        still kept take them, whatever the watermark; for windows that are gone there is a ledger row of the reason
        ``purged``. One checkpoint of its own.
        """
        if self._job is None:
            raise UsageError("feed a batch first, or run over those that there were", code="no-input")
        job = self._job
        with self._at_work():
            self._deliver()
            back = to_feed(job, rows, operator)
            if not back:
                return job.plan.pane_schema.empty_table()
            round_ = job.round(feeding=True)
            results = run_here(round_, fed_back(round_, back))
            manifest = job.commit(results, "feed", Position(), fed=rows is None)
            warn_of_purged(job, manifest)
            return self._commit(job, manifest)

    @property
    def head(self) -> Manifest:
        """The newest checkpoint. Raises `UsageError` before the first batch."""
        if self._job is None:
            raise UsageError("nothing has run yet", code="no-input")
        return self._job.head

    def _begin(self, batch: pa.Table | Mapping[str, pa.Table], check: Callable[[Manifest | None], None]) -> Job:
        if self._job is None:
            graph = bind_graph(self._description, schemas_of(batch))
            checkpoint = Checkpoint.open_or_create(self._root)
            self._job = Job.begin(
                graph,
                checkpoint,
                self._store,
                partitions=self._partitions,
                check=check,
                hook=self._hook,
                policy=self._policy,
            )
            self._job.parallel = 1
            job = self._job
            self._delivery = Delivery(job, self._sink, lambda output: read_panes(job.checkpoint, output, job.plan))
            offers = self._delivery.offers  # not `self`: a runner that is let go of gives its lease back
            self._presence = Presence(job.checkpoint, job.head.epoch, waiting=lambda: offers.waiting_since_us)
        if self._presence is not None and not self._job.head.drained:
            self._presence.begin()
        self._deliver()
        return self._job

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Say so meanwhile."""
        assert self._presence is not None
        self._presence.begin()
        try:
            yield
        finally:
            self._rest()

    def _rest(self) -> None:
        if self._delivery is not None:
            self._delivery.rest()
        if self._presence is not None:
            self._presence.end()

    def _take(self, job: Job, streams: dict[str, pa.Table], position: InputPosition) -> pa.Table:
        round_ = job.round(now_us())
        results = take(round_, streams)
        position_after = Position(input=position, processing_us=round_.now_us)
        return self._commit(job, job.commit(results, "batch", position_after))

    def _commit(self, job: Job, manifest: Manifest) -> pa.Table:
        self._deliver()
        return read_rows(job.checkpoint, manifest.panes, job.plan.pane_schema)

    def _deliver(self) -> None:
        assert self._delivery is not None
        self._delivery.up_to_date()


def _rows(batch: Batch) -> pa.Table | Mapping[str, pa.Table]:
    return pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch


def _check_runner(head: Manifest | None) -> None:
    if head is not None and head.spark is not None:
        raise IncompatibleError(
            "spark has been feeding this checkpoint: continue with on_spark, or give a folder of its own",
            code="other-runner",
            id=head.id,
        )


def take(round_: GraphRound, streams: Mapping[str, pa.Table], *, generate: bool = True) -> list[PartitionResult]:
    """One batch through all operators, in this process; without ``generate`` the watermark stays."""
    return run_here(round_, Intakes(round_).streams(streams, 0), None if generate else round_.progress)


def schemas_of(batch: pa.Table | Mapping[str, pa.Table]) -> pa.Schema | dict[str, pa.Schema]:
    """The columns of a batch, by stream where it is of several."""
    return batch.schema if isinstance(batch, pa.Table) else {name: rows.schema for name, rows in batch.items()}


def _mark(graph: Graph, streams: Mapping[str, pa.Table]) -> str:
    """A hash of what the job reads of a batch, by its values: whatever version of Arrow holds them, and how."""
    return hash_tables(
        {
            name: rows.select([n for n in graph.streams[name] if n in rows.column_names])
            for name, rows in streams.items()
        }
    )
