"""docs/reference/runners.md, tried: each row on a runner without Spark, in the long form on each of them, but for
those that `ELSEWHERE` names a test of; and the tests of it on Spark.

An experiment is a real job with a checked result, and what the table says no to is refused with the code that the
page names.
"""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.checkout import ROOT
from tests.helpers.join_operator_messages import LEFT, RIGHT
from tests.helpers.operator_messages import SCHEMA, SECOND, TIME, Message, table
from tests.helpers.process import LONG
from tests.helpers.runner_inputs import BATCHES, MESSAGES, SIDED, SIDES, WINDOWS, job, sessions_of, time_of
from tests.helpers.runner_services import (
    ASK_RUNS,
    MAKE_ROOTS,
    TRY_STORAGE,
    VERBS,
    answers,
    back_pressure,
    bootstrapped,
    messages,
    no_position,
    not_bootstrapped,
    not_read_again,
    not_retained,
    partitions,
    quiet,
    read_again,
    rebuilt,
    restarted,
    retained,
    sinks,
    verbs,
)
from tests.helpers.runners import RUNNERS, Runner, columns, notes, panes, table_of_runners
from tests.helpers.zoned import installation, without_tzdata
from tidestate import Aggregation, Stream, agg, trigger, watermark
from tidestate.operators import JoinOperator, WindowOperator
from tidestate.operators.expressions.builder import expr
from tidestate.operators.inspect.query import query
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import IncompatibleError, UsageError

Experiment = Callable[[type[Runner], Path], None]


class Row(NamedTuple):
    """What tries a row: an experiment for the runners without Spark, those that are refused, and tests on Spark;
    ``connect``: the one that every run has on Spark Connect, if that is another one.
    """

    here: Experiment
    spark: str
    refused: dict[str, Experiment] = {}
    connect: str = ""


def windows(runner: type[Runner], tmp: Path) -> None:
    for name, (described, wanted) in WINDOWS.items():
        found = runner(described, SCHEMA, tmp / name).run(BATCHES)
        assert columns(found, "window_start", "k", "n", "total") == sorted(
            [(int(s) if "offsets" in name else s, *rest) for s, *rest in wanted], key=repr
        )
    for name, window in (("counted", ts.count_windows(4)), ("global", ts.global_window())):
        found = runner(job(window), SCHEMA, tmp / name).run(BATCHES)
        totals: Counter[str | None] = Counter()
        for row in found:
            totals[row["k"]] += row["total"]
            assert name == "global" or row["n"] <= 4
        assert totals == {
            "a": sum(m.v for m in MESSAGES if m.k == "a"),
            "b": sum(m.v for m in MESSAGES if m.k == "b"),
        }
    late(runner, tmp / "late")


def late(runner: type[Runner], tmp: Path) -> None:
    """A row that is late is taken, one that is later goes to the ledger and comes back by reprocessing."""
    described = (
        job(ts.tumbling("4 seconds"))
        .allowed_lateness("4 seconds", window_timing=True)
        .retain_windows("1 hour")
        .trigger(early=trigger.after_count(2))
    )
    running = runner(described, SCHEMA, tmp)
    running.feed(BATCHES[0])  # the watermark is 4
    running.feed(table([Message("x", 100, 8, "a", 0)]))
    running.feed(table([Message("x", 101, 5, "a", 1000)]))  # at 8: late, by less than 4
    running.feed(table([Message("x", 102, 12, "a", 0)]))
    running.feed(table([Message("x", 103, 5, "a", 5000)]))
    assert running.totals["very_late"] == 1
    timings = [running.totals[f"window_{timing}"] for timing in ("in_time", "past", "future")]
    assert timings == [len(BATCHES[0]) + 1, 1, 2], "by [0, 4), [4, 8) and [8, 12)"
    assert list(evidence.ledger(tmp, ["k", "window_timing"])) == [("a", "past", "very_late", 12 * SECOND)]
    assert (4.0, "a", 2, 1004) in columns(panes(tmp), "window_start", "k", "n", "total")
    running.reprocess()
    running.close()
    assert (4.0, "a", 3, 6004) in columns(panes(tmp), "window_start", "k", "n", "total")


def decoded(runner: type[Runner], tmp: Path) -> None:
    """The windows of texts are those of rows, and what is no object is in the ledger."""
    source = ts.stream(
        event_time="t", offset="at", origin="part", decode=ts.json("value", {"k": "string", "t": TIME, "v": "int64"})
    )
    results = source.group_by("k").window(ts.tumbling("4 seconds")).aggregate(n=agg.count(), total=agg.sum("v"))
    described = results.allowed_lateness("1 hour")
    batches = []
    for batch in BATCHES:
        rows = [{"k": row["k"], "t": row["t"].isoformat(), "v": row["v"]} for row in batch.to_pylist()]
        batches.append(
            batch.select(["part", "at"]).append_column("value", pa.array(map(json.dumps, rows)).cast(pa.binary()))
        )
    bad = batches[0].slice(0, 1).set_column(1, "at", pa.array([1000])).set_column(2, "value", pa.array([b"{"]))
    found = runner(described, batches[0].schema, tmp / "texts").run([batches[0], bad, *batches[1:]])
    assert found == runner(job(ts.tumbling("4 seconds")).allowed_lateness("1 hour"), SCHEMA, tmp / "rows").run(
        BATCHES
    )
    assert [row[:2] for row in evidence.ledger(tmp / "texts", ["value"])] == [(b"{", "undecodable")]


def expected(runner: type[Runner], tmp: Path) -> None:
    """Rows that miss an expectation are in the ledger, or counted; and come back after it was mended."""
    source = ts.stream(event_time="t", offset="at", origin="part")

    def described(condition: str) -> Any:
        rows = source.expect("value", condition).expect("key", "k is not null", otherwise="count")
        results = rows.group_by("k").window(ts.tumbling("4 seconds")).aggregate(n=agg.count(), total=agg.sum("v"))
        return results.allowed_lateness("1 hour").accumulation("retracting")

    strict = runner(described("v > 3"), SCHEMA, tmp / "strict")
    for batch in BATCHES[:-1]:
        strict.feed(batch)
    few = sum(value <= 3 for batch in BATCHES[:-1] for value in batch["v"].to_pylist())
    assert strict.totals["expectation"] == strict.totals["expectation:value"] == few > 0
    assert len(list(evidence.ledger(tmp / "strict", ["v"]))) == few
    strict.close()
    if runner is RUNNERS["by hand"]:
        with pytest.raises(IncompatibleError, match="by hand keeps its settings"):
            runner(described("v >= 0"), SCHEMA, tmp / "strict").feed(BATCHES[-1])
        return
    mended = runner(described("v >= 0"), SCHEMA, tmp / "strict", had=BATCHES[:-1])
    mended.feed(BATCHES[-1])
    mended.reprocess()
    mended.close()
    loose = runner(described("v >= 0"), SCHEMA, tmp / "loose")
    for batch in BATCHES:
        loose.feed(batch)
    loose.close()
    nets = [
        ts.Root(tmp / name).panes(net=True).to_table().select(["window_start", "k", "n", "total"]).to_pylist()
        for name in ("strict", "loose")
    ]
    assert sorted(map(repr, nets[0])) == sorted(map(repr, nets[1])) != []


def failing(runner: type[Runner], tmp: Path) -> None:
    """A batch with a row that fails it leaves nothing."""
    source = ts.stream(event_time="t", offset="at", origin="part").expect("value", "v < 3", otherwise="fail")
    described = source.group_by("k").window(ts.tumbling("4 seconds")).aggregate(n=agg.count())
    running = runner(described, SCHEMA, tmp)
    with pytest.raises(UsageError) as caught:
        running.feed(BATCHES[0])
    assert caught.value.code == "expectation"
    head = Checkpoint.open(tmp).head()
    assert head is None or not head.manifest.totals.get("expectation")


def no_failing(_: type[Runner], tmp: Path) -> None:
    source = ts.stream(event_time="t", offset="at", origin="part").expect("value", "v < 3", otherwise="fail")
    described = source.group_by("k").window(ts.tumbling("4 seconds")).aggregate(n=agg.count())
    with pytest.raises(UsageError) as caught:
        described.by_hand(SCHEMA, checkpoint=tmp)
    assert caught.value.code == "expectation-by-hand"


def some_rows(runner: type[Runner], tmp: Path) -> None:
    """Counts of rows by a condition and of a computed value are those of Python."""
    stream = ts.stream(event_time="t", offset="at", origin="part").group_by("k").window(ts.tumbling("4 seconds"))
    results = {"fourth": agg.count(where="at % 4 = 0"), "twice": agg.sum(expr("v * 2"), where="at % 2 = 0")}
    described = stream.aggregate(n=agg.count(), **results).allowed_lateness("1 hour").accumulation("retracting")
    found = runner(described, SCHEMA, tmp).run(BATCHES)
    wanted: dict[tuple[float, str | None], list[int]] = {}
    for row in MESSAGES:
        counts = wanted.setdefault((float(time_of(row) // 4 * 4), row.k), [0, 0, 0])
        counts[0] += 1
        counts[1] += row.at % 4 == 0
        counts[2] += 2 * row.v if row.at % 2 == 0 else 0
    got = {
        (start, k): [n, fourth, twice or 0]
        for start, k, n, fourth, twice in columns(found, "window_start", "k", "n", "fourth", "twice")
    }
    assert got == wanted
    assert any(0 < fourth < n for n, fourth, _ in got.values())


def shown(runner: type[Runner], tmp: Path) -> None:
    """Of the windows those with an odd number of rows, with the mean that is derived of two results."""
    stream = ts.stream(event_time="t", offset="at", origin="part").group_by("k").window(ts.tumbling("4 seconds"))
    described = stream.aggregate(n=agg.count(), total=agg.sum("v")).derive(mean="total / n").having("n % 2 = 1")
    described = described.allowed_lateness("1 hour").accumulation("retracting")
    found = columns(runner(described, SCHEMA, tmp).run(BATCHES), "window_start", "k", "mean")
    values: dict[tuple[float, str | None], list[int]] = {}
    for row in MESSAGES:
        values.setdefault((float(time_of(row) // 4 * 4), row.k), []).append(row.v)
    odd = [(*key, sum(of_window) / len(of_window)) for key, of_window in values.items() if len(of_window) % 2]
    assert found == sorted(odd, key=repr)
    assert 0 < len(odd) < len(values)


def computed(runner: type[Runner], tmp: Path) -> None:
    """The windows of rows that are filtered and computed in the job are those of rows that came like that."""
    source = ts.stream(event_time="t", offset="at", origin="part").where("v > 3").with_columns(v="v * 2 + at")
    results = source.group_by("k").window(ts.tumbling("4 seconds")).aggregate(n=agg.count(), total=agg.sum("v"))
    found = runner(results.allowed_lateness("1 hour"), SCHEMA, tmp / "stages").run(BATCHES)
    rows = []
    for batch in BATCHES:
        kept = batch.filter(pc.greater(batch["v"], 3))
        values = pc.add(pc.multiply(kept["v"], 2), kept["at"])
        rows.append(kept.set_column(kept.schema.get_field_index("v"), "v", values))
    plain = job(ts.tumbling("4 seconds")).allowed_lateness("1 hour")
    assert found == runner(plain, SCHEMA, tmp / "rows").run(rows) != []


def local_hours(runner: type[Runner], tmp: Path) -> None:
    """Windows of the hours in Kathmandu, by rules that readers take from the manifest."""
    hour = expr("date_format(t, 'HH:mm', zone => 'Asia/Kathmandu')")
    source = ts.stream(event_time="t", offset="at", origin="part").with_columns(k=hour)
    results = source.group_by("k").window(ts.tumbling("4 seconds")).aggregate(n=agg.count())
    found = runner(results.allowed_lateness("1 hour"), SCHEMA, tmp).run(BATCHES)
    with installation(without_tzdata):
        assert panes(tmp) == found
    clock = ZoneInfo("Asia/Kathmandu")
    times = [time for batch in BATCHES for time in batch["t"].to_pylist()]
    wanted = Counter(f"{time.astimezone(clock):%H:%M}" for time in times)
    counted = Counter[str]()
    for row in found:
        counted[row["k"]] += row["n"]
    assert counted == wanted


def taken_back(runner: type[Runner], tmp: Path) -> None:
    """Rows that a stream takes back are in no result."""
    order = {"event_time": "t", "offset": "at", "origin": "part"}
    signed_batches = [batch.append_column("kind", pa.array(["emit"] * batch.num_rows)) for batch in BATCHES]
    retractions = BATCHES[0].slice(0, 2).append_column("kind", pa.array(["retract"] * 2))
    results = [
        runner(of(source), batches[0].schema, tmp / name).run(batches)
        for name, source, batches in (
            ("signed", ts.stream(**order, retractions=True), [*signed_batches, retractions]),  # type: ignore[arg-type]
            ("plain", ts.stream(**order), [BATCHES[0].slice(2), *BATCHES[1:]]),  # type: ignore[arg-type]
        )
    ]
    signed, plain = (columns(rows, "window_start", "k", "n", "total") for rows in results)
    assert signed == plain != []


def not_taken_back(_: type[Runner], tmp: Path) -> None:
    with pytest.raises(UsageError) as refused:
        of(ts.stream(event_time="t", offset="at", retractions=True)).by_hand(SCHEMA, checkpoint=tmp / "root")
    assert refused.value.code == "chain-retractions"
    assert not (tmp / "root").exists()


def several_outputs(runner: type[Runner], tmp: Path) -> None:
    """Each of two outputs has what its operator alone emits, and so have its sinks."""
    events = ts.stream(event_time="t", offset="at", origin="part")
    jobs = {name: of(events, ts.tumbling(size)).named(name) for name, size in (("short", "2 s"), ("long", "6 s"))}
    taken: dict[str, list[pa.Table]] = {name: [] for name in jobs}
    sinks_of_outputs = {name: lambda rows, _, name=name: taken[name].append(rows) for name in jobs}
    runner(ts.job(*jobs.values()), SCHEMA, tmp / "both", sink=sinks_of_outputs).run(BATCHES)
    for name, described in jobs.items():
        alone = runner(described, SCHEMA, tmp / name)
        alone.run(BATCHES)
        found, wanted = (
            ts.Root(tmp / root).panes(operator=name).to_table().drop_columns(["checkpoint"])
            for root in ("both", name)
        )
        assert found.to_pylist() == wanted.to_pylist() == [row for rows in taken[name] for row in rows.to_pylist()]
        assert found.num_rows > 3


def no_several_outputs(_: type[Runner], tmp: Path) -> None:
    events = ts.stream(event_time="t", offset="at", origin="part")
    both = ts.job(*(of(events).named(name) for name in "ab"))
    with pytest.raises(UsageError) as refused:
        both.by_hand(SCHEMA, checkpoint=tmp)
    assert refused.value.code == "operator-window"


def joins(runner: type[Runner], tmp: Path) -> None:
    rows = {side: [m for m in MESSAGES if m.at % 2 == odd] for odd, side in enumerate(SIDES)}
    pairs = [(a, b) for a in rows["left"] for b in rows["right"] if a.k == b.k]
    by_log = {kind: {m.at: s for s, m in sessions_of(kind)} for kind in ("time", "offset")}
    cases: dict[str, tuple[Any, Callable[[Message, Message], bool]]] = {
        "distance": (
            ts.stream(event_time="t", offset="at").join(
                ts.stream(event_time="t", offset="at"), on="k", within=("-1 second", "2 seconds"), identity=True
            ),
            lambda a, b: -1 <= time_of(b) - time_of(a) <= 2,
        ),
        "window": (
            ts.stream(event_time="t", offset="at").join(
                ts.stream(event_time="t", offset="at"), on="k", window=ts.tumbling("4 seconds"), identity=True
            ),
            lambda a, b: time_of(a) // 4 == time_of(b) // 4,
        ),
        "session": (
            ts.stream(event_time="t", offset="at").join_sessions(
                ts.stream(event_time="t", offset="at"), on="k", gap="2 seconds", identity=True
            ),
            lambda a, b: by_log["time"][a.at] == by_log["time"][b.at],
        ),
        "session of offsets": (
            ts.stream(offset="at").join_sessions(ts.stream(offset="at"), on="k", offsets=2),
            lambda a, b: by_log["offset"][a.at] == by_log["offset"][b.at],
        ),
    }
    for name, (described, meets) in cases.items():
        found = runner(described, SIDES, tmp / name).run(SIDED)
        wanted = [(a.at, b.at) for a, b in pairs if meets(a, b)]
        assert columns(found, "left_at", "right_at") == sorted(wanted, key=repr) != []


def merges(runner: type[Runner], tmp: Path) -> None:
    merged = (
        ts.merge(
            left=ts.stream(event_time="t", offset="at", origin="part"),
            right=ts.stream(event_time="t", offset="at", origin="part"),
        )
        .group_by("k")
        .window(ts.tumbling("4 seconds"))
    )
    described = merged.aggregate(n=agg.count(), left=agg.sum("left_v"), right=agg.sum("right_w")).accumulation(
        "retracting"
    )
    found = runner(described, SIDES, tmp).run(SIDED)
    sums: dict[tuple[float, str | None], list[int]] = {}
    for row in MESSAGES:
        one = sums.setdefault((float(time_of(row) // 4 * 4), row.k), [0, 0, 0])
        one[0] += 1
        one[1 + row.at % 2] += row.v
    wanted = [(start, key, n, left or None, right or None) for (start, key), (n, left, right) in sums.items()]
    got = [
        (*row[:3], row[3] or None, row[4] or None)
        for row in columns(found, "window_start", "k", "n", "left", "right")
    ]
    assert sorted(got, key=repr) == sorted(wanted, key=repr)


CTIS = watermark.ctis(watermark.cti_settings("drop", generate=watermark.generate_ctis(1, delay="0 seconds")))
BY_CTIS, OTHERS_BY_CTIS = (ts.stream(event_time="t", offset="at").watermark(CTIS) for _ in "lr")
OTHERS: dict[str, tuple[Any, bool]] = {
    "overlap_join": (
        BY_CTIS.join_lifetimes(OTHERS_BY_CTIS, on="k"),
        True,
    ),
    "union": (ts.union(left=ts.stream(event_time="t"), right=ts.stream(event_time="t")), True),
    "deduplication": (ts.stream(event_time="t").deduplicate("k", within="1 hour"), False),
    "altered": (ts.stream(event_time="t").shift_time("1 hour"), False),
    "altered by row": (ts.stream(event_time="t").shift_time(expr("at * 1000000 + 3600000000")), False),
    "chain": (
        ts.stream(event_time="t")
        .group_by("k")
        .window(ts.tumbling("2 seconds"))
        .aggregate(n=agg.count())
        .allowed_lateness("0 s")
        .named("one")
        .group_by()
        .window(ts.tumbling("1 hour"))
        .aggregate(n=agg.sum("n"))
        .named("two"),
        False,
    ),
}


def others(runner: type[Runner], tmp: Path) -> None:
    found = {}
    for name, (described, sided) in OTHERS.items():
        schema: Any = dict.fromkeys(SIDES, LEFT) if sided else SCHEMA
        batches = [{side: own.rename_columns(LEFT.names) for side, own in one.items()} for one in SIDED]
        found[name] = runner(described, schema, tmp / name).run(batches if sided else BATCHES)
    pairs = [(a.at, b.at) for a in MESSAGES[::2] for b in MESSAGES[1::2] if (a.k, a.t) == (b.k, b.t)]
    assert columns(found["overlap_join"], "left_at", "right_at") == pairs
    assert columns(found["union"], "side") == [("left",)] * 10 + [("right",)] * 10
    assert columns(found["deduplication"], "at") == [(0,), (1,)]  # the first of each key
    assert columns(found["altered"], "at", "t") == sorted([(m.at, 3600.0 + time_of(m)) for m in MESSAGES], key=repr)
    assert columns(found["altered by row"], "at", "t") == sorted(
        [(m.at, 3600.0 + m.at + time_of(m)) for m in MESSAGES], key=repr
    )
    assert columns(found["chain"], "n") == [(20,)]
    put_back(runner, tmp / "put back")


def put_back(runner: type[Runner], tmp: Path) -> None:
    """A deduplication takes its late rows again, and knows them from then on."""
    running = runner(
        ts.stream(event_time="t").deduplicate("k", within="1 second", allowed_lateness="2 seconds"), SCHEMA, tmp
    )
    for rows in ([(20, "a")], [(18, "b"), (17, "c"), (16, "c")], [(17, "c"), (18, "b")]):
        running.feed(table([Message("x", number, t, k, t) for number, (t, k) in enumerate(rows)]))
        running.reprocess()
    running.close()
    assert columns(panes(tmp), "k", "v") == [("a", 20), ("b", 18), ("c", 17)]
    assert (running.totals["very_late"], running.totals["fed"], running.totals["duplicates"]) == (3, 3, 3)


def no_others(runner: type[Runner], tmp: Path) -> None:
    for name, (described, sided) in OTHERS.items():
        for made in (
            partial(WindowOperator, described.graph.description, SIDES if sided else SCHEMA),
            partial(JoinOperator, described.graph.description, LEFT, RIGHT),
        ):
            with pytest.raises(UsageError, match=r"standalone") as caught:
                made(checkpoint=tmp / name)
            assert caught.value.code == "operator-window"
        assert not (tmp / name).exists()


def of(events: Stream, window: Any = ts.tumbling("4 seconds")) -> Aggregation:  # noqa: B008  immutable
    grouped = events.group_by("k").window(window)
    return grouped.aggregate(n=agg.count(), total=agg.sum("v")).accumulation("retracting")


def ctis(runner: type[Runner], tmp: Path) -> None:
    by_cti = of(ts.stream(event_time="t", offset="at", origin="part").watermark(CTIS))
    behind = Message("x", 50, 3, "a", 99)
    running = runner(by_cti, SCHEMA, tmp / "cti")
    found = running.run([*BATCHES, table([behind])])
    assert columns(found, "window_start", "k", "n", "total") == sorted(WINDOWS["tumbling"][1], key=repr)
    assert running.totals["cti_violation"] == 1
    lifetime = pa.schema([*SCHEMA, ("until", TIME)])
    ends = [pa.array([(time_of(m) + 3) * SECOND for m in MESSAGES[at : at + 5]], TIME) for at in range(0, 20, 5)]
    batches = [batch.append_column("until", end) for batch, end in zip(BATCHES, ends, strict=True)]
    touched = of(ts.stream(event_time="t", lifetime=ts.lifetime("until")), ts.tumbling("4 seconds", of="lifetime"))
    found = runner(touched, lifetime, tmp / "lifetime").run(batches)
    wanted: Counter[float] = Counter()
    for row in MESSAGES:
        wanted.update(float(start) for start in range(time_of(row) // 4 * 4, time_of(row) + 3, 4))
    counted: Counter[float] = Counter()
    for start, n in columns(found, "window_start", "n"):
        counted[start] += n
    assert counted == wanted
    schema = pa.schema([*SCHEMA.remove(0), ("part", "int64"), ("number", "int64"), ("mark", TIME)])
    progress = watermark.buffers(origin="part", sequence="number", watermark="mark")
    numbered = of(ts.stream(event_time="t").watermark(progress))
    made = []
    for number, batch in enumerate(BATCHES, 1):
        rows = [{**row, "part": 1, "number": number, "mark": row["t"]} for row in batch.to_pylist()]
        last = rows[-1]["mark"]
        made.append(pa.Table.from_pylist([{**row, "mark": last} for row in rows], schema))
    buffered = runner(numbered, schema, tmp / "buffers")
    for batch in (made[0], made[2], made[1]):  # the second is waited for
        before = query(tmp / "buffers").watermark_us if batch is made[2] else None
        buffered.feed(batch)
        if batch is made[2]:
            assert query(tmp / "buffers").watermark_us == before
    assert query(tmp / "buffers").watermark_us == time_of(MESSAGES[14]) * SECOND
    buffered.close()


TABLE: dict[str, Row] = {
    "windows of every kind": Row(windows, "test_general.py::test_panes_and_ledger_equal_the_standalone_runner"),
    "joins by distance": Row(joins, "test_joins.py::test_pairs_and_ledger_equal_the_standalone_runner"),
    "merges": Row(merges, "test_merging.py::test_panes_and_ledger_equal_the_standalone_runner"),
    "joins by lifetime": Row(
        others, "test_cti_sides.py::test_panes_and_ledgers_equal_the_standalone_runner", {"by hand": no_others}
    ),
    "messages known": Row(messages, "test_messages.py::test_the_orders_of_the_design"),
    "`get_windows`": Row(answers, "test_questions.py::test_tasks_answer_as_one_process_does"),
    "`sink=`": Row(sinks, "test_job.py::test_a_refused_delivery_comes_again_with_the_same_id"),
    "several outputs": Row(
        several_outputs,
        "test_outputs.py::test_each_output_is_that_of_the_standalone_runner",
        {"by hand": no_several_outputs},
    ),
    "back pressure": Row(
        back_pressure,
        "test_sinks.py::test_a_sink_that_is_not_ready_holds_the_intake_and_the_query_and_its_ui_say_so",
    ),
    "values decoded": Row(decoded, "test_decode.py::test_whoever_reads_the_rows"),
    "aggregates of some rows": Row(
        some_rows, "test_expressed_aggregates.py::test_whoever_reads_the_rows_takes_the_same_ones"
    ),
    "columns derived of results": Row(
        shown, "test_expressed_aggregates.py::test_panes_are_shown_on_spark_as_in_one_process"
    ),
    "rows expected": Row(expected, "test_expectations.py::test_rows_that_miss_them_come_back_on_spark"),
    "the same, which fail": Row(
        failing, "test_expectations.py::test_a_batch_that_fails_stops_the_query", {"by hand": no_failing}
    ),
    "rows left out": Row(computed, "test_compute.py::test_whoever_reads_the_rows"),
    "days and hours": Row(
        local_hours,
        "test_compute.py::test_tasks_go_by_the_rules_of_the_start",
        connect="test_compute.py::test_local_days_are_those_of_the_standalone_runner",
    ),
    "CTIs": Row(ctis, "test_progress.py::test_ctis_and_buffers_are_those_of_the_standalone_runner"),
    "quiet and idle": Row(
        quiet, "test_input_types.py::test_the_last_window_of_a_quiet_source_fires_also_after_a_restart"
    ),
    "several state partitions": Row(partitions, "test_rescale.py::test_from_two_to_five_to_three_partitions"),
    "rebuilding lost": Row(rebuilt, "test_messages.py::test_the_orders_after_the_message_store_was_lost"),
    "reading the source again": Row(
        read_again,
        "test_messages.py::test_a_job_whose_message_store_was_lost_reads_its_files_again_by_itself",
        {"harness": not_read_again, "by hand": not_read_again},
    ),
    "bootstrap from": Row(
        bootstrapped,
        "test_bootstrap.py::test_half_in_a_batch_and_half_streamed",
        {"harness": not_bootstrapped, "by hand": not_bootstrapped},
    ),
    "restart without": Row(
        restarted, "test_job.py::test_a_stopped_job_continues_and_may_change_its_store", {"harness": no_position}
    ),
    "old checkpoints": Row(
        retained, "test_keeping.py::test_a_query_deletes_its_old_checkpoints_itself", {"harness": not_retained}
    ),
    "rows that are taken back": Row(
        taken_back, "test_compute.py::test_rows_that_are_taken_back_by_the_stream", {"by hand": not_taken_back}
    ),
    "every verb": Row(verbs, "test_cli.py::test_checkpoints_say_which_spark_batch_they_hold"),
}
"""By how the row begins."""
TURNS = dict(zip(TABLE, cycle(RUNNERS), strict=False))
"""The runner of a row in the default form. What the others take is also in tests of their own: by hand below
`tests.operators.embedded`, alone and in a harness below `tests.operators.local` and of every operator.
"""
CASES = [
    (row, runner)
    for row, tried in TABLE.items()
    for runner in RUNNERS
    if LONG or runner in tried.refused or runner == TURNS[row]
]


def cell(row: str, runner: str) -> str:
    (cells,) = [cells for first, cells in table_of_runners().items() if first.startswith(row)]
    return cells[runner]


ELSEWHERE = {
    "windows of every kind": "local/test_twin_standalone.py::test_random_jobs_equal_the_twins",
    "rebuilding lost": "embedded/test_window_operator.py::test_a_lost_message_store_is_rebuilt_by_a_replay",
    "back pressure": "engine/test_driver.py::test_a_sink_that_says_no_is_asked_again_and_nothing_is_taken_meanwhile",
    "every verb": "root/test_verbs.py::test_what_is_found_out_is_what_the_verbs_print",
}
"""Rows that are dear, and of which another test has the same on that runner in every run: here in the long form."""


def of_every_run(case: tuple[str, str]) -> Any:
    row, runner = case
    long = row in ELSEWHERE and runner not in TABLE[row].refused
    return pytest.param(row, runner, marks=pytest.mark.long) if long else case


@pytest.mark.slow
@pytest.mark.parametrize(("row", "runner"), [of_every_run(case) for case in CASES])
def test_a_row_on_a_runner(row: str, runner: str, tmp_path: Path) -> None:
    refused = TABLE[row].refused.get(runner)
    assert (refused is not None) == (cell(row, runner).startswith("no") or cell(row, runner) == "–")
    (refused or TABLE[row].here)(RUNNERS[runner], tmp_path)


def test_every_row_is_tried_and_has_a_test_on_spark() -> None:
    rows = table_of_runners()
    assert all(sum(first.startswith(row) for first in rows) == 1 for row in TABLE)
    assert len(rows) == len(TABLE)
    places = [f"spark/{row.spark}" for row in TABLE.values()] + [f"operators/{test}" for test in ELSEWHERE.values()]
    for file, name in (place.split("::") for place in places):
        tree = ast.parse((ROOT / "tests" / file).read_text())
        assert name in {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}
    assert ELSEWHERE.keys() <= TABLE.keys()
    assert all(not cells["Spark"].startswith("no") for cells in rows.values())


def test_what_holds_on_spark_connect_is_tried_there_in_every_run() -> None:
    lines = (ROOT / "tests" / "connect_in_ci.txt").read_text().splitlines()
    tried = {line.partition("[")[0].removeprefix("tests/spark/") for line in lines}
    named = {row for row in TABLE if "also on Spark Connect" in cell(row, "Spark")}
    assert {row for row in named if (TABLE[row].connect or TABLE[row].spark) not in tried} == set()
    assert len(named) > 6


def test_every_verb_of_the_command_is_tried() -> None:
    lines = (ROOT / "docs" / "reference" / "cli.md").read_text().splitlines()
    observed = {line.split("`")[1] for line in lines if line.startswith("| [`")}
    assert observed == set(VERBS) | MAKE_ROOTS | ASK_RUNS | TRY_STORAGE
    assert notes() == set("12345678")


def test_windows_that_rows_name_by_hand_are_refused(tmp_path: Path) -> None:
    schema = pa.schema([*SCHEMA, ("window_start", TIME), ("window_end", TIME)])
    named = ts.stream().group_by("k").aggregate(n=agg.count())
    with pytest.raises(UsageError) as caught:
        WindowOperator(named.graph.description, schema, checkpoint=tmp_path, origin="part", offset="at")
    assert caught.value.code == "operator-window"


@pytest.mark.parametrize("first", RUNNERS)
@pytest.mark.parametrize("second", RUNNERS)
def test_a_checkpoint_belongs_to_the_runner_that_created_it(first: str, second: str, tmp_path: Path) -> None:
    described = job(ts.tumbling("4 seconds")).messages(identity=("part", "at"))
    made = RUNNERS[first](described, SCHEMA, tmp_path)
    made.feed(BATCHES[0])
    made.close()
    if first == second:
        RUNNERS[second](described, SCHEMA, tmp_path, partitions=None).feed(BATCHES[0])
        return
    with pytest.raises(IncompatibleError) as caught:
        RUNNERS[second](described, SCHEMA, tmp_path, partitions=None).feed(BATCHES[0])
    assert caught.value.code == "other-runner"
