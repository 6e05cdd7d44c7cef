"""The general operator next to the state: what it shows, what it keeps. A pure function of its arguments.

A step: groups with what the batch brings; panes of windows passed before (late), passed now (on time), open ones
(early); closing panes of windows that are forgotten now. At most one of each per key, window and batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from operators.general.composite import Tree
from operators.general.firing import NEVER, Fired, Phases, closed, due, fire, numbers, phases
from operators.general.gather import Gathered, forgotten, gather
from operators.general.names import (
    CLOCK,
    COUNTED,
    DUE_CLOCK,
    DUE_MARK,
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
from operators.transition import BEGINNING_US, END_US, KINDS, TIMINGS, Moments, Transition, constant
from statestore.changes import ChangeSet, TableChanges
from statestore.store import StateView
from statestore.tables import TableSpec

if TYPE_CHECKING:
    from operators.general.plan import GeneralPlan
    from operators.plan import Plan

Flags = npt.NDArray[np.bool_]


def general_step(plan: GeneralPlan, view: StateView, arriving: pa.Table, at: Moments) -> Transition:
    """Take ``arriving`` (rows of `GeneralPlan.arriving`) into the state that ``view`` shows."""
    gathered = gather(plan, view, arriving, at)
    groups, phase = gathered.groups, phases(plan, gathered, at)
    fired = fire(plan, gathered, phase, at)
    refused = 0
    if plan.triggers.when is not None:
        refused = int(np.count_nonzero(gathered.touched & closed(groups)))
        tree = Tree(plan, groups, phase, at)
        showing = tree.fire()
        fired = _closing(
            plan, groups, phase, Fired(showing & phase.open, showing & phase.passing, showing & phase.behind)
        )
        groups = _with_columns(groups, tree.progress())
    due = fired
    values = _values_where(plan, groups, due.any)
    fired = _unlike_the_last(plan, groups, values, fired) if plan.triggers.only_updated else fired
    panes = _panes(plan, gathered, groups, values, phase, fired, at)
    counters = {f"panes_{name}": int(np.count_nonzero(mask)) for name, mask in _masks(fired) if mask.any()}
    if refused:
        counters["closed_windows"] = refused
    if retracted := sum(table.num_rows for table in panes[0]):
        counters["retractions"] = retracted
    after = _shown(plan, groups, values, due, fired)
    changes = _changes(plan, gathered, after, phase, at)
    rows = pa.concat_tables([plan.pane_schema.empty_table(), *panes[0], *panes[1]])
    return Transition(changes, rows, counters)


def _closing(plan: GeneralPlan, groups: pa.Table, phase: Phases, fired: Fired) -> Fired:
    """With closing panes of windows that are forgotten now, beside a composite trigger."""
    pending = numbers(groups, PENDING) > 0
    wanted = {"if_new": pending, "always": ~np.zeros_like(pending)}.get(plan.triggers.closing)
    if wanted is None:
        return fired
    closing = phase.expiring & wanted & ~fired.any & ~closed(groups)
    return Fired(fired.early, fired.on_time | (closing & phase.passing), fired.late | (closing & ~phase.passing))


def _values(plan: Plan, groups: pa.Table) -> pa.Table:
    """The result of each group, one column per aggregate; a count of nothing is 0."""
    for column in (column for aggregate in plan.aggregates for column in aggregate.state):
        if column.role == "count" and groups[column.name].null_count:
            filled = pc.fill_null(groups[column.name], 0)
            groups = groups.set_column(groups.column_names.index(column.name), column.name, filled)
    results = {a.name: a.finish(groups) for a in plan.aggregates}
    return pa.table(results, schema=pa.schema([pa.field(a.name, a.result_type) for a in plan.aggregates]))


def _values_where(plan: GeneralPlan, groups: pa.Table, where: Flags) -> pa.Table:
    """Results of the groups asked for, nulls in the others: a function of yours may read a lot for them."""
    if where.all():
        return _values(plan, groups)
    values = _values(plan, groups.filter(pa.array(where)))
    places = np.cumsum(where) - 1
    return values.take(pa.array(places, mask=~where))


def results_of(plan: Plan, groups: pa.Table) -> pa.Table:
    """Window, key and values of stored ``groups``, for people."""
    values = _values(plan, groups)
    columns = [groups[START], groups[END], *(groups[name] for name in plan.key_names), *values.columns]
    return pa.table(columns, names=[START, END, *plan.key_names, *values.column_names])


def _unlike_the_last(plan: GeneralPlan, groups: pa.Table, values: pa.Table, fired: Fired) -> Fired:
    """Only panes that differ from the one shown last, or are the first."""
    if plan.mode == "discarding":  # two equal parts are two parts
        new = numbers(groups, PENDING) > 0
        return Fired(fired.early & new, fired.on_time & new, fired.late & new)
    same = numbers(groups, SHOWN) > 0
    for aggregate in plan.aggregates:
        same &= _equal(values[aggregate.name], groups[f"_last_{aggregate.name}"])
    return Fired(fired.early & ~same, fired.on_time & ~same, fired.late & ~same)


def _equal(now: pa.ChunkedArray, then: pa.ChunkedArray) -> Flags:
    if pa.types.is_nested(now.type):
        return np.array([a == b for a, b in zip(now.to_pylist(), then.to_pylist(), strict=True)], bool)
    alike = pc.fill_null(pc.equal(now, then), False)
    nulls = pc.and_(pc.is_null(now), pc.is_null(then))
    return np.asarray(pc.or_(alike, nulls))


def _masks(fired: Fired) -> list[tuple[str, Flags]]:
    return [("late", fired.late), ("on_time", fired.on_time), ("early", fired.early)]


def _panes(
    plan: GeneralPlan,
    gathered: Gathered,
    groups: pa.Table,
    values: pa.Table,
    phase: Phases,
    fired: Fired,
    at: Moments,
) -> tuple[list[pa.Table], list[pa.Table]]:
    """Retractions, then what is shown: late, on time, early."""
    retractions, emissions = [], []
    if plan.mode == "retracting" and gathered.replaced.num_rows:
        retractions += _replaced(plan, gathered, at)
    for timing, mask in _masks(fired):
        if not mask.any():
            continue
        where = pa.array(mask)
        if plan.mode == "retracting":
            again = mask & (numbers(groups, SHOWN) > 0)
            retractions.append(_retractions(plan, groups.filter(pa.array(again)), timing))
        rows = groups.filter(where)
        last = phase.expiring[mask]
        emissions.append(_rows(plan, rows, values.filter(where), rows[PANES], timing, "emit", last))
    return retractions, emissions


def _replaced(plan: GeneralPlan, gathered: Gathered, at: Moments) -> list[pa.Table]:
    """What sessions had shown before they became part of others, timed as what they became."""
    rows, shown = plan.whole.conform(gathered.replaced), numbers(gathered.replaced, SHOWN) > 0
    behind, passed = gathered.became <= at.before, gathered.became <= at.after
    timings = (("late", behind), ("on_time", passed & ~behind), ("early", ~passed & ~behind))
    return [_retractions(plan, rows.filter(pa.array(mask & shown)), timing) for timing, mask in timings]


def _retractions(plan: GeneralPlan, groups: pa.Table, timing: str) -> pa.Table:
    """The last panes once more."""
    results = [groups[f"_last_{a.name}"] for a in plan.aggregates]
    values = pa.table(results, names=[a.name for a in plan.aggregates])
    number = pc.subtract(groups[PANES], 1)
    return _rows(plan, groups, values, number, timing, "retract", np.zeros(groups.num_rows, bool))


def _rows(
    plan: GeneralPlan,
    groups: pa.Table,
    values: pa.Table,
    number: pa.ChunkedArray,
    timing: str,
    kind: str,
    last: Flags,
) -> pa.Table:
    count = groups.num_rows
    columns = [
        groups[START],
        groups[END],
        *(groups[name] for name in plan.key_names),
        *values.columns,
        number,
        constant(count, timing, TIMINGS),
        constant(count, kind, KINDS),
        pa.array(last),
    ]
    return pa.table(columns, schema=plan.pane_schema)


def _shown(plan: GeneralPlan, groups: pa.Table, values: pa.Table, due: Fired, fired: Fired) -> pa.Table:
    """Groups after their panes: nothing is pending where one was due, also where it would have been the same."""
    if not due.any.any():
        return groups
    where, taken = pa.array(fired.any), pa.array(due.any)
    changed: dict[str, pa.Array | pa.ChunkedArray] = {
        PENDING: pc.if_else(taken, 0, groups[PENDING]),
        SINCE: pc.if_else(taken, pa.scalar(None, pa.int64()), groups[SINCE]),
        PANES: pc.add(groups[PANES], where.cast(pa.int64())),
        SHOWN: pc.if_else(where, 1, groups[SHOWN]),
    }
    for aggregate in plan.aggregates:
        name = f"_last_{aggregate.name}"
        changed[name] = _chosen(where, values[aggregate.name], groups[name])
    if plan.mode == "discarding":
        for column in plan.state:
            empty = pa.nulls(groups.num_rows, column.arrow)
            changed[column.name] = _chosen(where, empty, groups[column.name])
    return _with_columns(groups, changed)


def _chosen(where: pa.Array, new: pa.Array | pa.ChunkedArray, old: pa.ChunkedArray) -> pa.ChunkedArray:
    """Rows of ``new`` where asked, else of ``old``; for any type."""
    both = pa.chunked_array([*(new.chunks if isinstance(new, pa.ChunkedArray) else [new]), *old.chunks], old.type)
    places = np.arange(len(old))
    return both.take(pa.array(np.where(np.asarray(where), places, places + len(old))))


def _with_columns(groups: pa.Table, changed: Mapping[str, Any]) -> pa.Table:
    for name, values in changed.items():
        if name.startswith("_since_"):
            values = pa.array(values, mask=values == NEVER)
        column = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
        place = groups.column_names.index(name)
        groups = groups.set_column(place, groups.schema.field(name), column)
    return groups


def _changes(plan: GeneralPlan, gathered: Gathered, groups: pa.Table, phase: Phases, at: Moments) -> ChangeSet:
    """What is kept: groups, their ends, their timers; and what is forgotten."""
    clock, marks = due(plan, groups, phase, at)
    fresh_clock = (clock != NEVER) & (clock != numbers(groups, DUE_CLOCK, NEVER))
    fresh_marks = (marks != NEVER) & (marks != numbers(groups, DUE_MARK, NEVER))
    stays = ~phase.expiring
    groups = _with_columns(
        groups, {DUE_CLOCK: pa.array(clock, mask=clock == NEVER), DUE_MARK: pa.array(marks, mask=marks == NEVER)}
    )
    kept = groups.filter(pa.array(stays))
    bound = None if at.after == BEGINNING_US else min(forgotten(plan, at.after), END_US - 1)
    changes = {
        CLOCK: TableChanges(put=_timers(plan.clock, groups, clock, fresh_clock & stays), expire=_moment(at.now)),
        MARKS: TableChanges(put=_timers(plan.marks, groups, marks, fresh_marks & stays), expire=_moment(at.after)),
    }
    put = _some(plan.groups.conform(kept))
    if plan.by_number:
        gone = _some(plan.groups.conform_keys(groups.filter(pa.array(phase.expiring))))
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
