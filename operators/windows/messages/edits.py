"""Edits of single windows: one is put, or some are removed with the messages that no other window holds. Pure.

A window lies in one of two places (see `tables`): in ``groups`` once it has fired or is looked at early, before that
in parts. A tumbling window is one part, and a session is a chain of parts that nothing else is in, so both can be
replaced: a session by a group, as what late events have begun is one. The slices of windows that overlap are shared
with their neighbours: such a window can be edited once the watermark has passed its end. Metadata and messages change
with the window, so what holds for them (each stored window counts the messages that it has taken, a message is kept
while a window holds it) holds after an edit too.

An edit emits and retracts nothing. A late event of a window that was removed begins it anew, while the window accepts
any. Source: ``getWindow``, ``putWindow``, ``delWindow`` and ``retire`` of the Samza SQL window operator design
(SAMZA-552).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.aggregates.aggregate import BoundAggregate, comparables
from tidestate.operators.describe.windows import Global, Rolling, Sliding
from tidestate.operators.progress.progress import Context
from tidestate.operators.progress.watermarks import BEGINNING_US
from tidestate.operators.windows.assignment import FIRST_US, LAST_US
from tidestate.operators.windows.gather import fresh_groups
from tidestate.operators.windows.messages.kept_windows import kept_schema, kept_windows
from tidestate.operators.windows.messages.tables import MessageWindows, known_as_rejected
from tidestate.operators.windows.messages.window_metadata import get_sessions, get_windows
from tidestate.operators.windows.names import ELEMENTS, END, ENDS, GROUPS, PARTS, SLICE_END, START
from tidestate.operators.windows.sessions import holding_window
from tidestate.operators.windows.slice_previews import windows_wait
from tidestate.operators.windows.stored_windows import (
    Asked,
    asked_for,
    overlapping,
    rows_with,
    stored_groups,
    with_keys,
)
from tidestate.operators.windows.tables import GroupTables, column_numbers, with_columns
from tidestate.operators.windows.tracked import TOLD, TrackedOffsets
from tidestate.statestore.arrays import Numbers, Values
from tidestate.statestore.durations import Moment
from tidestate.statestore.errors import UsageError, expect
from tidestate.statestore.messages.reads import get_messages
from tidestate.statestore.messages.retire import retire
from tidestate.statestore.spec.changes import ChangeSet, TableChanges
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.table.overlay import OverlayView
from tidestate.statestore.table.sorting import each_once

_MOST = 2**63 - 1


@dataclass(frozen=True)
class WindowId:
    """Which window: its bounds, and a value for each column of its key. ``end`` is None where the start is enough."""

    start: int
    end: int | None
    keys: Mapping[str, pa.Scalar]


@dataclass(frozen=True)
class WindowContent:
    """What is put into a window; None is what it has already. ``events``: how many it has taken; ``values``: results
    by name; ``offsets``: the first and the last offset of each origin.
    """

    events: int | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    offsets: Mapping[Any, tuple[int, int]] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.values, Mapping):
            raise UsageError(
                "values= has a result for each name, such as {'total': 40}",
                code="window-value",
                found=type(self.values).__name__,
            )

    @property
    def empty(self) -> bool:
        """Whether it says nothing that could be put."""
        return self.events is None and not self.values and self.offsets is None

    def check_given(self) -> None:
        """Raise `UsageError` (``window-value``) where nothing is to be put."""
        if self.empty:
            raise UsageError("nothing is to be put: give events=, values= or offsets=", code="window-value")


@dataclass(frozen=True)
class Edited:
    """The changes of a state partition, and how many windows and messages they concern."""

    changes: ChangeSet
    windows: int = 0
    messages: int = 0


def window_id_of(plan: GroupTables, start: Moment | None, end: Moment | None = None, key: Any = None) -> WindowId:
    """The window that starts there, of this key; the global window needs no start. Raises `UsageError`."""
    asked = asked_for(plan, start, end, key)
    if lacking := [name for name in plan.input.key_names if name not in asked.keys or not asked.keys[name].is_valid]:
        raise UsageError(
            "one window is asked for by its whole key, without nulls: key=", code="window-key", columns=lacking
        )
    if isinstance(plan.kind, Global):
        return WindowId(FIRST_US, LAST_US, asked.keys)
    if asked.start is None:
        raise UsageError("one window is asked for by its start: start=", code="window-bounds")
    if isinstance(plan.kind, Sliding):
        return WindowId(asked.start, sliding_end(plan.kind, asked.start, asked.end), asked.keys)
    return WindowId(asked.start, asked.end, asked.keys)


def sliding_end(kind: Sliding, start: int, given: int | None) -> int:
    """The end of a window of a fixed length. Raises `UsageError` where none has these bounds."""
    end = start + kind.size
    if (start - kind.shift) % kind.slide or given not in (None, end) or (kind.by_offset and start < kind.shift):
        raise UsageError(
            "no window has these bounds: give the start of one; its end follows from its length",
            code="window-bounds",
            start=start,
            end=given,
            nearest=(start - kind.shift) // kind.slide * kind.slide + kind.shift,
        )
    return end


def get_window(
    plan: GroupTables,
    view: StateView,
    watermark_us: int | None,
    window_id: WindowId,
    values: Sequence[str] | None = None,
) -> pa.Table | None:
    """One window, as a row of `kept_windows`; None where there is none. Raises `UsageError` (``window-bounds``) where
    several start there.
    """
    asked = Asked(window_id.start, window_id.start, window_id.keys, None if values is None else tuple(values))
    found = pa.concat_tables(
        [
            kept_schema(plan, asked).empty_table(),
            *(_exact(rows, window_id) for rows in kept_windows(plan, view, watermark_us, asked)),
        ]
    )
    if found.num_rows > 1:
        raise UsageError(
            "several windows start there: give the end of the one you mean, end=",
            code="window-bounds",
            ends=[str(end) for end in found[END].slice(0, 3).to_pylist()],
        )
    return found if found.num_rows else None


def _exact(rows: pa.Table, window_id: WindowId) -> pa.Table:
    """The rows of this window."""
    same = column_numbers(rows, START) == window_id.start
    if window_id.end is not None:
        same &= column_numbers(rows, END) == window_id.end
    return rows.filter(pa.array(same))


def delete_window(plan: GroupTables, view: StateView, watermark_us: int | None, window_id: WindowId) -> Edited:
    """Remove one window, with the messages that no other one holds. Raises `UsageError` (``window-waits``)."""
    plan, watermark = _editable(plan, view), _mark(watermark_us)
    windows = _exact(
        _windows(plan, view, watermark, Asked(window_id.start, window_id.start, window_id.keys)), window_id
    )
    return _removed(plan, view, watermark, windows, windows, window_id.keys)


def retire_windows(
    plan: GroupTables, view: StateView, watermark_us: int | None, start: int, end: int, keys: Mapping[str, pa.Scalar]
) -> Edited:
    """Remove the windows that lie in ``[start, end)``, of keys with these values, and the messages there that no
    other window holds. Raises `UsageError` (``window-waits``).
    """
    plan, watermark = _editable(plan, view), _mark(watermark_us)
    windows = _windows(plan, view, watermark, Asked(start, end, keys))
    inside = (column_numbers(windows, START) >= start) & (column_numbers(windows, END) <= end)
    span = pa.table({START: pa.array([start]), END: pa.array([end])})
    return _removed(plan, view, watermark, windows.filter(pa.array(inside)), span, keys)


def _mark(watermark_us: int | None) -> int:
    return BEGINNING_US if watermark_us is None else watermark_us


def not_all_back(**context: str) -> UsageError:
    """The error for windows, or rows, that cannot be edited yet."""
    return UsageError(
        "messages were lost and are not all back: rebuild them, or give up on them, before an edit",
        code="rebuilding",
        **context,
    )


def _editable(plan: GroupTables, view: StateView) -> GroupTables:
    """The plan as of this state. Raises `UsageError` for windows that cannot be edited."""
    if plan.by_number or plan.touching or isinstance(plan.kind, Rolling):
        raise UsageError(
            "windows of a number of messages, by lifetimes, and rolling ones cannot be edited: what they hold "
            "follows from all rows of their key",
            code="window-edit",
        )
    if isinstance(plan, MessageWindows):
        if plan.loss is not None:
            raise not_all_back()
        return plan.within(view)
    return plan


def _windows(plan: GroupTables, view: StateView, watermark: int, asked: Asked) -> pa.Table:
    """Key and bounds of the stored windows that overlap what is asked for, each once: by their state, or by metadata
    alone.
    """
    found = [plan.bare.no_rows, *map(plan.bare.conform, stored_groups(plan, view, watermark, asked))]
    if isinstance(plan, MessageWindows):
        below = with_keys(view, plan.tables, asked.keys) if asked.keys else view
        found += [plan.bare.conform(plan.keyed(rows)) for rows in below[plan.metadata.windows.name].scan()]
    return each_once(overlapping(pa.concat_tables(found), asked))


def _removed(
    plan: GroupTables,
    view: StateView,
    watermark: int,
    windows: pa.Table,
    spans: pa.Table,
    keys: Mapping[str, pa.Scalar],
) -> Edited:
    """Without these windows, and the messages of ``spans`` that no other one holds."""
    _check_apart(plan, view, watermark, column_numbers(windows, END))
    state, retired = OverlayView(view, plan.tables), 0
    if windows.num_rows:
        state.apply(_without(plan, state, watermark, windows))
        state.apply(_without_metadata(plan, state, windows))
    if isinstance(plan, MessageWindows) and plan.messages is not None:
        for start, end in zip(
            column_numbers(spans, START).tolist(), column_numbers(spans, END).tolist(), strict=True
        ):
            retired += _retire_messages(plan, state, watermark, start, end, keys)
    return Edited(state.changes(), windows.num_rows, retired)


def _check_apart(plan: GroupTables, view: StateView, watermark: int, ends: Numbers) -> None:
    """Raise `UsageError` (``window-waits``) for windows that the watermark has not reached, and whose state is not
    theirs alone.
    """
    waiting = ends[ends > watermark]
    apart = not plan.has_parts or plan.in_cells or plan.slices.tumbles or not (plan.lazy or windows_wait(plan, view))
    if not len(waiting) or (apart and not plan.in_order):
        return
    raise UsageError(
        "the watermark has not reached the end of this window, and until then "
        + ("rows are held for their order" if plan.in_order else "it shares its slices with windows that overlap it")
        + ": edit it once it has fired",
        code="window-waits",
        ends=int(waiting.max()),
        watermark=None if watermark == BEGINNING_US else watermark,
    )


def _without(plan: GroupTables, view: StateView, watermark: int, windows: pa.Table) -> ChangeSet:
    """Changes that delete the state of these windows: groups, and parts."""
    if not plan.sessions:
        changes = {GROUPS: TableChanges(delete=plan.groups.conform_keys(windows))}
        if plan.has_parts and plan.slices.tumbles:
            ahead = windows.filter(pa.array(column_numbers(windows, END) > watermark))
            waiting = ahead.append_column(SLICE_END, ahead[END])
            changes[PARTS] = TableChanges(delete=plan.parts.conform_keys(waiting))
        return changes
    groups = _inside(plan, windows, view[GROUPS].ranges(each_once(windows.select(plan.group_keys))).rows)
    changes = {
        GROUPS: TableChanges(delete=plan.groups.conform_keys(groups)),
        ENDS: TableChanges(delete=plan.ends.conform_keys(groups)),
    }
    if plan.in_cells:
        parts = _inside(plan, windows, pa.concat_tables([plan.parts.schema.empty_table(), *view[PARTS].scan()]))
        changes[PARTS] = TableChanges(delete=plan.parts.conform_keys(parts))
    return changes


def _inside(plan: GroupTables, windows: pa.Table, rows: pa.Table) -> pa.Table:
    """The rows that start in one of these windows."""
    return rows.filter(pa.array(holding_window(plan.group_keys, windows, rows, column_numbers(rows, START)) >= 0))


def _without_metadata(plan: GroupTables, view: StateView, windows: pa.Table) -> ChangeSet:
    """Changes that delete the metadata of these windows. What they have refused stays known."""
    if not isinstance(plan, MessageWindows):
        return {}
    tables, names = plan.metadata, plan.metadata.windows.key_names
    rows = plan.keyed(windows).select([*plan.group_keys, START, END])
    changes = {tables.windows.name: TableChanges(delete=tables.windows.conform_keys(rows))}
    if tables.sessions:
        changes[tables.ends.name] = TableChanges(delete=tables.ends.conform_keys(rows))
    if tables.ordered:
        offsets = view[tables.offsets.name].ranges(rows.select(names)).rows
        changes[tables.offsets.name] = TableChanges(delete=tables.offsets.conform_keys(offsets))
    return changes


def _retire_messages(
    plan: MessageWindows, state: OverlayView, watermark: int, start: int, end: int, keys: Mapping[str, pa.Scalar]
) -> int:
    """Delete the messages of ``[start, end)`` that no window holds. They are known as rejected from then on, so that
    neither a replay nor a rebuild brings them back; reprocessed, they take part again.
    """
    tables = expect(plan.messages, "messages are retired where they are kept")
    found = rows_with(keys, get_messages(tables, state, (start,), (end - 1,)))
    rows = plan.keyed(found)
    if plan.metadata.sessions:
        asked = each_once(rows.select(plan.group_keys))
        bounds = [pa.array(np.full(asked.num_rows, bound)) for bound in (start, end)]
        windows = get_sessions(
            plan.metadata, state, asked.append_column("start", bounds[0]).append_column("end", bounds[1])
        ).rows
    else:
        windows = get_windows(plan.metadata, state, start, end)
    gone = found.filter(
        pa.array(holding_window(plan.group_keys, windows, rows, column_numbers(rows, tables.position)) < 0)
    )
    if gone.num_rows:
        context = Context.between(watermark, watermark)
        times = gone[tables.position].cast(pa.int64())
        known = known_as_rejected(plan, state, gone, times, context)
        state.apply({plan.identities.seen.name: known})
        state.apply(retire(tables, state, gone))
    return gone.num_rows


def put_window(
    plan: GroupTables,
    view: StateView,
    watermark_us: int | None,
    now_us: int,
    window_id: WindowId,
    content: WindowContent,
) -> Edited:
    """Put this content into a window: into that which is there, or a new one.

    Raises `UsageError`: ``window-value`` for what cannot be put, ``window-bounds`` for a session that overlaps
    another one, ``window-over`` for a window that has expired, and ``window-waits``.
    """
    plan, watermark = _editable(plan, view), _mark(watermark_us)
    if plan.input.signed:
        raise UsageError("windows of rows with retractions cannot be put", code="window-edit")
    content = _counted(plan, content)
    stored = _stored(plan, view, watermark, window_id)
    row = _new_window(plan, watermark, now_us, window_id, content) if stored is None else stored
    if content.events is not None:
        row = with_columns(row, {ELEMENTS: pa.array([content.events])})
    for name, value in content.values.items():
        bound = _puttable(plan, name)
        row = with_columns(row, {bound.state[0].name: _state_of(bound, value)})
    if plan.tracked is not None:
        row = with_columns(row, _tracked_offsets(plan.tracked, row, stored, content))
    bounds = row.select([*plan.group_keys, START, END])
    ends = column_numbers(bounds, END)
    _check_apart(plan, view, watermark, ends)
    state = OverlayView(view, plan.tables)
    waits = (plan.lazy or windows_wait(plan, view)) and int(ends[0]) > watermark
    in_parts = waits and not plan.sessions and not _is_grouped(plan, view, bounds)
    state.apply(_without(plan, state, watermark, bounds))
    state.apply(_placed(plan, row, in_parts=in_parts))
    state.apply(_metadata_of(plan, state, bounds, content, is_new=stored is None))
    if _stored(plan, state, watermark, WindowId(window_id.start, int(ends[0]), window_id.keys)) is None or (
        watermark != BEGINNING_US and int(ends[0]) <= plan.expired_at(watermark)
    ):
        raise UsageError(
            "this window is over: it has expired, so nothing can be put into it", code="window-over", end=int(ends[0])
        )
    return Edited(state.changes(), 1)


def _counted(plan: GroupTables, content: WindowContent) -> WindowContent:
    """With a count of all events, the number of events and that result are the same. Raises `UsageError`."""
    name = next(
        (bound.name for bound in plan.aggregates if bound.state and bound.state[0].name == plan.counted_by), ""
    )
    events, values = content.events, dict(content.values)
    if name and name in values and events is None:
        _state_of(_puttable(plan, name), values[name])
        events = values[name]
    if name and events is not None and values.setdefault(name, events) != events:
        raise UsageError(
            "this result counts the events of the window: give both the same number, or one of them",
            code="window-value",
            result=name,
            events=events,
        )
    if events is not None and (not isinstance(events, int) or isinstance(events, bool) or not 1 <= events <= _MOST):
        raise UsageError(
            "a window has taken a whole number of events, 1 or more", code="window-value", found=str(events)[:100]
        )
    return WindowContent(events, values, content.offsets)


def _puttable(plan: GroupTables, name: str) -> BoundAggregate:
    """The aggregate of this name. Raises `UsageError` (``window-value``) where its result is not what is stored."""
    known = {bound.name: bound for bound in plan.aggregates}
    if name not in known:
        raise UsageError("the windows have no such result", code="window-value", result=name, results=sorted(known))
    if not known[name].stores_result:
        raise UsageError(
            "this result cannot be put, as more than itself is stored of it, or the messages: only counts, sums, "
            "minima and maxima can",
            code="window-value",
            result=name,
            function=known[name].aggregate.function,
        )
    return known[name]


def _state_of(bound: BoundAggregate, value: Any) -> Values:
    """The state with this result. Raises `UsageError` (``window-value``) for one of another type."""
    try:
        result = pa.array([value], bound.result_type)
        # Arrow cuts 1.5 to a whole number without a word.
        same = value != value or result[0].as_py() == value
        column = comparables(result).cast(bound.state[0].arrow) if same else None
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        column = None
    if column is None or (bound.aggregate.function == "count" and not (value is not None and value >= 0)):
        raise UsageError(
            f"the result {bound.name} is of type {bound.result_type}: give a value of that type",
            code="window-value",
            result=bound.name,
            found=f"{value!r:.100} ({type(value).__name__})",
        )
    return column


def _stored(plan: GroupTables, view: StateView, watermark: int, window_id: WindowId) -> pa.Table | None:
    """A stored window as a row of `GroupTables.whole`; None where there is none. Raises `UsageError`
    (``window-bounds``) for a session that overlaps another one, and where several windows start there.
    """
    asked = Asked(window_id.start, window_id.start if window_id.end is None else window_id.end - 1, window_id.keys)
    found = [plan.as_whole(plan.groups.conform(rows)) for rows in stored_groups(plan, view, watermark, asked)]
    rows = rows_with(window_id.keys, overlapping(pa.concat_tables([plan.whole.no_rows, *found]), asked))
    same = _exact(rows, window_id)
    if same.num_rows > 1 or (plan.sessions and rows.num_rows > same.num_rows):
        raise UsageError(
            "a session must not overlap another one of its key, and keeps its end: delete those that are there"
            if plan.sessions
            else "several windows start there: give the end of the one you mean, end=",
            code="window-bounds",
            there=[f"{row[START]} to {row[END]}" for row in rows.select([START, END]).slice(0, 3).to_pylist()],
        )
    return same if same.num_rows else None


def _new_window(
    plan: GroupTables, watermark: int, now_us: int, window_id: WindowId, content: WindowContent
) -> pa.Table:
    """A window that is not stored yet. Raises `UsageError` where something of it is missing."""
    if (
        window_id.end is None
        or window_id.end <= window_id.start
        or (plan.in_cells and window_id.end - window_id.start < plan.gap)
    ):
        raise UsageError(
            "there is no such window, and a new one needs its end, end=; that of a session is at least the gap after "
            "its start",
            code="window-bounds",
            start=window_id.start,
            end=window_id.end,
        )
    lacking = [bound.name for bound in plan.aggregates if bound.state and bound.name not in content.values]
    for name in lacking:
        _puttable(plan, name)
    if lacking or content.events is None:
        raise UsageError(
            "there is no such window, and a new one needs the number of its events, and all of its results: events=, "
            "values=",
            code="window-value",
            lacking=lacking if content.events is not None else ["events", *lacking],
        )
    columns: dict[str, pa.Array] = {START: pa.array([window_id.start]), END: pa.array([window_id.end])}
    columns |= {name: pa.array([value.as_py()], value.type) for name, value in window_id.keys.items()}
    columns |= {ELEMENTS: pa.array([content.events])}
    row, kinds = plan.keyed(pa.table(columns)), plan.arriving.schema
    arriving = pa.table(
        [row[one.name].cast(one.type) if one.name in row.column_names else pa.nulls(1, one.type) for one in kinds],
        schema=kinds,
    )
    return fresh_groups(plan, arriving, Context.between(watermark, watermark, now_us, now_us))


def _is_grouped(plan: GroupTables, view: StateView, bounds: pa.Table) -> bool:
    """Whether something of this window, which is no session, is in groups already."""
    return bool(view[GROUPS].lookup(plan.groups.conform_keys(bounds)).found[0].as_py())


def _placed(plan: GroupTables, row: pa.Table, *, in_parts: bool) -> ChangeSet:
    """Changes that put a window into its place: a part, or a group.

    A session is always a group, as those that late events have begun: a part reaches less than the gap beyond the
    watermark that it is due with, and what ends later is not looked at for the parts before it.
    """
    if in_parts:
        return {PARTS: TableChanges(put=plan.parts.conform(row.append_column(SLICE_END, row[END])))}
    changes = {GROUPS: TableChanges(put=plan.groups.conform(row))}
    if plan.sessions:
        changes[ENDS] = TableChanges(put=plan.ends.conform(row))
    return changes


def _tracked_offsets(
    tracked: TrackedOffsets, row: pa.Table, stored: pa.Table | None, content: WindowContent
) -> dict[str, pa.Array]:
    """The columns of offsets of the window ``row``, where windows have them as columns, after ``content`` is put: of
    what was ``stored`` all messages are still told of, if they were.
    """
    events = int(column_numbers(row, ELEMENTS)[0])
    if content.offsets is not None:
        offsets = _offset_columns(tracked.origin_type, content.offsets)
        return tracked.of_window(events, *offsets)
    if stored is None:
        return {}
    told = int(pc.fill_null(stored[TOLD], 0)[0].as_py()) + events - int(column_numbers(stored, ELEMENTS)[0])
    return {TOLD: pa.array([told], pa.int64())}


def _metadata_of(
    plan: GroupTables, view: StateView, bounds: pa.Table, content: WindowContent, *, is_new: bool
) -> ChangeSet:
    """Changes that put the metadata of a window. Raises `UsageError` (``window-value``)."""
    if not isinstance(plan, MessageWindows) or (content.offsets is not None and not plan.metadata.ordered):
        if content.offsets is None or plan.tracked is not None:
            return {}
        raise UsageError(
            "the windows of this operator have no offsets: leave out offsets=, or have them stored, "
            ".window_offsets()",
            code="window-value",
        )
    tables, changes = plan.metadata, {}
    if content.events is not None:
        counted = bounds.append_column("count", pa.array([content.events]))
        changes[tables.windows.name] = TableChanges(put=tables.windows.conform(counted))
    if tables.sessions and is_new:
        changes[tables.ends.name] = TableChanges(put=tables.ends.conform(bounds))
    if content.offsets is not None:
        there = view[tables.offsets.name].ranges(bounds.select(tables.windows.key_names)).rows
        put = tables.offsets.conform(_offset_rows(plan, bounds, content.offsets))
        changes[tables.offsets.name] = TableChanges(delete=tables.offsets.conform_keys(there), put=put)
    return changes


def _offset_rows(plan: MessageWindows, bounds: pa.Table, offsets: Mapping[Any, tuple[int, int]]) -> pa.Table:
    """A row for each origin, with its first and last offset."""
    columns = _offset_columns(plan.metadata.offsets.schema.field("origin").type, offsets)
    rows = bounds.take(pa.array(np.zeros(len(offsets), np.int64)))
    for name, column in zip(("origin", "start_offset", "last_offset"), columns, strict=True):
        rows = rows.append_column(name, column)
    return rows


def _offset_columns(kind: pa.DataType, offsets: Mapping[Any, tuple[int, int]]) -> tuple[pa.Array, pa.Array, pa.Array]:
    """The origins, of this type, their first and their last offsets. Raises `UsageError` (``window-value``)."""
    named = not pa.types.is_null(kind)
    try:
        origins = pa.array(list(offsets), kind)
        first, last = (pa.array([pair[end] for pair in offsets.values()], pa.int64()) for end in (0, 1))
        right = len(offsets) > 0 and all(len(pair) == 2 and pair[0] <= pair[1] for pair in offsets.values())
    except (pa.ArrowException, TypeError, ValueError, OverflowError, LookupError, AttributeError):
        right = False
    if not right or (named and origins.null_count) or first.null_count or last.null_count:
        raise UsageError(
            "offsets= has the first and the last offset of each origin, such as {'orders-0': (3, 17)}"
            if named
            else "these messages have no origin, so offsets= has one first and last offset: {None: (3, 17)}",
            code="window-value",
            found=repr(offsets)[:100],
        )
    return origins, first, last
