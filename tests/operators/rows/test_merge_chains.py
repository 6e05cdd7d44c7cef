"""What merges, unions and session joins show, read by windowed operators of the same job."""

from __future__ import annotations

import tempfile
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.process import SCRATCH, examples
from tests.helpers.two_streams import LEFT, RIGHT, Row, numbered, rows, table
from tests.twins.sessions import ENDED, Brute
from tidestate.agg import count
from tidestate.agg import sum as sum_
from tidestate.operators import tumbling
from tidestate.operators.describe.chain import chain
from tidestate.operators.describe.merge import merge
from tidestate.operators.describe.session_join import session_join
from tidestate.operators.describe.union import union
from tidestate.operators.describe.windowed import RETRACTING, Windowed, windowed

Batches = list[list[Row]]


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
    pairs = session_join(event_time=("ordered", "paid"), on="k", gap="5 s", late=f"{late} s", name="pairs")
    whole = windowed(event_time="time", key="k", name="sums").window(tumbling("1 day"))
    sums = whole.aggregate(n=count(), cost=sum_("right_cost")).accumulation(RETRACTING)
    batches = [sorted(batch, key=lambda row: row.side) for batch in numbered(batches)]
    observed = panes(chain(pairs, sums, inputs={"pairs": ("orders", "costs")}), batches)
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
    both = union(event_time="ordered", sides=("a", "b"), name="both")
    sums = windowed(event_time="time", key="k", name="sums").window(tumbling("1 day")).late("1 day")
    sums = sums.aggregate(n=count(), price=sum_("price"))
    description = chain(both, sums, inputs={"both": ("first", "second")})
    names = ("first", "second")
    parts = [{name: table(batch[place::2], LEFT) for place, name in enumerate(names)} for batch in batches]
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        observed = description.standalone(checkpoint=folder, partitions=2).run(parts, drain=True)
    counts, prices = Counter(row.key for batch in batches for row in batch), Counter[str]()
    for row in (row for batch in batches for row in batch):
        prices[row.key] += row.value
    assert last_of_keys(observed, "n", "price") == {key: (counts[key], prices[key]) for key in counts}


def test_a_union_passes_on_what_its_operators_take_back() -> None:
    def short(name: str, time: str, value: str) -> Windowed:
        begun = windowed(event_time=time, key="k", name=name).window(tumbling("10 s")).late("1 minute")
        return begun.aggregate(total=sum_(value)).accumulation(RETRACTING)

    both = union(event_time="window_end", sides=("in", "out"), name="both")
    sums = windowed(event_time="time", key="k", name="sums").window(tumbling("1 day")).late("1 day")
    sums = sums.aggregate(total=sum_("total"), n=count()).accumulation(RETRACTING)
    inputs = {"prices": "orders", "spent": "costs", "both": ("prices", "spent")}
    parts = short("prices", "ordered", "price"), short("spent", "paid", "cost")
    description = chain(*parts, both, sums, inputs=inputs)
    first = [Row("left", "a", 1, 5), Row("left", "a", 25, 7), Row("right", "a", 2, 3), Row("right", "a", 26, 1)]
    late = [Row("left", "a", 2, 10), Row("right", "a", 3, 20)]
    observed = panes(description, [first, late, [Row("right", "b", 30, 2)]])
    # Two windows of each side, two of which were observed again.
    assert last_of_keys(observed, "total", "n") == {"a": (46, 4), "b": (2, 1)}


def test_a_merge_is_of_panes_that_are_never_taken_back() -> None:
    def short(name: str, time: str, value: str) -> Windowed:
        begun = windowed(event_time=time, key="k", name=name).window(tumbling("10 s")).late("0 s")
        return begun.aggregate(total=sum_(value))

    both = merge(event_time="window_end", key="k", name="both").window(tumbling("1 day")).late("1 day")
    both = both.aggregate(price=sum_("left_total"), cost=sum_("right_total"))
    inputs = {"prices": "orders", "spent": "costs", "both": ("prices", "spent")}
    description = chain(short("prices", "ordered", "price"), short("spent", "paid", "cost"), both, inputs=inputs)
    first = [Row("left", "a", 1, 5), Row("left", "a", 25, 7), Row("right", "a", 2, 3), Row("right", "b", 26, 1)]
    assert last_of_keys(panes(description, [first]), "price", "cost") == {"a": (12, 3), "b": (None, 1)}
