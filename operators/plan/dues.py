"""When a state partition has something to do next, and what expires in it: found once for all operators. Pure.

A state partition without arrivals is not opened before something in it is due. An operator declares the rows that
wait for a time (`Timer`), and `next_due` finds the first of these times: in what a step has written, and in what is
stored if that is not known. So a partition that is skipped and one that takes a step with nothing to do are the same,
as long as rows expire by times alone (`Plan.expiry`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from tidestate.operators.plan.transition import Grid, Timer, Transition
from tidestate.operators.progress.progress import Context
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
from tidestate.statestore.spec.arrowtypes import positions
from tidestate.statestore.spec.changes import ChangeSet, TableChanges
from tidestate.statestore.spec.keyrange import KeyRange, key_range
from tidestate.statestore.spec.store import StateView

LEAST_SPAN = 1_000_000
"""The first range in which the next time is looked for, at least; later ones are 2, 4, 8, … times longer."""
NO_CHANGES = TableChanges()


def with_dues(moved: Transition, timers: Sequence[Timer], view: StateView, context: Context) -> Transition:
    """A step on ``view``, which knows when anything of it is due next, rows of the ``timers`` too."""
    changes = moved.changes
    due = None if moved.due is None else min(moved.due, next_due(timers, view, changes, context))
    return replace(moved, due=due, due_us=next_by_clock(timers, view, changes, context))


def next_due(timers: Iterable[Timer], view: StateView, changes: ChangeSet, context: Context) -> int:
    """The watermark at which a row is due next, once ``changes`` are made to ``view``; `END_US` if none is."""
    if context.watermark == END_US:
        return END_US
    # While nothing stored was due, its next time is what it was; only new rows can be due before that.
    stored = view if context.stored_due is None else None
    span = max(context.watermark - context.watermark_before, LEAST_SPAN)
    dues = [_next(timer, stored, changes, context.watermark, span) for timer in timers if not timer.clock]
    return min([*dues, END_US if context.stored_due is None else context.stored_due])


def next_by_clock(timers: Iterable[Timer], view: StateView, changes: ChangeSet, context: Context) -> int | None:
    """The processing time at which a row is due next; None if none is."""
    due = min(
        (_next_by_clock(timer, view, changes, context.now_us) for timer in timers if timer.clock), default=END_US
    )
    return None if due == END_US else due


def _next_by_clock(timer: Timer, view: StateView, changes: ChangeSet, now: int) -> int:
    made = changes.get(timer.table, NO_CHANGES)
    # What a step has set is due in the next one if the clock is past it already: this step did not look at it.
    first = least(_new_rows(made), timer.column, BEGINNING_US)
    above = now if made.expire is None else max(now, made.expire)
    return least_stored(view, timer.table, timer.column, above, first)


def _new_rows(made: TableChanges) -> list[pa.Table]:
    return [rows for rows in (made.put, made.merge) if rows is not None]


def _next(timer: Timer, view: StateView | None, changes: ChangeSet, reached: int, span: int) -> int:
    """The first watermark after ``reached`` at which a row is due, of those in ``changes`` and in ``view``."""
    new = _new_rows(changes.get(timer.table, NO_CHANGES))
    if timer.grid is not None:
        return _next_window(timer, timer.grid, view, new, reached)
    due = END_US
    # A row after `reached` is due with the least delay. One up to it was, and may be again with a longer delay.
    upper: int | None = None
    for delay in timer.delays:
        above = max(BEGINNING_US, reached - delay)
        first = least(new, timer.column, above, upper)
        if view is not None and upper is None:
            first = least_stored(view, timer.table, timer.column, above, first, span)
        elif view is not None and upper is not None and above < upper:
            rows = view[timer.table].scan(keys_within(above, upper), folded=False)
            first = min(first, least(rows, timer.column, above, upper))
        due, upper = min(due, END_US if first == END_US else first + delay), above
    return due


def _next_window(timer: Timer, grid: Grid, view: StateView | None, new: Sequence[pa.Table], reached: int) -> int:
    """The end of the first window after ``reached`` that has a slice."""
    above = grid.oldest_slice_after(reached)
    first = least(new, timer.column, above)
    if view is not None:
        first = least_stored(view, timer.table, timer.column, above, first, grid.slide)
    if first == END_US:
        return END_US
    return max(grid.first_end_at_or_after(reached + 1), grid.first_end_at_or_after(first))


def least_stored(view: StateView, table: str, column: str, above: int, otherwise: int, span: int = LEAST_SPAN) -> int:
    """The least stored time above a bound, ``otherwise`` if none is below that. ``column`` is the first of the key.

    It is looked for in ranges that grow from ``span``, as files of other times are not read. Where the first range is
    empty, the table often is, too: then one look at the rest ends the search.
    """
    lower, longer = above + 1, 2
    while lower < otherwise:
        upper = min(lower + span, otherwise)
        for rows in view[table].scan(_keys(lower, upper), folded=False):
            # Parts come in the order of the key, so later ones have no earlier times and are not read.
            if (first := least([rows], column, above)) != END_US:
                return min(first, otherwise)
        first_range = longer == 2
        if first_range and not any(rows.num_rows for rows in view[table].scan(_keys(upper, otherwise), folded=False)):
            return otherwise
        lower, span, longer = upper, span * longer, longer * 2
    return otherwise


def keys_within(above: int, upto: int) -> KeyRange:
    """Keys that begin with a time, or an offset, above one and at most another; the ends of time bound nothing."""
    lower = None if above == BEGINNING_US else (above + 1,)
    return key_range(lower, None if upto == END_US else (upto + 1,))


def _keys(lower: int, upper: int) -> KeyRange:
    """Keys from ``lower`` to before ``upper``; `END_US` is no bound."""
    return key_range((lower,), None if upper == END_US else (upper,))


def least(parts: Iterable[pa.Table], column: str, above: int, upto: int | None = None) -> int:
    """The least value of a column above a bound, and at most ``upto``; `END_US` if there is none."""
    first = END_US
    for rows in parts:
        values = positions(rows[column])
        inside = values > above if upto is None else (values > above) & (values <= upto)
        first = min(first, int(values.min(initial=END_US, where=inside)))
    return first


def with_expiry(changes: ChangeSet, bounds: Mapping[str, int]) -> dict[str, TableChanges]:
    """The changes, with rows that expire up to these bounds, by table, or up to later ones that the step has set."""
    together = dict(changes)
    for table, bound in bounds.items():
        made = together.get(table, NO_CHANGES)
        together[table] = replace(made, expire=bound if made.expire is None else max(bound, made.expire))
    return together
