"""The join window operator as an object, with the calls of the window operator.

See docs/how-to/embed-an-operator.md.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.bind.graph import installed_zones, no_kept_rules
from tidestate.operators.bind.operator import bind_plan
from tidestate.operators.describe.join import Join
from tidestate.operators.describe.runs import PENDING_LIMIT, JobHook
from tidestate.operators.describe.session_join import SessionJoin
from tidestate.operators.describe.sides import SIDE, SIDES
from tidestate.operators.describe.windows import Sliding
from tidestate.operators.embedded.operator import EmbeddedOperator, not_by_hand
from tidestate.operators.embedded.queries import (
    known_offsets,
    latest_start,
    message_partitions,
    messages_of,
    side_window,
    side_windows,
)
from tidestate.operators.engine.job import no_job_hook
from tidestate.operators.engine.kept_zones import kept_rules
from tidestate.operators.joins.edits import (
    SideSpan,
    check_side,
    delete_side_window,
    put_session,
    retire_rows,
    span_of,
    window_of,
)
from tidestate.operators.joins.names import SESSIONS
from tidestate.operators.joins.plan import JoinPlan, SessionJoinPlan
from tidestate.operators.plan.classify import Classified
from tidestate.operators.plan.transition import Transition
from tidestate.operators.progress.progress import Context
from tidestate.operators.progress.watermarks import BEGINNING_US
from tidestate.operators.windows.stored_windows import partitions_of
from tidestate.operators.zones.rules import KeptRules
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.recovery.start.policy import Policy
from tidestate.statestore.arguments import checked
from tidestate.statestore.durations import Moment, moment_us
from tidestate.statestore.errors import UsageError, expect
from tidestate.statestore.messages.identities import first_of_each, is_known
from tidestate.statestore.messages.keys import Layout
from tidestate.statestore.messages.tables import OFFSET, ORIGIN, MessageTables
from tidestate.statestore.spec.changes import ChangeSet
from tidestate.statestore.spec.plain import ArrowRows, plain_schema
from tidestate.statestore.spec.store import StateView, StoreConfig

SidedPlan = JoinPlan | SessionJoinPlan


class JoinOperator(EmbeddedOperator[SidedPlan]):
    """A join or session join on a checkpoint folder. ``left``, ``right``: schemas of the batches of each side.

    A message is identified by (origin, offset) of its side, which its stream names (``stream(offset=…,
    origin=…)``), and takes effect once. Close it, or use it in a ``with`` block. ``partitions`` is the number of
    state partitions of a new folder, 1 by default. ``policy`` decides what the start does if another process has the
    folder open, or the newest checkpoint is damaged; ``retain`` what becomes of old checkpoints, and ``metrics``
    where they are served, as on Spark. While more than ``pending_limit`` results are not acknowledged, it takes no
    messages. A batch is anything that exports Arrow data; times without a zone are in ``time_zone``.
    """

    def __init__(
        self,
        description: Join | SessionJoin,
        left: pa.Schema,
        right: pa.Schema,
        *,
        checkpoint: str | os.PathLike[str],
        store: StoreConfig | None = None,
        policy: Policy | None = None,
        hook: JobHook = no_job_hook,
        time_zone: str | None = None,
        partitions: int | None = None,
        retain: CheckpointRetention | None = None,
        metrics: int | str | None = None,
        pending_limit: int | None = PENDING_LIMIT,
    ) -> None:
        self._joined, self._time_zone = description, time_zone
        sides = plain_schema(left, time_zone), plain_schema(right, time_zone)
        plan = bind_join_operator(description, *sides, kept_rules(checkpoint, policy))
        super().__init__(plan, checkpoint, store, policy, hook, partitions, retain, metrics, pending_limit)

    @checked
    def add_messages(
        self,
        *,
        left: ArrowRows | None = None,
        right: ArrowRows | None = None,
        now_us: int | None = None,
    ) -> dict[str, int]:
        """Process messages of one side, or of both at once. Returns counters: accepted, duplicates, late, pairs and
        so on.

        With ``now_us`` the clock moves in the same step, so pairs that were held until then are emitted too. If it
        raises, nothing was processed: `UsageError` (``outputs-pending``) while more results than ``pending_limit``
        are not acknowledged. It flushes by itself when it emits pairs, or opens or expires a window.
        Messages that are not flushed are lost with the process: add them again, the operator recognizes those it has.
        """
        rows = self._joined.rows(self._plan.input.schema, self._time_zone, left=left, right=right)
        return self._take(rows, now_us)

    @property
    def layouts(self) -> dict[str, Layout]:
        """The key layout of the messages of each side."""
        return self._plan.layouts

    @checked
    def get_windows(
        self, side: str, start: Moment | None = None, end: Moment | None = None, key: Any = None
    ) -> pa.Table:
        """The retained windows of a side that overlap ``start`` to ``end``, both inclusive, ordered by start.

        With their bounds, number of ``events``, and ``offsets``: the first and the last of each origin. A side
        without windows has one that holds everything; its bounds are null. Windows of joins have no key. A session
        join has the sessions that hold messages of the side, and ``key`` is the session key of those to return.
        """
        return side_windows(self._kind(side), self._side(side), self._views(), start, end, key)

    @checked
    def get_messages(
        self,
        side: str,
        start_time: Moment | None = None,
        start_offset: int | None = None,
        end_time: Moment | None = None,
        end_offset: int | None = None,
        *,
        session: Any = None,
        equal: Any = None,
    ) -> pa.Table:
        """The retained messages of a side between these bounds, both inclusive, ordered by (time, offset, origin).

        Times only if the side's layout has them. ``equal``: values of the join's key columns; ``session``: of those
        to which the sessions of a session join belong.
        """
        bounds = (start_time, start_offset, end_time, end_offset)
        tables = self._side(side)
        numbers = message_partitions(tables, self._job.head.partitions, session, equal)
        return messages_of(tables, self._views(numbers), bounds, session, equal)

    @checked
    def get_window(
        self, side: str, start: Moment | None = None, *, key: Any = None, end: Moment | None = None
    ) -> dict[str, Any] | None:
        """The window of a side that starts then, as a row of `get_windows`; None where it holds nothing. A side
        without windows has one, which needs no ``start``. ``key``: that of a session.
        """
        window, _ = self._window(side, start, end, key)
        asked_start = None if start is None else window.start
        row = side_window(self._kind(side), self._side(side), self._views(), asked_start, window.key)
        return None if row is None else row.to_pylist()[0]

    @checked
    def put_window(self, side: str, start: Moment, *, key: Any = None, end: Moment) -> None:
        """Put another ``end`` of the session that starts then, of this ``key``: of all that a join stores of windows
        only this does not follow from its rows. It must hold all rows of the session, of both sides, and the session
        must not have fired. Nothing is emitted by it. It is part of the next checkpoint.

        Raises `UsageError` (``window-edit``, ``window-bounds``, ``window-over``, ``window-waits``); nothing has
        changed then.
        """
        window, _ = self._window(side, start, None, key)
        last = moment_us(end)
        self._edit(
            self._partitions_of(window), lambda plan, view: put_session(plan, view, self.watermark_us, window, last)
        )

    @checked
    def del_window(
        self, side: str, start: Moment | None = None, *, key: Any = None, end: Moment | None = None
    ) -> bool:
        """Retire the rows of the window of a side that starts then, see `retire`. Returns whether there were any.
        Raises `UsageError` (``window-edit``) where windows overlap, as others of them hold the same rows.
        """
        window, first = self._window(side, start, end, key)
        edited = self._edit(
            self._partitions_of(window),
            lambda plan, view: delete_side_window(plan, view, self.watermark_us, first, window),
        )
        return edited.get("messages", 0) > 0

    @checked
    def retire(self, side: str, start: Moment, end: Moment, *, key: Any = None) -> dict[str, int]:
        """Remove the rows of a side from ``start`` to before ``end``: times, or offsets where those place its rows.
        Returns how many ``messages`` that were, and of how many sessions, ``windows``, they were the last rows.

        ``key``: a value, a tuple if it has several columns, or some of its columns with their values; by default all.
        A retired row is in no pair any more, and not emitted alone either; pairs of it that are held go too. Nothing
        is taken back, and a row that it has met counts as matched. It stays known, so no replay brings it back.
        It is part of the next checkpoint. Raises `UsageError` (``window-waits``, ``window-edit``, ``rebuilding``);
        nothing has changed then.
        """
        span = span_of(self._plan, side, start, end, key)
        return self._edit(
            self._partitions_of(span), lambda plan, view: retire_rows(plan, view, self.watermark_us, span)
        )

    @checked
    def replay_from(self, side: str) -> pa.Table:
        """Per origin of a side the first and the last offset that is known: a replay from there has every row that
        may still meet others.
        """
        return known_offsets(self._plan, self._side(side), self._views())

    def rebuild(self, *, left: ArrowRows | None = None, right: ArrowRows | None = None) -> None:
        """Put back rows whose files were lost, by a replay from `replay_from`; durable at once. The operator was
        opened with ``Policy(messages="rebuild")``; see `Standalone.rebuild`.
        """
        self._rebuild([self._joined.rows(self._plan.input.schema, self._time_zone, left=left, right=right)])

    def _side(self, side: str) -> MessageTables:
        check_side(side)
        return self._plan.stores[side]

    def _first(self, side: str) -> int | None:
        """The first offset of a side, where its windows start there."""
        return self._standing.progress.first_offsets.get(side)

    def _kind(self, side: str) -> Sliding | None:
        """The windows of a side; None for sessions, and where one holds everything."""
        check_side(side)
        return (
            None if isinstance(self._plan, SessionJoinPlan) else self._plan.joined.windows_of(side, self._first(side))
        )

    def _window(self, side: str, start: Moment | None, end: Moment | None, key: Any) -> tuple[SideSpan, int | None]:
        """A window of a side, and its first offset."""
        first = self._first(side)
        return window_of(self._plan, side, first, start, end, key), first

    def _partitions_of(self, span: SideSpan) -> range:
        """The state partitions that may have such rows."""
        return partitions_of(self._plan.partition_by, span.keys, self._job.head.partitions)

    def _admit(self, batch: pa.Table, context: Context) -> Classified:
        return self._classify_new(batch, lambda view, rows: _known(self._plan, view, rows), context)

    def _forgets(self, plan: SidedPlan, view: StateView, changes: ChangeSet, context: Context) -> bool:
        if isinstance(plan, SessionJoinPlan):
            return any((rows := changes[side].delete) is not None and rows.num_rows for side in SIDES)
        if plan.joined.bounded:  # with only a distance, rows expire all the time
            return False
        bounds = {side: changes[side].expire for side in SIDES if side in changes}
        return any(_is_further(bound, view[side].expired) for side, bound in bounds.items())

    def _newest(self, steps: Sequence[Transition], max_event_us: int | None, context: Context) -> int | None:
        if isinstance(self._plan, SessionJoinPlan):
            return latest_start([moved.changes[SESSIONS] for moved in steps])
        return _opened(self._plan, context, max_event_us)


def bind_join_operator(
    description: Join | SessionJoin, left: pa.Schema, right: pa.Schema, fallback: KeptRules = no_kept_rules
) -> SidedPlan:
    """Check everything against the schemas of both sides. Raises `UsageError`; nothing has happened then."""
    known = isinstance(description, Join | SessionJoin)
    zones = installed_zones(description, fallback)
    plan = bind_plan(description, description.schema(left, right), zones=zones) if known else None
    if not isinstance(plan, JoinPlan | SessionJoinPlan):
        raise not_by_hand(description)
    if missing := sorted(set(SIDES) - set(plan.identified)):
        raise UsageError(
            "a join that is fed by hand identifies messages by their offsets: name the column, stream(offset=…)",
            code="join-offset",
            sides=missing,
        )
    return replace(plan, configuration=plan.configuration | {"operator": {"sides": list(SIDES)}})


def _is_further(bound: int | None, before: int | None) -> bool:
    return bound is not None and bound > (BEGINNING_US if before is None else before)


def _known(plan: SidedPlan, view: StateView, batch: pa.Table) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which rows have been here: before lateness is asked, which a replay is not to be judged by."""
    known = np.zeros(batch.num_rows, bool)
    for side in SIDES:
        own = np.flatnonzero(np.asarray(pc.equal(batch[SIDE], side)))
        offset = expect(plan.given(side, OFFSET), "an embedded join has offsets", side=side)
        origin = plan.given(side, ORIGIN)
        rows = batch.take(pa.array(own))
        origins = rows[origin] if origin else pa.array(np.zeros(len(own), np.int8))
        offsets = rows[offset]
        try:
            asked = pa.table({OFFSET: offsets.cast(pa.int64()), ORIGIN: origins})
        except (pa.ArrowException, ValueError):
            continue  # offsets that are none are rejected below
        known[own] = is_known(view, plan.seen(side), asked)
        if plan.input.watermarks.filters_rows:  # which reads rows one after the other, so none of them twice
            known[own] |= first_of_each(asked) != np.arange(len(own))
    return known


def _opened(plan: JoinPlan, context: Context, newest: int | None) -> int | None:
    """A number that grows when a later window than any before is opened, on whichever side."""
    joined = plan.joined
    if joined.own is not None:
        progress = context.after
        windows = (joined.windows_of(side, progress.first_offsets.get(side)) for side in SIDES)
        pairs = ((window, progress.newest.get(side)) for window, side in zip(windows, SIDES, strict=True))
        places = [_number(window, place) for window, place in pairs if window is not None and place is not None]
        return sum(places) if places else None
    return None if joined.windows is None or newest is None else _number(joined.windows, newest)


def _number(windows: Sliding, place: int) -> int:
    """The number of the newest window that has begun."""
    return (place - windows.shift) // windows.slide
