"""For tests of your own jobs: feed rows, move watermark and clock, read panes and state. No Spark, no waiting.

Everything is real but time: the same operator, store and durable files as in production, one checkpoint per call.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from operators.binding import bind_plan
from operators.delivery import read_rows
from operators.description import Runnable
from operators.feeding import to_feed
from operators.general.names import GROUPS
from operators.general.panes import results_of
from operators.general.plan import GeneralPlan
from operators.job import Job, Position
from operators.partition import Round, no_arrivals, run_partition
from operators.plan import Plan
from operators.slices.plan import SlicePlan
from operators.slices.step import whole_windows
from operators.standalone import take
from operators.transition import BEGINNING_US
from operators.watermarks import Progress, at_least
from recovery.checkpoint import Checkpoint
from recovery.manifest import Manifest
from statestore.errors import UsageError
from statestore.opening import open_store
from statestore.store import Memory, StateView, StoreConfig

Rows: TypeAlias = pa.Table | Sequence[Mapping[str, Any]]


class Harness:
    """A description under test. ``schema`` is that of the input; ``folder`` is where its checkpoint lies.

    The watermark follows the events as described, and `advance_watermark` moves it further; with
    ``generate=False`` it moves by that alone. Processing time begins at 0 and moves by `advance_processing_time`.
    """

    def __init__(
        self,
        description: Runnable,
        schema: pa.Schema,
        *,
        store: StoreConfig | None = None,
        folder: str | os.PathLike[str] | None = None,
        partitions: int = 1,
        generate: bool = True,
    ) -> None:
        self._description, self._schema, self._partitions = description, schema, partitions
        self._store, self._generate = store or Memory(), generate
        self._folder = os.fspath(folder) if folder is not None else tempfile.mkdtemp(prefix="tidemark-harness-")
        self._now = 0
        self._job = self._begin()

    def feed(self, rows: Rows) -> pa.Table:
        """One batch of events; the panes it shows, in order."""
        round_ = self._job.round(self._now)
        batch = rows if isinstance(rows, pa.Table) else self._table(rows)
        results = take(round_, batch, generate=self._generate)
        return self._panes(self._job.commit(results, "batch", self._position(round_), delivered=0))

    def feed_back(self, rows: Rows | None = None) -> pa.Table:
        """Take back what the ledger holds of events that came too late, each once, or ``rows``; the panes shown."""
        given = rows if rows is None or isinstance(rows, pa.Table) else self._table(rows)
        back = to_feed(self._job, given)
        if not back.num_rows:
            return self._job.plan.pane_schema.empty_table()
        round_ = self._job.round(self._now, feeding=True)
        manifest = self._job.commit(take(round_, back), "feed", self._position(round_), delivered=0, fed=rows is None)
        return self._panes(manifest)

    def _table(self, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
        return pa.Table.from_pylist(list(rows), self._schema)

    def advance_watermark(self, time_us: int) -> pa.Table:
        """Every event before ``time_us`` has been seen. A step back is ignored, as everywhere."""
        return self._tick(at_least(self._job.round(self._now).progress, time_us))

    def advance_processing_time(self, time_us: int) -> pa.Table:
        """The clock shows ``time_us``. Raises `UsageError` when it would go back."""
        if time_us < self._now:
            raise UsageError("processing time does not go back", code="clock", now=self._now, asked=time_us)
        self._now = time_us
        return self._tick(self._job.round(time_us).after([]))

    def finish(self) -> pa.Table:
        """The input has ended: every window shows what is due, and nothing is taken any more."""
        return self._tick(self._job.plan.watermarks.finished(self._job.progress), drained=True)

    def restart(self) -> None:
        """A new instance, from the durable files alone."""
        self._job = self._begin()

    def ledger(self) -> pa.Table:
        """Every event that was rejected so far, with the reason and the watermark it met."""
        checkpoint, schema = self._job.checkpoint, self._job.plan.late_schema
        found = [read_rows(checkpoint, manifest.late, schema) for manifest in checkpoint.history()]
        return pa.concat_tables([schema.empty_table(), *found])

    def windows(self) -> pa.Table:
        """Windows that are kept, by key, with their values as they stand; none after `finish`.

        Raises `UsageError` for a description without windows.
        """
        plan = self._job.plan
        if not isinstance(plan, GeneralPlan | SlicePlan):
            raise UsageError("this description has no windows", code="harness-windows")
        kept = [] if self._job.head.drained else self._kept()
        parts = [results_of(plan, rows) for rows in kept]
        names = ["window_start", "window_end", *plan.key_names, *(a.name for a in plan.aggregates)]
        schema = pa.schema([plan.pane_schema.field(name) for name in names])
        return pa.concat_tables([schema.empty_table(), *parts])

    def state(self, table: str) -> pa.Table:
        """The rows of a state table, by partition, in the order of its key. Raises `UsageError` for another name."""
        specs = {spec.name: spec for spec in self._job.plan.tables}
        if table not in specs:
            raise UsageError("there is no such table", code="harness-state", table=table, tables=sorted(specs))
        rows = self._read(lambda store: list(store.scan(table)))
        return pa.concat_tables([specs[table].schema.empty_table(), *rows])

    def counters(self) -> dict[str, int]:
        """Events and panes by class, since the beginning."""
        return dict(self._job.head.totals)

    def _kept(self) -> list[pa.Table]:
        plan, watermark = self._job.plan, self._job.head.watermark_us
        return self._read(lambda store: _windows_in(plan, store, watermark))

    def _read(self, rows: Callable[[StateView], list[pa.Table]]) -> list[pa.Table]:
        """What ``rows`` finds in each state partition."""
        objects, plan = self._job.checkpoint.objects, self._job.plan
        found = []
        for number, base in enumerate(self._job.head.operators[plan.name].partitions):
            identity = f"{self._folder}/harness/{number}"
            with open_store(self._store, objects, identity, plan.tables, base) as store:
                found += rows(store)
        return found

    def _begin(self) -> Job:
        plan = bind_plan(self._description, self._schema)
        job = Job.begin(plan, Checkpoint.open_or_create(self._folder), self._store, partitions=self._partitions)
        self._now = max(self._now, job.head.processing_us or 0)
        return job

    def _tick(self, after: Progress, *, drained: bool = False) -> pa.Table:
        round_ = self._job.round(self._now)
        nothing = no_arrivals(self._job.plan)
        results = [run_partition(round_, number, nothing, after) for number in range(round_.partitions)]
        position = self._position(round_)
        return self._panes(self._job.commit(results, "tick", position, delivered=0, drained=drained))

    def _position(self, round_: Round) -> Position:
        return Position(processing_us=round_.now_us)

    def _panes(self, manifest: Manifest) -> pa.Table:
        return read_rows(self._job.checkpoint, manifest.panes, self._job.plan.pane_schema)


def _windows_in(plan: Plan, store: StateView, watermark_us: int | None) -> list[pa.Table]:
    if isinstance(plan, SlicePlan):
        bound = BEGINNING_US if watermark_us is None else plan.forgotten(watermark_us)
        return [whole_windows(plan, store, bound)]
    return list(store.scan(GROUPS))
