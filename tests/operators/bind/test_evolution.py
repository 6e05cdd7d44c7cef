"""A job that is changed between two runs: its panes against brute force over what the documents promise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.changed_jobs import (
    CASES,
    CHANGED,
    KINDS,
    OLD,
    Case,
    Row,
    added,
    changed,
    events,
    first,
    tables,
    without,
)
from tests.helpers.internals import set_hook
from tests.helpers.process import LONG, few, forget, in_turn
from tidestate import Aggregation, agg, trigger
from tidestate.operators.aggregates.collection import Quantile
from tidestate.operators.describe.configuration import configuration_of
from tidestate.operators.inspect.query import query
from tidestate.recovery.cli.printing import Format, print_rows
from tidestate.recovery.inspect.rows import Wanted, output_rows, state_difference
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import IncompatibleError
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB, StoreConfig

WINDOW = [("window_end", "ascending"), ("window_start", "ascending"), ("k", "ascending")]
Observed = dict[tuple[Any, ...], Row]
FUNCTIONS: dict[str, Callable[[list[int]], Any]] = {
    "count": len,
    "sum": sum,
    "min": min,
    "max": max,
    "mean": lambda values: sum(values) / len(values),
    "set": lambda values: sorted(set(values)),
}
EMPTY = {"count": 0, "set": []}


def windows_of(kind: str, rows: Sequence[Row]) -> list[tuple[int, int, str, list[int]]]:
    """Start, end and key of each window, and the places of its events."""
    found: dict[tuple[int, int, str], list[int]] = {}
    if kind == "session":
        for key in "ab":
            own = sorted((one["t"], place) for place, one in enumerate(rows) if one["k"] == key)
            parts: list[list[tuple[int, int]]] = []
            for time, place in own:
                if parts and time < parts[-1][-1][0] + 4:
                    parts[-1].append((time, place))
                else:
                    parts.append([(time, place)])
            for part in parts:
                found[part[0][0], part[-1][0] + 4, key] = [place for _, place in part]
    else:
        size, slide = (20, 20) if kind == "tumbling" else (30, 10)
        for place, one in enumerate(rows):
            for start in range(one["t"] // slide * slide - size + slide, one["t"] + 1, slide):
                found.setdefault((start, start + size, one["k"]), []).append(place)
    return [(*window, sorted(places)) for window, places in found.items()]


def expected(kind: str, rows: list[list[Row]], columns: dict[str, tuple[str, int, str | None]]) -> Observed:
    """The last value of each window and column."""
    flat = [one | {"batch": number} for number, part in enumerate(rows) for one in part]
    result: Observed = {}
    for start, end, key, places in windows_of(kind, flat):
        values = {}
        for name, (function, since, _) in columns.items():
            own = [flat[place]["v"] for place in places if flat[place]["batch"] >= since]
            values[name] = FUNCTIONS[function](own) if own else EMPTY.get(function)
        result[start, end, key] = values
    return result


def standing(parts: Sequence[pa.Table], mode: str, names: dict[str, str | None]) -> tuple[Observed, set[Any]]:
    """What stands at the end, and which windows showed something after the change. What is taken back must stand as
    it is taken back: with its own values, and nulls in columns that were not there.
    """
    stands: Observed = {}
    touched = set()
    for number, part in enumerate(parts):
        for row in part.to_pylist():
            key = (_second(row["window_start"]), _second(row["window_end"]), row["k"])
            if number:
                touched.add(key)
                values = {name: row[name] for name in names}
            else:
                values = {name: row[old] if old else None for name, old in names.items()}
            if row["kind"] == "retract":
                assert stands.pop(key) == values
            else:
                assert mode != "retracting" or key not in stands
                stands[key] = values
    return stands, touched


def _second(moment: datetime) -> int:
    return int(moment.timestamp())


def check(tmp_path: Path, kind: str, mode: str, case: Case, store: StoreConfig, seed: int = 0) -> None:
    rows, before = events(seed), first(kind, mode)
    after = case.change(before)
    old = before.standalone(checkpoint=tmp_path / "cp", store=store, partitions=2).run(tables(rows)[:CHANGED])
    forget()
    job = after.standalone(checkpoint=tmp_path / "cp", store=store, partitions=2)
    new = job.run(tables(rows, case.value, case.kind), drain=True)
    assert not set(case.columns) - set(new.column_names)
    names = {name: was for name, (_, _, was) in case.columns.items()}
    stands, touched = standing([old, new], mode, names)
    wanted = expected(kind, rows, case.columns)
    assert stands.keys() >= wanted.keys()
    if (kind, mode) != ("session", "accumulating"):  # there nothing takes back what became part of another session
        assert stands.keys() == wanted.keys()
    for key, values in wanted.items():
        for name, (_, since, _) in case.columns.items():
            if key in touched or not since:
                assert stands[key][name] == values[name], (key, name)


MODES = ["accumulating", "retracting"]
PAIRS = [(kind, mode) for kind in KINDS for mode in MODES]
OF_EVERY_RUN = [list(CASES).index(name) for name in ("added", "swapped")]
"""The plan of a start announces each of them as it then happens: `tests.operators.engine.test_start_plan`."""


@pytest.mark.slow
@pytest.mark.parametrize(("case", "pair"), few(in_turn(CASES, PAIRS), *OF_EVERY_RUN), ids=str)
def test_a_changed_job_shows_what_is_promised(tmp_path: Path, case: str, pair: tuple[str, str]) -> None:
    check(tmp_path, *pair, CASES[case], Parquet(max_levels=2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "store", "kind"),
    few(in_turn(CASES if LONG else ["all", "early and added"], ["memory", "rocksdb"], ["sliding", "session"]), 0),
)
def test_in_every_store(tmp_path: Path, case: str, store: str, kind: str) -> None:
    config = Memory(max_levels=2) if store == "memory" else RocksDB(cache_dir=str(tmp_path / "db"), max_levels=2)
    check(tmp_path, kind, "retracting", CASES[case], config, seed=1)


def test_the_manifest_says_since_when(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows, before = tables(events(0)), first("tumbling")
    before.standalone(checkpoint=tmp_path).run(rows[:2])
    after = added(before, high=agg.max("v"))
    after.standalone(checkpoint=tmp_path).run(rows[:3])
    after.standalone(checkpoint=tmp_path).run(rows[:4])
    head = Checkpoint.open(tmp_path).head()
    assert head is not None
    operator = head.manifest.operators["windows"]
    assert (operator.since, operator.types["v"]) == (4, "int32")
    assert [(c.name, c.identity) for c in operator.tables[0].values] == [
        ("n", ""),
        ("total", ""),
        ("low", ""),
        ("high", "__4.high"),
    ]
    assert [line for line in caplog.messages if "aggregate high" in line] == [
        'checkpoint 4: operator windows: aggregate high: - -> agg.max("v") '
        "(windows that have already begun compute it only over events from now on)"
    ]


class Killed(BaseException):
    """The process dies here."""


def die(moment: str, _checkpoint_id: int) -> None:
    if moment == "before-manifest":
        raise Killed


def test_a_crash_behind_the_fence_of_a_change_and_the_way_back(tmp_path: Path) -> None:
    rows, before = events(2), first("tumbling", "retracting")
    after = CASES["added"].change(before)
    parts = [before.standalone(checkpoint=tmp_path).run(tables(rows)[:CHANGED])]
    for _ in range(2):
        crashing = after.standalone(checkpoint=tmp_path)
        set_hook(crashing, die)
        with pytest.raises(Killed):
            crashing.run(tables(rows))
    parts.append(after.standalone(checkpoint=tmp_path).run(tables(rows)[: CHANGED + 2]))
    # The old description is a change too: what was added is removed.
    parts.append(before.standalone(checkpoint=tmp_path).run(tables(rows), drain=True))
    stands, _ = standing(
        [pa.concat_tables([part.select(parts[0].column_names) for part in parts])],
        "retracting",
        {name: name for name in OLD},
    )
    assert stands == expected("tumbling", rows, OLD)


def test_an_aggregate_that_comes_back_begins_again(tmp_path: Path) -> None:
    rows, before = events(3), first("tumbling")
    for stop, described in ((2, before), (4, without(before, "total")), (6, before)):
        before_last = described.standalone(checkpoint=tmp_path, store=Parquet(max_levels=2)).run(tables(rows)[:stop])
    last = before.standalone(checkpoint=tmp_path, store=Parquet(max_levels=2)).run(tables(rows), drain=True)
    stands, touched = standing(
        [pa.table(before_last).slice(0, 0), last], "accumulating", {"total": "total", "n": "n"}
    )
    wanted = expected("tumbling", rows, {"total": ("sum", 4, "total"), "n": ("count", 0, "n")})
    assert touched
    assert stands == {key: values for key, values in wanted.items() if key in touched}


REFUSED: dict[str, tuple[Callable[[Aggregation], Aggregation], list[str]]] = {
    "size": (lambda d: changed(d, windows=ts.tumbling("10 seconds")), ["window"]),
    "kind": (lambda d: changed(d, windows=ts.sessions("10 seconds")), ["window"]),
    "key": (lambda d: changed(d, key=()), ["group_by"]),
    "event time": (lambda d: changed(d, event_time="u"), ["event_time"]),
    "function": (lambda d: added(without(d, "total"), total=agg.max("v")), ["aggregate total"]),
    "composite": (lambda d: d.trigger(when=trigger.each_batch()), ["trigger"]),
}


@pytest.mark.parametrize("name", few(REFUSED, 0, 3))
def test_what_the_state_cannot_follow_is_emitted_and_nothing_happens(tmp_path: Path, name: str) -> None:
    rows = [part.append_column("u", part["t"]) for part in tables(events(0))]
    described, (change, observed) = first("tumbling"), REFUSED[name]
    described.standalone(checkpoint=tmp_path).run(rows[:3])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(IncompatibleError) as caught:
        change(described).standalone(checkpoint=tmp_path).run(rows)
    assert caught.value.code == "configuration-changed"
    assert set(observed) & set(caught.value.context["changed"])
    assert caught.value.context["changed"].keys() == caught.value.context["why"].keys()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_state_panes_and_queries_across_a_change(tmp_path: Path) -> None:
    rows, before = tables(events(4)), first("sliding")
    before.standalone(checkpoint=tmp_path).run(rows[:CHANGED])
    was = query(tmp_path).get_windows()
    after = CASES["early and added"].change(without(before, "low"))
    after.standalone(checkpoint=tmp_path).run(rows[: CHANGED + 1])
    fence = CHANGED + 2
    now = query(tmp_path, checkpoint=fence).get_windows()
    assert now.drop_columns(["high"]) == was.drop_columns(["low"])
    assert now["high"].null_count == now.num_rows > 0
    described = query(tmp_path, description=after.graph.description, schema=rows[0].schema).get_windows()
    assert described == query(tmp_path).get_windows()
    assert described["high"].null_count < described.num_rows
    checkpoint = Checkpoint.open(tmp_path)
    changed = state_difference(checkpoint, (fence - 1, fence), None, "parts", Wanted())
    assert changed.num_rows == 0
    assert changed.column_names == ["change", "slice_end", "k", "n", "total", "high"]
    both = list(output_rows(checkpoint, checkpoint.outputs(0), "panes", "windows", Wanted()))
    assert {"low", "high"} <= {name for part in both for name in part.column_names}
    print_rows(both, Format.json, tmp_path / "panes.json", None)
    print_rows(both, Format.table, None, 5)


def test_less_lateness_closes_what_waits_and_more_brings_nothing_back_half(tmp_path: Path) -> None:
    def described(late: str) -> Aggregation:
        began = ts.stream(event_time="t").group_by("k").window(ts.tumbling("10 seconds")).aggregate(n=agg.count())
        return began.trigger(late=trigger.after_count(5), closing="if_new").allowed_lateness(late)

    parts = [[(1, "a")], [(25, "b")], [(5, "a"), (6, "a")], [(26, "b")], [(3, "a"), (12, "a"), (27, "b")]]
    rows = tables([[{"t": t, "k": k, "v": 0} for t, k in part] for part in parts])
    described("1 minute").standalone(checkpoint=tmp_path).run(rows[:3])
    # The two events that wait for a fifth are observed as their window closes, once, whatever crashes.
    crashing = described("2 seconds").standalone(checkpoint=tmp_path)
    set_hook(crashing, die)
    with pytest.raises(Killed):
        crashing.run(rows[:4])
    less = described("2 seconds").standalone(checkpoint=tmp_path).run(rows[:4])
    assert [(_second(one["window_end"]), one["n"], one["timing"]) for one in less.to_pylist()] == [(10, 3, "late")]
    more = described("1 hour").standalone(checkpoint=tmp_path).run(rows, drain=True)
    assert [(_second(one["window_end"]), one["n"]) for one in more.to_pylist()] == [(30, 3)]
    head = Checkpoint.open(tmp_path).head()
    assert head is not None
    assert head.manifest.totals["very_late"] == 2


def test_a_default_that_is_stored_is_the_same_as_one_that_is_not(tmp_path: Path) -> None:
    """Text that was read, as of a file of settings, is no literal: a default was stored, or not, by that."""
    read = "".join(("lin", "ear"))
    stored = added(without(first("tumbling"), "low"), middle=Quantile("quantile", "v", 0.5, read))
    assert configuration_of(stored.graph.description)["aggregates"]["middle"]["interpolation"] == "linear"
    given = added(without(first("tumbling"), "low"), middle=agg.quantile("v", 0.5, interpolation=read))  # type: ignore[arg-type]
    assert "interpolation" not in configuration_of(given.graph.description)["aggregates"]["middle"]
    rows = tables(events(0))
    stored.standalone(checkpoint=tmp_path).run(rows[:2])
    assert given.plan(tmp_path).changes == ()
    assert given.standalone(checkpoint=tmp_path).run(rows, drain=True).num_rows
