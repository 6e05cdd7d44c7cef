"""The general operator next to the state: what it shows, what it keeps. A pure function of its arguments.

A step: groups with what the batch brings; panes of windows passed before (late), passed now (on time), open ones
(early); closing panes of windows that are forgotten now. At most one of each per key, window and batch.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.plan.ledger import WINDOW_CLOSED, ledger
from tidestate.operators.plan.transition import StepTimes, Transition, check_on_time, total
from tidestate.operators.progress.instants import BEGINNING_US, END_US
from tidestate.operators.windows.general.columns import chosen, equal, with_columns
from tidestate.operators.windows.general.composite import Tree
from tidestate.operators.windows.general.elements import OneByOne, one_by_one
from tidestate.operators.windows.general.firing import closes, due_next, fire, phases
from tidestate.operators.windows.general.gather import gather_groups
from tidestate.operators.windows.general.groups import NEVER, Fired, Gathered, Phases, closed, column_numbers
from tidestate.operators.windows.general.names import (
    CLOCK,
    COUNTED,
    DUE_CLOCK,
    DUE_MARK,
    END,
    ENDS,
    EVENT,
    GROUPS,
    MARKS,
    NET,
    PANES,
    PENDING,
    SHOWN,
    SINCE,
    START,
)
from tidestate.operators.windows.general.panes import taken_back, values_where
from tidestate.operators.windows.general.tables import GeneralTables
from tidestate.statestore.arrays import Flags
from tidestate.statestore.spec.changes import ChangeSet, TableChanges
from tidestate.statestore.spec.keyrange import key_range
from tidestate.statestore.spec.lists import struct_fields
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.spec.tables import TableSpec


def general_step(plan: GeneralTables, view: StateView, arriving: pa.Table, at: StepTimes) -> Transition:
    """Take ``arriving`` (rows of `GeneralTables.exchanged`) into the state that ``view`` shows."""
    gathered = gather_groups(plan, view, arriving, at)
    phase = phases(plan, gathered, at)
    first, rejected = None, None
    if plan.triggers.counts_elements and (first := one_by_one(plan, gathered, phase, at)) is not None:
        gathered = replace(gathered, groups=first.groups)
    groups = gathered.groups
    if plan.triggers.when is None:
        due = fire(plan, gathered, phase, at, _shown_already(groups, first))
    else:
        rejected = _rejected(plan, gathered, at)
        tree = Tree(plan, groups, phase, at)
        due = _closing(plan, groups, phase, tree.fire())
        groups = with_columns(groups, tree.progress())
    values = values_where(plan, groups, due.any)
    fired = _unlike_the_last(plan, groups, values, due) if plan.triggers.only_updated else due
    emptied = Fired(*[np.zeros(groups.num_rows, bool)] * 3)
    if plan.signed:
        fired, emptied = _of_what_is_left(plan, groups, due, fired)
    _check_fired(plan, groups, fired, at)
    gone, shown = _panes(plan, gathered, groups, values, phase, fired, emptied, at)
    counters = first.counters if first is not None else {}
    counters = total([counters, {f"panes_{name}": int(np.count_nonzero(mask)) for name, mask in _masks(fired)}])
    counters |= {"retractions": counters.get("retractions", 0) + sum(rows.num_rows for rows in gone)}
    if rejected is not None:
        counters["window_closed"] = rejected.num_rows
    changes = _changes(plan, gathered, _shown(plan, groups, values, due, fired, emptied.any), phase, at)
    before = [_not_last(first, fired.any)] if first is not None else []
    rows = pa.concat_tables([plan.pane_schema.empty_table(), *before, *gone, *shown])
    counters = {name: count for name, count in counters.items() if count}
    return Transition(changes, rows, counters, rejected, _due_us(plan, view, changes[CLOCK], at))


def _check_fired(plan: GeneralTables, groups: pa.Table, fired: Fired, at: StepTimes) -> None:
    windows = groups.select(plan.groups.key_names)
    windows = windows if fired.on_time.all() else windows.filter(pa.array(fired.on_time))
    check_on_time(
        windows, None if plan.by_number else column_numbers(groups, END)[fired.on_time], at.before, at.after
    )


def _shown_already(groups: pa.Table, first: OneByOne | None) -> Flags:
    shown = np.zeros(groups.num_rows, bool)
    if first is not None:
        shown[first.owner] = True
    return shown


def _not_last(first: OneByOne, again: Flags) -> pa.Table:
    """Panes of single elements: those of groups that show another one in this step are not the last."""
    last = np.asarray(first.panes["last"]) & ~again[first.owner]
    return first.panes.set_column(first.panes.column_names.index("last"), "last", pa.array(last))


def _due_us(plan: GeneralTables, view: StateView, timers: TableChanges, at: StepTimes) -> int | None:
    """The processing time at which a group is due next, of those there were and those of this step."""
    if not plan.triggers.by_clock:
        return None
    first = (int(rows["due"][0].as_py()) for rows in view[CLOCK].scan(key_range((at.now + 1,))) if rows.num_rows)
    fresh = [] if timers.put is None else [int(pc.min(timers.put["due"]).as_py())]
    return min([*fresh, *([found] if (found := next(first, None)) is not None else [])], default=None)


def _rejected(plan: GeneralTables, gathered: Gathered, at: StepTimes) -> pa.Table | None:
    """Ledger rows of elements whose window has closed for good, by its composite trigger."""
    if not gathered.refused.num_rows:
        return None
    events, bounds = gathered.refused[EVENT].combine_chunks(), gathered.refused
    named = dict(zip(plan.input_schema.names, struct_fields(events), strict=True)) | {
        name: bounds[name] for name in (START, END)
    }
    watermark = None if at.before == BEGINNING_US else at.before
    return ledger(plan, pa.table(named), WINDOW_CLOSED, watermark)


def _closing(plan: GeneralTables, groups: pa.Table, phase: Phases, showing: Flags) -> Fired:
    """By phase; with closing panes of windows that take no more, beside a composite trigger."""
    fired = Fired(showing & phase.open, showing & phase.passing, showing & phase.behind)
    closing = closes(plan, phase, column_numbers(groups, PENDING) > 0) & ~fired.any & ~closed(groups)
    return Fired(fired.early, fired.on_time | (closing & phase.passing), fired.late | (closing & ~phase.passing))


def _unlike_the_last(plan: GeneralTables, groups: pa.Table, values: pa.Table, fired: Fired) -> Fired:
    """Only panes that differ from the one shown last, or are the first."""
    if plan.mode == "discarding":  # two equal parts are two parts
        return fired.among(column_numbers(groups, PENDING) > 0)
    same = column_numbers(groups, SHOWN) > 0
    for aggregate in plan.aggregates:
        same &= equal(values[aggregate.name], groups[f"_last_{aggregate.name}"])
    return fired.among(~same)


def _of_what_is_left(plan: GeneralTables, groups: pa.Table, due: Fired, fired: Fired) -> tuple[Fired, Fired]:
    """Where rows take others back: which windows show a pane, and which had shown one and have nothing left.

    A window that has nothing and has shown nothing is none. In discarding mode panes are differences, always shown.
    """
    left, shown = column_numbers(groups, NET) > 0, column_numbers(groups, SHOWN) > 0
    if plan.mode == "discarding":
        return fired.among(left | shown), due.among(np.zeros_like(left))
    emptied = due.among(shown & ~left)
    return fired.among(left if plan.mode == "retracting" else left | shown), emptied


def _masks(fired: Fired) -> list[tuple[str, Flags]]:
    return [("late", fired.late), ("on_time", fired.on_time), ("early", fired.early)]


def _panes(
    plan: GeneralTables,
    gathered: Gathered,
    groups: pa.Table,
    values: pa.Table,
    phase: Phases,
    fired: Fired,
    emptied: Fired,
    at: StepTimes,
) -> tuple[list[pa.Table], list[pa.Table]]:
    """Retractions, then what is shown: late, on time, early."""
    gone, shown = [], []
    if plan.mode == "retracting" and gathered.replaced.num_rows:
        gone += _replaced(plan, gathered, at)
    for (timing, mask), (_, empty) in zip(_masks(fired), _masks(emptied), strict=True):
        if plan.mode == "retracting" and (mask | empty).any():
            again = (mask | empty) & (column_numbers(groups, SHOWN) > 0)
            gone.append(taken_back(plan, groups.filter(pa.array(again)), timing))
        if not mask.any():
            continue
        where = pa.array(mask)
        rows = groups.filter(where)
        last = phase.over[mask]
        shown.append(plan.panes(rows, values.filter(where), rows[PANES], timing, "emit", last))
    return gone, shown


def _replaced(plan: GeneralTables, gathered: Gathered, at: StepTimes) -> list[pa.Table]:
    """What sessions had shown before they became part of others, timed as what they became."""
    rows, shown = plan.whole.conform(gathered.replaced), column_numbers(gathered.replaced, SHOWN) > 0
    behind, passed = gathered.became <= at.before, gathered.became <= at.after
    timings = (("late", behind), ("on_time", passed & ~behind), ("early", ~passed & ~behind))
    return [taken_back(plan, rows.filter(pa.array(mask & shown)), timing) for timing, mask in timings]


def _shown(
    plan: GeneralTables, groups: pa.Table, values: pa.Table, due: Fired, fired: Fired, emptied: Flags
) -> pa.Table:
    """Groups after their panes: nothing is pending where one was due, also where it would have been the same; and
    nothing stands of what was ``emptied``.
    """
    if not due.any.any():
        return groups
    where, taken = pa.array(fired.any), pa.array(due.any)
    changed: dict[str, pa.Array | pa.ChunkedArray] = {
        PENDING: pc.if_else(taken, 0, groups[PENDING]),
        SINCE: pc.if_else(taken, pa.scalar(None, pa.int64()), groups[SINCE]),
        PANES: pc.add(groups[PANES], where.cast(pa.int64())),
        SHOWN: pa.array(np.where(fired.any, 1, column_numbers(groups, SHOWN)) * ~emptied),
    }
    for aggregate in plan.aggregates:
        name = f"_last_{aggregate.name}"
        changed[name] = chosen(where, values[aggregate.name], groups[name])
    if plan.mode == "discarding":
        for column in plan.state:
            empty = pa.nulls(groups.num_rows, column.arrow)
            changed[column.name] = chosen(where, empty, groups[column.name])
    return with_columns(groups, changed)


def _changes(plan: GeneralTables, gathered: Gathered, groups: pa.Table, phase: Phases, at: StepTimes) -> ChangeSet:
    """What is kept: groups, their ends, their timers; and what is forgotten."""
    clock, marks = due_next(plan, groups, phase, at)
    fresh_clock = (clock != NEVER) & (clock != column_numbers(groups, DUE_CLOCK, NEVER))
    fresh_marks = (marks != NEVER) & (marks != column_numbers(groups, DUE_MARK, NEVER))
    stays = ~phase.gone
    groups = with_columns(
        groups, {DUE_CLOCK: pa.array(clock, mask=clock == NEVER), DUE_MARK: pa.array(marks, mask=marks == NEVER)}
    )
    kept = groups.filter(pa.array(stays))
    bound = None if at.after == BEGINNING_US else min(plan.expired_at(at.after), END_US - 1)
    changes = {
        CLOCK: TableChanges(put=_timers(plan.clock, groups, clock, fresh_clock & stays), expire=_moment(at.now - 1)),
        MARKS: TableChanges(put=_timers(plan.marks, groups, marks, fresh_marks & stays), expire=_moment(at.after)),
    }
    put = _some(plan.groups.conform(kept))
    if plan.by_number:
        gone = _some(plan.groups.conform_keys(groups.filter(pa.array(phase.gone))))
        counts = _some(gathered.counts) if gathered.counts is not None else None
        return changes | {GROUPS: TableChanges(delete=gone, put=put), COUNTED: TableChanges(put=counts)}
    if not plan.sessions:
        return changes | {GROUPS: TableChanges(put=put, expire=bound)}
    replaced = gathered.replaced
    return changes | {
        GROUPS: TableChanges(delete=_some(plan.groups.conform_keys(replaced)), put=put, expire=bound),
        ENDS: TableChanges(
            delete=_some(plan.ends.conform_keys(replaced)), put=_some(plan.ends.conform(kept)), expire=bound
        ),
    }


def _timers(spec: TableSpec, groups: pa.Table, moments: npt.NDArray[np.int64], where: Flags) -> pa.Table | None:
    rows = groups.filter(pa.array(where)).append_column("due", pa.array(moments[where]))
    return _some(spec.conform(rows))


def _moment(moment: int) -> int | None:
    return None if moment == BEGINNING_US else min(moment, END_US - 1)


def _some(rows: pa.Table) -> pa.Table | None:
    return rows if rows.num_rows else None
