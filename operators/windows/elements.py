"""Panes after each N-th element of a batch, for all windows at once. Pure.

The elements of a window between two panes are a segment. Each segment is combined, and panes are the running
combinations of segments, computed with doubling distances: 1,000 panes of one window take ten rounds.

Composite triggers, and sessions, take a step per element: the n-th elements of all windows share one, so a batch
costs as many steps as its largest window has elements. The watermark advances in the last step, which has none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.aggregates.results import results
from tidestate.operators.describe.triggers import Triggers, TriggerSide
from tidestate.operators.describe.windows import Counted
from tidestate.operators.plan.transition import Transition, joined_steps
from tidestate.operators.progress.progress import Context
from tidestate.operators.windows.counting import message_number
from tidestate.operators.windows.names import ELEMENTS, EMITTED, PANES, PENDING, SINCE
from tidestate.operators.windows.tables import (
    NEVER,
    Gathered,
    GroupTables,
    Phases,
    chosen,
    column_numbers,
    equal,
    with_columns,
)
from tidestate.statestore.arrays import Flags, Numbers, flags_at
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.spec.tables import Column, TableSpec
from tidestate.statestore.table.fold import combine
from tidestate.statestore.table.layers import align
from tidestate.statestore.table.overlay import OverlayView
from tidestate.statestore.table.sorting import order, ranks, sorting


@dataclass(frozen=True)
class ElementPanes:
    """The panes of a step's elements, each retraction before the pane that replaces it; and the groups after them."""

    panes: pa.Table
    groups: pa.Table
    counters: dict[str, int]
    owner: Numbers
    """The index of each pane's group."""


@dataclass(frozen=True)
class _Elements:
    """The batch's elements by group, then in order: the index of their group, and whether a pane follows them."""

    rows: pa.Table
    owner: Numbers
    fires: Flags


def element_panes(plan: GroupTables, gathered: Gathered, phase: Phases, context: Context) -> ElementPanes | None:
    """The panes after each N-th element of this batch; None if there are none."""
    elements = _elements(plan, gathered, phase)
    if not elements.fires.any():
        return None
    groups = gathered.groups
    owner, parts, fires = _segments(plan, elements)
    begun = _begun(plan, gathered, parts, np.flatnonzero(_firsts(owner)), owner)
    held = begun if plan.mode == "discarding" else _running(plan, begun, owner)
    of = owner[fires]
    panes = _with_state(plan, groups.take(pa.array(of)), held.filter(pa.array(fires)))
    values = results(plan.aggregates, panes)
    first = _firsts(of)
    before, emitted = _before(plan, groups, values, of, first)
    fired = np.ones(len(of), bool)
    if plan.only_changes and plan.mode != "discarding":
        fired = ~np.logical_and.reduce([emitted, *(equal(values[a.name], before[a.name]) for a in plan.aggregates)])
    rank = _counted_from(fired, first)
    number = column_numbers(groups, PANES)[of] + rank
    emitted = emitted | (rank > 0)
    timing = np.where(phase.behind[of], "late", "early")
    last = phase.closed[of] & _final(of, fired)
    tables, ranks, owners = [], [], []
    for name in ("late", "early"):
        here = fired & (timing == name)
        retracted = here & emitted & (plan.mode == "retracting")
        kinds = (("retract", retracted, before, number - 1), ("emit", here, values, number))
        for kind, where, content, numbered in kinds:
            chosen_rows = pa.array(where)
            flags = last[where] if kind == "emit" else np.zeros(int(where.sum()), bool)
            rows = panes.filter(chosen_rows)
            indices = pa.chunked_array([pa.array(numbered[where])])
            tables.append(plan.panes(rows, content.filter(chosen_rows), indices, name, kind, flags))
            ranks.append(2 * np.flatnonzero(where) + (kind == "emit"))
            owners.append(of[where])
    order = sorting(np.concatenate(ranks))
    counters = {f"panes_{name}": int(np.count_nonzero(fired & (timing == name))) for name in ("early", "late")}
    counters["retractions"] = int(np.count_nonzero(fired & emitted)) if plan.mode == "retracting" else 0
    after = _after(plan, groups, elements, values, of, fired, context)
    if plan.mode == "discarding":
        after = _left(plan, after, owner, parts, fires)
    return ElementPanes(
        pa.concat_tables(tables).take(pa.array(order)), after, counters, np.concatenate(owners)[order]
    )


def _final(of: Numbers, fired: Flags) -> Flags:
    """Which panes are the last of their group in this step."""
    final = np.zeros(len(of), bool)
    emitted = np.flatnonzero(fired)
    final[emitted] = np.append(of[emitted][1:] != of[emitted][:-1], True)[: len(emitted)]
    return final


def _elements(plan: GroupTables, gathered: Gathered, phase: Phases) -> _Elements:
    groups = gathered.groups
    by_group = sorting(gathered.owner)
    owner = gathered.owner[by_group]
    first = _firsts(owner)
    rank = _counted_from(np.ones(len(owner), bool), first) + 1
    sizes = np.bincount(owner, minlength=groups.num_rows)
    every = np.where(phase.behind, _count(plan.triggers, "late"), _count(plan.triggers, "early"))
    waiting = column_numbers(groups, PENDING) - sizes
    step, begin = every[owner], np.maximum(1, every - waiting)[owner]
    fires = (step > 0) & (rank >= begin) & ((rank - begin) % np.maximum(step, 1) == 0)
    if isinstance(plan.kind, Counted) and plan.triggers.on_time != "never":
        # The message that fills a window brings the pane on time, and no early one before it.
        fires &= (column_numbers(groups, ELEMENTS) - sizes)[owner] + rank < plan.kind.count
    return _Elements(gathered.new.take(pa.array(by_group)), owner, fires)


def _count(triggers: Triggers, side: TriggerSide) -> int:
    """The number of elements per pane; 0 without a trigger, and for one that looks once a batch."""
    trigger = triggers.early if side == "early" else triggers.late
    if trigger is None or not triggers.looks_at_elements(side):
        return 0
    return {"each_batch": 1, "after_count": trigger.count}.get(trigger.kind, 0)


def _firsts(owner: Numbers) -> Flags:
    """Whether each row is the first of its owner; rows are in the order of owners."""
    return np.append(True, owner[1:] != owner[:-1]) if len(owner) else np.zeros(0, bool)


def _counted_from(flags: Flags, first: Flags) -> Numbers:
    """The number of ``flags`` that are set before each row, since the last ``first``."""
    before: Numbers = np.cumsum(flags) - flags
    heads = np.flatnonzero(first)
    base: Numbers = before - np.repeat(before[heads], np.diff(np.append(heads, len(flags))))
    return base


def _segments(plan: GroupTables, elements: _Elements) -> tuple[Numbers, pa.Table, Flags]:
    """The group of each segment, its combined elements, and whether a pane follows it."""
    begins = _firsts(elements.owner)
    begins[1:] |= elements.fires[:-1]
    segment = np.cumsum(begins) - 1
    spec = _by_segment(plan)
    state = elements.rows.select([column.name for column in plan.state])
    parts = _sorted(combine(spec, state.add_column(0, SEGMENT, pa.array(segment))))
    heads = np.flatnonzero(begins)
    ends = np.append(heads[1:], len(segment)) - 1
    return elements.owner[heads], parts, elements.fires[ends]


SEGMENT = "_segment"


def _by_segment(plan: GroupTables) -> TableSpec:
    return TableSpec("segments", (Column(SEGMENT, "int64", "key"),), plan.state, None, plan.state_groups)


def _sorted(rows: pa.Table) -> pa.Table:
    return rows.take(pa.array(sorting(rows[SEGMENT].to_numpy())))


def _begun(plan: GroupTables, gathered: Gathered, parts: pa.Table, heads: Numbers, owner: Numbers) -> pa.Table:
    """The segments, with the stored partial of each group combined into its first segment."""
    names = plan.bare.key_names
    identity = gathered.groups.select(names).take(pa.array(owner[heads]))
    stored = align(plan.whole, identity, gathered.stored)
    known = np.asarray(stored.found)
    before = stored.rows.filter(pa.array(known)).select([column.name for column in plan.state])
    before = before.add_column(0, SEGMENT, pa.array(heads[known]))
    return _sorted(combine(_by_segment(plan), pa.concat_tables([before.cast(parts.schema), parts])))


def _running(plan: GroupTables, parts: pa.Table, owner: Numbers) -> pa.Table:
    """Each segment combined with all earlier ones of its group."""
    spec, places = _by_segment(plan), np.arange(len(owner))
    heads = np.flatnonzero(_firsts(owner))
    start = np.repeat(heads, np.diff(np.append(heads, len(owner))))
    reach = 1
    while True:
        longer = np.flatnonzero(places - reach >= start)
        if not len(longer):
            return parts
        left = parts.take(pa.array(longer - reach)).set_column(0, SEGMENT, pa.array(longer))
        both = _sorted(combine(spec, pa.concat_tables([left, parts.take(pa.array(longer))])))
        where = places.copy()
        where[longer] = len(owner) + np.arange(len(longer))
        parts = pa.concat_tables([parts, both.cast(parts.schema)]).take(pa.array(where))
        reach *= 2


def _with_state(plan: GroupTables, groups: pa.Table, state: pa.Table) -> pa.Table:
    return with_columns(groups, {column.name: state[column.name] for column in plan.state})


def _before(
    plan: GroupTables, groups: pa.Table, values: pa.Table, of: Numbers, first: Flags
) -> tuple[pa.Table, Flags]:
    """The result that each window emitted before each pane, and whether it had emitted any."""
    stored = groups.take(pa.array(of))
    previous = np.maximum(np.arange(len(of)) - 1, 0)
    columns = {
        a.name: chosen(pa.array(first), stored[f"_last_{a.name}"], values[a.name].take(pa.array(previous)))
        for a in plan.aggregates
    }
    return pa.table(columns), ~first | (column_numbers(stored, EMITTED) > 0)


def _after(
    plan: GroupTables,
    groups: pa.Table,
    elements: _Elements,
    values: pa.Table,
    of: Numbers,
    fired: Flags,
    context: Context,
) -> pa.Table:
    """The groups after their panes: elements after the last pane are pending."""
    ends = np.flatnonzero(np.append(of[1:] != of[:-1], True))
    where = flags_at(groups.num_rows, of[ends])
    sizes = np.bincount(elements.owner, minlength=groups.num_rows)
    places = _counted_from(np.ones(len(elements.owner), bool), _firsts(elements.owner))
    taken = np.zeros(groups.num_rows, np.int64)
    np.maximum.at(taken, elements.owner[elements.fires], places[elements.fires] + 1)
    left = np.where(where, sizes - taken, column_numbers(groups, PENDING))
    since = np.where(where, np.where(left > 0, context.now_us, NEVER), column_numbers(groups, SINCE, NEVER))
    counts = np.bincount(of[fired], minlength=groups.num_rows)
    changed: dict[str, pa.Array | pa.ChunkedArray] = {
        PENDING: pa.array(left),
        SINCE: pa.array(since, mask=since == NEVER),
        PANES: pc.add(groups[PANES], pa.array(counts)),
        EMITTED: pa.array(np.where(counts > 0, 1, column_numbers(groups, EMITTED))),
    }
    # An equal pane was not emitted, but its values equal those emitted before.
    newest_of = np.zeros(groups.num_rows, np.int64)
    newest_of[of[ends]] = ends
    for aggregate in plan.aggregates:
        name = f"_last_{aggregate.name}"
        newest = values[aggregate.name].take(pa.array(newest_of))
        changed[name] = chosen(pa.array(where), newest, groups[name])
    return with_columns(groups, changed)


def _left(plan: GroupTables, groups: pa.Table, owner: Numbers, parts: pa.Table, fires: Flags) -> pa.Table:
    """In discarding mode a window has only the elements after its last pane."""
    fired = flags_at(groups.num_rows, owner[fires])
    place = np.full(groups.num_rows, -1)
    place[owner[~fires]] = np.flatnonzero(~fires)
    left = parts.take(pa.array(place, mask=place < 0))
    changed = {c.name: chosen(pa.array(fired), left[c.name], groups[c.name]) for c in plan.emptied}
    return with_columns(groups, changed)


StepFunction = Callable[[GroupTables, StateView, pa.Table, Context], Transition]


def step_by_element(
    plan: GroupTables, view: StateView, arriving: pa.Table, context: Context, step: StepFunction
) -> Transition:
    """Run ``step`` once for each element of the largest window, and once for the watermark."""
    if plan.input.order and not plan.in_order:
        arriving = arriving.take(pa.array(order(arriving.select(plan.order_names))))
    state, steps = OverlayView(view, plan.tables), []
    still = context.reaching(context.watermark_before, context.watermark_before)
    for rows, times in [*((rows, still) for rows in _by_number(plan, arriving)), (arriving.slice(0, 0), context)]:
        steps.append(step(plan, state, rows, times))
        state.apply(steps[-1].changes)
    return joined_steps(state.changes(), steps)


def _by_number(plan: GroupTables, arriving: pa.Table) -> list[pa.Table]:
    """The first element of each window, then the second of each, and so on. For windows that depend on others of
    their key (sessions, count windows), one element of the key at a time.
    """
    if not arriving.num_rows:
        return []
    names = plan.group_keys if plan.sessions or plan.by_number else plan.identity
    owner, many = ranks(arriving.select(names))
    number = message_number(owner, np.zeros(many, np.int64))
    by_number = sorting(number)
    rows, counts = arriving.take(pa.array(by_number)), np.bincount(number)
    ends = np.cumsum(counts)
    return [rows.slice(end - count, count) for end, count in zip(ends, counts, strict=True)]
