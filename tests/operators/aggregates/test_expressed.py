"""Aggregates of some rows, and of computed values: against plain Python, and against a job over columns that were
computed before, in windows of every kind.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import tidestate as ts
from tests.helpers.process import few, forget
from tests.twins.aggregated import KINDS, events_of, same, table, wanted
from tests.twins.naive_aggregates import Event
from tidestate import agg, trigger
from tidestate.operators.aggregates.aggregate import Aggregate
from tidestate.operators.aggregates.expressed import BoundExpressed
from tidestate.operators.aggregates.results import results
from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.bind.needs import needs_of_graph
from tidestate.operators.bind.operator import bind_plan
from tidestate.operators.describe.configuration import configuration_of, description_of
from tidestate.operators.expressions.builder import col, expr
from tidestate.operators.expressions.parsing import parse_expression
from tidestate.operators.expressions.printing import expression_text
from tidestate.operators.plan.slicing import Slicing
from tidestate.operators.windows.plan import WindowPlan
from tidestate.statestore.errors import IncompatibleError, UsageError
from tidestate.statestore.table.fold import combine

TIME = pa.timestamp("us", "UTC")
CONDITIONS: dict[str, Callable[[Event], bool]] = {
    "w > 1": lambda event: event["w"] is not None and event["w"] > 1,
    "o % 2 = 0 and w is not null": lambda event: event["o"] % 2 == 0 and event["w"] is not None,
    "v is not null": lambda event: event["v"] is not None,
    "w < 0": lambda event: False,
    "true": lambda event: True,
    "null": lambda event: False,
}


def plan_of(aggregates: dict[str, Aggregate], schema: pa.Schema) -> WindowPlan:
    job = ts.stream(event_time="t").group_by("k").window(ts.tumbling("1 hour"))
    plan = bind_plan(job.aggregate(**aggregates).graph.description, schema)
    assert isinstance(plan, WindowPlan)
    return plan


@pytest.mark.slow
@pytest.mark.parametrize("kind", few(KINDS, *range(0, len(KINDS), 3)))
@settings(max_examples=settings.default.max_examples // 5)  # type: ignore[union-attr]
@given(data=st.data())
def test_of_some_rows_it_is_what_plain_python_says_of_them(kind: str, data: st.DataObject) -> None:
    events = data.draw(events_of(kind), label="events")
    condition = data.draw(st.sampled_from(sorted(CONDITIONS)), label="condition")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(events)), max_size=4), label="cuts"))
    aggregates = wanted(kind)
    tree = parse_expression(condition)
    plan = plan_of(
        {name: replace(aggregate, condition=tree) for name, (aggregate, _) in aggregates.items()},
        table(kind, []).schema,
    )
    assert not plan.counted_by
    rows = table(kind, events)
    ends = pa.array([0] * len(events), pa.int64()).cast(TIME)
    ones = pa.array([1] * len(events), pa.int64())
    lifted = pa.table([ends, rows["k"], ones, *plan.lifted(rows)], schema=plan.parts.schema)
    bounds = [0, *cuts, len(events)]
    folded = combine(
        plan.parts, pa.concat_tables([combine(plan.parts, lifted.slice(a, b - a)) for a, b in pairwise(bounds)])
    )
    found = results(plan.aggregates, folded)
    for bound in plan.aggregates:
        values = found[bound.name].to_pylist()
        compute = aggregates[bound.name][1]
        for key, value in zip(folded["k"].to_pylist(), values, strict=True):
            part = [event for event in events if event["k"] == key and CONDITIONS[condition](event)]
            if bound.name in ("own", "nulls", "rows") and not part:
                assert value is None, "a function of the user's gets no window without rows"
            else:
                assert same(value, compute(part)), (bound.name, value, compute(part))


SECOND = 1_000_000
SCHEMA = pa.schema({"t": TIME, "k": pa.string(), "v": pa.int64(), "w": pa.int64(), "at": pa.int64()})
ROW = st.tuples(
    st.integers(0, 40), st.sampled_from("ab"), st.none() | st.integers(-3, 9), st.none() | st.integers(0, 3)
)
BATCHES = st.lists(st.lists(ROW, max_size=5), min_size=1, max_size=6)
NULL_UNLESS = "case when w > 1 then v end"
"""Aggregates ignore nulls, so one of this column is one of the rows with ``w > 1``."""
FUNCTIONS: dict[str, Callable[..., Aggregate]] = {
    "n": agg.count,
    "total": agg.sum,
    "most": agg.max,
    "average": agg.mean,
    "listed": agg.list,
    "kinds": agg.set,
    "newest": agg.latest,
    "first": lambda column, **more: agg.first(column, by="at", **more),
    "best": lambda column, **more: agg.top_n(column, 2, by="w", **more),
    "middle": agg.median,
}
WINDOWS: dict[str, Any] = {
    "tumbling": ts.tumbling("10 seconds"),
    "sliding": ts.sliding("10 seconds", "5 seconds"),
    "rolling": ts.rolling("6 seconds"),
    "sessions": ts.sessions("4 seconds"),
    "counted": ts.count_windows(3),
    "global": ts.global_window(),
    "offsets": ts.offset_windows(4, 2),
}
TRIGGERS: dict[str, Callable[[Any], Any]] = {
    "usual": lambda job: job,
    "early": lambda job: job.trigger(early=trigger.each_batch()),
    "counted": lambda job: job.trigger(early=trigger.after_count(2), late=trigger.after_count(2), closing="if_new"),
    "element": lambda job: job.trigger(early=trigger.each_element()),
    "composite": lambda job: job.trigger(when=trigger.repeatedly(trigger.after_count(2))),
    "changes": lambda job: job.trigger(early=trigger.each_batch(), only_updated=True),
    "in order": lambda job: job.in_order(),
    "messages": lambda job: job.messages(retain="1 hour"),
}


def arriving(batches: list[list[Any]]) -> list[pa.Table]:
    at, tables = 0, []
    for rows in batches:
        columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[]] * 4
        numbers = list(range(at, at + len(rows)))
        at += len(rows)
        times = pa.array([second * SECOND for second in columns[0]], pa.int64()).view(TIME)
        others = (pa.array(c, f.type) for c, f in zip([*columns[1:], numbers], list(SCHEMA)[1:], strict=True))
        tables.append(pa.table([times, *others], schema=SCHEMA))
    return tables


def job_of(results: dict[str, Aggregate], window: str, mode: str, how: str, source: Any = None) -> Any:
    stream = source or ts.stream(event_time="t", offset="at")
    job = stream.group_by("k").window(WINDOWS[window]).aggregate(rows=agg.count(), **results)
    if window not in ("offsets", "counted"):
        job = job.allowed_lateness("6 seconds")
    return TRIGGERS[how](job.accumulation(mode))


def put_out(job: Any, batches: list[pa.Table]) -> list[Any]:
    harness = job.harness(SCHEMA)
    return [*(harness.feed(batch).to_pylist() for batch in batches), harness.finish().to_pylist()]


@settings(max_examples=settings.default.max_examples * 4)  # type: ignore[union-attr]
@given(
    BATCHES,
    st.sampled_from(sorted(WINDOWS)),
    st.sampled_from(["accumulating", "discarding", "retracting"]),
    st.sampled_from(sorted(TRIGGERS)),
)
def test_in_every_window_it_is_the_aggregate_of_a_column_that_is_null_elsewhere(
    batches: list[list[Any]], window: str, mode: str, how: str
) -> None:
    def each(make: Callable[[Callable[..., Aggregate]], Aggregate]) -> dict[str, Aggregate]:
        return {name: make(function) for name, function in FUNCTIONS.items()}

    def panes_or_code(results: dict[str, Aggregate], source: Any = None) -> Any:
        try:
            return put_out(job_of(results, window, mode, how, source), arriving(batches))
        except UsageError as error:  # what windows of this kind refuse
            return error.code

    staged = ts.stream(event_time="t", offset="at").with_columns(u=NULL_UNLESS)
    wanted_panes = panes_or_code(each(lambda f: f("u")), staged)
    assert panes_or_code(each(lambda f: f("v", where="w > 1"))) == wanted_panes
    assert panes_or_code(each(lambda f: f(expr(NULL_UNLESS)))) == wanted_panes


@settings(max_examples=settings.default.max_examples)  # type: ignore[union-attr]
@given(BATCHES, st.sampled_from(["accumulating", "retracting", "discarding"]))
def test_rows_that_are_taken_back_are_left_out_like_those_they_take_back(batches: list[list[Any]], mode: str) -> None:
    """Counts by key and ten seconds, which change, into aggregates by minute of those counts that are above one."""

    def chained(options: dict[str, Any]) -> Any:
        first = ts.stream(event_time="t").group_by("k").window(ts.tumbling("10 seconds"))
        counts = first.aggregate(n=agg.count(), v=agg.max("v")).allowed_lateness("30 seconds").named("counts")
        counts = counts.accumulation("retracting").trigger(early=trigger.each_batch())
        minutes = counts.group_by().window(ts.tumbling("1 minute"))
        functions = ("n", "total") if mode == "discarding" else tuple(FUNCTIONS)[:7]
        results = {name: FUNCTIONS[name](*options["args"], **options["more"]) for name in functions}
        return minutes.aggregate(**results).accumulation(mode).trigger(early=trigger.each_batch()).named("minutes")

    filtered = chained({"args": ("v",), "more": {"where": "n > 1"}})
    computed = chained({"args": (expr("case when n > 1 then v end"),), "more": {}})
    assert put_out(filtered, arriving(batches)) == put_out(computed, arriving(batches))


def test_a_run_that_is_restarted_a_merge_and_an_operator_by_hand(tmp_path: Path) -> None:
    rows = [[(1, "a", 5, 2), (2, "a", 7, 0), (3, "b", 1, 3)], [(4, "a", 2, 3), (30, "b", 9, 2)], [(5, "a", 1, 2)]]
    batches = arriving(rows)
    job = job_of(
        {"big": agg.sum("v", where="w > 1"), "double": agg.max(col("v") * 2)}, "tumbling", "retracting", "usual"
    )
    panes = []
    for count in (1, 2, 3):
        panes += job.standalone(checkpoint=tmp_path / "root").run(batches[:count]).to_pylist()
        forget()
    picked = [(p["k"], p["rows"], p["big"], p["double"], p["kind"]) for p in panes]
    assert picked == [("a", 3, 7, 14, "emit"), ("b", 1, 1, 2, "emit")]  # the last one is too late
    merged = ts.merge(left=ts.stream(event_time="t"), right=ts.stream(event_time="t")).group_by("k")
    both = merged.window(WINDOWS["tumbling"]).aggregate(
        left=agg.count(where="left_w > 1"), right=agg.sum(col("right_v") + 1, where="side = 'right'")
    )
    harness = both.harness({"left": SCHEMA, "right": SCHEMA})
    harness.feed({"left": batches[0], "right": batches[1]})
    found = [(p["k"], p["left"], p["right"]) for p in harness.finish().to_pylist()]
    assert found == [("a", 1, 3), ("b", 1, None), ("b", 0, 10)]
    by_hand = job_of({"big": agg.list("v", where="w > 1")}, "tumbling", "accumulating", "usual").by_hand(
        SCHEMA, checkpoint=tmp_path / "by hand"
    )
    by_hand.add_messages(pa.concat_tables(batches[:2]))
    by_hand.flush()
    by_hand.drain()
    panes = [pane for result in by_hand.get_result() for pane in result.panes.to_pylist()]
    assert sorted((pane["k"], pane["big"]) for pane in panes) == [("a", [5, 2]), ("b", [1]), ("b", [9])]


def test_messages_are_read_again_for_some_of_them_alone(tmp_path: Path) -> None:
    """Lists and functions of all rows have no state next to stored messages: each looks at all of them."""
    last = agg.apply_rows(
        lambda rows: rows["v"].to_pylist(),
        columns=["v"],
        result_type=pa.list_(pa.int64()),
        per_group=True,
        where="w > 1",
    )
    results = {
        "middle": agg.median("v", where="w > 1"),
        "listed": agg.list(col("v") + 1, where="w = 0"),
        "rows": last,
    }
    job = ts.stream(event_time="t", offset="at").group_by("k").window(WINDOWS["tumbling"]).aggregate(**results)
    batches = arriving([[(1, "a", 5, 2), (2, "a", 7, 0), (3, "b", 1, 0)], [(4, "a", 2, 3)]])
    harness = job.messages(retain="1 hour").harness(SCHEMA)
    for batch in [*batches, batches[0]]:
        harness.feed(batch)
    panes = [(p["k"], p["middle"], p["listed"], p["rows"]) for p in harness.finish().to_pylist()]
    assert panes == [("a", 3.5, [8], [5, 2]), ("b", None, [2], None)]


def test_what_is_stored_names_what_a_reader_needs_and_old_forms_stay() -> None:
    window = ts.stream(event_time="t").group_by("k").window(ts.tumbling("1 hour"))
    plain, filtered = agg.sum("v"), agg.sum(col("v") * 2, where=col("w") > 1)
    configuration = configuration_of(window.aggregate(a=plain, b=filtered).graph.description)
    stored = configuration["aggregates"]
    assert stored["a"] == {"kind": "plain", "function": "sum", "column": "v"}
    assert [stored["b"][name]["function"] for name in ("where", "expression")] == ["gt", "mul"]
    assert description_of(configuration).aggregates == {"a": plain, "b": filtered}  # type: ignore[union-attr]
    needs = [
        needs_of_graph(bind_graph(window.aggregate(x=one).graph.description, SCHEMA)) for one in (plain, filtered)
    ]
    assert needs == [("wide-sums/1",), ("aggregates-of-expressions/1", "wide-sums/1")]
    assert agg.sum(col("v")) == plain, "a column alone is that column"
    text = repr(window.aggregate(b=filtered, c=agg.first("v", by=col("w") % 2)))
    assert 'b=agg.sum(expr("v * 2"), where="w > 1"), c=agg.first("v", by=expr("w % 2"))' in text


def test_only_a_count_of_all_rows_stands_for_the_number_of_elements() -> None:
    assert plan_of({"some": agg.count(where="w > 1"), "x": agg.count(expr("v + 1"))}, SCHEMA).counted_by == ""
    assert plan_of({"some": agg.count(where="w > 1"), "n": agg.count()}, SCHEMA).counted_by == "n"


def test_the_earliest_of_some_rows_is_no_bound_of_later_panes() -> None:
    hours = ts.stream(event_time="t").group_by("k").window(ts.tumbling("1 hour"))
    for where, refused in ((None, False), ("w > 1", True)):
        earliest = hours.aggregate(at=agg.min("t", where=where)).allowed_lateness("0 seconds")
        read = earliest.timed_by("at").group_by().window(ts.tumbling("1 day"))
        job = read.aggregate(n=agg.count()).named("days")
        if not refused:
            job.harness(SCHEMA)
            continue
        with pytest.raises(UsageError) as caught:
            job.harness(SCHEMA)
        assert caught.value.code == "chain-time"


def test_the_newest_pane_that_meets_a_condition_does_not_stand_for_all_panes() -> None:
    panes = ts.stream(event_time="t").group_by("k").window(ts.tumbling("1 hour")).aggregate(n=agg.count())
    panes = panes.trigger(early=trigger.each_batch()).named("hours")
    panes.group_by("k").aggregate(n=agg.latest("n")).named("last").harness(SCHEMA)
    with pytest.raises(UsageError) as caught:
        panes.group_by("k").aggregate(n=agg.latest("n", where="n > 1")).named("last").harness(SCHEMA)
    assert caught.value.code == "chain-accumulating"


def test_partials_elsewhere_know_which_rows_take_part_and_what_is_computed_of_them() -> None:
    plain, some, total = agg.count(), agg.count(where="w > 1"), agg.mean(col("v") + 1, where="w > 1")
    slicing = plan_of({"n": plain, "x": some, "y": total, "z": agg.max(col("v") * 2)}, SCHEMA).slicing
    assert isinstance(slicing, Slicing)
    texts = [[None if t is None else expression_text(t) for t in (p.tree, p.condition)] for p in slicing.partials]
    assert [p.function for p in slicing.partials] == ["count", "count", "sum", "count", "max"]
    assert texts == [[None, None], [None, "w > 1"], ["v + 1", "w > 1"], ["v + 1", "w > 1"], ["v * 2", None]]
    assert "'x' is count_distinct" in str(plan_of({"x": agg.count_distinct("v", where="w > 1")}, SCHEMA).slicing)


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: agg.count(where="wrong > 1"), "column-missing"),
        (lambda: agg.count(where="v + 1"), "expression-type"),
        (lambda: agg.count(where="k > 1"), "expression-type"),
        (lambda: agg.count(where="v >"), "expression-text"),
        (lambda: agg.count(where=5), "expression-type"),
        (lambda: agg.sum(5), "argument"),
        (lambda: agg.sum(col("k").like("a%")), "aggregate-type"),
        (lambda: agg.sum(expr("hour(t, zone => 'Europe/Berlin')")), "time-zone"),
    ],
)
def test_what_cannot_be_computed_is_refused_before_anything_runs(make: Callable[[], Aggregate], code: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan_of({"x": make()}, SCHEMA)
    assert caught.value.code == code


def test_a_plan_with_expressions_travels() -> None:
    plan = plan_of({"x": agg.first(col("v") + 1, by=-col("v"), where="w > 0")}, SCHEMA)
    (bound,) = pickle.loads(pickle.dumps(plan)).aggregates
    assert isinstance(bound, BoundExpressed)
    (batch,) = arriving([[(1, "a", 5, 2), (2, "a", 7, 0), (3, "a", 8, 3)]])
    assert [column.to_pylist() for column in bound.lift(batch)] == [[-5, None, -8], [6, None, 9]]


def test_a_function_sees_no_row_that_takes_no_part() -> None:
    """It may fail at rows that it was not written for, and windows without any rows of its own do not call it."""

    def lift(rows: pa.Table) -> pa.Table:
        assert min(rows["w"].to_pylist(), default=2) > 1
        return rows.select(["v"])

    own = agg.accumulate(
        name="tests.operators.aggregates.test_expressed:own",
        columns=["v", "w"],
        state={"v": pa.int64()},
        lift=lift,
        merge=lambda older, newer: pa.table({"v": pc.add(older["v"], newer["v"])}),
        result=lambda states: states["v"],
        result_type=pa.int64(),
        where="w > 1",
    )
    job = ts.stream(event_time="t").group_by("k").window(ts.tumbling("1 minute")).aggregate(x=own)
    harness = job.harness(SCHEMA)
    harness.feed(arriving([[(1, "a", 5, 2), (2, "a", 7, 0), (3, "a", 1, 3), (4, "b", 1, 0)]])[0])
    assert [(pane["k"], pane["x"]) for pane in harness.finish().to_pylist()] == [("a", 6), ("b", None)]


def hours(**results: Aggregate) -> Any:
    grouped = ts.stream(event_time="t").group_by("k").window(ts.tumbling("1 minute"))
    return grouped.aggregate(n=agg.count(), **results).allowed_lateness("1 hour")


BEGUN = {"big": agg.sum("v", where="w > 1"), "twice": agg.max(expr("v * 2"))}


def begun(root: Path, batches: list[pa.Table]) -> None:
    hours(**BEGUN).standalone(checkpoint=root).run(batches)
    forget()


def test_a_job_goes_on_with_the_same_conditions_and_may_get_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = arriving([[(1, "a", 5, 2), (2, "a", 7, 0)], [(3, "a", 1, 3)]])
    begun(tmp_path, [first])
    plan = hours(**BEGUN).plan(tmp_path)
    assert not plan.changes
    assert not plan.refusals
    caplog.clear()
    more = {**BEGUN, "small": agg.count(where="w <= 1")}
    panes = hours(**more).standalone(checkpoint=tmp_path).run([first, second], drain=True).to_pylist()
    assert [(p["n"], p["big"], p["twice"], p["small"]) for p in panes] == [(3, 6, 14, 0)]
    assert 'aggregate small: - -> agg.count(where="w <= 1")' in caplog.text


@pytest.mark.parametrize(
    "other",
    [
        {"big": agg.sum("v", where="w > 2")},
        {"big": agg.sum("v")},
        {"twice": agg.max(expr("v * 3"))},
        {"twice": agg.max("v")},
    ],
)
def test_another_condition_or_expression_under_the_same_name_is_refused(
    tmp_path: Path, other: dict[str, Aggregate]
) -> None:
    (first,) = arriving([[(1, "a", 5, 2), (2, "a", 7, 0)]])
    begun(tmp_path, [first])
    with pytest.raises(IncompatibleError) as caught:
        hours(**{**BEGUN, **other}).standalone(checkpoint=tmp_path).run([first])
    assert caught.value.code == "configuration-changed"
    (name,) = other
    assert "agg." in caught.value.context["changed"][f"aggregate {name}"]


def test_a_column_that_is_renamed_is_renamed_in_conditions_too(tmp_path: Path) -> None:
    first, second = arriving([[(1, "a", 5, 2), (2, "a", 7, 0)], [(3, "a", 1, 3)]])
    begun(tmp_path, [first])
    new = {"v": "value", "w": "weight"}
    results = {"big": agg.sum("value", where="weight > 1"), "twice": agg.max(expr("value * 2"))}
    batches = [
        batch.rename_columns([new.get(name, name) for name in batch.column_names]) for batch in (first, second)
    ]
    job = hours(**results).renamed(columns=new)
    panes = job.standalone(checkpoint=tmp_path).run(batches, drain=True).to_pylist()
    assert [(p["n"], p["big"], p["twice"]) for p in panes] == [(3, 6, 14)]


def test_the_same_under_another_name_has_the_same_condition(tmp_path: Path) -> None:
    (first,) = arriving([[(1, "a", 5, 2), (2, "a", 7, 0)]])
    begun(tmp_path, [first])
    for other, unclear in ((agg.sum("v"), False), (agg.sum("v", where="w > 1"), True)):
        results = {"twice": BEGUN["twice"], "new": other}
        if unclear:
            with pytest.raises(IncompatibleError) as caught:
                hours(**results).standalone(checkpoint=tmp_path).run([first])
            assert caught.value.code == "renamed-unclear"
        else:
            assert not hours(**results).plan(tmp_path).refusals
    window = ts.stream(event_time="t").group_by("k").window(ts.tumbling("1 minute"))
    latest = window.aggregate(x=agg.latest("v", where="w > 1")).allowed_lateness("1 hour")
    latest.standalone(checkpoint=tmp_path / "latest").run([first])
    forget()
    for where, refused in (("w > 1", False), (None, True), ("w > 2", True)):
        other = window.aggregate(x=agg.last("v", by="t", where=where)).allowed_lateness("1 hour")
        assert bool(other.plan(tmp_path / "latest").refusals) == refused


def test_every_aggregate_takes_a_condition() -> None:
    """One that is added does too: `tidestate.operators.aggregates.of_rows.fields_of_rows` makes its fields."""
    functions = [getattr(agg, name) for name in agg.__all__ if name != "register_combiner"]
    without = [one.__name__ for one in functions if "where" not in inspect.signature(one).parameters]
    assert not without
