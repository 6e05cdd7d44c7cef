"""Session joins by offsets against brute force, in every runner of one process: rows are numbered by one log."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.command import json_lines, tidestate
from tests.helpers.process import SCRATCH, examples, few, in_turn
from tests.helpers.two_streams import STORES, TIME, Row, bound
from tests.twins.sessions import ENDED, Brute, Pair
from tidestate import JoinedStream, JoinOperator, UsageError, agg, watermark
from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.describe.chain import Chain
from tidestate.operators.inspect.query import query
from tidestate.operators.local.harness import Harness
from tidestate.statestore.spec.store import StoreConfig

COLUMNS = [("part", pa.string()), ("offset", pa.int64()), ("k", pa.string())]
LEFT, RIGHT = (pa.schema([*COLUMNS, (name, pa.int64())]) for name in ("price", "cost"))
SIDES = {"left": LEFT, "right": RIGHT}


LOG = {"offset": "offset", "origin": "part"}


def joined(
    left: dict[str, Any] = LOG, right: dict[str, Any] = LOG, starts: Any = (None, None), **more: Any
) -> JoinedStream:
    """Of two streams with these settings."""
    one, other = (ts.stream(**settings) for settings in (left, right))
    sides = {side: ts.side(start=start) for side, start in zip(SIDES, starts, strict=True)}
    return one.join_sessions(other, **{"on": "k", "offsets": 3, **sides} | more)


def sided(rows: list[Row]) -> dict[str, pa.Table]:
    made = {}
    for side, schema in SIDES.items():
        own = [(f"{side} log", row.at, row.key, row.value) for row in rows if row.side == side]
        columns = [pa.array([row[i] for row in own], one.type) for i, one in enumerate(schema)]
        made[side] = pa.table(columns, schema=schema)
    return made


class Line(Brute):
    """Sessions of numbers instead of times: each row once, none before the start. How far the input has come is the
    smallest of the largest numbers of the sides, and one more.
    """

    def __init__(
        self, how: str, offsets: int, late: int, starts: tuple[int, int], *, keyed: bool, apart: bool
    ) -> None:
        super().__init__(how, offsets, late, keyed, apart)
        self.start = dict(zip(SIDES, starts, strict=True))
        self.seen, self.largest, self.again = set[tuple[str, int]](), dict[str, int](), 0

    def add(self, batch: list[Row]) -> None:
        fresh = []
        for row in batch:
            late = self.watermark is not None and row.at + (self.gap or 0) + self.late <= self.watermark
            if row.at < self.start[row.side]:
                self.largest[row.side] = max(self.largest.get(row.side, 0), row.at)
            elif late:
                self.rejected += 1
            else:
                self.largest[row.side] = max(self.largest.get(row.side, 0), row.at)
                self.again += (row.side, row.at) in self.seen
                fresh += [] if (row.side, row.at) in self.seen else [row]
                self.seen.add((row.side, row.at))
        self.batch(fresh)
        if len(self.largest) == 2:
            self.passed(min(self.largest.values()) + 1)

    def windows(self, side: str) -> list[tuple[int, int, int]]:
        held = [(one.start, one.end, sum(row.side == side for row in one.rows)) for one in self.live]
        return sorted(one for one in held if one[2])

    def messages(self, side: str) -> list[int]:
        return sorted(row.at for one in self.live for row in one.rows if row.side == side)


def message(side: str, at: int) -> Row:
    """A row follows from its side and number, so that one that comes again is what it was."""
    return Row(side, "aab"[(at * 7 + (at // 5)) % 3], at, at * 2 + (side == "left"))


rows = st.builds(message, side=st.sampled_from(sorted(SIDES)), at=st.integers(0, 40))


@st.composite
def logs(draw: st.DrawFn) -> list[list[Row]]:
    """A log as it is read: by and large in order, sides that stand still, some rows late or again, some of both."""
    sides = st.sampled_from(["left", "right", "left", "both"])
    behind = draw(st.lists(st.tuples(st.integers(0, 9), sides), max_size=50))
    read = [(max(0, place - lag), side) for place, (lag, side) in enumerate(behind)]
    made = [message(one, at) for at, side in read for one in (sorted(SIDES) if side == "both" else [side])]
    size = draw(st.integers(3, 12))
    return [made[place : place + size] for place in range(0, len(made), size)] or [[]]


@st.composite
def joins(draw: st.DrawFn) -> tuple[JoinedStream, Callable[[], Line]]:
    how, late = draw(st.sampled_from(["inner", "left", "right", "full"])), draw(st.sampled_from([0, 3, 8]))
    offsets = draw(st.sampled_from([1, 3, 6]))
    starts = draw(st.sampled_from([(0, 0), (0, 0), (7, 7), (0, 9), (12, 4)]))
    keyed = draw(st.booleans())
    apart = keyed and draw(st.booleans())
    job = joined(
        starts=starts,
        on="k" if keyed else None,
        session_key=() if apart else None,
        how=how,
        allowed_lateness=late,
        offsets=offsets,
    )
    return job, lambda: Line(how, offsets, late, starts, keyed=keyed, apart=apart)


def observed(panes: pa.Table) -> tuple[Counter[Pair], Counter[Pair]]:
    """What is taken back, and what is observed."""
    assert panes.schema.field("window_start").type == panes.schema.field("window_end").type == pa.int64()
    found: tuple[Counter[Pair], Counter[Pair]] = Counter(), Counter()
    for row in panes.to_pylist():
        values = row["left_price"], row["right_cost"]
        keys = [row[name] if name in row else row["k"] for name in ("left_k", "right_k")]
        sides = [(key, value) if value is not None else (None, None) for key, value in zip(keys, values, strict=True)]
        found[row["kind"] == "emit"][(row["window_start"], row["window_end"], *sides[0], *sides[1])] += 1
    return found


class InHarness:
    def __init__(self, job: JoinedStream, store: StoreConfig, folder: str) -> None:
        self.harness = job.harness(SIDES, store=store, folder=folder, partitions=2)

    def feed(self, batch: list[Row]) -> pa.Table:
        return self.harness.feed(sided(batch))

    def restart(self) -> None:
        self.harness.restart()

    def end(self) -> pa.Table:
        return self.harness.finish()

    def look(self, line: Line) -> None:
        for side in SIDES:
            assert sorted(self.harness.state(side)["offset"].to_pylist()) == line.messages(side)
        assert self.harness.state("sessions").num_rows == self.harness.state("ends").num_rows == len(line.live)
        assert self.harness.ledger().num_rows == line.rejected
        assert self.harness.counters().get("duplicates", 0) == line.again


class Alone:
    def __init__(self, job: JoinedStream, store: StoreConfig, folder: str) -> None:
        self.made = job, store, folder
        self.read: list[dict[str, pa.Table]] = []
        self.restart()

    def restart(self) -> None:
        job, store, folder = self.made
        self.running = job.standalone(checkpoint=folder, store=store, partitions=2)

    def feed(self, batch: list[Row]) -> pa.Table:
        self.read.append(sided(batch))
        return self.running.run(self.read)

    def end(self) -> pa.Table:
        return self.running.run(self.read, drain=True)

    def look(self, line: Line) -> None:
        asked = query(self.made[2])
        check_answers(lambda what, side: getattr(asked, what)(side=side), line)


class ByHand:
    def __init__(self, job: JoinedStream, store: StoreConfig, folder: str) -> None:
        self.made = job, store, folder
        self.running = self.opened()

    def opened(self) -> JoinOperator:
        job, store, folder = self.made
        return job.by_hand(SIDES, checkpoint=folder, store=store, partitions=2)

    def restart(self) -> None:
        self.running.flush()
        self.running.close()
        self.running = self.opened()

    def feed(self, batch: list[Row]) -> pa.Table:
        self.running.add_messages(**sided(batch))
        return self.taken()

    def end(self) -> pa.Table:
        self.running.drain()
        panes = self.taken()
        self.running.close()
        return panes

    def taken(self) -> pa.Table:
        results = self.running.get_result()
        for result in results:
            self.running.acknowledge(result.id)
        nothing = bound(self.made[0], LEFT, RIGHT).pane_schema.empty_table()
        return pa.concat_tables([nothing, *(result.panes for result in results)])

    def look(self, line: Line) -> None:
        check_answers(lambda what, side: getattr(self.running, what)(side), line)
        assert self.running.counters.get("duplicates", 0) == line.again


def check_answers(ask: Callable[[str, str], pa.Table], line: Line) -> None:
    for side in SIDES:
        windows = ask("get_windows", side).select(["window_start", "window_end", "events"])
        assert sorted(tuple(row.values()) for row in windows.to_pylist()) == line.windows(side)
        kept = ask("get_messages", side)
        assert kept["offset"].to_pylist() == line.messages(side)
        assert "time" not in kept.column_names


RUNNERS: dict[str, Callable[[JoinedStream, StoreConfig, str], InHarness | Alone | ByHand]] = {
    "harness": InHarness,
    "standalone": Alone,
    "by hand": ByHand,
}


@pytest.mark.slow
@pytest.mark.parametrize(("runner", "store"), few(in_turn(RUNNERS, STORES), 0, 2))
def test_what_is_emitted_is_the_product_of_sessions(runner: str, store: str) -> None:
    @settings(deadline=None, max_examples=examples(16))
    @given(joins(), st.one_of(logs(), st.lists(st.lists(rows, max_size=8), min_size=1, max_size=5)), st.booleans())
    def check(made: tuple[JoinedStream, Callable[[], Line]], batches: list[list[Row]], restart: bool) -> None:
        job, line = made[0], made[1]()
        with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
            running = RUNNERS[runner](job, STORES[store], folder)
            net: Counter[Pair] = Counter()
            for batch in batches:
                line.add(sorted(batch, key=lambda row: row.side))
                net = settled(running.feed(batch), net)
                assert net == line.observed()
                if restart:
                    running.restart()
                running.look(line)
            line.passed(ENDED)
            assert settled(running.end(), net) == line.observed()

    check()


def settled(panes: pa.Table, net: Counter[Pair]) -> Counter[Pair]:
    gone, come = observed(panes)
    assert not gone - net, "nothing is taken back that was not observed"
    assert not gone & come, "and nothing that is observed again as it was"
    return net - gone + come


def fed(harness: Harness, *batch: tuple[str, int, str]) -> list[tuple[Any, ...]]:
    panes = harness.feed(sided([Row(side, key, at, at) for side, at, key in batch]))
    names = ["window_start", "window_end", "left_price", "right_cost"]
    return [tuple(row.values()) for row in panes.select(names).to_pylist()]


def test_a_side_that_stands_still_holds_sessions_open(tmp_path: Path) -> None:
    harness = joined().harness(SIDES, folder=tmp_path)
    assert fed(harness, ("left", 1, "a"), ("right", 2, "a")) == []
    for at in range(10, 50, 10):
        assert fed(harness, ("left", at, "b")) == []
    assert query(tmp_path).watermark_us == 3, "the offset after the largest of the right side"
    assert fed(harness, ("right", 3, "b")) == []
    assert fed(harness, ("right", 4, "b")) == [(1, 5, 1, 2)]


def test_an_idle_side_does_not_if_that_is_asked_for(tmp_path: Path) -> None:
    left, right = (ts.stream(**LOG).watermark(idle_timeout="10 seconds") for _ in SIDES)
    harness = left.join_sessions(right, on="k", offsets=3, how="left").harness(SIDES, folder=tmp_path)
    assert fed(harness, ("left", 1, "a"), ("right", 2, "a"), ("left", 30, "b")) == []
    harness.advance_processing_time(9_000_000)
    assert fed(harness, ("left", 40, "b")) == []
    panes = harness.advance_processing_time(12_000_000)
    assert panes["left_price"].to_pylist() == [1, 30]
    assert query(tmp_path).watermark_us == 41


def test_each_side_has_one_origin_for_good(tmp_path: Path) -> None:
    harness = joined().harness(SIDES, folder=tmp_path)
    harness.feed(sided([message("left", 1), message("right", 2)]))
    other = sided([message("right", 3)])["right"].set_column(0, "part", pa.array(["left log"]))
    for _ in range(2):
        with pytest.raises(UsageError, match=r"\[several-origins\] column=right_part"):
            harness.feed({"right": other})
        harness.restart()
    assert harness.feed(sided([message("right", 9)])).num_rows == 0


def test_offsets_that_are_none_are_in_the_ledger_and_move_nothing(tmp_path: Path) -> None:
    harness = joined(starts=(2, 2)).harness(SIDES, folder=tmp_path)
    harness.feed(sided([message("left", 5), message("right", 5)]))
    for bad in (None, -1, 2**58):
        rows = sided([message("left", 7)])["left"].set_column(1, "offset", pa.array([bad], pa.int64()))
        harness.feed({"left": rows})
    assert harness.ledger()["reason"].to_pylist() == ["bad_offset"] * 3
    assert query(tmp_path).watermark_us == 6
    fed(harness, ("left", 1, "a"), ("right", 900, "a"), ("left", 901, "a"), ("left", 0, "a"))
    assert harness.ledger().num_rows == 3, "a row before the start is no late one"


@pytest.mark.long
def test_watermarks_are_printed_as_the_offsets_they_are(tmp_path: Path) -> None:
    joined().standalone(checkpoint=tmp_path).run([sided([message("left", 5), message("right", 7)])])
    lines = [line.split() for line in tidestate("show", tmp_path).stdout.splitlines()]
    assert ["watermark", "6", "(before:", "-)"] in lines
    assert [line[:3] for line in lines if line[:1] in (["left"], ["right"])] == [
        ["left", "6", "-"],
        ["right", "8", "-"],
    ]
    listed = json_lines(tidestate("list", tmp_path, "--json"))
    assert [row["watermark"] for row in listed] == [None, "6"]
    tidestate("report", tmp_path, "--output", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "1970-01-01" not in page
    assert "behind processing time<" not in page


OF_TIME: dict[str, Any] = {"left": {"event_time": "t"}, "right": {"event_time": "t"}, "offsets": None, "gap": "1 s"}
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a gap too": (lambda: joined(gap="3 s"), "session-gap"),
    "a gap of its own too": (lambda: joined(gap_column="g"), "session-gap"),
    "no offset": (lambda: joined({}, {}), "offset"),
    "an offset of one side": (lambda: joined(right={}), "offset"),
    "no offsets at all": (lambda: joined(offsets=0), "window-count"),
    "late by a time": (lambda: joined(allowed_lateness="3 s"), "window-late"),
    "late before it is": (lambda: joined(allowed_lateness=-1), "window-late"),
    "a start before all": (lambda: joined(starts=(-1, -1)), "window-start"),
    "a start that is none": (lambda: joined(starts=("x", "x")), "argument"),
    "a start of one side before all": (lambda: joined(starts=(1, -1)), "window-start"),
    "on the offset": (lambda: joined(on="offset"), "key-columns"),
    "a start of sessions of time": (lambda: joined(**OF_TIME, starts=(3, 3)), "window-start"),
    "late by a number": (lambda: joined(**OF_TIME, allowed_lateness=3), "span"),
    "no time": (lambda: joined({}, {}, offsets=None, gap="1 s"), "event-time"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_senseless_joins_are_refused(name: str) -> None:
    join, code = REFUSED[name]
    with pytest.raises(UsageError, match=rf"\[{code}\]"):
        join()


@pytest.mark.parametrize("setting", [{"event_time": "t"}, {"watermark_delay": "1 s"}], ids=["a time", "a delay"])
def test_times_of_the_streams_have_no_effect(setting: dict[str, Any]) -> None:
    assert joined(LOG | setting, LOG | setting).graph.description == joined().graph.description


def test_what_has_no_meaning_for_offsets_is_refused() -> None:
    by_events = watermark.bounded(column="time", quiet="5 seconds")
    settings = watermark.cti_settings("adjust", generate=watermark.generate_ctis(1))
    for generator in (
        watermark.bounded("5 seconds", "time"),
        watermark.over(by_events, idle_timeout="1 minute"),
        watermark.over(watermark.bounded(column="time"), by="k"),
        watermark.bounded(column="left_price"),
        watermark.fixed("1 second"),
    ):
        with pytest.raises(UsageError, match=r"\[offset\]"):
            bound(joined(watermark=generator), LEFT, RIGHT)
    left, right = (ts.stream(**LOG).watermark(watermark.ctis(settings)) for _ in SIDES)
    with pytest.raises(UsageError, match=r"\[offset\]"):
        bound(left.join_sessions(right, on="k", offsets=3), LEFT, RIGHT)
    text = pa.schema([(name, pa.string() if name == "offset" else kind) for name, kind in COLUMNS])
    with pytest.raises(UsageError, match=r"\[offset\]"):
        joined().harness({"left": text, "right": RIGHT})


def test_an_operator_has_no_offsets_to_join_by() -> None:
    timed = ts.stream(event_time="t").group_by("k").window(ts.tumbling("1 hour"))
    hourly = timed.aggregate(n=agg.count()).named("hourly")
    with pytest.raises(UsageError, match=r"\[offset\]"):
        ts.stream("log", **LOG).join_sessions(hourly, on="k", offsets=3)
    # As no verb makes it.
    onto = Chain(
        name="session_joined",
        operators=(hourly.graph.description, joined({"offset": "offset"}, {"offset": "n"}).graph.description),
        inputs=(("input",), ("log", "hourly")),
    )
    with pytest.raises(UsageError, match=r"\[chain-time\]"):
        bind_graph(onto, {"log": pa.schema([*COLUMNS, ("t", TIME)]), "input": pa.schema([*COLUMNS, ("t", TIME)])})


def test_what_reads_sessions_of_offsets_has_no_time() -> None:
    after = joined().timed_by("window_end").group_by("k").window(ts.tumbling("1 hour")).aggregate(n=agg.count())
    with pytest.raises(UsageError, match=r"\[(chain-time|event-time-type)\]"):
        after.harness(SIDES)
