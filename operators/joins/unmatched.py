"""Rows of outer joins that have met nobody: who waits, who is shown, who is taken back. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.describe.sides import SIDES
from tidestate.operators.joins.batch import Admitted, JoinedRows
from tidestate.operators.joins.names import DUE
from tidestate.operators.joins.rule import mark_after, mark_before
from tidestate.operators.joins.tables import JoinTables
from tidestate.operators.plan.transition import StepTimes
from tidestate.operators.progress.instants import END_US
from tidestate.statestore.arrays import Times
from tidestate.statestore.messages.tables import MESSAGE_TIME
from tidestate.statestore.spec.arrowtypes import positions
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.keyrange import key_range
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.table.sorting import firsts, lasts, ranks, shared_ranks


@dataclass(frozen=True)
class Alone:
    """Panes that take back and those that show rows alone, and what that changes."""

    back: pa.Table
    shown: pa.Table
    changes: dict[str, TableChanges]


def show_alone(plan: JoinTables, view: StateView, taken: Admitted, met: list[JoinedRows], at: StepTimes) -> Alone:
    """What closes without a partner, and what finds one after all."""
    back, shown = [plan.pane_schema.empty_table()], [plan.pane_schema.empty_table()]
    changes: dict[str, TableChanges] = {}
    for side in SIDES:
        if plan.joined.keeps(side):
            partnered = _partnered(plan, side, met, at)
            if plan.takes_back:
                back.append(_take_back(plan, view, side, partnered, at, changes))
            shown.append(_close(plan, view, side, taken, met, partnered, at, changes))
    return Alone(pa.concat_tables(back), pa.concat_tables(shown), changes)


def _close(
    plan: JoinTables,
    view: StateView,
    side: str,
    taken: Admitted,
    met: list[JoinedRows],
    found: pa.Table,
    at: StepTimes,
    changes: dict[str, TableChanges],
) -> pa.Table:
    """Panes of rows whose time is up; the others without a partner wait on."""
    spec = plan.waiting[side]
    ends = plan.meeting.final if plan.joined.unmatched == "final" else plan.meeting.closed
    closed = ends(side, mark_after(at))
    stored = pa.concat_tables([spec.schema.empty_table(), *_due(view, spec.name, closed)])
    still = _without(stored, found, spec.key_names)
    new, dues = _unmet(plan, side, taken, met, at)
    now = dues < closed if closed != END_US else np.ones(len(dues), bool)
    waits = _keyed(plan, side, taken.rows[side].take(pa.array(new[~now])), dues[~now])
    fresh = taken.rows[side].take(pa.array(new[now]))
    gone = _once(pa.concat_tables([stored, found]))
    changes[spec.name] = TableChanges(delete=_some(gone), put=_some(waits))
    there = view[side].lookup(plan.sides[side].conform_keys(still)).rows
    all_dues = np.concatenate([still[DUE].to_numpy(), dues[now]])
    shown = pa.concat_tables([there, fresh])
    if plan.takes_back:
        _remember(plan, side, _keyed(plan, side, shown, all_dues), at, changes)
    return plan.rows_alone(side, shown, all_dues, "emit")


def _partnered(plan: JoinTables, side: str, met: list[JoinedRows], at: StepTimes) -> pa.Table:
    """Stored rows that have found somebody now, whether they waited or not; each for each window."""
    found = [_keyed_pairs(plan, side, pairs, at) for pairs in met]
    return pa.concat_tables([plan.waiting[side].schema.empty_table(), *found])


def _keyed_pairs(plan: JoinTables, side: str, pairs: JoinedRows, at: StepTimes) -> pa.Table:
    stored = np.flatnonzero(pairs.places[side] < 0)
    rows = pairs.rows[side].take(pa.array(stored))
    if pairs.ends is not None and plan.joined.occurrence == "each":
        return _keyed(plan, side, rows, pairs.ends[stored] - 1)
    held, dues = _dues(plan, side, rows, at)
    return _keyed(plan, side, rows if held is None else rows.take(pa.array(held)), dues)


def _dues(plan: JoinTables, side: str, rows: pa.Table, at: StepTimes) -> tuple[Times | None, Times]:
    times, places = positions(rows[MESSAGE_TIME]), positions(rows[plan.stores[side].position])
    return plan.meeting.dues(side, times, places, mark_before(at))


def _unmet(plan: JoinTables, side: str, taken: Admitted, met: list[JoinedRows], at: StepTimes) -> tuple[Times, Times]:
    """New rows that have met nobody: their numbers, each for each window where it counts, and when they are due."""
    rows = taken.rows[side]
    held, dues = _dues(plan, side, rows, at)
    numbers = np.arange(rows.num_rows) if held is None else held
    new = [pairs.places[side] >= 0 for pairs in met]
    matched = np.concatenate([pairs.places[side][flags] for pairs, flags in zip(met, new, strict=True)])
    if plan.joined.windows is not None and plan.joined.occurrence == "each":
        ends = [pairs.ends[flags] for pairs, flags in zip(met, new, strict=True) if pairs.ends is not None]
        found = pa.table({"row": matched, DUE: np.concatenate(ends) - 1})
        unmet = ~_among(pa.table({"row": numbers, DUE: dues}), found, ["row", DUE])
    else:
        flags = np.ones(rows.num_rows, bool)
        flags[matched] = False
        unmet = flags[numbers]
    return numbers[unmet], dues[unmet]


def _take_back(
    plan: JoinTables, view: StateView, side: str, found: pa.Table, at: StepTimes, changes: dict[str, TableChanges]
) -> pa.Table:
    """Panes that take back rows which were shown alone and have found somebody."""
    spec, final = plan.alone[side], plan.meeting.final(side, mark_after(at))
    asked = _once(found.filter(pc.less(found[DUE], plan.meeting.closed(side, mark_before(at)))))
    gone = asked.filter(view[spec.name].lookup(asked).found)
    rows = view[side].lookup(plan.sides[side].conform_keys(gone)).rows
    changes[spec.name] = TableChanges(delete=_some(gone), expire=_last_before(final))
    return plan.rows_alone(side, rows, gone[DUE].to_numpy(), "retract")


def _remember(plan: JoinTables, side: str, shown: pa.Table, at: StepTimes, changes: dict[str, TableChanges]) -> None:
    """Who was shown alone, as long as that may change."""
    spec, final = plan.alone[side], plan.meeting.final(side, mark_after(at))
    kept = shown.filter(pc.greater_equal(shown[DUE], final)) if final != END_US else shown.slice(0, 0)
    was = changes[spec.name]
    changes[spec.name] = TableChanges(delete=was.delete, put=_some(kept), expire=was.expire)


def _keyed(plan: JoinTables, side: str, rows: pa.Table, dues: Times) -> pa.Table:
    """Rows of a side as the tables of waiting ones have them."""
    return plan.waiting[side].conform(rows.append_column(DUE, pa.array(dues, pa.int64())))


def _due(view: StateView, table: str, closed: int) -> list[pa.Table]:
    """Those whose time is up."""
    return list(view[table].scan(key_range(upper=None if closed == END_US else (closed,))))


def _last_before(bound: int) -> int | None:
    """An expiry bound of what lies before; None for nothing."""
    return bound - 1 if bound > -(2**63) else None


def _without(rows: pa.Table, others: pa.Table, names: list[str]) -> pa.Table:
    return rows.filter(pa.array(~_among(rows, others, names)))


def _among(rows: pa.Table, others: pa.Table, names: list[str]) -> npt.NDArray[np.bool_]:
    """Which of ``rows`` agree with one of the others in these columns."""
    if not rows.num_rows or not others.num_rows:
        return np.zeros(rows.num_rows, bool)
    (own, theirs), count = shared_ranks([rows.select(names), others.select(names)])
    found: npt.NDArray[np.bool_] = (lasts(theirs, count) >= 0)[own]
    return found


def _once(rows: pa.Table) -> pa.Table:
    return rows.take(pa.array(firsts(*ranks(rows)))) if rows.num_rows else rows


def _some(rows: pa.Table) -> pa.Table | None:
    return rows if rows.num_rows else None
