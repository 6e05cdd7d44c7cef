"""A step of the window operator, next to the state: emits panes and updates groups. A pure function of its arguments.

A step combines groups with the arrivals of the batch, and emits panes of windows that the watermark passed before
(late) or passes now (on time), of open ones (early), and of those that close: at most one of each kind per key and
window, except for panes of single elements.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.plan.ledger import ledger
from tidestate.operators.plan.reasons import WINDOW_CLOSED
from tidestate.operators.plan.transition import Transition, check_on_time
from tidestate.operators.progress.instants import BEGINNING_US
from tidestate.operators.progress.progress import Context
from tidestate.operators.windows.columns import chosen, equal, with_columns
from tidestate.operators.windows.composite import Tree
from tidestate.operators.windows.elements import ElementPanes, element_panes
from tidestate.operators.windows.firing import closes, due_next, fire, phases
from tidestate.operators.windows.gather import gather_groups
from tidestate.operators.windows.groups import (
    NEVER,
    Fired,
    Gathered,
    Phases,
    column_numbers,
    trigger_finished,
)
from tidestate.operators.windows.names import (
    CLOCK,
    COUNTED,
    DUE_CLOCK,
    DUE_MARK,
    EMITTED,
    END,
    ENDS,
    EVENT,
    GROUPS,
    MARKS,
    NET,
    PANES,
    PENDING,
    SINCE,
    START,
)
from tidestate.operators.windows.panes import replaced_panes, retractions, values_where
from tidestate.operators.windows.tables import GroupTables
from tidestate.statestore.arrays import Flags, total
from tidestate.statestore.spec.changes import ChangeSet, TableChanges
from tidestate.statestore.spec.lists import struct_fields
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.spec.tables import TableSpec


def step_windows(
    plan: GroupTables, view: StateView, arriving: pa.Table, context: Context, alone: Flags | None = None
) -> Transition:
    """The transition of the state in ``view`` by ``arriving``, rows of `GroupTables.taken`.

    ``alone``: which of them are whole sessions that no stored one overlaps; None for none.
    """
    gathered = gather_groups(plan, view, arriving, context, alone)
    phase = phases(plan, gathered, context)
    first, rejected = None, None
    if plan.triggers.counts_elements and (first := element_panes(plan, gathered, phase, context)) is not None:
        gathered = replace(gathered, groups=first.groups)
    groups = gathered.groups
    if plan.triggers.when is None:
        due = fire(plan, gathered, phase, context, _emitted_already(groups, first))
    else:
        rejected = _rejected(plan, gathered, context)
        tree = Tree(plan, groups, phase, gathered.touched, context)
        due = _closing(plan, groups, phase, tree.fire())
        groups = with_columns(groups, tree.progress())
    values = values_where(plan, groups, due.any)
    fired = _changed(plan, groups, values, due) if plan.only_changes else due
    emptied = Fired(*[np.zeros(groups.num_rows, bool)] * 3)
    if plan.signed:
        fired, emptied = _signed(plan, groups, due, fired)
    _check_fired(plan, groups, fired, context)
    retracted, emitted = _panes(plan, gathered, groups, values, phase, fired, emptied, context)
    counters = first.counters if first is not None else {}
    counters = total([counters, {f"panes_{name}": int(np.count_nonzero(mask)) for name, mask in _masks(fired)}])
    counters |= {"retractions": counters.get("retractions", 0) + sum(rows.num_rows for rows in retracted)}
    if rejected is not None:
        counters["window_closed"] = rejected.num_rows
    stays = ~phase.expired
    kept, over = _split(groups, stays)
    kept = _after_panes(
        plan,
        kept,
        _split(values, stays)[0],
        (due.any | phase.closing)[stays],
        fired.taken(stays),
        emptied.any[stays],
    )
    changes = _changes(plan, gathered, kept, over, phase.taken(stays), context)
    before = [_not_last(first, fired.any)] if first is not None else []
    rows = pa.concat_tables([plan.pane_schema.empty_table(), *before, *retracted, *emitted])
    counters = {name: count for name, count in counters.items() if count}
    return Transition(changes, rows, counters, rejected)


def _check_fired(plan: GroupTables, groups: pa.Table, fired: Fired, context: Context) -> None:
    windows = groups.select(plan.groups.key_names)
    windows = windows if fired.on_time.all() else windows.filter(pa.array(fired.on_time))
    check_on_time(
        windows,
        None if plan.by_number else column_numbers(groups, END)[fired.on_time],
        context.watermark_before,
        context.watermark,
    )


def _emitted_already(groups: pa.Table, first: ElementPanes | None) -> Flags:
    emitted = np.zeros(groups.num_rows, bool)
    if first is not None:
        emitted[first.owner] = True
    return emitted


def _not_last(first: ElementPanes, again: Flags) -> pa.Table:
    """Panes of single elements: if the group emits another one in this step, they are not the last."""
    last = np.asarray(first.panes["last"]) & ~again[first.owner]
    return first.panes.set_column(first.panes.column_names.index("last"), "last", pa.array(last))


def _rejected(plan: GroupTables, gathered: Gathered, context: Context) -> pa.Table | None:
    """Ledger rows of elements whose window is closed because its composite trigger has finished."""
    if not gathered.refused.num_rows:
        return None
    events, bounds = gathered.refused[EVENT].combine_chunks(), gathered.refused
    named = dict(zip(plan.input_schema.names, struct_fields(events), strict=True)) | {
        name: bounds[of] for name, of in zip(plan.ledger_bounds, (START, END), strict=True)
    }
    watermark = None if context.watermark_before == BEGINNING_US else context.watermark_before
    return ledger(plan, pa.table(named), WINDOW_CLOSED, watermark)


def _closing(plan: GroupTables, groups: pa.Table, phase: Phases, firing: Flags) -> Fired:
    """The panes of a composite trigger by timing, and closing panes of other windows that close."""
    fired = Fired(firing & phase.open, firing & phase.passing, firing & phase.behind)
    closing = closes(plan, phase, column_numbers(groups, PENDING) > 0) & ~fired.any & ~trigger_finished(groups)
    return Fired(fired.early, fired.on_time | (closing & phase.passing), fired.late | (closing & ~phase.passing))


def _changed(plan: GroupTables, groups: pa.Table, values: pa.Table, fired: Fired) -> Fired:
    """Only panes that differ from the last one of their window, or are the first."""
    if plan.mode == "discarding":  # equal parts are different parts
        return fired.among(column_numbers(groups, PENDING) > 0)
    same = column_numbers(groups, EMITTED) > 0
    for aggregate in plan.aggregates:
        same &= equal(values[aggregate.name], groups[f"_last_{aggregate.name}"])
    return fired.among(~same)


def _signed(plan: GroupTables, groups: pa.Table, due: Fired, fired: Fired) -> tuple[Fired, Fired]:
    """If rows retract others: which windows emit a pane, and which are ``emptied``, with a pane but no rows left.

    A window without rows and without a pane does not exist. In discarding mode panes are differences, and all
    emitted.
    """
    left, emitted = column_numbers(groups, NET) > 0, column_numbers(groups, EMITTED) > 0
    if plan.mode == "discarding":
        return fired.among(left | emitted), due.among(np.zeros_like(left))
    emptied = due.among(emitted & ~left)
    return fired.among(left if plan.mode == "retracting" else left | emitted), emptied


def _masks(fired: Fired) -> list[tuple[str, Flags]]:
    return [("late", fired.late), ("on_time", fired.on_time), ("early", fired.early)]


def _panes(
    plan: GroupTables,
    gathered: Gathered,
    groups: pa.Table,
    values: pa.Table,
    phase: Phases,
    fired: Fired,
    emptied: Fired,
    context: Context,
) -> tuple[list[pa.Table], list[pa.Table]]:
    """Retractions and emitted panes, each in the order late, on time, early."""
    retracted, emitted = [], []
    if plan.mode == "retracting" and gathered.replaced.num_rows:
        retracted += replaced_panes(plan, gathered, context)
    for (timing, mask), (_, empty) in zip(_masks(fired), _masks(emptied), strict=True):
        if plan.mode == "retracting" and (mask | empty).any():
            again = (mask | empty) & (column_numbers(groups, EMITTED) > 0)
            retracted.append(retractions(plan, groups.filter(pa.array(again)), timing))
        if not mask.any():
            continue
        where = pa.array(mask)
        rows = groups.filter(where)
        last = phase.closed[mask] if plan.triggers.when is None else phase.closed[mask] | trigger_finished(rows)
        emitted.append(plan.panes(rows, values.filter(where), rows[PANES], timing, "emit", last))
    return retracted, emitted


def _after_panes(
    plan: GroupTables, groups: pa.Table, values: pa.Table, settled: Flags, fired: Fired, emptied: Flags
) -> pa.Table:
    """The groups after their panes: nothing is pending if they are ``settled``, as a pane was due, even an equal one
    that was not emitted, or as they close; a group that was ``emptied`` has no pane.
    """
    if not settled.any():
        return groups
    where, over = pa.array(fired.any), pa.array(settled)
    changed: dict[str, pa.Array | pa.ChunkedArray] = {
        PENDING: pc.if_else(over, 0, groups[PENDING]),
        SINCE: pc.if_else(over, pa.scalar(None, pa.int64()), groups[SINCE]),
        PANES: pc.add(groups[PANES], where.cast(pa.int64())),
        EMITTED: pa.array(np.where(fired.any, 1, column_numbers(groups, EMITTED)) * ~emptied),
    }
    for aggregate in plan.aggregates:
        name = f"_last_{aggregate.name}"
        changed[name] = chosen(where, values[aggregate.name], groups[name])
    if plan.mode == "discarding":
        for column in plan.state:
            empty = pa.nulls(groups.num_rows, column.arrow)
            changed[column.name] = chosen(where, empty, groups[column.name])
    return with_columns(groups, changed)


def _split(rows: pa.Table, where: Flags) -> tuple[pa.Table, pa.Table]:
    """The rows ``where``, and the others."""
    if where.all():
        return rows, rows.slice(0, 0)
    return rows.filter(pa.array(where)), rows.filter(pa.array(~where))


def _changes(
    plan: GroupTables, gathered: Gathered, groups: pa.Table, over: pa.Table, phase: Phases, context: Context
) -> ChangeSet:
    """Changes of the tables: groups that stay, their ends and timers; and what expires, ``over`` among it."""
    clock, marks = due_next(plan, groups, phase, context)
    fresh_clock = (clock != NEVER) & (clock != column_numbers(groups, DUE_CLOCK, NEVER))
    fresh_marks = (marks != NEVER) & (marks != column_numbers(groups, DUE_MARK, NEVER))
    kept = with_columns(
        groups, {DUE_CLOCK: pa.array(clock, mask=clock == NEVER), DUE_MARK: pa.array(marks, mask=marks == NEVER)}
    )
    changes = {
        CLOCK: TableChanges(put=_timers(plan.clock, kept, clock, fresh_clock)),
        MARKS: TableChanges(put=_timers(plan.marks, kept, marks, fresh_marks)),
    }
    put = _some(plan.groups.conform(kept))
    if plan.by_number:
        expired = _some(plan.groups.conform_keys(over))
        counts = _some(gathered.counts) if gathered.counts is not None else None
        return changes | {GROUPS: TableChanges(delete=expired, put=put), COUNTED: TableChanges(put=counts)}
    if not plan.sessions:
        return changes | {GROUPS: TableChanges(put=put)}
    replaced = gathered.replaced
    return changes | {
        GROUPS: TableChanges(delete=_some(plan.groups.conform_keys(replaced)), put=put),
        ENDS: TableChanges(delete=_some(plan.ends.conform_keys(replaced)), put=_some(plan.ends.conform(kept))),
    }


def _timers(spec: TableSpec, groups: pa.Table, moments: npt.NDArray[np.int64], where: Flags) -> pa.Table | None:
    rows = groups.filter(pa.array(where)).append_column("due", pa.array(moments[where]))
    return _some(spec.conform(rows))


def _some(rows: pa.Table) -> pa.Table | None:
    return rows if rows.num_rows else None
