"""Joins bound to the schema of their one stream: by distance or windows, and by sessions. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.describe.configuration import configuration_of
from tidestate.operators.describe.join import Join, OwnWindows
from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.describe.sides import AT, LEFT, SIDE, SIDES
from tidestate.operators.describe.windows import END, PANE_TIME
from tidestate.operators.joins.batch import Admitted
from tidestate.operators.joins.held_pairs import hold
from tidestate.operators.joins.intake import admit, transition
from tidestate.operators.joins.limits import limited_rows, within_limits
from tidestate.operators.joins.names import DUE, ENDS, HELD_PAIRS, SESSIONS, UNTIL
from tidestate.operators.joins.pair_tables import PairTables
from tidestate.operators.joins.pairs import find_pairs, with_stored
from tidestate.operators.joins.rebuild import (
    given_up,
    identity_expiry,
    lost_rows,
    missed_pairs,
    put_back_by,
    with_rows_back,
)
from tidestate.operators.joins.rule import PairRule, mark_after, mark_before, without_none
from tidestate.operators.joins.session_rebuild import corrected_sessions, in_sessions, moved_sessions
from tidestate.operators.joins.session_step import session_step
from tidestate.operators.joins.session_tables import SessionJoinTables
from tidestate.operators.joins.unmatched import find_unmatched, unmatched_timers
from tidestate.operators.joins.window_rules import rule_of
from tidestate.operators.plan.plan import no_bound
from tidestate.operators.plan.transition import Timer, Transition
from tidestate.operators.progress.progress import Context
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
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

    def begun_as(self, described: Runnable) -> Self:
        """Windows of offsets without a start went from 0 before there were first offsets, and go on so."""
        if not isinstance(described, Join) or described.own is None or self.joined.own is None:
            return self
        begun = _starts_of(described.own, self.joined.own)
        if begun == self.joined.own:
            return self
        joined = msgspec.structs.replace(self.joined, own=begun)
        return replace(self, joined=joined, configuration=self.configuration | configuration_of(joined))

    def too_late(self, events: pa.Table, times: Times, watermark: int) -> Flags:
        """Rows behind the watermark for which no partner can come any more."""
        is_left = np.asarray(pc.fill_null(pc.equal(events[SIDE], LEFT), False))
        late: Flags = np.where(is_left, *(self.meeting.too_late(side, times, watermark) for side in SIDES))
        return late

    def refused(self, accepted: pa.Table, times: Times, watermark: int) -> pa.Table | None:
        if not self.overlapping:
            return None
        return refused_windows(self, accepted, times, watermark)

    def timers(self, context: Context) -> tuple[Timer, ...]:
        waits = () if self.follows_sides or self.loss is not None else unmatched_timers(self)
        held = (Timer(HELD_PAIRS, DUE, clock=True),) if self.joined.held else ()
        return (*waits, *held, *super().timers(context))

    def expiry(self, context: Context) -> dict[str, int]:
        return {**pair_expiry(self, self.standing(context)), **({} if self.replaying else super().expiry(context))}

    def wakes(self, context: Context) -> bool:
        """Also where a side's newest row closes windows of the other side."""
        moved = context.before.newest != context.after.newest
        return super().wakes(context) or (self.follows_sides and moved)

    def step(self, view: StateView, arriving: pa.Table, context: Context) -> Transition:
        if self.replaying:
            return _put_rows_back(self, view, arriving, self.standing(context))
        return self.taking(view, arriving, context, lambda rows: _pair_step(self, view, rows, self.standing(context)))

    def output_watermark(self, watermark: int, column: str = AT) -> int:
        """No pane from now on, not even a late one, has an earlier time; `BEGINNING_US` where any may come."""
        if self.stands:  # what is emitted once it goes on may be from then on
            watermark = min(watermark, self.mended_loss.watermark)
        side = self._side_of(column)
        if side is not None and not self.meeting.earliest(side, 0) > BEGINNING_US:
            raise no_bound(self, column, f"nothing bounds the rows of this side, and pairs are placed by {AT}")
        if side is None and column != AT:
            raise no_bound(self, column, f"pairs are placed by {AT}")
        if watermark in (BEGINNING_US, END_US):
            return watermark
        if side is not None and not self.joined.held:
            return self.meeting.earliest(side, watermark)
        # Held pairs may be of any time.
        return BEGINNING_US if self.joined.held else self.meeting.output_watermark(watermark)

    def _side_of(self, column: str) -> str | None:
        """The side whose event times are in this column of pairs; None if it is another column, or one of both."""
        sides = self.joined.sides
        times = {sides.prefixed(side, sides.time_of(side)): side for side in SIDES}
        return times.get(column) if len(times) == len(SIDES) else None


@dataclass(frozen=True, kw_only=True)
class SessionJoinPlan(SessionJoinTables):
    """A join of the rows of two sides that lie in the same session of a key."""

    def too_late(self, events: pa.Table, times: Times, watermark: int) -> Flags:
        """Rows whose own session would have closed."""
        late = too_late(self, events, times, watermark)
        counts = self._since_start(events, times)
        return late if counts is None else late & counts

    def arrive(self, accepted: pa.Table, times: Times, context: Context) -> pa.Table:
        counts = self._since_start(accepted, times)
        if counts is not None:
            accepted, times = accepted.filter(pa.array(counts)), times[counts]
        _, _, ends = assign_windows(self.kind, times, accepted)
        accepted = accepted.append_column(UNTIL, pa.array(ends))
        if not self.input.key:
            accepted = accepted.append_column(NO_KEY, pa.array(np.zeros(len(times), np.int8)))
        return super().arrive(accepted, times, context)

    def _since_start(self, rows: pa.Table, offsets: Times) -> Flags | None:
        """Which rows are not before the first offset of their side; None where that is 0."""
        if self.joined.starts is None:
            return None
        left, right = self.joined.starts
        is_left = np.asarray(pc.fill_null(pc.equal(rows[SIDE], LEFT), False))
        return np.asarray(offsets >= np.where(is_left, left, right), bool)

    def timers(self, context: Context) -> tuple[Timer, ...]:
        return (Timer(ENDS, END, (0, self.allowed_us) if self.allowed_us else (0,)),)

    def expiry(self, context: Context) -> dict[str, int]:
        bounds = identity_expiry(self, context)
        over = self.meeting.unknown(LEFT, mark_after(context))  # the same on both sides
        if self.replaying or over is None:
            return bounds
        kept = (self.sessions, self.ends, self.moved) if self.back else (self.sessions, self.ends)
        return bounds | {spec.name: over for spec in kept}

    def step(self, view: StateView, arriving: pa.Table, context: Context) -> Transition:
        if self.replaying:
            found = lost_rows(self, view, arriving, context, lambda rows: in_sessions(self, view, rows))
            moved = put_back_by(found, corrected_sessions(self, view, found, context), "retractions")
            return replace(moved, changes={**moved.changes, SESSIONS: TableChanges(), ENDS: TableChanges()})
        made = session_step(self, view, arriving, context)
        lost = moved_sessions(self, view, made.changes, context) | given_up(self, view, context)
        return replace(made, changes={**made.changes, **lost})

    def output_watermark(self, watermark: int, column: str = AT) -> int:
        """No row to come, late ones included, has an earlier ``time``, or ``window_end``."""
        if self.by_offset:
            raise no_bound(self, column, "its sessions are of offsets")
        if column not in (AT, END, PANE_TIME):
            raise UsageError(
                "a session may have begun at any time, so its start cannot be an event time: use its end",
                code="chain-time",
                column=column,
                use=AT,
            )
        return self.meeting.output_watermark(watermark)


def _put_rows_back(plan: PairTables, view: StateView, arriving: pa.Table, context: Context) -> Transition:
    """Put lost rows of a replay back: ``arriving`` are rows of `exchanged`, in any number of copies and any order."""
    found, mark = lost_rows(plan, view, arriving, context), mark_before(context)
    missed = missed_pairs(plan, view, found, lambda old, side: with_stored(plan, view, old, side, mark, context))
    pairs = within_limits(plan, view, missed)
    none = Admitted({side: plan.sides[side].schema.empty_table() for side in SIDES})
    alone = find_unmatched(plan, with_rows_back(plan, view, found), none, pairs, context)
    panes = pa.concat_tables([alone.retracted, *map(plan.pair_panes, pairs)])
    moved = put_back_by(found, panes, "taken_back")
    return replace(moved, changes={**moved.changes, **alone.changes})


def _pair_step(plan: PairTables, view: StateView, arriving: pa.Table, context: Context) -> Transition:
    """Pair ``arriving`` rows of both sides with each other and with the stored rows of ``view``."""
    admitted = admit(plan, view, arriving, context)
    found = find_pairs(plan, view, admitted, context)
    alone = find_unmatched(plan, view, admitted, found, context)
    changes = alone.changes | _stored(plan, admitted, context) | given_up(plan, view, context)
    changes |= limited_rows(plan, view, admitted, context)
    pairs = [plan.pair_panes(each) for each in found]
    count = sum(each.num_rows for each in pairs)
    admitted.count("pairs", count)
    admitted.count("unmatched", alone.emitted.num_rows)
    admitted.count("taken_back", alone.retracted.num_rows)
    if plan.joined.held:
        first = admitted.numbers.get(HELD_PAIRS, 0)
        if count:
            admitted.numbers[HELD_PAIRS] = first + count
        emitted, changes[HELD_PAIRS] = hold(plan, view, found, first, context)
        pairs = [emitted]
    return transition(plan, admitted, changes, [alone.retracted, *pairs, alone.emitted])


def pair_expiry(plan: PairTables, context: Context) -> dict[str, int]:
    """Rows expire when they can meet no other, or are not retained any more; pairs that wait when they are due."""
    bounds, after = identity_expiry(plan, context), mark_after(context)
    if plan.retracts_unmatched:
        kept = [side for side in SIDES if plan.joined.keeps(side)]
        finals = {plan.alone[side].name: plan.meeting.final(side, after) for side in kept}
        bounds |= {name: final - 1 for name, final in finals.items() if final > BEGINNING_US}
    if plan.replaying:
        return bounds
    bounds |= without_none({side: plan.meeting.expired(side, after) for side in SIDES})
    return bounds | (
        {HELD_PAIRS: END_US - 1 if context.watermark == END_US else context.now_us} if plan.joined.held else {}
    )


def _stored(plan: PairTables, admitted: Admitted, context: Context) -> dict[str, TableChanges]:
    """New rows that may still be read."""
    changes = {}
    for side in SIDES:
        rows, bound = admitted.rows[side], plan.meeting.expired(side, mark_after(context))
        if bound is not None:
            rows = rows.filter(pa.array(positions(rows[plan.stores[side].position]) > bound))
        changes[side] = TableChanges(put=rows)
    return changes


def _starts_of(was: OwnWindows, now: OwnWindows) -> OwnWindows:
    """The windows ``now`` of both sides; where they name no start, and were from 0, those."""
    left, right = (
        before if after is not None and after.from_first and after.begun_at(0) == before else after
        for before, after in zip(was, now, strict=True)
    )
    return left, right
