"""The new rows of each side of a session join: placed, each known one passed over, as the side keeps them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.describe.sides import AT, LEFT, RIGHT, SIDE
from tidestate.operators.joins.batch import DUPLICATES, bad_offsets
from tidestate.operators.joins.sessions.names import NUMBERED, PLACE, UNTIL
from tidestate.operators.joins.sessions.tables import SessionJoinTables
from tidestate.operators.plan.ledger import BAD_OFFSET, ledger
from tidestate.operators.plan.transition import StepTimes
from tidestate.operators.progress.instants import BEGINNING_US, END_US
from tidestate.statestore.errors import expect
from tidestate.statestore.messages.tables import MESSAGE_TIME, OFFSET, ORIGIN
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.spec.tables import TIME
from tidestate.statestore.table.sorting import firsts, ranks


@dataclass
class AdmittedSessions:
    """``rows`` of each side that are new, beside them where each would end by itself; and what that changes."""

    rows: dict[str, pa.Table] = field(default_factory=dict)
    changes: dict[str, TableChanges] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    rejected: pa.Table | None = None

    def count(self, name: str, rows: int) -> None:
        """Add to a counter."""
        self.counters[name] = self.counters.get(name, 0) + rows

    def reject(self, rows: pa.Table) -> None:
        """Rows for the ledger."""
        self.rejected = rows if self.rejected is None else pa.concat_tables([self.rejected, rows])


def admit_sessions(plan: SessionJoinTables, view: StateView, arriving: pa.Table, at: StepTimes) -> AdmittedSessions:
    """Rows of both sides that arrive."""
    taken = AdmittedSessions()
    for side in (LEFT, RIGHT):
        rows = arriving.filter(pc.equal(arriving[SIDE], side))
        named = plan.given(side, OFFSET) is not None
        rows = _sound(plan, side, rows, taken, at) if named else rows
        rows = rows.rename_columns([plan.kept.get(name, name) for name in rows.column_names])
        taken.rows[side] = _once(plan, view, side, _placed(plan, side, rows), taken, at) if named else rows
    if len(plan.identified) < 2:
        _number(plan, view, taken)
    for side, rows in taken.rows.items():
        taken.rows[side] = rows.append_column(MESSAGE_TIME, rows[PLACE].cast(TIME))
    return taken


def _number(plan: SessionJoinTables, view: StateView, taken: AdmittedSessions) -> None:
    """Rows without offsets have a running number instead."""
    sides = [side for side in taken.rows if side not in plan.identified]
    known = view[NUMBERED].lookup(pa.table({SIDE: sides})).rows["count"].to_pylist()
    counts = []
    for side, before in zip(sides, known, strict=True):
        rows, first = taken.rows[side], before or 0
        counts.append(first + rows.num_rows)
        rows = rows.append_column(OFFSET, pa.array(np.arange(first, first + rows.num_rows)))
        taken.rows[side] = rows.append_column(ORIGIN, pa.array(np.zeros(rows.num_rows, np.int8)))
    taken.changes[NUMBERED] = TableChanges(merge=pa.table({SIDE: sides, "count": pa.array(counts, pa.int64())}))


def _sound(plan: SessionJoinTables, side: str, rows: pa.Table, taken: AdmittedSessions, at: StepTimes) -> pa.Table:
    """Rows whose offsets are some; the others are rejected."""
    offset, origin = expect(plan.given(side, OFFSET), "this side has offsets", side=side), plan.given(side, ORIGIN)
    bad = bad_offsets(rows, offset, origin)
    if bad is None:
        return rows
    gone = rows.filter(bad)
    taken.reject(ledger(plan, gone.append_column(AT, gone[PLACE].cast(TIME)), BAD_OFFSET, at.before))
    taken.count(BAD_OFFSET, gone.num_rows)
    return rows.filter(pc.invert(bad))


def _placed(plan: SessionJoinTables, side: str, rows: pa.Table) -> pa.Table:
    """With offset and origin under the names that they are kept by."""
    offset, origin = expect(plan.given(side, OFFSET), "this side has offsets", side=side), plan.given(side, ORIGIN)
    rows = rows.append_column(OFFSET, rows[offset].cast(pa.int64()))
    return rows.append_column(ORIGIN, rows[origin] if origin else pa.array(np.zeros(rows.num_rows, np.int8)))


def _once(
    plan: SessionJoinTables, view: StateView, side: str, rows: pa.Table, taken: AdmittedSessions, at: StepTimes
) -> pa.Table:
    """Rows that have not been here, the first of each. One is known as long as it would be taken again."""
    spec, arrived = plan.seen[side], rows.num_rows
    fresh = ~np.asarray(view[spec.name].lookup(rows.select([OFFSET, ORIGIN])).found, bool)
    rows = rows.filter(pa.array(fresh))
    once = firsts(*ranks(rows.select([OFFSET, ORIGIN]))) if rows.num_rows else np.zeros(0, np.int64)
    rows = rows.take(pa.array(np.sort(once)))
    taken.count(DUPLICATES, arrived - rows.num_rows)
    bound = None if at.after == BEGINNING_US else min(plan.closed_at(at.after), END_US - 1)
    known = spec.conform(rows)
    if bound is not None:
        known = known.filter(pc.greater(known[UNTIL], bound))
    taken.changes[spec.name] = TableChanges(put=known if known.num_rows else None, expire=bound)
    return rows
