"""Which groups fire now, with which panes, and when each is due next. Vectorised; conditions are evaluated at the end
of a batch.

A *composite* trigger is a tree of conditions, with the progress of each part in columns of the group. If the
condition of the whole tree holds, the window emits a pane, and every part that contributed is finished; `repeatedly`
restarts its part. A tree that is finished closes its window.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.aggregates.results import results
from tidestate.operators.describe.triggers import Trigger
from tidestate.operators.progress.progress import Context
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
from tidestate.operators.windows.names import CLOSED, EMITTED, END, PANES, PENDING, SINCE, START
from tidestate.operators.windows.tables import NEVER, Fired, Gathered, GroupTables, Phases, column_numbers
from tidestate.statestore.arrays import Flags, Numbers
from tidestate.statestore.errors import invariant
from tidestate.statestore.table.sorting import ranks


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


def values_where(plan: GroupTables, groups: pa.Table, where: Flags) -> pa.Table:
    """Results of the groups ``where``, null in the others: a function of the user may be expensive."""
    if where.all():
        return results(plan.aggregates, groups)
    values = results(plan.aggregates, groups.filter(pa.array(where)))
    places = np.cumsum(where) - 1
    return values.take(pa.array(places, mask=~where))


def retractions(plan: GroupTables, groups: pa.Table, timing: str) -> pa.Table:
    """The last panes of ``groups`` again, as retractions."""
    results = [groups[f"_last_{a.name}"] for a in plan.aggregates]
    values = pa.table(results, names=[a.name for a in plan.aggregates])
    number = pc.subtract(groups[PANES], 1)
    return plan.panes(groups, values, number, timing, "retract", np.zeros(groups.num_rows, bool))


def replaced_panes(plan: GroupTables, gathered: Gathered, context: Context) -> list[pa.Table]:
    """Retractions of the panes of sessions that were merged into others, with the timing of the merged ones."""
    rows, emitted = plan.as_whole(gathered.replaced), column_numbers(gathered.replaced, EMITTED) > 0
    behind, passed = gathered.became <= context.watermark_before, gathered.became <= context.watermark
    timings = (("late", behind), ("on_time", passed & ~behind), ("early", ~passed & ~behind))
    return [retractions(plan, rows.filter(pa.array(mask & emitted)), timing) for timing, mask in timings]


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
