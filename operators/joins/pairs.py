"""Pairs: new rows with stored rows of the other side, and with new ones. Pure.

Where the order of rows counts each new row meets the new rows before it in the order (time, side, offset), else new
rows of the right side meet all new ones of the left. Reads go by the message layout of the side that is read: a range
for each row where the key leads, one range for all where the position does.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidestate.operators.describe.sides import LEFT, RIGHT, SIDES
from tidestate.operators.joins.batch import Admitted, JoinedRows
from tidestate.operators.joins.names import OTHER_SIDE, ROW
from tidestate.operators.joins.pair_tables import PairTables
from tidestate.operators.joins.rule import Mark, PositionBound, mark_before
from tidestate.operators.progress.progress import Context
from tidestate.statestore.messages.tables import MESSAGE_TIME
from tidestate.statestore.spec.arrowtypes import positions
from tidestate.statestore.spec.changes import Ranges
from tidestate.statestore.spec.keyrange import key_range
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.table.layers import assign_keys
from tidestate.statestore.table.sorting import sorting


def find_pairs(plan: PairTables, view: StateView, admitted: Admitted, context: Context) -> list[JoinedRows]:
    """Pairs of new left rows, then those of new right rows, each in the order of its rows."""
    # Which windows of both are open is judged at the start of the batch.
    mark = mark_before(context)
    stored = {side: with_stored(plan, view, admitted, side, mark, context) for side in SIDES}
    rights = _in_order(RIGHT, stored[RIGHT], _with_new(plan, admitted, RIGHT, mark))
    if not plan.meeting.moves:
        return [stored[LEFT], rights]
    return [_in_order(LEFT, stored[LEFT], _with_new(plan, admitted, LEFT, mark)), rights]


def with_stored(
    plan: PairTables, view: StateView, admitted: Admitted, side: str, mark: Mark, context: Context
) -> JoinedRows:
    """Pairs of a side's new rows and stored ones of the other."""
    requests, other = admitted.rows[side], OTHER_SIDE[side]
    lower, upper = plan.meeting.reach(side, admitted.times(side), mark)
    lower = _reachable(plan, other, requests.num_rows, lower, context)
    if not requests.num_rows:
        found = Ranges(pa.array([], pa.int64()), plan.sides[other].schema.empty_table())
    elif "eq" in plan.layouts[other].lead:
        prefixes = requests.select(plan.equal_names)
        found = view[other].ranges(prefixes, _column(plan, other, lower), _column(plan, other, upper))
    else:
        found = _one_range(plan, view, other, requests, lower, upper)
    index = np.asarray(found.request_index)
    stored = np.full(len(index), -1, np.int64)
    within = JoinedRows({side: requests.take(found.request_index), other: found.rows}, {side: index, other: stored})
    return _meeting(plan, within, mark)


def _with_new(plan: PairTables, admitted: Admitted, side: str, mark: Mark) -> JoinedRows:
    """Pairs of a side's new rows and new rows of the other side; where the order counts, those before them."""
    requests, other, times = admitted.rows[side], OTHER_SIDE[side], admitted.times(side)
    among = admitted.rows[other]
    lower, upper = plan.meeting.reach(side, times, mark)
    ends = plan.meeting.ends(side, times, mark)
    if ends is not None:
        upper = ends if upper is None else np.minimum(upper, ends)
    found = _assigned(plan, other, among, requests, lower, upper)
    places, index = found.rows[ROW].to_numpy(), np.asarray(found.request_index)
    if plan.meeting.moves:
        apart = times[index] - admitted.times(other)[places]
        earlier = apart >= 0 if side == RIGHT else apart > 0
        places, index = places[earlier], index[earlier]
    rows = {other: among.take(pa.array(places)), side: requests.take(pa.array(index))}
    return _meeting(plan, JoinedRows(rows, {other: places, side: index}), mark)


def _reachable(plan: PairTables, side: str, count: int, lower: PositionBound, context: Context) -> PositionBound:
    """Leaves rows out that are stored for longer than they can meet."""
    if plan.replaying and plan.may_stand:
        return lower  # What has come since the loss may have met the rows of a replay: see `limits`.
    mark = mark_before(context)
    over, expired = plan.meeting.unreachable(side, mark), plan.meeting.expired(side, mark)
    if over is None or (over == expired and plan.loss is None and not plan.resumes):
        return lower
    first = np.full(count, over + 1)
    return first if lower is None else np.maximum(lower, first)


def _one_range(
    plan: PairTables, view: StateView, side: str, requests: pa.Table, lower: PositionBound, upper: PositionBound
) -> Ranges:
    """One read of all positions that rows reach, then the share of each row."""
    low = None if lower is None else (int(lower.min()),)
    high = None if upper is None else (int(upper.max()),)
    if low is not None and high is not None and low >= high:
        rows = plan.sides[side].schema.empty_table()
    else:
        rows = pa.concat_tables([plan.sides[side].schema.empty_table(), *view[side].scan(key_range(low, high))])
    found = _assigned(plan, side, rows, requests, lower, upper, ordered=True)
    return Ranges(found.request_index, rows.take(found.rows[ROW]))


def _assigned(
    plan: PairTables,
    side: str,
    rows: pa.Table,
    requests: pa.Table,
    lower: PositionBound,
    upper: PositionBound,
    *,
    ordered: bool = False,
) -> Ranges:
    """For each of ``requests`` the rows with its key that it reaches; their numbers are in `ROW`."""
    position = plan.stores[side].position
    thin = rows.select([*plan.equal_names, position]).append_column(ROW, pa.array(np.arange(rows.num_rows)))
    if not ordered:
        order = sorting(positions(rows[position]))
        thin = thin.take(pa.array(order))
    keys = requests.select(plan.equal_names)
    return assign_keys(plan.sides[side], thin, keys, _column(plan, side, lower), _column(plan, side, upper))


def _column(plan: PairTables, side: str, bound: PositionBound) -> pa.Array | None:
    """Positions in the type of the side's table."""
    store = plan.stores[side]
    return None if bound is None else pa.array(bound).cast(store.schema.field(store.position).type)


def _meeting(plan: PairTables, within: JoinedRows, mark: Mark) -> JoinedRows:
    """The pairs within reach that meet."""
    left, right = (positions(within.rows[side][MESSAGE_TIME]) for side in (LEFT, RIGHT))
    found = plan.meeting.pairs(left, right, mark)
    if found is None:
        return within
    numbers, ends = found
    if len(numbers) == len(left) and bool(np.all(np.diff(numbers) == 1)):
        return JoinedRows(within.rows, within.places, ends)
    return within.take(numbers, ends)


def _in_order(side: str, stored: JoinedRows, new: JoinedRows) -> JoinedRows:
    """Both kinds of pairs, in the order of the rows of a side."""
    rows = {side: pa.concat_tables([stored.rows[side], new.rows[side]]) for side in (LEFT, RIGHT)}
    places = {side: np.concatenate([stored.places[side], new.places[side]]) for side in (LEFT, RIGHT)}
    ends = None if stored.ends is None or new.ends is None else np.concatenate([stored.ends, new.ends])
    both = JoinedRows(rows, places, ends)
    order = sorting(places[side])
    return both if bool(np.all(np.diff(order) == 1)) else both.take(order)
