"""One step of windows with messages on a view of their state: messages, then windows, then what is forgotten. Pure.

Everything is laid over the state, in the order of the design (SAMZA-552): a message and the last offset of its
windows before anything that follows from them.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from tidestate.operators.plan.dues import least, least_stored, with_expiry
from tidestate.operators.plan.reasons import INCOMPLETE_PANES
from tidestate.operators.plan.transition import Transition
from tidestate.operators.progress.progress import Context
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
from tidestate.operators.windows.messages.forgetting import forget_passed, move_horizon
from tidestate.operators.windows.messages.full_windows import forget_full
from tidestate.operators.windows.messages.intake import admit_messages
from tidestate.operators.windows.messages.reading import incomplete_panes, read_windows
from tidestate.operators.windows.messages.record import record, record_between
from tidestate.operators.windows.messages.tables import MessageWindows
from tidestate.operators.windows.names import END, GROUPS
from tidestate.operators.windows.step import window_expiry
from tidestate.statestore.arrays import one_table, total
from tidestate.statestore.spec.changes import ChangeSet, Ranges
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.table.overlay import OverlayView


def message_step(plan: MessageWindows, view: StateView, arriving: pa.Table, context: Context) -> Transition:
    """Record the ``arriving`` messages that are new, advance time, fire what is due, drop what is over."""
    state = OverlayView(view, plan.tables)
    plan = plan.within(state)
    admitted = admit_messages(plan, state, arriving, context)
    # Where triggers finish, windows say what they take.
    recorded = (record_between if plan.finishes else record)(plan, state, admitted.accepted, context)
    state.apply(recorded)

    def read(windows: pa.Table) -> Ranges:
        return read_windows(plan, state, windows)

    moved = plan.reading(read).window_step(state, admitted.rows, context)
    # With a horizon each state partition closes windows of its own: what expires follows from the state then.
    state.apply(with_expiry(moved.changes, window_expiry(plan, context)) if plan.horizon else moved.changes)
    if plan.finishes:
        recorded = moved.changes
    partly = {INCOMPLETE_PANES: incomplete_panes(plan, state, moved.panes)} if plan.loss is not None else {}
    settled = True
    if plan.by_number:
        forget_full(plan, state, moved.changes.get(GROUPS), read)
    else:
        settled = forget_passed(plan, state, context)
    settled = move_horizon(plan, state, context.watermark) and settled
    return replace(
        moved,
        changes=state.changes(),
        counters=total([admitted.counters, moved.counters, partly]),
        rejected=one_table([admitted.rejected, moved.rejected]),
        due=_due(plan, state, recorded, context, moved.due) if settled else None,
    )


def _due(
    plan: MessageWindows, state: OverlayView, recorded: ChangeSet, context: Context, windows: int | None
) -> int | None:
    """That of the ``windows``, or an earlier one at which messages of a session go, where lateness decides it."""
    if windows is None or (plan.retention is not None and not plan.horizon):
        return windows
    if plan.messages is None or not plan.sessions or plan.retain_us is None or context.watermark == END_US:
        return windows
    ends, over = plan.metadata.ends.name, plan.over_at(context.watermark)
    new = recorded[ends].put if ends in recorded else None
    bound = BEGINNING_US if over is None else over
    first = END_US if new is None else least([new], END, bound)
    if not context.only_arrivals:
        first = least_stored(state, ends, END, bound, first)
    return min(windows, first + max(plan.allowed_us, plan.retain_us), END_US)
