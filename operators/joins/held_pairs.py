"""Held pairs: they are emitted at their update period. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidestate.operators.describe.sides import LEFT, RIGHT, SIDES
from tidestate.operators.joins.batch import JoinedRows
from tidestate.operators.joins.names import DUE, EMIT, FIRST, HELD_PAIRS, NUMBER, PHASE, SECOND, SENT
from tidestate.operators.joins.pair_tables import PairTables
from tidestate.operators.plan.dues import keys_within
from tidestate.operators.plan.transition import KINDS
from tidestate.operators.progress.progress import Context
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
from tidestate.statestore.arrays import constant
from tidestate.statestore.messages.tables import OFFSET
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.store import StateView


def hold(
    plan: PairTables, view: StateView, found: list[JoinedRows], first: int, context: Context
) -> tuple[pa.Table, TableChanges]:
    """Panes of the pairs, new or held before, that are due now; and what changes.

    ``first`` is the number of the first pair. At one time the pairs of newly sent left rows come first, in the order
    of these rows, then those of newly sent right rows.
    """
    spec, reached = plan.held, END_US if context.watermark == END_US else context.now_us
    new = _held(plan, found, first)
    now = new[DUE].to_numpy() <= reached
    kept = new.filter(pa.array(~now))
    due = pa.concat_tables([new.filter(pa.array(now)), *view[HELD_PAIRS].scan(keys_within(BEGINNING_US, reached))])
    rows = due.sort_by([(name, "ascending") for name in spec.key_names])
    kinds = constant(rows.num_rows, EMIT, KINDS)
    panes = pa.table([*rows.select(plan.pane_schema.names[:-1]).columns, kinds], schema=plan.pane_schema)
    return panes, TableChanges(put=kept)


def _held(plan: PairTables, found: list[JoinedRows], first: int) -> pa.Table:
    """New pairs as the table has them."""
    parts = [plan.held.schema.empty_table()]
    for pairs in found:
        count = len(pairs.places[LEFT])
        sent = {side: pairs.rows[side][SENT].to_numpy() for side in SIDES}
        offsets = {side: pairs.rows[side][OFFSET].to_numpy() for side in SIDES}
        due = np.maximum(sent[LEFT], sent[RIGHT])
        by_right = sent[RIGHT] == due
        order = {
            DUE: due,
            PHASE: by_right.astype(np.int64),
            FIRST: np.where(by_right, offsets[RIGHT], offsets[LEFT]),
            SECOND: np.where(by_right, offsets[LEFT], offsets[RIGHT]),
            NUMBER: np.arange(first, first + count),
        }
        first += count
        rows = plan.pair_panes(pairs)
        values = {name: rows[name] for name in rows.column_names}
        parts.append(plan.held.conform(pa.table(values | {name: pa.array(column) for name, column in order.items()})))
    return pa.concat_tables(parts)
