"""The new rows of each side: judged, each known one passed over, as the side's message store keeps them. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.describe.sides import AT, SIDE, SIDES
from tidestate.operators.joins.batch import DUPLICATES, Admitted, bad_offsets
from tidestate.operators.joins.names import SENT
from tidestate.operators.joins.rule import mark_after, mark_before
from tidestate.operators.joins.tables import JoinTables
from tidestate.operators.plan.held_rows import NUMBERED
from tidestate.operators.plan.ledger import BAD_OFFSET, BEYOND_RETENTION, ledger
from tidestate.operators.plan.transition import StepTimes
from tidestate.statestore.arrays import Flags, Times
from tidestate.statestore.messages.tables import MESSAGE_TIME, OFFSET, ORIGIN
from tidestate.statestore.spec.arrowtypes import positions
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.spec.tables import TIME
from tidestate.statestore.table.sorting import firsts, order, ranks


def admit(plan: JoinTables, view: StateView, arriving: pa.Table, at: StepTimes) -> Admitted:
    """Rows of both sides that arrive."""
    taken = Admitted()
    if not arriving.num_rows:
        taken.rows = {side: plan.sides[side].schema.empty_table() for side in SIDES}
        for side in plan.identified:
            taken.changes[plan.stores[side].seen.name] = _seen(plan, side, None, at)
        taken.numbers = _numbers(view) if plan.joined.held else {}
        return taken
    if plan.joined.held or len(plan.identified) < len(SIDES):
        taken.numbers = _numbers(view)
    names = dict(zip(plan.key_names, plan.equal_names, strict=True))
    arriving = arriving.rename_columns([names.get(name, name) for name in arriving.column_names])
    for side in SIDES:
        rows = _placed(plan, side, arriving.filter(pc.equal(arriving[SIDE], side)), taken, at)
        if plan.meeting.moves:
            rows = rows.take(pa.array(order(pa.table([positions(rows[AT]), rows[OFFSET]], names=[AT, OFFSET]))))
        rows = _refuse_old(plan, side, rows, taken, at)
        if plan.given(side, OFFSET):
            rows = _known_once(plan, view, side, rows, taken, at)
        rows = rows.rename_columns([MESSAGE_TIME if name == AT else name for name in rows.column_names])
        if plan.joined.held:
            rows = rows.append_column(SENT, pa.array(_sent(plan, side, rows, at)))
        taken.rows[side] = plan.sides[side].conform(rows)
    return taken


def _numbers(view: StateView) -> dict[str, int]:
    """How many there were, of each that is counted."""
    parts = list(view[NUMBERED].scan())
    return {row["what"]: row["count"] for part in parts for row in part.to_pylist()}


def _placed(plan: JoinTables, side: str, rows: pa.Table, taken: Admitted, at: StepTimes) -> pa.Table:
    """With offset and origin, and without the columns that said them. Offsets that are none are rejected."""
    offset, origin = plan.given(side, OFFSET), plan.given(side, ORIGIN)
    if offset is None:
        first = taken.numbers.get(side, 0)
        taken.numbers[side] = first + rows.num_rows
        rows = rows.append_column(OFFSET, pa.array(np.arange(first, first + rows.num_rows)))
        return rows.append_column(ORIGIN, pa.array(np.zeros(rows.num_rows, np.int8)))
    bad = bad_offsets(rows, offset, origin)
    if bad is not None:
        taken.rejected.append(ledger(plan, _as_given(plan, rows.filter(bad)), BAD_OFFSET, at.before))
        taken.count(BAD_OFFSET, taken.rejected[-1].num_rows)
        rows = rows.filter(pc.invert(bad))
    rows = rows.append_column(OFFSET, rows[offset].cast(pa.int64()))
    return rows.append_column(ORIGIN, rows[origin] if origin else pa.array(np.zeros(rows.num_rows, np.int8)))


def _known_once(
    plan: JoinTables, view: StateView, side: str, rows: pa.Table, taken: Admitted, at: StepTimes
) -> pa.Table:
    """Rows that have not been here, the first of each."""
    store = plan.stores[side]
    identities = rows.select([OFFSET, ORIGIN])
    fresh = ~np.asarray(view[store.seen.name].lookup(identities).found, bool)
    taken.count(DUPLICATES, int(np.count_nonzero(~fresh)))
    rows = rows.filter(pa.array(fresh))
    once = firsts(*ranks(rows.select([OFFSET, ORIGIN]))) if rows.num_rows else np.zeros(0, np.int64)
    if len(once) < rows.num_rows:
        taken.count(DUPLICATES, rows.num_rows - len(once))
        rows = rows.take(pa.array(np.sort(once)))
    taken.changes[store.seen.name] = _seen(plan, side, rows, at)
    return rows


def _refuse_old(plan: JoinTables, side: str, rows: pa.Table, taken: Admitted, at: StepTimes) -> pa.Table:
    old: Flags = plan.meeting.refused(side, positions(rows[AT]), _position_of(plan, side, rows), mark_before(at))
    if not old.any():
        return rows
    gone = rows.filter(pa.array(old))
    taken.rejected.append(ledger(plan, _as_given(plan, gone), BEYOND_RETENTION, at.before))
    taken.count(BEYOND_RETENTION, gone.num_rows)
    return rows.filter(pa.array(~old))


def _as_given(plan: JoinTables, rows: pa.Table) -> pa.Table:
    """Rows with their keys under the names that the input gives them."""
    rows = rows.drop_columns([name for name in (OFFSET, ORIGIN) if name in rows.column_names])
    names = dict(zip(plan.equal_names, plan.key_names, strict=True))
    return rows.rename_columns([names.get(name, name) for name in rows.column_names])


def _position_of(plan: JoinTables, side: str, rows: pa.Table) -> Times:
    return positions(rows[OFFSET if plan.joined.by_offset(side) else AT])


def _seen(plan: JoinTables, side: str, rows: pa.Table | None, at: StepTimes) -> TableChanges:
    """Who has been here, as long as it would be taken again."""
    spec, bound = plan.stores[side].seen, plan.meeting.unknown(side, mark_after(at))
    if rows is None:
        return TableChanges(expire=bound)
    places = _position_of(plan, side, rows)
    known = pa.table([rows[OFFSET], rows[ORIGIN], pa.array(places).cast(spec.values[0].arrow)], schema=spec.schema)
    if bound is not None:
        known = known.filter(pa.array(places > bound))
    return TableChanges(put=known if known.num_rows else None, expire=bound)


def _sent(plan: JoinTables, side: str, rows: pa.Table, at: StepTimes) -> Times:
    """From which processing time on each row may be shown."""
    place = SIDES.index(side)
    update, late_update = plan.joined.updates[place], plan.joined.late_updates[place]
    times = positions(rows[MESSAGE_TIME].cast(TIME))
    where = positions(rows[plan.stores[side].position])
    late = plan.meeting.late(side, times, where, mark_before(at))
    return np.where(
        late,
        late_update.next(at.now) if late_update else at.now,
        update.next(at.now) if update else at.now,
    )
