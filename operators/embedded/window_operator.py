"""The window operator as an object: `add_messages`, `timeout`, `get_result`, `flush`.

See docs/how-to/embed-an-operator.md.

What a call does is in RAM until the next flush, and a flush is one checkpoint. The operator flushes by itself when
it has something to show, when a window is opened and when something is forgotten, as in the design (SAMZA-552).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tidestate.operators.bind.columns import input_columns
from tidestate.operators.bind.graph import installed_zones
from tidestate.operators.bind.operator import bind_plan
from tidestate.operators.describe.configuration import BY_HAND
from tidestate.operators.describe.runs import PENDING_LIMIT, Batch, JobHook, several
from tidestate.operators.describe.windowed import KnownMessages, Merge, Windowed
from tidestate.operators.embedded.operator import EmbeddedOperator, not_by_hand
from tidestate.operators.embedded.queries import latest_start, message_partitions, messages_of
from tidestate.operators.engine.job import no_job_hook
from tidestate.operators.engine.kept_zones import kept_rules
from tidestate.operators.engine.reprocess import late_rows
from tidestate.operators.plan.classify import Classified, classify, conform
from tidestate.operators.plan.transition import Transition
from tidestate.operators.progress.progress import Context
from tidestate.operators.streams.pane_settings import with_messages
from tidestate.operators.windows.messages.edits import (
    WindowContent,
    delete_window,
    get_window,
    put_window,
    retire_windows,
    window_id_of,
)
from tidestate.operators.windows.messages.kept_windows import kept_windows, sorted_windows
from tidestate.operators.windows.messages.plan import MessagePlan
from tidestate.operators.windows.messages.window_metadata import WindowTables, ended_sessions, windows_replay_from
from tidestate.operators.windows.stored_windows import asked_for, partitions_of
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.recovery.start.policy import Policy
from tidestate.statestore.arguments import checked
from tidestate.statestore.durations import Moment
from tidestate.statestore.errors import UsageError, expect, of_type
from tidestate.statestore.messages.identities import first_of_each, is_known
from tidestate.statestore.messages.keys import Layout
from tidestate.statestore.messages.tables import Retention
from tidestate.statestore.spec.changes import ChangeSet
from tidestate.statestore.spec.plain import ArrowRows, as_table, plain_schema, schema_with_fields
from tidestate.statestore.spec.store import StateView, StoreConfig
from tidestate.statestore.table.overlay import OverlayView


class WindowOperator(EmbeddedOperator[MessagePlan]):
    """A job of windows, or a merge, on a checkpoint folder. ``schema`` is that of the batches, with columns
    ``origin`` and ``offset``; of a merge those of its sides, by name, which share these columns.

    A message is identified by (origin, offset) and takes effect once. Close it, or use it in a ``with`` block.
    ``partitions`` is the number of state partitions of a new folder, 1 by default. ``equal`` names columns, next to
    the key, by which messages can be read (the design's keyed message store). ``policy`` decides what the start does
    if another process has the folder open, or the newest checkpoint is damaged; ``retain`` what becomes of old
    checkpoints, and ``metrics`` where they are served, as on Spark. While more than ``pending_limit`` results are not
    acknowledged, it takes no messages. A batch is anything that exports Arrow data; times without a zone are in
    ``time_zone``.
    """

    def __init__(
        self,
        description: Windowed,
        schema: pa.Schema | Mapping[str, pa.Schema],
        *,
        checkpoint: str | os.PathLike[str],
        origin: str = "origin",
        offset: str = "offset",
        store: StoreConfig | None = None,
        retention: Retention | None = None,
        layout: str | None = None,
        equal: str | Sequence[str] = (),
        policy: Policy | None = None,
        hook: JobHook = no_job_hook,
        time_zone: str | None = None,
        partitions: int | None = None,
        retain: CheckpointRetention | None = None,
        metrics: int | str | None = None,
        pending_limit: int | None = PENDING_LIMIT,
    ) -> None:
        self._time_zone = time_zone
        description = _with_messages(description, origin, offset, retention, layout, equal)
        self._merged = description if isinstance(description, Merge) else None
        schema = _input_schema(description, schema, time_zone)
        schema = schema_with_fields(schema, input_columns(description, ()))
        zones = installed_zones(description, kept_rules(checkpoint, policy))
        plan = of_type(bind_plan(description, schema, zones=zones), MessagePlan)
        if plan.input.stages is not None and plan.input.watermarks.filters_rows:
            raise UsageError(
                "by hand a stream with CTIs or buffers is not decoded, filtered or computed: give rows as the "
                "windows read them, or run the job standalone in this process, job.standalone(checkpoint=…)",
                code="decode-by-hand",
                operator=plan.name,
            )
        marked = replace(plan, configuration=plan.configuration | {BY_HAND: {}})
        super().__init__(marked, checkpoint, store, policy, hook, partitions, retain, metrics, pending_limit)

    def add_messages(self, batch: ArrowRows | None = None, /, **sides: ArrowRows | None) -> dict[str, int]:
        """Process messages, of a merge those of some ``sides`` by name. Returns counters: accepted, duplicates, late
        and so on. If it raises, nothing was processed: `UsageError` (``outputs-pending``) while more results than
        ``pending_limit`` are not acknowledged.

        It flushes by itself when it emits panes, or opens or expires a window. Messages that are not flushed are lost
        with the process: add them again, the operator recognizes those it has.
        """
        return self._take(self._rows(batch, sides))

    def reprocess_late(self, rows: ArrowRows | None = None, *, reason: str | None = None) -> dict[str, int]:
        """Reprocess the late ledger, of a ``reason`` as in `Standalone.reprocess_late`, or ``rows``: each message
        takes part in a window once. Returns the number of messages.

        Windows that are still retained take them, whatever the watermark; for windows that are gone a ledger row with
        the reason ``purged`` is added. It is durable at once.
        """
        self._check_taking()
        self.flush()
        given = None if rows is None else as_table(rows, self._time_zone)
        late = late_rows(self._job, given, reason=reason)
        back = late.tables.get(self._plan.name)
        if back is None:
            return {}
        return self._reprocess(back, "ledger", late)

    @property
    def layout(self) -> Layout | None:
        """The key layout of the messages; None if only their identities are kept."""
        return self._plan.layout

    @checked
    def get_windows(
        self,
        start: Moment | None = None,
        end: Moment | None = None,
        *,
        key: Any = None,
        values: Sequence[str] | None = None,
    ) -> pa.Table:
        """The retained windows that overlap ``start`` to ``end``, both inclusive, in order of start and key.

        With their bounds, key, current results, number of ``events`` and emitted ``panes``, and ``offsets``: the
        first and the last of each origin. Bounds are times, or offsets or numbers if windows are of those. ``key``:
        a value, a tuple if it has several columns, or some of its columns with their values. ``values``: which
        results; by default all.
        """
        asked = asked_for(self._plan, start, end, key, values)
        views = self._views(self._partition_of(asked.keys))
        mark = self.watermark_us
        rows = (part for view in views for part in kept_windows(self._plan, view, mark, asked))
        return sorted_windows(self._plan, asked, rows)

    @checked
    def get_messages(
        self,
        start_time: Moment | None = None,
        start_offset: int | None = None,
        end_time: Moment | None = None,
        end_offset: int | None = None,
        *,
        session: Any = None,
        equal: Any = None,
    ) -> pa.Table:
        """The retained messages between these bounds, both inclusive, ordered by (time, offset, origin).

        Times only if the layout has them. ``session``: the key, if windows are sessions; ``equal``: values of the
        equal columns, that is the key of other windows, or the columns named ``equal``.
        """
        bounds = (start_time, start_offset, end_time, end_offset)
        tables = self._plan.messages
        numbers = message_partitions(tables, self._job.head.partitions, session, equal)
        return messages_of(tables, self._views(numbers), bounds, session, equal)

    @checked
    def get_window(
        self,
        start: Moment | None = None,
        *,
        key: Any = None,
        end: Moment | None = None,
        values: Sequence[str] | None = None,
    ) -> dict[str, Any] | None:
        """The window that starts then, of this key, as a row of `get_windows`; None where there is none.

        ``end`` is only needed where rows name their windows. The global window needs no ``start``.
        """
        window_id = window_id_of(self._plan, start, end, key)
        (view,) = self._views(self._partition_of(window_id.keys))
        row = get_window(self._plan, view, self.watermark_us, window_id, values)
        return None if row is None else row.to_pylist()[0]

    @checked
    def put_window(
        self,
        start: Moment | None = None,
        *,
        key: Any = None,
        end: Moment | None = None,
        events: int | None = None,
        values: Mapping[str, Any] | None = None,
        offsets: Mapping[Any, tuple[int, int]] | None = None,
    ) -> None:
        """Replace what is stored of a window: the number of its ``events``, results (``values``, by name), the first
        and the last offset of each origin (``offsets``). What is not given stays. A window that is not there begins
        so: it needs ``events`` and all results, a session also its ``end``.

        Nothing is emitted by it; the next pane of the window has these values. Only counts, sums, minima and maxima
        can be put: of other results more than themselves is stored. It is part of the next checkpoint. Raises
        `UsageError` (``window-value``, ``window-bounds``, ``window-over``, ``window-waits``, ``window-edit``);
        nothing has changed then.
        """
        window_id, now_us = window_id_of(self._plan, start, end, key), self._standing.now_us or 0
        content = WindowContent(events, values or {}, offsets)
        content.check_given()
        self._edit(
            self._partition_of(window_id.keys),
            lambda plan, view: put_window(plan, view, self.watermark_us, now_us, window_id, content),
        )

    @checked
    def del_window(self, start: Moment | None = None, *, key: Any = None, end: Moment | None = None) -> bool:
        """Remove a window, with its messages that no other window holds. Returns whether there was one.

        Nothing is emitted or retracted. A late event of the window begins it anew, while it accepts any. The messages
        stay known, so a replay brings none back; `reprocess_late` with them puts them in again. It is part of the
        next checkpoint. Raises `UsageError` (``window-waits``, ``window-edit``); nothing has changed then.
        """
        window_id = window_id_of(self._plan, start, end, key)
        edited = self._edit(
            self._partition_of(window_id.keys),
            lambda plan, view: delete_window(plan, view, self.watermark_us, window_id),
        )
        return edited["windows"] > 0

    @checked
    def retire(self, start: Moment, end: Moment, *, key: Any = None) -> dict[str, int]:
        """Remove the windows that lie between ``start`` and ``end``, and the messages from ``start`` to before
        ``end`` that no other window holds. Returns how many: ``windows`` and ``messages``.

        ``key``: a value, a tuple if it has several columns, or some of its columns with their values; by default all.
        As `del_window` of each of these windows otherwise.
        """
        asked = asked_for(self._plan, start, end, key)
        first, last = expect(asked.start, "a start is given"), expect(asked.end, "an end is given")
        return self._edit(
            self._partition_of(asked.keys),
            lambda plan, view: retire_windows(plan, view, self.watermark_us, first, last, asked.keys),
        )

    def replay_from(self) -> pa.Table:
        """Per origin the start offset of the earliest retained window, and the last processed offset."""
        return windows_replay_from(self._plan.metadata, self._views())

    def rebuild(self, replay: Batch | Iterable[Batch]) -> None:
        """Put back stored messages whose files were lost, by a replay from `replay_from`, a batch or several, of a
        merge by side; each is durable at once. The operator was opened with ``Policy(messages="rebuild")``; see
        `Standalone.rebuild`.
        """
        batches = several(replay)
        self._rebuild(self._rows(None, one) if isinstance(one, Mapping) else self._rows(one, {}) for one in batches)

    def _partition_of(self, keys: Mapping[str, pa.Scalar]) -> range:
        """The state partitions that may have windows with these values in their key."""
        return partitions_of(self._plan.partition_by, keys, self._job.head.partitions)

    def _rows(self, batch: ArrowRows | None, sides: Mapping[str, ArrowRows | None]) -> pa.Table:
        """A batch as the plan reads it."""
        if batch is not None and not sides:
            return as_table(batch, self._time_zone)
        if self._merged is None or batch is not None:
            raise UsageError(
                "a batch must be one table, or for a merge one table for each side, by its name",
                code="sides",
                sides=self._merged.sides.names if self._merged is not None else (),
                found=sorted(sides),
            )
        return self._merged.rows(self._plan.input.schema, self._time_zone, **sides)

    def _admit(self, batch: pa.Table, context: Context) -> Classified:
        plan = self._plan
        if not plan.input.watermarks.filters_rows:
            return classify(plan, batch, context, self._job.head.partitions)
        # The watermark follows from the order of new messages: those that come again must not be read twice.
        rows = conform(plan, batch, context)
        plan.known_by.check_known(rows)
        again = first_of_each(plan.known_by.of(rows)) != np.arange(rows.num_rows)
        seen = plan.identities.seen
        return self._classify_new(rows, lambda view, own: is_known(view, seen, plan.known_by.of(own)), context, again)

    def _forgets(self, plan: MessagePlan, view: StateView, changes: ChangeSet, context: Context) -> bool:
        plan = plan.within(view)
        windows, seen = plan.metadata.windows.name, plan.identities.seen.name
        if plan.sessions:
            return _ends_session(plan.metadata, view, changes)
        deleted = changes[windows].delete if windows in changes else None
        if plan.by_number and deleted is not None and deleted.num_rows:
            return True  # they are full
        until = changes[seen].expire if seen in changes else None
        before = plan.forgotten_at(view, context.watermark_before)
        return until is not None and (before is None or until > before)

    def _newest(self, steps: Sequence[Transition], max_event_us: int | None, context: Context) -> int | None:
        windows = self._plan.metadata.windows.name
        return latest_start([moved.changes[windows] for moved in steps if windows in moved.changes])


def _ends_session(tables: WindowTables, view: StateView, changes: ChangeSet) -> bool:
    """Whether a session that was there before, or is new, expires with the ``changes`` of a step."""
    ends = tables.ends
    made = changes.get(ends.name)
    if made is None or made.expire is None:
        return False
    with_new = OverlayView({ends.name: view[ends.name]}, [ends])
    with_new.apply({ends.name: replace(made, expire=None)})
    return ended_sessions(tables, with_new, made.expire).num_rows > 0


def _with_messages(
    description: Windowed,
    origin: str,
    offset: str,
    retention: Retention | None,
    layout: str | None,
    equal: str | Sequence[str],
) -> Windowed:
    """The description with its messages known by these columns, unless it names some itself. Raises `UsageError`."""
    if not isinstance(description, Windowed):
        raise not_by_hand(description)
    if description.known is None:
        identity = (origin, offset) if origin else (offset,)
        named = with_messages(description, identity, None, layout, equal)
        known = of_type(named.known, KnownMessages)
        return msgspec.structs.replace(named, known=msgspec.structs.replace(known, retention=retention))
    if retention is not None or layout is not None or equal:
        raise UsageError(
            "the job itself says how messages are kept, with .messages(…): remove retention=, layout= and equal=",
            code="message-identity",
        )
    return description


def _input_schema(
    description: Windowed, schema: pa.Schema | Mapping[str, pa.Schema], time_zone: str | None
) -> pa.Schema:
    """The columns of the one stream. Raises `UsageError`."""
    if not isinstance(description, Merge):
        return plain_schema(of_type(schema, pa.Schema), time_zone)
    if not isinstance(schema, Mapping) or set(schema) != set(description.sides.names):
        raise UsageError(
            "give the schema of each side, by its name",
            code="sides",
            sides=description.sides.names,
            found=sorted(schema) if isinstance(schema, Mapping) else [],
        )
    return description.schema(*(schema[side] for side in description.sides.names), time_zone=time_zone)
