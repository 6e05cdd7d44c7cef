"""Chains: several operators in one job, each with its own watermark and state, one manifest for all."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.click_chains import CLICKS, SECOND, clicks, observed, per_country, per_user
from tests.helpers.process import LONG, few, in_turn
from tidestate import Aggregation, agg, trigger
from tidestate.operators.bind.graph import bind_graph
from tidestate.recovery.log.manifest import DeliveryId
from tidestate.statestore.errors import IncompatibleError, UsageError
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB
from tidestate.statestore.spec.tables import TIME

STORES = [Memory(), Parquet(), RocksDB()]


def net(panes: pa.Table, *names: str) -> Counter[tuple[Any, ...]]:
    """What is left when retractions are taken off."""
    found: Counter[tuple[Any, ...]] = Counter()
    for row, kind in zip(observed_in_order(panes, names), panes["kind"].to_pylist(), strict=True):
        found[row] += 1 if kind == "emit" else -1
    return +found if all(value >= 0 for value in found.values()) else found


def observed_in_order(panes: pa.Table, names: tuple[str, ...]) -> list[tuple[Any, ...]]:
    return list(zip(*(panes[name].to_pylist() for name in names), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("store", "partitions"), few(in_turn(STORES, [3, 1]), 0))
def test_aggregate_rekey_aggregate(store: Any, partitions: int, tmp_path: Path) -> None:
    tested = per_country(per_user()).harness(CLICKS, store=store, partitions=partitions, folder=tmp_path)
    panes = [
        tested.feed(clicks((1, "a", "nl", 5), (2, "a", "nl", 7), (3, "b", "nl", 1), (4, "c", "be", 2))),
        tested.feed(clicks((61, "a", "nl", 10), (130, "b", "be", 3))),
        tested.feed(clicks((3600, "a", "nl", 1))),
        tested.feed(clicks((3700, "a", "nl", 1))),
    ]
    # An hour is over when the minutes before the watermark are all in: at 3700 s those of 3600 s are.
    assert [one.num_rows for one in panes] == [0, 0, 2, 0]
    names = ("window_start", "country", "users", "total", "most")
    assert observed(panes[2], *names) == [(0, "be", 2, 5, 3), (0, "nl", 3, 23, 12)]
    assert observed(tested.finish(), *names) == [(60, "nl", 2, 2, 1)]
    head = evidence.manifests(tmp_path)[-1]
    assert list(head["operators"]) == ["per_user", "per_country"]
    assert head["operators"]["per_country"]["inputs"] == ["per_user"]
    assert head["totals"]["per_user.events"] == 8
    assert head["totals"]["per_country.events"] == 7


@pytest.mark.parametrize("store", few(STORES, 0), ids=lambda s: type(s).__name__)
def test_late_events_are_taken_back_downstream(store: Any) -> None:
    users = per_user(late="2 hours").accumulation("retracting")
    countries = per_country(users, late="2 hours").accumulation("retracting")
    tested = countries.harness(CLICKS, store=store, partitions=2)
    names = ("window_start", "country", "users", "total", "most")
    parts = [
        tested.feed(clicks((1, "a", "nl", 5), (3, "b", "nl", 1), (70, "a", "nl", 2))),
        tested.feed(clicks((3700, "a", "nl", 1))),
        tested.feed(clicks((5, "a", "nl", 4), (3, "c", "be", 9))),
        tested.feed(clicks((4, "b", "nl", 100))),
    ]
    whole = pa.concat_tables(parts)
    assert parts[0].num_rows == 0
    assert observed(parts[1], *names) == [(0, "nl", 3, 8, 5)]
    assert observed(parts[2], "kind", *names) == [
        ("emit", 0, "be", 1, 9, 9),
        ("emit", 0, "nl", 3, 12, 9),
        ("retract", 0, "nl", 3, 8, 5),
    ]
    assert net(whole, *names[1:]) == Counter({("be", 1, 9, 9): 1, ("nl", 3, 112, 101): 1})
    tested.restart()
    more = tested.feed(clicks((6, "b", "nl", 1)))
    assert net(pa.concat_tables([whole, more]), *names[1:]) == Counter({("be", 1, 9, 9): 1, ("nl", 3, 113, 102): 1})


def test_what_is_new_alone_adds_up_downstream() -> None:
    users = per_user().trigger(early=trigger.each_batch()).accumulation("discarding")
    tested = per_country(users).harness(CLICKS)
    tested.feed(clicks((1, "a", "nl", 5)))
    tested.feed(clicks((2, "a", "nl", 7)))
    assert observed(tested.finish(), "country", "total") == [("nl", 12)]


def test_sessions_that_merge_are_taken_back_downstream() -> None:
    visits = (
        ts.stream(event_time="at")
        .group_by("user")
        .window(ts.sessions("10 seconds"))
        .aggregate(n=agg.count())
        .allowed_lateness("2 hours")
        .accumulation("retracting")
        .named("visits")
    )
    longest = (
        visits.group_by()
        .window(ts.tumbling("1 hour"))
        .aggregate(visits=agg.count(), most=agg.max("n"))
        .allowed_lateness("2 hours")
        .accumulation("retracting")
        .named("longest")
    )
    tested = longest.harness(CLICKS)
    parts = [
        tested.feed(clicks((0, "a", "nl", 1), (5, "a", "nl", 1), (17, "a", "nl", 1), (4000, "b", "nl", 1))),
        tested.feed(clicks((8, "a", "nl", 1))),
        tested.finish(),
    ]
    first = pa.concat_tables(parts).filter(pa.compute.equal(pa.concat_tables(parts)["window_start"].cast("int64"), 0))
    assert observed(parts[0], "visits", "most") == [(2, 2)]
    assert net(first, "visits", "most") == Counter({(1, 4): 1})


def test_windows_of_the_operator_before_are_kept() -> None:
    again = per_user().group_by("country").aggregate(users=agg.count(), smallest=agg.min("total")).named("again")
    tested = again.harness(CLICKS, partitions=2)
    panes = tested.feed(clicks((1, "a", "nl", 5), (2, "b", "nl", 7), (61, "b", "nl", 9), (200, "x", "be", 1)))
    assert observed(panes, "window_start", "window_end", "country", "users", "smallest") == [
        (0, 1, "nl", 2, 5),
        (1, 2, "nl", 1, 9),
    ]


def test_the_newest_pane_may_stand_for_those_before() -> None:
    users = per_user(late="1 hour")
    newest = users.group_by("user", "country").aggregate(n=agg.last("n", by="n")).named("newest")
    tested = newest.allowed_lateness("1 hour").harness(CLICKS)
    parts = [tested.feed(clicks((1, "a", "nl", 5), (100, "a", "nl", 5))), tested.feed(clicks((2, "a", "nl", 5)))]
    assert [observed(part, "window_start", "n") for part in parts] == [[(0, 1)], [(0, 2)]]


def test_two_streams_meet_behind_an_aggregate(tmp_path: Path) -> None:
    weather = pa.schema([("hour", TIME), ("place", pa.string()), ("wind", pa.float64())])
    hourly = ts.stream("clicks", event_time="at").group_by("country").window(ts.tumbling("1 hour"))
    met = (
        hourly.aggregate(n=agg.count())
        .allowed_lateness("0 seconds")
        .named("hourly")
        .timed_by("window_start")
        .join(
            ts.stream("weather", event_time="hour"),
            on="country",
            within=("0 seconds", "0 seconds"),
            how="left",
            name="met",
        )
    )
    described = met
    schemas = {"clicks": CLICKS, "weather": weather.set(1, pa.field("country", pa.string()))}
    tested = described.harness(schemas, folder=tmp_path, partitions=2)
    hours = [{"hour": 0, "country": "nl", "wind": 3.5}, {"hour": 3600 * SECOND, "country": "nl", "wind": 4.5}]
    rain = pa.Table.from_pylist(hours, schemas["weather"])
    parts = [
        tested.feed({"clicks": clicks((1, "a", "nl", 1), (2, "b", "be", 1)), "weather": rain}),
        tested.feed({"clicks": clicks((3601, "a", "nl", 1))}),
        tested.finish(),
    ]
    names = ("country", "left_n", "right_wind")
    assert parts[0].num_rows == 0
    assert observed(parts[1], *names) == [("be", 1, None), ("nl", 1, 3.5)]
    assert observed(parts[2], *names) == [("nl", 1, 4.5)]


def test_an_operator_that_is_added_begins_empty_and_the_others_keep_their_state(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alone = per_user().harness(CLICKS, folder=tmp_path)
    alone.feed(clicks((1, "a", "nl", 5)))
    tested = per_country(per_user()).harness(CLICKS, folder=tmp_path)
    assert "operator per_country is new" in caplog.text
    tested.feed(clicks((2, "a", "nl", 7)))
    assert observed(tested.feed(clicks((7200, "x", "be", 1))), "country", "total") == [("nl", 12)]
    shorter = per_user().harness(CLICKS, folder=tmp_path)
    assert "operator per_country is no longer in this job" in caplog.text
    assert observed(shorter.finish(), "country", "total") == [("be", 1)]
    with pytest.raises(IncompatibleError, match="other-job"):
        per_user(late="1 second", name="other").harness(CLICKS, folder=tmp_path)


def test_what_another_operator_showed_is_still_delivered(tmp_path: Path) -> None:
    got: list[tuple[int, list[str]]] = []

    def refuse(_panes: pa.Table, _id: DeliveryId) -> None:
        raise OSError("no room")

    def take(panes: pa.Table, one: DeliveryId) -> None:
        got.append((one.checkpoint, [name for name in panes.column_names if name in ("n", "users")]))

    batches = [clicks((1, "a", "nl", 5)), clicks((70, "a", "nl", 5)), clicks((7200, "b", "nl", 5))]
    with pytest.raises(OSError, match="no room"):
        per_user().standalone(checkpoint=tmp_path, sink=refuse).run(batches[:2])
    described = per_country(per_user())
    described.standalone(checkpoint=tmp_path, sink=take).run(batches, drain=True)
    assert [names for _, names in got] == [["n"], ["users"], ["users"]]
    assert [number for number, _ in got] == sorted({number for number, _ in got})


def test_what_was_too_late_comes_back_through_all_operators() -> None:
    users = per_user().retain_windows("1 day").accumulation("retracting")
    countries = per_country(users).retain_windows("1 day").accumulation("retracting")
    tested = countries.harness(CLICKS, partitions=2)
    parts = [
        tested.feed(clicks((1, "a", "nl", 5))),
        tested.feed(clicks((3700, "a", "nl", 1))),
        tested.feed(clicks((2, "a", "nl", 6), (9, "z", "be", 2))),
    ]
    assert tested.ledger("per_user").num_rows == 2
    assert tested.ledger().num_rows == 0
    parts.append(tested.reprocess_late())
    assert net(pa.concat_tables(parts), "country", "users", "total") == Counter({("nl", 1, 11): 1, ("be", 1, 2): 1})
    assert tested.reprocess_late().num_rows == 0


def test_each_operator_has_its_own_ledger_and_windows() -> None:
    users = per_user(late="2 hours").accumulation("retracting")
    tested = per_country(users).allowed_lateness("0 seconds", ledger_columns="n").harness(CLICKS)
    tested.feed(clicks((1, "a", "nl", 5)))
    tested.feed(clicks((3700, "a", "nl", 1)))
    tested.feed(clicks((2, "a", "nl", 6)))
    # The hour is over for the second operator, which allows no lateness: both rows stand in its ledger.
    assert observed(tested.ledger("per_country"), "kind", "n", "total") == [("emit", 2, 11), ("retract", 1, 5)]
    assert tested.windows("per_user").num_rows == 2
    assert tested.windows("per_country").num_rows == 0
    with pytest.raises(UsageError, match="harness-operator"):
        tested.windows("nobody")


def test_a_wider_window_behind_a_sliding_one_waits_for_the_starts() -> None:
    first = ts.stream(event_time="at").group_by().window(ts.sliding("20 seconds", "10 seconds"))
    second = (
        first.aggregate(n=agg.count())
        .allowed_lateness("0 seconds")
        .named("first")
        .timed_by("window_start")
        .group_by()
        .window(ts.tumbling("1 minute"))
    )
    described = second.aggregate(n=agg.sum("n"), windows=agg.count()).allowed_lateness("0 seconds").named("second")
    tested = described.harness(CLICKS)
    names = ("window_end", "n", "windows")
    # The window that starts at 50 s is not over at 69 s, so the minute that holds its start is not either.
    assert observed(tested.feed(clicks((5, "a", "nl", 1), (55, "a", "nl", 1), (69, "a", "nl", 1))), *names) == [
        (0, 1, 1)
    ]
    assert observed(tested.feed(clicks((70, "a", "nl", 1))), *names) == [(1, 4, 3)]


EVENTS = st.lists(
    st.tuples(st.integers(0, 400), st.sampled_from("abc"), st.sampled_from(["nl", "be"]), st.integers(-9, 9)),
    max_size=12,
)


def naive(events: list[tuple[int, str, str, int]]) -> Counter[tuple[Any, ...]]:
    """Per country and two minutes of what there is per user and half minute: how many, their sum and largest."""
    groups: dict[tuple[int, str, str], list[int]] = {}
    for second, user, country, amount in events:
        groups.setdefault((second // 30, user, country), []).append(amount)
    above: dict[tuple[int, str], list[int]] = {}
    for (half, _, country), amounts in groups.items():
        above.setdefault((half // 4 * 2, country), []).append(sum(amounts))
    return Counter({(start, country, len(sums), sum(sums), max(sums)): 1 for (start, country), sums in above.items()})


@pytest.mark.slow
@settings(max_examples=2000 if LONG else 2, deadline=None)
@given(
    batches=st.lists(EVENTS, max_size=6),
    early=st.booleans(),
    restarts=st.sets(st.integers(0, 5)),
    store=st.sampled_from(STORES),
    partitions=st.integers(1, 3),
)
def test_the_net_is_that_of_all_accepted_events(
    batches: list[list[Any]], early: bool, restarts: set[int], store: Any, partitions: int
) -> None:
    users = ts.stream(event_time="at").group_by("user", "country").window(ts.tumbling("30 seconds"))
    users = (
        users.aggregate(total=agg.sum("amount"))
        .named("users")
        .allowed_lateness("2 minutes", ledger_columns="amount")
        .accumulation("retracting")
    )
    if early:
        users = users.trigger(early=trigger.each_batch())
    halves = users.group_by("country").window(ts.tumbling("2 minutes"))
    above = halves.aggregate(users=agg.count(), total=agg.sum("total"), most=agg.max("total")).named("above")
    above = above.allowed_lateness("1 hour")
    if early:
        above = above.trigger(early=trigger.each_batch())
    with tempfile.TemporaryDirectory() as folder:
        tested = above.accumulation("retracting").harness(CLICKS, store=store, partitions=partitions, folder=folder)
        panes = []
        for number, events in enumerate(batches):
            panes.append(tested.feed(clicks(*events)))
            if number in restarts:
                tested.restart()
        panes.append(tested.finish())
        refused = tested.ledger("users").select(["at", "user", "country", "amount"]).to_pylist()
        assert tested.ledger("above").num_rows == 0
    left = Counter(event for events in batches for event in events)
    left -= Counter((int(r["at"].timestamp()), r["user"], r["country"], r["amount"]) for r in refused)
    whole = pa.concat_tables(panes)
    starts = [int(time.timestamp() // 60) for time in whole["window_start"].to_pylist()]
    found: Counter[tuple[Any, ...]] = Counter()
    columns = [whole[name].to_pylist() for name in ("country", "users", "total", "most", "kind")]
    for start, *values, kind in zip(starts, *columns, strict=True):
        found[(start, *values)] += 1 if kind == "emit" else -1
    assert {row: count for row, count in found.items() if count} == naive(list(left.elements()))


LATER = {
    "sliding": ts.sliding("10 seconds", "5 seconds"),
    "lifetimes": ts.sliding("10 seconds", "5 seconds", of="lifetime"),
    "gaps": ts.sliding("5 seconds", "8 seconds", strict=False),
    "sessions": ts.sessions("5 seconds"),
    "counted": ts.count_windows(3),
    "global": ts.global_window(),
}
EVENTS = pa.schema([("t", TIME), ("k", "string"), ("v", "int64")])


def by_five_seconds() -> Aggregation:
    first = ts.stream(event_time="t").group_by("k").window(ts.tumbling("5 seconds"))
    return (
        first.aggregate(v=agg.sum("v"), ends=agg.max("t"))
        .named("first")
        .allowed_lateness("1 minute")
        .accumulation("discarding")
    )


@pytest.mark.parametrize("column", ["window_start", "window_end"])
@pytest.mark.parametrize("name", LATER)
@pytest.mark.parametrize("composite", [False, True])
def test_bounds_of_panes_are_event_times(name: str, column: str, composite: bool) -> None:
    later = by_five_seconds().timed_by(column, lifetime=ts.lifetime("ends")).group_by("k").window(LATER[name])
    later = later.aggregate(n=agg.sum("v")).accumulation("discarding").named("last").allowed_lateness("0 seconds")
    if composite:
        later = later.trigger(
            when=trigger.or_finally(trigger.repeatedly(trigger.after_count(2)), trigger.after_count(5))
        )
    assert bind_graph(later.graph.description, EVENTS).plans["last"].input.event_time == column


def test_the_ledger_names_the_window_that_refused_a_pane() -> None:
    later = by_five_seconds().timed_by("window_end").group_by("k").window(LATER["sliding"])
    later = (
        later.aggregate(n=agg.sum("v"))
        .named("last")
        .allowed_lateness("0 seconds", rule="window")
        .retain_windows("1 minute")
        .accumulation("discarding")
    )
    harness = later.harness(EVENTS)

    def feed(*events: tuple[int, int]) -> list[tuple[int, int]]:
        seconds = [t * SECOND for t, _ in events]
        return sums(harness.feed(pa.table([seconds, ["a"] * len(events), [v for _, v in events]], schema=EVENTS)))

    def sums(panes: pa.Table) -> list[tuple[int, int]]:
        return [(int(row["window_start"].timestamp()), row["n"]) for row in panes.to_pylist()]

    assert feed((1, 1), (6, 2), (11, 4), (21, 8)) == [(0, 1), (5, 3), (10, 6)]
    assert feed((7, 16), (11, 32)) == []  # panes that end at 10 and 15: for 5..15 and 10..20, for 10..20 and 15..25
    ledger = harness.ledger().select(["v", "refusing_window_start", "refusing_window_end"]).to_pylist()
    bounds = [[None if at is None else at.timestamp() for at in list(row.values())[1:]] for row in ledger]
    assert [row["v"] for row in ledger] == [16, 32]
    assert bounds == [[None, None], [10, 20]]
    assert feed((31, 64)) == [(15, 36), (20, 8)]
    assert sums(harness.reprocess_late()) == [(5, 16), (10, 48)]
