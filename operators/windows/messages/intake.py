"""Which events are new, and what these are classified as, next to the state. Pure.

An identity is known until its position, a time or an offset, is forgotten. What arrives behind that is out of
retention: whether it took part once is not known. It is remembered from then on for as long again.

One that was accepted is remembered under its own position, all others under another, at least one higher: so a replay
knows which it may put back where messages were lost, see `rebuild`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.describe.windows import Sessions
from tidestate.operators.plan.classify import Intake, judge, with_refused
from tidestate.operators.plan.ledger import BEYOND_RETENTION, DUPLICATES, ledger
from tidestate.operators.plan.plan import ONLY, RECEIVED, REFUSED
from tidestate.operators.plan.transition import StepTimes, total
from tidestate.operators.progress.instants import BEGINNING_US, LIMIT_US
from tidestate.operators.windows.assignment import gaps_of, lifetime_ends
from tidestate.operators.windows.messages.tables import MessageWindows
from tidestate.statestore.arrays import Counters, Flags, Times
from tidestate.statestore.errors import of_type
from tidestate.statestore.messages.identities import first_of_each, is_known, remember
from tidestate.statestore.messages.retention import Marks, read_marks
from tidestate.statestore.messages.tables import OFFSET, ORIGIN
from tidestate.statestore.spec.arrowtypes import positions
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.table.overlay import OverlayView


@dataclass(frozen=True)
class NewMessages:
    """``accepted``: the new events, by identity; ``rows``: what the step of the windows takes of them, rows of
    `GroupTables.taken`; ``rejected``: rows of the late ledger.
    """

    accepted: pa.Table
    rows: pa.Table
    rejected: pa.Table | None
    counters: Counters


def admit_messages(plan: MessageWindows, state: OverlayView, arriving: pa.Table, at: StepTimes) -> NewMessages:
    """Classify the ``arriving`` events that are new. All are known in ``state`` from now on."""
    watermark = None if at.before == BEGINNING_US else at.before
    intake = Intake(watermark, at.now, at.reprocessing, at.budget_bytes)
    events = plan.events_in(arriving)
    gone, counters = events.slice(0, 0), Counters()
    if not at.reprocessing:
        events, gone, counters = _new(plan, state, events, at)
        events = events.sort_by([(name, "ascending") for name in plan.known_by.columns])
    events, refused, reasons = _refused_first(plan, events, watermark)
    accepted, rejected, classes = judge(plan, events, intake) if events.num_rows else (events, None, {})
    if accepted.num_rows:
        rejected = with_refused(plan, accepted, rejected, classes, intake)
    _remember_verdict(plan, state, events, accepted, at)
    times = accepted[plan.event_time].cast(pa.int64()).to_numpy()
    rows = plan.window_rows(accepted, times, intake) if accepted.num_rows else plan.taken.schema.empty_table()
    ledgers = [rows for rows in (refused, rejected) if rows is not None]
    if gone.num_rows:
        ledgers.append(ledger(plan, gone, BEYOND_RETENTION, watermark))
    return NewMessages(
        accepted, rows, pa.concat_tables(ledgers) if ledgers else None, total([classes, reasons, counters])
    )


def _refused_first(
    plan: MessageWindows, events: pa.Table, watermark: int | None
) -> tuple[pa.Table, pa.Table | None, Counters]:
    """The events that the generator of the watermark did not refuse; ledger rows of the others, and their number."""
    if REFUSED not in events.column_names or events[REFUSED].null_count == events.num_rows:
        return events, None, {}
    out = events.filter(events[REFUSED].is_valid())
    why = out[REFUSED].combine_chunks()
    counters = {"events": out.num_rows, **{row["values"]: row["counts"] for row in pc.value_counts(why).to_pylist()}}
    return events.filter(events[REFUSED].is_null()), ledger(plan, out, why, watermark), counters


def _new(
    plan: MessageWindows, state: OverlayView, events: pa.Table, at: StepTimes
) -> tuple[pa.Table, pa.Table, Counters]:
    """The events that are new, and those that are out of retention; what else there was is counted."""
    tables, bound = plan.identities, plan.forgotten_at(state, at.before)
    identities = plan.known_by.of(events)
    times, usable = _times(plan, events, at)
    places = positions(known_until(plan, events, times))
    now = int(places.max(initial=0)) if not tables.layout.by_time else _now(at)
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
    if REFUSED in events.column_names:  # its generator's reason says more
        old &= events[REFUSED].is_null().to_numpy()
    counts = {DUPLICATES: int(np.count_nonzero(~fresh)), BEYOND_RETENTION: int(np.count_nonzero(old))}
    counters = {name: count for name, count in counts.items() if count}
    return events.filter(pa.array(fresh & ~old)), events.filter(pa.array(old)), counters


def _remember_verdict(
    plan: MessageWindows, state: OverlayView, events: pa.Table, accepted: pa.Table, at: StepTimes
) -> None:
    """Of the known ``events`` those that were rejected are known under another position, others under their own."""
    if not at.reprocessing:
        if accepted.num_rows < events.num_rows:
            new, kept = plan.known_by.of(events), plan.known_by.of(accepted)
            rejected = new.join(kept, [ORIGIN, OFFSET], join_type="left anti")
            state.apply({plan.identities.seen.name: plan.known_as_rejected(state, rejected)})
        return
    seen = plan.identities.seen
    times = accepted[plan.event_time].cast(pa.int64()).to_numpy()
    rows = plan.known_by.of(accepted).append_column("position", known_until(plan, accepted, times))
    if ONLY in accepted.column_names:  # it was accepted for other windows, or is rejected again
        rows = rows.filter(accepted[ONLY].is_null())
    once = first_of_each(rows.select([ORIGIN, OFFSET])) == np.arange(rows.num_rows)
    rows = rows.filter(pa.array(once & is_known(state, seen, rows)))
    state.apply({seen.name: TableChanges(put=seen.conform(rows))})


def _times(plan: MessageWindows, events: pa.Table, at: StepTimes) -> tuple[Times, Flags]:
    """The time of each event, of one without a usable time the watermark: until that it is known; and which have
    one.
    """
    given = events[RECEIVED] if RECEIVED in events.column_names else events[plan.event_time].cast(pa.int64())
    times: npt.NDArray[np.int64] = pc.fill_null(given, 2**63 - 1).to_numpy()
    usable = (times <= LIMIT_US) & (times >= -LIMIT_US)
    return np.where(usable, times, _now(at)), usable


def known_until(plan: MessageWindows, events: pa.Table, times: Times) -> pa.ChunkedArray:
    """The position up to which each event may be in a window, if it is accepted: its offset, or its last instant."""
    kind, places = plan.identities.seen.values[0].arrow, times
    if not plan.identities.layout.by_time:
        return plan.known_by.of(events)[OFFSET].cast(kind)
    if plan.touching:
        places = np.clip(lifetime_ends(plan.slices, times, events) - 1, times, LIMIT_US)
    if plan.sessions and not plan.in_cells and plan.rule == "window":
        places = np.clip(times + gaps_of(of_type(plan.kind, Sessions), events) - 1, times, LIMIT_US)
    return pa.chunked_array([pa.array(places).cast(kind)])


def _now(at: StepTimes) -> int:
    return 0 if at.after == BEGINNING_US else min(at.after, LIMIT_US)
