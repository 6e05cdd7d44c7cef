"""Rows of outer joins without a partner: which wait, which are emitted unmatched, which are retracted. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.describe.sides import SIDES
from tidestate.operators.joins.batch import Admitted, JoinedRows
from tidestate.operators.joins.names import DUE, EMIT, RETRACT
from tidestate.operators.joins.pair_tables import PairTables
from tidestate.operators.joins.rule import mark_after, mark_before
from tidestate.operators.plan.transition import Timer
from tidestate.operators.progress.progress import Context
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
from tidestate.statestore.arrays import Times, flags_at
from tidestate.statestore.errors import invariant
from tidestate.statestore.messages.identities import is_known
from tidestate.statestore.messages.tables import MESSAGE_TIME
from tidestate.statestore.spec.arrowtypes import positions
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.keyrange import key_range
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.table.sorting import among, each_once


@dataclass(frozen=True)
class UnmatchedRows:
    """Panes that retract unmatched rows and panes that emit them, and what changes."""

    retracted: pa.Table
    emitted: pa.Table
    changes: dict[str, TableChanges]


def find_unmatched(
    plan: PairTables, view: StateView, admitted: Admitted, pairs: list[JoinedRows], context: Context
) -> UnmatchedRows:
    """Rows that have closed without a partner, and rows that have one now, after they were emitted unmatched."""
    retracted, emitted = [plan.pane_schema.empty_table()], [plan.pane_schema.empty_table()]
    changes: dict[str, TableChanges] = {}
    for side in SIDES:
        if plan.joined.keeps(side):
            partnered = _partnered(plan, side, pairs, context)
            if plan.retracts_unmatched:
                retracted.append(_retract(plan, view, side, partnered, context, changes))
            emitted.append(_close(plan, view, side, admitted, pairs, partnered, context, changes))
    return UnmatchedRows(pa.concat_tables(retracted), pa.concat_tables(emitted), changes)


def unmatched_timers(plan: PairTables) -> tuple[Timer, ...]:
    """Rows that wait for a partner are due when the watermark has passed the last one that may come."""
    allowed = plan.joined.allowed_us if plan.joined.unmatched == "final" else 0
    return tuple(Timer(spec.name, DUE, delays=(allowed + 1,)) for spec in plan.waiting.values())


def _close(
    plan: PairTables,
    view: StateView,
    side: str,
    admitted: Admitted,
    pairs: list[JoinedRows],
    partnered: pa.Table,
    context: Context,
    changes: dict[str, TableChanges],
) -> pa.Table:
    """Panes of rows that have closed; the others without a partner wait on. While rows are missing all wait: one of
    these may be their partner.
    """
    spec = plan.waiting[side]
    ends = plan.meeting.final if plan.joined.unmatched == "final" else plan.meeting.closed
    closed = BEGINNING_US if plan.loss is not None or plan.replaying else ends(side, mark_after(context))
    due = view[spec.name].scan(key_range(upper=None if closed == END_US else (closed,)))
    stored = pa.concat_tables([spec.schema.empty_table(), *due])
    still = stored.filter(pa.array(~among(stored, partnered, spec.key_names)))
    new, dues = _without_partner(plan, side, admitted, pairs, context)
    now = dues < closed if closed != END_US else np.ones(len(dues), bool)
    waits = _keyed(plan, side, admitted.rows[side].take(pa.array(new[~now])), dues[~now])
    fresh = admitted.rows[side].take(pa.array(new[now]))
    changes[spec.name] = TableChanges(delete=each_once(pa.concat_tables([stored, partnered])), put=waits)
    there = view[side].lookup(plan.sides[side].conform_keys(still))
    found = np.asarray(there.found, bool)
    if not found.all():
        known = plan.resumes or (side in plan.gone and is_known(view, plan.gone[side], still)[~found].all())
        invariant(known, "a row that waits for a partner is stored, unless it was given up", side=side)
    all_dues = np.concatenate([still[DUE].to_numpy()[found], dues[now]])
    emitted = pa.concat_tables([there.rows.filter(there.found), fresh])
    if plan.retracts_unmatched:
        _remember(plan, side, _keyed(plan, side, emitted, all_dues), context, changes)
    return plan.unmatched_panes(side, emitted, all_dues, EMIT)


def _partnered(plan: PairTables, side: str, pairs: list[JoinedRows], context: Context) -> pa.Table:
    """Stored rows that have a partner now, whether they waited or not; each once per window."""
    rows = [_stored_of(plan, side, each, context) for each in pairs]
    return pa.concat_tables([plan.waiting[side].schema.empty_table(), *rows])


def _stored_of(plan: PairTables, side: str, pairs: JoinedRows, context: Context) -> pa.Table:
    stored = np.flatnonzero(pairs.places[side] < 0)
    rows = pairs.rows[side].take(pa.array(stored))
    if pairs.ends is not None and plan.joined.occurrence == "each":
        return _keyed(plan, side, rows, pairs.ends[stored] - 1)
    held, dues = _dues(plan, side, rows, context)
    return _keyed(plan, side, rows if held is None else rows.take(pa.array(held)), dues)


def _dues(plan: PairTables, side: str, rows: pa.Table, context: Context) -> tuple[Times | None, Times]:
    times, places = positions(rows[MESSAGE_TIME]), positions(rows[plan.stores[side].position])
    return plan.meeting.dues(side, times, places, mark_before(context))


def _without_partner(
    plan: PairTables, side: str, admitted: Admitted, pairs: list[JoinedRows], context: Context
) -> tuple[Times, Times]:
    """Numbers of new rows without a partner, once per window where that counts, and when they are due."""
    rows = admitted.rows[side]
    held, dues = _dues(plan, side, rows, context)
    numbers = np.arange(rows.num_rows) if held is None else held
    new = [pair.places[side] >= 0 for pair in pairs]
    matched = np.concatenate([pair.places[side][flags] for pair, flags in zip(pairs, new, strict=True)])
    if plan.joined.windows is not None and plan.joined.occurrence == "each":
        ends = [pair.ends[flags] for pair, flags in zip(pairs, new, strict=True) if pair.ends is not None]
        windows = pa.table({"row": matched, DUE: np.concatenate(ends) - 1})
        unmatched = ~among(pa.table({"row": numbers, DUE: dues}), windows, ["row", DUE])
    else:
        unmatched = ~flags_at(rows.num_rows, matched)[numbers]
    return numbers[unmatched], dues[unmatched]


def _retract(
    plan: PairTables,
    view: StateView,
    side: str,
    partnered: pa.Table,
    context: Context,
    changes: dict[str, TableChanges],
) -> pa.Table:
    """Panes that retract rows which were emitted unmatched and have a partner now."""
    spec = plan.alone[side]
    asked = each_once(partnered.filter(pc.less(partnered[DUE], plan.meeting.closed(side, mark_before(context)))))
    gone = asked.filter(view[spec.name].lookup(asked).found)
    rows = view[side].lookup(plan.sides[side].conform_keys(gone)).rows
    changes[spec.name] = TableChanges(delete=gone)
    return plan.unmatched_panes(side, rows, gone[DUE].to_numpy(), RETRACT)


def _remember(
    plan: PairTables, side: str, emitted: pa.Table, context: Context, changes: dict[str, TableChanges]
) -> None:
    """Rows that were emitted unmatched, as long as they may be retracted."""
    name, final = plan.alone[side].name, plan.meeting.final(side, mark_after(context))
    kept = emitted.filter(pc.greater_equal(emitted[DUE], final)) if final != END_US else None
    changes[name] = replace(changes[name], put=kept)


def _keyed(plan: PairTables, side: str, rows: pa.Table, dues: Times) -> pa.Table:
    """Rows of a side as the table of waiting ones has them."""
    return plan.waiting[side].conform(rows.append_column(DUE, pa.array(dues, pa.int64())))
