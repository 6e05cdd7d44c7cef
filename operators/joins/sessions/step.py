"""What a batch does to sessions of two sides: which pairs are shown, which taken back, what is kept. Pure.

A session is shown as the watermark passes its end: every left row with every right one. A late row inside of a
session that was shown adds its own pairs. One that moves the session's bounds, or joins several, makes another
session: what the parts had shown is taken back, and the whole is shown when its end is passed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from tidestate.operators.describe.sides import LEFT, RIGHT, SIDES
from tidestate.operators.joins.sessions.intake import admit_sessions
from tidestate.operators.joins.sessions.names import EMIT, END, ENDS, PLACE, RETRACT, SESSIONS, START, UNTIL
from tidestate.operators.joins.sessions.pairs import PaneRows, SessionRows, session_pairs, unmatched_rows
from tidestate.operators.joins.sessions.tables import SessionJoinTables
from tidestate.operators.plan.transition import StepTimes, Transition
from tidestate.operators.progress.instants import BEGINNING_US, END_US
from tidestate.operators.windows.general.sessions import merge_sessions
from tidestate.statestore.arrays import Flags, Numbers
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.keyrange import key_range
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.spec.tables import TIME
from tidestate.statestore.table.sorting import firsts, ranks, shared_ranks


@dataclass(frozen=True)
class _Sessions:
    """``stored`` sessions of the keys in question, and the ``windows`` that they and the new rows amount to.

    Per stored session: the window it is in (``of_stored``), whether it is the ``same``, and whether it was ``shown``.
    Per window: whether a row has come (``touched``), its end is ``passed``, and it takes no row any more (``gone``).
    ``of_new``: by side, the window of each new row.
    """

    stored: pa.Table
    windows: pa.Table
    of_stored: Numbers
    of_new: dict[str, Numbers]
    same: Flags
    shown: Flags
    touched: Flags
    passed: Flags
    gone: Flags

    def any_of(self, stored: Flags) -> Flags:
        """Windows that hold one of these stored sessions."""
        found = np.zeros(self.windows.num_rows, bool)
        found[self.of_stored[stored]] = True
        return found

    @property
    def whole(self) -> Flags:
        """Windows that are shown now, and were not before."""
        return self.passed & ~self.any_of(self.same & self.shown)

    @property
    def grown(self) -> Flags:
        """Windows that were shown before, and have more rows."""
        return self.touched & self.any_of(self.same & self.shown)

    @property
    def taken_back(self) -> Flags:
        """Stored sessions that were shown and are no more."""
        return self.shown & ~self.same

    @property
    def read(self) -> Flags:
        """Stored sessions whose rows are needed: to be shown, taken back or deleted."""
        needed: Flags = (self.whole | self.grown | self.gone)[self.of_stored] | self.taken_back
        return needed


@dataclass(frozen=True)
class _Rows:
    """Rows of one side, those in the state first: which window each is in, and which stored session (-1: new).

    ``equal``: of each the number, of so many ``kinds``, that rows it may pair up with have too.
    """

    rows: pa.Table
    window: Numbers
    session: Numbers
    equal: Numbers
    kinds: int = 1

    @property
    def new(self) -> Flags:
        """Those of this batch."""
        return self.session < 0

    def group(self, where: Flags, of: Numbers) -> SessionRows:
        """Some of them, by window or by stored session."""
        places = np.flatnonzero(where)
        return SessionRows(self.rows, places, of[places], of[places] * self.kinds + self.equal[places])


def session_step(plan: SessionJoinTables, view: StateView, arriving: pa.Table, at: StepTimes) -> Transition:
    """Take ``arriving`` rows of both sides into the state that ``view`` shows."""
    taken = admit_sessions(plan, view, arriving, at)
    sessions = _sessions(plan, view, taken.rows, at)
    rows = _of_sides(plan, view, sessions, taken.rows)
    gone = [*_taken_back(plan, sessions, rows), *_met(plan, sessions, rows)]
    shown = [*_whole(plan, sessions, rows), *_grown(plan, sessions, rows)]
    panes = pa.concat_tables([plan.pane_schema.empty_table(), *(one.rows for one in (*gone, *shown))])
    counters = taken.counters | {
        "pairs": sum(one.rows.num_rows for one in shown if one.paired),
        "unmatched": sum(one.rows.num_rows for one in shown if not one.paired),
        "retractions": sum(one.rows.num_rows for one in gone),
    }
    changes = taken.changes | _changes(plan, sessions, rows, at)
    return Transition(changes, panes, {name: count for name, count in counters.items() if count}, taken.rejected)


def _sessions(plan: SessionJoinTables, view: StateView, new: dict[str, pa.Table], at: StepTimes) -> _Sessions:
    """All sessions of the keys in question are read; those that new rows join become one."""
    names = plan.group_keys
    arrived = pa.concat_tables([new[side].select([*names, PLACE, UNTIL]) for side in SIDES])
    arrived = arrived.rename_columns([*names, START, END])
    due = [rows.select(names) for low, high in _spans(plan, at) for rows in _ending(view, low, high)]
    asked = pa.concat_tables([arrived.select(names), *due])
    asked = asked.take(pa.array(firsts(*ranks(asked))))
    stored = view[SESSIONS].ranges(asked).rows.select([*names, START, END])
    merged = merge_sessions(names, pa.concat_tables([stored, arrived.cast(stored.schema)]))
    of_stored, of_new = merged.owner[: stored.num_rows], merged.owner[stored.num_rows :]
    starts, ends = merged.windows[START].to_numpy(), merged.windows[END].to_numpy()
    touched = np.zeros(len(ends), bool)
    touched[of_new] = True
    cut = new[LEFT].num_rows
    some = at.after != BEGINNING_US
    return _Sessions(
        stored,
        merged.windows,
        of_stored,
        {LEFT: of_new[:cut], RIGHT: of_new[cut:]},
        (starts[of_stored] == stored[START].to_numpy()) & (ends[of_stored] == stored[END].to_numpy()),
        (stored[END].to_numpy() <= at.before) & (at.before != BEGINNING_US),
        touched,
        (ends <= at.after) & some,
        (ends <= plan.closed_at(at.after)) & some,
    )


def _spans(plan: SessionJoinTables, at: StepTimes) -> list[tuple[int, int]]:
    """Ranges of session ends, as (after, up to), that this step passes: to be shown, and to be forgotten."""
    spans = [(at.before, at.after)] if at.after > at.before else []
    low, high = plan.closed_at(at.before), min(plan.closed_at(at.after), at.before)
    return [*spans, (low, high)] if high > low else spans


def _ending(view: StateView, low: int, high: int) -> list[pa.Table]:
    lower = None if low == BEGINNING_US else (low + 1,)
    return list(view[ENDS].scan(key_range(lower, None if high == END_US else (high + 1,))))


def _of_sides(
    plan: SessionJoinTables, view: StateView, sessions: _Sessions, new: dict[str, pa.Table]
) -> dict[str, _Rows]:
    """Rows of both sides, with what tells them apart within a session."""
    rows = {side: _rows(plan, view, sessions, new[side], side) for side in SIDES}
    if not plan.equal:
        return rows
    names = [column.name for column in plan.equal]
    equal, kinds = shared_ranks([rows[side].rows.select(names) for side in SIDES])
    return {side: replace(rows[side], equal=own, kinds=kinds) for side, own in zip(SIDES, equal, strict=True)}


def _rows(plan: SessionJoinTables, view: StateView, sessions: _Sessions, new: pa.Table, side: str) -> _Rows:
    """Rows of a side in the sessions that are read, and all new ones."""
    read = np.flatnonzero(sessions.read)
    asked = sessions.stored.take(pa.array(read))
    found = view[side].ranges(asked.select(plan.group_keys), asked[START].cast(TIME), asked[END].cast(TIME))
    session = read[found.request_index.to_numpy()]
    rows = pa.concat_tables([found.rows, plan.rows[side].conform(new)])
    window = np.concatenate([sessions.of_stored[session], sessions.of_new[side]])
    session = np.concatenate([session, np.full(new.num_rows, -1)])
    return _Rows(rows, window, session, np.zeros(rows.num_rows, np.int64))


def _whole(plan: SessionJoinTables, sessions: _Sessions, rows: dict[str, _Rows]) -> list[PaneRows]:
    """All pairs of windows that are shown now."""
    whole = sessions.whole
    left, right = (rows[side].group(whole[rows[side].window], rows[side].window) for side in SIDES)
    return _all(plan, sessions.windows, left, right, EMIT)


def _taken_back(plan: SessionJoinTables, sessions: _Sessions, rows: dict[str, _Rows]) -> list[PaneRows]:
    """All pairs of sessions that are no more."""
    back = np.append(sessions.taken_back, False)  # the last one is for new rows
    left, right = (rows[side].group(back[rows[side].session], rows[side].session) for side in SIDES)
    return _all(plan, sessions.stored, left, right, RETRACT)


def _all(
    plan: SessionJoinTables, windows: pa.Table, left: SessionRows, right: SessionRows, kind: str
) -> list[PaneRows]:
    return [
        session_pairs(plan, windows, left, right, kind),
        unmatched_rows(plan, windows, left, right, LEFT, kind),
        unmatched_rows(plan, windows, right, left, RIGHT, kind),
    ]


def _grown(plan: SessionJoinTables, sessions: _Sessions, rows: dict[str, _Rows]) -> list[PaneRows]:
    """What new rows add to windows that were shown."""
    fresh, old, every = (_of_grown(sessions, rows, which) for which in ("new", "old", "all"))
    return [
        session_pairs(plan, sessions.windows, fresh[LEFT], every[RIGHT], EMIT),
        session_pairs(plan, sessions.windows, old[LEFT], fresh[RIGHT], EMIT),
        unmatched_rows(plan, sessions.windows, fresh[LEFT], every[RIGHT], LEFT, EMIT),
        unmatched_rows(plan, sessions.windows, fresh[RIGHT], every[LEFT], RIGHT, EMIT),
    ]


def _met(plan: SessionJoinTables, sessions: _Sessions, rows: dict[str, _Rows]) -> list[PaneRows]:
    """Rows that were shown alone, and have met the first row of the other side."""
    fresh, old = (_of_grown(sessions, rows, which) for which in ("new", "old"))
    found = []
    for side, other in ((LEFT, RIGHT), (RIGHT, LEFT)):
        lonely = old[side].without(old[other]).within(fresh[other])
        found.append(unmatched_rows(plan, sessions.windows, lonely, None, side, RETRACT))
    return found


def _of_grown(sessions: _Sessions, rows: dict[str, _Rows], which: str) -> dict[str, SessionRows]:
    grown, found = sessions.grown, {}
    for side, own in rows.items():
        chosen = {"new": own.new, "old": ~own.new, "all": np.ones(len(own.new), bool)}[which]
        found[side] = own.group(grown[own.window] & chosen, own.window)
    return found


def _changes(
    plan: SessionJoinTables, sessions: _Sessions, rows: dict[str, _Rows], at: StepTimes
) -> dict[str, TableChanges]:
    """New rows and sessions; what became part of others, and what is over, goes."""
    changes: dict[str, TableChanges] = {}
    for side, own in rows.items():
        over = sessions.gone[own.window]
        spec = plan.rows[side]
        changes[side] = TableChanges(
            delete=_some(spec.conform_keys(own.rows.filter(pa.array(over & ~own.new)))),
            put=_some(own.rows.filter(pa.array(own.new & ~over))),
        )
    bound = None if at.after == BEGINNING_US else min(plan.closed_at(at.after), END_US - 1)
    replaced = sessions.stored.filter(pa.array(~sessions.same))
    kept = sessions.windows.filter(pa.array(~sessions.any_of(sessions.same) & ~sessions.gone))
    for spec in (plan.sessions, plan.ends):
        delete, put = _some(spec.conform_keys(replaced)), _some(spec.conform(kept))
        changes[spec.name] = TableChanges(delete=delete, put=put, expire=bound)
    return changes


def _some(rows: pa.Table) -> pa.Table | None:
    return rows if rows.num_rows else None
