"""For tests of your jobs: feed rows, advance watermark and clock, read panes and state. No Spark, no waiting.

Only time is simulated: operator, store and durable files are those of production, with one checkpoint per call.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Self, TypeAlias

import pyarrow as pa

from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.describe.chain import outputs_of
from tidestate.operators.describe.job_streams import JobStreams, check_streams_read
from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.describe.runs import Panes, Schemas
from tidestate.operators.describe.sinks import ArrowSinks, ArrowSinksByOutput, Sinks
from tidestate.operators.engine.delivery import as_written
from tidestate.operators.engine.driver import Driver
from tidestate.operators.engine.emitted import emitted_outputs, fit_as_begun
from tidestate.operators.engine.job import Job, Position
from tidestate.operators.engine.kept_zones import kept_rules
from tidestate.operators.engine.micro_batch import MicroBatch
from tidestate.operators.engine.reprocess import late_rows
from tidestate.operators.engine.tasks import Batches, InProcess
from tidestate.operators.plan.plan import Plan
from tidestate.operators.progress.progress import Progress
from tidestate.operators.windows.messages.kept_windows import kept_schema, kept_windows
from tidestate.operators.windows.plan import WindowPlan
from tidestate.recovery.inspect.rows import in_columns
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.log.renames import names_now
from tidestate.recovery.start.policy import Policy
from tidestate.statestore.arguments import checked
from tidestate.statestore.durations import Moment, clock_us, moment_us
from tidestate.statestore.errors import UsageError
from tidestate.statestore.missing_columns import missing_columns
from tidestate.statestore.roots import checked_root
from tidestate.statestore.spec.plain import ArrowRows, as_table, is_rows, plain_schemas
from tidestate.statestore.spec.store import Memory, StateView, StoreConfig
from tidestate.statestore.spec.tables import table_named
from tidestate.statestore.storage.private import temporary_folder
from tidestate.statestore.stores.opening import open_store

EventRows: TypeAlias = ArrowRows | Sequence[Mapping[str, Any]]


class Harness(Generic[Panes]):
    """A job under test. ``schema`` is that of the input, or those of its streams by name; ``folder`` is
    its checkpoint root, by default a new one that goes with the harness;
    ``sink`` gets its panes, and ``late_sink`` the rows of its late ledger.

    Times without a zone are in ``time_zone``. The watermark follows the events as described, and `advance_watermark`
    moves it further; with ``generate=False`` only that moves it. Processing time begins at 0, and
    `advance_processing_time` moves it.
    """

    _remove: weakref.finalize[..., Any] | None = None
    _is_closed = False

    @checked
    def __init__(
        self,
        description: Runnable,
        schema: Schemas,
        *,
        store: StoreConfig | None = None,
        folder: str | os.PathLike[str] | None = None,
        partitions: int | None = None,
        generate: bool = True,
        sink: ArrowSinks | ArrowSinksByOutput | None = None,
        late_sink: ArrowSinks | None = None,
        time_zone: str | None = None,
        streams: Sequence[str] | None = None,
    ) -> None:
        self.description, self.names = description, streams
        self._partitions, self._time_zone = partitions, time_zone
        self._streams = JobStreams(description, streams, time_zone)
        self._schemas = plain_schemas(schema, time_zone)
        self._schema = self._streams.schemas(schema)
        self._store, self._generate, self._sinks = store or Memory(), generate, Sinks[pa.Table](sink, late_sink)
        self._sinks = self._sinks.of(description.name, outputs_of(description))
        self._folder = checked_root(folder) if folder is not None else self._own_folder()
        self._now = 0
        self.restart()

    def __repr__(self) -> str:
        return f"Harness({self.description.name!r}, checkpoint_id={self._job.head.id})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the folder, if it was not given; nothing can be fed any more. Idempotent. Without it, the folder
        goes with this object, at the latest when Python ends.
        """
        self._is_closed = True
        if self._remove is not None:
            self._remove()

    def _check_open(self) -> None:
        if self._is_closed:
            raise UsageError("this harness was closed: make another one, .harness(…)", code="operator-closed")

    @property
    def _open(self) -> Driver[Batches, pa.Table]:
        """The driver. Raises `UsageError` after `close`."""
        self._check_open()
        return self._driver

    def _own_folder(self) -> str:
        folder = tempfile.mkdtemp(prefix="tidestate-harness-", dir=temporary_folder())
        self._remove = weakref.finalize(self, _remove, folder, os.getpid())
        return folder

    def feed(self, rows: EventRows | Mapping[str, EventRows]) -> Panes:
        """Process one batch of events, by stream if there are several. Returns its panes, in order."""
        manifest = self._open.batch([self._tables(rows)], self._now, lambda _id: Position())
        return self._rows(manifest)

    @checked
    def reprocess_late(
        self, rows: EventRows | None = None, *, operator: str | None = None, reason: str | None = None
    ) -> Panes:
        """Reprocess all late events of the ledger, each once, or only ``rows``. Returns the panes."""
        driver, table = self._open, None if rows is None else self._table(rows)
        events = late_rows(self._job, table, operator, reason)
        result = driver.reprocess_late(events, self._now) if events.tables else None
        return self._rows(result)

    def rebuild(self, replay: EventRows | Mapping[str, EventRows]) -> Panes:
        """Put back lost messages from a replay of the input, see `Standalone.rebuild`. Returns the panes."""
        return self._rows(self._open.rebuild([self._tables(replay)]))

    @checked
    def advance_watermark(self, time: Moment) -> Panes:
        """Move the watermark to ``time``; a step back is ignored. Returns the panes."""
        time_us = moment_us(time)
        return self._tick(lambda batch: batch.graph.reached(batch.progress, time_us, self._now))

    @checked
    def advance_processing_time(self, time: Moment) -> Panes:
        """Move the clock to ``time``. Returns the panes. Raises `UsageError` for a step back."""
        time_us = clock_us(time)
        if time_us < self._now:
            raise UsageError(
                "processing time cannot go back: give a later time", code="clock", clock_us=self._now, asked=time_us
            )
        self._now = time_us
        return self._tick(lambda batch: batch.after({}))

    def finish(self) -> Panes:
        """End the input: every window fires, and no more rows are accepted. Returns the panes."""
        return self._tick(MicroBatch.finished, drained=True)

    def restart(self, policy: Policy | None = None) -> None:
        """Start again from the durable files. Raises `UsageError` after `close`."""
        self._check_open()
        self._job = self._begin(policy or Policy())
        self._driver: Driver[Batches, pa.Table] = Driver(self._job, InProcess(generate=self._generate), self._sinks)
        self._driver.deliver()

    @checked
    def ledger(self, operator: str | None = None) -> pa.Table:
        """All rejected events so far, with reason and watermark; of one ``operator`` of a chain."""
        checkpoint, plan = self._job.checkpoint, self._plan(operator)
        schema = plan.late_schema
        renames = self._job.head.operators[plan.name].renamed
        tables = [
            in_columns(rows, schema, names_now(renames, output.id))
            for output in checkpoint.outputs()
            for rows in as_written(checkpoint, output.late_of(plan.name))
        ]
        return pa.concat_tables([schema.empty_table(), *tables])

    @checked
    def windows(self, operator: str | None = None) -> pa.Table:
        """The stored windows by key, with their current results; none after `finish`.

        Raises `UsageError` for a job without windows.
        """
        plan = self._plan(operator)
        if not isinstance(plan, WindowPlan):
            raise UsageError("this job has no windows", code="harness-windows")
        is_drained = self._job.head.drained
        watermark = self._job.head.operators[plan.name].watermark_us
        windows = self._read(plan, lambda store: [] if is_drained else list(kept_windows(plan, store, watermark)))
        names = ["window_start", "window_end", *plan.input.key_names, *(a.name for a in plan.aggregates)]
        return pa.concat_tables([kept_schema(plan).empty_table(), *windows]).select(names)

    @checked
    def state(self, table: str, operator: str | None = None) -> pa.Table:
        """The rows of a state table, by partition, then key. Raises `UsageError` for an unknown table."""
        plan = self._plan(operator)
        spec = table_named(plan.tables, table, code="harness-state")
        rows = self._read(plan, lambda store: list(store[table].scan()))
        return pa.concat_tables([spec.no_rows, *rows])

    def counters(self) -> dict[str, int]:
        """The number of events and panes by class, since the beginning."""
        return dict(self._job.head.totals)

    def _plan(self, operator: str | None) -> Plan:
        """The operator of this name; by default the output operator."""
        plans = self._job.graph.plans
        if operator is not None and operator not in plans:
            raise UsageError(
                "the job has no such operator: choose from those listed",
                code="harness-operator",
                found=operator,
                there=list(plans),
            )
        return plans[operator] if operator is not None else self._job.plan

    def _read(self, plan: Plan, rows: Callable[[StateView], list[pa.Table]]) -> list[pa.Table]:
        """The ``rows`` of each state partition."""
        objects = self._job.checkpoint.objects
        tables = []
        for number, base in enumerate(self._job.head.operators[plan.name].states):
            identity = f"{self._folder}/harness/{plan.name}/{number}"
            with open_store(self._store, objects, identity, self._job.tables(plan.name), base) as store:
                tables += rows(store)
        return tables

    def _begin(self, policy: Policy) -> Job:
        graph = bind_graph(self.description, self._schema, kept_rules(self._folder, policy))
        self._sinks.fit(emitted_outputs(graph))
        job = Job.begin(
            graph,
            Checkpoint.open_or_create(self._folder),
            self._store,
            partitions=self._partitions,
            runner="harness",
            may_change=True,
            policy=policy,
        )
        fit_as_begun(lambda begun: self._sinks.fit(emitted_outputs(begun)), graph, job.graph)
        self._now = max(self._now, job.head.processing_us or 0)
        return job

    def _tables(self, rows: EventRows | Mapping[str, EventRows]) -> pa.Table | Mapping[str, pa.Table]:
        """Rows as the description reads them."""
        if not isinstance(rows, Mapping):
            return self._streams.rows(self._table(rows))
        return self._streams.rows({name: self._table(stream_rows, name) for name, stream_rows in rows.items()})

    def _table(self, rows: EventRows, stream: str | None = None) -> pa.Table:
        """Rows of a stream, by default of the only one, as a table; they may be dictionaries."""
        if is_rows(rows):
            return as_table(rows, self._time_zone)
        schemas = self._schemas
        names = list(self._streams.by_user)
        if isinstance(schemas, Mapping) and stream is None and len(schemas) > 1:
            raise UsageError("give the rows of each stream by its name", code="streams", streams=names)
        if not isinstance(rows, Sequence) or not all(isinstance(row, Mapping) for row in rows):
            raise UsageError(
                'rows must be an Arrow table, or a list of dictionaries: [{"t": …, "v": 1}]',
                code="argument",
                found=f"{rows!r:.100} ({type(rows).__name__})",
            )
        if isinstance(schemas, Mapping):
            check_streams_read([] if stream is None else [stream], schemas)
            schemas = schemas[stream] if stream is not None else next(iter(schemas.values()))
        return _table_of_rows(rows, schemas)

    def _rows(self, manifest: Manifest | None) -> Panes:
        """The panes of a checkpoint."""
        panes: Panes = self._driver.rows(manifest)
        return panes

    def _tick(self, after: Callable[[MicroBatch], dict[str, Progress]], *, drained: bool = False) -> Panes:
        return self._rows(self._open.tick(after, self._now, drained=drained))


def _table_of_rows(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Dictionaries as a table. Raises `UsageError` for a name that is no column, and a value of another type."""
    names = dict.fromkeys(name for row in rows for name in row)
    if strange := [str(name) for name in names if name not in schema.names]:
        raise missing_columns("rows name columns that the schema of the harness has not", strange, schema.names)
    try:
        return pa.Table.from_pylist(list(rows), schema)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise UsageError(
            f"a value of a row does not fit its column ({error}): give one of the type that the schema has",
            code="batch-type",
            schema={field.name: str(field.type) for field in schema},
        ) from None


def _remove(folder: str, pid: int) -> None:
    """Remove the folder of a harness, unless this is a fork of its process: the harness there still needs it."""
    if pid == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)
