"""Sliding windows make only the (slice, window) pairs that are asked for, in bands within the store's budget."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.internals import stepped
from tidestate import Aggregation, agg, trigger
from tidestate.operators.bind.operator import bind_plan
from tidestate.operators.describe.windows import Sliding
from tidestate.operators.plan.plan import Plan
from tidestate.operators.plan.transition import Transition
from tidestate.operators.progress.progress import Context
from tidestate.operators.progress.watermarks import BEGINNING_US
from tidestate.operators.windows.expansion import bands
from tidestate.operators.windows.names import PARTS
from tidestate.operators.windows.plan import WindowPlan
from tidestate.statestore.spec.changes import Applied, TableChanges
from tidestate.statestore.spec.tables import TIME
from tidestate.statestore.stores.memory import MemoryStore

MINUTE, DAY = 60_000_000, 86_400_000_000
MIB = 1 << 20
SCHEMA = pa.schema([("at", TIME), ("key", pa.int64()), ("value", pa.int64())])


POOLS: list[pa.MemoryPool] = []
"""Kept as long as anything that they gave may be."""


def rolling_day() -> Aggregation:
    events = ts.stream(event_time="at").group_by("key").window(ts.sliding("1 day", "1 minute"))
    return events.aggregate(n=agg.count(), total=agg.sum("value")).allowed_lateness("1 hour")


def slice_plan(description: Aggregation) -> WindowPlan:
    plan = bind_plan(description.graph.description, SCHEMA)
    assert isinstance(plan, WindowPlan)
    return plan


def dense(plan: WindowPlan, minutes: int, keys: int) -> pa.Table:
    """A slice for each minute and key, with two events."""
    ends = np.repeat(np.arange(1, minutes + 1) * MINUTE, keys)
    columns = {"slice_end": pa.array(ends).cast(TIME), "key": np.tile(np.arange(keys), minutes)}
    columns |= {column.name: pa.array([2] * len(ends)).cast(column.arrow) for column in plan.parts.values}
    return pa.table([columns[name] for name in plan.parts.schema.names], schema=plan.parts.schema)


def holding(plan: WindowPlan, slices: pa.Table) -> MemoryStore:
    store = MemoryStore(plan.tables)
    store.apply({PARTS: TableChanges(merge=slices)}, Applied(1, "first"))
    return store


def peak_bytes(work: Callable[[], Transition]) -> tuple[Transition, int]:
    """What Arrow and numpy hold at once while it works, more than before."""
    pool, whole = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    POOLS.append(whole)
    pa.set_memory_pool(whole)
    tracemalloc.start()
    try:
        moved = work()
        return moved, whole.max_memory() + tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(pool)


def test_one_window_due_makes_no_pairs_of_others() -> None:
    plan, keys = slice_plan(rolling_day()), 50
    store = holding(plan, dense(plan, 2880, keys))
    after = 2880 * MINUTE
    none = plan.parts.schema.empty_table()
    moved, peak = peak_bytes(lambda: plan.step(store, none, Context.between(after - MINUTE, after)))
    assert moved.counters == {"panes_on_time": keys}
    assert set(moved.panes["n"].to_pylist()) == {2 * 1440}
    assert peak < 64 * MIB  # it was over 2 GiB


@pytest.mark.slow
def test_a_leap_of_many_windows_stays_within_the_budget() -> None:
    plan, keys = slice_plan(rolling_day()), 3
    store = holding(plan, dense(plan, 2880, keys))
    after, none = 2880 * MINUTE, plan.parts.schema.empty_table()
    at = Context.between(after - 120 * MINUTE, after, budget_bytes=8 * MIB)
    moved, peak = peak_bytes(lambda: plan.step(store, none, at))
    assert moved.panes.num_rows == 120 * keys
    assert set(moved.panes["total"].to_pylist()) == {2 * 1440}
    assert peak < 16 * MIB  # half a million pairs at once take 70 MiB


def test_late_panes_read_windows_not_slices() -> None:
    plan, keys = slice_plan(rolling_day().accumulation("retracting")), 5
    slices = dense(plan, 2880, keys)
    store = holding(plan, slices)
    # One event each, which touches the sixty windows that have fired and are kept.
    late = slices.slice((2880 - 70) * keys, keys)
    fired = stepped(plan, store, plan.parts.schema.empty_table(), Context.between(2820 * MINUTE, 2880 * MINUTE))
    store.apply(fired.changes, Applied(2, "second"))
    at = Context.between(2880 * MINUTE, 2880 * MINUTE, budget_bytes=8 * MIB)
    moved, peak = peak_bytes(lambda: plan.step(store, late, at))
    assert moved.counters == {"panes_late": 60 * keys, "retractions": 60 * keys}
    emitted = moved.panes.filter(pc.equal(moved.panes["kind"].cast(pa.string()), "emit"))
    assert set(emitted["n"].to_pylist()) == {2 * 1440 + 2}
    assert peak < 16 * MIB


def test_windows_with_triggers_make_few_pairs_of_many_events() -> None:
    description = rolling_day().trigger(early=trigger.each_batch())
    plan = bind_plan(description.graph.description, SCHEMA)
    times = np.arange(20_000) % 20 * MINUTE
    events = pa.table([pa.array(times).cast(TIME), np.arange(20_000) % 3, np.ones(20_000, np.int64)], schema=SCHEMA)
    start = Context.between(BEGINNING_US, BEGINNING_US, budget_bytes=8 * MIB)
    found, peak = peak_bytes(lambda: plan.arrive(events, times, start))
    assert found.num_rows == 3 * (1440 + 19)
    assert peak < 24 * MIB  # 29 million pairs of events and windows


def test_asking_whether_an_event_is_late_needs_no_pairs() -> None:
    plan = bind_plan(rolling_day().allowed_lateness("1 hour", rule="window").graph.description, SCHEMA)
    times = np.arange(-50_000, 50_000) * MINUTE
    events = pa.table([pa.array(times).cast(TIME), times, times], schema=SCHEMA)
    late, peak = peak_bytes(lambda: plan.too_late(events, times, DAY))
    assert np.count_nonzero(late) == 50_000 - 59
    assert peak < 16 * MIB


@given(
    size=st.integers(1, 12),
    slide=st.integers(1, 12),
    shift=st.integers(-3, 3),
    times=st.lists(st.integers(-30, 30), min_size=1, max_size=8),
    span=st.tuples(st.integers(-40, 40), st.integers(0, 30)),
)
def test_windows_of_a_slice_are_those_that_hold_it(
    size: int, slide: int, shift: int, times: list[int], span: tuple[int, int]
) -> None:
    kind, (low, length) = Sliding(size, slide, shift), span
    ends = kind.slice_ends(np.array(times))
    first, counts = kind.windows_of(ends, low, low + length)
    for place, end in enumerate(ends.tolist()):
        every = range(shift + size - 100 * slide, 200, slide)
        holding = [e for e in every if e - size <= end - kind.slice and end <= e and low < e <= low + length]
        assert [int(first[place]) + slide * n for n in range(int(counts[place]))] == holding


@given(counts=st.lists(st.integers(0, 7), max_size=12), most=st.integers(1, 9))
def test_bands_hold_each_pair_once_and_few_at_a_time(counts: list[int], most: int) -> None:
    found = list(bands(np.array(counts, np.int64), most))
    assert all(len(index) <= most for index, _ in found)
    pairs = [pair for index, nth in found for pair in zip(index.tolist(), nth.tolist(), strict=True)]
    assert pairs == [(row, n) for row, many in enumerate(counts) for n in range(many)]


DESCRIPTIONS = {
    "numbers": {"n": agg.count(), "total": agg.sum("value"), "most": agg.max("value")},
    "lists": {"n": agg.count(), "values": agg.list("value")},
}


@pytest.mark.parametrize("triggered", [False, True], ids=["slices", "general"])
@settings(max_examples=max(3, settings.default.max_examples // 5))
@given(data=st.data())
def test_any_budget_shows_the_same(data: st.DataObject, triggered: bool) -> None:
    """Three steps, the last two with late rows, once in one band and once pair by pair."""
    aggregates, key = data.draw(st.sampled_from(sorted(DESCRIPTIONS))), data.draw(st.sampled_from(["key", None]))
    events = (
        ts.stream(event_time="at")
        .group_by(*([key] if key else []))
        .window(
            ts.sliding("5 minutes", data.draw(st.sampled_from(["1 minute", "2 minutes", "7 minutes"])), strict=False)
        )
    )
    description = events.aggregate(**DESCRIPTIONS[aggregates]).allowed_lateness("10 minutes")
    if triggered:
        description = description.trigger(early=trigger.each_batch())
    description = description.accumulation("retracting")
    minutes = st.integers(0, 12)
    batches = [
        data.draw(st.lists(st.tuples(minutes, st.integers(0, 2), st.integers(0, 9)), max_size=8)) for _ in range(3)
    ]
    marks = sorted(data.draw(st.lists(minutes, min_size=3, max_size=3)))
    observed = [
        _played(bind_plan(description.graph.description, SCHEMA), batches, marks, budget) for budget in (1, 256 * MIB)
    ]
    assert observed[0] == observed[1]


def _played(
    plan: Plan, batches: list[list[tuple[int, int, int]]], marks: list[int], budget: int
) -> list[Counter[str]]:
    store, before, found = MemoryStore(plan.tables), BEGINNING_US, []
    for place, (rows, mark) in enumerate(zip(batches, marks, strict=True)):
        times = np.array([row[0] * MINUTE for row in rows], np.int64)
        columns = [pa.array(times).cast(TIME), *(pa.array([row[n] for row in rows], pa.int64()) for n in (1, 2))]
        events, after = pa.table(columns, schema=SCHEMA), mark * MINUTE
        fresh = np.ones(len(rows), bool) if before == BEGINNING_US else ~plan.too_late(events, times, before)
        start = Context.between(before, before, budget_bytes=budget)
        arriving = plan.arrive(events.filter(pa.array(fresh)), times[fresh], start)
        moved = stepped(plan, store, arriving, Context.between(before, after, budget_bytes=budget))
        store.apply(moved.changes, Applied(place + 1, str(place)))
        found.append(Counter(map(str, moved.panes.to_pylist())))
        before = after
    return found
