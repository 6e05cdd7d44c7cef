"""A replay puts lost rows of a session join back, and corrects what their sessions have emitted without them. Pure.

The sessions themselves are whole. A row that was lost has been in a session at the loss: if that had fired by
then, and has changed since, it is kept in the table ``moved``; any other is as it was, or had not fired. So of
two rows that are stored after the replay it is known whether their pair was emitted before the loss, and where.
If it was not, it is emitted once their session has fired. If it was, and that session has changed, it is
retracted there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.describe.sides import LEFT, RIGHT, SIDES
from tidestate.operators.describe.windows import END, START
from tidestate.operators.joins.batch import LostRows
from tidestate.operators.joins.names import EMIT, MOVED, RETRACT, SESSIONS, SINCE
from tidestate.operators.joins.session_pairs import matched_places, session_panes, sessions_of_keys
from tidestate.operators.joins.session_tables import SessionJoinTables
from tidestate.operators.progress.progress import Context
from tidestate.operators.progress.watermarks import BEGINNING_US
from tidestate.operators.windows.sessions import holding_window
from tidestate.statestore.arrays import Flags, Numbers
from tidestate.statestore.messages.identities import is_known
from tidestate.statestore.messages.tables import MESSAGE_TIME
from tidestate.statestore.spec.arrowtypes import positions
from tidestate.statestore.spec.changes import ChangeSet, TableChanges
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.spec.tables import TIME
from tidestate.statestore.table.sorting import shared_ranks


@dataclass(frozen=True)
class _Side:
    """Rows of a side that are stored after a replay, those it has put back last (``back``).

    ``session``: that of each; ``before``: that in which its pairs were emitted before the loss, −1 for none;
    ``match``: an equal number for rows, of either side, that pair up.
    """

    rows: pa.Table
    session: Numbers
    before: Numbers
    match: Numbers
    back: Flags


def in_sessions(plan: SessionJoinTables, view: StateView, rows: pa.Table) -> Flags:
    """Which rows are in a session that is not over."""
    sessions = sessions_of_keys(plan.group_keys, view, SESSIONS, [rows])
    found: Flags = holding_window(plan.group_keys, sessions, rows, positions(rows[MESSAGE_TIME])) >= 0
    return found


def corrected_sessions(plan: SessionJoinTables, view: StateView, found: LostRows, context: Context) -> pa.Table:
    """The panes of a replay that has ``found`` rows of sessions which are not over."""
    sessions = sessions_of_keys(plan.group_keys, view, SESSIONS, [*found.rows.values()])
    moved = sessions_of_keys(plan.group_keys, view, MOVED, [*found.rows.values()])
    moved = moved.filter(pc.equal(moved[SINCE], plan.mended_loss.since))
    sides = _sides(plan, view, found.rows, sessions, moved, context)
    left, right = sides[LEFT], sides[RIGHT]
    lefts, rights = matched_places(left.match, right.match)
    new = left.back[lefts] | right.back[rights]
    lefts, rights = lefts[new], rights[new]
    before, session = left.before[lefts], left.session[lefts]
    had = (before == right.before[rights]) & (before >= 0)
    elsewhere = had & (before < moved.num_rows)
    fired = (sessions[END].to_numpy() <= context.watermark_before) & (context.watermark_before != BEGINNING_US)
    panes = []
    for windows, where, of, kind in (
        (moved, elsewhere, before, RETRACT),
        (sessions, fired[session] & (elsewhere | ~had), session, EMIT),
    ):
        rows = {LEFT: left.rows.take(pa.array(lefts[where])), RIGHT: right.rows.take(pa.array(rights[where]))}
        panes.append(session_panes(plan, windows, of[where], rows, kind))
    return pa.concat_tables(panes)


def moved_sessions(
    plan: SessionJoinTables, view: StateView, changes: ChangeSet, context: Context
) -> dict[str, TableChanges]:
    """Of the sessions that these ``changes`` replace while rows are missing those to remember: which had fired before
    the loss, and may have had rows that were lost.
    """
    if not plan.back:
        return {}
    replaced = changes[SESSIONS].delete
    if plan.loss is None or replaced is None or not replaced.num_rows:
        return {}
    gone = view[SESSIONS].lookup(replaced).rows
    gone = gone.filter(pc.less_equal(gone[END], plan.loss.watermark))
    known = sessions_of_keys(plan.group_keys, view, MOVED, [gone])
    known = known.filter(pc.equal(known[SINCE], plan.loss.since))
    within = holding_window(plan.group_keys, gone, known, known[START].to_numpy())
    gone = gone.filter(pa.array(~np.isin(np.arange(gone.num_rows), within)))
    put = plan.moved.conform(gone.append_column(SINCE, pa.array(np.full(gone.num_rows, plan.loss.since))))
    return {MOVED: TableChanges(put=put)}


def _sides(
    plan: SessionJoinTables,
    view: StateView,
    lost: dict[str, pa.Table],
    sessions: pa.Table,
    moved: pa.Table,
    context: Context,
) -> dict[str, _Side]:
    """The rows of the sessions that get some back: those that are stored, and those."""
    place = {
        side: holding_window(plan.group_keys, sessions, rows, positions(rows[MESSAGE_TIME]))
        for side, rows in lost.items()
    }
    touched = np.unique(np.concatenate([*place.values()]))
    asked = sessions.take(pa.array(touched))
    bounds = asked.select(plan.group_keys), asked[START].cast(TIME), asked[END].cast(TIME)
    had = sessions[END].to_numpy() <= plan.mended_loss.watermark
    rows, of, befores, backs = {}, {}, {}, {}
    for side in SIDES:
        stored = view[side].ranges(*bounds)
        own = pa.concat_tables([stored.rows, plan.sides[side].conform(lost[side])])
        rows[side], of[side] = own, np.concatenate([touched[stored.request_index.to_numpy()], place[side]])
        backs[side] = np.arange(own.num_rows) >= stored.rows.num_rows
        old = backs[side] | is_known(view, plan.back[side], own)
        earlier = holding_window(plan.group_keys, moved, own, positions(own[MESSAGE_TIME]))
        unchanged = np.where(had[of[side]], moved.num_rows + of[side], -1)
        befores[side] = np.where(old, np.where(earlier >= 0, earlier, unchanged), -1)
    names = [column.name for column in plan.equal]
    equal, kinds = [np.zeros(len(of[side]), np.int64) for side in SIDES], 1
    if names:
        equal, kinds = shared_ranks([rows[side].select(names) for side in SIDES])
    return {
        side: _Side(rows[side], of[side], befores[side], of[side] * kinds + equal[n], backs[side])
        for n, side in enumerate(SIDES)
    }
