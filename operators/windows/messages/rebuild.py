"""A replay of the input puts lost messages back, and corrects what was emitted without them. Pure.

Identities, metadata and groups are whole. A message of the replay had been accepted if its identity is known under
its own position (see `intake`). Its values are in the groups already, so only the message is stored again, and a
window that has all its messages again is computed again where a function reads them.

Where a condition says which panes are shown, such a window is judged again too: it takes back a pane that does not
hold any longer, and emits one that was hidden while messages were missing.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.aggregates.results import results
from tidestate.operators.plan.reasons import INCOMPLETE, PUT_BACK
from tidestate.operators.plan.transition import Transition
from tidestate.operators.progress.progress import Context
from tidestate.operators.progress.watermarks import BEGINNING_US
from tidestate.operators.windows.messages.reading import (
    in_portions,
    incomplete_windows,
    lacking,
    read_windows,
    stored_in,
)
from tidestate.operators.windows.messages.record import between_windows, message_windows
from tidestate.operators.windows.messages.tables import MessageWindows, batch_of, known_until
from tidestate.operators.windows.messages.window_metadata import get_sessions
from tidestate.operators.windows.names import EMITTED, END, GROUPS, PANES, PENDING, START
from tidestate.operators.windows.step import EARLY, LATE, panes_by_timing, timing_masks
from tidestate.operators.windows.tables import (
    chosen,
    column_numbers,
    equal,
    trigger_finished,
    with_columns,
)
from tidestate.statestore.arrays import Flags, Numbers, total
from tidestate.statestore.errors import expect
from tidestate.statestore.messages.identities import first_of_each
from tidestate.statestore.spec.arrowtypes import positions
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.table.overlay import OverlayView


def put_back(plan: MessageWindows, view: StateView, arriving: pa.Table, context: Context) -> Transition:
    """The transition by a replay: ``arriving`` are rows of `exchanged`, in any number of copies and any order."""
    tables, state = expect(plan.messages, "only messages that are kept are put back"), OverlayView(view, plan.tables)
    plan = plan.within(state)
    lost = _lost(plan, state, plan.events_in(arriving), context)
    lost, windows = _of_windows_that_lack(plan, state, lost, context)
    counters, emitted, changes = {PUT_BACK: lost.num_rows}, [plan.pane_schema.empty_table()], {}
    if lost.num_rows:
        rows = tables.messages.conform(tables.conform(plan.as_messages(lost)))
        changes[tables.messages.name] = TableChanges(put=rows)
        state.apply(changes)
        corrected = list(_corrected(plan, state, windows, context)) if plan.reads_messages else []
        for groups, panes, counted in corrected:
            emitted.append(panes)
            counters = total([counters, counted])
            state.apply({GROUPS: TableChanges(put=plan.groups.conform(groups))})
    counters[INCOMPLETE] = sum(rows.num_rows for rows in incomplete_windows(plan, state))
    counters = {name: count for name, count in counters.items() if count}
    return Transition(state.changes(), pa.concat_tables(emitted), counters, due=None)


def _lost(plan: MessageWindows, state: StateView, events: pa.Table, context: Context) -> pa.Table:
    """Events that had been accepted, and are not stored any more, each once."""
    tables, index = expect(plan.messages, "messages are kept"), plan.identities.seen
    seen = state[index.name].lookup(index.conform_keys(plan.known_by.of(events)))
    if plan.input.event_time in plan.input.added:  # the clock, when it arrived
        place = events.column_names.index(plan.input.event_time)
        times = seen.rows["position"].cast(plan.input.schema.field(place).type)
        events = events.set_column(place, plan.input.schema.field(place), times)
    usable = pc.and_(seen.found, events[plan.input.event_time].is_valid())
    for name in plan.never_null:
        usable = pc.and_(usable, events[name].is_valid())
    events, was = events.filter(usable), positions(seen.rows["position"].filter(usable))
    rows = plan.as_messages(events)
    at_us = events[plan.input.event_time].cast(pa.int64()).to_numpy()
    accepted = was == positions(known_until(plan, events, at_us))
    if plan.in_order and plan.finishes:  # those that are held have not been stored yet
        accepted &= at_us < context.watermark_before
    once = first_of_each(rows.select(index.key_names), accepted) == np.arange(rows.num_rows)
    events, rows = events.filter(pa.array(once)), tables.conform(rows.filter(pa.array(once)))
    gone = pc.invert(state[tables.messages.name].lookup(tables.messages.conform_keys(rows)).found)
    return events.filter(gone)


def _as_requests(plan: MessageWindows, events: pa.Table) -> pa.Table:
    """The time of each event, as a question for the session that holds it."""
    times = events[plan.input.event_time].cast(pa.int64()).to_numpy()
    batch = batch_of(plan, events, times, times + 1)
    return batch.select([*plan.group_keys, START, END]).rename_columns([*plan.group_keys, "start", "end"])


def _of_windows_that_lack(
    plan: MessageWindows, state: StateView, events: pa.Table, context: Context
) -> tuple[pa.Table, pa.Table]:
    """The events of windows that lack messages and those between windows, and the metadata of these windows. An event
    only of whole windows is another delivery of what is stored, with another key; or its windows are over.
    """
    index, windows = _windows_of(plan, state, events, context)
    places = first_of_each(windows.select(plan.metadata.windows.key_names))
    firsts = np.flatnonzero(places == np.arange(windows.num_rows))
    lack = np.zeros(windows.num_rows, bool)
    start = 0
    for portion in in_portions(windows.take(pa.array(firsts))):
        lack[firsts[start : start + portion.num_rows]] = lacking(plan, state, portion)
        start += portion.num_rows
    kept = np.union1d(index[lack[places]], np.flatnonzero(between_windows(plan, events)))
    return events.take(pa.array(kept)), windows.filter(pa.array(lack))


def _windows_of(
    plan: MessageWindows, state: StateView, events: pa.Table, context: Context
) -> tuple[Numbers, pa.Table]:
    """Pairs of an event and a window that holds it: the number of the event, and the metadata of the window."""
    spec = plan.metadata.windows
    if plan.sessions:
        found = get_sessions(plan.metadata, state, _as_requests(plan, events))
        return np.asarray(found.request_index), found.rows.select(spec.schema.names)
    ever = context.reaching(BEGINNING_US, context.watermark)
    numbers, rows = [np.zeros(0, np.int64)], [spec.schema.empty_table()]
    for index, starts, ends in message_windows(plan, events, None, ever):
        keys = batch_of(plan, events.take(pa.array(index)), starts, ends).select(spec.key_names)
        known = state[spec.name].lookup(keys)
        numbers.append(index[np.asarray(known.found, bool)])
        rows.append(known.rows.filter(known.found).select(spec.schema.names))
    return np.concatenate(numbers), pa.concat_tables(rows)


def _corrected(
    plan: MessageWindows, state: StateView, windows: pa.Table, context: Context
) -> Iterator[tuple[pa.Table, pa.Table, dict[str, int]]]:
    """Of these windows those that have emitted a pane which differs from what all their messages give now, or whose
    pane was due and hidden: the groups after another pane, the panes, and their counters.
    """
    for portion in in_portions(windows):
        stored = state[GROUPS].lookup(plan.keyed(portion).select(plan.groups.key_names))
        due = pc.and_(stored.found, _was_due(plan, stored.rows, context))
        groups, metadata = plan.as_whole(stored.rows.filter(due)), portion.filter(due)
        whole = stored_in(plan, state, metadata) == column_numbers(metadata, "count")
        # One that a composite trigger has finished may hold messages that came after that.
        groups = groups.filter(pa.array(whole & ~trigger_finished(groups)))
        values = results(plan.reading(lambda asked: read_windows(plan, state, asked)).aggregates, groups)
        same = [equal(values[a.name], groups[f"_last_{a.name}"]) for a in plan.aggregates]
        stands = column_numbers(groups, EMITTED) > 0
        differs = ~np.logical_and.reduce([stands, *same])
        holds = np.ones(groups.num_rows, bool) if plan.shown is None else plan.shown.holds(groups, values)
        changes = differs & (stands | holds)
        groups, values, holds = groups.filter(pa.array(changes)), values.filter(pa.array(changes)), holds[changes]
        if groups.num_rows:
            yield _after(plan, groups, values, holds), *_panes(plan, groups, values, holds, context)


def _was_due(plan: MessageWindows, groups: pa.Table, context: Context) -> pa.ChunkedArray:
    """Which groups, null where there is none, have a pane that stands; or one that was due and was hidden."""
    stands = pc.equal(groups[EMITTED], 1)
    if plan.shown is None:
        return stands
    # A pane that is due leaves nothing pending, hidden or not; and one is due when the watermark passes the end.
    due = pc.equal(groups[PENDING], 0)
    if plan.triggers.when is None and plan.triggers.on_time != "never" and not plan.by_number:
        due = pc.or_(due, pc.less_equal(groups[END].cast(pa.int64()), context.watermark_before))
    return pc.or_(stands, due)


def _panes(
    plan: MessageWindows, groups: pa.Table, values: pa.Table, holds: Flags, context: Context
) -> tuple[pa.Table, dict[str, int]]:
    """Retractions of panes that stand, and the next pane of each group that ``holds``; and their counters."""
    ends = column_numbers(groups, END)
    last = (ends <= plan.closed_at(context.watermark)) & (context.watermark != BEGINNING_US)
    timings = np.where(ends <= context.watermark_before, LATE, EARLY)
    fired = timings * holds
    retracted, emitted = panes_by_timing(plan, groups, values, fired, timings * ~holds, last)
    counters = {f"panes_{name}": int(np.count_nonzero(mask)) for name, mask in timing_masks(fired)}
    counters["retractions"] = sum(rows.num_rows for rows in retracted)
    counters["hidden"] = int(np.count_nonzero(~holds))
    return pa.concat_tables([plan.pane_schema.empty_table(), *retracted, *emitted]), counters


def _after(plan: MessageWindows, groups: pa.Table, values: pa.Table, holds: Flags) -> pa.Table:
    """The groups after the pane of those that hold; the others have none that stands."""
    where = pa.array(holds)
    last = {f"_last_{a.name}": chosen(where, values[a.name], groups[f"_last_{a.name}"]) for a in plan.aggregates}
    numbers = {PANES: pc.add(groups[PANES], where.cast(pa.int64())), EMITTED: where.cast(pa.int64())}
    return with_columns(groups, {**numbers, **last})
