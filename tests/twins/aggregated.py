"""Events for every aggregate, and what plain Python makes of them."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st

from tests.twins import naive_aggregates as naive
from tests.twins.naive_aggregates import Event, Naive
from tidestate import agg
from tidestate.operators.aggregates.aggregate import Aggregate
from tidestate.operators.windows.plan import WindowPlan

TIME = pa.timestamp("us", tz="UTC")
START = datetime(1969, 12, 31, 23, 59, 30, tzinfo=UTC)


def _merge(older: pa.Table, newer: pa.Table) -> pa.Table:
    """First, last and number: not commutative, so the order is tested too."""
    number = pc.add(older["number"], newer["number"])
    return pa.table({"first": older["first"], "last": newer["last"], "number": number})


def _lift(events: pa.Table) -> pa.Table:
    return pa.table({"first": events["o"], "last": events["o"], "number": np.ones(len(events), np.int64)})


def _result(states: pa.Table) -> pa.Array:
    whole = states.combine_chunks()
    return pa.StructArray.from_arrays([whole[name].chunk(0) for name in whole.column_names], whole.column_names)


ENDS = pa.struct([("first", pa.int64()), ("last", pa.int64()), ("number", pa.int64())])
OWN = agg.accumulate(
    name="tests.twins.aggregated:OWN",
    columns=["o"],
    state={"first": pa.int64(), "last": pa.int64(), "number": pa.int64()},
    lift=_lift,
    merge=_merge,
    result=_result,
    result_type=ENDS,
)


def _nulls(rows: pa.Table) -> pa.ChunkedArray:
    """Per group how many values are null, and only then."""
    flags = rows.append_column("null", rows["v"].is_null().cast(pa.int64()))
    return flags.group_by("group", use_threads=False).aggregate([("null", "sum")])["null_sum"]


ANY: dict[str, tuple[Aggregate, Naive]] = {
    "count": (agg.count("v"), lambda events: len(naive.values(events))),
    "first": (agg.first("v", by="o"), naive.chosen("o", largest=False)),
    "last_": (agg.last("v", by="o"), naive.chosen("o", largest=True, newest=True)),
    "earliest": (agg.earliest("v"), naive.chosen("t", largest=False)),
    "latest": (agg.latest("v"), naive.chosen("t", largest=True, newest=True)),
    "arg_min": (agg.arg_min("v", by="w"), naive.chosen("w", largest=False)),
    "arg_max": (agg.arg_max("v", by="w"), naive.chosen("w", largest=True)),
    "top_by": (agg.top_n("v", 3, by="w"), naive.top(3, "w")),
    "listed": (agg.list("v"), naive.listed()),
    "sorted_by": (agg.sorted_list("v", by="w", descending=True), naive.listed("w", descending=True)),
    "nulls": (
        agg.apply_rows(_nulls, columns=["v"], result_type=pa.int64()),
        lambda events: sum(event["v"] is None for event in events),
    ),
    "rows": (
        agg.apply_rows(
            lambda rows: rows["o"].to_pylist(), columns=["o"], result_type=pa.list_(pa.int64()), per_group=True
        ),
        lambda events: [event["o"] for event in events],
    ),
    "own": (
        OWN,
        lambda events: {"first": events[0]["o"], "last": events[-1]["o"], "number": len(events)},
    ),
}
SORTABLE: dict[str, tuple[Aggregate, Naive]] = {
    "first_own": (agg.first("v", by="v"), naive.chosen("v", largest=False)),
    "smallest": (agg.top_n("v", 2, largest=False), naive.top(2, "v", largest=False)),
    "largest": (agg.top_n("v", 2), naive.top(2, "v")),
    "different": (agg.set("v"), naive.different),
    "number": (agg.count_distinct("v"), lambda events: len(naive.different(events))),
    "about": (agg.count_distinct_approx("v"), lambda events: len(naive.different(events))),
    "tally": (agg.count_by_value("v"), naive.tallied),
    "common": (agg.most_common("v", 2), naive.commonest(2)),
    "ordered": (agg.sorted_list("v"), naive.listed("v")),
    "lower": (agg.quantile("v", 0.4, interpolation="lower"), naive.quantile(0.4, "lower")),
    "higher": (agg.quantile("v", 1 / 3, interpolation="higher"), naive.quantile(1 / 3, "higher")),
    "nearest": (agg.quantile("v", 0.5, interpolation="nearest"), naive.quantile(0.5, "nearest")),
}
NUMERIC: dict[str, tuple[Aggregate, Naive]] = {
    "variance": (agg.variance("v"), naive.spread(population=False)),
    "whole": (agg.variance("v", population=True), naive.spread(population=True)),
    "stddev": (agg.stddev("v"), naive.spread(population=False, root=True)),
    "least": (agg.quantile("v", 0), naive.quantile(0, "linear")),
    "most": (agg.quantile("v", 1.0), naive.quantile(1, "linear")),
    "middle": (agg.median("v"), naive.quantile(0.5, "linear")),
    "quarter": (agg.quantile("v", 0.25), naive.quantile(0.25, "linear")),
    "near": (agg.quantile_approx("v", 0.3), naive.rank(0.3)),
}
HASHED: dict[str, tuple[Aggregate, Naive]] = {
    "sketch": (agg.hll("v"), naive.hll(12)),
    "coarse": (agg.hll("v", precision=7), naive.hll(7)),
    "hashes": (agg.theta("v"), naive.theta(12)),
    "few_hashes": (agg.theta("v", lg_k=5), naive.theta(5)),
}
NOT_HASHED = ("decimal", "binary", "bool", "list", "struct")
INTEGERS = st.one_of(st.integers(-4, 4), st.integers(-(2**62), 2**62))
DOUBLES = st.one_of(
    st.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf, -math.inf]), st.floats(-1e6, 1e6, allow_subnormal=False)
)
MOMENTS = st.datetimes(datetime(1960, 1, 1), datetime(2030, 1, 1)).map(lambda time: time.replace(tzinfo=UTC))
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any], bool, bool]] = {
    "int8": (pa.int8(), st.integers(-4, 4), True, True),
    "int64": (pa.int64(), INTEGERS, True, True),
    "uint64": (pa.uint64(), st.integers(2**64 - 3, 2**64 - 1), True, True),
    "double": (pa.float64(), DOUBLES, True, True),
    "float": (pa.float32(), st.floats(-100, 100, width=32).map(lambda x: x + 0.0), True, True),
    "decimal": (pa.decimal128(10, 2), st.decimals(-99, 99, places=2), True, True),
    "string": (pa.string(), st.sampled_from(["", "a", "ab", "b", "é", "z"]), True, False),
    "binary": (pa.binary(), st.sampled_from([b"", b"\x00", b"\xff"]), True, False),
    "bool": (pa.bool_(), st.booleans(), True, False),
    "date": (pa.date32(), st.dates(date(1960, 1, 1), date(2030, 1, 1)), True, False),
    "timestamp": (TIME, MOMENTS, True, False),
    "list": (pa.list_(pa.int64()), st.lists(st.integers(0, 2), max_size=2), False, False),
    "struct": (pa.struct([("x", pa.string())]), st.builds(lambda x: {"x": x}, st.sampled_from("ab")), False, False),
}


def wanted(kind: str) -> dict[str, tuple[Aggregate, Naive]]:
    _, _, sortable, numeric = KINDS[kind]
    return (
        ANY | (SORTABLE if sortable else {}) | (NUMERIC if numeric else {}) | ({} if kind in NOT_HASHED else HASHED)
    )


def events_of(kind: str, least: int = 0) -> st.SearchStrategy[list[Event]]:
    event = st.fixed_dictionaries(
        {
            "k": st.sampled_from("ab"),
            "t": st.integers(0, 50).map(lambda s: START + timedelta(seconds=s)),
            "o": st.integers(0, 5),
            "w": st.one_of(st.none(), st.integers(0, 3)),
            "v": st.one_of(st.none(), KINDS[kind][1]),
        }
    )
    return st.lists(event, min_size=least, max_size=20)


def table(kind: str, events: list[Event]) -> pa.Table:
    schema = pa.schema([("k", pa.string()), ("t", TIME), ("o", pa.int64()), ("w", pa.int64()), ("v", KINDS[kind][0])])
    return pa.Table.from_pylist(events, schema)


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[name], expected[name]) for name in expected)
    if isinstance(expected, (list, tuple)):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, float) and isinstance(found, float):
        return (naive.nan(expected) and naive.nan(found)) or math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-6)
    return bool(found == expected)


def lifted(plan: WindowPlan, events: pa.Table) -> pa.Table:
    ends = pa.array(np.zeros(len(events), np.int64)).cast(TIME)
    sizes = [pa.array(np.ones(len(events), np.int64))] * (len(plan.part_values) - len(plan.state))
    return pa.table([ends, events["k"], *sizes, *plan.lifted(events)], schema=plan.parts.schema)


def finished(plan: WindowPlan, folded: pa.Table) -> dict[str, dict[str, Any]]:
    results = {bound.name: bound.finish(folded) for bound in plan.aggregates}
    assert {name: values.type for name, values in results.items()} == {
        bound.name: bound.result_type for bound in plan.aggregates
    }
    keys = folded["k"].to_pylist()
    lists = {name: values.to_pylist() for name, values in results.items()}
    return {key: {name: lists[name][row] for name in lists} for row, key in enumerate(keys)}
