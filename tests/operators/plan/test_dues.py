"""When something is due next: against a loop over all rows, and in tables of examples."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidestate.operators.describe.windows import Sliding
from tidestate.operators.plan.dues import next_by_clock, next_due, with_dues, with_expiry
from tidestate.operators.plan.transition import Timer, Transition
from tidestate.operators.progress.progress import Context
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
from tidestate.statestore.spec.changes import Applied, ChangeSet, TableChanges
from tidestate.statestore.spec.tables import Column, TableSpec
from tidestate.statestore.stores.memory import MemoryStore

SPEC = TableSpec("rows", (Column("at", "int64"), Column("k", "int64")), (), "at")
TIMES = st.lists(st.integers(-50, 50) | st.integers(-(10**9), 10**9), max_size=6)


def rows(times: list[int]) -> pa.Table:
    return SPEC.conform(pa.table({"at": pa.array(times, pa.int64()), "k": pa.array(range(len(times)), pa.int64())}))


def stored(times: list[int]) -> MemoryStore:
    store = MemoryStore([SPEC])
    store.apply({"rows": TableChanges(put=rows(times))}, Applied(1, "one"))
    return store


def put(times: list[int]) -> ChangeSet:
    return {"rows": TableChanges(put=rows(times))}


@given(TIMES, TIMES, st.integers(-60, 60), st.lists(st.integers(0, 40), min_size=1, max_size=3, unique=True))
def test_it_is_the_least_time_that_is_still_to_come(
    old: list[int], new: list[int], now: int, delays: list[int]
) -> None:
    timer = Timer("rows", "at", tuple(sorted(delays)))
    to_come = [time + delay for time in [*old, *new] for delay in delays if time + delay > now]
    assert next_due([timer], stored(old), put(new), Context.between(now, now)) == min(to_come, default=END_US)


@given(TIMES, TIMES, st.integers(-60, 60))
def test_by_the_clock_new_rows_are_due_even_if_it_is_past_them(old: list[int], new: list[int], now: int) -> None:
    to_come = [*new, *(time for time in old if time > now)]
    context = Context.between(0, 0, 0, now)
    assert next_by_clock([Timer("rows", "at", clock=True)], stored(old), put(new), context) == min(
        to_come, default=None
    )
    assert next_due([Timer("rows", "at", clock=True)], stored(old), put(new), context) == END_US


@given(TIMES, TIMES, st.integers(-60, 60), st.sampled_from([(10, 10), (30, 10), (25, 10)]))
def test_a_slice_is_due_with_each_window_that_has_it(
    old: list[int], new: list[int], now: int, shape: tuple[int, int]
) -> None:
    size, slide = shape
    grid = Sliding(size, slide)
    ends = [-(-time // grid.slice) * grid.slice for time in [*old, *new]]
    windows = [end for last in ends for end in _ends_around(grid, last, now)]
    slices = [-(-time // grid.slice) * grid.slice for time in new]
    changes = {"rows": TableChanges(merge=rows(slices))}
    view = stored([-(-time // grid.slice) * grid.slice for time in old])
    assert next_due([Timer("rows", "at", grid=grid)], view, changes, Context.between(now, now)) == min(
        windows, default=END_US
    )


def _ends_around(grid: Sliding, slice_end: int, now: int) -> list[int]:
    """The window ends after ``now`` of the windows that hold a slice."""
    first = grid.first_end_at_or_after(slice_end)
    ends = range(first, slice_end - grid.slice + grid.size + 1, grid.slide)
    return [end for end in ends if end > now]


@pytest.mark.parametrize(
    ("new", "known", "due"),
    [
        ([], 40, 40),
        ([20], 40, 20),
        ([90], 40, 40),
        ([90], END_US, 90),
        ([], END_US, END_US),
    ],
)
def test_what_is_known_of_stored_rows_is_not_looked_up(new: list[int], known: int, due: int) -> None:
    context = replace(Context.between(5, 10), stored_due=known)
    assert next_due([Timer("rows", "at")], stored([11]), put(new), context) == due


def test_at_the_end_of_time_and_before_the_first_watermark() -> None:
    timer = Timer("rows", "at", delays=(0, 5))
    assert next_due([timer], stored([11]), put([12]), Context.between(5, END_US)) == END_US
    assert next_due([timer], stored([11]), put([12]), Context.between(BEGINNING_US, BEGINNING_US)) == 11


def test_what_else_is_due_counts_too() -> None:
    context, timers = Context.between(0, 0, 0, 0), [Timer("rows", "at"), Timer("rows", "at", clock=True)]
    for others, due in ((3, 3), (END_US, 7), (None, None)):
        moved = with_dues(Transition({}, pa.table({}), due=others), timers, stored([7]), context)
        assert (moved.due, moved.due_us) == (due, 7)


def test_a_stored_row_that_expires_is_not_due_by_the_clock_later() -> None:
    changes = with_expiry({}, {"rows": 20})
    assert next_by_clock([Timer("rows", "at", clock=True)], stored([10]), changes, Context.between(0, 0)) is None


def test_rows_expire_up_to_the_later_bound() -> None:
    changes = {"a": TableChanges(expire=5), "b": TableChanges(expire=9)}
    bounds = {name: made.expire for name, made in with_expiry(changes, {"a": 7, "b": 7, "c": 7}).items()}
    assert bounds == {"a": 7, "b": 9, "c": 7}
