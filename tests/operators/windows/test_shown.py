"""Panes that are shown only where a condition holds, and columns derived of results: against the same job without
them, whose panes are judged and computed in Python.
"""

from __future__ import annotations

import pickle
import signal
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.children.shown import numbers, shown_sums
from tests.helpers import evidence
from tests.helpers.command import json_here, tidestate_here
from tests.helpers.forked import Forked
from tests.helpers.process import forget
from tests.twins.naive import Event, Setting
from tests.twins.shown import ShownTwin
from tidestate import agg, trigger
from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.bind.needs import needs_of_graph
from tidestate.operators.describe.configuration import configuration_of, description_of
from tidestate.operators.expressions.builder import col
from tidestate.statestore.errors import IncompatibleError, UsageError

TIME = pa.timestamp("us", "UTC")
SECOND = 1_000_000
SCHEMA = pa.schema({"t": TIME, "k": pa.string(), "v": pa.int64(), "at": pa.int64()})
ROW = st.tuples(st.integers(0, 40), st.sampled_from("ab"), st.none() | st.integers(-3, 9))
BATCHES = st.lists(st.lists(ROW, max_size=5), min_size=1, max_size=7)
WINDOWS: dict[str, Any] = {
    "tumbling": ts.tumbling("10 seconds"),
    "sliding": ts.sliding("10 seconds", "5 seconds"),
    "rolling": ts.rolling("6 seconds"),
    "sessions": ts.sessions("4 seconds"),
    "global": ts.global_window(),
    "counted": ts.count_windows(3),
    "offsets": ts.offset_windows(4, 2),
}
TRIGGERS: dict[str, Callable[[Any], Any]] = {
    "usual": lambda job: job,
    "early": lambda job: job.trigger(early=trigger.each_batch()),
    "counted": lambda job: job.trigger(early=trigger.after_count(2), late=trigger.after_count(2), closing="if_new"),
    "always closing": lambda job: job.trigger(early=trigger.after_count(3), closing="always"),
    "composite": lambda job: job.trigger(when=trigger.repeatedly(trigger.after_count(2))),
    "event time": lambda job: job.trigger(early=trigger.every_event_time("2 seconds")),
    "in order": lambda job: job.in_order(),
    "identity": lambda job: job.messages(),
    "stored": lambda job: job.messages(retain="1 hour"),
    "retained": lambda job: job.retain_windows("1 hour"),
}
Judged = Callable[[dict[str, Any]], bool]
CONDITIONS: dict[str, Judged] = {
    "n >= 2": lambda pane: pane["n"] >= 2,
    "total > 3": lambda pane: pane["total"] is not None and pane["total"] > 3,
    "n % 2 = 1 and k = 'a'": lambda pane: pane["n"] % 2 == 1 and pane["k"] == "a",
    "total is null or total < n": lambda pane: pane["total"] is None or pane["total"] < pane["n"],
    "true": lambda pane: True,
    "null": lambda pane: False,
}


def arriving(batches: list[list[Any]]) -> list[pa.Table]:
    at, tables = 0, []
    for rows in batches:
        columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[]] * 3
        times = pa.array([second * SECOND for second in columns[0]], pa.int64()).view(TIME)
        numbers = pa.array(range(at, at + len(rows)), pa.int64())
        at += len(rows)
        key, value = pa.array(columns[1], pa.string()), pa.array(columns[2], pa.int64())
        tables.append(pa.table([times, key, value, numbers], schema=SCHEMA))
    return tables


def job_of(window: str, mode: str, how: str = "usual", lateness: str = "6 seconds") -> Any:
    grouped = ts.stream(event_time="t", offset="at").group_by("k").window(WINDOWS[window])
    job = grouped.aggregate(n=agg.count(), total=agg.sum("v"))
    if window not in ("offsets", "counted"):
        job = job.allowed_lateness(lateness)
    return TRIGGERS[how](job.accumulation(mode))


def read_again(mode: str, lateness: str = "6 seconds") -> Any:
    """Windows with a list, which read their messages again where these are known."""
    grouped = ts.stream(event_time="t", offset="at").group_by("k").window(WINDOWS["tumbling"])
    results = grouped.aggregate(n=agg.count(), values=agg.list("v")).allowed_lateness(lateness)
    return results.accumulation(mode).messages()


def put_out(job: Any, batches: list[pa.Table]) -> Any:
    """The panes of each batch, and of the end; the code of what refuses the job."""
    harness = job.harness(SCHEMA)
    return [*(harness.feed(batch).to_pylist() for batch in batches), harness.finish().to_pylist()]


def tried(make: Callable[[], Any], batches: list[pa.Table]) -> Any:
    try:
        return put_out(make(), batches)
    except UsageError as error:
        return error.code


def identity(pane: dict[str, Any]) -> tuple[Any, ...]:
    return pane["window_start"], pane["window_end"], pane["k"]


def standing(panes: list[dict[str, Any]], before: dict[Any, Any]) -> dict[Any, Any]:
    """What stands by window and key after these panes; a retraction is of what stands, to the last column."""
    result = dict(before)
    for pane in panes:
        shown = {name: pane[name] for name in pane if name not in ("timing", "kind", "last")}
        if pane["kind"] == "retract":
            assert result.pop(identity(pane)) == shown
        else:
            assert identity(pane) not in result, "the pane before was not taken back"
            result[identity(pane)] = shown
    return result


def results_of(stands: dict[Any, Any]) -> dict[Any, Any]:
    return {key: {name: pane[name] for name in pane if name != "pane"} for key, pane in stands.items()}


@settings(max_examples=settings.default.max_examples * 5)  # type: ignore[union-attr]
@given(BATCHES, st.sampled_from([*WINDOWS]), st.sampled_from([*TRIGGERS]), st.sampled_from([*CONDITIONS]))
@example([[(1, "a", 5)], [(2, "a", 7)], [(3, "a", None)]], "tumbling", "early", "n % 2 = 1 and k = 'a'")
@example([[(1, "a", 5)], [(4, "a", 7)], [(3, "a", 9)]], "sessions", "early", "n % 2 = 1 and k = 'a'")
def test_what_stands_is_what_stood_and_meets_the_condition(
    rows: list[list[Any]], window: str, how: str, condition: str
) -> None:
    batches = arriving(rows)
    plain = tried(lambda: job_of(window, "retracting", how), batches)
    shown = tried(lambda: job_of(window, "retracting", how).having(condition), batches)
    if isinstance(plain, str):
        assert shown == plain
        return
    stood: dict[Any, Any] = {}
    stands: dict[Any, Any] = {}
    emitted = dict[Any, int]()
    for before, after in zip(plain, shown, strict=True):
        stood, stands = standing(before, stood), standing(after, stands)
        met = {key: pane for key, pane in stood.items() if CONDITIONS[condition](pane)}
        assert results_of(stands) == results_of(met)
        for pane in after:
            assert CONDITIONS[condition](pane)
            if pane["kind"] == "emit":
                assert pane["pane"] == emitted.get(identity(pane), 0) or window == "sessions"
                emitted[identity(pane)] = pane["pane"] + 1


@settings(max_examples=settings.default.max_examples * 2)  # type: ignore[union-attr]
@given(
    BATCHES,
    st.sampled_from([*WINDOWS]),
    st.sampled_from(["accumulating", "discarding"]),
    st.sampled_from([*CONDITIONS]),
)
def test_where_each_window_has_one_pane_any_mode_will_do(
    rows: list[list[Any]], window: str, mode: str, condition: str
) -> None:
    batches = arriving(rows)
    plain = tried(lambda: job_of(window, mode, lateness="0 seconds"), batches)
    shown = tried(lambda: job_of(window, mode, lateness="0 seconds").having(condition), batches)
    if isinstance(shown, str):
        assert shown == (plain if isinstance(plain, str) else "having-mode")
        assert window in ("sessions", "global", "offsets", "counted") or isinstance(plain, str)
        return
    assert shown == [[pane for pane in panes if CONDITIONS[condition](pane)] for panes in plain]


def derived(pane: dict[str, Any]) -> dict[str, Any]:
    """What the derived columns of `DERIVED` are, in Python."""
    double = None if pane["total"] is None else 2 * pane["total"]
    more = None if double is None else double + pane["n"]
    return {"double": double, "more": more, "name": f"{pane['k']}{pane['n']}"}


DERIVED = {"double": "total * 2", "more": "double + n", "name": "concat(k, cast(n as string))"}


@settings(max_examples=settings.default.max_examples * 2)  # type: ignore[union-attr]
@given(
    BATCHES,
    st.sampled_from([*WINDOWS]),
    st.sampled_from(["accumulating", "discarding", "retracting"]),
    st.sampled_from([*TRIGGERS]),
)
def test_derived_columns_are_of_the_results_beside_them(
    rows: list[list[Any]], window: str, mode: str, how: str
) -> None:
    batches = arriving(rows)
    plain = tried(lambda: job_of(window, mode, how), batches)
    found = tried(lambda: job_of(window, mode, how).derive(**DERIVED), batches)
    if isinstance(plain, str):
        assert found == plain
        return
    wanted = [[{**pane, **derived(pane)} for pane in panes] for panes in plain]
    assert found == wanted
    assert all(list(pane)[3:8] == ["n", "total", *DERIVED] for panes in found for pane in panes)


@settings(max_examples=settings.default.max_examples)  # type: ignore[union-attr]
@given(BATCHES, st.sampled_from([*CONDITIONS]))
def test_rows_that_are_taken_back_may_hide_a_pane(rows: list[list[Any]], condition: str) -> None:
    """Behind a retracting operator: windows that shrink, and that lose all rows."""

    def chained(shown: str | None) -> Any:
        first = ts.stream(event_time="t").group_by("k").window(ts.tumbling("10 seconds"))
        counts = first.aggregate(v=agg.count()).allowed_lateness("30 seconds").named("counts")
        counts = counts.accumulation("retracting").trigger(early=trigger.each_batch())
        minutes = counts.group_by("k").window(ts.tumbling("1 minute")).aggregate(n=agg.count(where="v > 1"))
        minutes = minutes.derive(total="case when n > 0 then n * 3 end").accumulation("retracting").named("minutes")
        minutes = minutes.trigger(early=trigger.each_batch())
        return minutes if shown is None else minutes.having(shown)

    batches = arriving(rows)
    stood: dict[Any, Any] = {}
    stands: dict[Any, Any] = {}
    for before, after in zip(put_out(chained(None), batches), put_out(chained(condition), batches), strict=True):
        stood, stands = standing(before, stood), standing(after, stands)
        met = {key: pane for key, pane in stood.items() if CONDITIONS[condition](pane)}
        assert results_of(stands) == results_of(met)


def test_worked_out_by_hand() -> None:
    """Two rows: hidden, no number used. One late row: shown, number 0. Its value goes down: taken back, and shown
    again under the next number, as the operator in front corrects what it had counted.
    """
    first = ts.stream(event_time="t").group_by("k", "v").window(ts.tumbling("10 seconds"))
    counts = first.aggregate(c=agg.count()).allowed_lateness("1 hour").accumulation("retracting").named("counts")
    ones = counts.group_by("k").window(ts.tumbling("1 minute")).aggregate(n=agg.count(where="c = 1"))
    job = ones.allowed_lateness("1 hour").accumulation("retracting").having("n >= 3").named("minutes")
    # Three values make three counts of one; a value that comes twice is no longer one.
    batches = arriving(
        [[(1, "a", 1), (2, "a", 2), (70, "z", 0)], [(3, "a", 3)], [(4, "a", 3)], [(5, "a", 4)], [(6, "a", 5)]]
    )
    harness = job.harness(SCHEMA)
    fed = [harness.feed(batch).to_pylist() for batch in batches]
    panes = [[(p["kind"], p["n"], p["pane"], p["timing"]) for p in found] for found in fed]
    assert panes == [
        [],
        [("emit", 3, 0, "late")],
        [("retract", 3, 0, "late")],
        [("emit", 3, 1, "late")],
        [("retract", 3, 1, "late"), ("emit", 4, 2, "late")],
    ]


def test_of_sessions_that_merge_only_what_was_shown_is_taken_back() -> None:
    """Two rows are hidden, another session of one row is shown; a row between them makes one session of four."""
    job = job_of("sessions", "retracting", "early", "1 hour").having("n % 2 = 1").named("sessions")
    harness = job.harness(SCHEMA)
    batches = arriving([[(1, "a", 0), (2, "a", 0)], [(8, "a", 0)], [(5, "a", 0)]])
    panes = [[(pane["kind"], pane["n"]) for pane in harness.feed(batch).to_pylist()] for batch in batches]
    assert panes == [[], [("emit", 1)], [("retract", 1)]]


@pytest.mark.parametrize("store", ["memory", "parquet", "rocksdb"])
def test_a_run_that_is_restarted_goes_on_from_what_was_shown(tmp_path: Path, store: str) -> None:
    rows = [[(1, "a", 5), (2, "a", 7)], [(3, "b", 1), (15, "a", 1)], [(4, "a", 2)], [(30, "b", 9)], [(5, "b", 2)]]
    batches = arriving(rows)
    job = job_of("tumbling", "retracting", "early", "1 hour").derive(**DERIVED).having("more % 2 = 1")
    wanted = [pane for panes in put_out(job, batches) for pane in panes]
    panes = []
    for count in range(1, len(batches) + 1):
        configured: Any = {"store": store} if store != "rocksdb" else {}
        running = job.standalone(checkpoint=tmp_path / "root", partitions=2, **configured)
        panes += running.run(batches[:count], drain=count == len(batches)).to_pylist()
        forget()
    by_text = [sorted(map(repr, some)) for some in (panes, wanted)]
    assert by_text[0] == by_text[1]
    assert any(pane["kind"] == "retract" for pane in panes)


def test_what_is_stored_names_what_a_reader_needs_and_old_forms_stay() -> None:
    plain = job_of("tumbling", "retracting")
    configuration = configuration_of(plain.graph.description)
    assert "having" not in configuration
    described = plain.derive(share=col("total") / col("n")).having(col("share") > 1).graph.description
    stored = configuration_of(described)
    assert stored["aggregates"]["share"]["kind"] == "derived"
    assert stored["having"]["function"] == "gt"
    assert description_of(stored) == described
    needs = [set(needs_of_graph(bind_graph(one, SCHEMA))) for one in (plain.graph.description, described)]
    assert needs[1] - needs[0] == {"derived-results/1", "panes-by-condition/1"}
    text = repr(plain.derive(share="total / n").having("share > 1"))
    assert text.endswith('.derive(share="total / n").having("share > 1")')
    (node,) = bind_graph(described, SCHEMA).nodes
    plan = pickle.loads(pickle.dumps(node.plan))
    assert plan.shown.condition.columns == ("share",)
    assert plan.pane_schema.field("share").type == pa.float64()


def test_settings_replace_what_an_earlier_call_has_set() -> None:
    job = job_of("tumbling", "retracting").derive(a="n + 1").having("n > 1")
    (node,) = bind_graph(job.derive(b="n + 2").having("b > 3").graph.description, SCHEMA).nodes
    assert [bound.name for bound in node.plan.aggregates] == ["n", "total", "b"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: job_of("tumbling", "accumulating").having("n > 1"), "having-mode"),
        (lambda: job_of("tumbling", "discarding").having("n > 1"), "having-mode"),
        (
            lambda: job_of("tumbling", "retracting").trigger(early=trigger.each_element()).having("n > 1"),
            "having-mode",
        ),
        (lambda: read_again("accumulating", "0 seconds").having("n > 1"), "having-mode"),
        (
            lambda: (
                read_again("retracting")
                .trigger(on_time="never", early=trigger.each_batch(), closing="never")
                .having("n > 1")
            ),
            "having-mode",
        ),
        (
            lambda: (
                read_again("retracting")
                .trigger(when=trigger.repeatedly(trigger.after_count(2)), closing="never")
                .having("n > 1")
            ),
            "having-mode",
        ),
        (lambda: job_of("tumbling", "accumulating").messages(retain="1 hour").having("n > 1"), "having-mode"),
        (lambda: job_of("tumbling", "retracting").having("n + 1"), "expression-type"),
        (lambda: job_of("tumbling", "retracting").having("v > 1"), "expression-name"),
        (lambda: job_of("tumbling", "retracting").derive(x="w + 1"), "expression-name"),
        (lambda: job_of("tumbling", "retracting").derive(x="y + 1", y="n"), "expression-name"),
        (lambda: job_of("tumbling", "retracting").derive(n="total"), "aggregate-twice"),
        (lambda: job_of("tumbling", "retracting").derive(kind="n"), "name-taken"),
        (lambda: job_of("tumbling", "retracting").derive(x="hour(window_start, zone => 'Asia/Tokyoo')"), "time-zone"),
    ],
)
def test_what_cannot_hold_is_refused_before_anything_runs(make: Callable[[], Any], code: str) -> None:
    with pytest.raises(UsageError) as caught:
        make().harness(SCHEMA)
    assert caught.value.code == code


def test_columns_derived_of_differences_are_refused() -> None:
    """They would not add up, as the differences themselves do."""
    first = ts.stream(event_time="t").group_by("k").window(ts.tumbling("10 seconds")).aggregate(v=agg.count())
    first = first.accumulation("retracting").allowed_lateness("30 seconds").named("counts")
    minutes = first.group_by().window(ts.tumbling("1 minute")).aggregate(n=agg.sum("v")).named("minutes")
    minutes.accumulation("discarding").harness(SCHEMA)
    with pytest.raises(UsageError) as caught:
        minutes.derive(x="n * 2").accumulation("discarding").harness(SCHEMA)
    assert caught.value.code == "signed"


def test_queries_have_derived_columns_and_windows_that_are_hidden(tmp_path: Path) -> None:
    job = job_of("tumbling", "retracting").derive(double="n * 2", more="double + 1").having("n > 1")
    job.standalone(checkpoint=tmp_path).run(arriving([[(1, "a", 5), (2, "a", 7), (3, "b", 1)], [(12, "a", 1)]]))
    forget()
    windows = ts.Root(tmp_path).windows()
    rows = [(row["k"], row["n"], row["more"], row["shown"], row["panes"]) for row in windows.to_table().to_pylist()]
    assert sorted(rows) == [("a", 1, 3, False, 0), ("a", 2, 5, True, 1), ("b", 1, 3, False, 0)]
    (only,) = ts.Root(tmp_path).windows(key="b", values=["more"]).to_table().to_pylist()
    assert [*only] == ["window_start", "window_end", "k", "more", "shown", "events", "panes"]
    assert (only["more"], only["shown"]) == (3, False)


def test_the_history_of_a_window_says_where_it_is_hidden(tmp_path: Path) -> None:
    rows = [[(1, "a", 5), (20, "z", 1)], [(2, "a", 7)], [(3, "a", 7)], [(4, "a", 7)]]
    job = job_of("tumbling", "retracting", lateness="1 hour").having("n % 2 = 0")
    job.standalone(checkpoint=tmp_path).run(arriving(rows))
    forget()
    history = ts.Root(tmp_path).history(key="a", window="1970-01-01T00:00:00Z")
    told = [(event.checkpoint, event.what) for event in history.events if event.kind in ("pane", "hidden")]
    first = told[0][0]
    assert told == [
        (first, "hidden: having n % 2 = 0"),
        (first + 1, "pane 0 late"),
        (first + 2, "retracted: pane 0 late"),
        (first + 2, "hidden: having n % 2 = 0"),
        (first + 3, "pane 1 late"),
    ]


def test_the_command_says_which_windows_are_shown_and_where_one_is_hidden(tmp_path: Path) -> None:
    job = job_of("tumbling", "retracting", lateness="1 hour").derive(double="n * 2").having("double = 4")
    job.standalone(checkpoint=tmp_path).run(arriving([[(1, "a", 5), (20, "z", 1)], [(2, "a", 7)], [(3, "a", 7)]]))
    forget()
    windows = json_here("windows", tmp_path, "--json")
    assert [(row["k"], row["n"], row["double"], row["shown"], row["panes"]) for row in windows] == [
        ("a", 3, 6, False, 1),
        ("z", 1, 2, False, 0),
    ]
    assert [[*row] for row in json_here("windows", tmp_path, "--value", "n", "--json")] == [
        ["window_start", "window_end", "k", "n", "shown", "events", "panes"]
    ] * 2
    assert "shown" in tidestate_here("windows", tmp_path, columns=120).stdout
    (history,) = json_here("history", tmp_path, "--key", "k=a", "--window", "1970-01-01T00:00:00Z", "--json")
    hidden = [event for event in history["events"] if event["kind"] == "hidden"]
    assert [(event["what"], event["values"]) for event in hidden] == [
        ("hidden: having double = 4", {"n": 1, "total": 5}),
        ("hidden: having double = 4", {"n": 3, "total": 19}),
    ]
    (got,) = json_here("window", tmp_path, "get", "--start", "1970-01-01T00:00:00Z", "--key", "k=a", "--json")
    assert (got["n"], got["shown"]) == (3, False)


def test_results_that_derived_columns_and_conditions_read_may_be_renamed(tmp_path: Path) -> None:
    batches = arriving([[(1, "a", 5), (2, "a", 7), (12, "b", 1)], [(3, "a", 1)]])
    before = job_of("tumbling", "retracting", lateness="1 hour").derive(x="n * 2").having("n >= 2")
    before.standalone(checkpoint=tmp_path).run(batches[:1])
    forget()
    grouped = ts.stream(event_time="t", offset="at").group_by("k").window(WINDOWS["tumbling"])
    renamed = grouped.aggregate(rows=agg.count(), total=agg.sum("v")).derive(y="rows * 2").having("rows >= 2")
    renamed = renamed.allowed_lateness("1 hour").accumulation("retracting")
    renamed = renamed.renamed(aggregates={"n": "rows", "x": "y"})
    panes = renamed.standalone(checkpoint=tmp_path).run(batches).to_pylist()
    assert [(pane["kind"], pane["rows"], pane["y"]) for pane in panes] == [("retract", 2, 4), ("emit", 3, 6)]


def test_an_expression_that_changes_is_for_panes_from_now_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A retraction repeats what was emitted, by the expression of then."""
    rows = [[(1, "a", 5), (2, "a", 7), (12, "b", 1)], [(3, "a", 1)], [(4, "a", 1)]]
    batches = arriving(rows)
    before = job_of("tumbling", "retracting", lateness="1 hour").derive(x="n * 2").having("n >= 2")
    panes = before.standalone(checkpoint=tmp_path).run(batches[:1]).to_pylist()
    forget()
    changed = job_of("tumbling", "retracting", lateness="1 hour").derive(x="n * 3", y="n").having("n >= 4")
    caplog.clear()
    panes += changed.standalone(checkpoint=tmp_path).run(batches).to_pylist()
    found = [(pane["kind"], pane["n"], pane["x"], pane.get("y"), pane["pane"]) for pane in panes]
    assert found == [("emit", 2, 4, None, 0), ("retract", 2, 4, None, 0), ("emit", 4, 12, 4, 1)]
    assert "operator windows: having: n >= 2 -> n >= 4 (panes that were emitted stand until" in caplog.text
    assert 'operator windows: aggregate x: "n * 2" -> "n * 3" (for panes from now on)' in caplog.text
    assert 'operator windows: aggregate y: - -> "n" (for panes from now on)' in caplog.text
    forget()
    without = job_of("tumbling", "retracting", lateness="1 hour")
    assert not without.plan(tmp_path).refusals
    of_text = job_of("tumbling", "retracting", lateness="1 hour").derive(x="k").standalone(checkpoint=tmp_path)
    with pytest.raises(IncompatibleError):
        of_text.run(batches)


@pytest.mark.parametrize("death", ["before-manifest:4", "after-manifest:4", "before-manifest:7"])
def test_killed_at_a_side_of_the_commit_each_pane_is_shown_and_taken_back_once(death: str, tmp_path: Path) -> None:
    process = Forked("tests.children.shown", tmp_path / "killed", death)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    roots = [tmp_path / "killed", tmp_path / "alone"]
    for root in roots:
        shown_sums().standalone(checkpoint=root).run(numbers(), drain=True)
    panes = [evidence.panes(root) for root in roots]
    assert panes[0] == panes[1]
    kinds = Counter(pane["kind"] for pane in ts.Root(roots[0]).panes().to_table().to_pylist())
    assert kinds["retract"] > 5
    assert all(pane["odd"] for pane in ts.Root(roots[0]).panes().to_table().to_pylist())


EPOCH, MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
SOME: dict[str, Callable[[Event], bool]] = {
    "v > 2": lambda event: event.v is not None and event.v > 2,
    "v is null or v < 0": lambda event: event.v is None or event.v < 0,
    "j % 2 = 0": lambda event: (event.j or 0) % 2 == 0,
}
MET: dict[str, Callable[[Any], bool]] = {
    "n >= 2": lambda values: values[0] >= 2,
    "share > 0.4 and share < 0.9": lambda values: 0.4 < values[3] < 0.9,
    "total is null or total > 3": lambda values: values[2] is None or values[2] > 3,
    "some % 2 = 1": lambda values: values[1] % 2 == 1,
}
NAIVE = st.tuples(st.integers(0, 30), st.sampled_from("ab"), st.integers(0, 3), st.none() | st.integers(-3, 9))


def naive_table(events: list[Event]) -> pa.Table:
    times = pa.array([event.time for event in events], pa.int64()).view(TIME)
    columns = [[event.k for event in events], [event.j for event in events], [event.v for event in events]]
    kinds = (pa.string(), pa.int64(), pa.int64())
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    return pa.table([times, *arrays], names=["t", "k", "j", "v"])


def seconds(count: int) -> str:
    return f"{count} seconds"


@settings(max_examples=settings.default.max_examples * 3)  # type: ignore[union-attr]
@given(st.data())
def test_it_is_what_the_naive_twin_says(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Over any grid, delay, lateness, condition, cut and restart."""
    slide = data.draw(st.integers(2, 8), label="slide")
    size = slide * data.draw(st.integers(1, 3), label="windows of an event")
    offset, delay = data.draw(st.integers(0, 7), label="offset"), data.draw(st.integers(0, 3), label="delay")
    allowed = data.draw(st.sampled_from([0, 4, 12]), label="allowed")
    some, met = data.draw(st.sampled_from([*SOME]), label="some"), data.draw(st.sampled_from([*MET]), label="met")
    drawn = data.draw(st.lists(st.lists(NAIVE, max_size=5), min_size=1, max_size=6), label="batches")
    batches = [[Event(time * SECOND, k, j, v, None) for time, k, j, v in rows] for rows in drawn]
    mode = "retracting" if allowed else "accumulating"
    units = [count * SECOND for count in (size, slide, offset, delay, allowed)]
    twin = ShownTwin(Setting(*units, mode), some=SOME[some], shown=MET[met]).run(batches)
    kind = ts.sliding(seconds(size), seconds(slide), offset=seconds(offset))
    grouped = ts.stream(event_time="t", watermark_delay=seconds(delay)).group_by("k").window(kind)
    results = grouped.aggregate(n=agg.count(), some=agg.count(where=some), total=agg.sum("v", where=some))
    job = results.derive(share="some / n").having(met).allowed_lateness(seconds(allowed)).accumulation(mode)
    tables, root = [naive_table(batch) for batch in batches], tmp_path_factory.mktemp("shown") / "root"
    found: list[Any] = []
    stops = data.draw(st.sets(st.integers(1, len(batches)), max_size=2), label="restarts")
    for stop in sorted({*stops, len(batches)}):
        running = job.standalone(checkpoint=root, partitions=2)
        found += running.run(tables[:stop], drain=stop == len(batches)).to_pylist()
        forget()
    bounds = ("window_start", "window_end")
    plain = [
        tuple((value - EPOCH) // MICROSECOND if name in bounds else value for name, value in pane.items())
        for pane in found
    ]
    assert Counter(plain) == Counter(pane for panes in twin.panes for pane in panes)
