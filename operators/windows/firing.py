"""Which groups fire now, and when each is due next. Vectorised; conditions are evaluated at the end of a batch."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidestate.operators.describe.triggers import Trigger
from tidestate.operators.progress.instants import BEGINNING_US, END_US
from tidestate.operators.progress.progress import Context
from tidestate.operators.windows.groups import NEVER, Fired, Gathered, Phases, column_numbers
from tidestate.operators.windows.names import EMITTED, END, PENDING, SINCE, START
from tidestate.operators.windows.tables import GroupTables
from tidestate.statestore.arrays import Flags, Numbers


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


def fire(plan: GroupTables, gathered: Gathered, phase: Phases, context: Context, emitted: Flags) -> Fired:
    """Which groups fire, by separate triggers for early, on time and late; ``emitted``: groups that have emitted a
    pane in this step already.
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
    return Fired(early, on_time | (closing & phase.passing), late | (closing & ~phase.passing))


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
