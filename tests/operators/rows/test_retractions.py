"""Streams that say that their rows take others back, as panes of another job do; and what is not clear about it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.outputs import net_of
from tests.helpers.process import examples
from tidestate import agg
from tidestate.operators.bind import graph as binding
from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.describe.altered import Altered
from tidestate.operators.describe.deduplicate import Deduplicate
from tidestate.operators.describe.union import Union
from tidestate.statestore.errors import IncompatibleError, UsageError
from tidestate.statestore.spec.tables import TIME

EVENTS = pa.schema([("at", TIME), ("k", pa.string()), ("v", pa.int64())])
LATE = "1 hour"
Event = tuple[int, str, int]


def of_events(*events: Event) -> pa.Table:
    times, keys, values = ([event[number] for event in events] for number in range(3))
    moments = pa.array([1_000_000 * second for second in times], pa.int64()).cast(TIME)
    return pa.table([moments, pa.array(keys, pa.string()), pa.array(values, pa.int64())], schema=EVENTS)


def per_key() -> ts.Aggregation:
    windows = ts.stream(event_time="at").group_by("k").window(ts.tumbling("10 seconds"))
    results = windows.aggregate(n=agg.count(), total=agg.sum("v"))
    return results.allowed_lateness(LATE).accumulation("retracting").named("per_key")


def per_minute(panes: Any) -> ts.Aggregation:
    groups = panes.group_by().window(ts.tumbling("1 minute"))
    results: ts.Aggregation = groups.aggregate(
        keys=agg.count(), s=agg.sum("n"), most=agg.max("total"), apart=agg.count_distinct("k")
    )
    return results.allowed_lateness(LATE).accumulation("retracting").named("per_minute")


def split(panes: pa.Table) -> dict[str, pa.Table]:
    """Panes as the rows of two streams, by key."""
    is_left = pc.equal(panes["k"], "x")
    return {"left": panes.filter(is_left), "right": panes.filter(pc.invert(is_left))}


def said(name: str | None = None) -> ts.Stream:
    return ts.stream(name, event_time="window_start", retractions=True)


def refused(code: str, make: Callable[[], Any]) -> None:
    with pytest.raises((UsageError, IncompatibleError)) as error:
        make()
    assert error.value.code == code


WAYS: dict[str, Callable[[], Any]] = {
    "windows": lambda: per_minute(said()),
    "filtered": lambda: per_minute(said().where("n > 0").with_columns(twice="n * 2")),
    "shift": lambda: per_minute(said().shift_time("0 seconds", duration="1 second", end="until")),
    "union": lambda: per_minute(ts.union(left=said("left"), right=said("right")).timed_by("time")),
    "union of filters": lambda: per_minute(
        ts.union(left=said("left").where("n > 0"), right=said("right").where("n > 0"))
    ),
    "merge": lambda: ts.merge(left=said("left"), right=said("right")).sharing("kind", "n", "total", "k"),
}


def described(way: str) -> Any:
    stream = WAYS[way]()
    return per_minute(stream) if way == "merge" else stream


@pytest.mark.parametrize("way", WAYS)
def test_panes_of_another_job_count_as_they_do_in_one(way: str) -> None:
    seconds = st.integers(0, 100)

    @settings(deadline=None, max_examples=examples(40))
    @given(st.lists(st.lists(st.tuples(seconds, st.sampled_from("xyz"), st.integers(0, 9)), max_size=6), max_size=5))
    def check(batches: list[list[Event]]) -> None:
        first, one_job = per_key().harness(EVENTS), per_minute(per_key().timed_by("window_start")).harness(EVENTS)
        job = described(way)
        panes, panes_of_one = [], []
        for batch in batches:
            panes.append(first.feed(of_events(*batch)))
            panes_of_one.append(one_job.feed(of_events(*batch)))
        panes.append(first.finish())
        panes_of_one.append(one_job.finish())
        streams = job.graph.streams
        second = job.harness(dict.fromkeys(streams, panes[0].schema), partitions=2)
        panes_of_two = [second.feed(split(rows) if len(streams) == 2 else rows) for rows in panes]
        second.restart()
        panes_of_two.append(second.finish())
        assert net_of(pa.concat_tables(panes_of_two)) == net_of(pa.concat_tables(panes_of_one))

    check()


def test_rows_that_name_their_windows_are_taken_back_where_it_is_said(tmp_path: Path) -> None:
    """Elsewhere a batch that retracts is refused, as it would be counted twice."""
    first = per_key().harness(EVENTS, folder=tmp_path / "panes")
    panes = [first.feed(of_events((1, "x", 1), (60, "x", 1))), first.feed(of_events((2, "x", 5))), first.finish()]
    assert "retract" in panes[1]["kind"].to_pylist()
    results = ts.stream(retractions=True).group_by("k").aggregate(most=agg.max("total")).accumulation("retracting")
    second = results.allowed_lateness(LATE).harness(panes[0].schema, folder=tmp_path / "said")
    panes_of_results = [second.feed(rows) for rows in panes] + [second.finish()]
    assert sorted(row[-1] for row in net_of(pa.concat_tables(panes_of_results))) == [1, 6]
    silent = ts.stream().group_by("k").aggregate(most=agg.max("total")).harness(panes[0].schema)
    with pytest.raises(UsageError, match="retractions"):
        silent.feed(panes[1])


PANES = pa.schema([("window_start", TIME), ("k", pa.string()), ("n", pa.int64()), ("kind", pa.string())])


def at(**settings_of_stream: Any) -> ts.Stream:
    return ts.stream(event_time="window_start", **settings_of_stream)


def counting(stream: Any) -> Any:
    return stream.group_by().window(ts.tumbling("1 minute")).aggregate(s=agg.sum("n"))


def with_kind(kind: pa.DataType) -> pa.Schema:
    return pa.schema([*[field for field in PANES if field.name != "kind"], ("kind", kind)])


REFUSED: dict[str, tuple[str, Callable[[], Any]]] = {
    "a join": ("chain-retractions", lambda: said("a").join(at(name="b"), on="k", within=("0 s", "1 s"))),
    "a session join": ("chain-retractions", lambda: at(name="a").join_sessions(said("b"), gap="1 minute")),
    "a deduplication": ("chain-retractions", lambda: said().deduplicate("k")),
    "a deduplication of a shift": ("chain-retractions",
                                   lambda: said().shift_time("1 s").deduplicate("k").harness(PANES)),
    "sessions": ("signed", lambda: said().group_by("k").window(ts.sessions("1 minute"))
                 .aggregate(n=agg.count()).harness(PANES)),
    "an aggregate of it": ("signed", lambda: said().group_by("k").window(ts.tumbling("1 minute"))
                           .aggregate(n=agg.list("kind")).harness(PANES)),
    "a filter by it": ("signed", lambda: counting(said().where("kind = 'emit'")).harness(PANES)),
    "a filter by it behind panes": ("signed", lambda: counting(
        counting(at()).accumulation("retracting").named("first").timed_by("window_end").where("kind = 'emit'")
    ).harness(PANES)),
    "an expectation of it": ("signed", lambda: counting(said().expect("e", "kind = 'emit'")).harness(PANES)),
    "a column computed of it": ("signed", lambda: counting(said().with_columns(sort="kind")).harness(PANES)),
    "a shift by it": ("signed", lambda: counting(
        said().shift_time(by=ts.expr("case when kind = 'emit' then interval '1' minute end"))
    ).harness(PANES)),
    "a duration by it": ("signed", lambda: counting(
        said().shift_time("1 s", duration=ts.expr("case when kind = 'emit' then 1 end"), end="until")
    ).harness(PANES)),
    "messages by identity": ("signed", lambda: counting(said()).messages(identity=("k", "n")).harness(PANES)),
    "an aggregate where it": ("signed", lambda: said().group_by("k").window(ts.tumbling("1 minute"))
                              .aggregate(n=agg.count(where="kind = 'emit'")).harness(PANES)),
    "an aggregate of an expression of it": ("signed", lambda: said().group_by("k").window(ts.tumbling("1 minute"))
                                            .aggregate(n=agg.sum(ts.expr("length(kind)"))).harness(PANES)),
    "a computed sign": ("stage-column", lambda: counting(said().with_columns(kind="'emit'")).harness(PANES)),
    "no column": ("column-missing", lambda: counting(said()).harness(PANES.remove(3))),
    "a column of numbers": ("retractions", lambda: counting(said()).harness(with_kind(pa.int64()))),
    "no column of a shift": ("column-missing", lambda: said().shift_time("1 s").harness(PANES.remove(3))),
    "no column of a union": ("column-missing", lambda: ts.union(a=said(), b=said())
                             .harness(dict.fromkeys("ab", PANES.remove(3)))),
    "some sides": ("side-columns", lambda: ts.union(a=said(), b=at())),
    "some sides of a merge": ("side-columns", lambda: ts.merge(a=said("a"), b=at(name="b")).group_by()
                              .window(ts.tumbling("1 minute")).aggregate(n=agg.count())),
    "a merge that does not share it": ("chain-retractions", lambda: ts.merge(a=said("a"), b=said("b")).group_by()
                                       .window(ts.tumbling("1 minute")).aggregate(n=agg.count())
                                       .harness(dict.fromkeys("ab", PANES))),
    "by hand": ("chain-retractions", lambda: counting(said()).by_hand(PANES, checkpoint="/nowhere")),
    "as a key": ("name-taken", lambda: at().group_by("kind").window(ts.tumbling("1 minute"))
                 .aggregate(n=agg.count()).harness(PANES)),
    "as a result": ("name-taken", lambda: at().group_by().window(ts.tumbling("1 minute"))
                    .aggregate(kind=agg.count()).harness(PANES)),
    "as a key of a join": ("name-taken", lambda: at().join(at(), on="kind", within=("0 s", "1 s"))
                           .harness(dict.fromkeys(("left", "right"), PANES))),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    code, make = REFUSED[case]
    refused(code, make)


@pytest.mark.parametrize("case", ["as a key", "as a result", "as a key of a join"])
def test_a_name_that_is_taken_says_how_to_rename(case: str) -> None:
    with pytest.raises(UsageError, match=r"my_kind=col\(\"kind\"\)"):
        REFUSED[case][1]()


def test_panes_that_come_again_count_once_by_an_identity_with_their_kind(tmp_path: Path) -> None:
    """With the same panes once as the reference."""
    first = per_key().harness(EVENTS)
    batches = [of_events((1, "x", 3), (12, "x", 4), (40, "y", 5)), of_events((2, "x", 1), (13, "x", 1))]
    panes = [*(first.feed(batch) for batch in batches), first.finish()]
    assert {"emit", "retract"} == set(pa.concat_tables(panes)["kind"].to_pylist())
    by_identity = per_minute(said()).messages(identity=("window_start", "window_end", "k", "pane", "kind"))
    once = per_minute(said()).harness(panes[0].schema)
    again = by_identity.harness(panes[0].schema, partitions=2, folder=tmp_path / "again")
    panes_once, panes_again = [], []
    for number, rows in enumerate(panes):
        panes_once.append(once.feed(rows))
        panes_again.append(again.feed(pa.concat_tables([*panes[: number + 1], rows])))
        again.restart()
    panes_once.append(once.finish())
    panes_again.append(again.finish())
    assert net_of(pa.concat_tables(panes_again)) == net_of(pa.concat_tables(panes_once)) != {}


@pytest.mark.parametrize("way", ["straight", "moved", "united"])
def test_messages_that_an_operator_of_the_job_corrects_have_no_identity(way: str) -> None:
    """A window's second correction has all that its first one has: it was left out, in silence."""
    panes: Any = retracting()
    if way != "straight":
        panes = panes.timed_by("window_start").shift_time("0 s", duration="1 s", end="until", name="moved")
    if way == "united":
        panes = ts.union(a=panes, b=panes)
    groups = panes.group_by("k").window(ts.tumbling("1 minute")).aggregate(s=agg.sum("n")).allowed_lateness(LATE)
    known = groups.accumulation("retracting").named("last").messages(identity=("window_start", "k", "kind"))
    with pytest.raises(UsageError, match="an operator of the job corrects") as refused:
        known.harness(PANES if way == "straight" else {"a": PANES})
    assert refused.value.code == "signed"


# What is not clear


def retracting() -> ts.Aggregation:
    windows = at(name="a").group_by("k").window(ts.tumbling("10 seconds")).aggregate(n=agg.count())
    return windows.allowed_lateness(LATE).accumulation("retracting").named("first")


OF_OTHERS = pa.schema([("window_start", TIME), ("window_end", TIME), ("k", pa.string()), ("n", pa.int64()),
                       ("kind", pa.string()), ("pane_time", TIME)])  # fmt: skip


UNITED = ["window_start", "window_end", "k", "n", "kind", "pane_time", "until"]
SIDES = {"a": PANES, "b": OF_OTHERS}


def united(side: ts.Stream) -> ts.Aggregation:
    """Panes of an operator, which retracts, and rows of a stream with the same columns."""
    panes = retracting().timed_by("window_start").shift_time("0 s", duration="1 s", end="until", name="moved")
    rows = ts.union(a=panes, b=side.with_columns(until="window_end").select(*UNITED))
    groups = rows.group_by("side").window(ts.tumbling("1 minute")).aggregate(s=agg.sum("n"))
    return groups.allowed_lateness(LATE).accumulation("retracting").named("last")


def test_a_side_that_retracts_beside_one_that_does_not_say_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="chain-retractions") as error:
        united(at(name="b")).harness(SIDES, folder=tmp_path / "silent")
    assert error.value.context["sides"] == ["b_prepared"]
    assert not (tmp_path / "silent" / "manifests").exists(), "nothing has begun"
    refused("chain-retractions", lambda: united(at(name="b")).plan(tmp_path / "new", schema=SIDES))
    harness = united(said("b")).harness(SIDES, folder=tmp_path / "said")
    moments = pa.array([0, 0], pa.int64()).cast(TIME)
    rows = pa.table([moments, moments, ["x", "x"], [5, 5], ["emit", "retract"], moments], schema=OF_OTHERS)
    harness.feed({"a": PANES.empty_table(), "b": rows})
    assert harness.finish()["s"].to_pylist() == []


# Roots that have begun when the name of a column decided


def stored_by_name(operator: Any, *, signed: bool, by_name: bool) -> Any:
    """What such a version made of a description."""
    is_passing = isinstance(operator, Union | Altered | Deduplicate)
    return msgspec.structs.replace(operator, signed=None) if is_passing else operator


ROWS = pa.schema([("window_start", TIME), ("k", pa.string()), ("n", pa.int64()), ("kind", pa.string())])
OLD: dict[str, Callable[[Any], Any]] = {
    "shift": lambda rows: counted(rows.shift_time("1 second", name="moved")),
    "filter": lambda rows: counted(rows.where("n > 0").named("moved")),
    "union": lambda rows: counted(ts.union(a=rows, b=at(name="more"), name="moved")),
    "two in a row": lambda rows: counted(rows.shift_time("1 second", name="moved").shift_time("1 second")),
}


def counted(stream: Any) -> ts.Aggregation:
    results: ts.Aggregation = counting(stream).allowed_lateness(LATE).accumulation("retracting").named("last")
    return results


def rows_of(*rows: tuple[int, int, str]) -> pa.Table:
    times, numbers, kinds = ([row[number] for row in rows] for number in range(3))
    moments = pa.array([1_000_000 * second for second in times], pa.int64()).cast(TIME)
    return pa.table([moments, ["x"] * len(rows), numbers, kinds], schema=ROWS)


FIRST, SECOND = (
    rows_of((1, 3, "sale"), (1, 4, "sale"), (2, 5, "emit"), (3, 7, "retract")),
    rows_of((4, 2, "retract"), (90, 1, "sale")),
)


@pytest.mark.parametrize("name", OLD)
def test_a_root_that_began_by_name_goes_on_so(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job, fresh = OLD[name](at(name="rows")), OLD[name](at(name="rows"))
    streams = dict.fromkeys(job.graph.streams, ROWS)

    def batch(rows: pa.Table) -> dict[str, pa.Table]:
        return {stream: rows if stream == "rows" else rows.slice(0, 0) for stream in streams}

    with monkeypatch.context() as before:
        before.setattr(binding, "knowing_signs", stored_by_name)
        job.harness(streams, folder=tmp_path / "old").feed(batch(FIRST))
        manifest = evidence.manifests(tmp_path / "old")[-1]
        assert "signed" not in manifest["operators"]["moved"]["configuration"]
        assert manifest["operators"]["last"]["configuration"]["signed"] is True
    old, new = job.harness(streams, folder=tmp_path / "old"), fresh.harness(streams, folder=tmp_path / "new")
    assert [record.message for record in caplog.records if "moved has begun" in record.message]
    new.feed(batch(FIRST))
    for harness, total in ((old, 3 + 4 + 5 - 7 - 2), (new, 3 + 4 + 5 + 7 + 2)):
        panes = pa.concat_tables([harness.feed(batch(SECOND)), harness.finish()])
        assert panes.filter(pc.equal(panes["window_start"], panes["window_start"][0]))["s"].to_pylist()[-1] == total
    needs = [evidence.manifests(tmp_path / root)[-1].get("needs", []) for root in ("old", "new")]
    assert ["plain-rows/1" in names for names in needs] == [False, True]


def test_such_a_root_is_silent_once_the_stream_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job = OLD["shift"](at(name="rows"))
    with monkeypatch.context() as before:
        before.setattr(binding, "knowing_signs", stored_by_name)
        job.harness({"rows": ROWS}, folder=tmp_path).feed(FIRST)
    OLD["shift"](said("rows")).harness({"rows": ROWS}, folder=tmp_path)
    assert not caplog.records


def test_a_column_that_comes_later_is_the_users(tmp_path: Path) -> None:
    """The operator has begun without it, so no version has taken it for one of panes."""
    job = at().shift_time("1 second", name="moved")
    job.harness(ROWS.remove(3), folder=tmp_path).feed(FIRST.drop_columns(["kind"]))
    harness = job.harness(ROWS, folder=tmp_path)
    assert harness.feed(SECOND)["kind"].to_pylist() == ["retract", "sale"]
    assert evidence.manifests(tmp_path)[-1]["operators"]["moved"]["configuration"]["signed"] is False


def test_rows_cannot_begin_to_take_others_back(tmp_path: Path) -> None:
    """Windows behind them have state of rows that all counted."""
    OLD["shift"](at(name="rows")).harness({"rows": ROWS}, folder=tmp_path).feed(FIRST)
    refused("configuration-changed", lambda: OLD["shift"](said("rows")).harness({"rows": ROWS}, folder=tmp_path))


def test_a_plan_says_what_a_root_goes_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = OLD["shift"](at(name="rows"))
    with monkeypatch.context() as before:
        before.setattr(binding, "knowing_signs", stored_by_name)
        job.harness({"rows": ROWS}, folder=tmp_path).feed(FIRST)
    plan = job.plan(tmp_path)
    assert (plan.refusals, plan.changes) == ((), ())
    assert any("moved has begun" in note for note in plan.notes)


def test_a_result_called_pane_time_is_no_time_of_panes() -> None:
    """Operators behind it would go by it, with the watermark of window ends."""
    first = at().group_by("k").window(ts.tumbling("1 minute")).aggregate(pane_time=agg.latest("window_start"))
    job = first.allowed_lateness("0 s").group_by().window(ts.tumbling("1 hour")).aggregate(n=agg.count())
    with pytest.raises(UsageError, match="chain-time"):
        bind_graph(job.named("second").graph.description, PANES)
    last = at().group_by("k").window(ts.tumbling("1 minute")).aggregate(pane_time=agg.max("window_start"))
    job = last.allowed_lateness("0 s").group_by().window(ts.tumbling("1 hour")).aggregate(n=agg.count())
    assert bind_graph(job.named("second").graph.description, PANES)
