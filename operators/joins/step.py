"""One step of a join: what a batch of either side meets, what is shown alone, what is remembered. Pure.

Reads go by the message key of each side: see `tidestate.operators.joins.pairs`.
"""

from __future__ import annotations

import pyarrow as pa

from tidestate.operators.describe.sides import SIDES
from tidestate.operators.joins.batch import Admitted
from tidestate.operators.joins.emission import hold
from tidestate.operators.joins.intake import admit
from tidestate.operators.joins.names import HELD_PAIRS
from tidestate.operators.joins.pairs import meet
from tidestate.operators.joins.rule import mark_after
from tidestate.operators.joins.tables import JoinTables
from tidestate.operators.joins.unmatched import show_alone
from tidestate.operators.plan.held_rows import NUMBERED
from tidestate.operators.plan.transition import StepTimes, Transition
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.store import StateView


def join_step(plan: JoinTables, view: StateView, arriving: pa.Table, at: StepTimes) -> Transition:
    """Take ``arriving`` rows of both sides into the state that ``view`` shows."""
    taken = admit(plan, view, arriving, at)
    met = meet(plan, view, taken, at)
    found = show_alone(plan, view, taken, met, at)
    changes = taken.changes | found.changes | _stored(plan, taken, at)
    pairs, due_us = [plan.panes(each) for each in met], None
    taken.count("pairs", sum(each.num_rows for each in pairs))
    taken.count("unmatched", found.shown.num_rows)
    taken.count("taken_back", found.back.num_rows)
    if plan.joined.held:
        first = taken.numbers.get(HELD_PAIRS, 0)
        taken.numbers[HELD_PAIRS] = first + sum(each.num_rows for each in pairs)
        shown, changes[HELD_PAIRS], due_us = hold(plan, view, met, first, at)
        pairs = [shown]
    if taken.numbers:
        changes[NUMBERED] = TableChanges(merge=_numbers(plan, taken))
    panes = pa.concat_tables([found.back, *pairs, found.shown])
    rejected = pa.concat_tables(taken.rejected) if taken.rejected else None
    return Transition(changes, panes, taken.counters, rejected, due_us)


def _stored(plan: JoinTables, taken: Admitted, at: StepTimes) -> dict[str, TableChanges]:
    """New rows that may yet be read; the others go."""
    changes = {}
    for side in SIDES:
        rows, bound = taken.rows[side], plan.meeting.forgotten(side, mark_after(at))
        if bound is not None and rows.num_rows:
            rows = rows.filter(pa.array(taken.places(plan.stores[side].position, side) > bound))
        changes[side] = TableChanges(put=rows if rows.num_rows else None, expire=bound)
    return changes


def _numbers(plan: JoinTables, taken: Admitted) -> pa.Table:
    names = sorted(taken.numbers)
    return pa.table([names, [taken.numbers[name] for name in names]], schema=plan.numbered.schema)
