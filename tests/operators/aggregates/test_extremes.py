"""Minimum and maximum of text, binary, booleans and times of day, against Python's own."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from datetime import time
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.process import LONG, SCRATCH
from tidestate import Aggregation, agg, trigger

SECOND = 1_000_000
TIME = pa.timestamp("us", tz="UTC")
VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "s": (pa.string(), st.text("aé\x00\U0001f600", max_size=3)),
    "y": (pa.binary(), st.binary(max_size=2)),
    "f": (pa.bool_(), st.booleans()),
    "d": (pa.time64("us"), st.times()),
}
SCHEMA = pa.schema([("t", TIME), ("k", pa.string()), *((name, kind) for name, (kind, _) in VALUES.items())])
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "t": st.integers(0, 39).map(lambda second: second * SECOND),
            "k": st.sampled_from("ab"),
            **{name: st.none() | values for name, (_, values) in VALUES.items()},
        }
    ),
    max_size=12,
)


def described(slide: int) -> Aggregation:
    window = ts.tumbling("10 seconds") if slide == 10 else ts.sliding("10 seconds", f"{slide} seconds")
    each = {f"{name}_{which}": of(name) for name in VALUES for which, of in (("min", agg.min), ("max", agg.max))}
    return (
        ts.stream(event_time="t")
        .group_by("k")
        .window(window)
        .aggregate(**each)
        .allowed_lateness("1 hour")
        .named("first")
    )


def naive(rows: list[dict[str, Any]], slide: int) -> dict[tuple[int, str], dict[str, Any]]:
    groups: defaultdict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        last = row["t"] // SECOND // slide * slide
        for start in range(last, last - 10, -slide):
            if start * SECOND <= row["t"] < (start + 10) * SECOND:
                groups[start, row["k"]].append(row)
    return {group: _ends(members) for group, members in groups.items()}


def _ends(members: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in VALUES:
        # Text is compared by its bytes, which is by its code points.
        known = [row[name] for row in members if row[name] is not None]
        found |= {f"{name}_min": min(known, default=None), f"{name}_max": max(known, default=None)}
    return found


@settings(max_examples=settings.default.max_examples // (2 if LONG else 5))
@given(st.lists(ROWS, min_size=1, max_size=3), st.sampled_from([10, 5]))
def test_they_are_those_of_python(batches: list[list[dict[str, Any]]], slide: int) -> None:
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        tables = [pa.Table.from_pylist(rows, SCHEMA) for rows in batches]
        panes = described(slide).standalone(checkpoint=root, partitions=2).run(tables, drain=True)
        last: dict[tuple[int, str], dict[str, Any]] = {}
        for pane in panes.to_pylist():
            names = [f"{name}_{which}" for name in VALUES for which in ("min", "max")]
            last[int(pane["window_start"].timestamp()), pane["k"]] = {name: pane[name] for name in names}
        assert last == naive([row for rows in batches for row in rows], slide)


@settings(max_examples=settings.default.max_examples // (2 if LONG else 5))
@given(st.lists(ROWS, min_size=1, max_size=3))
def test_of_panes_that_are_taken_back_too(batches: list[list[dict[str, Any]]]) -> None:
    first = described(10).accumulation("retracting").trigger(early=trigger.each_batch())
    names = {
        f"{name}_{which}": of(f"{name}_{which}")
        for name in VALUES
        for which, of in (("min", agg.min), ("max", agg.max))
    }
    then = first.group_by("k").window(ts.tumbling("40 seconds")).aggregate(**names).named("then")
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        tables = [pa.Table.from_pylist(rows, SCHEMA) for rows in batches]
        panes = then.standalone(checkpoint=root).run(tables, drain=True)
        found = {pane["k"]: {name: pane[name] for name in names} for pane in panes.to_pylist()}
        groups: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in (row for rows in batches for row in rows):
            groups[row["k"]].append(row)
        assert found == {key: _ends(members) for key, members in groups.items()}


def test_a_time_of_day_is_a_time(tmp_path: Any) -> None:
    rows = pa.table({"t": pa.array([0], TIME), "k": ["a"], "d": pa.array([time(1)], pa.time32("s"))})
    job = ts.stream(event_time="t").group_by("k").window(ts.tumbling("1 hour")).aggregate(low=agg.min("d"))
    panes = job.standalone(checkpoint=tmp_path).run(rows, drain=True)
    assert (panes.schema.field("low").type, panes["low"].to_pylist()) == (pa.time64("us"), [time(1)])
