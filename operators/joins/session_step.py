"""One step of a session join: which pairs are emitted, which retracted, what is kept. Pure.

A session fires when the watermark passes its end: every left row with every right one. A late row inside a session
that has fired adds its own pairs. If a late row moves the session's bounds, or joins several sessions,
what these have emitted is retracted, and the whole fires when the watermark passes its end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from tidestate.operators.describe.sides import LEFT, RIGHT, SIDES
from tidestate.operators.describe.windows import END, START
from tidestate.operators.joins.batch import Admitted
from tidestate.operators.joins.intake import admit, transition
from tidestate.operators.joins.names import EMIT, ENDS, OTHER_SIDE, RETRACT, SESSIONS
from tidestate.operators.joins.session_pairs import matched_places, session_panes
from tidestate.operators.joins.session_tables import SessionJoinTables
from tidestate.operators.plan.dues import keys_within
from tidestate.operators.plan.transition import Transition
from tidestate.operators.progress.progress import Context
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
from tidestate.operators.windows.sessions import merge_sessions
from tidestate.statestore.arrays import Flags, Numbers, flags_at
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.table.sorting import each_once, shared_ranks


@dataclass(frozen=True)
class _Sessions:
    """``stored`` sessions of the keys in question, and the ``windows`` that they and the new rows make.

    Per stored session: the window it is in (``of_stored``), whether it is the ``same``, and whether it has ``fired``.
    Per window: whether it has new rows (``touched``), and whether its end is ``passed``, or it is ``closed``.
    ``of_new``: by side, the window of each new row.
    """

    stored: pa.Table
    windows: pa.Table
    of_stored: Numbers
    of_new: dict[str, Numbers]
    same: Flags
    fired: Flags
    touched: Flags
    passed: Flags
    closed: Flags

    def holding(self, stored: Flags) -> Flags:
        """Windows that hold one of these stored sessions."""
        return flags_at(self.windows.num_rows, self.of_stored[stored])

    @property
    def fires(self) -> Flags:
        """Windows that fire now, and have not fired before."""
        return self.passed & ~self.holding(self.same & self.fired)

    @property
    def grown(self) -> Flags:
        """Windows that have fired before, and have new rows."""
        return self.touched & self.holding(self.same & self.fired)

    @property
    def retracted(self) -> Flags:
        """Stored sessions that have fired and are part of another one now."""
        return self.fired & ~self.same

    @property
    def read(self) -> Flags:
        """Stored sessions whose rows are needed: to be emitted, retracted or deleted."""
        needed: Flags = (self.fires | self.grown | self.closed)[self.of_stored] | self.retracted
        return needed


@dataclass(frozen=True)
class _Chosen:
    """Some ``rows`` of a side, by their ``places``, and the number of the window of each (``of``).

    ``match``: an equal number for rows, of either side, that pair up.
    """

    rows: pa.Table
    places: Numbers
    of: Numbers
    match: Numbers

    def within(self, other: _Chosen) -> _Chosen:
        """The rows with a partner on the other side."""
        return self._where(np.isin(self.match, other.match))

    def without(self, other: _Chosen) -> _Chosen:
        """The rows without a partner on the other side."""
        return self._where(~np.isin(self.match, other.match))

    def _where(self, where: Flags) -> _Chosen:
        return _Chosen(self.rows, self.places[where], self.of[where], self.match[where])


@dataclass(frozen=True)
class _Rows:
    """Rows of one side, stored ones first: the window of each, and the stored session of each (-1: new).

    ``equal``: a number below ``kinds``, equal for rows that may pair up within a session.
    """

    rows: pa.Table
    window: Numbers
    session: Numbers
    equal: Numbers
    kinds: int = 1

    @property
    def new(self) -> Flags:
        """The rows of this batch."""
        return self.session < 0

    def group(self, where: Flags, of: Numbers) -> _Chosen:
        """Some of the rows, by window or by stored session."""
        places = np.flatnonzero(where)
        return _Chosen(self.rows, places, of[places], of[places] * self.kinds + self.equal[places])


def session_step(plan: SessionJoinTables, view: StateView, arriving: pa.Table, context: Context) -> Transition:
    """Add ``arriving`` rows of both sides to the sessions of ``view``."""
    admitted = admit(plan, view, arriving, context)
    sessions = _sessions(plan, view, admitted, context)
    rows = _of_sides(plan, view, sessions, admitted.rows)
    back = np.append(sessions.retracted, False)  # the last one is for new rows
    undone = {side: own.group(back[own.session], own.session) for side, own in rows.items()}
    fired = {side: own.group(sessions.fires[own.window], own.window) for side, own in rows.items()}
    fresh, old, every = (_of_grown(sessions, rows, which) for which in ("new", "old", "all"))
    stored, windows = sessions.stored, sessions.windows
    retracted = [
        _pairs(plan, stored, undone[LEFT], undone[RIGHT], RETRACT),
        *_unmatched(plan, stored, undone, undone, RETRACT),
    ]
    for side, other in OTHER_SIDE.items():
        # Emitted unmatched before, they meet the first row of the other side now.
        met = old[side].without(old[other]).within(fresh[other])
        retracted.append(_panes_alone(plan, windows, met, side, RETRACT))
    pairs = [
        _pairs(plan, windows, fired[LEFT], fired[RIGHT], EMIT),
        _pairs(plan, windows, fresh[LEFT], every[RIGHT], EMIT),
        _pairs(plan, windows, old[LEFT], fresh[RIGHT], EMIT),
    ]
    unmatched = [
        *_unmatched(plan, windows, fired, fired, EMIT),
        *_unmatched(plan, windows, fresh, every, EMIT),
    ]
    for name, panes in (("pairs", pairs), ("unmatched", unmatched), ("retractions", retracted)):
        admitted.count(name, sum(part.num_rows for part in panes))
    changes, panes = _changes(plan, sessions, rows, context), [*retracted, *pairs, *unmatched]
    # Before the first watermark, and after changed settings, the next step looks at all sessions.
    due = None if context.watermark == BEGINNING_US or plan.closed_us is not None else END_US
    return transition(plan, admitted, changes, panes, due)


def _sessions(plan: SessionJoinTables, view: StateView, admitted: Admitted, context: Context) -> _Sessions:
    """Reads all sessions of the keys in question, and merges those that new rows join."""
    names, new = plan.group_keys, admitted.rows
    arrived = pa.concat_tables([new[side].select(names) for side in SIDES])
    for name, bounds in ((START, {side: admitted.times(side) for side in SIDES}), (END, admitted.until)):
        arrived = arrived.append_column(name, pa.array(np.concatenate([bounds[side] for side in SIDES])))
    spans = plan.passed_spans(context, closing=True)
    due = [rows.select(names) for span in spans for rows in view[ENDS].scan(keys_within(*span))]
    asked = each_once(pa.concat_tables([arrived.select(names), *due]))
    stored = view[SESSIONS].ranges(asked).rows.select([*names, START, END])
    merged = merge_sessions(names, pa.concat_tables([stored, arrived.cast(stored.schema)]))
    of_stored, of_new, same = merged.apart(stored)
    ends = merged.windows[END].to_numpy()
    cut = new[LEFT].num_rows
    some = context.watermark != BEGINNING_US
    return _Sessions(
        stored,
        merged.windows,
        of_stored,
        {LEFT: of_new[:cut], RIGHT: of_new[cut:]},
        same,
        (stored[END].to_numpy() <= context.watermark_before) & (context.watermark_before != BEGINNING_US),
        flags_at(len(ends), of_new),
        (ends <= context.watermark) & some,
        (ends <= plan.closed_at(context.watermark)) & some,
    )


def _of_sides(
    plan: SessionJoinTables, view: StateView, sessions: _Sessions, new: dict[str, pa.Table]
) -> dict[str, _Rows]:
    """Rows of both sides, with numbers for the columns that are equal in a pair."""
    rows = {side: _rows(plan, view, sessions, new[side], side) for side in SIDES}
    if not plan.equal:
        return rows
    names = [column.name for column in plan.equal]
    equal, kinds = shared_ranks([rows[side].rows.select(names) for side in SIDES])
    return {side: replace(rows[side], equal=own, kinds=kinds) for side, own in zip(SIDES, equal, strict=True)}


def _rows(plan: SessionJoinTables, view: StateView, sessions: _Sessions, new: pa.Table, side: str) -> _Rows:
    """Rows of a side in the sessions that are read, and its new rows."""
    read = np.flatnonzero(sessions.read)
    asked = sessions.stored.take(pa.array(read))
    found = view[side].ranges(
        asked.select(plan.group_keys), *(asked[name].cast(plan.bound_type) for name in (START, END))
    )
    session = read[found.request_index.to_numpy()]
    rows = pa.concat_tables([found.rows, new])
    window = np.concatenate([sessions.of_stored[session], sessions.of_new[side]])
    session = np.concatenate([session, np.full(new.num_rows, -1)])
    return _Rows(rows, window, session, np.zeros(rows.num_rows, np.int64))


def _unmatched(
    plan: SessionJoinTables,
    windows: pa.Table,
    rows: dict[str, _Chosen],
    others: dict[str, _Chosen],
    kind: str,
) -> list[pa.Table]:
    """Panes of the ``rows`` of each side that have no partner among the ``others`` of the other side."""
    return [
        _panes_alone(plan, windows, rows[side].without(others[other]), side, kind)
        for side, other in OTHER_SIDE.items()
    ]


def _of_grown(sessions: _Sessions, rows: dict[str, _Rows], which: str) -> dict[str, _Chosen]:
    """Rows of windows that have fired before and have new rows: the ``new``, the ``old`` or ``all`` of them."""
    grown, found = sessions.grown, {}
    for side, own in rows.items():
        chosen = {"new": own.new, "old": ~own.new, "all": np.ones(len(own.new), bool)}[which]
        found[side] = own.group(grown[own.window] & chosen, own.window)
    return found


def _pairs(plan: SessionJoinTables, windows: pa.Table, left: _Chosen, right: _Chosen, kind: str) -> pa.Table:
    """Panes of every left row with every right row that it matches, by left row."""
    lefts, rights = matched_places(left.match, right.match)
    rows = {
        LEFT: left.rows.take(pa.array(left.places[lefts])),
        RIGHT: right.rows.take(pa.array(right.places[rights])),
    }
    return session_panes(plan, windows, left.of[lefts], rows, kind)


def _panes_alone(plan: SessionJoinTables, windows: pa.Table, rows: _Chosen, side: str, kind: str) -> pa.Table:
    """Panes of rows of a side without a partner; none where the join is not outer on that side."""
    if not plan.joined.keeps(side):
        return plan.pane_schema.empty_table()
    return session_panes(plan, windows, rows.of, {side: rows.rows.take(pa.array(rows.places))}, kind)


def _changes(
    plan: SessionJoinTables, sessions: _Sessions, rows: dict[str, _Rows], context: Context
) -> dict[str, TableChanges]:
    """New rows and sessions are put; sessions that became part of others are deleted, and the rows of closed ones."""
    changes: dict[str, TableChanges] = {}
    for side, own in rows.items():
        closed = sessions.closed[own.window]
        changes[side] = TableChanges(
            delete=plan.sides[side].conform_keys(own.rows.filter(pa.array(closed & ~own.new))),
            put=own.rows.filter(pa.array(own.new & ~closed)),
        )
    replaced = sessions.stored.filter(pa.array(~sessions.same))
    kept = sessions.windows.filter(pa.array(~sessions.holding(sessions.same) & ~sessions.closed))
    for spec in (plan.sessions, plan.ends):
        changes[spec.name] = TableChanges(delete=spec.conform_keys(replaced), put=spec.conform(kept))
    return changes
