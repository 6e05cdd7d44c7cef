"""Long windows from coarse parts and slices: the same panes as from slices alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.internals import stepped
from tests.helpers.process import LONG
from tidestate import agg, trigger
from tidestate.operators.bind.operator import bind_plan
from tidestate.operators.describe.windows import Sliding
from tidestate.operators.progress.progress import Context
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
from tidestate.operators.windows import tables
from tidestate.operators.windows.names import COARSE
from tidestate.operators.windows.plan import WindowPlan
from tidestate.operators.windows.slices import cell_ends, edge_windows
from tidestate.statestore.spec.changes import Applied
from tidestate.statestore.spec.tables import TIME
from tidestate.statestore.stores.memory import MemoryStore

SECOND = 1_000_000
SCHEMA = pa.schema([("at", TIME), ("key", pa.int64()), ("value", pa.int64())])
ROWS = st.lists(st.tuples(st.integers(-20, 60), st.integers(0, 2), st.integers(-9, 9)), max_size=12)
AHEAD = st.lists(st.tuples(st.integers(-2, 40), st.integers(0, 2), st.integers(-9, 9)), min_size=1, max_size=2)


def plan_of(window: Any, late: int, rule: str, coarse_from: int, *, early: bool = False) -> WindowPlan:
    described = ts.stream(event_time="at", watermark_delay="0 seconds").group_by("key").window(window)
    described = described.aggregate(n=agg.count(), total=agg.sum("value"), most=agg.max("value"))
    described = described.trigger(early=trigger.each_batch()) if early else described
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "COARSE_FROM", coarse_from)
        plan = bind_plan(described.allowed_lateness(f"{late} seconds", rule=rule).graph.description, SCHEMA)
        assert isinstance(plan, WindowPlan)
        assert bool(plan.coarse_slices) == (coarse_from < 100)
    return plan


class Player:
    """Steps of a plan on a memory store. If ``odd``, every third step is of aggregates that need an order."""

    def __init__(self, plan: WindowPlan, *, odd: bool = False) -> None:
        self.plan, self.odd = plan, odd
        self.store, self.steps = MemoryStore(plan.tables), 0
        self.before = BEGINNING_US
        self.due: int | None = None

    def step(self, rows: list[tuple[int, int, int]], after: int) -> Counter[str]:
        self.plan.__dict__["orderless"] = not (self.odd and self.steps % 3 == 2)
        times = np.array([row[0] * SECOND for row in rows], np.int64)
        columns = [pa.array(times).cast(TIME), *(pa.array([row[n] for row in rows], pa.int64()) for n in (1, 2))]
        events = pa.table(columns, schema=SCHEMA)
        fresh = np.ones(len(rows), bool)
        if self.before != BEGINNING_US:
            fresh = ~self.plan.too_late(events, times, self.before)
        start = Context.between(self.before, self.before)
        arriving = self.plan.arrive(events.filter(pa.array(fresh)), times[fresh], start)
        reached = max(self.before, after)
        idle = not arriving.num_rows and self.due is not None and reached < self.due
        moved = stepped(self.plan, self.store, arriving, Context.between(self.before, reached))
        if idle:
            assert not moved.panes.num_rows
            assert not moved.counters
            assert not any(layers for one in moved.changes.values() if (layers := one.layers()))
        self.due = None if self.odd else moved.due
        self.steps, self.before = self.steps + 1, max(self.before, after)
        self.store.apply(moved.changes, Applied(self.steps, str(self.steps)))
        return Counter(map(str, moved.panes.to_pylist()))


@settings(max_examples=150 if LONG else 4)
@given(
    size=st.integers(4, 14),
    slide=st.integers(1, 3),
    shift=st.integers(0, 3),
    late=st.sampled_from([0, 3, 20]),
    rule=st.sampled_from(["event", "window"]),
    steps=st.lists(st.tuples(ROWS, st.integers(-10, 50)), min_size=1, max_size=7),
    odd=st.booleans(),
    early=st.booleans(),
)
def test_panes_are_those_of_slices_alone(
    size: int, slide: int, shift: int, late: int, rule: str, steps: list[tuple[Any, int]], odd: bool, early: bool
) -> None:
    window = ts.sliding(f"{size} seconds", f"{slide} seconds", offset=f"{shift} seconds", strict=False)
    if window.size // window.slice < 4:
        return
    fine, coarse = (Player(plan_of(window, late, rule, least, early=early), odd=odd) for least in (10**6, 4))
    for rows, mark in steps:
        assert coarse.step(rows, mark * SECOND) == fine.step(rows, mark * SECOND)
    assert coarse.step([], END_US) == fine.step([], END_US)


@settings(max_examples=200 if LONG else 5)
@given(
    size=st.integers(1, 6),
    slide=st.integers(1, 8),
    late=st.sampled_from([0, 3, 20]),
    rule=st.sampled_from(["event", "window"]),
    steps=st.lists(st.tuples(st.just([]) | AHEAD, st.integers(0, 9)), min_size=4, max_size=9),
)
def test_a_step_before_it_is_due_does_nothing(
    size: int, slide: int, late: int, rule: str, steps: list[tuple[Any, int]]
) -> None:
    """A run that leaves such steps out, as a skipped partition does, emits the same."""
    window = ts.sliding(f"{size} seconds", f"{slide} seconds", strict=False)
    every, some = (Player(plan_of(window, late, rule, 10**6)) for _ in range(2))
    timed, now = [], 0
    for rows, further in steps:
        timed.append(([(now + at, *others) for at, *others in rows], (now + further) * SECOND))
        now += further
    for rows, mark in [*timed, ([], END_US)]:
        wanted = every.step(rows, mark)
        if not rows and some.due is not None and max(some.before, mark) < some.due:
            some.before = max(some.before, mark)
            assert not wanted
        else:
            assert some.step(rows, mark) == wanted


@given(
    size=st.integers(2, 12),
    slide=st.integers(1, 5),
    shift=st.integers(-3, 3),
    slices=st.integers(2, 4),
    time=st.integers(-30, 30),
    span=st.tuples(st.integers(-40, 40), st.integers(0, 30)),
)
def test_a_window_has_each_slice_once(
    size: int, slide: int, shift: int, slices: int, time: int, span: tuple[int, int]
) -> None:
    """Through the slice itself, or through its coarse part."""
    kind, (low, length) = Sliding(size, slide, shift), span
    end = kind.slice_ends(np.array([time]))
    cell = cell_ends(kind, end, slices)
    assert cell[0] - slices * kind.slice < end[0] <= cell[0]
    found = [
        kind.windows_of(cell, low, low + length, slices=slices),
        *edge_windows(kind, end, slices, low, low + length),
    ]
    ends = [int(first[0]) + slide * n for first, many in found for n in range(int(many[0]))]
    first, many = kind.windows_of(end, low, low + length)
    assert sorted(ends) == [int(first[0]) + slide * n for n in range(int(many[0]))]


def test_a_day_by_the_minute_reads_few_slices() -> None:
    plan = bind_plan(
        ts.stream(event_time="at")
        .group_by("key")
        .window(ts.sliding("1 day", "1 minute"))
        .aggregate(n=agg.count())
        .graph.description,
        SCHEMA,
    )
    assert isinstance(plan, WindowPlan)
    player, minute, many = Player(plan), 60 * SECOND, 3000
    player.step([(60 * number + 1, 0, 0) for number in range(many)], (many - 1) * minute)
    read = Counter[str]()
    store = player.store

    class Counting:
        def __getitem__(self, table: str) -> Any:
            view = store[table]

            class Table:
                expired = view.expired
                lookup, ranges = view.lookup, view.ranges

                def scan(self, *given: Any, **named: Any) -> Any:
                    for rows in view.scan(*given, **named):
                        read[table] += rows.num_rows
                        yield rows

            return Table()

    at = Context.between((many - 1) * minute, many * minute)
    moved = plan.step(Counting(), plan.parts.schema.empty_table(), at)
    assert moved.panes["n"].to_pylist() == [1440]
    assert read[COARSE] <= 2 * 40  # once to know that there are some
    assert read["parts"] <= 2 * 38
