"""Sketches as bytes and approximate quantiles, of many values: against the library over all of them at once."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import datasketches
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.process import forget
from tests.twins import naive_aggregates as naive
from tests.twins.aggregated import START, TIME, finished, lifted, table
from tidestate import agg
from tidestate.operators.aggregates.value_sketches import ValueSketch, listed_at_most, random_results
from tidestate.operators.bind.operator import bind_plan
from tidestate.operators.chaos.evidence import texts
from tidestate.operators.describe.configuration import configuration_of
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import UsageError
from tidestate.statestore.table.fold import combine

HOURS = ts.stream(event_time="t").group_by("k").window(ts.tumbling("1 hour"))
BYTES = {
    "coarse": (agg.hll("v", precision=7), naive.hll(7)),
    "usual": (agg.hll("v"), naive.hll(12)),
    "fine": (agg.hll("v", precision=14), naive.hll(14)),
    "hashes": (agg.theta("v"), naive.theta(12)),
    "few_hashes": (agg.theta("v", lg_k=6), naive.theta(6)),
}
QUANTILES = {f"at_{q * 100:.0f}": agg.quantile_approx("v", q) for q in (0, 0.01, 0.5, 0.9, 1)}


def events_of(numbers: list[int]) -> list[naive.Event]:
    return [{"k": "a", "t": START, "o": 0, "w": 0, "v": number} for number in numbers]


@settings(max_examples=max(3, settings.default.max_examples // 8))
@given(st.integers(0, 20_000), st.integers(1, 40_000), st.integers(0, 2**32), st.data())
@example(33, 40, 1, None)
@example(385, 500, 1, None)
@example(513, 600, 2, None)
@example(2049, 2050, 3, None)
@example(20_000, 40_000, 4, None)
def test_the_same_values_are_the_same_bytes_in_any_order_and_grouping(
    different: int, number: int, seed: int, data: st.DataObject | None
) -> None:
    drawn = np.random.default_rng(seed)
    numbers = [int(value) * 7919 for value in drawn.integers(0, different + 1, number)]
    plan = bind_plan(
        HOURS.aggregate(**{name: one for name, (one, _) in BYTES.items()}).graph.description,
        table("int64", []).schema,
    )
    rows = lifted(plan, table("int64", events_of(numbers)))
    cuts = [1, 7, 300] if data is None else data.draw(st.lists(st.integers(0, number), max_size=5))
    bounds = [0, *sorted(min(cut, number) for cut in cuts), number]
    parts = [combine(plan.parts, rows.slice(a, b - a)) for a, b in pairwise(bounds)]
    drawn.shuffle(parts)  # type: ignore[arg-type]
    nested = len(parts) // 2
    inner = combine(plan.parts, pa.concat_tables(parts[nested:]))
    folded = combine(plan.parts, pa.concat_tables([*parts[:nested], inner]))
    found = finished(plan, folded)["a"]
    assert {
        name: found[name] == compute(events_of(numbers)) for name, (_, compute) in BYTES.items()
    } == dict.fromkeys(BYTES, True)
    # The state too does not depend on the grouping: a list or a sketch, never both.
    assert folded.equals(combine(plan.parts, rows))
    for name in BYTES:
        assert (len(folded[f"{name}_values"][0].as_py()) == 0) == folded[f"{name}_sketch"][0].is_valid


@pytest.mark.parametrize("function", ["hll", "theta"])
def test_estimates_are_within_the_bounds_of_the_library(function: str) -> None:
    numbers = list(range(0, 300_000, 3))
    aggregate = {"hll": agg.hll("v"), "theta": agg.theta("v")}[function]
    plan = bind_plan(HOURS.aggregate(s=aggregate).graph.description, table("int64", []).schema)
    blob = finished(plan, combine(plan.parts, lifted(plan, table("int64", events_of(numbers)))))["a"]["s"]
    kind = {"hll": datasketches.hll_sketch, "theta": datasketches.compact_theta_sketch}[function]
    sketch = kind.deserialize(blob)
    assert sketch.get_lower_bound(3) <= 100_000 <= sketch.get_upper_bound(3)


@settings(max_examples=max(3, settings.default.max_examples // 8))
@given(st.integers(1, 60_000), st.integers(0, 2**32), st.lists(st.integers(0, 60_000), max_size=5))
@example(256, 1, [])
@example(257, 1, [])
@example(60_000, 2, [5, 10_000])
def test_the_rank_of_an_approximate_quantile_is_within_twice_its_bound(
    number: int, seed: int, cuts: list[int]
) -> None:
    drawn = np.random.default_rng(seed)
    numbers = drawn.choice([drawn.integers(0, 50, number), drawn.integers(-(2**40), 2**40, number)])
    plan = bind_plan(HOURS.aggregate(**QUANTILES).graph.description, table("int64", []).schema)
    rows = lifted(plan, table("int64", events_of(numbers.tolist())))
    bounds = [0, *sorted(min(cut, number) for cut in cuts), number]
    parts = [combine(plan.parts, rows.slice(a, b - a)) for a, b in pairwise(bounds)]
    found = finished(plan, combine(plan.parts, pa.concat_tables(parts)))["a"]
    ordered = np.sort(numbers)
    assert (found["at_0"], found["at_100"]) == (ordered[0], ordered[-1])
    slack = 0.0 if number <= 256 else 2 * datasketches.kll_doubles_sketch(200).normalized_rank_error(False)
    for name, aggregate in QUANTILES.items():
        assert isinstance(aggregate, ValueSketch)
        assert aggregate.q is not None
        low, high = np.searchsorted(ordered, found[name], "left"), np.searchsorted(ordered, found[name], "right")
        assert low / number - slack <= aggregate.q <= high / number + slack + 1e-12


def test_values_are_kept_until_a_sketch_of_them_has_no_order() -> None:
    assert [listed_at_most("hll", precision) for precision in (7, 12, 21)] == [16, 512, 2**18]
    for precision in (7, 8, 9, 12, 14):
        some = list(range(listed_at_most("hll", precision) + 1))
        sketches = []
        for order in (some, some[::-1]):
            union = datasketches.hll_union(precision)
            sketch = datasketches.hll_sketch(precision, datasketches.HLL_8)
            for value in order:
                sketch.update(value)
            union.update(sketch)
            union.update(sketch)
            sketches.append(union.get_result(datasketches.HLL_8).serialize_compact())
        assert sketches[0] == sketches[1]


def test_a_job_has_them_over_late_rows_retractions_and_restarts(tmp_path: Path) -> None:
    drawn = np.random.default_rng(7)
    job = (
        HOURS.aggregate(**{name: one for name, (one, _) in BYTES.items()}, **QUANTILES, best=agg.most_common("v", 3))
        .allowed_lateness("1 day")
        .accumulation("retracting")
    )
    batches, everything = [], []
    for batch in range(4):
        numbers = drawn.integers(0, 4000, 3000).tolist()
        everything += numbers
        later = [{"k": "b", "t": START + timedelta(hours=2 + batch), "o": 0, "w": 0, "v": 1}]
        batches.append(table("int64", events_of(numbers) + later))
    panes: list[dict[str, Any]] = []
    for taken in (1, 2, 4):
        panes += job.standalone(checkpoint=tmp_path, partitions=2).run(batches[:taken]).to_pylist()
        forget()
    last = [pane for pane in panes if pane["k"] == "a" and pane["kind"] == "emit"][-1]
    for name, (_, compute) in BYTES.items():
        assert last[name] == compute(events_of(everything))
    assert last["best"] == naive.commonest(3)(events_of(everything))
    assert abs(np.mean(np.array(everything) <= last["at_50"]) - 0.5) < 0.03
    # A retraction repeats what was emitted, drawn at random or not.
    taken_back = [pane for pane in panes if pane["k"] == "a" and pane["kind"] == "retract"]
    for pane in taken_back:
        (earlier,) = (p for p in panes if p["kind"] == "emit" and (p["k"], p["pane"]) == ("a", pane["pane"]))
        assert {name: pane[name] for name in (*BYTES, *QUANTILES)} == {
            name: earlier[name] for name in (*BYTES, *QUANTILES)
        }
    assert len(taken_back) == 3
    head = Checkpoint.open(tmp_path).head()
    assert head is not None
    assert {"most-common/1", "value-sketches/1"} <= set(head.manifest.needs)


WRONG = {
    "decimal": (pa.decimal128(5, 2), agg.hll("v"), "aggregate-type"),
    "binary": (pa.binary(), agg.theta("v"), "aggregate-type"),
    "bool": (pa.bool_(), agg.hll("v"), "aggregate-type"),
    "text": (pa.string(), agg.quantile_approx("v", 0.5), "aggregate-type"),
    "time": (TIME, agg.quantile_approx("v", 0.5), "aggregate-type"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_column_that_cannot_be_sketched_is_refused(case: str) -> None:
    kind, aggregate, code = WRONG[case]
    schema = pa.schema([("t", TIME), ("k", pa.string()), ("v", kind)])
    with pytest.raises(UsageError) as error:
        bind_plan(HOURS.aggregate(s=aggregate).graph.description, schema)
    assert error.value.code == code
    assert str(kind) in str(error.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: agg.hll("v", precision=6),
        lambda: agg.hll("v", precision=22),
        lambda: agg.theta("v", lg_k=4),
        lambda: agg.theta("v", lg_k=22),
        lambda: agg.quantile_approx("v", 1.5),
        lambda: agg.quantile_approx("v", 0.5, k=7),
        lambda: agg.most_common("v", 0),
    ],
)
def test_a_size_outside_of_its_range_is_refused(make: Any) -> None:
    with pytest.raises(UsageError) as error:
        make()
    assert error.value.code == "aggregate-option"


def test_they_are_printed_as_they_are_written() -> None:
    """With the names that users have for the sizes, and without defaults."""
    results = {
        "a": agg.hll("v"),
        "b": agg.theta("v", lg_k=10, where="v > 0"),
        "c": agg.quantile_approx("v", 0.5),
        "d": agg.quantile_approx("v", 0.5, k=100),
        "e": agg.hll("v", precision=9),
        "f": agg.most_common("v", 3),
    }
    text = str(HOURS.aggregate(**results).explain())
    for call in ('hll("v")', 'theta("v", lg_k=10, where="v > 0")', 'quantile_approx("v", 0.5)',
                 'quantile_approx("v", 0.5, k=100)', 'hll("v", precision=9)', 'most_common("v", 3)'):  # fmt: skip
        assert f"=agg.{call}" in text


def test_decimals_and_numbers_of_any_width_have_quantiles() -> None:
    for kind in (pa.decimal128(10, 2), pa.uint64(), pa.float32(), pa.int16()):
        schema = pa.schema([("t", TIME), ("k", pa.string()), ("o", pa.int64()), ("w", pa.int64()), ("v", kind)])
        plan = bind_plan(HOURS.aggregate(q=agg.quantile_approx("v", 0.5)).graph.description, schema)
        events = pa.table(
            [[START] * 3, ["a"] * 3, [0] * 3, [0] * 3, pa.array([1, 2, 30], pa.int8()).cast(kind)], schema=schema
        )
        assert finished(plan, combine(plan.parts, lifted(plan, events)))["a"]["q"] == 2.0


def test_comparisons_leave_out_what_is_drawn_at_random() -> None:
    job = HOURS.aggregate(near=agg.quantile_approx("v", 0.5), about=agg.hll("v"), n=agg.count()).derive(twice="n * 2")
    random = random_results(configuration_of(job.graph.description))
    assert random == {"near"}
    rows = pa.table({"near": [1.0], "_last_near": [1.0], "near_sketch": [b"x"], "about": ["y"], "nearly": [1]})
    assert list(texts(rows, random)) == ["about=y, nearly=1"]
