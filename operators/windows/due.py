"""When the state of a window operator is due next, so that steps with nothing to do can be left out. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.describe.windows import Sliding
from tidestate.operators.plan.transition import StepTimes
from tidestate.operators.progress.instants import BEGINNING_US, END_US
from tidestate.operators.windows.groups import column_numbers
from tidestate.operators.windows.names import END, ENDS, GROUPS, MARKS, PARTS, SLICE_END
from tidestate.operators.windows.parts.cells import end_beyond
from tidestate.operators.windows.tables import GroupTables
from tidestate.statestore.spec.changes import ChangeSet
from tidestate.statestore.spec.keyrange import key_range
from tidestate.statestore.spec.store import StateView

LEAST_SPAN = 1_000_000
"""The first range in which the next time is looked for; each is 2, 4, 8, … times longer than the one before."""


def due_mark(
    plan: GroupTables, view: StateView, changes: ChangeSet, at: StepTimes, next_end: int | None
) -> int | None:
    """A watermark before which no window ends or closes with a pane once ``changes`` are applied to ``view``: of
    windows that wait in parts. `END_US` if none waits, None if that is not known. ``next_end`` as in `Ready`.
    """
    after = max(at.before, at.after)
    if plan.closed_us not in (None, plan.gone_us) or after == BEGINNING_US:
        return None
    if after == END_US:
        return END_US
    ends = _next_session(plan, view, changes, at, next_end) if plan.sessions else _next_slice(plan, view, changes, at)
    return None if ends is None else min(ends, _next_close(plan, view, changes, at))


def due_group(plan: GroupTables, view: StateView, changes: ChangeSet, at: StepTimes) -> int | None:
    """As `due_mark`, of windows that are groups from their first event on: also before no early trigger of event time
    is due. Composite triggers look at the clock and the end alone; counted windows at no watermark.
    """
    after = max(at.before, at.after)
    if plan.closed_us not in (None, plan.gone_us) or after == BEGINNING_US:
        return None
    if after == END_US or plan.by_number:
        return END_US
    soonest = plan.slices.first_end_at_or_after(after + 1) if isinstance(plan.kind, Sliding) else after + 1
    ends = _next(view, changes, ENDS if plan.sessions else GROUPS, END, at, soonest)
    found = [_next_close(plan, view, changes, at), ends]
    if plan.triggers.early is not None and plan.triggers.early.kind == "every_event_time":
        found.append(_next(view, changes, MARKS, "due", at, after + 1))
    return min(found)


def _next_slice(plan: GroupTables, view: StateView, changes: ChangeSet, at: StepTimes) -> int:
    """A watermark before which no window of slices ends."""
    after = max(at.before, at.after)
    kind, following = plan.slices, plan.slices.first_end_at_or_after(after + 1)
    needless = kind.oldest_slice_after(after)
    soon = min(needless + kind.slide, following)  # a slice up to here is in the next window
    merged = changes[PARTS].merge
    first = least([merged] if merged is not None else [], SLICE_END, needless)
    put = changes[GROUPS].put  # windows that late events have opened again
    opened = least([put] if put is not None else [], END, after)
    if at.due_mark is not None:  # of what is stored
        new = END_US if first == END_US else max(following, kind.first_end_at_or_after(first))
        return min(at.due_mark, opened, new)
    if first > soon:
        close = view[PARTS].scan(key_range((needless + 1,), (soon + 1,)), folded=False)
        first = soon if any(rows.num_rows for rows in close) else first
    if first > soon:
        first = least_stored(view, PARTS, SLICE_END, soon, first, kind.slide)
    grouped = least(view[GROUPS].scan(key_range((after + 1,)), folded=False), END, after)
    return min(grouped, opened, END_US if first == END_US else max(following, kind.first_end_at_or_after(first)))


def _next_session(
    plan: GroupTables, view: StateView, changes: ChangeSet, at: StepTimes, next_end: int | None
) -> int | None:
    """A watermark before which no session ends: the least end of any part of one."""
    merged, put = changes[PARTS].merge, changes[ENDS].put
    new = least([rows for rows in (merged, put) if rows is not None], END, at.after)
    if at.due_mark is not None:  # of what is stored
        return min(at.due_mark, new)
    if next_end is None:
        return None
    stored = next_end if next_end != END_US else end_beyond(plan, view, at.after)
    opened = least(view[ENDS].scan(key_range((at.after + 1,)), folded=False), END, at.after)
    return min(new, stored, opened)


def _next(view: StateView, changes: ChangeSet, table: str, column: str, at: StepTimes, soonest: int) -> int:
    """The least time after the watermark in the column that the key of a table begins with; `END_US` for none.
    ``soonest``: it is not before.
    """
    after, put = max(at.before, at.after), changes[table].put
    new = END_US if put is None else least([put], column, after)
    if at.due_mark is not None:  # of what is stored
        return min(at.due_mark, new)
    return least_stored(view, table, column, soonest - 1, new, max(at.after - at.before, LEAST_SPAN))


def _next_close(plan: GroupTables, view: StateView, changes: ChangeSet, at: StepTimes) -> int:
    """A watermark before which no window that has ended closes, where a step looks at it; `END_US` for none."""
    if not plan.looks_at_closing:
        return END_US
    after, table = max(at.before, at.after), ENDS if plan.sessions else GROUPS
    closed, put = plan.closed_at(after), changes[table].put
    rows = [] if put is None else [put.filter(pc.less_equal(put[END].cast(pa.int64()), after))]
    if at.due_mark is None and closed < after:
        rows += view[table].scan(key_range((closed + 1,), (after + 1,)), folded=False)
    first = least(rows, END, closed)
    due = min(END_US, first + plan.allowed_us)
    return due if at.due_mark is None else min(due, at.due_mark)


def least_stored(view: StateView, table: str, column: str, above: int, otherwise: int, span: int = LEAST_SPAN) -> int:
    """The least stored time above a bound, ``otherwise`` if none is below that: looked for in ranges that grow from
    ``span``, as files of other times are not read.
    """
    lower, longer = above + 1, 2
    while lower < otherwise:
        upper = min(lower + span, otherwise)
        keys = key_range((lower,), None if upper == END_US else (upper,))
        found = least(view[table].scan(keys, folded=False), column, above)
        if found != END_US:
            return min(found, otherwise)
        lower, span, longer = upper, span * longer, longer * 2
    return otherwise


def least(parts: Iterable[pa.Table], column: str, above: int) -> int:
    """The least value of a column above a bound; `END_US` if there is none."""
    found = (column_numbers(rows, column) for rows in parts)
    return min((int(values[values > above].min()) for values in found if (values > above).any()), default=END_US)
