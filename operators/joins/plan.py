"""Joins bound to the schema of their one stream: by distance or windows, and by sessions. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.describe.sides import AT, LEFT, SIDE, SIDES
from tidestate.operators.describe.windows import END
from tidestate.operators.joins.batch import Admitted
from tidestate.operators.joins.held_pairs import hold
from tidestate.operators.joins.intake import admit, transition
from tidestate.operators.joins.names import HELD_PAIRS, UNTIL
from tidestate.operators.joins.pair_tables import PairTables
from tidestate.operators.joins.pairs import find_pairs, with_stored
from tidestate.operators.joins.rebuild import put_rows_back
from tidestate.operators.joins.rule import PairRule, mark_after, mark_before
from tidestate.operators.joins.session_step import session_step
from tidestate.operators.joins.session_tables import SessionJoinTables
from tidestate.operators.joins.unmatched import find_unmatched, unmatched_due
from tidestate.operators.joins.window_rules import rule_of
from tidestate.operators.plan.plan import PANE_TIME, Arrival, no_bound
from tidestate.operators.plan.transition import StepTimes, Transition
from tidestate.operators.progress.instants import BEGINNING_US, END_US
from tidestate.operators.windows.assignment import assign_windows, refused_windows, too_late
from tidestate.operators.windows.names import NO_KEY
from tidestate.statestore.arrays import Flags, Times
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.arrowtypes import positions
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.store import StateView


@dataclass(frozen=True, kw_only=True)
class JoinPlan(PairTables):
    """A join by distance or by windows."""

    @cached_property
    def meeting(self) -> PairRule:
        return rule_of(self.joined)

    def too_late(self, events: pa.Table, times: Times, watermark: int, *, reprocessing: bool) -> Flags:
        """Rows behind the watermark for which no partner can come any more."""
        is_left = np.asarray(pc.fill_null(pc.equal(events[SIDE], LEFT), False))
        late: Flags = np.where(is_left, *(self.meeting.too_late(side, times, watermark) for side in SIDES))
        return late

    def refused(self, accepted: pa.Table, times: Times, watermark: int, *, reprocessing: bool) -> pa.Table | None:
        if not self.overlapping:
            return None
        return refused_windows(self, accepted, times, watermark, reprocessing=reprocessing)

    def step(self, view: StateView, arriving: pa.Table, at: StepTimes) -> Transition:
        if at.rebuilding:
            mark = mark_before(at)
            return put_rows_back(
                self, view, arriving, at, lambda old, side: with_stored(self, view, old, side, mark, at)
            )
        return self.taking(view, arriving, at, lambda rows: _pair_step(self, view, rows, at))

    def output_watermark(self, watermark: int, column: str = AT) -> int:
        """No pane from now on, not even a late one, has an earlier time; `BEGINNING_US` where any may come."""
        if column != AT:
            raise no_bound(self, column, f"pairs are placed by {AT}")
        if watermark in (BEGINNING_US, END_US):
            return watermark
        # Held pairs may be of any time.
        return BEGINNING_US if self.joined.held else self.meeting.output_watermark(watermark)


@dataclass(frozen=True, kw_only=True)
class SessionJoinPlan(SessionJoinTables):
    """A join by sessions."""

    def too_late(self, events: pa.Table, times: Times, watermark: int, *, reprocessing: bool) -> Flags:
        """Rows whose own session would have closed."""
        return too_late(self, events, times, watermark, reprocessing=reprocessing)

    def arrive(self, accepted: pa.Table, times: Times, arrival: Arrival) -> pa.Table:
        _, _, ends = assign_windows(self.kind, times, accepted)
        accepted = accepted.append_column(UNTIL, pa.array(ends))
        if not self.key_fields:
            accepted = accepted.append_column(NO_KEY, pa.array(np.zeros(len(times), np.int8)))
        return super().arrive(accepted, times, arrival)

    def step(self, view: StateView, arriving: pa.Table, at: StepTimes) -> Transition:
        return session_step(self, view, arriving, at)

    def output_watermark(self, watermark: int, column: str = AT) -> int:
        """No row to come, late ones included, has an earlier ``time``, or ``window_end``."""
        if column not in (AT, END, PANE_TIME):
            raise UsageError(
                "a session may have begun at any time: go by its end", code="chain-time", column=column, use=AT
            )
        return self.meeting.output_watermark(watermark)


def _pair_step(plan: PairTables, view: StateView, arriving: pa.Table, at: StepTimes) -> Transition:
    """Pair ``arriving`` rows of both sides with each other and with the stored rows of ``view``."""
    admitted = admit(plan, view, arriving, at)
    found = find_pairs(plan, view, admitted, at)
    alone = find_unmatched(plan, view, admitted, found, at)
    changes = alone.changes | _stored(plan, admitted, at)
    pairs, due_us = [plan.pair_panes(each) for each in found], None
    count = sum(each.num_rows for each in pairs)
    admitted.count("pairs", count)
    admitted.count("unmatched", alone.emitted.num_rows)
    admitted.count("taken_back", alone.retracted.num_rows)
    if plan.joined.held:
        first = admitted.numbers.get(HELD_PAIRS, 0)
        if count:
            admitted.numbers[HELD_PAIRS] = first + count
        emitted, changes[HELD_PAIRS], due_us = hold(plan, view, found, first, at)
        pairs = [emitted]
    due_mark = unmatched_due(plan, view, changes, at)
    return transition(plan, admitted, changes, [alone.retracted, *pairs, alone.emitted], due_us, due_mark)


def _stored(plan: PairTables, admitted: Admitted, at: StepTimes) -> dict[str, TableChanges]:
    """New rows that may still be read."""
    changes = {}
    for side in SIDES:
        rows, bound = admitted.rows[side], plan.meeting.expired(side, mark_after(at))
        if bound is not None:
            rows = rows.filter(pa.array(positions(rows[plan.stores[side].position]) > bound))
        changes[side] = TableChanges(put=rows, expire=bound)
    for side, spec in plan.back.items():
        changes[spec.name] = TableChanges(expire=plan.meeting.unreachable(side, mark_after(at)))
    return changes
