"""When windows are due, and until when their state is kept. Pure."""

from __future__ import annotations

from tidestate.operators.describe.windows import Sliding
from tidestate.operators.plan.dues import least
from tidestate.operators.plan.timers import Timer
from tidestate.operators.progress.instants import BEGINNING_US, END_US
from tidestate.operators.progress.progress import Context
from tidestate.operators.windows.groups import Ready
from tidestate.operators.windows.names import CLOCK, COARSE, END, ENDS, GROUPS, MARKS, PARTS, SLICE_END
from tidestate.operators.windows.parts.cells import end_beyond, over_at
from tidestate.operators.windows.tables import GroupTables
from tidestate.statestore.spec.store import StateView


def window_timers(plan: GroupTables) -> tuple[Timer, ...]:
    """Windows are due at their end, with retained ones where they close, and by triggers that look before that.

    When sessions in parts end is not among them: a step that reads their parts sees it, see `due_in_parts`.
    """
    timers = [Timer(CLOCK, "due", clock=True)] if plan.triggers.by_clock else []
    if plan.by_number:  # they are full at a number of messages, at no time
        return tuple(timers)
    closing = plan.looks_at_closing and plan.allowed_us > 0
    timers.append(Timer(ENDS if plan.sessions else GROUPS, END, (0, plan.allowed_us) if closing else (0,)))
    if plan.lazy and isinstance(plan.kind, Sliding):
        timers.append(Timer(PARTS, SLICE_END, grid=plan.kind))
    elif not plan.lazy and plan.triggers.early is not None and plan.triggers.early.kind == "every_event_time":
        timers.append(Timer(MARKS, "due"))
    return tuple(timers)


def due_in_parts(plan: GroupTables, view: StateView, ready: Ready | None, context: Context) -> int | None:
    """The watermark at which a window is due that no timer tells of, as `Transition.due` has it.

    ``ready``: what waits in parts after this step; None where nothing does.
    """
    if plan.closed_us not in (None, plan.gone_us) or context.watermark == BEGINNING_US:
        return None  # the next step closes windows by other settings; or the first watermark may pass any of them
    if ready is None or not plan.sessions or context.watermark == END_US:
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
    bounds = {CLOCK: context.now_us - 1} if plan.triggers.by_clock else {}
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
        bounds[PARTS] = last if context.watermark == END_US else plan.slices.oldest_slice_after(context.watermark)
        if plan.coarse_slices and plan.orderless:
            bounds[COARSE] = min(last, bounds[PARTS] + plan.coarse_slices * plan.slices.slice - 1)
    return bounds
