"""Sessions of a constant gap before the watermark reaches their end. Pure and vectorised.

A cell is a stretch of time as long as the gap. A *part* holds the events of a key whose own ends (time + gap) lie in
one cell: they are less than the gap apart, so they belong to one session, and the store merges them without a look at
what is there. A session is a chain of parts that overlap.

A step from watermark W0 to W1 reads the parts that end at or before W1 and, for their keys only, the parts of the
cells ahead that start before W1. A chain that ends at or before W1 is complete, and the window operator gets it. Of
any other chain, the parts that are due are combined into one, which goes to the cell of the chain's furthest part.
Late events, and sessions of late events (rows of ``groups``), take the due parts of their chain to the window
operator.

Cells do not keep the order of arrival: sessions of aggregates that see it do not wait in them (`GroupTables.lazy`).

- A row that ends at or before the watermark is over, and is never deleted: nothing reaches its cell any more. An
  event that is not late (time >= W) ends at or after W + gap, which is in a later cell than W.
- A cell of an older root has two rows a key where state is more than sums and extremes: what was carried there, which
  is earlier, and its own. So the rows of a chain are always read in the order of cells."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.plan.dues import keys_within
from tidestate.operators.progress.progress import Context
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
from tidestate.operators.windows.names import CELL, END, ENDS, PARTS, START
from tidestate.operators.windows.sessions import in_key_order, on_a_line
from tidestate.operators.windows.tables import GroupTables, column_numbers, with_columns
from tidestate.statestore.arrays import Flags, Numbers, flags_at, padded
from tidestate.statestore.errors import invariant
from tidestate.statestore.spec.changes import ChangeSet, TableChanges
from tidestate.statestore.spec.keyrange import key_range
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.table.fold import combine, combine_values
from tidestate.statestore.table.sorting import among, each_once, firsts, ranks

LOOK_UP = 8
"""A look-up costs about as much as this many rows of a scan."""


@dataclass(frozen=True)
class ReadySessions:
    """``arriving``: rows of `GroupTables.arriving`, of sessions that are due now or have late events; the others wait
    in parts, by ``changes``. ``alone``: which of them are whole sessions that no stored one overlaps; None for none.
    ``next_end``: the least end, after the watermark, of the stored parts that were read; None if none were read.
    """

    arriving: pa.Table
    changes: ChangeSet
    alone: Flags | None = None
    next_end: int | None = None


@dataclass(frozen=True)
class _Rows:
    """Rows of the parts table that a step looks at. ``late``: of late events, which are not in the table.

    ``opened``: keys and bounds of stored sessions whose end the watermark passes. ``next_end`` as in `ReadySessions`.
    """

    rows: pa.Table
    late: Flags
    opened: pa.Table
    next_end: int | None = None


@dataclass(frozen=True)
class _Chains:
    """Sessions that the rows form, with their bounds. ``special``: with late events or stored sessions; ``waits``:
    with parts that are not due. ``next_cell``: the cell of those that the due ones are added to, which end at
    ``next_end``.

    ``of`` and ``of_opened``: the session of each row and of each stored session; ``moved``: the rows that leave their
    cell, as they are due or late; ``reach``: where the parts of the row's key and cell end.
    """

    starts: Numbers
    ends: Numbers
    special: Flags
    waits: Flags
    next_cell: Numbers
    next_end: Numbers
    of: Numbers
    moved: Flags
    reach: Numbers
    of_opened: Numbers


def parts_of_sessions(plan: GroupTables, sessions: pa.Table) -> pa.Table:
    """Sessions of single events, rows of `GroupTables.arriving`, combined to parts."""
    cells = own_cells(column_numbers(sessions, END) // plan.gap)
    return combine(plan.parts, plan.parts.conform(sessions.append_column(CELL, pa.array(cells))))


def sessions_as_arriving(plan: GroupTables, parts: pa.Table) -> pa.Table:
    """Parts, or what is combined of them, as rows of `GroupTables.arriving`."""
    return plan.arriving.conform(plan.counted_parts(parts))


def own_cells(cells: Numbers) -> Numbers:
    """The rows of these cells; those before have what older roots carried to them."""
    return 2 * cells + 1


def ready_sessions(plan: GroupTables, view: StateView, arriving: pa.Table, context: Context) -> ReadySessions:
    """Sessions that are due, or have late events; everything else waits. ``arriving``: rows of the parts table."""
    new, starts, ends = arriving, column_numbers(arriving, START), column_numbers(arriving, END)
    late = (starts < context.watermark_before) | plan.reprocessing
    waits = ~late & (ends > context.watermark)
    kept = new if waits.all() else new.filter(pa.array(waits))
    nothing = plan.arriving.no_rows
    soon = ~waits | (starts < context.watermark)
    if not soon.any() and (context.watermark == context.watermark_before or context.only_arrivals):
        return ReadySessions(nothing, _changes(plan, [kept], context))
    found = _read(plan, view, new.filter(pa.array(soon)), late[soon], context)
    if not found.rows.num_rows and not found.opened.num_rows:
        return ReadySessions(nothing, _changes(plan, [kept], context), next_end=found.next_end)
    chains = _chains(plan, found, context)
    open_ = chains.ends > context.watermark
    carries = open_ & ~chains.special
    handed, carried = (chains.moved & where[chains.of] for where in (~carries, carries))
    merged = [kept, _joining(found.rows, chains, new.num_rows - int(np.count_nonzero(~soon)), context)]
    changes = _changes(plan, [*merged, _carried(plan, found.rows, chains, carried)], context)
    whole, chosen = _complete(plan, found, chains, handed)
    return ReadySessions(whole, changes, _alone(plan, view, whole, chains.special[chosen], context), found.next_end)


def live_parts(plan: GroupTables, view: StateView, watermark: int) -> pa.Table:
    """The stored parts that are not over, in the order of their key."""
    rows = pa.concat_tables([plan.parts.no_rows, *view[PARTS].scan()])
    return _not_over(plan, rows, watermark)


def _not_over(plan: GroupTables, rows: pa.Table, watermark: int) -> pa.Table:
    """The rows without those of a key and cell that all end at or before the watermark."""
    over = column_numbers(rows, END) <= watermark
    if not over.any():
        return rows
    kept, cells = np.ones(rows.num_rows, bool), _cells(rows)
    some = np.flatnonzero(cells <= int(cells[over].max()))
    few = rows.select(plan.group_keys).take(pa.array(some))
    unit, count = ranks(few.append_column(CELL, pa.array(cells[some])))
    kept[some] = flags_at(count, unit[~over[some]])[unit]
    return rows.filter(pa.array(kept))


def over_at(plan: GroupTables, watermark: int) -> int:
    """The bound up to which cells are over, as the parts table expires."""
    return min(2 * ((watermark + 1) // plan.gap) - 1, END_US - 1)


def _read(plan: GroupTables, view: StateView, new: pa.Table, late: Flags, context: Context) -> _Rows:
    """The parts that may be due, ``new`` ones, and those ahead of them."""
    before, after, gap = context.watermark_before, context.watermark, plan.gap
    opened, stored = plan.ends.no_rows, plan.parts.no_rows
    first, last = None if before == BEGINNING_US else (before + 1) // gap, after // gap
    moves = after > before
    if moves:
        opened = pa.concat_tables([opened, *view[ENDS].scan(keys_within(before, after))])
        cells = key_range(None if first is None else (2 * first,), None if after == END_US else (2 * last + 2,))
        stored = _not_over(plan, pa.concat_tables([stored, *view[PARTS].scan(cells, folded=False)]), before)
    ends_at = column_numbers(stored, END)
    due = ends_at <= context.watermark
    next_end = int(ends_at.min(initial=END_US, where=~due)) if moves else None
    names = plan.group_keys
    if context.watermark == END_US or not (due.any() or new.num_rows or opened.num_rows):
        rows = pa.concat_tables([stored, new])
        return _Rows(rows, np.append(np.zeros(stored.num_rows, bool), late), opened, next_end)
    # What starts before the watermark ends at most a gap after it.
    ahead = range(last + 1 if moves else last, (context.watermark - 1 + gap) // gap + 1)
    cells_read = max(1, last - first + 1) if first is not None else 1
    candidates = int(np.count_nonzero(due)) + new.num_rows + opened.num_rows
    if not ahead:
        forward = []
    elif moves and candidates * 2 * LOOK_UP >= stored.num_rows // cells_read:
        forward = list(view[PARTS].scan(key_range((2 * ahead[0],), (2 * ahead[-1] + 2,)), folded=False))
    else:
        keys = [rows.select(names) for rows in (stored.filter(pa.array(due)), new, opened)]
        asked = each_once(pa.concat_tables(keys))
        stored = stored.filter(pa.array(among(stored, asked, names)))
        forward = [_looked_up(plan, view, asked, ahead, context.watermark_before)]
    forward = [rows.filter(pc.less(rows[START].cast(pa.int64()), context.watermark)) for rows in forward]
    rows = pa.concat_tables([stored, *forward, new])
    return _Rows(rows, np.append(np.zeros(rows.num_rows - new.num_rows, bool), late), opened, next_end)


def end_beyond(plan: GroupTables, view: StateView, watermark: int) -> int:
    """The least end of the stored parts in cells after that of the watermark; `END_US` without any."""
    ahead = view[PARTS].scan(key_range((2 * (watermark // plan.gap + 1),)), folded=False)
    return min((int(column_numbers(rows, END).min()) for rows in ahead if rows.num_rows), default=END_US)


def _looked_up(plan: GroupTables, view: StateView, keys: pa.Table, cells: range, watermark: int) -> pa.Table:
    """The stored parts of these cells and keys."""
    parts = 1 if plan.orderless else 2
    places = np.arange(2 * cells[0] + 2 - parts, 2 * cells[-1] + 2, 3 - parts)
    asked = keys.take(pa.array(np.tile(np.arange(keys.num_rows), len(places))))
    asked = asked.add_column(0, CELL, pa.array(np.repeat(places, keys.num_rows)))
    found = view[PARTS].lookup(asked)
    return _not_over(plan, found.rows.filter(found.found), watermark)


def _cells(rows: pa.Table) -> Numbers:
    cells: Numbers = column_numbers(rows, CELL) >> 1
    return cells


def _chains(plan: GroupTables, found: _Rows, context: Context) -> _Chains:
    """The sessions of the rows. Rows of one key and cell, a *unit*, are of one session, so these are merged first."""
    names, own = plan.group_keys, found.rows.num_rows
    key_of = in_key_order(pa.concat_tables([found.rows.select(names), found.opened.select(names)]))
    starts = np.append(column_numbers(found.rows, START), column_numbers(found.opened, START))
    ends = np.append(column_numbers(found.rows, END), column_numbers(found.opened, END))
    cells = np.append(_cells(found.rows), ends[own:] // plan.gap)
    unit, count = ranks(pa.table({"key": key_of, "cell": cells}))
    part = np.append(~found.late, np.zeros(len(ends) - own, bool))
    unit_starts, unit_ends, reach = np.full(count, END_US), np.full(count, BEGINNING_US), np.full(count, BEGINNING_US)
    np.minimum.at(unit_starts, unit, starts)
    np.maximum.at(unit_ends, unit, ends)
    np.maximum.at(reach, unit[part], ends[part])  # parts of a unit are due together
    special = flags_at(count, unit[~part])
    row_of = firsts(unit, count)
    first = _begins(key_of[row_of], unit_starts, unit_ends)
    session = np.cumsum(first) - 1
    sessions, waiting = int(session[-1]) + 1, reach > context.watermark
    waits, is_special = flags_at(sessions, session[waiting]), flags_at(sessions, session[special])
    to = np.zeros(sessions, np.int64)
    # The last one, so that a session is carried as seldom as possible.
    to[session[waiting]] = np.flatnonzero(waiting)
    begins, ends_of = np.full(sessions, END_US), np.full(sessions, BEGINNING_US)
    np.minimum.at(begins, session, unit_starts)
    np.maximum.at(ends_of, session, unit_ends)
    session = session[unit]
    return _Chains(
        starts=begins,
        ends=ends_of,
        special=is_special,
        waits=waits,
        next_cell=cells[row_of][to],
        next_end=reach[to],
        of=session[:own],
        moved=found.late | ~waiting[unit[:own]],
        reach=reach[unit[:own]],
        of_opened=session[own:],
    )


def _begins(keys: Numbers, starts: Numbers, ends: Numbers) -> Flags:
    """Whether each unit begins a session: all before it end at or before all from it on start. Not empty.

    Units are in the order of key and cell, so of their ends, not of their starts. Keys are laid out on one line.
    """
    new_key = np.append(True, keys[1:] != keys[:-1])
    from_here, reached = on_a_line(new_key, starts, ends)
    np.maximum.accumulate(reached, out=reached)
    np.minimum.accumulate(from_here[::-1], out=from_here[::-1])
    first: Flags = new_key.copy()
    first[1:] |= from_here[1:] >= reached[:-1]
    return first


def _alone(plan: GroupTables, view: StateView, whole: pa.Table, special: Flags, context: Context) -> Flags:
    """Which of the sessions ``whole`` no stored session overlaps: not one that has fired, as no event was late, nor
    one whose end the watermark passes, which is in ``special``; so one that is open.
    """
    some = whole.num_rows > 0 and context.watermark != END_US
    opened = view[ENDS].scan(keys_within(context.watermark, END_US)) if some else ()
    return ~special & ~among(whole, pa.concat_tables([plan.ends.no_rows, *opened]), plan.group_keys)


def _complete(plan: GroupTables, found: _Rows, chains: _Chains, rows: Flags) -> tuple[pa.Table, Numbers]:
    """One row for each session that these rows are of, with its bounds; and for each stored session that grows, which
    would fire otherwise. And which sessions those are.
    """
    whole, chosen = _combined(plan, found.rows, chains, rows, chains.ends)
    whole = sessions_as_arriving(plan, whole)
    grows = chains.waits[chains.of_opened]
    grows[grows] = ~np.isin(chains.of_opened[grows], chosen)
    if not grows.any():
        return whole, chosen
    grown = _bounds_only(plan, found.opened, chains, grows)
    return pa.concat_tables([whole, grown]), np.append(chosen, chains.of_opened[grows])


def _bounds_only(plan: GroupTables, opened: pa.Table, chains: _Chains, grows: Flags) -> pa.Table:
    """Stored sessions with the bounds of their chains, and no events."""
    rows, of = opened.filter(pa.array(grows)), chains.of_opened[grows]
    chained = {START: chains.starts[of], END: chains.ends[of]}
    bounds = {name: pa.array(times).cast(plan.bound_type) for name, times in chained.items()}
    sizes = {column.name: np.zeros(len(of), np.int64) for column in plan.sizes}
    return plan.arriving.conform(with_columns(padded(rows, plan.arriving.schema), {**bounds, **sizes}))


def _joining(rows: pa.Table, chains: _Chains, new: int, context: Context) -> pa.Table:
    """Of the last ``new`` rows those that end before the watermark, in a cell with parts of their key that end after
    it: as long as these.
    """
    last = np.arange(rows.num_rows) >= rows.num_rows - new
    joining = last & ~chains.moved & (column_numbers(rows, END) <= context.watermark)
    if not joining.any():
        return rows.slice(0, 0)
    ends = pa.array(chains.reach[joining]).cast(rows.schema.field(END).type)
    return rows.filter(pa.array(joining)).set_column(rows.column_names.index(END), END, ends)


def _carried(plan: GroupTables, rows: pa.Table, chains: _Chains, where: Flags) -> pa.Table:
    """One part for each session that these rows are of, in the cell of a part that is not due."""
    made, chosen = _combined(plan, rows, chains, where, chains.next_end)
    return plan.parts.conform(made.append_column(CELL, pa.array(own_cells(chains.next_cell[chosen]))))


def _combined(
    plan: GroupTables, rows: pa.Table, chains: _Chains, where: Flags, ends: Numbers
) -> tuple[pa.Table, Numbers]:
    """The rows ``where`` as rows of `GroupTables.chained`, from its start to its place in ``ends``; and
    which sessions those are.
    """
    index = np.flatnonzero(where)
    if not len(index):
        return plan.chained.schema.empty_table(), index
    there = flags_at(len(chains.starts), chains.of[index])
    chosen, owner = np.flatnonzero(there), (np.cumsum(there) - 1)[chains.of[index]]
    known = rows.select([*plan.group_keys, *(column.name for column in plan.chained.values)]).take(pa.array(index))
    values = combine_values(plan.chained, known, owner, len(chosen))
    keys = known.select(plan.group_keys).take(pa.array(firsts(owner, len(chosen))))
    bounds = [pa.array(of[chosen]).cast(plan.bound_type) for of in (chains.starts, ends)]
    return pa.table([*keys.columns, *bounds, *values.columns], schema=plan.chained.schema), chosen


def _changes(plan: GroupTables, merged: list[pa.Table], context: Context) -> ChangeSet:
    rows = pa.concat_tables(merged)
    if not rows.num_rows:
        return {PARTS: TableChanges()}
    invariant(
        int(column_numbers(rows, END).min()) > context.watermark,
        "a part ends after the watermark",
        operator=plan.name,
        watermark=context.watermark,
    )
    return {PARTS: TableChanges(merge=rows)}
