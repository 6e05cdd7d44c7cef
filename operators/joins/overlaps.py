"""A join by lifetimes: once the watermark has passed a row, it pairs up with what lives at that instant. Pure.

| table | key | expires by |
|---|---|---|
| ``left``, ``right`` | key, start, number | the end of the lifetime |
| ``ahead``, ``numbered`` | see `tidestate.operators.plan.held_rows` | time |

Only rows whose lifetime goes on are stored. The end of an edge is a row with the time at which it ends: when its turn
comes, the edge with the same key and event time is deleted, or has that end if both are of one step. So what lives at
an instant before the watermark is known, and no pair is ever retracted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.describe.overlap_join import OverlapJoin
from tidestate.operators.describe.sides import AT, LEFT, RIGHT, SIDE, SIDES
from tidestate.operators.joins.names import EMIT, NUMBER, UNTIL
from tidestate.operators.plan.held_rows import NUMBERED, number_rows, numbers_table, read_numbers
from tidestate.operators.plan.plan import ReplayedPlan, no_bound
from tidestate.operators.plan.transition import KINDS, Transition
from tidestate.operators.progress.advance_time import EDGE_END, EDGE_START, INTERVAL, lifetimes
from tidestate.operators.progress.progress import Context
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
from tidestate.statestore.arrays import Flags, Numbers, Reasons, Times, constant, flags_at
from tidestate.statestore.spec.arrowtypes import type_text
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.lists import places_within
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.spec.tables import TIME, Column, TableSpec
from tidestate.statestore.table.sorting import each_once, shared_ranks, sorting

BEGAN = "_began"
"""The start of a lifetime, in microseconds: of an adjusted event the CTI."""


@dataclass(frozen=True)
class _Living:
    """Rows of one side: ``rows`` of its table, new ones last. ``keys``: a number of each key, equal on both sides."""

    rows: pa.Table
    new: Flags
    keys: Numbers

    @property
    def starts(self) -> Times:
        return self.rows[BEGAN].to_numpy()

    @property
    def ends(self) -> Times:
        return self.rows[UNTIL].to_numpy()


@dataclass(frozen=True, kw_only=True)
class OverlapPlan(ReplayedPlan):
    """A join of rows of two sides whose lifetimes have an instant in common."""

    joined: OverlapJoin
    message_tables = SIDES
    not_replayable = "its lifetimes were cut by rows that may have expired"
    not_run_again = (
        "nothing but its rows says which rows it had, so nothing could show that they came again as they were"
    )
    stored_under: ClassVar[dict[str, tuple[str, ...]]] = {}

    def payload(self, side: str) -> list[pa.Field]:
        """Columns of a side's own."""
        shared = self.joined.sides.shared
        return [one for one in self.input.schema if one.name not in shared and one.name.startswith(f"{side}_")]

    @cached_property
    def living(self) -> dict[str, TableSpec]:
        """The rows of each side that still live."""
        key = (*self.input.key_specs, Column(BEGAN, "int64"), Column(NUMBER, "int64"))
        values = {side: [Column(one.name, type_text(one.type)) for one in self.payload(side)] for side in SIDES}
        return {
            side: TableSpec(side, key, (Column(UNTIL, "int64"), *own), UNTIL, partition_by=self.partition_by)
            for side, own in values.items()
        }

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        ahead = [self.holding.ahead] if self.holding else []
        return (*self.living.values(), numbers_table(self.partition_by), *ahead)

    @cached_property
    def pane_schema(self) -> pa.Schema:
        """Keys, a time, the columns of both sides, and the kind."""
        payload = [field for side in SIDES for field in self.payload(side)]
        kind = pa.field("kind", pa.dictionary(pa.int8(), pa.string()))
        return pa.schema([*self.input.key, pa.field(AT, TIME), *payload, kind])

    def too_late(self, events: pa.Table, times: Times, watermark: int) -> Flags:
        """Rows behind the watermark, of a source that was idle."""
        late: Flags = times < watermark
        return late

    def output_watermark(self, watermark: int, column: str = AT) -> int:
        """Both rows of a later pair live at or after ``watermark``."""
        if column != AT:
            raise no_bound(self, column, f"pairs are placed by {AT}")
        return watermark

    def expiry(self, context: Context) -> dict[str, int]:
        bound = None if context.watermark == BEGINNING_US else min(context.watermark, END_US - 1)
        return {**({} if bound is None else dict.fromkeys(SIDES, bound)), **super().expiry(context)}

    def step(self, view: StateView, arriving: pa.Table, context: Context) -> Transition:
        return self.taking(view, arriving, context, lambda rows: _overlap_step(self, view, rows, context))


def _overlap_step(plan: OverlapPlan, view: StateView, rows: pa.Table, context: Context) -> Transition:
    """Pair ``rows``, all before the watermark, with each other and with what lives on."""
    bound = None if context.watermark == BEGINNING_US else min(context.watermark, END_US - 1)
    if not rows.num_rows:
        return Transition({}, plan.pane_schema.empty_table())
    numbers, asked = read_numbers(view), _keys_of(plan, rows)
    changes, sides, unmatched = {}, {}, 0
    for side in SIDES:
        own = rows.filter(pc.equal(rows[SIDE], side))
        shapes, new = _lives(plan, side, own, numbers.get(side, 0))
        numbers[side] = numbers.get(side, 0) + new.num_rows
        stored = _stored(plan, view, side, asked)
        every = pa.concat_tables([stored, new])
        untils, missed = _ended(plan, side, every, own.filter(pa.array(shapes == EDGE_END)))
        unmatched += missed
        every = every.set_column(every.schema.get_field_index(UNTIL), UNTIL, pa.array(untils))
        sides[side] = every, np.arange(every.num_rows) >= stored.num_rows
        over = every[UNTIL].to_numpy() <= (BEGINNING_US if bound is None else bound)
        is_new, open_ = sides[side][1], stored[UNTIL].to_numpy() == END_US
        closed = np.append(open_ & (untils[: stored.num_rows] != END_US), np.zeros(new.num_rows, bool))
        spec = plan.living[side]
        changes[side] = TableChanges(
            delete=spec.conform_keys(every.filter(pa.array(closed))),
            put=every.filter(pa.array(is_new & ~over)),
        )
    panes = _pairs(plan, *_numbered(plan, sides))
    changes[NUMBERED] = TableChanges(merge=number_rows(numbers))
    counted = {"pairs": panes.num_rows, "edge_ends_unmatched": unmatched}
    return Transition(changes, panes, {name: many for name, many in counted.items() if many})


def _keys_of(plan: OverlapPlan, rows: pa.Table) -> pa.Table:
    """The distinct keys of rows."""
    keys = rows.select(plan.input.key_names)
    return each_once(keys) if plan.input.key_names else keys


def _stored(plan: OverlapPlan, view: StateView, side: str, keys: pa.Table) -> pa.Table:
    """What lives on of these keys."""
    spec = plan.living[side]
    if plan.input.key_names:
        return spec.conform(view[side].ranges(keys).rows)
    return pa.concat_tables([spec.schema.empty_table(), *view[side].scan()])


def _lives(plan: OverlapPlan, side: str, rows: pa.Table, first: int) -> tuple[Reasons, pa.Table]:
    """The shape of each row; and those that begin to live as rows of the side's table, numbered from ``first``."""
    own = plan.joined.events[side]
    lives = lifetimes(rows, AT, own.end, own.shape, own.shape_column)
    until = np.where(lives.shapes == INTERVAL, lives.ends, lives.starts + 1)
    until = np.where(lives.shapes == EDGE_START, END_US, until)
    begins = lives.shapes != EDGE_END
    new = rows.append_column(BEGAN, pa.array(lives.starts)).append_column(UNTIL, pa.array(until))
    new = new.filter(pa.array(begins))
    new = new.append_column(NUMBER, pa.array(np.arange(first, first + new.num_rows)))
    return lives.shapes, plan.living[side].conform(new)


def _ended(plan: OverlapPlan, side: str, rows: pa.Table, ends: pa.Table) -> tuple[Times, int]:
    """When each row ends, with these ``ends`` of edges; and how many of them find no edge.

    An edge is identified by its key and event time, and the first end at or after its start counts.
    """
    untils = rows[UNTIL].to_numpy().copy()
    if not ends.num_rows:
        return untils, 0
    names = [*plan.input.key_names, plan.joined.sides.prefixed(side, plan.joined.sides.time_of(side))]
    (edge, ending), _ = shared_ranks([rows.select(names), ends.select(names)])
    starts, times = rows[BEGAN].to_numpy(), ends[AT].cast(pa.int64()).to_numpy()
    line = np.unique(np.concatenate([starts, times]))
    width = len(line) + 1
    by_time = sorting(ending * width + np.searchsorted(line, times))
    codes = (ending * width + np.searchsorted(line, times))[by_time]
    place = np.searchsorted(codes, edge * width + np.searchsorted(line, starts))
    found = np.minimum(place, len(codes) - 1)
    meets = (place < len(codes)) & (ending[by_time][found] == edge) & (untils == END_US)
    untils[meets] = times[by_time][found[meets]]
    return untils, int(np.count_nonzero(~flags_at(len(codes), found[meets])))


def _numbered(plan: OverlapPlan, sides: dict[str, tuple[pa.Table, Flags]]) -> tuple[_Living, _Living]:
    """Both sides, with numbers for their keys."""
    tables = [sides[side][0].select(plan.input.key_names) for side in SIDES]
    if plan.input.key_names:
        keys, _ = shared_ranks(tables)
    else:
        keys = [np.zeros(sides[side][0].num_rows, np.int64) for side in SIDES]
    left, right = (_Living(*sides[side], own) for side, own in zip(SIDES, keys, strict=True))
    return left, right


def _pairs(plan: OverlapPlan, left: _Living, right: _Living) -> pa.Table:
    """Panes of all pairs with a new row, by time."""
    lefts, others = _met(left, right, LEFT)
    found, rights = _met(right, left, RIGHT)
    lefts, rights = np.concatenate([lefts, rights]), np.concatenate([others, found])
    times = np.maximum(left.starts[lefts], right.starts[rights])
    by_time = np.lexsort((rights, lefts, times))
    lefts, rights, times = lefts[by_time], rights[by_time], times[by_time]
    rows = {LEFT: left.rows.take(pa.array(lefts)), RIGHT: right.rows.take(pa.array(rights))}
    payload = [rows[side][field.name] for side in SIDES for field in plan.payload(side)]
    keys = [rows[LEFT][name] for name in plan.input.key_names]
    columns = [*keys, pa.array(times).cast(TIME), *payload, constant(len(times), EMIT, KINDS)]
    return pa.table(columns, schema=plan.pane_schema)


def _met(new: _Living, other: _Living, side: str) -> tuple[Numbers, Numbers]:
    """Each new row of a ``side`` with the rows of the other side that live when it begins: places on both sides.

    Of rows that begin at one instant, the left one begins first. The other side is searched by classes of length: the
    rows of a class that may still live began less than twice the least length of the class before.
    """
    begins = np.flatnonzero(new.new & (new.starts < new.ends))
    lives = np.flatnonzero(other.starts < other.ends)
    line = np.unique(np.concatenate([new.starts, other.starts]))
    width = len(line) + 1
    found = [np.zeros((2, 0), np.int64)]
    starts = new.starts[begins]
    last = np.searchsorted(line, starts, "right" if side == RIGHT else "left")
    lengths = np.where(other.ends[lives] == END_US, END_US, other.ends[lives] - other.starts[lives])
    classes = np.frexp(lengths.astype(np.float64))[1]
    for number in np.unique(classes).tolist():
        own = lives[classes == number]
        codes = other.keys[own] * width + np.searchsorted(line, other.starts[own])
        own, codes = own[sorting(codes)], np.sort(codes)
        reach = END_US if number > 62 else 1 << number
        earliest = np.where(starts > BEGINNING_US + reach, starts - reach, BEGINNING_US)
        first = np.searchsorted(codes, new.keys[begins] * width + np.searchsorted(line, earliest))
        counts = np.searchsorted(codes, new.keys[begins] * width + last) - first
        index = np.repeat(np.arange(len(begins)), np.maximum(counts, 0))
        candidates = own[first[index] + places_within(np.maximum(counts, 0))]
        alive = other.ends[candidates] > starts[index]
        found.append(np.stack([begins[index[alive]], candidates[alive]]))
    together = np.concatenate(found, axis=1)
    return together[0], together[1]
