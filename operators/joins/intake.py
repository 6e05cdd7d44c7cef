"""The intake of all joins: new rows are rejected, numbered or known once, in the form of their side's table. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.describe.sides import SIDE, SIDES
from tidestate.operators.joins.batch import Admitted
from tidestate.operators.joins.rule import Mark, mark_after, mark_before
from tidestate.operators.joins.tables import JoinTables
from tidestate.operators.plan.held_rows import NUMBERED, number_rows, read_numbers
from tidestate.operators.plan.reasons import BAD_OFFSET, BEYOND_RETENTION, DUPLICATES
from tidestate.operators.plan.transition import Transition
from tidestate.operators.progress.progress import Context
from tidestate.operators.progress.watermarks import END_US, OFFSET_LIMIT
from tidestate.statestore.arrays import one_table
from tidestate.statestore.messages.identities import remember, unknown_rows
from tidestate.statestore.messages.tables import MESSAGE_TIME, OFFSET, ORIGIN
from tidestate.statestore.spec.arrowtypes import positions
from tidestate.statestore.spec.changes import ChangeSet, TableChanges
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.table.sorting import order


def admit(plan: JoinTables, view: StateView, arriving: pa.Table, context: Context) -> Admitted:
    """Admit the ``arriving`` rows of both sides: rows of ``plan.exchanged``."""
    admitted, before, after = Admitted(), mark_before(context), mark_after(context)
    if not arriving.num_rows:
        for side in SIDES:
            admitted.rows[side], admitted.until[side] = plan.sides[side].schema.empty_table(), np.zeros(0, np.int64)
        return admitted
    if plan.numbers_rows:
        admitted.numbers = read_numbers(view)
    arriving = arriving.rename_columns([plan.kept.get(name, name) for name in arriving.column_names])
    for side in SIDES:
        rows = placed(plan, side, arriving.filter(pc.equal(arriving[SIDE], side)), admitted, before)
        if plan.meeting.moves:
            rows = rows.take(pa.array(order(rows.select([MESSAGE_TIME, OFFSET]))))
        rows = _retained(plan, side, rows, admitted, before)
        if side in plan.identified:
            asked, seen = rows.num_rows, plan.seen(side)
            rows = unknown_rows(view, seen, rows)
            admitted.count(DUPLICATES, asked - rows.num_rows)
            until = rows[plan.known_by(side)].cast(seen.values[0].arrow)
            admitted.changes[seen.name] = remember(seen, rows, until, plan.meeting.unknown(side, after))
        admitted.until[side] = positions(rows[plan.known_by(side)])
        admitted.rows[side] = plan.sides[side].conform(plan.with_bookkeeping(side, rows, context))
    return admitted


def transition(
    plan: JoinTables,
    admitted: Admitted,
    changes: ChangeSet,
    panes: list[pa.Table],
    due: int | None = END_US,
) -> Transition:
    """The answer of a step: ``panes`` in order, and ``changes`` with those that admitting its rows has made."""
    changes = {**admitted.changes, **changes}
    if admitted.numbers:
        changes[NUMBERED] = TableChanges(merge=number_rows(admitted.numbers))
    panes = [plan.pane_schema.empty_table(), *panes]
    return Transition(changes, pa.concat_tables(panes), admitted.counters, one_table(admitted.rejected), due)


def placed(plan: JoinTables, side: str, rows: pa.Table, admitted: Admitted, before: Mark) -> pa.Table:
    """Rows of a side with offset and origin, a running number where none is named. Bad offsets are rejected."""
    offset, origin = plan.given(side, OFFSET), plan.given(side, ORIGIN)
    if offset is None:
        first = admitted.numbers.get(side, 0)
        admitted.numbers[side] = first + rows.num_rows
        offsets = pa.chunked_array([np.arange(first, first + rows.num_rows)])
    else:
        bad = pc.or_(pc.less(rows[offset], 0), pc.greater(rows[offset], OFFSET_LIMIT))
        bad = pc.fill_null(bad, True) if origin is None else pc.or_(pc.fill_null(bad, True), rows[origin].is_null())
        if pc.any(bad).as_py():
            admitted.reject(BAD_OFFSET, _ledger(plan, rows.filter(bad), BAD_OFFSET, before))
            rows = rows.filter(pc.invert(bad))
        offsets = rows[offset].cast(pa.int64())
    origins = rows[origin] if origin else pa.array(np.zeros(rows.num_rows, np.int8))
    return rows.append_column(OFFSET, offsets).append_column(ORIGIN, origins)


def _retained(plan: JoinTables, side: str, rows: pa.Table, admitted: Admitted, before: Mark) -> pa.Table:
    """Rows that are not older than what their side keeps; the others are rejected."""
    places = positions(rows[plan.stores[side].position])
    old = plan.meeting.refused(side, positions(rows[MESSAGE_TIME]), places, before)
    if not old.any():
        return rows
    admitted.reject(BEYOND_RETENTION, _ledger(plan, rows.filter(pa.array(old)), BEYOND_RETENTION, before))
    return rows.filter(pa.array(~old))


def _ledger(plan: JoinTables, rows: pa.Table, reason: str, before: Mark) -> pa.Table:
    """Rows of the ledger, with keys under the names that the input gives them."""
    rows = rows.drop_columns([name for name in (OFFSET, ORIGIN) if name in rows.column_names])
    names = {kept: name for name, kept in plan.kept.items()}
    rows = rows.rename_columns([names.get(name, name) for name in rows.column_names])
    return plan.ledger(rows, reason, before.watermark)
