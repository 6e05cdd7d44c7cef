"""Windows by lifetime of rows that may be edges: the start of an event, and its end in a row of its own. Pure.

An edge lasts for ever until its end arrives, so it belongs to windows without end. They are not written down: the
table ``edges`` has the edges that may be in windows to come, and a step hands each of them over to the windows whose
ends the watermark passes, next to the events that arrive. What follows is the window operator as it is, for which an
edge is an event of the windows that are due.

It is exact: a source that has passed a CTI takes no end before it. So an edge whose end is not known when the
watermark passes the end of a window lives at least as long, and no window that has fired is ever corrected.

| table | key | rows go |
|---|---|---|
| ``edges`` | key, start as received, number | when the watermark has passed all of their windows |
| ``numbered`` | see `tidestate.operators.plan.held_rows` | never |

A start and an end belong together if they have the same key, start and values of the columns that aggregates read.
Edges that agree in all of these are interchangeable, so each end closes the first that is open.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import pyarrow as pa

from tidestate.operators.describe.windows import Sliding
from tidestate.operators.plan.held_rows import NUMBER, NUMBERED, number_rows, numbers_table, read_numbers
from tidestate.operators.plan.input_spec import TOUCHED_LIMIT, Check, wrong_lifetimes
from tidestate.operators.plan.plan import RECEIVED
from tidestate.operators.plan.reasons import BAD_WINDOW
from tidestate.operators.plan.transition import Transition
from tidestate.operators.progress.advance_time import EDGE_END, EDGE_START, INTERVAL, Lifetimes, lifetimes
from tidestate.operators.progress.cti_settings import EventColumns
from tidestate.operators.progress.progress import Context, watermark_of
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
from tidestate.operators.windows.assignment import windows_touched
from tidestate.operators.windows.names import EDGES, END, GROUPS, LIVES_FROM, LIVES_TO, PARTS, SLICE_END
from tidestate.operators.windows.plan import WindowPlan, in_windows
from tidestate.statestore.arrays import Flags, Numbers, Times, padded, total
from tidestate.statestore.spec.arrowtypes import type_text
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.spec.tables import TIME, Column, TableSpec
from tidestate.statestore.table.sorting import each_once, lasts, order, ranks, shared_ranks

FARTHEST = 2**61
"""Farther than any event time, and near enough that windows around it stay in int64."""


def _wrong_intervals(
    kind: Sliding, end: str, start: str, columns: EventColumns, events: pa.Table, times: Times
) -> Flags:
    """Of rows of several shapes, the intervals whose lifetime is not right; ``columns`` say what each row is."""
    bad = wrong_lifetimes(kind, end, events, times)
    return bad & (_lives(events, start, columns).shapes == INTERVAL) if len(bad) else bad


@dataclass(frozen=True, kw_only=True)
class EdgePlan(WindowPlan):
    """The plan of windows by lifetime whose rows may be edges."""

    lives: EventColumns
    """The columns with the end and the shape of each row."""
    payload: tuple[str, ...]
    """The columns that aggregates read of an event: an end has the values of its start."""

    @property
    def reprocesses(self) -> bool:
        """No: what is late is behind windows that have fired with what was known then."""
        return False

    @property
    def own_checks(self) -> tuple[Check, ...]:
        wrong = partial(_wrong_intervals, self.slices, self._end, self.input.event_time, self.lives)
        return ((BAD_WINDOW, wrong),)

    @property
    def keeps_received(self) -> bool:
        return True

    @property
    def stores_rows(self) -> bool:
        return True

    @property
    def computed(self) -> tuple[Column, ...]:
        return (Column(RECEIVED, "int64"),)

    @cached_property
    def exchanged(self) -> TableSpec:  # type: ignore[override]
        return self.whole_rows

    @cached_property
    def edges(self) -> TableSpec:
        """The state table of edges that may be in windows to come; ``_until`` is `END_US` while no end is known."""
        key = (*self.key_columns, Column(RECEIVED, "int64"), Column(NUMBER, "int64"))
        left_out = {*self.input.key_names, self.input.event_time, self._end}
        own = (Column(one.name, type_text(one.type)) for one in self.input.schema if one.name not in left_out)
        values = (Column(LIVES_FROM, "int64"), Column(LIVES_TO, "int64"), *own)
        return TableSpec(EDGES, key, values, partition_by=self.partition_by)

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        return (*super().tables, self.edges, numbers_table(self.partition_by))

    @property
    def _end(self) -> str:
        return self.slices.end_column or ""

    def window_facts(self, rejected: pa.Table, watermark: int | None) -> dict[str, pa.ChunkedArray]:
        """As in `Plan`, and the event time as it came: an end is judged by the time at which it ends its event."""
        facts = super().window_facts(rejected, watermark)
        if RECEIVED in rejected.column_names:
            facts[self.input.event_time] = rejected[RECEIVED].cast(TIME)
        return facts

    def arrive(self, accepted: pa.Table, times: Times, context: Context) -> pa.Table:
        return self.exchanged.conform(accepted)

    def step(self, view: StateView, arriving: pa.Table, context: Context) -> Transition:
        lives = _lives(arriving, self.input.event_time, self.lives)
        whole = self._whole(arriving, lives)
        handed = _hand_over(self, view, arriving, lives, whole, context)
        rows = in_windows(self, *_joined(whole, handed.spans), context)
        moved = super().step(view, rows, context)
        return replace(
            moved,
            changes={**moved.changes, **handed.changes},
            counters=total([moved.counters, handed.counters]),
            rejected=handed.given_up,
            due=None if moved.due is None else min(moved.due, handed.due),
        )

    def _whole(self, arriving: pa.Table, lives: Lifetimes) -> Spans:
        """The events that arrive with their whole lifetimes: points and intervals, in the windows that they touch."""
        whole = (lives.shapes != EDGE_START) & (lives.shapes != EDGE_END)
        rows = self._as_events(arriving.filter(pa.array(whole)), lives.starts[whole])
        ends = pa.array(lives.ends[whole], mask=lives.shapes[whole] != INTERVAL).cast(TIME)
        rows = rows.set_column(rows.column_names.index(self._end), self._end, ends)
        return Spans(rows, *windows_touched(self.slices, lives.starts[whole], rows))

    def _as_events(self, rows: pa.Table, starts: Times) -> pa.Table:
        """Rows with these starts in the columns of the input; an edge has no end in them."""
        times, schema, rows = pa.array(starts).cast(TIME), self.input.schema, padded(rows, self.input.schema)
        columns = [times if name == self.input.event_time else rows[name] for name in schema.names]
        return pa.table(columns, schema=schema)


@dataclass(frozen=True)
class Spans:
    """Events, each in ``counts`` windows that follow each other, the first of which ends at ``first``."""

    events: pa.Table
    first: Times
    counts: Numbers


def _joined(one: Spans, other: Spans) -> tuple[pa.Table, Times, Numbers]:
    return (
        pa.concat_tables([one.events, other.events]),
        np.concatenate([one.first, other.first]),
        np.concatenate([one.counts, other.counts]),
    )


@dataclass(frozen=True)
class _Handed:
    """What a step does with edges: which it hands over to which windows; ``due``: when the next is to be."""

    spans: Spans
    changes: dict[str, TableChanges]
    counters: dict[str, int]
    given_up: pa.Table | None
    due: int


def _lives(rows: pa.Table, start: str, columns: EventColumns) -> Lifetimes:
    return lifetimes(rows, start, columns.end, columns.shape, columns.shape_column)


def _hand_over(
    plan: EdgePlan, view: StateView, arriving: pa.Table, lives: Lifetimes, whole: Spans, context: Context
) -> _Handed:
    """Take the edges and ends that arrive, and hand over to the windows whose ends the watermark passes."""
    begins, ends = (arriving.filter(pa.array(lives.shapes == shape)) for shape in (EDGE_START, EDGE_END))
    # In the order of messages, so that numbers and turns are the same however rows come together.
    begins = begins.take(pa.array(order(begins.select(plan.input.order))))
    if context.only_arrivals and not begins.num_rows and not ends.num_rows:
        return _Handed(Spans(whole.events.slice(0, 0), *_NONE), {}, {}, None, END_US)
    stored = _stored(plan, view, ends, context)
    new, changes = _begun(plan, view, begins)
    edges = pa.concat_tables([stored, new])
    untils, unmatched = _closed(plan, edges, begins, ends)
    starts = edges[LIVES_FROM].to_numpy()
    low, high = context.watermark_before, context.watermark
    last = _last_ends(plan, view, whole, edges, untils) if high == END_US else np.full(len(starts), high)
    first_ends, counts = _between(plan, starts, untils, low, last)
    lost = counts > TOUCHED_LIMIT
    # What is left for later steps: an edge that no later window touches goes.
    following, more = _between(plan, starts, untils, high, np.full(len(starts), END_US))
    lasting = (more > 0) & ~lost & (high != END_US)
    is_new = np.arange(len(starts)) >= stored.num_rows
    changed = is_new | (untils != edges[LIVES_TO].to_numpy())
    after = edges.set_column(edges.column_names.index(LIVES_TO), LIVES_TO, pa.array(untils))
    changes[EDGES] = TableChanges(
        delete=plan.edges.conform_keys(edges.filter(pa.array(~is_new & ~lasting))),
        put=after.filter(pa.array(changed & lasting)),
    )
    due = (counts > 0) & ~lost
    events = edges.filter(pa.array(due))
    spans = Spans(plan._as_events(events, starts[due]), first_ends[due], counts[due])
    counters = {"edge_ends_unmatched": unmatched, BAD_WINDOW: int(np.count_nonzero(lost))}
    return _Handed(
        spans,
        changes,
        {name: many for name, many in counters.items() if many},
        plan.ledger(edges.filter(pa.array(lost)), BAD_WINDOW, watermark_of(context.before)) if lost.any() else None,
        int(following[lasting].min()) if lasting.any() else END_US,
    )


_NONE = np.zeros(0, np.int64), np.zeros(0, np.int64)


def _begun(plan: EdgePlan, view: StateView, begins: pa.Table) -> tuple[pa.Table, dict[str, TableChanges]]:
    """Edges that begin as rows of `EdgePlan.edges`, numbered; and what that changes."""
    count = begins.num_rows
    first = read_numbers(view).get(EDGES, 0) if count else 0
    new = begins.append_column(LIVES_FROM, begins[plan.input.event_time].cast(pa.int64()))
    new = new.append_column(LIVES_TO, pa.array(np.full(count, END_US)))
    new = new.append_column(NUMBER, pa.array(np.arange(first, first + count)))
    changes = {NUMBERED: TableChanges(merge=number_rows({EDGES: first + count}))} if count else {}
    return plan.edges.conform(plan.keyed(new)), changes


def _stored(plan: EdgePlan, view: StateView, ends: pa.Table, context: Context) -> pa.Table:
    """The stored edges: all of them, or where none is due those of the keys of ``ends``."""
    if not context.only_arrivals:
        return pa.concat_tables([plan.edges.schema.empty_table(), *view[EDGES].scan()])
    if not ends.num_rows:
        return plan.edges.schema.empty_table()
    keys = plan.keyed(ends).select(plan.group_keys)
    return plan.edges.conform(view[EDGES].ranges(each_once(keys)).rows)


def _between(plan: EdgePlan, starts: Times, untils: Times, low: int, high: Times) -> tuple[Times, Numbers]:
    """The end of the first window with ``low < end <= high`` that each edge touches, and how many there are."""
    kind = plan.slices
    ends = np.minimum(untils, FARTHEST)
    first, counts = kind.touched(starts, ends, None if low == BEGINNING_US else low)
    # An edge that ends when it starts is retracted: it touches no window.
    counts[ends <= starts] = 0
    bounds = np.clip(high, -FARTHEST, FARTHEST)
    upto: Numbers = (bounds - first) // kind.slide + 1
    return first, np.maximum(0, np.minimum(counts, upto))


def _last_ends(plan: EdgePlan, view: StateView, whole: Spans, edges: pa.Table, untils: Times) -> Times:
    """Up to which window end each edge counts when the input ends: the last window of its key that holds the start of
    an edge, or anything else. Without a bound it would be in windows for ever.
    """
    kind, starts = plan.slices, edges[LIVES_FROM].to_numpy()
    known = np.where(untils == END_US, starts + 1, untils)
    first, counts = kind.touched(starts, np.minimum(known, FARTHEST))
    keys = [edges.select(plan.group_keys)]
    ends = [np.where(counts > 0, first + (counts - 1) * kind.slide, BEGINNING_US)]
    inside = whole.counts > 0
    keys.append(plan.keyed(whole.events).select(plan.group_keys).filter(pa.array(inside)))
    ends.append((whole.first + (whole.counts - 1) * kind.slide)[inside])
    table, column = (PARTS, SLICE_END) if plan.lazy else (GROUPS, END)
    for rows in view[table].scan(folded=False):  # the stored windows
        keys.append(rows.select(plan.group_keys))
        ends.append(rows[column].cast(pa.int64()).to_numpy())
    codes, many = shared_ranks([one.cast(keys[0].schema) for one in keys])
    last = np.full(many, BEGINNING_US)
    np.maximum.at(last, np.concatenate(codes), np.concatenate(ends))
    return last[codes[0]]


def _closed(plan: EdgePlan, edges: pa.Table, begins: pa.Table, ends: pa.Table) -> tuple[Times, int]:
    """When each edge ends, now that ``ends`` have arrived; and how many of them find no open edge.

    ``edges``: the stored ones, then those that begin. In the order of messages each end closes the first edge of its
    identity that is open then; messages of two origins have no order, there all edges begin first.
    """
    untils = edges[LIVES_TO].to_numpy().copy()
    if not ends.num_rows:
        return untils, 0
    names = [*plan.group_keys, RECEIVED, *plan.payload]
    (of_edges, of_ends), many = shared_ranks([rows.select(names) for rows in (edges, plan.keyed(ends))])
    open_ = np.flatnonzero(untils == END_US)
    identity = np.concatenate([of_edges[open_], of_ends])
    is_end = np.arange(len(identity)) >= len(open_)
    moments = _moments(plan, begins, ends, of_edges[edges.num_rows - begins.num_rows :], of_ends, many)
    stored = np.full(len(open_) - begins.num_rows, -1)
    sequence = np.lexsort((is_end, np.concatenate([stored, moments]), identity))
    identity, is_end = identity[sequence], is_end[sequence]
    steps = np.where(is_end, -1, 1)
    group_starts = np.flatnonzero(np.append(True, identity[1:] != identity[:-1]))
    groups = np.repeat(np.arange(len(group_starts)), np.diff(np.append(group_starts, len(identity))))
    balance = np.cumsum(steps)
    balance -= (balance - steps)[group_starts][groups]
    # An end that takes the balance of its identity to a new low has no edge. Groups lie below each other, so that one
    # running minimum serves all.
    depth = 2 * len(identity) + 2
    lowest = np.minimum(np.minimum.accumulate(balance - groups * depth) + groups * depth, 0)
    before = np.append(0, lowest[:-1])
    before[group_starts] = 0
    matched = is_end & (lowest == before)
    # The ends of an identity take its edges in turn.
    closing = groups[matched]
    turn = np.arange(len(closing)) - np.searchsorted(closing, closing)
    closed = open_[sequence[~is_end]][np.searchsorted(groups[~is_end], closing) + turn]
    times = ends[plan.input.event_time].cast(pa.int64()).to_numpy()
    untils[closed] = times[sequence[matched] - len(open_)]
    return untils, int(np.count_nonzero(is_end)) - len(closed)


def _moments(
    plan: EdgePlan, begins: pa.Table, ends: pa.Table, of_begins: Numbers, of_ends: Numbers, many: int
) -> Numbers:
    """The order in which edges and ends that arrive count, within each of ``many`` identities."""
    by = list(plan.input.order)
    both = pa.concat_tables([begins.select(by), ends.select(by)])
    moments = lasts(order(both), both.num_rows)
    identity, origin = np.concatenate([of_begins, of_ends]), ranks(both.select(by[:-1]))[0]
    least, most = np.full(many, both.num_rows), np.full(many, -1)
    np.minimum.at(least, identity, origin)
    np.maximum.at(most, identity, origin)
    after = (least < most)[identity] & (np.arange(len(identity)) >= begins.num_rows)
    return np.where(after, moments + both.num_rows, moments)
