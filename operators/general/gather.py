"""The groups a step is about, as they are with what the batch brings: touched ones, and those whose time has come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from operators.general.arrive import int_bounds
from operators.general.counting import count_windows, number
from operators.general.names import (
    CLOCK,
    COUNTED,
    ELEMENTS,
    END,
    ENDS,
    GROUPS,
    MARKS,
    PANES,
    PENDING,
    SHOWN,
    SINCE,
    START,
)
from operators.general.sessions import merge_sessions
from operators.transition import BEGINNING_US, END_US, Moments
from operators.windows import Counted
from statestore.fold import combine
from statestore.layers import align
from statestore.sorting import order
from statestore.store import StateView

if TYPE_CHECKING:
    from operators.general.plan import GeneralPlan

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class Gathered:
    """``groups``: rows of `GeneralPlan.whole`; ``touched``: to which of them the batch brings something.

    ``stored``: those there were; ``new``: what it brings, with the windows that became of it; in order, where
    each event travels by itself.
    ``replaced``: stored sessions that became part of others, as stored; ``became``: the end of what they are now.
    ``reached``: of counted windows how many messages their key has now; ``counts``: rows of the counted table to put.
    """

    groups: pa.Table
    touched: Flags
    stored: pa.Table
    new: pa.Table
    replaced: pa.Table
    became: Numbers
    reached: Numbers
    counts: pa.Table | None = None


def gather(plan: GeneralPlan, view: StateView, arriving: pa.Table, at: Moments) -> Gathered:
    """Everything this step may show or change."""
    timed = _timed(plan, view, at)
    if plan.per_event and plan.order:
        arriving = arriving.take(pa.array(order(arriving.select(plan.order_names))))
    if plan.by_number:
        return _counted(plan, view, arriving, timed, at)
    if plan.sessions:
        return _sessions(plan, view, arriving, timed, at)
    stored = _fixed(plan, view, arriving, timed, at)
    groups, touched = _joined(plan, stored, arriving, stored, at)
    return Gathered(groups, touched, stored, arriving, _nothing(plan), NONE, NONE)


def _timed(plan: GeneralPlan, view: StateView, at: Moments) -> pa.Table:
    """Identities of groups that are due by the clock, or by the watermark before their end; some are out of date."""
    names = [*plan.group_keys, START, END]
    found = [plan.clock.schema.empty_table().select(names)]
    for name, bound, moved in ((CLOCK, at.now, at.now > at.was), (MARKS, at.after, at.after > at.before)):
        if moved:
            upper = (bound + 1,) if bound < END_US else None
            found += [rows.select(names) for rows in view.scan(name, None, upper)]
    return _distinct(pa.concat_tables(found))


def _spans(plan: GeneralPlan, at: Moments) -> list[tuple[int, int]]:
    """Ranges of window ends, as (after, up to), that this step passes: on time, and closing."""
    spans = [(at.before, at.after)] if at.after > at.before else []
    low, high = plan.closed_at(at.before), plan.closed_at(at.after)
    late = (low, min(high, at.before))
    return [*spans, late] if late[1] > late[0] else spans


def _due(view: StateView, table: str, span: tuple[int, int]) -> list[pa.Table]:
    low, high = span
    lower = None if low == BEGINNING_US else (low + 1,)
    return list(view.scan(table, lower, None if high == END_US else (high + 1,)))


def _fixed(plan: GeneralPlan, view: StateView, arriving: pa.Table, timed: pa.Table, at: Moments) -> pa.Table:
    spans = _spans(plan, at)
    due = [rows for span in spans for rows in _due(view, GROUPS, span)]
    asked = _distinct(pa.concat_tables([arriving.select(timed.column_names), timed]))
    ends = asked[END].cast(pa.int64()).to_numpy()
    scanned = np.zeros(len(ends), bool)
    for low, high in spans:
        scanned |= (ends > low) & (ends <= high)
    found = view.lookup(GROUPS, asked.filter(pa.array(~scanned)).select(plan.identity))
    rows = found.rows.filter(found.found)
    return plan.whole.conform(pa.concat_tables([plan.groups.schema.empty_table(), *due, rows]))


def _sessions(plan: GeneralPlan, view: StateView, arriving: pa.Table, timed: pa.Table, at: Moments) -> Gathered:
    """All sessions of the keys in question are read; those that a batch joins become one."""
    names = plan.group_keys
    due = [rows.select(names) for span in _spans(plan, at) for rows in _due(view, ENDS, span)]
    asked = _distinct(pa.concat_tables([arriving.select(names), timed.select(names), *due]))
    stored = plan.whole.conform(view.ranges(GROUPS, asked).rows)
    identity = [*names, START, END]
    both = pa.concat_tables([stored.select(identity), arriving.select(identity)])
    merged = merge_sessions(names, int_bounds(both))
    of_stored, of_new = merged.owner[: stored.num_rows], merged.owner[stored.num_rows :]
    bounds = {name: merged.windows[name].cast(plan.bound_type) for name in (START, END)}
    moved = _with_bounds(stored, bounds, of_stored)
    same = np.asarray(pc.and_(pc.equal(moved[START], stored[START]), pc.equal(moved[END], stored[END])))
    replaced = stored.filter(pa.array(~same))
    # With other bounds it is another window, which has shown nothing.
    for name in (SHOWN, PANES):
        kept_on = pc.if_else(pa.array(same), stored[name], 0)
        moved = moved.set_column(moved.column_names.index(name), name, kept_on)
    ours = np.isin(of_stored, of_new) | _in_spans(plan, moved, at) | _among(plan, stored, timed)
    new = _with_bounds(arriving, bounds, of_new)
    kept = stored.filter(pa.array(ours & same))
    groups, touched = _joined(plan, moved.filter(pa.array(ours)), new, kept, at)
    became = moved[END].cast(pa.int64()).to_numpy()[~same]
    return Gathered(groups, touched, stored, new, plan.groups.conform(replaced), became, NONE)


def _counted(plan: GeneralPlan, view: StateView, arriving: pa.Table, timed: pa.Table, at: Moments) -> Gathered:
    """Messages get their numbers here, where all of a key come together."""
    kind, names = plan.kind, plan.group_keys
    assert isinstance(kind, Counted)
    keys = _distinct(pa.concat_tables([arriving.select(names), timed.select(names)]))
    before = view.lookup(COUNTED, keys).rows
    before = before.set_column(before.num_columns - 1, "count", pc.fill_null(before["count"], 0))
    numbers = number(names, arriving, before)
    rows, starts = count_windows(numbers, kind.count, kind.step)
    new = arriving.take(pa.array(rows))
    for name, values in ((START, starts), (END, starts + kind.count)):
        new = new.set_column(new.column_names.index(name), name, pa.array(values))
    if not (plan.triggers.per_element or plan.triggers.finishes):
        new = combine(plan.arriving, new)
    counts = combine(plan.counted_up, _counts(plan, arriving, before))
    if at.after == END_US:
        found = pa.concat_tables([plan.groups.schema.empty_table(), *view.scan(GROUPS)])
    else:
        asked = _distinct(pa.concat_tables([new.select(timed.column_names), timed]))
        looked = view.lookup(GROUPS, asked.select(plan.identity))
        found = looked.rows.filter(looked.found)
    stored = plan.whole.conform(found)
    groups, touched = _joined(plan, stored, new, stored, at)
    reached = align(plan.counted, groups.select(names), counts).rows["count"]
    return Gathered(groups, touched, stored, new, _nothing(plan), NONE, pc.fill_null(reached, 0).to_numpy(), counts)


def _counts(plan: GeneralPlan, arriving: pa.Table, before: pa.Table) -> pa.Table:
    new = arriving.select([*plan.group_keys, ELEMENTS]).rename_columns([*plan.group_keys, "count"])
    return pa.concat_tables([plan.counted.conform(before), plan.counted.conform(new)])


def _joined(
    plan: GeneralPlan, stored: pa.Table, new: pa.Table, same: pa.Table, at: Moments
) -> tuple[pa.Table, Flags]:
    """Stored groups with what is new, and where something is; ``same``: stored rows with the very same window."""
    parts = [plan.merging.conform(stored), plan.merging.conform(_as_groups(plan, new, at))]
    rows = combine(plan.merging, pa.concat_tables(parts))
    for column in plan.progress:
        if column.combiner in ("sum", "max") and rows[column.name].null_count:
            filled = pc.fill_null(rows[column.name], 0)
            rows = rows.set_column(rows.column_names.index(column.name), column.name, filled)
    identity = rows.select(plan.keeping.key_names)
    touched = align(plan.bare, identity, _distinct(new.select(plan.bare.key_names))).found
    keeping = align(plan.keeping, identity, plan.keeping.conform(same)).rows
    for column in plan.remembered:
        rows = rows.append_column(column.name, keeping[column.name])
    return plan.whole.conform(rows), np.asarray(touched)


def _as_groups(plan: GeneralPlan, new: pa.Table, at: Moments) -> pa.Table:
    """Arrivals as groups of which nothing has been shown."""
    count = new.num_rows
    since = pa.array(np.full(count, at.now))
    given = {PENDING: new[ELEMENTS], SINCE: since}
    for node, _ in enumerate(plan.nodes):
        given |= {f"_count_{node}": new[ELEMENTS], f"_since_{node}": since}
    for column in plan.progress:
        if column.name not in new.column_names:
            new = new.append_column(column.name, given.get(column.name, pa.nulls(count, pa.int64())))
    return new


def _in_spans(plan: GeneralPlan, rows: pa.Table, at: Moments) -> Flags:
    ends = rows[END].cast(pa.int64()).to_numpy()
    inside = np.zeros(len(ends), bool)
    for low, high in _spans(plan, at):
        inside |= (ends > low) & (ends <= high)
    return inside


def _among(plan: GeneralPlan, rows: pa.Table, timed: pa.Table) -> Flags:
    """Which rows are among the groups that are due by a timer."""
    if not timed.num_rows:
        return np.zeros(rows.num_rows, bool)
    marked = timed.append_column("__timed", pa.array(np.ones(timed.num_rows, bool)))
    numbered = rows.select(timed.column_names).append_column("__row", pa.array(np.arange(rows.num_rows)))
    joined = numbered.join(marked, keys=timed.column_names, join_type="left semi", use_threads=False)
    return np.isin(np.arange(rows.num_rows), joined["__row"].to_numpy())


def _with_bounds(rows: pa.Table, bounds: dict[str, pa.ChunkedArray], owner: Numbers) -> pa.Table:
    for name, values in bounds.items():
        rows = rows.set_column(rows.column_names.index(name), name, values.take(pa.array(owner)))
    return rows


def _distinct(rows: pa.Table) -> pa.Table:
    return rows.group_by(rows.column_names, use_threads=False).aggregate([])


def _nothing(plan: GeneralPlan) -> pa.Table:
    return plan.groups.schema.empty_table()
