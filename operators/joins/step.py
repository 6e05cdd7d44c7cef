"""What a batch of either side meets, what is shown without a partner, what is remembered. Pure and vectorised.

New rows of the left meet the stored ones of the right, new ones of the right the stored ones of the left, and new
ones each other: range reads by key and time, so what lies outside the bounds costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from operators.joins.names import DUE, NUMBER, NUMBERED, PLACE, SIDES, WAITING, WINDOW_END
from operators.sides import AT, LEFT, RIGHT, SIDE
from operators.transition import BEGINNING_US, END_US, KINDS, Moments, Transition, constant
from statestore.changes import TableChanges
from statestore.layers import assign, ordered
from statestore.sorting import firsts, lasts, ranks, shared_ranks
from statestore.store import StateView
from statestore.tables import TIME

if TYPE_CHECKING:
    from operators.joins.plan import JoinPlan

Numbers = npt.NDArray[np.int64]
OTHER = {LEFT: RIGHT, RIGHT: LEFT}


@dataclass(frozen=True)
class _Met:
    """Pairs: a row of each side, as their tables have them; of equal length."""

    left: pa.Table
    right: pa.Table


def join_step(plan: JoinPlan, view: StateView, arriving: pa.Table, at: Moments) -> Transition:
    """Take ``arriving`` rows of both sides into the state that ``view`` shows."""
    new, counted = _numbered(plan, view, arriving, at)
    old_right = _meets(plan, new[LEFT], LEFT, view, None)
    old_left = _meets(plan, new[RIGHT], RIGHT, view, None)
    both_new = _meets(plan, new[LEFT], LEFT, view, new[RIGHT])
    met = [old_right, old_left, both_new]
    panes = [_pairs(plan, pairs) for pairs in met]
    waiting, found = _waiting(plan, new, met), _found(plan, met)
    stored = pa.concat_tables([plan.waiting.schema.empty_table(), *_due(view, at)])
    due = waiting[DUE].to_numpy() < at.after if at.after != BEGINNING_US else np.zeros(waiting.num_rows, bool)
    alone = pa.concat_tables([_without(stored, found, plan.waiting.key_names), waiting.filter(pa.array(due))])
    panes += [_alone(plan, view, alone.filter(pc.equal(alone[SIDE], side)), side, new[side]) for side in SIDES]
    changes = _changes(plan, new, counted, at)
    kept = waiting.filter(pa.array(~due))
    gone = pa.concat_tables([plan.waiting.conform_keys(rows) for rows in (stored, found)])
    changes[WAITING] = TableChanges(delete=_some(_once(gone)), put=_some(kept))
    pairs = sum(rows.num_rows for rows in panes[:3])
    counters = {"pairs": pairs, "unmatched": sum(rows.num_rows for rows in panes[3:])}
    rows = pa.concat_tables([plan.pane_schema.empty_table(), *panes])
    return Transition(changes, rows, {name: count for name, count in counters.items() if count})


def _numbered(
    plan: JoinPlan, view: StateView, arriving: pa.Table, at: Moments
) -> tuple[dict[str, pa.Table], pa.Table]:
    """New rows of each side as its table has them, per window where there are windows; and how many there are now."""
    known = view.lookup(NUMBERED, pa.table({"side": list(SIDES)})).rows["count"].to_pylist()
    new, counts = {}, []
    for side, before in zip(SIDES, known, strict=True):
        rows = arriving.filter(pc.equal(arriving[SIDE], side))
        first = before or 0
        counts.append(first + rows.num_rows)
        rows = rows.append_column(PLACE, rows[AT].cast(pa.int64()))
        rows = rows.append_column(NUMBER, pa.array(np.arange(first, first + rows.num_rows)))
        if plan.windows is not None:
            index, _, ends = plan.windows.assign(rows[PLACE].to_numpy())
            open_ = ends > plan.closed_at(at.before)
            index, ends = index[open_], ends[open_]
            rows = rows.take(pa.array(index)).append_column(WINDOW_END, pa.array(ends))
        new[side] = plan.sides[side].conform(rows)
    return new, pa.table({"side": list(SIDES), "count": pa.array(counts, pa.int64())})


def _meets(plan: JoinPlan, asking: pa.Table, side: str, view: StateView, among: pa.Table | None) -> _Met:
    """What rows of ``side`` meet on the other one: stored there, or ``among`` new ones."""
    spec = plan.sides[OTHER[side]]
    prefixes = asking.select([column.name for column in plan.meeting])
    lower, upper = _reach(plan, asking, side)
    if among is None:
        found = view.ranges(spec.name, prefixes, lower, upper)
    else:
        found = assign(spec, ordered(spec, among), prefixes, lower, upper)
    ours = asking.take(found.asker)
    return _Met(ours, found.rows) if side == LEFT else _Met(found.rows, ours)


def _reach(plan: JoinPlan, asking: pa.Table, side: str) -> tuple[pa.Array | None, pa.Array | None]:
    """From which time of the other side to before which."""
    if plan.windows is not None:
        return None, None
    low, high = plan.joined.lower_us, plan.joined.upper_us
    if side == RIGHT:
        low, high = None if high is None else -high, None if low is None else -low
    places = asking[PLACE].to_numpy()
    return (
        None if low is None else pa.array(places + low),
        None if high is None else pa.array(places + high + 1),
    )


def _pairs(plan: JoinPlan, met: _Met) -> pa.Table:
    later = pc.max_element_wise(met.left[PLACE], met.right[PLACE])
    return _rows(plan, met.left, {LEFT: met.left, RIGHT: met.right}, later)


def _rows(plan: JoinPlan, keyed: pa.Table, rows: dict[str, pa.Table], times: pa.ChunkedArray) -> pa.Table:
    """Rows of the panes; a side that is not in ``rows`` is null."""
    count = keyed.num_rows
    bounds = []
    if plan.windows is not None:
        ends = keyed[WINDOW_END]
        bounds = [pc.subtract(ends, plan.windows.size).cast(TIME), ends.cast(TIME)]
    payload = [
        rows[side][field.name] if side in rows else pa.nulls(count, field.type)
        for side in SIDES
        for field in plan.payload(side)
    ]
    keys = [keyed[name] for name in plan.key_names]
    columns = [*keys, *bounds, times.cast(TIME), *payload, constant(count, "emit", KINDS)]
    return pa.table(columns, schema=plan.pane_schema)


def _waiting(plan: JoinPlan, new: dict[str, pa.Table], met: list[_Met]) -> pa.Table:
    """New rows of sides that are shown alone, which have met nobody."""
    found = [plan.waiting.schema.empty_table()]
    for side in SIDES:
        if plan.keeps(side):
            partners = pa.concat_tables([getattr(pairs, side) for pairs in met])
            found.append(_to_wait(plan, _without(new[side], partners, _identity(plan)), side))
    return pa.concat_tables(found)


def _found(plan: JoinPlan, met: list[_Met]) -> pa.Table:
    """Rows that need not wait any more, whether they did or not."""
    sides = [side for side in SIDES if plan.keeps(side)]
    rows = [_to_wait(plan, getattr(pairs, side), side) for side in sides for pairs in met]
    return pa.concat_tables([plan.waiting.schema.empty_table(), *rows])


def _to_wait(plan: JoinPlan, rows: pa.Table, side: str) -> pa.Table:
    """Rows of a side as the table of waiting ones has them."""
    ends = rows[WINDOW_END].to_numpy() if plan.windows else None
    rows = rows.append_column(DUE, pa.array(plan.dues(side, rows[PLACE].to_numpy(), ends)))
    return plan.waiting.conform(rows.append_column(SIDE, pa.repeat(side, rows.num_rows)))


def _identity(plan: JoinPlan) -> list[str]:
    return [column.name for column in plan.identity]


def _due(view: StateView, at: Moments) -> list[pa.Table]:
    """Those that have waited in vain."""
    if at.after == BEGINNING_US:
        return []
    return list(view.scan(WAITING, None, None if at.after == END_US else (at.after,)))


def _alone(plan: JoinPlan, view: StateView, waited: pa.Table, side: str, new: pa.Table) -> pa.Table:
    """Rows without a partner, out of the state or of the batch."""
    asked = waited.select(_identity(plan))
    there = view.lookup(side, asked)
    rows = pa.concat_tables([there.rows.filter(there.found), _with(new, asked, _identity(plan))])
    return _rows(plan, rows, {side: rows}, rows[PLACE])


def _with(rows: pa.Table, others: pa.Table, names: list[str]) -> pa.Table:
    return rows.filter(pa.array(_among(rows, others, names)))


def _without(rows: pa.Table, others: pa.Table, names: list[str]) -> pa.Table:
    return rows.filter(pa.array(~_among(rows, others, names)))


def _among(rows: pa.Table, others: pa.Table, names: list[str]) -> npt.NDArray[np.bool_]:
    """Which of ``rows`` agree with one of the others in these columns."""
    (own, theirs), count = shared_ranks([rows.select(names), others.select(names)])
    found: npt.NDArray[np.bool_] = (lasts(theirs, count) >= 0)[own]
    return found


def _once(rows: pa.Table) -> pa.Table:
    return rows.take(pa.array(firsts(*ranks(rows)))) if rows.num_rows else rows


def _changes(plan: JoinPlan, new: dict[str, pa.Table], counted: pa.Table, at: Moments) -> dict[str, TableChanges]:
    """New rows that may yet meet somebody; the others go, and who cannot any more."""
    changes = {NUMBERED: TableChanges(put=counted)}
    for side in SIDES:
        rows, bound = new[side], _forgotten(plan, side, at.after)
        if bound is not None:
            place = WINDOW_END if plan.windows else PLACE
            rows = rows.filter(pc.greater(rows[place], bound))
        changes[side] = TableChanges(put=_some(rows), expire=bound)
    return changes


def _forgotten(plan: JoinPlan, side: str, watermark: int) -> int | None:
    """Rows at or before this place meet nobody behind the watermark."""
    if watermark == BEGINNING_US:
        return None
    if watermark == END_US:
        return END_US - 1
    if plan.windows is not None:
        return plan.closed_at(watermark)
    reach = int(plan.last_matchable(side, np.zeros(1, np.int64))[0])
    return None if reach == END_US else max(BEGINNING_US, watermark - plan.allowed_us - reach - 1)


def _some(rows: pa.Table) -> pa.Table | None:
    return rows if rows.num_rows else None
