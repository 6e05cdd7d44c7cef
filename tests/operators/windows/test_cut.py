"""What depends on how the input is cut into batches, and what does not: docs/reference/semantics.md has the list."""

from __future__ import annotations

import random
import warnings
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.cuts import EVENTS, SECOND, by_cut, cuts, events, net, plain, played, table
from tests.helpers.process import LONG, few, longer
from tests.helpers.process import in_turn as turns
from tidestate import agg, trigger
from tidestate.statestore.errors import IncompatibleError, UsageError
from tidestate.statestore.spec.store import Memory, Parquet

ORDER = {"offset": "at", "origin": "part"}
DELAY = "6 s"


# deduplication


def in_turn(rows: list[dict[str, Any]], within: int | None) -> list[int]:
    """The naive twin of `.deduplicate(in_order=True)`: rows one after the other."""
    known: dict[str, int] = {}
    passed = []
    for row in sorted(rows, key=lambda row: row["t"]):
        until = known.get(row["k"])
        if until is None or (until <= row["t"] if within is not None else until < row["t"]):
            passed.append(row["v"])
            known[row["k"]] = row["t"] + (within or 0)
    return sorted(passed)


DEDUPLICATED: dict[str, Any] = {"memory": Memory(), "parquet": Parquet(max_levels=2, snapshot_bytes=1)}


@pytest.mark.slow
@pytest.mark.parametrize(("store", "within"), turns(DEDUPLICATED, [None, 0, 3, 11]))
def test_deduplication_in_order_passes_the_same_rows_by_any_cut(store: str, within: int | None) -> None:
    chance = random.Random(within)
    given = events(chance, 70)
    span = None if within is None else f"{within} s"
    description = ts.stream(event_time="t", watermark_delay=DELAY).deduplicate("k", within=span, in_order=True)
    expected = in_turn(given, None if within is None else within * SECOND)
    for panes in by_cut(description, given, chance, store=DEDUPLICATED[store], restarts=True):
        assert sorted(pane["v"] for pane in panes) == expected
    assert len(expected) < len(given) or within == 0


def test_deduplication_as_rows_come_depends_on_the_cut() -> None:
    """Pinned: the first to come passes, and is remembered until the watermark of a batch has passed it."""
    given = [
        {"k": "a", "t": at * SECOND, "v": number, "part": "x", "at": number}
        for number, at in enumerate([5, 3, 20, 21])
    ]
    description = ts.stream(event_time="t").deduplicate("k", within="10 s")
    found = [
        [pane["v"] for pane in played(description, [table(some) for some in cut])[0]]
        for cut in ([given], [given[:2], given[2:]], [given[:3], given[3:]])
    ]
    assert found == [[0], [0], [0, 3]]


# order of arrival


@pytest.mark.slow
@pytest.mark.parametrize("kind", few(["count", "hopping", "tumbling", "session"], 0, 3))
def test_what_goes_by_order_is_the_same_by_any_cut_in_order(kind: str) -> None:
    chance = random.Random(kind)
    given = events(chance, 60)
    windows = {
        "count": ts.count_windows(5),
        "hopping": ts.count_windows(6, 2),
        "tumbling": ts.tumbling("8 s"),
        "session": ts.sessions("2 s"),
    }[kind]
    description = (
        ts.stream(event_time="t", watermark_delay=DELAY, offset="at", origin="part")
        .group_by("k")
        .window(windows)
        .aggregate(n=agg.count(), one=agg.first("v", by="t"), other=agg.last("v", by="t"), every=agg.list("v"))
        .in_order()
        .accumulation("retracting")
    )
    observed = by_cut(description, given, chance)
    found = [net(panes, "pane", "timing", "last", "every") for panes in observed]
    assert all(one == found[0] for one in found)
    lists = [plain([pane for pane in panes if pane["timing"] == "on_time"], "k", "every") for panes in observed]
    assert all(one == lists[0] for one in lists)
    if kind == "count":
        by_key = defaultdict(list)
        for row in sorted(given, key=lambda row: (row["t"], row["part"], row["at"])):
            by_key[row["k"]].append(row["v"])
        expected = [(k, vs[n : n + 5]) for k, vs in by_key.items() for n in range(0, len(vs), 5)]
        assert lists[0] == sorted(expected)


def test_messages_are_numbered_as_they_come_without_the_option() -> None:
    """Pinned: of several origins, within a batch by (origin, offset), so the cut says which count first."""
    rows = [("y", 1), ("x", 1), ("y", 2), ("x", 2)]
    given = [{"k": "a", "t": n * SECOND, "v": n, "part": part, "at": at} for n, (part, at) in enumerate(rows)]
    made = (
        ts.stream(event_time="t", offset="at", origin="part")
        .group_by("k")
        .window(ts.count_windows(2))
        .aggregate(one=agg.list("v"))
    )
    held = (
        ts.stream(event_time="t", offset="at", origin="part")
        .group_by("k")
        .window(ts.count_windows(2))
        .aggregate(one=agg.list("v"))
        .in_order()
    )
    found = [
        [pane["one"] for pane in played(one, [table(some) for some in cut])[0]]
        for one in (made, held)
        for cut in ([given], [given[:1], given[1:]])
    ]
    assert found == [[[1, 3], [0, 2]], [[0, 1], [3, 2]], [[0, 1], [2, 3]], [[0, 1], [2, 3]]]


EXACT: dict[str, Any] = {
    "tumbling": ts.tumbling("7 s"),
    "sliding": ts.sliding("9 s", "3 s"),
    "session": ts.sessions("2 s"),
    "global": ts.global_window(),
    "offsets": ts.offset_windows(4, 2, late=40),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", few(EXACT, 0))
def test_exact_aggregates_of_other_windows_need_no_order(kind: str) -> None:
    chance = random.Random(kind)
    given = [row | {"part": "x", "at": n} for n, row in enumerate(events(chance, 50))]
    begun = ts.stream(event_time="t", watermark_delay=DELAY).group_by("k")
    if kind == "offsets":
        begun = ts.stream(offset="at").group_by("k")
    description = begun.window(EXACT[kind]).aggregate(n=agg.count(), total=agg.sum("v"), most=agg.max("v"))
    if kind in ("tumbling", "sliding"):
        description = description.allowed_lateness("0 s")
    elif kind != "global":
        description = description.accumulation("retracting")
    found = [net(panes, "pane", "timing", "last") for panes in by_cut(description, given, chance)]
    assert all(one == found[0] for one in found)


def test_sessions_with_early_panes_add_up_only_where_they_take_back() -> None:
    """Pinned: of a session that grows in a second batch the pane of its part stays."""
    given = [{"k": "a", "t": n * SECOND, "v": n, "part": "x", "at": n} for n in range(4)]
    found = []
    for mode in ("accumulating", "retracting"):
        description = (
            ts.stream(event_time="t", watermark_delay=DELAY)
            .group_by()
            .window(ts.sessions("2 s"))
            .aggregate(n=agg.count())
        )
        description = description.trigger(early=trigger.each_batch()).accumulation(mode)
        for cut in ([given], [given[:2], given[2:]]):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                panes, _ = played(description, [table(some) for some in cut])
            found.append(set(net(panes, "pane", "timing", "last", "window_start")))
    assert found[0] < found[1]
    assert found[0] == found[2] == found[3]


# lateness


def test_lateness_is_judged_by_the_watermark_before_the_batch() -> None:
    """Pinned: a row is not late among those it came with; with a delay as long as rows are behind none is late."""
    given = [{"k": "a", "t": at * SECOND, "v": n, "part": "x", "at": n} for n, at in enumerate([1, 30, 2, 31])]
    found = []
    for delay in ("0 s", "28 s"):
        description = (
            ts.stream(event_time="t", watermark_delay=delay)
            .group_by()
            .window(ts.tumbling("5 s"))
            .aggregate(n=agg.count())
            .allowed_lateness("0 s")
        )
        for cut in ([given], [given[:2], given[2:]]):
            panes, ledger = played(description, [table(some) for some in cut])
            found.append((sum(pane["n"] for pane in panes), len(ledger)))
    assert found == [(4, 0), (3, 1), (4, 0), (4, 0)]


@pytest.mark.parametrize("mode", few(["rows", "window"], 1))
def test_panes_and_ledger_hold_each_row_once_by_any_cut(mode: str) -> None:
    chance = random.Random(mode)
    given = events(chance, 50, behind=15)
    description = (
        ts.stream(event_time="t", watermark_delay="2 s")
        .group_by("k")
        .window(ts.tumbling("5 s"))
        .aggregate(n=agg.count())
    )
    description = description.allowed_lateness("3 s", rule="event" if mode == "rows" else "window").accumulation(
        "retracting"
    )
    for cut in cuts(given, chance, tries=3, single=False):
        panes, ledger = played(description, [table(some) for some in cut])
        counted = sum(pane["n"] * (-1 if pane["kind"] == "retract" else 1) for pane in panes)
        assert counted + len(ledger) == len(given)


@pytest.mark.parametrize("policy", longer("drop", "adjust"))
def test_ctis_judge_by_each_row_not_by_batches(policy: Any) -> None:
    chance = random.Random(policy)
    given = events(chance, 50)
    description = (
        ts.stream(event_time="t", offset="at", origin="part")
        .watermark(
            ts.watermark.ctis(ts.watermark.cti_settings(policy, generate=ts.watermark.generate_ctis(4, delay="1 s"))),
            sources=["x", "y"],
        )
        .group_by("k")
        .window(ts.tumbling("5 s"))
        .aggregate(n=agg.count(), total=agg.sum("v"))
    )
    found = []
    for cut in cuts(given, chance, tries=3, single=False):
        panes, ledger = played(description, [table(some) for some in cut])
        found.append((net(panes), Counter((row["v"], row["reason"]) for row in ledger)))
    assert all(one == found[0] for one in found)
    assert found[0][1]


def test_future_events_are_those_far_ahead_of_the_watermark() -> None:
    """Of the start of the batch, by more than its delay and the tolerance: W is 200 after an event at 320."""
    cases = [("120 s", [320, 379, 380, 381], 1), ("120 s", [320, 280, 381, 382], 2), ("0 s", [200, 260, 261, 262], 2)]
    for identified in ({}, {"offset": "at", "origin": "part"}):
        for delay, times, future in cases:
            given = [{"k": "a", "t": at * SECOND, "v": n, "part": "x", "at": n} for n, at in enumerate(times)]
            events_ = ts.stream(event_time="t", watermark_delay=delay, **identified)
            harness = (
                events_.group_by().window(ts.tumbling("5 s")).aggregate(n=agg.count()).harness(table(given).schema)
            )
            harness.feed(table(given[:1]))
            assert harness.counters()["future"] == 0  # there is no watermark yet
            harness.restart()
            harness.feed(table(given[1:]))
            assert harness.counters()["future"] == future


def test_what_an_operator_passes_on_is_no_more_in_the_future_than_in_its_input() -> None:
    """The windows behind it have its watermark, and so its delay."""
    job = (
        ts.stream(event_time="t", watermark_delay="1 hour")
        .deduplicate("v", within="1 day", name="once")
        .group_by()
        .window(ts.tumbling("5 s"))
        .aggregate(n=agg.count())
        .named("counts")
    )
    given = [{"k": "a", "t": at * SECOND, "v": n, "part": "x", "at": n} for n, at in enumerate([1, 50, 110])]
    harness = job.harness(table(given).schema)
    for row in given:
        harness.feed(table([row]))
    assert {name: many for name, many in harness.counters().items() if name.endswith(".future")} == {
        "once.future": 0,
        "counts.future": 0,
    }


# several streams


def both(description: Any, given: list[dict[str, Any]]) -> dict[str, pa.Table]:
    """Batches of two streams: rows of the part x are the left side's."""
    sides = dict(zip(description.graph.streams, "xy", strict=True))
    return {side: table([row for row in given if row["part"] == part]) for side, part in sides.items()}


ORDERED = ts.stream(event_time="t", watermark_delay=DELAY, **ORDER)
SEVERAL = {
    "session join": ts.stream(event_time="t", watermark_delay="6 s").join_sessions(
        ts.stream(event_time="t", watermark_delay="6 s"), on="k", gap="2 s", how="full"
    ),
    "late sessions": ts.stream(event_time="t", watermark_delay="1 s", offset="at").join_sessions(
        ts.stream(event_time="t", watermark_delay="1 s", offset="at"),
        on="k",
        gap="2 s",
        how="full",
        allowed_lateness="20 s",
        identity=True,
    ),
    "union": ts.union(
        left=ts.stream(event_time="t", watermark_delay="6 s"), right=ts.stream(event_time="t", watermark_delay="6 s")
    ),
    "merge": ts.merge(
        left=ts.stream(event_time="t", watermark_delay="6 s"), right=ts.stream(event_time="t", watermark_delay="6 s")
    )
    .group_by("k")
    .window(ts.sessions("2 s"))
    .aggregate(n=agg.count(), total=agg.sum("left_v"))
    .accumulation("retracting"),
    "lists": ts.merge(left=ORDERED, right=ts.stream(event_time="t", watermark_delay=DELAY, **ORDER))
    .group_by("k")
    .window(ts.tumbling("7 s"))
    .aggregate(left=agg.list("left_v"), right=agg.list("right_v"))
    .in_order(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", few(SEVERAL, 1, 2, 4))
def test_what_several_streams_come_to_is_the_same_by_any_cut(name: str) -> None:
    chance, description = random.Random(name), SEVERAL[name]
    given = events(chance, 50)
    found = []
    for cut in cuts(given, chance, tries=4 if LONG else 2, single=False):
        batches = [both(description, some) for some in cut]
        panes, ledger = played(description, batches, partitions=chance.choice([1, 2]))
        assert not ledger
        found.append(net([{n: str(v) for n, v in one.items()} for one in panes], "pane", "timing", "last"))
    assert all(one == found[0] for one in found)


@pytest.mark.parametrize("in_order", few([True, False], 1))
def test_a_join_with_windows_of_each_side_goes_by_them_in_a_chain(in_order: bool) -> None:
    """Positions of rows that come from an operator count too; it was forgotten, and everything met everything."""
    chance = random.Random(2)
    given = events(chance, 60, behind=6 if in_order else 0)
    sides: dict[str, Any] = {
        "left": ts.side(window=ts.tumbling("8 s")),
        "right": ts.side(window=ts.tumbling("6 s")),
        "in_order": in_order,
    }
    lefts, rights = (ts.stream(name, event_time="t", watermark_delay=DELAY) for name in ("lefts", "rights"))
    alone = lefts.join(rights, on="k", **sides)
    once = lefts.deduplicate(("part", "at"), within="1 hour", name="once")
    described = once.join(rights, on="k", **sides)
    schemas = {"lefts": EVENTS, "rights": EVENTS}
    expected = None
    for cut in cuts(given, chance, tries=2 if LONG else 1, single=False):
        direct, chained = alone.harness(schemas), described.harness(schemas, partitions=2)
        pairs, others = [], []
        for some in cut:
            halves = [table([row for row in some if row["part"] == part]) for part in "xy"]
            pairs += direct.feed({"lefts": halves[0], "rights": halves[1]}).to_pylist()
            others += chained.feed({"lefts": halves[0], "rights": halves[1]}).to_pylist()
        pairs += direct.finish().to_pylist()
        others += chained.finish().to_pylist()
        assert net(others) == net(pairs)
        expected = expected or net(pairs)
        assert net(pairs) == expected
    assert expected is not None
    assert sum(expected.values()) > 30


# what is refused


def test_events_that_are_held_cannot_take_a_new_aggregate(tmp_path: Path) -> None:
    job = ts.stream(event_time="t").group_by().window(ts.count_windows(3))
    given = table([{"k": "a", "t": 0, "v": 0, "part": "x", "at": 0}])
    job.aggregate(n=agg.count()).in_order().harness(given.schema, folder=tmp_path).feed(given)
    with pytest.raises(IncompatibleError, match="drain first"):
        job.aggregate(n=agg.count(), total=agg.sum("v")).in_order().harness(given.schema, folder=tmp_path)
    with pytest.raises(IncompatibleError, match="in_order"):
        job.aggregate(n=agg.count()).harness(given.schema, folder=tmp_path)


def test_what_has_no_time_of_its_own_has_no_order() -> None:
    clock = ts.stream(processing_time=True).group_by().window(ts.tumbling("5 s"))
    offsets = ts.stream(event_time="t", offset="at").group_by().window(ts.offset_windows(3))
    for one in (clock, offsets):
        with pytest.raises(UsageError, match="in-order"):
            played(
                one.aggregate(n=agg.count()).in_order(), [table([{"k": "a", "t": 0, "v": 0, "part": "x", "at": 0}])]
            )
