"""The standalone runner: a job in one process, on batches of Arrow data. No Spark, no Java."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import cast

import pyarrow as pa

from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.describe.runnable import Runnable, root_text
from tidestate.operators.describe.runs import Batch, JobHook, Standalone
from tidestate.operators.describe.sinks import ArrowSink
from tidestate.operators.engine.bootstrap import check_new, has_begun
from tidestate.operators.engine.driver import Driver
from tidestate.operators.engine.in_process import Batches, InProcess
from tidestate.operators.engine.job import Job, Position, no_job_hook
from tidestate.operators.engine.reprocess import late_rows
from tidestate.operators.plan.graph import Graph, one_batch
from tidestate.recovery.log.checkpoint import Checkpoint, now_us
from tidestate.recovery.log.manifest import InputPosition, Manifest
from tidestate.recovery.start.policy import Policy
from tidestate.statestore.errors import IncompatibleError, UsageError
from tidestate.statestore.spec.store import StoreConfig
from tidestate.statestore.spec.valuehash import hash_tables
from tidestate.statestore.storage.objects import Objects


class StandaloneRunner(Standalone):
    """The `Standalone` of a description."""

    def __init__(
        self,
        description: Runnable,
        checkpoint: str,
        store: StoreConfig,
        sink: ArrowSink | None,
        partitions: int | None,
        hook: JobHook = no_job_hook,
        policy: Policy | None = None,
    ) -> None:
        self._description = description
        self._root = checkpoint
        self._store = store
        self._sink = sink
        self._partitions = partitions
        self._hook = hook
        self._policy = policy or Policy()
        self._driver: Driver[Batches, pa.Table] | None = None

    def __repr__(self) -> str:
        newest = f", checkpoint_id={self._driver.job.head.id}" if self._driver is not None else ""
        return f"Standalone({self._description.name!r}, checkpoint={root_text(self._root)!r}{newest})"

    def run(self, batches: Iterable[Batch], *, drain: bool = False) -> pa.Table:
        panes = list(self.stream(batches))
        if drain:
            panes.append(self.drain())
        driver = self._started("there was no batch: give the input from its beginning")
        return pa.concat_tables([driver.job.plan.pane_schema.empty_table(), *panes])

    def stream(self, batches: Iterable[Batch]) -> Iterator[pa.Table]:
        try:
            yield from self._stream(batches)
        finally:
            self._end()

    def _stream(self, batches: Iterable[Batch]) -> Iterator[pa.Table]:
        number = -1
        for number, batch in enumerate(batches):
            table = _rows(batch)
            driver = self._begin(table, _check_runner)
            taken = driver.head.input or InputPosition(0, "")
            if number < taken.batches - 1:
                continue
            streams = one_batch(driver.job.graph, table)
            mark = _mark(driver.job.graph, streams)
            if number == taken.batches - 1:
                if mark != taken.last and taken.last:
                    raise IncompatibleError(
                        "this is not the input of the checkpoint: its last batch differs",
                        code="input-differs",
                        batch=number,
                    )
                continue
            yield _take(driver, streams, Position(input=InputPosition(number + 1, mark)))
        held = self._driver.head.input if self._driver is not None else None
        if held is not None and number + 1 < held.batches:
            raise IncompatibleError(
                "this is not the input of the checkpoint: it has fewer batches",
                code="input-differs",
                expected=held.batches,
                found=number + 1,
            )

    @property
    def begun(self) -> bool:
        return has_begun(self._root)

    def bootstrap(self, history: Batch | Iterable[Batch], *, deliver: bool = True) -> pa.Table:
        single = isinstance(history, pa.Table | pa.RecordBatch | Mapping)
        given = cast(Iterable[Batch], [history] if single else history)
        batches = (_rows(one) for one in given)
        first = next(batches, None)
        if first is None:
            raise UsageError("there is no history: give a table, or tables", code="no-input")
        check = check_new(Objects(self._root))
        if self._driver is not None:
            check(self._driver.head)
        try:
            driver = self._begin(first, check)
            position = Position(input=InputPosition(0, ""))
            return driver.rows(driver.bootstrap(chain([first], batches), lambda _id: position, deliver=deliver))
        finally:
            self._end()

    def drain(self) -> pa.Table:
        driver = self._started("feed a batch before draining")
        with driver.running():
            return driver.rows(driver.head if driver.drain() else None)

    def reprocess_late(self, rows: pa.Table | None = None, *, operator: str | None = None) -> pa.Table:
        driver = self._started("feed a batch first, or run again with the batches so far")
        with driver.running():
            driver.deliver()
            back = late_rows(driver.job, rows, operator)
            return driver.rows(driver.reprocess_late(back, whole=rows is None) if back else None)

    @property
    def head(self) -> Manifest:
        return self._started("nothing has run yet").head

    def _started(self, otherwise: str) -> Driver[Batches, pa.Table]:
        if self._driver is None:
            raise UsageError(otherwise, code="no-input")
        return self._driver

    def _begin(
        self, batch: pa.Table | Mapping[str, pa.Table], check: Callable[[Manifest | None], None]
    ) -> Driver[Batches, pa.Table]:
        if self._driver is None:
            job = Job.begin(
                bind_graph(self._description, schemas_of(batch)),
                Checkpoint.open_or_create(self._root),
                self._store,
                partitions=self._partitions,
                check=check,
                hook=self._hook,
                may_change=True,
                policy=self._policy,
            )
            self._driver = Driver(job, InProcess(), self._sink)
        self._driver.begin()
        self._driver.deliver()
        return self._driver

    def _end(self) -> None:
        if self._driver is not None:
            self._driver.end()


def _rows(batch: Batch) -> pa.Table | Mapping[str, pa.Table]:
    return pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch


def _take(driver: Driver[Batches, pa.Table], streams: dict[str, pa.Table], position: Position) -> pa.Table:
    return driver.rows(driver.batch([streams], now_us(), lambda _id: position))


def _check_runner(head: Manifest | None) -> None:
    if head is not None and head.spark is not None:
        raise IncompatibleError(
            "spark has been writing this checkpoint: continue with on_spark, or use another folder",
            code="other-runner",
            id=head.id,
        )


def schemas_of(batch: pa.Table | Mapping[str, pa.Table]) -> pa.Schema | dict[str, pa.Schema]:
    """The schema of a batch; by stream if it has several."""
    return batch.schema if isinstance(batch, pa.Table) else {name: rows.schema for name, rows in batch.items()}


def _mark(graph: Graph, streams: Mapping[str, pa.Table]) -> str:
    """A hash of the values that the job reads of a batch: it does not depend on how Arrow stores them."""
    return hash_tables(
        {
            name: rows.select([n for n in graph.streams[name] if n in rows.column_names])
            for name, rows in streams.items()
        }
    )
