"""Messages known by their identity in ordinary jobs: each takes part once, however often and in whatever order.

Windows of each kind on each store are in the long form: messages are known in the same way in
`tests.operators.embedded.test_window_operator`.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.moves import rewind
from tests.helpers.operator_messages import SCHEMA as MESSAGES
from tests.helpers.operator_messages import STORES, WINDOWS, description, expected, plain, store_config, stream
from tests.helpers.operator_messages import table as message_table
from tests.helpers.process import LONG, few, in_turn
from tests.twins.known import Row, Twin, as_dicts
from tidestate import agg, trigger
from tidestate.operators.local.harness import Harness
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.moves.rescale import rescale
from tidestate.statestore.errors import IncompatibleError, UsageError
from tidestate.statestore.spec.store import Memory, StoreName

SECOND = 1_000_000
SCHEMA = pa.schema(
    [
        ("part", pa.int32()),
        ("at", pa.int64()),
        ("t", pa.timestamp("us", tz="UTC")),
        ("k", pa.string()),
        ("v", pa.int64()),
    ]
)
STORE = Memory(max_levels=3, snapshot_bytes=1)


def job(size: int = 6, delay: int = 2, allowed: int = 10) -> Any:
    made = (
        ts.stream(event_time="t", watermark_delay=f"{delay} seconds")
        .group_by("k")
        .window(ts.tumbling(f"{size} seconds"))
    )
    made = made.aggregate(n=agg.count(), total=agg.sum("v"), each=agg.list("v")).allowed_lateness(
        f"{allowed} seconds"
    )
    return made.messages(identity=("part", "at"))


def table(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(as_dicts(rows), SCHEMA)


def newest(panes: list[dict[str, Any]]) -> dict[tuple[int, str], tuple[int, int, list[int]]]:
    """The last pane of each window."""
    return {
        (int(pane["window_start"].timestamp()), pane["k"]): (pane["n"], pane["total"], pane["each"]) for pane in panes
    }


def check(twin: Twin, panes: list[dict[str, Any]], harness: Harness) -> None:
    assert newest(panes) == twin.values()
    ledger = Counter((row["part"], row["at"], row["reason"]) for row in harness.ledger().to_pylist())
    assert ledger == Counter(twin.ledger)
    counters = harness.counters()
    names = ("accepted", "duplicates", "very_late", "out_of_retention", "null_event_time", "null_key")
    assert {name: counters.get(name, 0) for name in names} == {name: twin.counters[name] for name in names}


@st.composite
def streams(draw: st.DrawFn) -> list[list[Row]]:
    """Messages of two origins with offsets in any order, again and again in later batches and in the same."""
    offsets = {part: draw(st.permutations(range(30))) for part in (0, 1)}
    base, made, sent = 0, [], list[Row]()
    for size in draw(st.lists(st.integers(0, 6), min_size=2, max_size=6)):
        base += draw(st.sampled_from([0, 2, 5, 12, 30]))
        batch = []
        for _ in range(size):
            part = draw(st.sampled_from([0, 1]))
            time = draw(st.one_of(st.none(), *[st.integers(max(0, base - 30), base)] * 8))
            row = Row(part, offsets[part].pop(), time, draw(st.sampled_from(["a", "b", "c", "d", None])), len(sent))
            batch.append(row)
            sent.append(row)
        again = draw(st.lists(st.sampled_from(sent), max_size=6)) if sent else []
        made.append(draw(st.permutations([*batch, *again])))
    return made


@pytest.mark.slow
@settings(max_examples=60 if LONG else 2, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(made=streams(), data=st.data())
def test_as_the_twin_says_under_redelivery_restarts_and_rescaling(made: list[list[Row]], data: st.DataObject) -> None:
    twin = Twin(6, 2, 10)
    with tempfile.TemporaryDirectory() as folder:
        harness = job().harness(SCHEMA, folder=folder, partitions=3, store=STORE)
        panes: list[dict[str, Any]] = []
        for batch in made:
            panes += harness.feed(table(batch)).to_pylist()
            twin.take(batch)
            then = data.draw(st.sampled_from(["", "restart", "rescale"]))
            if then == "rescale":
                partitions = Checkpoint.open(folder).head().manifest.partitions  # type: ignore[union-attr]
                rescale(folder, partitions % 4 + 1)
            if then:
                harness.restart()
        panes += harness.finish().to_pylist()
        check(twin, panes, harness)


# The others are those of `tests.operators.embedded.test_window_operator`, whose messages are known in the same way.
SOME_WINDOWS = sorted(WINDOWS) if LONG else ["counted", "session", "sliding"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "mode", "store"), few(in_turn(SOME_WINDOWS, ["accumulating", "retracting", "discarding"], STORES))
)
@pytest.mark.long
def test_any_window_emits_what_it_would_of_each_message_once(
    tmp_path: Path, kind: str, mode: str, store: StoreName
) -> None:
    plain_job, batches, chance = description(WINDOWS[kind], mode), stream(9, batches=6), random.Random(kind)
    panes, rejected = expected(plain_job, batches, tmp_path / "once")
    again = plain_job.messages(identity=("part", "at"))
    config = store_config(store, tmp_path / "cache")
    harness = again.harness(MESSAGES, folder=tmp_path / "again", partitions=2, store=config)
    found: list[Any] = []
    for number, batch in enumerate(batches):
        known = [message for before in batches[:number] for message in before]
        sent = [*batch, *chance.sample(batch, 3), *chance.sample(known, min(len(known), 8))]
        chance.shuffle(sent)
        found += plain(harness.feed(message_table(sent)))
        if number % 3 == 0:
            harness.restart()
            found += plain(harness.feed(message_table(sent)))  # the whole batch again
    found += plain(harness.finish())
    assert sorted(found, key=repr) == sorted(panes, key=repr)
    ledger = [(row["part"], row["at"]) for row in harness.ledger().to_pylist() if row["reason"] == "very_late"]
    assert len(set(ledger)) == len(ledger)
    assert rejected <= {(row["part"], row["at"]) for row in harness.ledger().to_pylist()}
    assert harness.counters()["duplicates"] > 50


def test_after_a_rewind_a_replay_takes_part_once(tmp_path: Path) -> None:
    batches = [[Row(part, n, 2 * n, "abc"[n % 3], n) for part in (0, 1)] for n in range(8)]
    harness = job().harness(SCHEMA, folder=tmp_path, partitions=2, store=STORE)
    for batch in batches:
        harness.feed(table(batch))
    rewind(Checkpoint.open(tmp_path), 5)
    harness.restart()
    panes = harness.feed(table([row for batch in batches for row in batch])).to_pylist()
    panes += harness.finish().to_pylist()
    twin = Twin(6, 2, 10)
    for batch in batches:
        twin.take(batch)
    assert newest(panes).items() <= twin.values().items()
    assert sum(n for n, _, _ in newest(panes).values()) >= 8


def test_origins_of_several_columns_and_of_none() -> None:
    base = (
        ts.stream(event_time="t")
        .group_by("k")
        .window(ts.tumbling("10 seconds"))
        .aggregate(n=agg.count(), parts=agg.list("part"))
    )
    wide = SCHEMA.append(pa.field("topic", pa.string()))
    rows = [{**as_dicts([Row(part, at, at, "a", 0)])[0], "topic": topic}
            for part, at, topic in ((0, 1, "x"), (0, 1, "x/0"), (1, 1, "x"), (0, 1, "x"), (0, 2, "x"))]  # fmt: skip
    harness = base.messages(("topic", "part", "at")).harness(wide, partitions=2)
    harness.feed(rows)
    assert harness.windows()["n"].to_pylist() == [4]
    assert harness.state("metadata_offsets")["origin"].to_pylist() == ["x/0", "x/1", "x\\/0/0"]
    assert harness.finish()["parts"].to_pylist() == [[0, 1, 0, 0]]
    alone = base.messages("at").harness(SCHEMA)
    alone.feed(table([Row(0, 1, 1, "a", 0), Row(1, 1, 1, "a", 0)]))
    assert alone.windows()["n"].to_pylist() == [1]


def test_what_is_no_identity_is_refused_before_anything_happens(tmp_path: Path) -> None:
    base = ts.stream(event_time="t").group_by("k").window(ts.tumbling("10 seconds")).aggregate(n=agg.count())
    wide = SCHEMA.append(pa.field("x", pa.float64())).append(pa.field("day", pa.date32()))
    for none in ((), ("at", "at"), None):
        with pytest.raises(UsageError, match="message-identity"):
            base.messages(none)
    refused = {
        ("x", "at"): "key-float",
        ("part", "x"): "key-float",
        ("nowhere", "at"): "column-missing",
        ("part", "day", "at"): "message-identity",
    }
    for identity, code in refused.items():
        with pytest.raises(UsageError, match=code):
            base.messages(identity).harness(wide)
    harness = base.messages(("part", "at")).harness(SCHEMA, folder=tmp_path)
    for name in ("part", "at"):
        bad = table([Row(0, 1, 1, "a", 0)])
        bad = bad.set_column(bad.column_names.index(name), name, pa.nulls(1, bad.schema.field(name).type))
        with pytest.raises(UsageError, match="message-null"):
            harness.feed(bad)
        harness.restart()
    assert harness.counters() == {}
    bounds = wide.append(wide.field("t").with_name("window_start")).append(wide.field("t").with_name("window_end"))
    named = ts.stream(event_time="t").group_by("k").aggregate(n=agg.count()).messages("at")
    with pytest.raises(UsageError, match="operator-window"):
        named.harness(bounds)


def test_counted_windows_number_messages_by_their_whole_identity() -> None:
    wide = SCHEMA.append(pa.field("topic", pa.string()))
    base = ts.stream(event_time="t", offset="at", origin="part").group_by("k").window(ts.count_windows(2))
    base = base.aggregate(total=agg.sum("v"), each=agg.list("v"))
    sent = [(5, "a", 1), (3, "b", 10), (4, "a", 100), (6, "b", 1000)]
    rows = [as_dicts([Row(0, at, 1, "x", v)])[0] | {"topic": topic} for at, topic, v in sent]
    panes = base.messages(("topic", "part", "at")).harness(wide).feed(rows)
    assert panes.sort_by("window_start").select(["total", "each"]).to_pylist() == [
        {"total": 101, "each": [100, 1]},
        {"total": 1010, "each": [10, 1000]},
    ]
    for other in ("at", ("at", "part", "v"), ("part", "v")):
        with pytest.raises(UsageError, match="message-identity"):
            base.messages(other).harness(wide)


def test_processing_time_and_windows_of_offsets() -> None:
    clock = ts.stream(processing_time=True).group_by("k").window(ts.tumbling("10 seconds")).aggregate(n=agg.count())
    harness = clock.messages(("part", "at")).harness(SCHEMA, partitions=2)
    harness.feed(table([Row(0, 1, 1, "a", 0)]))
    harness.advance_processing_time(5 * SECOND)
    harness.feed(table([Row(0, 1, 1, "a", 0), Row(0, 2, 1, "a", 0)]))
    assert harness.advance_processing_time(10 * SECOND)["n"].to_pylist() == [2]
    offsets = ts.stream().group_by("k").window(ts.offset_windows(4)).aggregate(n=agg.count(), middle=agg.median("v"))
    harness = offsets.messages(("part", "at")).harness(SCHEMA, partitions=2)
    panes = harness.feed(table([Row(0, at, 1, "a", at) for at in (0, 1, 1, 3, 2, 4, 1)]))
    assert [(row["n"], row["middle"]) for row in panes.to_pylist()] == [(4, 1.5)]


def test_in_a_chain_and_standalone(tmp_path: Path) -> None:
    minutes = ts.stream(event_time="t").group_by("k").window(ts.tumbling("10 seconds"))
    minutes = minutes.aggregate(n=agg.count()).allowed_lateness("0 seconds").named("minutes").messages(("part", "at"))
    whole = (
        minutes.group_by("k").window(ts.tumbling("1 minute")).aggregate(n=agg.sum("n"), of=agg.count()).named("whole")
    )
    batches = [[Row(0, n, n, "abc"[n % 3], 0) for n in range(first, first + 9)] for first in (0, 9, 18, 27)]
    sent = [table([*batch, *batches[0], *batch[:4]]) for batch in batches]
    panes = whole.standalone(checkpoint=tmp_path, partitions=3).run(sent, drain=True)
    assert panes.sort_by("k").select(["k", "n", "of"]).to_pylist() == [{"k": k, "n": 12, "of": 4} for k in "abc"]


@pytest.mark.slow
@settings(max_examples=40 if LONG else 2, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(made=streams(), data=st.data())
def test_the_number_of_messages_that_are_kept_is_the_allowed_lateness(
    made: list[list[Row]], data: st.DataObject
) -> None:
    keep = data.draw(st.integers(1, 8))
    base = ts.stream(event_time="t", watermark_delay="2 seconds").group_by("k").window(ts.tumbling("6 seconds"))
    base = base.aggregate(n=agg.count(), total=agg.sum("v"), each=agg.list("v"))
    limited, twin = base.messages(("part", "at"), retain=ts.Retention(messages=keep)), Twin(6, 2, 0, keep)
    with tempfile.TemporaryDirectory() as folder:
        harness = limited.harness(SCHEMA, folder=folder, store=STORE)
        panes: list[dict[str, Any]] = []
        for batch in made:
            panes += harness.feed(table(batch)).to_pylist()
            twin.take(batch)
            if data.draw(st.booleans()):  # with more or less retention
                twin.keep = data.draw(st.integers(1, 8))
                limited = base.messages(("part", "at"), retain=ts.Retention(messages=twin.keep))
                harness = limited.harness(SCHEMA, folder=folder, store=STORE)
        oldest = twin.forgotten()
        kept = [int(row["time"].timestamp()) for row in harness.state("messages").to_pylist()]
        harness.feed(table([]))
        panes += harness.finish().to_pylist()
        check(twin, panes, harness)
    accepted = [row.t for rows in twin.windows.values() for row in rows if row.t is not None]
    assert {time for time in accepted if oldest is None or time >= oldest} <= set(kept)


@pytest.mark.parametrize(
    "kind", few([ts.tumbling("6 seconds"), ts.sliding("6 seconds", "3 seconds"), ts.sessions("1 second")], 1)
)
def test_a_window_that_has_not_fired_is_kept_whatever_the_number_of_messages(kind: Any) -> None:
    base = ts.stream(event_time="t", watermark_delay="8 seconds").group_by("k").window(kind)
    limited = base.aggregate(n=agg.count(), each=agg.list("v")).accumulation("retracting")
    limited = limited.messages(("part", "at"), retain=ts.Retention(messages=1))
    harness, panes, kept = limited.harness(SCHEMA, store=STORE), list[dict[str, Any]](), []
    for n in range(6):
        panes += harness.feed(table([Row(0, n, n * 7, "a", n)])).to_pylist()
        kept.append(harness.state("messages").num_rows)
    panes += harness.finish().to_pylist()
    assert {value for pane in panes for value in pane["each"]} == set(range(6))
    assert all(pane["n"] == len(pane["each"]) and pane["kind"] == "emit" for pane in panes)
    assert max(kept) < 6


def test_a_retention_by_time_is_the_allowed_lateness() -> None:
    job = ts.stream(event_time="t").group_by("k").window(ts.tumbling("10 seconds")).aggregate(n=agg.count())
    harness = job.messages(("part", "at"), retain=ts.Retention(span="300 seconds")).harness(SCHEMA, partitions=2)
    harness.feed(table([Row(0, 1, 5, "a", 0), Row(0, 2, 304, "b", 0)]))
    assert harness.feed(table([Row(0, 3, 6, "a", 0)]))["n"].to_pylist() == [2]
    harness.feed(table([Row(0, 4, 400, "a", 0)]))
    harness.feed(table([Row(0, 5, 7, "a", 0)]))
    assert harness.counters()["out_of_retention"] == 1
    assert sorted(row["offset"] for row in harness.state("messages").to_pylist()) == [2, 4]


@pytest.mark.parametrize("kind", few(["sliding", "gaps", "session"], 1))
def test_what_is_kept_is_whole_windows_and_no_more(kind: str) -> None:
    base = ts.stream(event_time="t", watermark_delay="2 seconds").group_by("k").window(WINDOWS[kind])
    base = base.aggregate(n=agg.count(), total=agg.sum("v"), each=agg.list("v")).accumulation("retracting")
    harness = base.messages(("part", "at"), retain=ts.Retention(bytes=700)).harness(MESSAGES, store=STORE)
    panes, kept = [], []
    for batch in stream(2, batches=10, size=20):
        panes += harness.feed(message_table([*batch, *batch[:5]])).to_pylist()
        kept.append(harness.state("messages").num_rows)
    assert max(kept) < 100 < harness.counters()["accepted"]
    assert sum(harness.counters().get(reason, 0) for reason in ("very_late", "out_of_retention")) > 10
    assert len(panes) > 50
    assert all((pane["n"], pane["total"]) == (len(pane["each"]), sum(pane["each"])) for pane in panes)


def test_how_messages_are_known_does_not_change_in_a_job(tmp_path: Path) -> None:
    grouped = ts.stream(event_time="t").group_by("k").window(ts.sessions("5 s"))
    base = grouped.aggregate(n=agg.count(), each=agg.list("v"))
    limited = base.messages(("part", "at"), retain=ts.Retention(messages=9))
    limited.harness(SCHEMA, folder=tmp_path, partitions=2).feed(table([Row(0, 1, 1, "a", 0)]))
    others = [
        base,
        base.messages("at"),
        base.messages(("part", "at")),
        base.messages(("part", "at"), retain=ts.Retention(bytes=9)),
        base.messages(("part", "at"), retain=ts.Retention(messages=9, span="9 microseconds")),
        base.messages(("part", "at"), retain=ts.Retention(messages=9, slot=9)),
        limited.allowed_lateness("5 minutes"),
        limited.allowed_lateness(rule="window"),
    ]
    for other in others:
        with pytest.raises(IncompatibleError, match="configuration-changed"):
            other.harness(SCHEMA, folder=tmp_path)
    limited.allowed_lateness(future_tolerance="1 hour").harness(SCHEMA, folder=tmp_path).feed(
        table([Row(0, 1, 1, "a", 0)])
    )


def test_the_last_aggregate_that_reads_messages_stays(tmp_path: Path) -> None:
    base = ts.stream(event_time="t").group_by("k").window(ts.tumbling("10 seconds"))
    several = base.aggregate(n=agg.count(), each=agg.list("v"), middle=agg.median("v")).messages(("part", "at"))
    several.harness(SCHEMA, folder=tmp_path).feed(table([Row(0, 1, 1, "a", 0)]))
    one = base.aggregate(n=agg.count(), middle=agg.median("v")).messages(("part", "at"))
    one.harness(SCHEMA, folder=tmp_path).feed(table([Row(0, 2, 1, "a", 4)]))
    with pytest.raises(IncompatibleError, match="keep an aggregate that needs them"):
        base.aggregate(n=agg.count()).messages(("part", "at")).harness(SCHEMA, folder=tmp_path)
    assert one.harness(SCHEMA, folder=tmp_path).finish()["middle"].to_pylist() == [2]


@pytest.mark.parametrize("late", few([None, "5 seconds"], 1))
def test_a_retention_by_time_becomes_more_or_less(late: str | None, tmp_path: Path) -> None:
    base = (
        ts.stream(event_time="t")
        .group_by("k")
        .window(ts.tumbling("10 seconds"))
        .aggregate(n=agg.count(), each=agg.list("v"))
    )
    base = base if late is None else base.allowed_lateness(late)
    fired = []
    for at, (seconds, time) in enumerate([(300, 300), (20, 310), (20, 400), (900, 410), (900, 100)]):
        kept = base.messages(("part", "at"), retain=ts.Retention(span=f"{seconds} seconds"))
        harness = kept.harness(SCHEMA, folder=tmp_path, store=STORE)
        fired += [(row["n"], row["each"]) for row in harness.feed(table([Row(0, at, time, "a", at)])).to_pylist()]
    assert fired == [(1, [0]), (1, [1]), (1, [2])]
    assert sum(harness.counters().get(name, 0) for name in ("very_late", "out_of_retention")) == 1
    assert sorted(harness.state("messages")["offset"].to_pylist()) == [2, 3]


def test_a_horizon_moves_with_its_partition(tmp_path: Path) -> None:
    base = (
        ts.stream(event_time="t")
        .group_by("k")
        .window(ts.tumbling("5 s"))
        .aggregate(n=agg.count(), each=agg.list("v"))
    )
    limited = base.messages(("part", "at"), retain=ts.Retention(messages=4))
    harness = limited.harness(SCHEMA, folder=tmp_path, partitions=3, store=STORE)
    rows = [Row(0, n, n, "abcdefgh"[n % 8], n) for n in range(120)]
    for first in range(0, 120, 20):
        if first % 60 == 40:
            rescale(tmp_path, 1 + first // 60 % 4)
            harness.restart()
        panes = harness.feed(table([*rows[first : first + 20], *rows[max(0, first - 30) : first]])).to_pylist()
        assert all(pane["n"] == len(pane["each"]) for pane in panes)
    counters = harness.counters()
    assert (counters["accepted"], harness.ledger().num_rows) == (120, counters.get("out_of_retention", 0))
    assert harness.state("messages").num_rows < 60


ORDERS: list[tuple[str, int, int, str]] = [
    ("9:00:00", 1, 0, "8:59:10"),
    ("9:00:59", 2, 5, "9:00:01"),
    ("9:02:01", 3, 9, "8:59:30"),
]
"""Case 1 of SAMZA-552: system wall clock, offset, value and time of m1, m2 and m3."""


@pytest.mark.parametrize(
    ("described", "window", "outputs"),
    [
        ("tuples", ts.offset_windows(3, start=1, late=3), {"9:01:00": [(1, 5)], "9:02:01": [(1, 9)]}),
        (
            "times",
            ts.tumbling("1 minute"),
            {"9:01:00": [("8:59:00", 0), ("9:00:00", 5)], "9:03:00": [("8:59:00", 9)]},
        ),
    ],
)
def test_case_1_of_the_design(described: str, window: Any, outputs: dict[str, list[tuple[Any, int]]]) -> None:
    """ "compute a result {wnd=[1,3], value=5} … update the result to {wnd=[1,3], value=9}"; "re-compute the result
    {wnd=[8:59:00, 8:59:59], value=9}". The first window of tuples is full with m3, so that update does not wait.
    """
    by_time = described == "times"
    stream = ts.stream(event_time="t", watermark_delay="1 hour") if by_time else ts.stream()
    highest = stream.group_by().window(window).aggregate(value=agg.max("v"), of=agg.list("at"))
    every_minute = trigger.every_processing_time("1 minute")
    job = highest.messages("at").trigger(early=every_minute, only_updated=True).harness(SCHEMA)
    arrivals = {clock: Row(0, offset, at(time), "", value) for clock, offset, value, time in ORDERS}
    observed: dict[str, list[tuple[Any, int]]] = {}
    for clock in ("9:00:00", "9:00:59", "9:01:00", "9:02:00", "9:02:01", "9:03:00", "9:04:00"):
        panes = [job.advance_processing_time(at(clock) * SECOND)]
        panes += [job.feed(table([arrivals[clock]]))] if clock in arrivals else []
        for row in (row for part in panes for row in part.to_pylist()):
            start = row["window_start"]
            observed.setdefault(clock, []).append((f"{start:%-H:%M:%S}" if by_time else start, row["value"]))
    assert {clock: sorted(rows) for clock, rows in observed.items()} == outputs


def at(clock: str) -> int:
    """Seconds of a time of day."""
    hours, minutes, seconds = map(int, clock.split(":"))
    return (hours * 60 + minutes) * 60 + seconds
