"""Windows of a root, and rows of a side of a join, that are put or removed by hand: the plan of an edit, and its
execution.

An edit is a checkpoint of the kind ``edit`` on top of the newest one, with changelog segments of the tables that it
changes, the same watermark and the same position in the input. It begins a new writer epoch, so a run that goes on
meanwhile finds its next id taken and stops.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import msgspec
import pyarrow as pa

from tidestate.operators.bind.evolve import with_bounds
from tidestate.operators.bind.stored_description import of_manifest
from tidestate.operators.describe.sides import SIDES
from tidestate.operators.embedded.queries import side_window
from tidestate.operators.engine.job import drained_error, progress_of
from tidestate.operators.inspect.history.bounds import BoundUnit, WindowBounds
from tidestate.operators.inspect.history.changes import plain_values
from tidestate.operators.inspect.history.events import values_text
from tidestate.operators.inspect.plan_from_manifest import plan_from
from tidestate.operators.joins.edits import (
    SideSpan,
    delete_side_window,
    put_session,
    retire_rows,
    span_of,
    window_of,
)
from tidestate.operators.joins.overlaps import OverlapPlan
from tidestate.operators.joins.plan import JoinPlan, SessionJoinPlan
from tidestate.operators.windows.messages.edits import (
    Edited,
    WindowContent,
    WindowId,
    delete_window,
    get_window,
    not_all_back,
    put_window,
    retire_windows,
    window_id_of,
)
from tidestate.operators.windows.messages.tables import FromMessages
from tidestate.operators.windows.names import END, START
from tidestate.operators.windows.plan import WindowPlan
from tidestate.operators.windows.stored_windows import asked_for, partitions_of
from tidestate.recovery.inspect.rows import operator_of
from tidestate.recovery.log.absent import not_begun
from tidestate.recovery.log.acknowledgements import delivered
from tidestate.recovery.log.checkpoint import Checkpoint, now_us
from tidestate.recovery.log.lease import check_idle
from tidestate.recovery.log.manifest import Head, OperatorState
from tidestate.recovery.log.manifest_file import grown_needs, successor
from tidestate.recovery.log.summary import pluralize
from tidestate.recovery.moves.root_plan import LISTED, Fact, RootPlan
from tidestate.statestore.durations import Moment, moment_us
from tidestate.statestore.errors import UsageError, expect, of_type
from tidestate.statestore.files.partition_log import PartitionLog
from tidestate.statestore.files.refs import PartitionState
from tidestate.statestore.messages.tables import MESSAGE_TIME
from tidestate.statestore.spec.changes import ChangeSet
from tidestate.statestore.spec.schema_evolution import declared_table
from tidestate.statestore.spec.store import Parquet, StateView
from tidestate.statestore.stores.opening import open_store
from tidestate.statestore.table.overlay import OverlayView

EditKind = Literal["put", "delete", "retire"]
_UNFOLDED = Parquet(max_levels=1 << 20, snapshot_bytes=1 << 60)
"""An edit folds no files: the job does, which knows combiners of the user."""
_Edit = Callable[[WindowPlan, StateView], Edited]
_SidedPlan = JoinPlan | SessionJoinPlan
_SideEdit = Callable[[_SidedPlan, StateView], Edited]
_Span = tuple[Moment | None, Moment | None]


@dataclass(frozen=True)
class Editable:
    """An operator at the newest checkpoint of a root, whose windows may be edited, or the rows of a ``side``. With
    ``force`` a driver that runs the job is fenced.
    """

    checkpoint: Checkpoint
    head: Head
    name: str
    state: OperatorState
    any_plan: WindowPlan | _SidedPlan
    side: str | None
    force: bool

    @property
    def plan(self) -> WindowPlan:
        """The plan of an operator with windows; `of` has checked that it is one."""
        return of_type(self.any_plan, WindowPlan)

    @property
    def sided(self) -> _SidedPlan:
        """The plan of a join; `of` has checked that it is one."""
        return self.any_plan if isinstance(self.any_plan, JoinPlan) else of_type(self.any_plan, SessionJoinPlan)

    @property
    def first_offsets(self) -> Mapping[str, int]:
        """The first offset of each side of a join whose windows start there."""
        progress = progress_of(self.state)
        return {} if progress is None else progress.first_offsets

    @classmethod
    def of(
        cls, checkpoint: Checkpoint, operator: str | None, side: str | None = None, *, force: bool = False
    ) -> Self:
        """Windows, or of a join a ``side``. Raises `NotFoundError` before the first checkpoint, and `UsageError`
        where nothing can be edited.
        """
        head = checkpoint.head(search=True)
        if head is None:
            raise not_begun(checkpoint.objects.root)
        if head.manifest.drained:
            raise drained_error(head.manifest.id)
        name, state = operator_of(head.manifest, operator)
        if state.rebuilding is not None or state.resumes:
            raise not_all_back(operator=name)
        plan = with_bounds(plan_from(name, state, values=False), state)
        if isinstance(plan, OverlapPlan):
            raise UsageError(
                "a join by lifetimes cannot be edited: of its rows it keeps what lives on, and the end of an edge "
                "finds its start there",
                code="window-edit",
                operator=name,
            )
        if isinstance(plan, JoinPlan | SessionJoinPlan) and side is None:
            raise UsageError("a join is edited by side: name one, side=", code="sides", sides=SIDES)
        if isinstance(plan, WindowPlan) and side is not None:
            raise UsageError("only joins have sides: remove side=", code="sides", found=side)
        if not isinstance(plan, WindowPlan | JoinPlan | SessionJoinPlan):
            raise UsageError("this operator has no windows with results", code="query-windows", operator=name)
        if not set(plan.tables) <= {declared_table(spec) for spec in state.tables}:
            raise UsageError(
                "an earlier version has written this state, in other tables: start the job once, then edit",
                code="window-edit",
                operator=name,
            )
        return cls(checkpoint, head, name, state, plan, side, force)

    def views(self, keys: Mapping[str, pa.Scalar]) -> Iterator[tuple[int, StateView]]:
        """The state partitions that may have windows, or rows, with these values in their key, by number."""
        for number in partitions_of(self.any_plan.partition_by, keys, len(self.state.states)):
            with self._open(number) as view:
                yield number, view

    def opened(self, stack: ExitStack, keys: Mapping[str, pa.Scalar]) -> dict[int, StateView]:
        """The same, all open at once until the ``stack`` is closed."""
        numbers = partitions_of(self.any_plan.partition_by, keys, len(self.state.states))
        return {number: stack.enter_context(self._open(number)) for number in numbers}

    def _open(self, number: int) -> AbstractContextManager[StateView]:
        return open_store(Parquet(), self.checkpoint.objects, "", self.state.tables, self.state.states[number])

    def side_row(self, views: Iterable[StateView], window: SideSpan, *, is_whole: bool) -> dict[str, Any] | None:
        """A window of a side of a join as plain values; the ``is_whole`` side where it has no windows."""
        plan, first = self.sided, self.first_offsets.get(window.side)
        kind = plan.joined.windows_of(window.side, first) if isinstance(plan, JoinPlan) else None
        start = None if is_whole else window.start
        row = side_window(kind, plan.stores[window.side], views, start, window.key)
        return None if row is None else plain_values(row)[0]

    def row(self, view: StateView, window_id: WindowId) -> dict[str, Any] | None:
        """A window as plain values, without results that functions compute of its messages."""
        values = [
            aggregate.name
            for aggregate in self.plan.aggregates
            if not isinstance(aggregate, FromMessages) and aggregate.state
        ]
        window_row = get_window(self.plan, view, self.state.watermark_us, window_id, values)
        return None if window_row is None else plain_values(window_row)[0]


@dataclass(frozen=True, repr=False, eq=False)
class EditPlan(RootPlan):
    """Windows that are put or removed: ``windows`` of them, with so many ``messages``. ``before`` and ``after``: the
    one that is put or deleted. ``timed``: whether ``bounds`` are times.
    """

    editable: Editable
    kind: EditKind
    bounds: WindowBounds
    keys: dict[str, Any]
    changes: dict[int, ChangeSet] = field(default_factory=dict)
    windows: int = 0
    messages: int = 0
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    nothing: str = ""
    done: bool = False
    timed: bool = True

    @classmethod
    def _of_session_put(cls, editable: Editable, side: str, window: _Span, key: Any, content: WindowContent) -> Self:
        """The plan of another end of a session of a join."""
        if not content.empty:
            raise UsageError(
                "windows of joins have no results, and count the rows that they hold: only an end= can be put",
                code="window-value",
            )
        start, end = window
        session = window_of(editable.sided, side, editable.first_offsets.get(side), start, None, key)
        if end is None:
            raise UsageError("a session is put with another end: end=", code="window-bounds")
        watermark_us, end_us = editable.state.watermark_us, moment_us(end)
        return cls._of_side(
            editable,
            "put",
            session,
            lambda plan, view: put_session(plan, view, watermark_us, session, end_us),
            is_whole=False,
        )

    @classmethod
    def _of_side(
        cls, editable: Editable, kind: EditKind, span: SideSpan, edit: _SideEdit, *, is_whole: bool | None = None
    ) -> Self:
        """The plan of an edit of a side of a join. ``is_whole``: whether it is of all of a side without windows; None
        for what is of no window.
        """
        plan, bounds = editable.sided, WindowBounds(span.start, span.end)
        is_time = plan.stores[span.side].position == MESSAGE_TIME
        edit_plan = cls(editable, kind, bounds, _plain(span.keys), timed=is_time)
        with ExitStack() as stack, of_manifest(editable.name):
            views, states = editable.opened(stack, span.keys), list[StateView]()
            for number, view in views.items():
                result, state = edit(plan, view), OverlayView(view, plan.tables)
                state.apply(result.changes)
                states.append(state)
                edit_plan = edit_plan._with(number, result)
            if is_whole is not None:
                before = editable.side_row(views.values(), span, is_whole=is_whole)
                after = editable.side_row(states, span, is_whole=is_whole)
                edit_plan = replace(edit_plan, before=before, after=after, windows=int(before is not None))
        return edit_plan._or_nothing("no row of this side lies there: there is nothing to retire")

    @classmethod
    def of_put(cls, editable: Editable, window: _Span, key: Any, content: WindowContent) -> Self:
        """Put ``content`` into the window with this start and end; of a side of a join put the end of the session
        that starts then. Raises as `put_window` and `put_session`.
        """
        if editable.side is not None:
            return cls._of_session_put(editable, editable.side, window, key, content)
        content.check_given()
        window_id = window_id_of(editable.plan, *window, key)
        mark, clock = editable.state.watermark_us, editable.head.manifest.processing_us or 0
        return cls._of_one(
            editable, "put", window_id, lambda plan, view: put_window(plan, view, mark, clock, window_id, content)
        )

    @classmethod
    def of_delete(cls, editable: Editable, window: _Span, key: Any) -> Self:
        """Remove the window with this start and end; of a side of a join retire its rows. Raises as `delete_window`
        and `delete_side_window`.
        """
        if editable.side is not None:
            first, watermark_us = editable.first_offsets.get(editable.side), editable.state.watermark_us
            span = window_of(editable.sided, editable.side, first, *window, key)
            return cls._of_side(
                editable,
                "delete",
                span,
                lambda plan, view: delete_side_window(plan, view, watermark_us, first, span),
                is_whole=window[0] is None,
            )
        window_id, mark = window_id_of(editable.plan, *window, key), editable.state.watermark_us
        return cls._of_one(
            editable, "delete", window_id, lambda plan, view: delete_window(plan, view, mark, window_id)
        )

    @classmethod
    def of_retire(cls, editable: Editable, span: _Span, key: Any = None) -> Self:
        """Remove the windows that lie in the span, with their messages; of a side of a join retire the rows that lie
        there. Raises as `retire_windows` and `retire_rows`, and `UsageError` (``window-bounds``) for a range
        without a start or an end.
        """
        first, last = span
        if first is None or last is None:
            raise UsageError("a range to retire has a start= and an end=", code="window-bounds")
        if editable.side is not None:
            rows, watermark_us = span_of(editable.sided, editable.side, first, last, key), editable.state.watermark_us
            return cls._of_side(
                editable, "retire", rows, lambda plan, view: retire_rows(plan, view, watermark_us, rows)
            )
        request, mark = asked_for(editable.plan, *span, key), editable.state.watermark_us
        start, end = expect(request.start, "a start is given"), expect(request.end, "an end is given")
        is_time = pa.types.is_timestamp(editable.plan.bound_type)
        plan = cls(editable, "retire", WindowBounds(start, end), _plain(request.keys), timed=is_time)
        for number, view in editable.views(request.keys):
            with of_manifest(editable.name):
                result = retire_windows(editable.plan, view, mark, start, end, request.keys)
            plan = plan._with(number, result)
        return plan._or_nothing("no window and no message lies there: there is nothing to retire")

    @classmethod
    def _of_one(cls, editable: Editable, kind: EditKind, window_id: WindowId, edit: _Edit) -> Self:
        """The plan of an edit of one window."""
        plan = cls(editable, kind, WindowBounds(window_id.start, window_id.start), _plain(window_id.keys))
        for number, view in editable.views(window_id.keys):
            with of_manifest(editable.name):
                result, state = edit(editable.plan, view), OverlayView(view, editable.plan.tables)
                before = editable.row(view, window_id)
                state.apply(result.changes)
                after = editable.row(state, window_id)
            plan = replace(plan._with(number, result), before=before, after=after)
        return plan._or_nothing("there is no such window: there is nothing to delete")

    def _with(self, number: int, result: Edited) -> Self:
        """With the changes of one more state partition."""
        changes = {**self.changes, number: result.changes} if result.changes else self.changes
        windows, messages = self.windows + result.windows, self.messages + result.messages
        return replace(self, changes=changes, windows=windows, messages=messages)

    def _or_nothing(self, reason: str) -> Self:
        return self if self.windows or self.messages else replace(self, nothing=reason)

    @property
    def id(self) -> int:
        """The checkpoint that the edit makes."""
        return self.editable.head.manifest.id + 1

    def execute(self) -> Self:
        """Publish it. Raises `UsageError` (``running``) while a driver runs the job, unless with ``force``, which
        fences it; `ConflictError` or `FencedError` if another checkpoint was published since this was planned.
        Nothing was published then.
        """
        if self.nothing:
            return self
        editable, checkpoint = self.editable, self.editable.checkpoint
        was = editable.head.manifest
        check_idle(checkpoint, editable.force)
        checkpoint.check_unmoved(was.id)
        answers = {number: self._written(number, changes) for number, changes in self.changes.items()}
        manifest = successor(
            editable.head,
            "edit",
            checkpoint.writer,
            now_us(),
            operators={**was.operators, editable.name: editable.state.stepped(answers, {})},
            needs=grown_needs(was.needs, ("edited-windows/1",)),
            delivered=delivered(checkpoint, was),
        )
        checkpoint.publish(manifest)
        return replace(self, done=True)

    def _written(self, number: int, changes: ChangeSet) -> PartitionState:
        """A state partition with the changes in files. Which windows are due next, its next step finds out."""
        editable, states = self.editable, self.editable.state.states
        log = PartitionLog(
            editable.checkpoint.objects,
            editable.state.tables,
            _UNFOLDED,
            editable.name,
            number,
            len(states),
            uuid.uuid4().hex,
            separate_tables=editable.any_plan.message_tables,
        )
        state = log.append(states[number], changes, self.id)
        return msgspec.structs.replace(state, due_mark=None, due_us=states[number].due_us)

    def as_dict(self) -> dict[str, Any]:
        return {
            "edit": self.kind,
            "operator": self.editable.name,
            **({} if self.editable.side is None else {"side": self.editable.side}),
            "checkpoint": self.id,
            "key": {name: str(value) for name, value in self.keys.items()},
            "windows": self.windows,
            "messages": self.messages,
            "before": self.before,
            "after": self.after,
            "done": self.done,
        }

    def facts(self, limit: int = LISTED) -> Iterator[Fact]:
        is_done, unit = self.done, BoundUnit(self.timed)
        key_text = " and ".join(f"{name}={value}" for name, value in self.keys.items())
        row = self.after or self.before
        bounds = f"{row[START]} to {row[END]}" if row is not None else unit.texts([self.bounds])
        verbs = {"put": "put", "delete": "deleted", "retire": "retired"} if is_done else {}
        yield verbs.get(self.kind, f"to {self.kind}"), bounds + (f" of {key_text}" if key_text else "")
        yield "operator", self.editable.name
        if self.editable.side is not None:
            yield "side", self.editable.side
        if self.kind == "put":
            yield "before", "no such window" if self.before is None else self._content_text(self.before)
        if self.kind == "put" and self.after is not None:
            yield "after", self._content_text(self.after)
        if self.kind != "put":
            windows = f"{pluralize(self.windows, 'window')}, " if self.windows or self.editable.side is None else ""
            yield "removed" if is_done else "to remove", windows + pluralize(self.messages, "message")
        yield "as checkpoint", f"{self.id}, of the kind edit"

    def _content_text(self, row: dict[str, Any]) -> str:
        """A window without its bounds and key, for people; of a join with its end, which is what can be put."""
        left_out = (START, *self.keys) if self.editable.side is not None else (START, END, *self.keys)
        return values_text({name: value for name, value in row.items() if name not in left_out})


def _plain(keys: Mapping[str, pa.Scalar]) -> dict[str, Any]:
    return {name: value.as_py() for name, value in keys.items()}
