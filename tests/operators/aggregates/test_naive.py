"""Every aggregate against plain Python, however its events are cut up: alone, in jobs on each store, restarted."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.process import few, forget, some
from tests.twins import naive_aggregates as naive
from tests.twins.aggregated import KINDS, START, events_of, finished, lifted, same, table, wanted
from tests.twins.naive_aggregates import Event
from tidestate import agg
from tidestate.operators.aggregates.aggregate import Aggregate
from tidestate.operators.bind.operator import bind_plan
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB, StoreConfig
from tidestate.statestore.table.fold import combine


@pytest.mark.slow
@pytest.mark.parametrize("kind", few(KINDS, *range(0, len(KINDS), 2)))
@settings(max_examples=settings.default.max_examples // 5)
@given(data=st.data())
def test_however_cut_up_it_is_what_plain_python_says(kind: str, data: st.DataObject) -> None:
    events = data.draw(events_of(kind), label="events")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(events)), max_size=4), label="cuts"))
    nested = data.draw(st.integers(0, len(cuts)), label="nested")
    aggregates = wanted(kind)
    job = ts.stream(event_time="t").group_by("k").window(ts.tumbling("1 hour"))
    plan = bind_plan(
        job.aggregate(**{name: one for name, (one, _) in aggregates.items()}).graph.description,
        table(kind, []).schema,
    )
    rows = lifted(plan, table(kind, events))
    bounds = [0, *cuts, len(events)]
    parts = [combine(plan.parts, rows.slice(a, b - a)) for a, b in pairwise(bounds)]
    inner = combine(plan.parts, pa.concat_tables(parts[nested:]))
    found = finished(plan, combine(plan.parts, pa.concat_tables([*parts[:nested], inner])))
    assert set(found) == {event["k"] for event in events}
    for key, results in found.items():
        own = [event for event in events if event["k"] == key]
        for name, (_, compute) in aggregates.items():
            assert same(results[name], compute(own)), (name, results[name], compute(own))


def stores(folder: Path) -> dict[str, StoreConfig]:
    small = {"max_levels": 2, "snapshot_bytes": 50}
    return {
        "memory": Memory(**small),  # type: ignore[arg-type]
        "parquet": Parquet(**small),  # type: ignore[arg-type]
        "rocksdb": RocksDB(cache_dir=str(folder / "cache"), **small),  # type: ignore[arg-type]
    }


def stream(kind: str) -> tuple[list[list[Event]], list[pa.Table]]:
    """Batches, as events and as tables, that fire each window, then come back late to it; values may be null."""
    strategy = KINDS[kind]
    pool: list[Any] = {
        "int64": [3, -1, 3, None, 2**40],
        "double": [0.5, math.nan, -0.0, None, 1e9],
        "decimal": [Decimal("1.25"), None, Decimal("-3.50"), Decimal("1.25")],
        "string": ["b", None, "a", "é", "b"],
        "timestamp": [START, None, START + timedelta(days=1)],
    }[kind]
    assert strategy
    batches: list[list[Event]] = []
    number = 0
    for seconds in ([1, 2, 8, 15], [16, 33, 31], [3, 4, 17, 5], [60, 2, 16]):
        batch = []
        for second in seconds:
            number += 1
            value, by = pool[number % len(pool)], [2, None, 1][number % 3]
            time = START + timedelta(seconds=second)
            batch.append({"k": "ab"[number % 2], "t": time, "o": number % 4, "w": by, "v": value})
        batches.append(batch)
    return batches, [table(kind, batch) for batch in batches]


WINDOWS = [ts.tumbling("20 seconds"), ts.sliding("20 seconds", "10 seconds")]
JOBS = list(product(["int64", "double", "decimal", "string", "timestamp"], ["memory", "parquet", "rocksdb"]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "store", "window"), few(some(((*job, WINDOWS[i % 2]) for i, job in enumerate(JOBS)), 4), 3)
)
def test_every_aggregate_in_a_job_that_is_restarted(tmp_path: Path, kind: str, store: str, window: Any) -> None:
    """Net of all panes, with late ones that take the earlier ones back, over two runs with a restart between them."""
    aggregates = wanted(kind)
    cut, batches = stream(kind)
    job = ts.stream(event_time="t").group_by("k").window(window)
    job = (
        job.aggregate(**{name: one for name, (one, _) in aggregates.items()})
        .allowed_lateness("1 hour")
        .accumulation("retracting")
    )
    panes = []
    for taken, drain in ((2, False), (4, True)):
        runner = job.standalone(checkpoint=tmp_path / "root", store=stores(tmp_path)[store], partitions=2)
        panes += runner.run(batches[:taken], drain=drain).to_pylist()
        forget()
    check_retractions(panes)
    final = {(p["window_start"], p["k"]): p for p in panes if p["kind"] == "emit"}
    expected = windows_of(cut, window.size, window.slide)
    assert set(final) == set(expected)
    for where, own in expected.items():
        for name, (_, compute) in aggregates.items():
            assert same(final[where][name], compute(own)), (where, name, final[where][name], compute(own))


def windows_of(batches: list[list[Event]], size_us: int, slide_us: int) -> dict[tuple[datetime, str], list[Event]]:
    """Events per window and key: by slice, then in the order of arrival; late ones follow as they arrive."""
    found: dict[tuple[datetime, str], list[tuple[tuple[int, int], Event]]] = {}
    epoch, size = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=size_us)
    watermark = datetime.min.replace(tzinfo=UTC)
    for batch in batches:
        for event in batch:
            place = (event["t"] - epoch) // timedelta(microseconds=slide_us)
            for back in range(size_us // slide_us):
                start = epoch + timedelta(microseconds=(place - back) * slide_us)
                turn = (1, 0) if start + size <= watermark else (0, place)
                found.setdefault((start, event["k"]), []).append((turn, event))
        watermark = max([watermark, *(event["t"] for event in batch)])
    return {
        window: [event for _, event in sorted(placed, key=lambda one: one[0])] for window, placed in found.items()
    }


def check_retractions(panes: list[dict[str, Any]]) -> None:
    """A retraction shows what the pane before showed, to the bit."""
    observed: dict[Any, dict[str, Any]] = {}
    outside = ("timing", "kind", "last")
    for pane in panes:
        where = (pane["window_start"], pane["k"], pane["pane"])
        plain = {name: repr(value) for name, value in pane.items() if name not in outside}
        if pane["kind"] == "emit":
            observed[where] = plain
        else:
            assert plain == observed.pop(where)
    assert any(pane["kind"] == "retract" for pane in panes)


INVERTIBLE: dict[str, Callable[[], Aggregate]] = {
    "n": lambda: agg.count("v"),
    "total": lambda: agg.sum("v"),
    "average": lambda: agg.mean("v"),
    "spread": lambda: agg.variance("v"),
    "deviation": lambda: agg.stddev("v", population=True),
}


@pytest.mark.parametrize("kind", ["int8", "decimal", "float"])
@settings(max_examples=max(3, settings.default.max_examples // 5))
@given(data=st.data())
def test_invertible_aggregates_take_events_back(kind: str, data: st.DataObject) -> None:
    events = [{**event, "k": "a"} for event in data.draw(events_of(kind, least=2), label="events")]
    gone = data.draw(st.integers(1, len(events) - 1), label="gone")
    job = ts.stream(event_time="t").group_by("k").window(ts.tumbling("1 hour"))
    plan = bind_plan(
        job.aggregate(**{name: make() for name, make in INVERTIBLE.items()}).graph.description, table(kind, []).schema
    )
    assert all(bound.invertible for bound in plan.aggregates)
    whole, part, rest = (
        combine(plan.parts, lifted(plan, table(kind, rows))) for rows in (events, events[:gone], events[gone:])
    )
    columns = [column for bound in plan.aggregates for column in bound.subtract(whole, part)]
    sizes = whole.columns[2 : 2 + len(plan.part_values) - len(plan.state)]
    left = pa.table([*whole.select(plan.parts.key_names).columns, *sizes, *columns], schema=plan.parts.schema)
    found, expected = finished(plan, left)["a"], finished(plan, rest)["a"]
    if not naive.values(events[gone:]):
        expected["total"] = 0 if naive.values(events[:gone]) else expected["total"]
    tolerance = 1e-4 if kind == "float" else 1e-6
    for name, value in expected.items():
        if isinstance(value, float):
            assert math.isclose(
                found[name], value, rel_tol=tolerance, abs_tol=0.02 if name == "deviation" else tolerance
            )
        else:
            assert found[name] == value


@settings(max_examples=max(3, settings.default.max_examples // 8))
@given(st.lists(st.integers(0, 200_000), min_size=1, max_size=3000), st.data())
@example(list(range(3000)), None)
def test_a_sketch_depends_on_what_it_saw_only(seen: list[int], data: st.DataObject | None) -> None:
    job = (
        ts.stream(event_time="t")
        .group_by("k")
        .window(ts.tumbling("1 hour"))
        .aggregate(about=agg.count_distinct_approx("v"))
    )
    events = [{"k": "a", "t": START, "o": 0, "w": 0, "v": value} for value in seen]
    plan = bind_plan(job.graph.description, table("int64", []).schema)
    rows = lifted(plan, table("int64", events))
    expected = finished(plan, combine(plan.parts, rows))["a"]["about"]
    assert abs(expected - len(set(seen))) <= max(1, 0.06 * len(set(seen)))
    cuts = [7, 1000] if data is None else sorted(data.draw(st.lists(st.integers(0, len(seen)), max_size=3)))
    order = np.random.default_rng(len(seen)).permutation(len(seen))
    shuffled = rows.take(pa.array(order))
    bounds = [0, *cuts, len(seen)]
    parts = [combine(plan.parts, shuffled.slice(a, b - a)) for a, b in pairwise(bounds)]
    assert finished(plan, combine(plan.parts, pa.concat_tables(parts)))["a"]["about"] == expected
