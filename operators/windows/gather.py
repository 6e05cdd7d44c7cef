"""The groups of a step, with the arrivals of the batch: those with arrivals, and those that are due.

A session whose composite trigger has finished neither grows nor merges: an element that overlaps it is refused, and
the other elements of its key form sessions without it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.describe.windows import Counted
from tidestate.operators.plan.dues import keys_within
from tidestate.operators.progress.progress import Context
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
from tidestate.operators.windows.assignment import open_to
from tidestate.operators.windows.counting import message_number, windows_of_numbers
from tidestate.operators.windows.names import (
    CLOCK,
    CLOSED,
    COUNTED,
    ELEMENTS,
    EMITTED,
    END,
    ENDS,
    GROUPS,
    MARKS,
    PANES,
    PENDING,
    SINCE,
    START,
)
from tidestate.operators.windows.sessions import merge_sessions, overlapped
from tidestate.operators.windows.tables import Gathered, GroupTables, column_numbers, trigger_finished, with_columns
from tidestate.statestore.arrays import Flags, Numbers, Values
from tidestate.statestore.errors import of_type
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.table.fold import combine_values
from tidestate.statestore.table.layers import align
from tidestate.statestore.table.sorting import among, each_once, firsts, lasts, order, ranks, shared_ranks, taken

NO_ROWS = np.empty(0, np.int64)


def gather_groups(
    plan: GroupTables, view: StateView, arriving: pa.Table, context: Context, alone: Flags | None = None
) -> Gathered:
    """All groups that this step may fire or change. ``alone``: see `step_windows`."""
    timed = _timed(plan, view, context)
    if plan.per_event and plan.input.order and not plan.in_order:
        arriving = arriving.take(pa.array(order(arriving.select(plan.order_names))))
    if plan.by_number:
        return _counted(plan, view, arriving, timed, context)
    if plan.sessions:
        if alone is None or not alone.any():
            return _sessions(plan, view, arriving, timed, context)
        others = _sessions(plan, view, arriving.filter(pa.array(~alone)), timed, context)
        new = arriving.filter(pa.array(alone))
        groups = pa.concat_tables([others.groups, fresh_groups(plan, new, context)])
        owner = np.append(others.owner, np.arange(others.groups.num_rows, groups.num_rows))
        return replace(others, groups=groups, owner=owner, new=pa.concat_tables([others.new, new]))
    stored = _fixed(plan, view, arriving, timed, context)
    arriving, refused = _without_closed(plan, stored, arriving)
    groups, owner = _with_due(plan, stored, arriving, context)
    return Gathered(groups, owner, stored, arriving, plan.groups.no_rows, NO_ROWS, NO_ROWS, refused)


def groups_with(plan: GroupTables, view: StateView, new: pa.Table, context: Context) -> pa.Table:
    """The groups of these windows with fixed bounds, with what is stored of them: rows of `GroupTables.whole`."""
    found = view[GROUPS].lookup(each_once(new.select(plan.identity)))
    return _same_windows(plan, plan.as_whole(found.rows.filter(found.found)), new, context)[0]


def _without_closed(plan: GroupTables, stored: pa.Table, arriving: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The arrivals, and those that windows refuse because their composite trigger has finished: with the bounds of
    the window.
    """
    nothing = arriving.slice(0, 0)
    if not (plan.finishes and stored.num_rows and arriving.num_rows):
        return arriving, nothing
    finished = stored.filter(pa.array(trigger_finished(stored)))
    if not finished.num_rows:
        return arriving, nothing
    if plan.sessions:
        bounds = (column_numbers(arriving, name) for name in (START, END))
        place = overlapped(plan.group_keys, finished, arriving, *bounds)
    else:
        (of_finished, of_new), count = shared_ranks([rows.select(plan.identity) for rows in (finished, arriving)])
        place = lasts(of_finished, count)[of_new]
    refused = arriving.filter(pa.array(place >= 0))
    windows = finished.select([START, END]).take(pa.array(place[place >= 0]))
    return arriving.filter(pa.array(place < 0)), with_columns(refused, {name: windows[name] for name in (START, END)})


def _timed(plan: GroupTables, view: StateView, context: Context) -> pa.Table:
    """Identities of groups that are due by the clock, or by the watermark before their end; some are outdated."""
    names = [*plan.group_keys, START, END]
    timers = [plan.clock.schema.empty_table().select(names)]
    # A timer that ran out when the window's end was passed is due in the next step, even if the clock stands still.
    due = (
        (CLOCK, context.now_us, plan.by_clock),
        (MARKS, context.watermark, context.watermark > context.watermark_before),
    )
    for name, bound, moved in due:
        if moved:
            timers += [rows.select(names) for rows in view[name].scan(keys_within(BEGINNING_US, bound))]
    return each_once(pa.concat_tables(timers))


def _fixed(plan: GroupTables, view: StateView, arriving: pa.Table, timed: pa.Table, context: Context) -> pa.Table:
    spans = plan.passed_spans(context, closing=plan.looks_at_closing)
    due = [rows for span in spans for rows in view[GROUPS].scan(keys_within(*span))]
    asked = pa.concat_tables([rows.select(plan.identity) for rows in (arriving, timed)])
    scanned = _in_spans(plan, column_numbers(asked, END), context)
    found = view[GROUPS].lookup(each_once(asked.filter(pa.array(~scanned))))
    rows = found.rows.filter(found.found)
    return plan.as_whole(pa.concat_tables([plan.groups.no_rows, *due, rows]))


def _sessions(plan: GroupTables, view: StateView, arriving: pa.Table, timed: pa.Table, context: Context) -> Gathered:
    """Sessions: all of the keys concerned are read, and those that arrivals join are merged."""
    names = plan.group_keys
    spans = plan.passed_spans(context, closing=plan.looks_at_closing)
    due = [rows.select(names) for span in spans for rows in view[ENDS].scan(keys_within(*span))]
    asked = each_once(pa.concat_tables([arriving.select(names), timed.select(names), *due]))
    stored = plan.as_whole(view[GROUPS].ranges(asked).rows)
    over = stored.slice(0, 0)
    if context.watermark_before != BEGINNING_US and not plan.reprocessing:
        over = _over_by_settings(plan, stored, context)
        stored = open_to(plan, stored, context.watermark_before)
    arriving, refused = _without_closed(plan, stored, arriving)
    if plan.finishes:
        stored = stored.filter(pa.array(~trigger_finished(stored)))
    both = pa.concat_tables([rows.select([*names, START, END]) for rows in (stored, arriving)])
    merged = merge_sessions(names, both)
    of_stored, of_new, same = merged.apart(stored)
    ends = merged.windows[END].to_numpy()
    concerned = _in_spans(plan, ends, context)
    concerned[of_new] = True
    concerned[of_stored[among(stored, timed, timed.column_names)]] = True
    windows = merged.windows if concerned.all() else merged.windows.filter(pa.array(concerned))
    place, here = np.cumsum(concerned) - 1, concerned[of_stored]
    rows = stored if here.all() else stored.filter(pa.array(here))
    owner = place[of_new]
    groups = _joined(plan, windows, rows, arriving, (place[of_stored[here]], owner), same[here], context)
    replaced = plan.groups.conform(stored.filter(pa.array(~same)))
    groups = pa.concat_tables([groups, over]) if over.num_rows else groups
    return Gathered(groups, owner, stored, arriving, replaced, ends[of_stored[~same]], NO_ROWS, refused)


def _over_by_settings(plan: GroupTables, stored: pa.Table, context: Context) -> pa.Table:
    """The sessions that were open until this step and accept no more events by settings that have changed since: they
    close with it, and nothing joins them.
    """
    ends = column_numbers(stored, END)
    over = (ends > plan.closed_before(context.watermark_before)) & (ends <= plan.closed_at(context.watermark_before))
    return stored.filter(pa.array(over))


def _counted(plan: GroupTables, view: StateView, arriving: pa.Table, timed: pa.Table, context: Context) -> Gathered:
    """Count windows: arrivals are numbered here, where all of a key are together."""
    kind, names = of_type(plan.kind, Counted), plan.group_keys
    both = pa.concat_tables([arriving.select(names), timed.select(names)])
    key_of, many = ranks(both)
    keys, key_of = both.take(pa.array(firsts(key_of, many))), key_of[: arriving.num_rows]
    before = pc.fill_null(view[COUNTED].lookup(keys).rows["count"], 0).to_numpy()
    counts = keys.append_column("count", pa.array(before + np.bincount(key_of, minlength=many)))
    rows, starts = windows_of_numbers(message_number(key_of, before), kind.count, kind.step)
    new = arriving.take(pa.array(rows))
    new = with_columns(new, {START: starts, END: starts + kind.count})
    if not (plan.triggers.per_element or plan.finishes):
        new = _combined(plan, new, key_of[rows], starts)
    if context.watermark == END_US:
        found = pa.concat_tables([plan.groups.no_rows, *view[GROUPS].scan()])
    else:
        asked = each_once(pa.concat_tables([rows.select(plan.identity) for rows in (new, timed)]))
        looked = view[GROUPS].lookup(asked)
        found = looked.rows.filter(looked.found)
    stored = plan.as_whole(found)
    new, refused = _without_closed(plan, stored, new)
    groups, owner = _same_windows(plan, stored, new, context)
    reached = align(plan.counted, groups.select(names), counts).rows["count"]
    messages = pc.fill_null(reached, 0).to_numpy()
    return Gathered(groups, owner, stored, new, plan.groups.no_rows, NO_ROWS, messages, refused, counts)


def _combined(plan: GroupTables, new: pa.Table, key_of: Numbers, starts: Numbers) -> pa.Table:
    """`combine` by key and window, from the numbers of keys."""
    owner, count = ranks(pa.table({"key": key_of, "start": starts}))
    windows = new.select(plan.bare.key_names).take(pa.array(firsts(owner, count)))
    values = combine_values(plan.arriving, new, owner, count)
    return pa.table([*windows.columns, *values.columns], schema=plan.arriving.schema)


def _same_windows(plan: GroupTables, stored: pa.Table, new: pa.Table, context: Context) -> tuple[pa.Table, Numbers]:
    """The groups of windows with fixed bounds, and the index of each new row's group."""
    names = plan.identity
    (of_stored, of_new), count = shared_ranks([stored.select(names), new.select(names)])
    both = pa.concat_tables([rows.select(plan.bare.key_names) for rows in (stored, new)])
    windows = both.take(pa.array(firsts(np.concatenate([of_stored, of_new]), count)))
    same = np.ones(stored.num_rows, bool)
    return _joined(plan, windows, stored, new, (of_stored, of_new), same, context), of_new


def _with_due(plan: GroupTables, stored: pa.Table, new: pa.Table, context: Context) -> tuple[pa.Table, Numbers]:
    """As `_same_windows`. Windows from parts are distinct: those without a stored row are groups as they are."""
    due = column_numbers(new, END) > context.watermark_before
    if (
        not plan.lazy
        or plan.reprocessing
        or not due.any()
        or (column_numbers(stored, END) > context.watermark_before).any()
    ):
        return _same_windows(plan, stored, new, context)
    late, owner_of_late = _same_windows(plan, stored, new.filter(pa.array(~due)), context)
    owner = np.empty(len(due), np.int64)
    owner[~due] = owner_of_late
    owner[due] = late.num_rows + np.arange(int(np.count_nonzero(due)))
    fresh = fresh_groups(plan, new if due.all() else new.filter(pa.array(due)), context)
    return pa.concat_tables([late, fresh]), owner


def fresh_groups(plan: GroupTables, new: pa.Table, context: Context) -> pa.Table:
    """Arrivals as groups, where there is one of each and none is stored."""
    fresh = _as_groups(plan, new, context)
    for column in plan.remembered:
        fresh = fresh.append_column(column.name, pa.nulls(fresh.num_rows, column.arrow))
    zero = pa.array(np.zeros(fresh.num_rows, np.int64))
    columns = [zero if name in (PANES, EMITTED, CLOSED) else fresh[name] for name in plan.whole.schema.names]
    return pa.table(columns, schema=plan.whole.schema)


def _joined(
    plan: GroupTables,
    windows: pa.Table,
    stored: pa.Table,
    new: pa.Table,
    owners: tuple[Numbers, Numbers],
    same: Flags,
    context: Context,
) -> pa.Table:
    """The groups of these windows: stored rows combined with new ones. ``owners``: the index of the group of each
    stored and of each new row; ``same``: the group has the stored row's bounds.
    """
    of_stored, _ = owners
    parts = [plan.merging.conform(stored), plan.merging.conform(_as_groups(plan, new, context))]
    count = windows.num_rows
    known = {name: windows[name].cast(plan.whole.schema.field(name).type) for name in plan.whole.key_names}
    owner = np.concatenate(owners)
    values = combine_values(plan.merging, pa.concat_tables(parts), owner, count)
    known |= dict(zip(values.column_names, values.columns, strict=True))
    for column in plan.progress:
        if column.combiner in ("sum", "max") and known[column.name].null_count:
            known[column.name] = pc.fill_null(known[column.name], 0)
    kept = np.flatnonzero(same)
    place = np.full(count, -1)
    place[of_stored[kept]] = kept
    # With other bounds it is another window, which has emitted nothing.
    other = pa.array(place < 0)
    known |= {name: pc.if_else(other, 0, known[name]) for name in (EMITTED, PANES)}
    remembered = taken(stored.select([column.name for column in plan.remembered]), place)
    known |= dict(zip(remembered.column_names, remembered.columns, strict=True))
    return pa.table([known[name] for name in plan.whole.schema.names], schema=plan.whole.schema)


def _as_groups(plan: GroupTables, new: pa.Table, context: Context) -> pa.Table:
    """Arrivals as groups that have emitted nothing."""
    count = new.num_rows
    since = pa.array(np.full(count, context.now_us))
    given: dict[str, Values] = {PENDING: new[ELEMENTS], SINCE: since}
    for node, _ in enumerate(plan.nodes):
        given |= {f"_count_{node}": new[ELEMENTS], f"_since_{node}": since}
    for column in plan.progress:
        if column.name not in new.column_names:
            new = new.append_column(column.name, given.get(column.name, pa.nulls(count, pa.int64())))
    return new


def _in_spans(plan: GroupTables, ends: Numbers, context: Context) -> Flags:
    inside = np.zeros(len(ends), bool)
    for low, high in plan.passed_spans(context, closing=plan.looks_at_closing):
        inside |= (ends > low) & (ends <= high)
    return inside
