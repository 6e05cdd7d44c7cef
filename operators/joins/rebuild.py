"""A replay of both sides puts lost rows of a join back, and emits the pairs that were missed meanwhile. Pure.

Identities are whole, and a state partition that has lost a file starts without any rows. So of the stored rows those
that a replay put back are older than the loss, the tables ``back_left`` and ``back_right`` have their identities, and
all others have come since. Two old rows had met by the time of the loss. An old row and one that has come since meet
when the old one is put back: as long as neither has expired this is the pair that would have been emitted, since the
distance of their times, or the one window that holds both, decides.

While rows of an outer join are missing, nothing expires and no row is emitted without a partner
(`PairTables.standing`). Which ones have met is in tables that are whole. So a replay completes it at any time, and
the first step after that emits what is due.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.describe.sides import SIDE, SIDES
from tidestate.operators.joins.batch import Admitted, JoinedRows, LostRows
from tidestate.operators.joins.intake import placed
from tidestate.operators.joins.names import EMIT, OTHER_SIDE
from tidestate.operators.joins.pair_tables import PairTables
from tidestate.operators.joins.rule import Mark, mark_after, mark_before, without_none
from tidestate.operators.joins.tables import JoinTables
from tidestate.operators.plan.reasons import INCOMPLETE, PUT_BACK
from tidestate.operators.plan.transition import Transition
from tidestate.operators.progress.progress import Context
from tidestate.operators.progress.watermarks import BEGINNING_US
from tidestate.statestore.arrays import Flags
from tidestate.statestore.messages.identities import first_of_each, is_known, known_rows, remember, without_stored
from tidestate.statestore.spec.arrowtypes import positions
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.table.overlay import OverlayView


def missed_pairs(
    plan: PairTables, view: StateView, found: LostRows, with_stored: Callable[[Admitted, str], JoinedRows]
) -> list[JoinedRows]:
    """The pairs of rows that are put back, and rows that have come since the loss. ``with_stored`` has those of a
    side's rows and all stored ones of the other.
    """
    old = Admitted({side: plan.sides[side].conform(rows) for side, rows in found.rows.items()})
    missed = []
    for side in SIDES:
        met, other = with_stored(old, side), OTHER_SIDE[side]
        met = met.take(np.flatnonzero(~is_known(view, plan.back[other], met.rows[other])))
        missed.append(replace(met, places=dict.fromkeys(SIDES, np.full(len(met.places[side]), -1))))
    return missed


def with_rows_back(plan: PairTables, view: StateView, found: LostRows) -> OverlayView:
    """The state with the rows that are put back."""
    whole = OverlayView(view, plan.tables)
    whole.apply(found.changes)
    return whole


def lost_rows(
    plan: JoinTables,
    view: StateView,
    arriving: pa.Table,
    context: Context,
    usable: Callable[[pa.Table], Flags] | None = None,
) -> LostRows:
    """The rows of a replay that had been accepted, may still meet others, are not stored any more and not given up,
    each once. Those that are retained for queries only are left out. Nothing once what is missing is given up.
    """
    arriving = arriving.rename_columns([plan.kept.get(name, name) for name in arriving.column_names])
    found, changes, lacking = dict[str, pa.Table](), dict[str, TableChanges](), 0
    for side, spec in plan.back.items():
        bound = plan.may_meet(side, mark_before(context))
        rows = arriving.filter(pc.equal(arriving[SIDE], side))
        rows = _lost(plan, view, side, rows.slice(0, 0) if plan.resumes else rows, bound)
        if usable is not None:
            rows = rows.filter(pa.array(usable(rows)))
        found[side] = rows
        changes[side] = TableChanges(put=plan.sides[side].conform(rows))
        until, unknown = rows[plan.known_by(side)], plan.meeting.unknown(side, mark_before(context))
        changes[spec.name] = remember(spec, rows, until.cast(spec.values[0].arrow), unknown)
        if not plan.resumes:
            # An identity may be known in several state partitions after a rescale, or stand for two rows.
            lacking += max(0, _missing(plan, view, side, bound).num_rows - rows.num_rows)
    return LostRows(found, changes, lacking)


def put_back_by(found: LostRows, panes: pa.Table, retracted: str) -> Transition:
    """The transition that puts rows back and emits ``panes``; ``retracted`` is the counter of their retractions."""
    pairs = int(pc.sum(pc.equal(panes["kind"], EMIT)).as_py() or 0)
    counters = {
        PUT_BACK: sum(rows.num_rows for rows in found.rows.values()),
        "pairs": pairs,
        retracted: panes.num_rows - pairs,
        INCOMPLETE: found.lacking,
    }
    counters = {name: count for name, count in counters.items() if count}
    return Transition(found.changes, panes, counters, due=None)


def identity_expiry(plan: JoinTables, context: Context) -> dict[str, int]:
    """Identities are known until their rows would be refused."""
    mark = mark_before(context) if plan.replaying else mark_after(context)
    names = {spec.name: side for side, spec in plan.back.items()}
    if not plan.replaying:
        names |= {spec.name: side for side, spec in plan.gone.items()}
        names |= {plan.seen(side).name: side for side in plan.identified}
    return without_none({name: plan.meeting.unknown(side, mark) for name, side in names.items()})


def given_up(plan: JoinTables, view: StateView, context: Context) -> dict[str, TableChanges]:
    """Once a loss is given up, what is missing is never put back, and not missing any more."""
    if not plan.resumes:
        return {}
    missing = {spec.name: spec.conform(_missing(plan, view, side, None)) for side, spec in plan.gone.items()}
    return {name: TableChanges(put=rows) for name, rows in missing.items()}


def _lost(plan: JoinTables, view: StateView, side: str, rows: pa.Table, bound: int | None) -> pa.Table:
    spec, seen = plan.sides[side], plan.seen(side)
    rows = placed(plan, side, rows, Admitted(), Mark(BEGINNING_US))
    known = view[seen.name].lookup(seen.conform_keys(rows.select(seen.key_names)))
    rows, was = rows.filter(known.found), positions(known.rows["position"].filter(known.found))
    places = positions(rows[plan.known_by(side)])
    usable = (was == places) & (True if bound is None else places > bound)
    usable &= ~is_known(view, plan.gone[side], rows)
    once = first_of_each(rows.select(seen.key_names), usable) == np.arange(rows.num_rows)
    rows = rows.filter(pa.array(once))
    return rows.filter(pc.invert(view[side].lookup(spec.conform_keys(rows)).found))


def _missing(plan: JoinTables, view: StateView, side: str, bound: int | None) -> pa.Table:
    """The identities behind no ``bound`` without a stored row, but for those that were given up."""
    seen = plan.seen(side)
    identities = known_rows(view, seen)
    if bound is not None:
        identities = identities.filter(pa.array(positions(identities["position"]) > bound))
    return without_stored(view, seen, identities, plan.stored_under[seen.name])
