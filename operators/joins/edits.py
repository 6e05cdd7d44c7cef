"""Edits of a join by hand: rows of a side are retired, and the end of a session is put. Pure.

A join keeps rows; its windows are made up of them, but for sessions, whose bounds are stored. So a window is removed
by retiring its rows, where no other window holds them, and of its metadata only the end of a session can be put.

A retired row emits nothing more, neither in pairs nor alone: it is in no table any more that a step reads (the rows
of its side, those that wait for a partner, those emitted alone, pairs that are held). What it was emitted in is not
taken back, and a row of the other side that it has met counts as matched. It stays known, so no replay brings it
back, and where lost rows can be put back it counts as given up. Source: ``getWindow``, ``putWindow``, ``delWindow``
and ``retire`` of the join window operator in the Samza SQL window operator design (SAMZA-552).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.describe.sides import RIGHT, SIDE, SIDES
from tidestate.operators.describe.windows import END, START, Sliding
from tidestate.operators.joins.names import FIRST, HELD_PAIRS, PHASE, SECOND, SESSIONS
from tidestate.operators.joins.pair_tables import PairTables
from tidestate.operators.joins.session_pairs import sessions_of_keys
from tidestate.operators.joins.session_tables import SessionJoinTables
from tidestate.operators.joins.tables import JoinTables
from tidestate.operators.plan.held_rows import AHEAD
from tidestate.operators.progress.watermarks import BEGINNING_US
from tidestate.operators.windows.messages.edits import Edited, not_all_back, sliding_end
from tidestate.operators.windows.names import NO_KEY
from tidestate.operators.windows.sessions import holding_window
from tidestate.operators.windows.stored_windows import key_values, rows_with
from tidestate.statestore.arrays import Flags, flags_at
from tidestate.statestore.durations import Moment, moment_us
from tidestate.statestore.errors import UsageError
from tidestate.statestore.messages.reads import get_messages
from tidestate.statestore.messages.tables import MESSAGE_TIME, OFFSET, ORIGIN
from tidestate.statestore.spec.arrowtypes import positions
from tidestate.statestore.spec.changes import ChangeSet, TableChanges
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.table.overlay import OverlayView
from tidestate.statestore.table.sorting import among

_FAR = 2**62
RowKeys = Mapping[str, pa.Scalar]
"""Values of key columns, by their names in tables."""


@dataclass(frozen=True)
class SideSpan:
    """Positions of a side, ``[start, end)``: of all its rows, or of those with these values in their ``keys``."""

    side: str
    start: int
    end: int
    keys: RowKeys

    @property
    def key(self) -> tuple[Any, ...] | None:
        """The values of the key, of a window its whole key; None where there is none."""
        return tuple(value.as_py() for value in self.keys.values()) or None


def span_of(plan: JoinTables, side: str, start: Moment, end: Moment, key: Any = None) -> SideSpan:
    """The positions that are asked for. ``key``: a value, a tuple if it has several columns, or some of its columns
    with their values. Raises `UsageError` (``sides``, ``window-key``).
    """
    check_side(side)
    return SideSpan(side, _place(start), _place(end), row_keys(plan, plan.never_null, key))


def check_side(side: str) -> None:
    """Raise `UsageError` (``sides``) for a name of no side."""
    if side not in SIDES:
        raise UsageError("the join has no such side: choose from those listed", code="sides", sides=SIDES, found=side)


def _place(moment: Moment) -> int:
    return max(-_FAR, min(_FAR, moment_us(moment)))


def row_keys(plan: JoinTables, names: list[str], key: Any) -> RowKeys:
    """The values of these key columns of a join. Raises `UsageError` (``window-key``)."""
    kinds = {name: plan.sides[RIGHT].schema.field(plan.kept[name]).type for name in names}
    values = key_values(key, kinds, "this join has no key")
    return {plan.kept[name]: values[name] for name in names if name in values}


def window_of(
    plan: JoinTables, side: str, first: int | None, start: Moment | None, end: Moment | None = None, key: Any = None
) -> SideSpan:
    """The window of a side that starts there. ``first``: the first offset of the side, if windows start there; the
    ``key`` of sessions is whole. A side without windows of its own has one that starts nowhere and holds everything.

    Raises `UsageError`: ``query-windows`` for a join that has no windows, ``window-bounds``, ``window-key``.
    """
    check_side(side)
    if isinstance(plan, SessionJoinTables):
        names = [field.name for field in plan.input.key]
        keys = row_keys(plan, names, key)
        if len(keys) < len(names) or not all(value.is_valid for value in keys.values()):
            raise UsageError(
                "one window is asked for by its whole key, without nulls: key=", code="window-key", columns=names
            )
        begin = _begin(start)
        return SideSpan(side, begin, begin + 1 if end is None else _place(end), keys)
    if key is not None:
        raise UsageError("the windows of a side have no key: remove key=", code="window-key")
    kind = _windows(plan, side, first)
    if kind is not None:
        begin = _begin(start)
        return SideSpan(side, begin, sliding_end(kind, begin, None if end is None else _place(end)), {})
    if start is not None:
        raise UsageError(
            "this side has one window, which holds everything and starts nowhere: remove start=", code="window-bounds"
        )
    return SideSpan(side, -_FAR, _FAR, {})


def _begin(start: Moment | None) -> int:
    if start is None:
        raise UsageError("one window is asked for by its start: start=", code="window-bounds")
    return _place(start)


def _windows(plan: JoinTables, side: str, first: int | None) -> Sliding | None:
    if isinstance(plan, PairTables):
        return plan.joined.windows_of(side, first)
    raise UsageError("this join has no windows that are edited", code="window-edit")


def retire_rows(plan: JoinTables, view: StateView, watermark_us: int | None, span: SideSpan) -> Edited:
    """Retire the rows of these positions and keys. Of a session join sessions go with their last row. Raises
    `UsageError` (``rebuilding``, ``window-waits``, ``window-edit``); nothing has changed then.
    """
    check_editable(plan)
    _check_taken(plan, view, span)
    return _retired(plan, view, watermark_us, span.side, _rows_of(plan, view, span))


def delete_side_window(
    plan: JoinTables, view: StateView, watermark_us: int | None, first: int | None, window: SideSpan
) -> Edited:
    """Retire the rows of one window. Raises `UsageError` as `retire_rows`, and ``window-edit`` where others hold them
    too.
    """
    kind = None if isinstance(plan, SessionJoinTables) else _windows(plan, window.side, first)
    if kind is not None and kind.shares_events:
        raise UsageError(
            "the rows of this window are in windows that overlap it, too, and the windows of a join are made up of "
            "its rows: retire rows by their positions, retire(…)",
            code="window-edit",
            side=window.side,
        )
    if isinstance(plan, SessionJoinTables):
        session = _session(plan, view, window)
        if session is None:
            return Edited({})
        window = SideSpan(window.side, window.start, int(session[END][0].as_py()), window.keys)
    edited = retire_rows(plan, view, watermark_us, window)
    return Edited(edited.changes, int(edited.messages > 0), edited.messages)


def put_session(plan: JoinTables, view: StateView, watermark_us: int | None, window: SideSpan, end: int) -> Edited:
    """Put the end of a session that has not fired. Raises `UsageError`: ``window-edit`` for windows that have nothing
    to put, ``window-bounds`` where the session would lose a row or overlap another one, or is not there, and
    ``window-over`` for one that has fired, or would at once.
    """
    if not isinstance(plan, SessionJoinTables):
        raise UsageError(
            "the windows of this join are made up of the rows that it keeps, so nothing of them can be put: retire "
            "rows, or add some",
            code="window-edit",
            side=window.side,
        )
    check_editable(plan)
    _check_taken(plan, view, SideSpan(window.side, -_FAR, _FAR, window.keys))
    session = _session(plan, view, window)
    if session is None:
        raise UsageError(
            "there is no such session: its first row begins one", code="window-bounds", start=window.start
        )
    watermark = BEGINNING_US if watermark_us is None else watermark_us
    was = int(session[END][0].as_py())
    if min(was, end) <= watermark:
        raise UsageError(
            "this session has fired, or would at once, and its pairs name its end", code="window-over", end=was
        )
    sessions = _of_key(plan, view, window)
    starts = sessions[START].to_numpy()
    overlapped = (starts != window.start) & (starts < end) & (sessions[END].to_numpy() > window.start)
    times = np.concatenate([positions(rows[MESSAGE_TIME]) for rows in _rows_in(plan, view, session)])
    last = int(times.max(initial=window.start))
    if overlapped.any() or end <= last:
        raise UsageError(
            "a session must hold all its rows, and not overlap another one of its key",
            code="window-bounds",
            end=end,
            last_row=last,
            there=starts[overlapped].tolist()[:3],
        )
    put = session.set_column(session.column_names.index(END), END, pa.array([end], pa.int64()))
    changes = {
        spec.name: TableChanges(delete=spec.conform_keys(session), put=spec.conform(put))
        for spec in (plan.sessions, plan.ends)
    }
    return Edited(changes if end != was else {}, 1)


def check_editable(plan: JoinTables) -> None:
    """Raise `UsageError` (``rebuilding``) while lost rows are missing."""
    if plan.loss is not None or plan.resumes:
        raise not_all_back()


def _check_taken(plan: JoinTables, view: StateView, span: SideSpan) -> None:
    """Raise `UsageError` (``window-waits``) where rows of these positions are held for their order: they are not
    among the rows of their side yet.
    """
    if not plan.holding:
        return
    names = {kept: name for name, kept in plan.kept.items()}
    store = plan.stores[span.side]
    position = MESSAGE_TIME if store.position == MESSAGE_TIME else plan.given(span.side, OFFSET) or MESSAGE_TIME
    keys = {names[name]: value for name, value in span.keys.items()}
    for ahead in view[AHEAD].scan():
        rows = rows_with(keys, ahead.filter(pc.equal(ahead[SIDE], span.side)))
        positions_held = pc.drop_null(rows[position]).cast(pa.int64()).to_numpy()
        if bool(np.any((positions_held >= span.start) & (positions_held < span.end))):
            raise UsageError(
                "rows there are held for their order until the watermark passes them: edit them then",
                code="window-waits",
                side=span.side,
            )


def _rows_of(plan: JoinTables, view: StateView, span: SideSpan) -> pa.Table:
    """The stored rows of these positions and keys."""
    return rows_with(span.keys, get_messages(plan.stores[span.side], view, (span.start,), (span.end - 1,)))


def _retired(plan: JoinTables, view: StateView, watermark_us: int | None, side: str, rows: pa.Table) -> Edited:
    """Without these rows of a side."""
    if not rows.num_rows:
        return Edited({})
    changes: dict[str, TableChanges] = {side: TableChanges(delete=plan.sides[side].conform_keys(rows))}
    if side in plan.gone:
        gone, seen = plan.gone[side], plan.seen(side)
        # Given up: no rebuild asks for them, and no replay has them.
        identities = view[seen.name].lookup(rows.select(seen.key_names))
        changes[gone.name] = TableChanges(put=gone.conform(identities.rows.filter(identities.found)))
    sessions = 0
    if isinstance(plan, PairTables):
        changes |= _without_waiting(plan, view, side, rows)
    elif isinstance(plan, SessionJoinTables):
        emptied = _emptied(plan, view, watermark_us, side, rows, changes)
        sessions = emptied.num_rows
        if sessions:
            for spec in (plan.sessions, plan.ends):
                changes[spec.name] = TableChanges(delete=spec.conform_keys(emptied))
    return Edited(changes, sessions, rows.num_rows)


def _without_waiting(plan: PairTables, view: StateView, side: str, rows: pa.Table) -> ChangeSet:
    """Changes that delete what these rows wait for: a partner, to be taken back, the time at which a pair is due."""
    changes: dict[str, TableChanges] = {}
    names = [*plan.equal_names, MESSAGE_TIME, OFFSET, ORIGIN]
    for spec in (tables[side] for tables in (plan.waiting, plan.alone) if side in tables):
        stored = pa.concat_tables([spec.schema.empty_table(), *view[spec.name].scan()])
        changes[spec.name] = TableChanges(
            delete=spec.conform_keys(stored.filter(pa.array(among(stored, rows, names))))
        )
    if plan.joined.held:
        stored = pa.concat_tables([plan.held.schema.empty_table(), *view[HELD_PAIRS].scan()])
        of_rows = stored.filter(pa.array(_hold(plan, side, stored, rows)))
        changes[HELD_PAIRS] = TableChanges(delete=plan.held.conform_keys(of_rows))
    return changes


def _hold(plan: PairTables, side: str, pairs: pa.Table, rows: pa.Table) -> Flags:
    """Which held pairs have one of these rows of a side: by its key, its offset, and its origin where it has one."""
    first = (pairs[PHASE].to_numpy() == 1) == (side == RIGHT)
    offsets = np.where(first, pairs[FIRST].to_numpy(), pairs[SECOND].to_numpy())
    origin = plan.given(side, ORIGIN)
    names = {name: plan.kept[name] for name in plan.input.key_names} | ({origin: ORIGIN} if origin else {})
    # By numbers, as no column of the input may have a say in the names.
    numbers = [str(number) for number in range(len(names) + 1)]
    of_pairs = pa.table([*(pairs[name] for name in names), pa.array(offsets)], names=numbers)
    return among(of_pairs, rows.select([*names.values(), OFFSET]).rename_columns(numbers), numbers)


def _emptied(
    plan: SessionJoinTables,
    view: StateView,
    watermark_us: int | None,
    side: str,
    rows: pa.Table,
    changes: ChangeSet,
) -> pa.Table:
    """The sessions of these rows of a side that hold no row any more after the ``changes``.

    An outer join says of each row of a session that has fired whether it had a partner, and takes that back by the
    rows that are stored: raises `UsageError` (``window-edit``) for rows of such a session.
    """
    sessions = sessions_of_keys(plan.group_keys, view, SESSIONS, [rows])
    numbers = holding_window(plan.group_keys, sessions, rows, positions(rows[MESSAGE_TIME]))
    sessions = sessions.take(pa.array(np.unique(numbers[numbers >= 0])))
    watermark = BEGINNING_US if watermark_us is None else watermark_us
    if plan.joined.how != "inner" and bool(np.any(sessions[END].to_numpy() <= watermark)):
        raise UsageError(
            "rows of a session that has fired cannot be retired from an outer join: what it has emitted says which "
            "of them had no partner. They go when the session closes",
            code="window-edit",
            side=side,
        )
    after = OverlayView(view, plan.tables)
    after.apply(changes)
    bounds = [sessions[name].cast(plan.bound_type) for name in (START, END)]
    # A session stays while a row of either side is in it.
    left, right = (after[side_name].ranges(sessions.select(plan.group_keys), *bounds) for side_name in SIDES)
    holding = np.concatenate([remaining.request_index.to_numpy() for remaining in (left, right)])
    return sessions.filter(pa.array(~flags_at(sessions.num_rows, holding)))


def _of_key(plan: SessionJoinTables, view: StateView, window: SideSpan) -> pa.Table:
    """All sessions of a key."""
    schema = plan.sides[window.side].schema
    keys = {name: pa.array([value.as_py()], value.type) for name, value in window.keys.items()}
    if NO_KEY in plan.group_keys:
        keys[NO_KEY] = pa.array([0], schema.field(NO_KEY).type)
    return view[SESSIONS].ranges(pa.table({name: keys[name] for name in plan.group_keys})).rows


def _session(plan: SessionJoinTables, view: StateView, window: SideSpan) -> pa.Table | None:
    """The session of a key that starts there; None where there is none."""
    sessions = _of_key(plan, view, window)
    session = sessions.filter(pa.array(sessions[START].to_numpy() == window.start))
    return session if session.num_rows else None


def _rows_in(plan: SessionJoinTables, view: StateView, session: pa.Table) -> list[pa.Table]:
    """The rows of a session, by side."""
    bounds = [session[name].cast(plan.bound_type) for name in (START, END)]
    return [view[side].ranges(session.select(plan.group_keys), *bounds).rows for side in SIDES]
