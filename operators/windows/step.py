"""A step of the window operator, next to the state: emits panes and updates groups. A pure function of its arguments.

A step combines groups with the arrivals of the batch, and emits panes of windows that the watermark passed before
(late) or passes now (on time), of open ones (early), and of those that close: at most one of each kind per key and
window, except for panes of single elements.

Conditions of triggers are evaluated at the end of a batch. A *composite* trigger is a tree of them, with the progress
of each part in columns of the group. If the condition of the whole tree holds, the window emits a pane, and every
part that contributed is finished; `repeatedly` restarts its part. A tree that is finished closes its window.

A step over many windows goes in shares of the keys, so that what it holds at once fits the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.aggregates.results import results
from tidestate.operators.describe.triggers import Trigger
from tidestate.operators.describe.windows import Sliding
from tidestate.operators.plan.dues import least
from tidestate.operators.plan.reasons import WINDOW_CLOSED
from tidestate.operators.plan.transition import Timer, Transition, joined_steps
from tidestate.operators.progress.progress import Context
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
from tidestate.operators.windows.elements import ElementPanes, element_panes
from tidestate.operators.windows.gather import NO_ROWS, gather_groups
from tidestate.operators.windows.names import (
    CLOCK,
    CLOSED,
    COARSE,
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
    PARTS,
    PENDING,
    SINCE,
    SLICE_END,
    START,
)
from tidestate.operators.windows.partial_view import PartialTable
from tidestate.operators.windows.session_slices import ReadySessions, end_beyond, over_at
from tidestate.operators.windows.tables import (
    NEVER,
    Gathered,
    GroupTables,
    Phases,
    chosen,
    column_numbers,
    equal,
    replaced_panes,
    retractions,
    trigger_finished,
    with_columns,
)
from tidestate.statestore.arrays import Flags, Numbers, flags_at, one_table, total
from tidestate.statestore.errors import invariant
from tidestate.statestore.spec.changes import ChangeSet, TableChanges
from tidestate.statestore.spec.keyhash import key_hash
from tidestate.statestore.spec.lists import struct_fields
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.table.sorting import ranks

EARLY, ON_TIME, LATE = 1, 2, 3
"""The timing of a pane, in arrays over groups; 0 is no pane."""


def step_windows(
    plan: GroupTables, view: StateView, arriving: pa.Table, context: Context, alone: Flags | None = None
) -> Transition:
    """The transition of the state in ``view`` by ``arriving``, rows of `GroupTables.taken`.

    ``alone``: which of them are whole sessions that no stored one overlaps; None for none.
    """
    gathered = gather_groups(plan, view, arriving, context, alone)
    phase = phases(plan, gathered, context)
    first, rejected = None, None
    # Where each element takes a step of its own, triggers look at a batch of one element: nothing is left to do here.
    by_element = plan.triggers.per_element and not plan.steps_by_element
    if by_element and (first := element_panes(plan, gathered, phase, context)) is not None:
        gathered = replace(gathered, groups=first.groups)
    groups = gathered.groups
    if plan.triggers.when is None:
        emitted = flags_at(groups.num_rows, NO_ROWS if first is None else first.owner)
        due = fire(plan, gathered, phase, context, emitted)
    else:
        rejected = _rejected(plan, gathered, context)
        tree = Tree(plan, groups, phase, gathered.touched, context)
        due = _closing(plan, groups, phase, tree.fire())
        groups = with_columns(groups, tree.progress())
    values = values_where(plan, groups, due > 0)
    fired = _changed(plan, groups, values, due) if plan.only_changes else due
    emptied = np.zeros_like(fired)
    if plan.input.signed:
        fired, emptied = _signed(plan, groups, due, fired)
    fired, emptied, hidden = _shown(plan, groups, values, due, fired, emptied)
    _check_fired(plan, groups, fired, context)
    retracted, shown = _panes(plan, gathered, groups, values, phase, fired, emptied, context)
    counters = first.counters if first is not None else {}
    counters = total([counters, {f"panes_{name}": int(np.count_nonzero(mask)) for name, mask in timing_masks(fired)}])
    counters |= {"retractions": counters.get("retractions", 0) + sum(rows.num_rows for rows in retracted)}
    counters |= {"hidden": hidden}
    if rejected is not None:
        counters["window_closed"] = rejected.num_rows
    stays = ~phase.expired
    kept, over = _split(groups, stays)
    kept = _after_panes(
        plan,
        kept,
        _split(values, stays)[0],
        ((due > 0) | phase.closing)[stays],
        (fired > 0)[stays],
        (emptied > 0)[stays],
    )
    changes = _changes(plan, gathered, kept, over, phase.taken(stays), context)
    before = [_not_last(first, fired > 0)] if first is not None else []
    rows = pa.concat_tables([plan.pane_schema.empty_table(), *before, *retracted, *shown])
    counters = {name: count for name, count in counters.items() if count}
    return Transition(changes, rows, counters, rejected)


def _check_fired(plan: GroupTables, groups: pa.Table, fired: Numbers, context: Context) -> None:
    on_time = fired == ON_TIME
    windows = groups.select(plan.groups.key_names)
    windows = windows if on_time.all() else windows.filter(pa.array(on_time))
    check_on_time(
        windows,
        None if plan.by_number else column_numbers(groups, END)[on_time],
        context.watermark_before,
        context.watermark,
    )


def _not_last(first: ElementPanes, again: Flags) -> pa.Table:
    """Panes of single elements: if the group emits another one in this step, they are not the last."""
    last = np.asarray(first.panes["last"]) & ~again[first.owner]
    return with_columns(first.panes, {"last": last})


def _rejected(plan: GroupTables, gathered: Gathered, context: Context) -> pa.Table | None:
    """Ledger rows of elements whose window is closed because its composite trigger has finished."""
    if not gathered.refused.num_rows:
        return None
    events, bounds = gathered.refused[EVENT].combine_chunks(), gathered.refused
    named = dict(zip(plan.input.schema.names, struct_fields(events), strict=True)) | {
        name: bounds[of] for name, of in zip(plan.ledger_bounds, (START, END), strict=True)
    }
    watermark = None if context.watermark_before == BEGINNING_US else context.watermark_before
    return plan.ledger(pa.table(named), WINDOW_CLOSED, watermark)


def _closing(plan: GroupTables, groups: pa.Table, phase: Phases, firing: Flags) -> Numbers:
    """The timing of the panes of a composite trigger, and of closing panes of other windows that close."""
    closing = closes(plan, phase, column_numbers(groups, PENDING) > 0) & ~firing & ~trigger_finished(groups)
    fired = _timed(firing & phase.open, firing & phase.passing, firing & phase.behind)
    return _with_closing(fired, closing, phase)


def _changed(plan: GroupTables, groups: pa.Table, values: pa.Table, fired: Numbers) -> Numbers:
    """Only panes that differ from the last one of their window, or are the first."""
    if plan.mode == "discarding":  # equal parts are different parts
        return fired * (column_numbers(groups, PENDING) > 0)
    same = column_numbers(groups, EMITTED) > 0
    for aggregate in plan.aggregates:
        same &= equal(values[aggregate.name], groups[f"_last_{aggregate.name}"])
    return fired * ~same


def _signed(plan: GroupTables, groups: pa.Table, due: Numbers, fired: Numbers) -> tuple[Numbers, Numbers]:
    """If rows retract others: which windows emit a pane, and which are ``emptied``, with a pane but no rows left.

    A window without rows and without a pane does not exist. In discarding mode panes are differences, and all
    emitted.
    """
    left, emitted = column_numbers(groups, NET) > 0, column_numbers(groups, EMITTED) > 0
    if plan.mode == "discarding":
        return fired * (left | emitted), np.zeros_like(due)
    emptied = due * (emitted & ~left)
    return fired * (left if plan.mode == "retracting" else left | emitted), emptied


def _shown(
    plan: GroupTables, groups: pa.Table, values: pa.Table, due: Numbers, fired: Numbers, emptied: Numbers
) -> tuple[Numbers, Numbers, int]:
    """If a condition says which panes are shown: which windows emit one, which are ``emptied``, whose last pane is
    taken back and nothing follows; and how many panes are hidden.
    """
    if plan.shown is None:
        return fired, emptied, 0
    holds = plan.shown.holds(groups, values)
    emitted = column_numbers(groups, EMITTED) > 0
    taken_back = due * (emitted & ~holds)
    return fired * holds, np.where(emptied > 0, emptied, taken_back), int(np.count_nonzero((fired > 0) & ~holds))


def timing_masks(fired: Numbers) -> list[tuple[str, Flags]]:
    """By timing, in the order in which panes are emitted: which groups have ``fired`` so."""
    return [("late", fired == LATE), ("on_time", fired == ON_TIME), ("early", fired == EARLY)]


def _panes(
    plan: GroupTables,
    gathered: Gathered,
    groups: pa.Table,
    values: pa.Table,
    phase: Phases,
    fired: Numbers,
    emptied: Numbers,
    context: Context,
) -> tuple[list[pa.Table], list[pa.Table]]:
    """Retractions and emitted panes, each in the order late, on time, early."""
    last = phase.closed if plan.triggers.when is None else phase.closed | trigger_finished(groups)
    retracted, emitted = panes_by_timing(plan, groups, values, fired, emptied, last)
    if plan.mode == "retracting" and gathered.replaced.num_rows:
        retracted = [*replaced_panes(plan, gathered, context), *retracted]
    return retracted, emitted


def panes_by_timing(
    plan: GroupTables, groups: pa.Table, values: pa.Table, fired: Numbers, emptied: Numbers, last: Flags
) -> tuple[list[pa.Table], list[pa.Table]]:
    """Retractions of what these groups had emitted, and the panes of those that have ``fired``, both in the order
    late, on time, early; ``last``: the panes that are the last of their window.
    """
    retracted, emitted = [], []
    for (timing, mask), (_, empty) in zip(timing_masks(fired), timing_masks(emptied), strict=True):
        if plan.mode == "retracting" and (mask | empty).any():
            again = (mask | empty) & (column_numbers(groups, EMITTED) > 0)
            retracted.append(retractions(plan, groups.filter(pa.array(again)), timing))
        if mask.any():
            where = pa.array(mask)
            rows = groups.filter(where)
            emitted.append(plan.panes(rows, values.filter(where), rows[PANES], timing, "emit", last[mask]))
    return retracted, emitted


def _after_panes(
    plan: GroupTables, groups: pa.Table, values: pa.Table, settled: Flags, fired: Flags, emptied: Flags
) -> pa.Table:
    """The groups after their panes: nothing is pending if they are ``settled``, as a pane was due, even an equal one
    that was not emitted, or as they close; a group that was ``emptied`` has no pane.
    """
    if not settled.any():
        return groups
    where, over = pa.array(fired), pa.array(settled)
    changed: dict[str, pa.Array | pa.ChunkedArray] = {
        PENDING: pc.if_else(over, 0, groups[PENDING]),
        SINCE: pc.if_else(over, pa.scalar(None, pa.int64()), groups[SINCE]),
        PANES: pc.add(groups[PANES], where.cast(pa.int64())),
        EMITTED: pa.array(np.where(fired, 1, column_numbers(groups, EMITTED)) * ~emptied),
    }
    for aggregate in plan.aggregates:
        name = f"_last_{aggregate.name}"
        changed[name] = chosen(where, values[aggregate.name], groups[name])
    if plan.mode == "discarding":
        for column in plan.emptied:
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


ARRIVING_SHARE = 16
"""Arrivals of a share are at most this part of the budget: a step makes several copies of them."""
LEAST_ROWS = 1 << 13
"""Of a share: below that, its fixed cost is more than what it saves."""
Step = Callable[[StateView, pa.Table, Flags | None], Transition]
"""A step on state, with arrivals and which of them are alone (see `step_windows`); each key is for itself."""


def step_in_shares(
    plan: GroupTables, view: StateView, arriving: pa.Table, context: Context, step: Step, alone: Flags | None = None
) -> Transition:
    """``step`` over all ``arriving`` rows, at once or in turn for shares of the keys, state included."""
    count = min(-(-arriving.nbytes * ARRIVING_SHARE // context.budget_bytes), arriving.num_rows // LEAST_ROWS)
    if count <= 1 or not plan.input.key_names:
        return step(view, arriving, alone)
    owner, moved = _share_of(plan, arriving, count), []
    for number in range(count):
        here, chosen = owner == number, partial(_of_share, plan, count, number)
        state = {spec.name: PartialTable(view[spec.name], chosen) for spec in plan.tables}
        moved.append(step(state, arriving.filter(pa.array(here)), None if alone is None else alone[here]))
    names = dict.fromkeys(name for transition in moved for name in transition.changes)
    changes = {name: _joined([each.changes[name] for each in moved if name in each.changes]) for name in names}
    return joined_steps(changes, moved)


def _share_of(plan: GroupTables, rows: pa.Table, count: int) -> Numbers:
    # The state partition is in the upper bits of the hash: the share is in the lower ones.
    return (key_hash(rows.select(plan.input.key_names)) % count).astype(np.int64)


def _of_share(plan: GroupTables, count: int, number: int, rows: pa.Table) -> pa.Table:
    return rows.filter(pa.array(_share_of(plan, rows, count) == number))


def _joined(parts: Sequence[TableChanges]) -> TableChanges:
    return TableChanges(
        one_table(changes.delete for changes in parts),
        one_table(changes.put for changes in parts),
        one_table(changes.merge for changes in parts),
    )


def window_timers(plan: GroupTables) -> tuple[Timer, ...]:
    """Windows are due at their end, with retained ones where they close, and by triggers that look before that.

    When sessions in parts end is not among them: a step that reads their parts sees it, see `due_in_parts`.
    """
    timers = [Timer(CLOCK, "due", clock=True)] if plan.by_clock else []
    if plan.by_number:  # they are full at a number of messages, at no time
        return tuple(timers)
    closing = plan.looks_at_closing and plan.allowed_us > 0
    timers.append(Timer(ENDS if plan.sessions else GROUPS, END, (0, plan.allowed_us) if closing else (0,)))
    if plan.lazy and isinstance(plan.kind, Sliding):
        timers.append(Timer(PARTS, SLICE_END, grid=plan.kind))
    elif not plan.lazy and plan.triggers.early is not None and plan.triggers.early.kind == "every_event_time":
        timers.append(Timer(MARKS, "due"))
    return tuple(timers)


def due_in_parts(plan: GroupTables, view: StateView, ready: ReadySessions | None, context: Context) -> int | None:
    """The watermark at which a window is due that no timer tells of, as `Transition.due` has it.

    ``ready``: the sessions that wait in parts after this step; None for other windows, and where none do.
    """
    if plan.closed_us not in (None, plan.gone_us) or context.watermark == BEGINNING_US:
        return None  # the next step closes windows by other settings; or the first watermark may pass any of them
    if ready is None or context.watermark == END_US:
        return END_US
    merged = ready.changes[PARTS].merge
    first = least([merged] if merged is not None else [], END, context.watermark)
    if context.only_arrivals:  # that of what is stored
        return first
    if ready.next_end is None:
        return None
    return min(first, ready.next_end if ready.next_end != END_US else end_beyond(plan, view, context.watermark))


def window_expiry(plan: GroupTables, context: Context) -> dict[str, int]:
    """Windows are kept until they expire, parts until they are in no window to come, timers until they are due."""
    bounds = {CLOCK: context.now_us - 1} if plan.by_clock else {}
    if context.watermark == BEGINNING_US:
        return bounds
    last = END_US - 1
    bounds[MARKS] = min(context.watermark, last)
    if not plan.by_number:
        bounds[GROUPS] = min(plan.expired_at(context.watermark), last)
    if plan.sessions:
        bounds[ENDS] = bounds[GROUPS]
    if plan.lazy and plan.sessions:
        bounds[PARTS] = over_at(plan, context.watermark)
    elif plan.lazy:
        bounds[PARTS] = plan.last_needless_slice(context.watermark)
        if plan.coarse_slices and plan.orderless:
            bounds[COARSE] = min(last, bounds[PARTS] + plan.coarse_slices * plan.slices.slice - 1)
    return bounds


def phases(plan: GroupTables, gathered: Gathered, context: Context) -> Phases:
    """The phase of each group in this step."""
    ends = column_numbers(gathered.groups, END)
    if plan.by_number:
        full = np.full(len(ends), True) if context.watermark == END_US else ends <= gathered.reached
        return Phases(np.zeros(len(ends), bool), full, full, full, full)
    before, after = context.watermark_before != BEGINNING_US, context.watermark != BEGINNING_US
    behind = (ends <= context.watermark_before) & before
    passing = ~behind & (ends <= context.watermark) & after
    closed = (ends <= plan.closed_at(context.watermark)) & after
    closing = closed & ~((ends <= plan.closed_before(context.watermark_before)) & before)
    return Phases(behind, passing, closed, closing, (ends <= plan.expired_at(context.watermark)) & after)


def fire(plan: GroupTables, gathered: Gathered, phase: Phases, context: Context, emitted: Flags) -> Numbers:
    """The timing of the pane that each group emits, 0 for none, by separate triggers; ``emitted``: groups that have
    emitted a pane in this step already.
    """
    triggers, pending = plan.triggers, column_numbers(gathered.groups, PENDING) > 0
    on_time = phase.passing & {"always": ~np.zeros_like(pending), "non_empty": pending}.get(
        triggers.on_time, np.zeros_like(pending)
    )
    # A window without an on-time pane is early until its watermark has passed.
    before_end = phase.open | (phase.passing if triggers.on_time == "never" else np.zeros_like(pending))
    early = before_end & _holds(plan, triggers.early, gathered, context)
    # A retained window emits only with late events that are reprocessed in this step.
    retained = phase.closed & ~phase.closing & ~gathered.touched
    late = phase.behind & ~retained & _holds(plan, triggers.late, gathered, context)
    closing = closes(plan, phase, pending) & ~(early | on_time | late) & ~(emitted & ~pending)
    return _with_closing(_timed(early, on_time, late), closing, phase)


def _timed(early: Flags, on_time: Flags, late: Flags) -> Numbers:
    """Masks over groups, which are disjoint, as the timing of the pane of each, 0 for none."""
    timings: Numbers = early * EARLY + on_time * ON_TIME + late * LATE
    return timings


def _with_closing(fired: Numbers, closing: Flags, phase: Phases) -> Numbers:
    """With panes of windows that close, of which no group has one in ``fired``."""
    timings: Numbers = np.where(closing, np.where(phase.passing, ON_TIME, LATE), fired)
    return timings


def closes(plan: GroupTables, phase: Phases, pending: Flags) -> Flags:
    """Which groups may emit a closing pane: when they close, or when a late event is reprocessed after that."""
    if plan.triggers.closing == "never":
        return np.zeros_like(pending)
    return phase.closed & (pending | phase.closing if plan.triggers.closing == "always" else pending)


def _holds(plan: GroupTables, trigger: Trigger | None, gathered: Gathered, context: Context) -> Flags:
    """Whether the condition of a trigger holds, by group."""
    groups = gathered.groups
    pending = column_numbers(groups, PENDING)
    if trigger is None:
        return np.zeros(len(pending), bool)
    if trigger.kind == "each_batch":
        return (gathered.touched | plan.settles) & (pending > 0)
    if trigger.kind == "after_count":
        # Only with an element of this batch: passing the end alone makes no late pane of early elements.
        return gathered.touched & (pending >= trigger.count)
    if trigger.kind == "after_processing_time":
        return (pending > 0) & (column_numbers(groups, SINCE, NEVER) <= context.now_us - trigger.span_us)
    if trigger.kind == "every_processing_time":
        return _again(plan, groups) & (context.now_us // trigger.span_us > context.was_us // trigger.span_us)
    span = trigger.span_us
    passed = _spans_passed(groups, context.watermark, span) > _spans_passed(groups, context.watermark_before, span)
    return _again(plan, groups) & passed


def _again(plan: GroupTables, groups: pa.Table) -> Flags:
    """Whether a periodic trigger fires: for new elements, and, as in Malhar, for unchanged windows too."""
    new = column_numbers(groups, PENDING) > 0
    return new if plan.mode == "discarding" else new | (column_numbers(groups, EMITTED) > 0)


def _spans_passed(groups: pa.Table, watermark: int, span_us: int) -> Numbers:
    """The number of complete spans of each window that the watermark has passed, before its end."""
    starts = column_numbers(groups, START)
    reached = np.clip(np.full(len(starts), watermark), starts, column_numbers(groups, END) - 1)
    passed: Numbers = (reached - starts) // span_us
    return passed


def due_next(plan: GroupTables, groups: pa.Table, phase: Phases, context: Context) -> tuple[Numbers, Numbers]:
    """When each group is due next, by processing time and by event time before its end; else `NEVER`."""
    triggers = plan.triggers
    clock = np.full(groups.num_rows, NEVER)
    late = ~phase.open & ~phase.closed
    for trigger, applies in ((triggers.early, phase.open), (triggers.late, late)):
        clock = np.minimum(clock, np.where(applies, _due_by_clock(trigger, groups, context), NEVER))
    for node, trigger in enumerate(plan.nodes):
        if trigger.kind == "after_processing_time":
            waiting = column_numbers(groups, f"_done_{node}") == 0
            since = column_numbers(groups, f"_since_{node}", NEVER)
            # Once the span is over it is another part, with a timer, elements or an end of its own, that waits.
            waiting &= since > context.now_us - trigger.span_us
            clock = np.where(waiting & (since != NEVER), np.minimum(clock, since + trigger.span_us), clock)
    clock = np.where(clock == NEVER, NEVER, np.maximum(clock, context.now_us))
    marks = np.full(groups.num_rows, NEVER)
    if triggers.early is not None and triggers.early.kind == "every_event_time":
        starts, span = column_numbers(groups, START), triggers.early.span_us
        following = starts + (_spans_passed(groups, context.watermark, span) + 1) * span
        marks = np.where(phase.open, following, NEVER)
    return clock, np.where(marks < column_numbers(groups, END), marks, NEVER)


def _due_by_clock(trigger: Trigger | None, groups: pa.Table, context: Context) -> Numbers | int:
    if trigger is None:
        return NEVER
    if trigger.kind == "every_processing_time":
        return (context.now_us // trigger.span_us + 1) * trigger.span_us
    if trigger.kind == "after_processing_time":
        since = column_numbers(groups, SINCE, NEVER)
        waits = (column_numbers(groups, PENDING) > 0) & (since != NEVER)
        return np.where(waits, np.minimum(since, NEVER - trigger.span_us) + trigger.span_us, NEVER)
    return NEVER


def values_where(plan: GroupTables, groups: pa.Table, where: Flags) -> pa.Table:
    """Results of the groups ``where``, null in the others: a function of the user may be expensive."""
    if where.all():
        return results(plan.aggregates, groups)
    values = results(plan.aggregates, groups.filter(pa.array(where)))
    places = np.cumsum(where) - 1
    return values.take(pa.array(places, mask=~where))


def check_on_time(windows: pa.Table, ends: Numbers | None, before: int, after: int) -> None:
    """Raise `InvariantError` if a window would fire on time a second time.

    ``windows``: the keys of windows that fire now, a row for each. The watermark passes an end once, between
    ``before`` and ``after``; ``ends`` is None for windows without a time.
    """
    if not windows.num_rows:
        return
    invariant(ranks(windows)[1] == windows.num_rows, "a window fires on time once in a step", rows=windows.num_rows)
    if ends is not None:
        first, last = int(ends.min()), int(ends.max())
        invariant(
            before < first and last <= after,
            "a window fires on time when the watermark passes its end",
            before=before,
            after=after,
            first=first,
            last=last,
        )


class Tree:
    """A composite trigger for all groups of a step."""

    def __init__(self, plan: GroupTables, groups: pa.Table, phase: Phases, touched: Flags, context: Context) -> None:
        self._groups, self._now_us = groups, context.now_us
        self._retained = phase.closed & ~phase.closing & ~touched
        self._passed, self._passing = phase.behind | phase.passing, phase.passing
        self._pending = column_numbers(groups, PENDING) > 0
        self._nodes = plan.nodes
        self._closed = column_numbers(groups, CLOSED) > 0
        many = range(len(plan.nodes))
        self._count = [column_numbers(groups, f"_count_{node}") for node in many]
        self._since = [column_numbers(groups, f"_since_{node}", NEVER) for node in many]
        self._done = [column_numbers(groups, f"_done_{node}") > 0 for node in many]

    def fire(self) -> Flags:
        """Which groups fire. The progress of the parts changes."""
        holds = self._holds(0) & ~self._closed & ~self._retained
        # The watermark passes the end once: after that only new elements make a pane.
        shows = self._pending | self._passing
        # What another trigger ends is over with nothing new too, without a pane.
        self._fire(0, holds & (shows | self._ends(0)))
        self._closed = self._closed | self._done[0]
        return holds & shows

    def progress(self) -> dict[str, Numbers]:
        """The progress as columns of groups; null in ``_since`` is `NEVER`."""
        columns = {CLOSED: self._closed.astype(np.int64)}
        for node in range(len(self._nodes)):
            columns[f"_count_{node}"] = self._count[node]
            columns[f"_since_{node}"] = self._since[node]
            columns[f"_done_{node}"] = self._done[node].astype(np.int64)
        return columns

    def _parts(self, node: int) -> list[int]:
        """The numbers of a node's parts: they follow it, each with its own parts."""
        parts, place = [], node + 1
        for part in self._nodes[node].of:
            parts.append(place)
            place += len(part.nodes)
        return parts

    def _holds(self, node: int) -> Flags:
        trigger, parts = self._nodes[node], [self._holds(part) for part in self._parts(node)]
        if trigger.kind == "all_of":
            holds = np.logical_and.reduce([h | self._done[p] for h, p in zip(parts, self._parts(node), strict=True)])
        elif parts:
            holds = np.logical_or.reduce(parts)
        else:
            holds = self._leaf(node, trigger)
        held: Flags = holds & ~self._done[node]
        return held

    def _ends(self, node: int) -> Flags:
        """Whether the condition that ends an `or_finally` holds, of this node or of one of its parts."""
        parts = self._parts(node)
        ends = np.logical_or.reduce([np.zeros_like(self._pending), *(self._ends(part) for part in parts)])
        until: Flags = self._holds(parts[1]) | ends if self._nodes[node].kind == "or_finally" else ends
        return until & self._holds(node)

    def _leaf(self, node: int, trigger: Trigger) -> Flags:
        if trigger.kind == "after_count":
            counted: Flags = self._count[node] >= trigger.count
            return counted
        if trigger.kind == "after_watermark":
            return self._passed
        since = self._since[node]
        elapsed: Flags = (since != NEVER) & (since <= self._now_us - trigger.span_us)
        return elapsed

    def _fire(self, node: int, where: Flags) -> None:
        """Record that the node has fired in the groups ``where``."""
        kind, parts = self._nodes[node].kind, self._parts(node)
        held = [where & self._holds(part) for part in parts]
        for part, share in zip(parts, held, strict=True):
            self._fire(part, share)
        if kind == "repeatedly":
            self._restart(parts[0], where & self._done[parts[0]])
        elif kind == "or_finally":
            self._done[node] = self._done[node] | (where & (self._done[parts[1]] | self._done[parts[0]]))
        else:
            self._done[node] = self._done[node] | where

    def _restart(self, node: int, where: Flags) -> None:
        for place in range(node, node + len(self._nodes[node].nodes)):
            self._count[place] = np.where(where, 0, self._count[place])
            self._since[place] = np.where(where, NEVER, self._since[place])
            self._done[place] = self._done[place] & ~where
