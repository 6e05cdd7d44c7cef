"""Tumbling and sliding windows before the watermark reaches their end: in parts, one for each slice and key. Pure.

Parts are merged blindly. Those of the windows that the watermark passes are combined and handed over to the window
operator, as if they arrived then. Late events, of windows that are past their end, are handed over at once: so parts
hold nothing of a window that has fired, and a window that is closed is never computed again.

Events are aggregated to parts next to the input, if that pays.

*Coarse* parts each combine many slices, so that a long window needs few rows: a day that slides by a minute has 1,440
slices; with coarse parts of 38 minutes it is combined from 37 of these and at most 76 slices. Coarse parts are merged
as slices are, which stay, as later windows have other edges. They serve aggregates whose result does not depend on
order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.aggregates.aggregate import ones
from tidestate.operators.aggregates.signed import signs
from tidestate.operators.describe.windows import Sliding
from tidestate.operators.plan.dues import keys_within
from tidestate.operators.plan.slicing import SlicedRows, Slicing
from tidestate.operators.progress.progress import BUDGET_BYTES, Context
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
from tidestate.operators.windows.expansion import SHARE, combined_parts, expand_windows, pairs_within
from tidestate.operators.windows.names import COARSE, ELEMENTS, END, PARTS, SLICE_END, START
from tidestate.operators.windows.tables import GroupTables, column_numbers, with_columns
from tidestate.statestore.arrays import Numbers, Times, Values, in_pieces
from tidestate.statestore.spec.changes import ChangeSet, TableChanges
from tidestate.statestore.spec.keyrange import EVERYTHING, KeyRange, key_range
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.table.fold import combine, combine_if_fewer
from tidestate.statestore.table.sorting import sorting


def coarse_of(plan: GroupTables, parts: pa.Table) -> pa.Table:
    """Parts combined to coarse ones: rows of `GroupTables.coarse`."""
    ends = pa.array(cell_ends(plan.slices, slice_ends(parts), plan.coarse_slices)).cast(plan.bound_type)
    return combine(plan.coarse, with_columns(parts, {SLICE_END: ends}))


def cell_ends(kind: Sliding, ends: Times, slices: int) -> Times:
    """The end of the coarse part, of ``slices`` slices, that each slice is in. Shape as given."""
    width = slices * kind.slice
    cells: Times = -((kind.shift - ends) // width) * width + kind.shift
    return cells


def edge_windows(kind: Sliding, ends: Times, slices: int, low: int, high: int) -> Iterator[tuple[Times, Numbers]]:
    """The windows with ``low < end <= high`` that hold a slice, but not all of its coarse part: twice the end of the
    first and how many there are, for the edge at the end of a window and the one at its start.
    """
    first, counts = kind.windows_of(ends, low, high)
    last = first + (counts - 1) * kind.slide
    cells = cell_ends(kind, ends, slices)
    yield first, _steps(kind, first, np.minimum(last, cells - 1))
    # Windows that hold the whole coarse part end from ``cells`` to ``whole``.
    whole = cells - slices * kind.slice + kind.size
    skipped = np.maximum(0, -((first - np.maximum(whole + 1, cells)) // kind.slide))
    following = first + skipped * kind.slide
    yield following, _steps(kind, following, last)


def _steps(kind: Sliding, first: Times, last: Times) -> Numbers:
    """The number of window ends from ``first`` to ``last``."""
    counts: Numbers = np.maximum(0, (last - first) // kind.slide + 1)
    return counts


def ranges_due(plan: GroupTables, low: int, high: int) -> tuple[list[KeyRange], KeyRange]:
    """The slices and the coarse parts that may be needed for the windows with ``low < end <= high``."""
    kind, slices = plan.slices, plan.coarse_slices
    if low == BEGINNING_US or high == END_US:
        whole = keys_within(plan.last_needless_slice(low), high)
        return [whole], whole
    first, last = kind.first_end_at_or_after(low + 1), kind.last_end_at_or_before(high)
    if first > last:
        return [], key_range((last,), (last,))
    whole = key_range((first - kind.size + 1,), (last + 1,))
    cells = cell_ends(kind, np.array([last - kind.size, first]), slices)
    trailing, leading = int(cells[0]), int(cells[1]) - slices * kind.slice
    if trailing >= leading:
        return [whole], whole
    return [key_range((first - kind.size + 1,), (trailing + 1,)), key_range((leading + 1,), (last + 1,))], whole


def has_coarse(plan: GroupTables, view: StateView, watermark: int) -> bool:
    """Whether coarse parts are stored, for each slice that windows may need."""
    if not plan.coarse_slices:
        return False
    ranges = [EVERYTHING]
    if watermark not in (BEGINNING_US, END_US):  # there is probably one; to scan all reads every changelog segment
        cell = int(cell_ends(plan.slices, np.array([watermark]), plan.coarse_slices)[0])
        ranges = [key_range((cell,), (cell + 1,)), EVERYTHING]
    return any(rows.num_rows for keys in ranges for rows in view[COARSE].scan(keys, folded=False))


def coarse_changes(
    plan: GroupTables, view: StateView, arriving: pa.Table | None, watermark: int, *, stored: bool
) -> dict[str, TableChanges]:
    """The changes of the table of coarse parts as ``arriving`` ones are merged, None if there shall be none;
    ``stored``: as `has_coarse` says.
    """
    if not plan.coarse_slices:
        return {}
    if arriving is None:  # former aggregates may have left some
        return {COARSE: TableChanges(delete=all_keys(plan, view))} if stored else {}
    rows = arriving
    if not stored:  # none yet, or none since aggregates needed an order
        former = coarse_of(plan, pa.concat_tables([plan.parts.schema.empty_table(), *view[PARTS].scan(folded=False)]))
        rows = pa.concat_tables([rows, former])
    width = plan.coarse_slices * plan.slices.slice
    rows = parts_between(rows, min(END_US - 1, plan.last_needless_slice(watermark) + width - 1), END_US)
    return {COARSE: TableChanges(merge=rows if rows.num_rows else None)}


def all_keys(plan: GroupTables, view: StateView) -> pa.Table:
    """The keys of all coarse parts."""
    return pa.concat_tables(
        [plan.coarse.key_schema.empty_table(), *(rows.select(plan.coarse.key_names) for rows in view[COARSE].scan())]
    )


def combined_windows(
    plan: GroupTables,
    parts: Iterable[pa.Table],
    low: int,
    high: int,
    budget_bytes: int = BUDGET_BYTES,
    *,
    as_they_are: bool = False,
) -> pa.Table:
    """Combine parts by window and key, for the windows with ``low < end <= high``: rows of `GroupTables.windows`.

    Parts are combined piece by piece, those of each window in the order of time, or ``as_they_are``; only if their
    order matters are all of them in memory.
    """
    spec = plan.windows
    if plan.slices.tumbles and not plan.by_offset:
        rows = pa.concat_tables([plan.parts.schema.empty_table(), *parts])
        return combine(spec, parts_between(rows, low, high).rename_columns(spec.schema.names))
    pieces = parts if as_they_are else pieces_of(plan, parts, budget_bytes)
    spans = ((rows, *plan.slices.windows_of(slice_ends(rows), low, high)) for rows in pieces)
    return combined_parts(spec, (part for one in spans for part in expanded(plan, *one, budget_bytes)))


def expanded(
    plan: GroupTables, rows: pa.Table, first: Numbers, counts: Numbers, budget_bytes: int
) -> Iterator[pa.Table]:
    """Parts combined by window, each in ``counts`` windows from the one that ends at ``first``."""

    def pairs(index: Numbers, nth: Numbers) -> pa.Table:
        ends = pa.array(first[index] + nth * plan.slices.slide).cast(plan.bound_type)
        return rows.take(pa.array(index)).set_column(0, END, ends)

    yield from expand_windows(plan.windows, rows, plan.group_keys, counts, pairs, budget_bytes)


def pieces_of(plan: GroupTables, parts: Iterable[pa.Table], budget_bytes: int) -> Iterator[pa.Table]:
    """Parts in tables of a share of the budget; if their order matters, in one table in the order of time."""
    most = budget_bytes // SHARE
    held, size = [plan.parts.schema.empty_table()], 0
    for rows in chain.from_iterable(in_pieces(part, most) for part in parts) if plan.orderless else parts:
        held.append(rows)
        size += rows.nbytes
        if size > most and plan.orderless:
            yield pa.concat_tables(held)
            held, size = held[:1], 0
    rows = pa.concat_tables(held)
    if not plan.orderless:
        rows = rows.take(pa.array(sorting(slice_ends(rows))))
    yield rows


def as_arriving(plan: GroupTables, windows: pa.Table) -> pa.Table:
    """Rows of `GroupTables.windows` as rows of `GroupTables.arriving`."""
    starts = pc.subtract(windows[END].cast(pa.int64()), plan.slices.size).cast(plan.bound_type)
    return plan.arriving.conform(plan.counted_parts(windows.append_column(START, starts)))


def parts_between(rows: pa.Table, above: int, upto: int) -> pa.Table:
    """Parts with ``above < end <= upto``."""
    ends = slice_ends(rows)
    inside = (ends > above) & (ends <= upto)
    return rows if inside.all() else rows.filter(pa.array(inside))


def slice_ends(parts: pa.Table) -> Numbers:
    """The end of each part. Int64 of shape ``(parts,)``."""
    return column_numbers(parts, SLICE_END)


def slicing_of(plan: GroupTables) -> Slicing | str:
    """How the events of windows that wait in parts can be combined elsewhere; else why they cannot."""
    if not isinstance(plan.kind, Sliding):
        return "its windows are not of a fixed span"
    if plan.touching or plan.by_offset or plan.has_gaps:
        return "its windows are not of times that follow each other without gaps"
    if not plan.lazy:
        return "a trigger, an order or an accumulation looks at windows before they are due"
    if plan.input.signed:
        return "its rows take earlier ones back"
    for aggregate in plan.aggregates:
        if aggregate.partials is None:
            return f"{aggregate.name!r} is {aggregate.aggregate.function}, not a count, sum, minimum, maximum or mean"
    if not plan.orderless:
        return "its windows store more than aggregates"
    kind = plan.slices
    partials = tuple(partial for aggregate in plan.aggregates for partial in aggregate.partials or ())
    return Slicing(kind.slice, kind.shift, partials, lambda watermark: _taken_from(plan, watermark))


def _taken_from(plan: GroupTables, watermark: int) -> int:
    """At a watermark the time from which on all windows take an event, whatever the rule of lateness."""
    if watermark == BEGINNING_US:
        return BEGINNING_US
    by_time = BEGINNING_US if plan.rule == "window" else plan.closed_at(watermark)
    if not plan.refuses_by_windows(watermark):
        return by_time
    # All earlier events are in the window that ends there, or in an earlier one.
    return max(by_time, plan.slices.last_end_at_or_before(plan.refused_at(watermark)))


def parts_of_sliced(plan: GroupTables, sliced: SlicedRows) -> pa.Table:
    """Combined events as rows of `GroupTables.parts`, as `events_as_parts` makes them of events."""
    given = dict(sliced.state)
    given[SLICE_END] = pa.array(sliced.ends)
    given[ELEMENTS] = pa.array(sliced.rows)
    given |= dict(zip(plan.group_keys, plan.keys_of(sliced.keys), strict=True))
    schema = plan.parts.schema
    rows = pa.table([given[name].cast(schema.field(name).type) for name in schema.names], schema=schema)
    # The rows of a sample are entries of their own, and so are those on the two sides of the watermark.
    return combine(plan.parts, rows)


MANY_EVENTS = 1 << 17
"""Fewer rows are always aggregated."""
PAYS_BELOW = 0.5
"""Aggregating next to the input pays if it leaves a smaller share of the rows."""


def events_as_parts(plan: GroupTables, events: pa.Table, times: Times, watermark: int | None) -> pa.Table:
    """Events as rows of `GroupTables.parts`; keys may repeat.

    An event of a window that the watermark has passed is a row of its own where the order of arrival is seen: what is
    combined is in the order of slices.
    """
    ends = plan.slices.slice_ends(times)
    rows = lifted_parts(plan, events, ends)
    if watermark is None or not plan.sees_order or plan.slices.tumbles:
        return aggregated_parts(plan, rows)
    late = plan.slices.first_ends(ends) <= watermark
    if not late.any():
        return aggregated_parts(plan, rows)
    parts = aggregated_parts(plan, rows.filter(pa.array(~late)))
    return pa.concat_tables([parts, rows.filter(pa.array(late)).cast(plan.parts.schema)])


def lifted_parts(plan: GroupTables, events: pa.Table, ends: Times) -> pa.Table:
    """A part for each event, of the slice with this end."""
    sizes: list[Values] = []
    if ELEMENTS in plan.parts.schema.names:
        sizes.append(ones(None, len(ends)))
    if plan.input.signed:
        sizes.append(pa.array(signs(events)))
    columns = [pa.array(ends).cast(plan.bound_type), *plan.keys_of(events), *sizes, *plan.lifted(events)]
    return pa.table(columns, names=plan.parts.schema.names)


def aggregated_parts(plan: GroupTables, lifted: pa.Table) -> pa.Table:
    """Combine parts of one slice and key, unless a sample has almost only distinct ones."""
    if lifted.num_rows <= MANY_EVENTS:
        return combine(plan.parts, lifted)
    parts = combine_if_fewer(plan.parts, lifted, int(PAYS_BELOW * lifted.num_rows))
    return lifted.cast(plan.parts.schema) if parts is None else parts


def ready_windows(
    plan: GroupTables, view: StateView, arriving: pa.Table, context: Context
) -> tuple[pa.Table, ChangeSet]:
    """Late arrivals and the windows that are due, as rows of `GroupTables.arriving`; and the changes of the parts, in
    which everything else waits. ``arriving``: rows of `GroupTables.parts`, or of `GroupTables.windows` if late events
    are reprocessed.
    """
    low, high = context.watermark_before, max(context.watermark_before, context.watermark)
    stored = has_coarse(plan, view, low)
    found = []
    if plan.reprocessing:
        again, arriving = _reprocessed(plan, arriving, low)
        found.append(as_arriving(plan, again))
    elif arriving.num_rows and low != BEGINNING_US:
        found.append(_late(plan, arriving, low, context.budget_bytes))
    coarse = coarse_of(plan, arriving) if plan.coarse_slices and plan.orderless else None
    if high > low:
        due = due_windows(plan, view, arriving, context, coarse if stored else None)
        found.append(as_arriving(plan, due))
    arriving = parts_between(arriving, plan.last_needless_slice(high), END_US)
    rows = pa.concat_tables([plan.arriving.schema.empty_table(), *found])
    changes = {PARTS: TableChanges(merge=arriving if arriving.num_rows else None)}
    return rows, changes | coarse_changes(plan, view, coarse, high, stored=stored)


def _reprocessed(plan: GroupTables, windows: pa.Table, watermark: int) -> tuple[pa.Table, pa.Table]:
    """The windows that take their events at once, and as parts those that wait: behind what has arrived before. One
    of several that share events takes them at once, as a part would be in all of them.
    """
    waits = slice_ends(windows) > watermark if plan.slices.tumbles else np.zeros(windows.num_rows, bool)
    now = windows.filter(pa.array(~waits)).rename_columns(plan.windows.schema.names)
    return now, windows.filter(pa.array(waits))


def _late(plan: GroupTables, arriving: pa.Table, watermark: int, budget_bytes: int) -> pa.Table:
    """Arrivals at windows that end at or before the watermark and still accept events, as rows of
    `GroupTables.arriving`.
    """
    late = plan.slices.first_ends(slice_ends(arriving)) <= watermark
    if not late.any():
        return plan.arriving.schema.empty_table()
    rows = arriving.filter(pa.array(late))
    if not plan.sees_order:
        rows = combine(plan.parts, rows)
    refused = plan.closed_at(watermark)
    windows = combined_windows(plan, [rows], refused, watermark, budget_bytes, as_they_are=True)
    return as_arriving(plan, windows)


def due_windows(
    plan: GroupTables, view: StateView, arriving: pa.Table, context: Context, coarse: pa.Table | None
) -> pa.Table:
    """The windows whose ends the watermark passes, of stored and arriving parts: rows of `GroupTables.windows`.
    ``coarse``: the coarse parts that arrive, if such parts are stored for all of the others.
    """
    if coarse is not None:
        some = [_due_by_levels(plan, view, arriving, coarse, turn) for turn in _turns(plan, coarse, context)]
        return pa.concat_tables([plan.windows.schema.empty_table(), *some])
    before, after = context.watermark_before, context.watermark
    above = plan.last_needless_slice(before)
    rows = parts_between(arriving, above, after)
    if context.only_arrivals and not rows.num_rows:
        return plan.windows.schema.empty_table()
    stored = () if context.only_arrivals else view[PARTS].scan(keys_within(above, after), folded=False)
    return combined_windows(plan, chain(stored, [rows]), before, after, context.budget_bytes)


def _turns(plan: GroupTables, coarse: pa.Table, context: Context) -> Iterator[Context]:
    """The context in spans of as many window ends as the budget has room for, if each window has about as many keys
    as arrive.
    """
    many = max(1, pairs_within(coarse, context.budget_bytes) // max(1, coarse.num_rows)) * plan.slices.slide
    low = context.watermark_before
    if low != BEGINNING_US and context.watermark != END_US:
        first = plan.slices.first_end_at_or_after(low + 1)
        for high in range(first + many - plan.slices.slide, context.watermark, many):
            yield context.reaching(low, high)
            low = high
    yield context.reaching(low, context.watermark)


def _due_by_levels(
    plan: GroupTables, view: StateView, arriving: pa.Table, coarse: pa.Table, context: Context
) -> pa.Table:
    """The same from coarse parts, and slices at the edges of windows."""
    kind, many = plan.slices, plan.coarse_slices
    fine, whole_cells = ranges_due(plan, context.watermark_before, context.watermark)
    slices = chain.from_iterable(view[PARTS].scan(keys, folded=False) for keys in fine)
    whole = view[COARSE].scan(whole_cells, folded=False)

    def combined() -> Iterator[pa.Table]:
        for rows in pieces_of(plan, chain(whole, [coarse]), context.budget_bytes):
            first, counts = kind.windows_of(
                slice_ends(rows), context.watermark_before, context.watermark, slices=many
            )
            yield from expanded(plan, rows, first, counts, context.budget_bytes)
        for rows in pieces_of(plan, chain(slices, [arriving]), context.budget_bytes):
            for first, counts in edge_windows(
                kind, slice_ends(rows), many, context.watermark_before, context.watermark
            ):
                yield from expanded(plan, rows, first, counts, context.budget_bytes)

    return combined_parts(plan.windows, combined())
