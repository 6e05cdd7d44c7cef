"""Who meets whom: rows that arrive and stored ones of the other side, and rows that arrive together. Pure.

New rows meet what is stored of the other side, and each other: where that depends on the rows before them each meets
those that come before it in the order (time, side, offset), else rows of the right meet all of the left. Reads go by
the side's message layout: a range for each asking row where the key leads, one range for all where the position does.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidestate.operators.describe.sides import LEFT, RIGHT, SIDES
from tidestate.operators.joins.batch import Admitted, JoinedRows
from tidestate.operators.joins.names import OTHER_SIDE, ROW
from tidestate.operators.joins.rule import Mark, PositionBound, mark_before
from tidestate.operators.joins.tables import JoinTables
from tidestate.operators.plan.transition import StepTimes
from tidestate.statestore.messages.tables import MESSAGE_TIME
from tidestate.statestore.spec.arrowtypes import positions
from tidestate.statestore.spec.changes import Ranges
from tidestate.statestore.spec.keyrange import key_range
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.table.layers import assign_keys


def meet(plan: JoinTables, view: StateView, taken: Admitted, at: StepTimes) -> list[JoinedRows]:
    """Pairs of new left rows, then those of new right rows, each in the order of its rows."""
    # Which windows of both are open is judged at the start of the batch.
    mark = mark_before(at)
    stored = {side: _with_stored(plan, view, taken, side, mark, at) for side in SIDES}
    rights = _in_order(RIGHT, stored[RIGHT], _with_new(plan, taken, RIGHT, mark))
    if not plan.meeting.moves:
        return [stored[LEFT], rights]
    return [_in_order(LEFT, stored[LEFT], _with_new(plan, taken, LEFT, mark)), rights]


def _with_stored(
    plan: JoinTables, view: StateView, taken: Admitted, side: str, mark: Mark, at: StepTimes
) -> JoinedRows:
    """Pairs of a side's new rows and stored ones of the other."""
    requests, other = taken.rows[side], OTHER_SIDE[side]
    lower, upper = plan.meeting.reach(side, taken.times(side), mark)
    lower = _not_over(plan, other, requests.num_rows, lower, at)
    if not requests.num_rows:
        found = Ranges(pa.array([], pa.int64()), plan.sides[other].schema.empty_table())
    elif "eq" in plan.layouts[other].lead:
        prefixes = requests.select(plan.equal_names)
        found = view[other].ranges(prefixes, _column(plan, other, lower), _column(plan, other, upper))
    else:
        found = _one_range(plan, view, other, requests, lower, upper)
    index = np.asarray(found.request_index)
    nobody = np.full(len(index), -1, np.int64)
    near = JoinedRows({side: requests.take(found.request_index), other: found.rows}, {side: index, other: nobody})
    return _meeting(plan, near, mark)


def _with_new(plan: JoinTables, taken: Admitted, side: str, mark: Mark) -> JoinedRows:
    """Pairs of a side's new rows and new ones of the other; where the order counts, those before them."""
    requests, other, times = taken.rows[side], OTHER_SIDE[side], taken.times(side)
    among = taken.rows[other]
    lower, upper = plan.meeting.reach(side, times, mark)
    ends = plan.meeting.ends(side, times, mark)
    if ends is not None:
        upper = ends if upper is None else np.minimum(upper, ends)
    found = _assigned(plan, other, among, requests, lower, upper)
    places, askers = found.rows[ROW].to_numpy(), np.asarray(found.request_index)
    if plan.meeting.moves:
        apart = times[askers] - taken.times(other)[places]
        earlier = apart >= 0 if side == RIGHT else apart > 0
        places, askers = places[earlier], askers[earlier]
    rows = {other: among.take(pa.array(places)), side: requests.take(pa.array(askers))}
    return _meeting(plan, JoinedRows(rows, {other: places, side: askers}), mark)


def _not_over(plan: JoinTables, side: str, count: int, lower: PositionBound, at: StepTimes) -> PositionBound:
    """Rows that are retained for longer than they can be met are met no more."""
    over, forgotten = plan.meeting.over(side, mark_before(at)), plan.meeting.forgotten(side, mark_before(at))
    if over is None or over == forgotten:
        return lower
    first = np.full(count, over + 1)
    return first if lower is None else np.maximum(lower, first)


def _one_range(
    plan: JoinTables, view: StateView, side: str, requests: pa.Table, lower: PositionBound, upper: PositionBound
) -> Ranges:
    """One read of all positions anybody asks for, then to each asking row its own."""
    low = None if lower is None else (int(lower.min()),)
    high = None if upper is None else (int(upper.max()),)
    if low is not None and high is not None and low >= high:
        rows = plan.sides[side].schema.empty_table()
    else:
        rows = pa.concat_tables([plan.sides[side].schema.empty_table(), *view[side].scan(key_range(low, high))])
    found = _assigned(plan, side, rows, requests, lower, upper, ordered=True)
    return Ranges(found.request_index, rows.take(found.rows[ROW]))


def _assigned(
    plan: JoinTables,
    side: str,
    rows: pa.Table,
    requests: pa.Table,
    lower: PositionBound,
    upper: PositionBound,
    *,
    ordered: bool = False,
) -> Ranges:
    """To each asking row those with its key whose positions it reaches; their numbers are in `ROW`."""
    position = plan.stores[side].position
    thin = rows.select([*plan.equal_names, position]).append_column(ROW, pa.array(np.arange(rows.num_rows)))
    if not ordered:
        order = np.argsort(positions(rows[position]), kind="stable")
        thin = thin.take(pa.array(order))
    keys = requests.select(plan.equal_names)
    return assign_keys(plan.sides[side], thin, keys, _column(plan, side, lower), _column(plan, side, upper))


def _column(plan: JoinTables, side: str, bound: PositionBound) -> pa.Array | None:
    """Positions as the side's table has them."""
    store = plan.stores[side]
    return None if bound is None else pa.array(bound).cast(store.schema.field(store.position).type)


def _meeting(plan: JoinTables, near: JoinedRows, mark: Mark) -> JoinedRows:
    """Of pairs within reach those that meet."""
    left, right = (positions(near.rows[side][MESSAGE_TIME]) for side in (LEFT, RIGHT))
    found = plan.meeting.pairs(left, right, mark)
    if found is None:
        return near
    numbers, ends = found
    if len(numbers) == len(left) and bool(np.all(np.diff(numbers) == 1)):
        return JoinedRows(near.rows, near.places, ends)
    return near.take(numbers, ends)


def _in_order(side: str, stored: JoinedRows, new: JoinedRows) -> JoinedRows:
    """Both, in the order of the rows of a side."""
    rows = {side: pa.concat_tables([stored.rows[side], new.rows[side]]) for side in (LEFT, RIGHT)}
    places = {side: np.concatenate([stored.places[side], new.places[side]]) for side in (LEFT, RIGHT)}
    ends = None if stored.ends is None or new.ends is None else np.concatenate([stored.ends, new.ends])
    both = JoinedRows(rows, places, ends)
    order = np.argsort(places[side], kind="stable")
    return both if bool(np.all(np.diff(order) == 1)) else both.take(order)
