"""A replay of both sides puts lost rows of a join back, and emits the pairs that were missed meanwhile. Pure.

Identities are whole, and a state partition that has lost a file starts without any rows. So of the stored rows those
that a replay put back are older than the loss, the tables ``back_left`` and ``back_right`` have their identities, and
all others have come since. Two old rows had met by the time of the loss. An old row and one that has come since meet
when the old one is put back: as long as neither has expired this is the pair that would have been emitted, since the
distance of their times, or the one window that holds both, decides.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.describe.sides import SIDE, SIDES
from tidestate.operators.joins.batch import Admitted, JoinedRows
from tidestate.operators.joins.intake import placed
from tidestate.operators.joins.names import OTHER_SIDE
from tidestate.operators.joins.pair_tables import PairTables
from tidestate.operators.joins.rule import Mark, mark_before
from tidestate.operators.plan.ledger import INCOMPLETE, PUT_BACK
from tidestate.operators.plan.transition import StepTimes, Transition
from tidestate.statestore.messages.identities import first_of_each, is_known, remember
from tidestate.statestore.spec.arrowtypes import positions
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.store import StateView


def put_rows_back(
    plan: PairTables,
    view: StateView,
    arriving: pa.Table,
    at: StepTimes,
    with_stored: Callable[[Admitted, str], JoinedRows],
) -> Transition:
    """The transition by a replay: ``arriving`` are rows of `exchanged`, in any number of copies and any order.
    ``with_stored`` has the pairs of a side's rows and the stored ones of the other.
    """
    arriving = arriving.rename_columns([plan.kept.get(name, name) for name in arriving.column_names])
    old, mark, changes, lacking = Admitted(), mark_before(at), dict[str, TableChanges](), 0
    for side, spec in plan.back.items():
        bound = plan.meeting.unreachable(side, mark)
        rows = _lost(plan, view, side, arriving.filter(pc.equal(arriving[SIDE], side)), mark)
        old.rows[side] = rows
        changes[side] = TableChanges(put=rows)
        changes[spec.name] = remember(spec, rows, rows[plan.known_by(side)], bound)
        there = _count(view, side, plan.stores[side].position, bound) + rows.num_rows
        # An identity may be known in several state partitions after a rescale, or stand for two rows.
        lacking += max(0, _count(view, plan.seen(side).name, "position", bound) - there)
    missed = [plan.pane_schema.empty_table()]
    for side in SIDES:
        met, other = with_stored(old, side), OTHER_SIDE[side]
        missed.append(plan.pair_panes(met.take(np.flatnonzero(~is_known(view, plan.back[other], met.rows[other])))))
    panes = pa.concat_tables(missed)
    put = sum(rows.num_rows for rows in old.rows.values())
    counters = {PUT_BACK: put, "pairs": panes.num_rows, INCOMPLETE: lacking}
    return Transition(changes, panes, {name: count for name, count in counters.items() if count})


def _lost(plan: PairTables, view: StateView, side: str, rows: pa.Table, mark: Mark) -> pa.Table:
    """Rows of a side that had been accepted, may still meet others and are not stored any more, each once; as its
    table has them. Those that are retained for queries only are left out.
    """
    spec, seen, bound = plan.sides[side], plan.seen(side), plan.meeting.unreachable(side, mark)
    rows = placed(plan, side, rows, Admitted(), mark)
    known = view[seen.name].lookup(seen.conform_keys(rows.select(seen.key_names)))
    rows, was = rows.filter(known.found), positions(known.rows["position"].filter(known.found))
    places = positions(rows[plan.known_by(side)])
    usable = (was == places) & (True if bound is None else places > bound)
    once = first_of_each(rows.select(seen.key_names), usable) == np.arange(rows.num_rows)
    rows = spec.conform(rows.filter(pa.array(once)))
    return rows.filter(pc.invert(view[side].lookup(spec.conform_keys(rows)).found))


def _count(view: StateView, table: str, position: str, bound: int | None) -> int:
    """How many rows of a table are behind no bound."""
    parts = (positions(rows[position]) for rows in view[table].scan())
    return sum(len(places) if bound is None else int(np.count_nonzero(places > bound)) for places in parts)
