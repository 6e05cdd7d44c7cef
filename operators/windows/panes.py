"""Results of groups, and retractions of their last panes. Pure and vectorised."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.aggregates.results import results
from tidestate.operators.progress.progress import Context
from tidestate.operators.windows.groups import Gathered, column_numbers
from tidestate.operators.windows.names import EMITTED, PANES
from tidestate.operators.windows.tables import GroupTables
from tidestate.statestore.arrays import Flags


def values_where(plan: GroupTables, groups: pa.Table, where: Flags) -> pa.Table:
    """Results of the groups ``where``, null in the others: a function of the user may be expensive."""
    if where.all():
        return results(plan.aggregates, groups)
    values = results(plan.aggregates, groups.filter(pa.array(where)))
    places = np.cumsum(where) - 1
    return values.take(pa.array(places, mask=~where))


def retractions(plan: GroupTables, groups: pa.Table, timing: str) -> pa.Table:
    """The last panes of ``groups`` again, as retractions."""
    results = [groups[f"_last_{a.name}"] for a in plan.aggregates]
    values = pa.table(results, names=[a.name for a in plan.aggregates])
    number = pc.subtract(groups[PANES], 1)
    return plan.panes(groups, values, number, timing, "retract", np.zeros(groups.num_rows, bool))


def replaced_panes(plan: GroupTables, gathered: Gathered, context: Context) -> list[pa.Table]:
    """Retractions of the panes of sessions that were merged into others, with the timing of the merged ones."""
    rows, emitted = plan.as_whole(gathered.replaced), column_numbers(gathered.replaced, EMITTED) > 0
    behind, passed = gathered.became <= context.watermark_before, gathered.became <= context.watermark
    timings = (("late", behind), ("on_time", passed & ~behind), ("early", ~passed & ~behind))
    return [retractions(plan, rows.filter(pa.array(mask & emitted)), timing) for timing, mask in timings]
