"""A column of the user's that is called ``kind`` is a column like any other: whatever it holds, a job gives what it
gives where the column has another name.
"""

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
from tests.helpers.process import SCRATCH, examples
from tests.helpers.targets import KINDS as TARGETS
from tidestate import OperatorStream, Stream, agg
from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.bind.needs import needs_of_graph
from tidestate.operators.expressions.builder import col
from tidestate.statestore.spec.tables import TIME

KIND, SORT = "kind", "sort"
"""What the column is called in the one job, and in the other."""
TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "text": (pa.string(), st.sampled_from(["emit", "retract", "retract", "sale", "", None])),
    "numbers": (pa.int64(), st.none() | st.integers(-2, 2)),
}
Row = tuple[int, int, str, int, Any]
NEAR: dict[str, Any] = {"on": "k", "within": ("-5 seconds", "5 seconds")}


def schema(name: str, kind: pa.DataType) -> pa.Schema:
    return pa.schema([("t", TIME), ("id", pa.int64()), ("k", pa.string()), ("v", pa.int64()), (name, kind)])


def arriving(name: str, kind: pa.DataType, rows: list[Row]) -> pa.Table:
    times, *columns_of_values = ([row[number] for row in rows] for number in range(5))
    columns = [pa.array([1_000_000 * second for second in times], pa.int64()).cast(TIME)]
    types = [field.type for field in schema(name, kind)][1:]
    columns += [pa.array(values, of_type) for values, of_type in zip(columns_of_values, types, strict=True)]
    return pa.table(columns, schema=schema(name, kind))


def windowed(stream: Any, column: str, name: str = "windows") -> ts.Aggregation:
    groups = stream.group_by("k").window(ts.tumbling("10 seconds"))
    results: ts.Aggregation = groups.aggregate(
        n=agg.count(), s=agg.sum("v"), filled=agg.count(column), different=agg.count_distinct(column)
    )
    return results.allowed_lateness("1 hour").accumulation("retracting").named(name)


def once(stream: Stream) -> OperatorStream:
    return stream.deduplicate("id", within="1 hour", allowed_lateness="1 hour", name="once")


def of_sides(a: Stream, b: Stream, column: str) -> ts.Aggregation:
    groups = ts.merge(a=a.where("v > 0"), b=b).group_by("k").window(ts.tumbling("10 seconds"))
    results: ts.Aggregation = groups.aggregate(n=agg.count(f"a_{column}"), m=agg.count_distinct(f"b_{column}"))
    return results


def sharing(a: Stream, b: Stream, column: str) -> ts.Aggregation:
    groups = ts.merge(a=a, b=b).sharing(column).group_by("k").window(ts.tumbling("10 seconds"))
    results: ts.Aggregation = groups.aggregate(n=agg.count(column), m=agg.sum("a_v"))
    return results


JOBS: dict[str, Callable[[Stream, Stream, str], Any]] = {
    "windows": lambda a, _, c: windowed(a, c),
    "computed": lambda a, _, c: windowed(a.where("v > 0").with_columns(copy=col(c), v="v * 2"), "copy"),
    "filtered": lambda a, _, c: a.where("v > 0"),
    "selected": lambda a, _, c: a.select("t", "k", c, more="v + 1").where("more > 1"),
    "union": lambda a, b, _: ts.union(a=a, b=b),
    "union in order": lambda a, b, c: windowed(ts.union(a=a, b=b, in_order=True), c),
    "union of filters": lambda a, b, c: windowed(ts.union(a=a.where("v > 0"), b=b), c),
    "shift": lambda a, _, c: a.shift_time("3 seconds"),
    "windows of a shift": lambda a, _, c: windowed(a.where("v > 0").shift_time("3 seconds"), c),
    "deduplication": lambda a, _, c: once(a),
    "deduplicated union": lambda a, b, c: once(ts.union(a=a, b=b)),
    "union of deduplications": lambda a, b, c: windowed(ts.union(a=once(a), b=b), c),
    "selection of rows that passed": lambda a, _, c: once(a).select("t", "k", "v").shift_time("1 second"),
    "column renamed on the way": lambda a, _, c: windowed(once(a).select("t", "k", "v", other=col(c)), "other"),
    "join": lambda a, b, _: a.where("v > 0").join(b, **NEAR, how="left"),
    "join of a shift": lambda a, b, _: a.shift_time("1 second", name="moved").join(once(b), **NEAR),
    "merge": of_sides,
    "merge that shares it": sharing,
    "chain": lambda a, _, c: (
        windowed(a, c, "first").group_by().window(ts.tumbling("30 seconds"))
        .aggregate(m=agg.sum("n"), most=agg.max("filled")).allowed_lateness("1 hour").accumulation("retracting")
    ),
    "windows of all": lambda a, b, c: windowed(once(ts.union(a=a, b=b).shift_time("2 seconds", name="moved")), c),
}  # fmt: skip


def counted(table: pa.Table) -> Counter[str]:
    """Rows, whatever their order and that of their columns, under the first name of the column."""
    # The two jobs differ in one name alone, and columns are in the order of their names in some outputs.
    names = [name.replace(SORT, KIND) for name in table.column_names]
    return Counter(
        repr(sorted(zip(names, row, strict=True))) for row in zip(*table.to_pydict().values(), strict=True)
    )


def job_of(name: str, column: str) -> Any:
    return JOBS[name](ts.stream("a", event_time="t"), ts.stream("b", event_time="t"), column)


def played(name: str, column: str, kind: pa.DataType, batches: list[list[list[Row]]]) -> tuple[Any, ...]:
    """What a job emits, with a restart in between, and what it counts."""
    job = job_of(name, column)
    streams = job.graph.streams
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        harness = job.harness(dict.fromkeys(streams, schema(column, kind)), folder=folder, partitions=2)
        tables = []
        for number, rows in enumerate(batches):
            tables.append(harness.feed({s: arriving(column, kind, rows["ab".index(s)]) for s in streams}))
            # A start compares what is stored with the description, in which the name may mean something else.
            if number == 0:
                harness.restart()
        tables.append(harness.finish())
        return counted(pa.concat_tables(tables)), harness.counters(), job.operators


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", JOBS)
def test_a_column_called_kind_is_like_any_other(name: str, kind: str) -> None:
    of_type, values = TYPES[kind]
    row = st.tuples(st.integers(0, 40), st.integers(0, 6), st.sampled_from("xy"), st.integers(-1, 3), values)
    of_streams = st.lists(st.lists(row, max_size=6), min_size=2, max_size=2)

    @settings(deadline=None, max_examples=examples(40))
    @given(st.lists(of_streams, min_size=1, max_size=4))
    def check(batches: list[list[list[Row]]]) -> None:
        of_kind, of_sort = (played(name, column, of_type, batches) for column in (KIND, SORT))
        assert of_kind == of_sort

    check()


ROWS: list[Row] = [
    (1, 1, "x", 1, "sale"),
    (2, 2, "x", 2, "retract"),
    (3, 1, "y", 3, "emit"),
    (12, 3, "y", 4, "retract"),
    (13, 2, "y", 5, None),
]


def test_every_output_has_its_column(tmp_path: Path) -> None:
    outputs = []
    for column in (KIND, SORT):
        rows = ts.stream(event_time="t")
        shift = rows.shift_time("1 second", name="passed")
        job = ts.job(windowed(rows, column), shift, windowed(shift, column, "behind"))
        root = tmp_path / column
        job.standalone(checkpoint=root).run([arriving(column, pa.string(), ROWS)], drain=True)
        outputs.append([counted(ts.Root(root).panes(operator=name).to_table()) for name in job.operators])
    assert outputs[0] == outputs[1]
    assert all(outputs[0])


TWICE: dict[str, Callable[[Stream], Any]] = {
    "shift": lambda rows: rows.shift_time("1 second"),
    "filter": lambda rows: rows.where("v > 0"),
    "deduplication": once,
}


FORMS = [
    ("parquet", "append"),
    ("parquet", "changelog"),
    ("delta", "append"),
    ("delta", "upsert"),
    ("delta", "changelog"),
    ("iceberg", "upsert"),
]


@pytest.mark.parametrize("name", TWICE)
@pytest.mark.parametrize(("target", "form"), FORMS)
def test_targets_have_the_column_as_it_is(name: str, target: str, form: Any, tmp_path: Path) -> None:
    tables = []
    for column in (KIND, SORT):
        target_place = TARGETS[target](str(tmp_path / f"{column}_target"))
        # Two deliveries, as an upsert deletes by what an earlier one has written.
        batches = [arriving(column, pa.string(), ROWS[:3]), arriving(column, pa.string(), ROWS[3:])]
        job = TWICE[name](ts.stream(event_time="t"))
        job.standalone(checkpoint=tmp_path / column, sink=target_place.sink(form, key="id")).run(batches, drain=True)
        tables.append(target_place.table())
    assert counted(tables[0]) == counted(tables[1])
    assert tables[0].num_rows == (5 if form != "upsert" and name != "deduplication" else 3)


OF_PANES = pa.schema([("t", TIME), ("id", pa.int64()), ("k", pa.string()), ("v", pa.int64()), ("pane", pa.int64()),
                      ("timing", pa.string()), ("last", pa.bool_())])  # fmt: skip


def test_other_columns_that_panes_have_are_passed_on_too(tmp_path: Path) -> None:
    """They were left out of what operators behind got."""
    job = once(ts.stream(event_time="t")).shift_time("1 second").timed_by("t").deduplicate("pane", name="twice")
    harness = job.harness(OF_PANES, folder=tmp_path)
    rows = pa.table([pa.array([0], pa.int64()).cast(TIME), [1], ["x"], [2], [3], ["soon"], [True]], schema=OF_PANES)
    [row] = harness.feed(rows).to_pylist()
    assert {name: row[name] for name in ("pane", "timing", "last")} == {"pane": 3, "timing": "soon", "last": True}


def stored_signs(job: Any, columns: pa.Schema) -> tuple[dict[str, Any], set[str]]:
    graph = bind_graph(job.graph.description, dict.fromkeys(job.graph.streams, columns))
    signs = {name: plan.configuration.get("signed", "-") for name, plan in graph.plans.items()}
    return signs, {*needs_of_graph(graph)} & {"plain-rows/1"}


def test_what_is_stored_says_that_rows_are_plain_where_a_name_could_mislead() -> None:
    rows = ts.stream(event_time="t")
    shift, needs = rows.shift_time("1 second", name="moved"), {"plain-rows/1"}
    plain, own_schema = schema("sort", pa.string()), schema("kind", pa.string())
    assert stored_signs(shift, plain) == ({"moved": "-"}, set())
    assert stored_signs(shift, own_schema) == ({"moved": False}, needs)
    assert stored_signs(windowed(shift, "kind"), own_schema) == ({"moved": False, "windows": False}, needs)
    assert stored_signs(windowed(rows, "kind"), own_schema) == ({"windows": False}, set())
    panes = windowed(rows, "v").shift_time("1 second", name="moved")
    assert stored_signs(panes, plain) == ({"windows": False, "moved": "-"}, set()), "panes that retract pass"
    spoken_shift = ts.stream(event_time="t", retractions=True).shift_time("1 second", name="moved")
    assert stored_signs(spoken_shift, own_schema) == ({"moved": "-"}, set()), "stored as every version before did"
