"""Which events are new, and what these are classified as, next to the state. Pure.

An identity is known until its position, a time or an offset, is forgotten. What arrives behind that is out of
retention: whether it took part once is not known. It is remembered from then on for as long again.

One that was accepted is remembered under its own position, all others under another, at least one higher: so a replay
knows which it may put back where messages were lost, see `rebuild`.

Of messages that are reprocessed one that was accepted is in all of its windows but those that have refused it, which
the metadata lists; one that was rejected, or never seen, is in none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.plan.classify import event_times, judge, with_refused
from tidestate.operators.plan.plan import ONLY, REFUSED
from tidestate.operators.plan.reasons import BEYOND_RETENTION, DUPLICATES, EDGE_ENDS
from tidestate.operators.progress.progress import Context, watermark_of
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
from tidestate.operators.windows.assignment import own_windows, sliding_windows
from tidestate.operators.windows.messages.tables import (
    MessageWindows,
    batch_of,
    known_as_rejected,
    known_until,
    message_times,
    now_of,
)
from tidestate.statestore.arrays import Counters, Flags, Numbers, Times, one_table, total
from tidestate.statestore.messages.identities import first_of_each, is_known, remember
from tidestate.statestore.messages.retention import Marks, read_marks
from tidestate.statestore.spec.arrowtypes import positions
from tidestate.statestore.spec.changes import ChangeSet, TableChanges
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.table.overlay import OverlayView
from tidestate.statestore.table.sorting import among


@dataclass(frozen=True)
class NewMessages:
    """``accepted``: the new events, by identity; ``rows``: what the step of the windows takes of them, rows of
    `GroupTables.taken`; ``rejected``: rows of the late ledger.
    """

    accepted: pa.Table
    rows: pa.Table
    rejected: pa.Table | None
    counters: Counters


def admit_messages(plan: MessageWindows, state: OverlayView, arriving: pa.Table, context: Context) -> NewMessages:
    """Classify the ``arriving`` events that are new. All are known in ``state`` from now on."""
    watermark = watermark_of(context.before)
    events = plan.events_in(arriving)
    if plan.reprocessing:
        events, gone, counters = _new_to_windows(plan, state, events, context)
    else:
        events, gone, counters = _new(plan, state, events, context)
        events = events.sort_by([(name, "ascending") for name in plan.known_by.columns])
    new = events
    events, refused, reasons = _refused_first(plan, events, watermark)
    accepted, rejected, classes = events, None, Counters()
    if events.num_rows:
        keep, rejected, classes = judge(plan, events, context, event_times(events[plan.input.event_time]))
        accepted = events if keep is None else events.filter(pa.array(keep))
    if accepted.num_rows:
        moments = event_times(accepted[plan.input.event_time])
        rejected = with_refused(plan, accepted, rejected, classes, context, moments)
    _remember_verdict(plan, state, new, accepted, context)
    times = accepted[plan.input.event_time].cast(pa.int64()).to_numpy()
    rows = plan.window_rows(accepted, times, context) if accepted.num_rows else plan.taken.schema.empty_table()
    old = plan.ledger(gone, BEYOND_RETENTION, watermark) if gone.num_rows else None
    return NewMessages(accepted, rows, one_table([refused, rejected, old]), total([classes, reasons, counters]))


def _refused_first(
    plan: MessageWindows, events: pa.Table, watermark: int | None
) -> tuple[pa.Table, pa.Table | None, Counters]:
    """The events that the generator of the watermark let pass; ledger rows of what it refused, and counters.
    Ends of edges are known from here on, and otherwise counted only.
    """
    if REFUSED not in events.column_names or events[REFUSED].null_count == events.num_rows:
        return events, None, {}
    out, going = events.filter(events[REFUSED].is_valid()), events.filter(events[REFUSED].is_null())
    refused = out.filter(pc.not_equal(out[REFUSED], EDGE_ENDS))
    ends = {EDGE_ENDS: many} if (many := out.num_rows - refused.num_rows) else {}
    if not refused.num_rows:
        return going, None, ends
    why = refused[REFUSED].combine_chunks()
    counters = {row["values"]: row["counts"] for row in pc.value_counts(why).to_pylist()}
    return going, plan.ledger(refused, why, watermark), {"events": refused.num_rows, **counters, **ends}


def _new(
    plan: MessageWindows, state: OverlayView, events: pa.Table, context: Context
) -> tuple[pa.Table, pa.Table, Counters]:
    """The events that are new, and those that are out of retention; what else there was is counted."""
    tables, bound = plan.identities, plan.forgotten_at(state, context.watermark_before)
    identities = plan.known_by.of(events)
    times, usable = message_times(plan, events, context)
    places = positions(known_until(plan, events, times))
    now = int(places.max(initial=0)) if not tables.layout.by_time else now_of(context)
    first = first_of_each(identities) == np.arange(events.num_rows)
    fresh = first & ~is_known(state, tables.seen, identities) if events.num_rows else first
    # One without a usable time is refused for that, whatever the retention.
    aged = usable if tables.layout.by_time else np.ones(events.num_rows, bool)
    old = fresh & aged & (places <= bound) if bound is not None else np.zeros(events.num_rows, bool)
    until = pa.array(np.where(old, np.maximum(now, places + 1), places)).cast(tables.seen.values[0].arrow)
    known = identities.append_column("until", until).filter(pa.array(fresh))
    changes = {tables.seen.name: remember(tables.seen, known.drop_columns(["until"]), known["until"], None)}
    if plan.retention is not None and not plan.horizon and fresh.any():
        marks = read_marks(tables, state)
        newest = max(int(times[fresh].max()), *([] if marks.newest is None else [marks.newest]), BEGINNING_US)
        changes[tables.marks.name] = marks.changed_to(tables, Marks(newest, marks.bound))
    state.apply(changes)
    if context.watermark_before != BEGINNING_US and len(
        outside := plan.outside(events, event_times(events[plan.input.event_time]), context.watermark_before)
    ):
        old &= ~outside  # what is in no window took no part
    if REFUSED in events.column_names:  # its generator's reason says more
        old &= events[REFUSED].is_null().to_numpy()
    counts = {DUPLICATES: int(np.count_nonzero(~fresh)), BEYOND_RETENTION: int(np.count_nonzero(old))}
    counters = {name: count for name, count in counts.items() if count}
    return events.filter(pa.array(fresh & ~old)), events.filter(pa.array(old)), counters


def _remember_verdict(
    plan: MessageWindows, state: OverlayView, events: pa.Table, accepted: pa.Table, context: Context
) -> None:
    """Of the known ``events`` those that were rejected are known under another position, others under their own."""
    if plan.reprocessing:
        state.apply(_take_part(plan, state, accepted, context))
    elif accepted.num_rows < events.num_rows:
        new = plan.known_by.of(events)
        was_rejected = ~among(new, plan.known_by.of(accepted), new.column_names)
        new = new.append_column("start", pa.array(message_times(plan, events, context)[0]))
        rejected = new.filter(pa.array(was_rejected))
        changed = known_as_rejected(plan, state, rejected, rejected["start"], context)
        state.apply({plan.identities.seen.name: changed})


def _new_to_windows(
    plan: MessageWindows, state: StateView, events: pa.Table, context: Context
) -> tuple[pa.Table, pa.Table, Counters]:
    """The reprocessed ``events`` that windows lack, for these windows; those of which that is not known, as they are
    out of retention; and how many there were of both and of duplicates.
    """
    if not events.num_rows:
        return events, events, {}
    identities, only = plan.known_by.of(events), _only(events)
    of_all = only == END_US
    needless = ~of_all & (first_of_each(identities, of_all) < events.num_rows)
    asked = identities.append_column("only", pa.array(only))
    first = ~needless & (first_of_each(asked) == np.arange(events.num_rows))
    took = _took_part(plan, state, events, context)
    old = first & _forgotten(plan, state, events, context)
    new = first & ~took & ~old
    chosen, used = events.filter(pa.array(new)), new | old
    if plan.metadata.refuses and (again := first & took).any():
        index, starts = _refused_before(plan, state, events, np.flatnonzero(again), context)
        used[index] = True
        chosen = pa.concat_tables(
            [_for_windows(chosen, only[new]), _for_windows(events.take(pa.array(index)), starts)]
        )
    counts = {DUPLICATES: int(np.count_nonzero(~used)), BEYOND_RETENTION: int(np.count_nonzero(old))}
    return chosen, events.filter(pa.array(old)), {name: count for name, count in counts.items() if count}


def _take_part(plan: MessageWindows, state: StateView, accepted: pa.Table, context: Context) -> ChangeSet:
    """Changes by which reprocessed messages are known as ``accepted``. Of one that was not, and is for some of its
    windows alone, the others have refused it.
    """
    seen = plan.identities.seen
    times, _ = message_times(plan, accepted, context)
    rows = plan.known_by.of(accepted).append_column("position", known_until(plan, accepted, times))
    once = first_of_each(rows.select(seen.key_names)) == np.arange(rows.num_rows)
    changes = {seen.name: TableChanges(put=seen.conform(rows.filter(pa.array(once))))}
    if not plan.metadata.refuses:
        return changes
    partly = accepted.filter(
        pa.array(once & (_only(accepted) != END_US) & ~_took_part(plan, state, accepted, context))
    )
    if partly.num_rows:
        partly = partly.drop_columns([ONLY])
        index, starts, ends = _open_windows(plan, partly, context)
        batch = batch_of(plan, partly.take(pa.array(index)), starts, ends)
        refused = plan.metadata.refused
        changes[refused.name] = TableChanges(put=refused.conform(batch))
    return changes


def _only(events: pa.Table) -> Times:
    """The start of the one window that each event is for, `END_US` for all."""
    only = own_windows(events)
    return np.full(events.num_rows, END_US) if only is None else only


def _took_part(plan: MessageWindows, state: StateView, events: pa.Table, context: Context) -> Flags:
    """Which events are known as accepted ones."""
    seen = plan.identities.seen
    known = state[seen.name].lookup(seen.conform_keys(plan.known_by.of(events)))
    was = pc.fill_null(known.rows["position"].cast(pa.int64()), 0).to_numpy()
    times, usable = message_times(plan, events, context)
    own = positions(known_until(plan, events, times))
    took: Flags = np.asarray(known.found, bool) & (was == own if plan.touching else was <= own)
    return took & usable if plan.identities.layout.by_time else took


def _forgotten(plan: MessageWindows, state: StateView, events: pa.Table, context: Context) -> Flags:
    """Which events windows would take, though these may have forgotten that they have done so before."""
    bound, nothing = plan.forgotten_at(state, context.watermark_before), np.zeros(events.num_rows, bool)
    if bound is None or context.watermark_before == BEGINNING_US:
        return nothing
    times, usable = message_times(plan, events, context)
    late = plan.too_late(events, times, context.watermark_before)
    known = is_known(state, plan.identities.seen, plan.known_by.of(events))
    behind: Flags = usable & ~known & (positions(known_until(plan, events, times)) <= bound)
    return behind & ~late if len(late) else behind


def _refused_before(
    plan: MessageWindows, state: StateView, events: pa.Table, places: Numbers, context: Context
) -> tuple[Numbers, Times]:
    """Of events at these ``places`` those that windows have refused before, with the start of each window; and those
    that are for one window which is over.
    """
    rows = events.take(pa.array(places))
    index, starts, ends = _open_windows(plan, rows, context)
    asked = batch_of(plan, rows.take(pa.array(index)), starts, ends)
    lacks = is_known(state, plan.metadata.refused, plan.metadata.refused.conform_keys(asked))
    only = _only(rows)
    gone = np.flatnonzero((only != END_US) & ~np.isin(np.arange(len(only)), index))
    return places[np.concatenate([index[lacks], gone])], np.concatenate([starts[lacks], only[gone]])


def _open_windows(plan: MessageWindows, events: pa.Table, context: Context) -> tuple[Numbers, Times, Times]:
    """Pairs of events and windows that take them when they are reprocessed: indices of events, starts and ends."""
    times = events[plan.input.event_time].cast(pa.int64()).to_numpy()
    closed = None if context.watermark_before == BEGINNING_US else plan.refused_at(context.watermark_before)
    return plan.slices.pairs(*sliding_windows(plan.slices, times, events, closed))


def _for_windows(events: pa.Table, starts: Times) -> pa.Table:
    """``events``, each for the window with this start, or for all (`END_US`)."""
    if ONLY in events.column_names:
        events = events.drop_columns([ONLY])
    return events.append_column(ONLY, pa.array(starts, mask=starts == END_US))
