"""During a rebuild: which rows could not have met a lost row, because that row would already have expired. Pure.

While rows are missing nothing expires, and a row that a replay puts back meets all that have come since the loss. One
that came long after its time, or that another one waits for only as long as it is retained, would not have met what
had expired by then: the tables ``limited_left`` and ``limited_right`` have the position up to which rows of the other
side had. Windows need none: a row is refused as soon as its window is over.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.describe.sides import SIDES
from tidestate.operators.joins.batch import Admitted, JoinedRows
from tidestate.operators.joins.names import OTHER_SIDE, OVER
from tidestate.operators.joins.pair_tables import PairTables
from tidestate.operators.joins.rule import Mark, mark_before
from tidestate.operators.progress.progress import Context
from tidestate.operators.progress.watermarks import BEGINNING_US
from tidestate.statestore.arrays import Flags
from tidestate.statestore.messages.identities import known_rows
from tidestate.statestore.spec.arrowtypes import positions
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.store import StateView


def limited_rows(plan: PairTables, view: StateView, admitted: Admitted, context: Context) -> dict[str, TableChanges]:
    """What a step changes: new rows that are limited are added; once nothing is missing any more, all go."""
    if plan.resumes:
        return {
            spec.name: TableChanges(delete=known_rows(view, spec).select(spec.key_names))
            for spec in plan.limited.values()
        }
    changes, mark = {}, mark_before(context)
    for side, spec in plan.limited.items() if plan.loss is not None else ():
        other, rows = OTHER_SIDE[side], admitted.rows[side]
        reached = plan.meeting.unreachable(other, mark)
        if reached is not None and reached != plan.meeting.unreachable(other, Mark(plan.mended_loss.watermark)):
            lower, _ = plan.meeting.reach(side, admitted.times(side), mark)
            if lower is not None:
                rows = rows.filter(pa.array(lower <= reached))
            column = pa.array(np.full(rows.num_rows, reached))
            changes[spec.name] = TableChanges(put=spec.conform(rows.append_column(OVER, column)))
    return changes


def within_limits(plan: PairTables, view: StateView, missed: list[JoinedRows]) -> list[JoinedRows]:
    """Of the pairs of rows that are put back and those that have come since, by side, those that would have met."""
    each = zip(SIDES, missed, strict=True)
    return [pairs.take(np.flatnonzero(_may_meet(plan, view, side, pairs))) for side, pairs in each]


def _may_meet(plan: PairTables, view: StateView, side: str, pairs: JoinedRows) -> Flags:
    """Which rows of ``side`` that are put back had not expired before the other row came."""
    other = OTHER_SIDE[side]
    if other not in plan.limited:
        return np.ones(len(pairs.places[side]), bool)
    spec = plan.limited[other]
    reached = view[spec.name].lookup(pairs.rows[other].select(spec.key_names)).rows[OVER]
    places = positions(pairs.rows[side][plan.stores[side].position])
    found: Flags = places > positions(pc.fill_null(reached, BEGINNING_US))
    return found
