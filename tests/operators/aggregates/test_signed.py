"""Every aggregate over rows of which some take others back, against plain Python over those that are left."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.process import LONG, few
from tests.twins import naive_aggregates as naive
from tests.twins.aggregated import KINDS, events_of, same, table, wanted
from tests.twins.naive_aggregates import Event, Naive
from tidestate import agg
from tidestate.operators.aggregates.aggregate import Aggregate
from tidestate.operators.bind.operator import bind_plan
from tidestate.operators.windows.plan import WindowPlan
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.table.fold import combine
from tidestate.statestore.table.group_ids import group_ids

ORDERED = (
    "listed",
    "sorted_by",
    "rows",
    "own",
    "first",
    "last_",
    "earliest",
    "latest",
    "arg_min",
    "arg_max",
    "top_by",
)
"""What depends on the order in which rows arrive, if only among equals."""


def total(events: list[Event]) -> Any:
    found = naive.values(events)
    return sum(found) if found else None


def average(events: list[Event]) -> float | None:
    found = [float(value) for value in naive.values(events)]
    return math.fsum(found) / len(found) if found and all(map(math.isfinite, found)) else sum_of(found)


def sum_of(found: list[float]) -> float | None:
    return sum(found) / len(found) if found else None


def extreme(which: Any) -> Naive:
    def compute(events: list[Event]) -> Any:
        found = naive.values(events)
        return which([value for value in found if not naive.nan(value)] or found, default=None)

    return compute


def all_wanted(kind: str) -> dict[str, tuple[Aggregate, Naive]]:
    more: dict[str, tuple[Aggregate, Naive]] = {"all": (agg.count(), len)}
    if KINDS[kind][3]:
        more |= {
            "mean": (agg.mean("v"), average),
            "min": (agg.min("v"), extreme(min)),
            "max": (agg.max("v"), extreme(max)),
        }
        if kind != "int64":  # of which a sum may leave the type
            more["total"] = (agg.sum("v"), total)
    if kind == "int64":
        more.pop("mean")
    return wanted(kind) | more


def like(value: Any) -> Any:
    """As what it is distinguished by."""
    return "nan" if naive.nan(value) else repr(value + 0) if isinstance(value, float) else repr(value)


def left(aggregate: Aggregate, signed: list[tuple[int, Event]]) -> list[Event]:
    """The rows that an aggregate has left: a row takes back the newest one that is the same to the aggregate."""
    names = [*aggregate.columns, *(["t"] if aggregate.function in ("earliest", "latest") else [])]
    found: list[tuple[Any, Event]] = []
    for sign, event in signed:
        what = tuple(like(event[name]) for name in names)
        if sign > 0:
            found.append((what, event))
        else:
            (place,) = [number for number, (other, _) in enumerate(found) if other == what][-1:]
            del found[place]
    return [event for _, event in found]


@st.composite
def signed_rows(draw: st.DrawFn, kind: str) -> list[tuple[int, Event]]:
    """Rows, of which some are taken back at any later place."""
    rows: list[tuple[int, Event]] = []
    for event in draw(events_of(kind)):
        rows.append((1, event))
        standing = [event for number, (_, event) in enumerate(rows) if rows[number][0] > 0]
        for sign, event_back in rows:
            if sign < 0:
                standing.remove(event_back)
        places = draw(st.lists(st.sampled_from(range(len(standing))), max_size=2, unique=True)) if standing else []
        rows += [(-1, standing[place]) for place in places]
    return rows


def plan_of(kind: str, aggregates: dict[str, tuple[Aggregate, Naive]]) -> WindowPlan:
    job = ts.stream(event_time="t").group_by("k").window(ts.tumbling("1 hour"))
    job = job.aggregate(**{name: one for name, (one, _) in aggregates.items()})
    plan = bind_plan(job.graph.description, with_kind(table(kind, []), []).schema, signed=True)
    assert isinstance(plan, WindowPlan)
    return plan


def with_kind(rows: pa.Table, signs: list[int]) -> pa.Table:
    words = pa.array(["emit" if sign > 0 else "retract" for sign in signs], pa.string())
    return rows.append_column("kind", words.dictionary_encode())


def by_key(plan: WindowPlan) -> TableSpec:
    return TableSpec("by_key", plan.input.key_specs, plan.state, None, plan.state_groups)


def lifted(plan: WindowPlan, kind: str, rows: list[tuple[int, Event]]) -> pa.Table:
    events = with_kind(table(kind, [event for _, event in rows]), [sign for sign, _ in rows])
    return pa.table([events["k"], *plan.lifted(events)], schema=by_key(plan).schema)


def results(plan: WindowPlan, folded: pa.Table) -> dict[str, dict[str, Any]]:
    found = {bound.name: bound.finish(folded) for bound in plan.aggregates}
    assert {name: values.type for name, values in found.items()} == {b.name: b.result_type for b in plan.aggregates}
    lists = {name: values.to_pylist() for name, values in found.items()}
    return {key: {n: lists[n][row] for n in lists} for row, key in enumerate(folded["k"].to_pylist())}


MIXED = ("int8", "uint64", "double", "decimal", "string", "struct")
"""Types whose rows come in any order too; those of the others in theirs."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS if LONG else few(sorted({*KINDS} - {*MIXED}), 0, 5))
@settings(max_examples=settings.default.max_examples // 4 if LONG else 2)
@given(data=st.data())
def test_what_is_left_is_what_plain_python_says_however_cut_up(kind: str, data: st.DataObject) -> None:
    rows = data.draw(signed_rows(kind), label="rows")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4), label="cuts"))
    nested = data.draw(st.integers(0, len(cuts)), label="nested")
    aggregates = all_wanted(kind)
    plan = plan_of(kind, aggregates)
    spec, partials = by_key(plan), lifted(plan, kind, rows)
    parts = [combine(spec, partials.slice(a, b - a)) for a, b in pairwise([0, *cuts, len(rows)])]
    inner = combine(spec, pa.concat_tables(parts[nested:]))
    found = results(plan, combine(spec, pa.concat_tables([*parts[:nested], inner])))
    for key, given_ in found.items():
        own = [(sign, event) for sign, event in rows if event["k"] == key]
        for name, (one, compute) in aggregates.items():
            there = left(one, own)
            if there or name not in ("own", "nulls", "rows"):
                assert same(given_[name], compute(there)), name
            else:
                assert given_[name] is None


@pytest.mark.slow
@pytest.mark.parametrize("kind", few(MIXED, 3, 5))
@settings(max_examples=settings.default.max_examples // 4 if LONG else 2)
@given(data=st.data())
def test_a_row_may_be_taken_back_before_it_comes(kind: str, data: st.DataObject) -> None:
    """What does not depend on the order of rows is the same in any order, folded in any pieces."""
    rows = data.draw(signed_rows(kind), label="rows")
    mixed = data.draw(st.permutations(rows), label="mixed")
    cut = data.draw(st.integers(0, len(rows)), label="cut")
    aggregates = {name: both for name, both in all_wanted(kind).items() if name not in ORDERED}
    plan = plan_of(kind, aggregates)
    spec, partials = by_key(plan), lifted(plan, kind, mixed)
    halves = [combine(spec, part) for part in (partials.slice(0, cut), partials.slice(cut))]
    found = results(plan, combine(spec, pa.concat_tables(halves)))
    for key, given_ in found.items():
        own = [(sign, event) for sign, event in rows if event["k"] == key]
        for name, (one, compute) in aggregates.items():
            there = left(one, own)
            if there or name != "nulls":
                assert same(given_[name], compute(there)), name


def test_what_is_taken_back_leaves_no_state() -> None:
    aggregates = all_wanted("double")
    plan = plan_of("double", aggregates)
    event = {"k": "a", "t": 0, "o": 1, "w": 2, "v": 1e300}
    rows = [(1, event), (1, event | {"v": math.inf}), (-1, event | {"v": math.inf}), (-1, event)]
    (folded,) = combine(by_key(plan), lifted(plan, "double", rows)).to_pylist()
    assert all(value in (0, [], None) for name, value in folded.items() if name != "k")


def test_doubles_are_as_exact_as_without_what_was_taken_back() -> None:
    aggregates = {"total": (agg.sum("v"), total), "mean": (agg.mean("v"), average)}
    plan = plan_of("double", aggregates)
    event = {"k": "a", "t": 0, "o": 1, "w": 2, "v": 0.1}
    huge = event | {"v": 1e18}
    folded = combine(by_key(plan), lifted(plan, "double", [(1, event), (1, huge), (-1, huge)]))
    assert results(plan, folded) == {"a": {"total": 0.1, "mean": 0.1}}


VALUES = [
    (pa.list_(pa.int64()), [[1], [], None, [None], [1], [1, 1], []]),
    (pa.map_(pa.string(), pa.int64()), [[("a", 1)], None, [], [("a", None)], [("a", 1)]]),
    (pa.list_(pa.float64(), 2), [[0.0, 1.0], None, [-0.0, 1.0], [math.nan, 1.0], [math.nan, 1.0]]),
    (pa.struct([("x", pa.list_(pa.string()))]), [{"x": ["a"]}, None, {"x": None}, {"x": []}, {"x": ["a"]}]),
    (pa.float32(), [0.5, -0.0, 0.0, None, math.nan, math.nan, math.inf]),
    (pa.large_list(pa.list_(pa.bool_())), [[[True]], [[None]], [None], [[]], [[True]]]),
    (pa.null(), [None, None]),
]


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=[str(kind) for kind, _ in VALUES])
@pytest.mark.parametrize("first", [0, 1])
def test_values_of_any_type_are_distinguished(kind: pa.DataType, values: list[Any], first: int) -> None:
    """Also in part of an array."""
    column = pa.array([values[-1], *values], kind).slice(1)[first:]
    found = group_ids([column], np.zeros(len(column), np.int64))
    plain = [str(value).replace("-0.0", "0.0") for value in column.to_pylist()]
    for number, one in enumerate(found):
        assert [other == one for other in found] == [text == plain[number] for text in plain]
