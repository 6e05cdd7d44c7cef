"""What merges, unions and session joins show, read by windowed operators of the same job."""

from __future__ import annotations

import tempfile
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.process import SCRATCH, examples
from tests.helpers.two_streams import LEFT, RIGHT, Row, numbered, rows, table
from tests.twins.sessions import ENDED, Brute
from tidestate import Stream, agg

Batches = list[list[Row]]
ORDERS, COSTS = ts.stream("orders", event_time="ordered"), ts.stream("costs", event_time="paid")


def fed(batch: list[Row]) -> dict[str, pa.Table]:
    left, right = ([row for row in batch if row.side == side] for side in ("left", "right"))
    return {"orders": table(left, LEFT), "costs": table(right, RIGHT)}


def panes(description: object, batches: Batches) -> pa.Table:
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        runner = description.standalone(checkpoint=folder)  # type: ignore[attr-defined]
        return runner.run([fed(batch) for batch in batches], drain=True)


def last_of_keys(observed: pa.Table, *names: str) -> dict[str, tuple[object, ...]]:
    """What stands at the end: the newest pane of each key, unless it was taken back for good."""
    found: dict[str, tuple[object, ...]] = {}
    for row in observed.to_pylist():
        values = tuple(row[name] for name in names)
        if row["kind"] == "emit":
            found[row["k"]] = values
        elif found.get(row["k"]) == values:
            del found[row["k"]]
    return found


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(15))
@given(st.lists(st.lists(rows, max_size=8), min_size=1, max_size=5), st.sampled_from([0, 12]))
def test_sums_over_a_session_join_follow_what_it_takes_back(batches: Batches, late: int) -> None:
    pairs = ORDERS.join_sessions(COSTS, on="k", gap="5 s", allowed_lateness=f"{late} s", name="pairs")
    whole = pairs.group_by("k").window(ts.tumbling("1 day"))
    sums = whole.aggregate(n=agg.count(), cost=agg.sum("right_cost")).named("sums").accumulation("retracting")
    batches = [sorted(batch, key=lambda row: row.side) for batch in numbered(batches)]
    observed = panes(sums, batches)
    brute, newest = Brute("inner", 5, late, True), {}
    for batch in batches:
        for row in batch:
            before = brute.rejected
            brute.batch([row])
            if brute.rejected == before:
                newest[row.side] = max(newest.get(row.side, 0), row.at)
        if len(newest) == 2:
            brute.passed(min(newest.values()))
    brute.passed(ENDED)
    counts: Counter[str] = Counter()
    costs: Counter[str] = Counter()
    for (_, _, key, _, _, cost), times in brute.observed().items():
        counts[key] += times
        costs[key] += cost * times
    assert last_of_keys(observed, "n", "cost") == {key: (counts[key], costs[key]) for key in counts}


@settings(deadline=None, max_examples=examples(10))
@given(st.lists(st.lists(rows, max_size=8), min_size=1, max_size=4))
def test_a_union_is_read_as_one_stream(batches: Batches) -> None:
    names = ("first", "second")
    both = ts.union(*(ts.stream(name, event_time="ordered") for name in names), name="both")
    sums = both.group_by("k").window(ts.tumbling("1 day")).aggregate(n=agg.count(), price=agg.sum("price"))
    description = sums.allowed_lateness("1 day").named("sums")
    parts = [{name: table(batch[place::2], LEFT) for place, name in enumerate(names)} for batch in batches]
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        observed = description.standalone(checkpoint=folder, partitions=2).run(parts, drain=True)
    counts, prices = Counter(row.key for batch in batches for row in batch), Counter[str]()
    for row in (row for batch in batches for row in batch):
        prices[row.key] += row.value
    assert last_of_keys(observed, "n", "price") == {key: (counts[key], prices[key]) for key in counts}


def test_a_union_passes_on_what_its_operators_take_back() -> None:
    def short(name: str, events: Stream, value: str) -> Stream:
        begun = events.group_by("k").window(ts.tumbling("10 s")).aggregate(total=agg.sum(value)).named(name)
        return begun.allowed_lateness("1 minute").accumulation("retracting").timed_by("window_end")

    parts = {"in": short("prices", ORDERS, "price"), "out": short("spent", COSTS, "cost")}
    sums = ts.union(**parts, name="both").group_by("k").window(ts.tumbling("1 day"))
    counted = sums.aggregate(total=agg.sum("total"), n=agg.count()).allowed_lateness("1 day").named("sums")
    description = counted.accumulation("retracting")
    first = [Row("left", "a", 1, 5), Row("left", "a", 25, 7), Row("right", "a", 2, 3), Row("right", "a", 26, 1)]
    late = [Row("left", "a", 2, 10), Row("right", "a", 3, 20)]
    observed = panes(description, [first, late, [Row("right", "b", 30, 2)]])
    # Two windows of each side, two of which were observed again.
    assert last_of_keys(observed, "total", "n") == {"a": (46, 4), "b": (2, 1)}


def test_a_merge_is_of_panes_that_are_never_taken_back() -> None:
    def short(name: str, events: Stream, value: str) -> Stream:
        begun = events.group_by("k").window(ts.tumbling("10 s")).aggregate(total=agg.sum(value)).named(name)
        return begun.allowed_lateness("0 s").timed_by("window_end")

    left, right = short("prices", ORDERS, "price"), short("spent", COSTS, "cost")
    both = ts.merge(left=left, right=right).group_by("k").window(ts.tumbling("1 day"))
    sums = both.aggregate(price=agg.sum("left_total"), cost=agg.sum("right_total"))
    description = sums.allowed_lateness("1 day").named("both")
    first = [Row("left", "a", 1, 5), Row("left", "a", 25, 7), Row("right", "a", 2, 3), Row("right", "b", 26, 1)]
    assert last_of_keys(panes(description, [first]), "price", "cost") == {"a": (12, 3), "b": (None, 1)}
