"""The window operator as an object: `add_messages`, `timeout`, `get_result`, `flush`. See docs/OPERATOR_API.md.

What a call does is in RAM until the next flush, and a flush is one checkpoint. The operator flushes by itself when
it has something to show, when a window is opened and when something is forgotten, as in the design (SAMZA-552).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa

from operators.delivery import read_rows
from operators.description import Windowed
from operators.feeding import to_feed, warn_of_purged
from operators.general.names import GROUPS, START
from operators.general.panes import results_of
from operators.job import Hook, Job, Position, no_hook
from operators.partition import PartitionResult, write_output
from operators.plan import Intake
from operators.transition import Moments, total
from operators.watermarks import at_least, mark_of
from operators.window_metadata import replay_from
from operators.window_operator.overlay import Overlay
from operators.window_operator.plan import bind_operator
from operators.window_operator.rebuilding import put_back, rebuildable
from operators.window_operator.step import Stepped, messages_of, move, take_back, take_messages
from recovery.checkpoint import Checkpoint
from recovery.manifest import END_OF_TIME_US, Kind
from statestore.errors import UsageError
from statestore.files.partition_log import PartitionLog
from statestore.files.segments import FileRef, PartitionState
from statestore.messages.keys import Layout
from statestore.messages.reads import get_messages
from statestore.messages.tables import OFFSET, ORIGIN, Retention
from statestore.objects import Objects
from statestore.opening import open_store
from statestore.store import Parquet, StoreConfig

MAX_UNFLUSHED = 1_000_000
"""Messages after which the operator flushes whatever they brought."""


@dataclass(frozen=True)
class Result:
    """The panes of one checkpoint. A receiver that remembers the last id it took in has every pane exactly once."""

    id: int
    panes: pa.Table


@dataclass(frozen=True)
class _Since:
    """What has happened since the last flush, beside the state."""

    panes: tuple[pa.Table, ...] = ()
    rejected: tuple[pa.Table, ...] = ()
    counters: dict[str, int] = field(default_factory=dict)
    messages: int = 0
    max_event_us: int | None = None
    origins: tuple[str, ...] = ()

    def and_then(self, step: Stepped, messages: int) -> _Since:
        """With one more step."""
        seen = [time for time in (self.max_event_us, step.max_event_us) if time is not None]
        return _Since(
            (*self.panes, *([step.panes] if step.panes.num_rows else [])),
            (*self.rejected, *step.rejected),
            total([self.counters, step.counters]),
            self.messages + messages,
            max(seen, default=None),
            step.origins or self.origins,
        )


class WindowOperator:
    """A description at work on a checkpoint folder. ``schema`` is that of batches, with ``origin`` and ``offset``.

    A message is (origin, offset) and takes effect once. One operator, one process, one state partition: for more,
    run several, each with the origins of its own and its own folder. Close it, or use it in a ``with`` block.
    """

    def __init__(
        self,
        description: Windowed,
        schema: pa.Schema,
        *,
        checkpoint: str | os.PathLike[str],
        origin: str = "origin",
        offset: str = "offset",
        store: StoreConfig | None = None,
        retention: Retention | None = None,
        layout: str | None = None,
        hook: Hook = no_hook,
    ) -> None:
        self._plan = bind_operator(
            description, schema, origin=origin, offset=offset, retention=retention, layout=layout
        )
        self._store = store or Parquet()
        folder = Checkpoint.open_or_create(checkpoint)
        self._job = Job.begin(self._plan, folder, self._store, partitions=1, hook=hook)
        head = self._job.head
        self._progress, self._now = self._job.progress, head.processing_us
        self._newest: int | None = None
        self._since = _Since()
        self._acknowledged, self._taken = head.delivered, head.delivered
        self._ready = self._outstanding()
        self._open = ExitStack()
        self._state: Overlay | None = None

    def add_messages(self, batch: pa.Table | pa.RecordBatch) -> dict[str, int]:
        """Take messages in; how many were accepted, duplicates, late and so on. When it raises, nothing was taken.

        Flushes by itself when that shows panes, opens a window or forgets one. What is not flushed is lost with the
        process: give it again, the operator knows what it has had.
        """
        rows = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        self._not_drained()
        state = self._current().fork()
        origins = self._since.origins or self._job.head.origins
        intake = Intake(self.watermark_us, self._now or 0, origins=origins)
        step = take_messages(self._plan, state, rows, self._progress, intake)
        opened = step.newest is not None and (self._newest is None or step.newest > self._newest)
        self._newest = step.newest if opened else self._newest
        self._adopt(state, step, rows.num_rows)
        if opened or step.purged or step.panes.num_rows or self._since.messages >= MAX_UNFLUSHED:
            self._flush()
        return step.counters

    def timeout(self, now_us: int, *, watermark_us: int | None = None) -> None:
        """The clock shows ``now_us``, and every event before ``watermark_us`` has been seen: what is due fires.

        Steps back are ignored. Processing time moves by this alone.
        """
        self._not_drained()
        was = self._now if self._now is not None else now_us
        now = max(was, now_us)
        after = self._plan.watermarks.after(self._progress, [], now)
        if watermark_us is not None:
            after = at_least(after, watermark_us)
        state = self._current().fork()
        nothing = self._plan.exchanged.schema.empty_table()
        step = move(self._plan, state, nothing, Moments(self._progress.watermark_us, after.watermark_us, was, now))
        self._now, self._progress = now, after
        self._adopt(state, step, 0)
        if step.purged or step.panes.num_rows:
            self._flush()

    def get_result(self) -> list[Result]:
        """Panes that are ready and have not been taken, oldest first. The next `flush` acknowledges them."""
        results = [self._result(checkpoint_id) for checkpoint_id in self._ready]
        if self._ready:
            self._taken = self._ready[-1]
        self._ready = []
        return results

    def feed_back(self, rows: pa.Table | None = None) -> dict[str, int]:
        """Take back what the late ledger holds of messages that came too late, each once; how many were.

        Or ``rows`` that you bring, each time you bring them. Windows that are still kept take them, whatever the
        watermark; for windows that are gone there is a ledger row of the reason ``purged``. It is durable at once.
        """
        self._not_drained()
        self.flush()
        back = to_feed(self._job, rows)
        if not back.num_rows:
            return {}
        state = self._current().fork()
        step = take_back(self._plan, state, back, Intake(self.watermark_us, self._now or 0, feeding=True))
        self._adopt(state, step, 0)
        self._flush(fed=rows is None)
        warn_of_purged(self._job, self._job.head)
        return step.counters

    def flush(self) -> int:
        """Everything so far is durable, and what `get_result` gave is acknowledged. The id of the newest checkpoint.

        What was taken and not yet acknowledged when the process dies is given again, under the same id.
        """
        self._acknowledged = max(self._acknowledged, self._taken)
        if self._since != _Since() or self._acknowledged > self._job.head.delivered or self._moved:
            self._flush()
        return self._job.head.id

    def drain(self) -> None:
        """The input has ended: every window shows what is due; no message is taken any more."""
        if self._job.head.drained:
            return
        low, now = self._progress.watermark_us, self._now or 0
        state = self._current().fork()
        step = move(
            self._plan, state, self._plan.exchanged.schema.empty_table(), Moments(low, END_OF_TIME_US, now, now)
        )
        self._progress = at_least(self._progress, END_OF_TIME_US)
        self._adopt(state, step, 0)
        self._flush(drained=True)

    @property
    def layout(self) -> Layout | None:
        """The key layout of the messages; None where none is needed again and only their identities are kept."""
        return self._plan.layout

    @property
    def watermark_us(self) -> int | None:
        """Every event before this has been seen; None before the first."""
        return mark_of(self._progress)

    @property
    def drained(self) -> bool:
        """Whether the input has ended: no message is taken any more."""
        return self._job.head.drained

    @property
    def counters(self) -> dict[str, int]:
        """Messages and panes by class, since the beginning."""
        return total([dict(self._job.head.totals), self._since.counters])

    def get_windows(self) -> pa.Table:
        """Windows that may still show panes, by key, with their values as they stand."""
        state = self._current()
        plan = self._plan.reading(lambda windows: messages_of(self._plan, state, windows))
        rows = pa.concat_tables([self._plan.groups.schema.empty_table(), *state.scan(GROUPS)])
        return results_of(plan, rows)

    def get_metadata(self) -> pa.Table:
        """Start, end, key and count of windows that are kept."""
        spec = self._plan.metadata.windows
        return pa.concat_tables([spec.schema.empty_table(), *self._current().scan(spec.name)])

    def get_messages(
        self,
        start: tuple[int, ...] | None = None,
        end: tuple[int, ...] | None = None,
        *,
        key: tuple[object, ...] = (),
    ) -> pa.Table:
        """Messages that are kept from ``start`` to ``end``, ``(time, offset)`` or ``(offset,)``, both inclusive."""
        tables = self._plan.messages
        if tables is None:
            raise UsageError(
                "this operator keeps no messages: ask for it with retention= or layout=", code="no-messages"
            )
        named = "session" if tables.session_names else "equal"
        return get_messages(tables, self._current(), start, end, **({named: key} if key else {}))  # type: ignore[arg-type]

    def replay_from(self) -> pa.Table:
        """Per origin the start offset of the earliest window that is kept, and the last offset taken."""
        return replay_from(self._plan.metadata, self._current())

    def rebuild(self, batches: Iterable[pa.Table | pa.RecordBatch]) -> None:
        """Put messages back that were lost with the files of their table: a replay from `replay_from`.

        Windows and identities are as they were; only what had been accepted is put back. Raises `UsageError` where
        there is nothing to put back.
        """
        lost = rebuildable(self._plan).messages.name
        self.close()
        rejected = self._rejected()
        base = self._base
        left = msgspec.structs.replace(base, files=tuple(ref for ref in base.files if ref.table != lost))
        with open_store(Parquet(), self._job.checkpoint.objects, "", self._plan.tables, left) as store:
            self._state = Overlay(store, self._plan.tables)
            for batch in batches:
                rows = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
                self._state.apply(put_back(self._plan, self._state, rows, rejected))
            self._flush(base=left)

    def close(self) -> None:
        """Let go of the store. What is not flushed is gone."""
        self._state = None
        self._open.close()

    def __enter__(self) -> WindowOperator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def ready(self) -> list[int]:
        """Checkpoints whose panes have not been taken."""
        return list(self._ready)

    def deliver(self, checkpoint_id: int) -> Result:
        """One of them; say `delivered` when it has been taken in."""
        return self._result(checkpoint_id)

    def delivered(self, checkpoint_id: int) -> None:
        """The receiver has everything up to here; durable with the next flush, of whatever kind."""
        self._acknowledged = self._taken = max(self._acknowledged, checkpoint_id)
        self._ready = [ready for ready in self._ready if ready > checkpoint_id]

    def _rejected(self) -> pa.Table:
        """Who is in the late ledger: (origin, offset)."""
        names = [self._plan.origin, self._plan.offset]
        empty = self._plan.identities.seen.key_schema.empty_table().select([ORIGIN, OFFSET])
        ledgers = (
            read_rows(self._job.checkpoint, manifest.late, self._plan.late_schema)
            for manifest in self._job.checkpoint.history()
            if manifest.late
        )
        found = [
            _wholly(rows).select(names).rename_columns(empty.column_names).cast(empty.schema) for rows in ledgers
        ]
        return pa.concat_tables([empty, *found])

    @property
    def _base(self) -> PartitionState:
        return self._job.head.operators[self._plan.name].partitions[0]

    @property
    def _moved(self) -> bool:
        head = self._job.head
        return (self.watermark_us, self._now) != (head.watermark_us, head.processing_us)

    def _not_drained(self) -> None:
        self._job.round()

    def _current(self) -> Overlay:
        """The state as it is now, over an opened store."""
        if self._state is None:
            head, plan = self._job.head, self._plan
            objects = self._job.checkpoint.objects
            identity = f"{objects.root}/{head.job_id}/{plan.name}/0/1"
            store = self._open.enter_context(open_store(self._store, objects, identity, plan.tables, self._base))
            self._state = Overlay(store, plan.tables)
        return self._state

    def _adopt(self, state: Overlay, step: Stepped, messages: int) -> None:
        self._state = state
        self._since = self._since.and_then(step, messages)
        self._progress = step.progress or self._progress

    def _flush(self, *, drained: bool = False, fed: bool | None = None, base: PartitionState | None = None) -> None:
        """One checkpoint of everything since the last."""
        since = self._since
        result = self._written(since, base or self._base)
        position = Position(processing_us=self._now)
        kind: Kind = "feed" if fed is not None else "batch" if since.messages else "tick"
        drained = drained or self._job.head.drained
        acknowledged = self._acknowledged
        self._job.commit([result], kind, position, delivered=acknowledged, drained=drained, fed=bool(fed))
        self._since = _Since()
        if result.panes:
            self._ready.append(self._job.head.id)
        self.close()

    def _written(self, since: _Since, base: PartitionState) -> PartitionResult:
        plan, objects, attempt = self._plan, self._job.checkpoint.objects, uuid.uuid4().hex
        sequence = self._job.head.id + 1
        log = PartitionLog(objects, plan.tables, self._store, plan.name, 0, 1, attempt)
        return PartitionResult(
            partition=0,
            base_lineage=base.lineage,
            state=log.append(base, self._current().changes(), sequence),
            progress=self._progress,
            max_event_us=since.max_event_us,
            inputs=1 if since.messages else 0,
            panes=_file(objects, f"panes/{plan.name}", since.panes, sequence, attempt),
            late=_file(objects, f"late/{plan.name}", since.rejected, sequence, attempt),
            counters=since.counters,
            origins=since.origins,
        )

    def _outstanding(self) -> list[int]:
        """Checkpoints with panes that nobody has acknowledged."""
        checkpoint, head = self._job.checkpoint, self._job.head
        ids = range(head.delivered + 1, head.id + 1)
        return [number for number in ids if checkpoint.read(number).manifest.panes]

    def _result(self, checkpoint_id: int) -> Result:
        checkpoint = self._job.checkpoint
        manifest = checkpoint.read(checkpoint_id).manifest
        return Result(checkpoint_id, read_rows(checkpoint, manifest.panes, self._plan.pane_schema))


def _wholly(rejected: pa.Table) -> pa.Table:
    """Ledger rows of messages that no window took: one that names a window is about that alone."""
    return rejected.filter(rejected[START].is_null()) if START in rejected.column_names else rejected


def _file(
    objects: Objects, folder: str, tables: tuple[pa.Table, ...], sequence: int, attempt: str
) -> tuple[FileRef, ...]:
    return write_output(objects, folder, pa.concat_tables(tables) if tables else None, sequence, attempt)
