"""Accumulations and functions of users: what they are given, what they are reported, and the same panes on Spark."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tidestate as ts
from tests.helpers.spark_inputs import batch, rows, sample, write
from tidestate import Aggregation, agg
from tidestate.operators.aggregates.aggregate import Aggregate
from tidestate.operators.bind.operator import bind_plan
from tidestate.operators.describe.configuration import configuration_of
from tidestate.operators.windows.plan import WindowPlan
from tidestate.statestore.errors import IncompatibleError, UsageError
from tidestate.statestore.spec import combiners
from tidestate.statestore.spec.tables import Column, Group, TableSpec
from tidestate.statestore.table.fold import combine

TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("t", TIME),
        ("v", pa.int64()),
        ("x", pa.float64()),
        ("s", pa.string()),
        ("l", pa.list_(pa.int64())),
        ("d", pa.dictionary(pa.int8(), pa.string())),
        ("group", pa.int64()),
    ]
)


def parts_of(plan: WindowPlan, ends: pa.Array, lifted: list[Any]) -> pa.Table:
    """Parts without a key, of an element each."""
    none, one = pa.array(np.zeros(len(ends), np.int8)), pa.array(np.ones(len(ends), np.int64))
    return pa.table([ends, none, one, *lifted], schema=plan.parts.schema)


def job(**aggregates: Aggregate) -> Aggregation:
    return ts.stream(event_time="t").group_by().window(ts.tumbling("1 minute")).aggregate(**aggregates)


WRONG: dict[str, tuple[Callable[[], Aggregate], str]] = {
    "results in hundreds": (
        lambda: agg.apply_rows(len, columns=["v"], result_type=pa.list_(pa.decimal128(5, -2))),
        "aggregate-option",
    ),
    "variance of text": (lambda: agg.variance("s"), "aggregate-type"),
    "deviation of times": (lambda: agg.stddev("t"), "aggregate-type"),
    "no such column": (lambda: agg.median("nothing"), "column-missing"),
    "no such order": (lambda: agg.first("v", by="nothing"), "column-missing"),
    "first by a list": (lambda: agg.first("v", by="l"), "aggregate-type"),
    "largest by a list": (lambda: agg.arg_max("v", by="l"), "aggregate-type"),
    "a type no store has": (lambda: agg.last("d", by="v"), "aggregate-type"),
    "a list of that type": (lambda: agg.list("d"), "aggregate-type"),
    "earliest of that type": (lambda: agg.earliest("d"), "aggregate-type"),
    "set of lists": (lambda: agg.set("l"), "aggregate-type"),
    "tally of lists": (lambda: agg.count_by_value("l"), "aggregate-type"),
    "sketch of lists": (lambda: agg.count_distinct_approx("l"), "aggregate-type"),
    "top of lists": (lambda: agg.top_n("l", 2), "aggregate-type"),
    "sorted lists": (lambda: agg.sorted_list("l"), "aggregate-type"),
    "median of text": (lambda: agg.median("s"), "aggregate-type"),
    "quantile of times": (lambda: agg.quantile("t", 0.5), "aggregate-type"),
    "rows of that type": (lambda: agg.apply_rows(len, columns=["d"], result_type=pa.int64()), "aggregate-type"),
    "top none": (lambda: agg.top_n("v", 0), "aggregate-option"),
    "top half": (lambda: agg.top_n("v", 0.5), "argument"),  # type: ignore[arg-type]
    "top true": (lambda: agg.top_n("v", True), "argument"),
    "quantile above 1": (lambda: agg.quantile("v", 1.01), "aggregate-option"),
    "quantile below 0": (lambda: agg.quantile("v", -0.01), "aggregate-option"),
    "quantile of nothing": (lambda: agg.quantile("v", float("nan")), "argument"),
    "quantile as text": (lambda: agg.quantile("v", "0.5"), "argument"),  # type: ignore[arg-type]
    "interpolation": (lambda: agg.quantile("v", 0.5, interpolation="cubic"), "aggregate-option"),  # type: ignore[arg-type]
    "too precise": (lambda: agg.count_distinct_approx("v", precision=22), "aggregate-option"),
    "too coarse": (lambda: agg.count_distinct_approx("v", precision=6), "aggregate-option"),
    "rows of nothing": (lambda: agg.apply_rows(len, columns=[], result_type=pa.int64()), "aggregate-option"),
    "our column": (lambda: agg.apply_rows(len, columns=["group"], result_type=pa.int64()), "aggregate-option"),
    "state of no type": (lambda: own(state={"total": pa.string_view()}), "column-type"),
    "no state": (lambda: own(state={}), "aggregate-option"),
    "a built-in name": (lambda: own(name="moments"), "combiner-name"),
}


def own(**changes: Any) -> Aggregate:
    """A sum, as a user would write it."""
    parts: dict[str, Any] = {
        "name": "own-sum",
        "columns": ["v"],
        "state": {"total": pa.int64()},
        "lift": lambda events: pa.table({"total": pc.fill_null(events["v"], 0)}),
        "merge": lambda older, newer: pa.table({"total": pc.add(older["total"], newer["total"])}),
        "result": lambda states: states["total"],
        "result_type": pa.int64(),
    }
    return agg.accumulate(**(parts | changes))


@pytest.mark.parametrize(("make", "code"), WRONG.values(), ids=WRONG.keys())
def test_what_cannot_be_computed_is_refused_before_anything_runs(make: Callable[[], Aggregate], code: str) -> None:
    with pytest.raises(UsageError) as caught:
        bind_plan(job(a=make()).graph.description, SCHEMA)
    assert caught.value.code == code


BATCH = pa.table({"t": pa.array([0, 1, 2], TIME), "v": [1, None, 5]})
WRONG_ANSWERS: dict[str, Callable[[], Aggregate]] = {
    "lift without the column": lambda: own(lift=lambda events: events),
    "lift of fewer rows": lambda: own(lift=lambda events: pa.table({"total": [1]})),
    "lift gives an array": lambda: own(lift=lambda events: events["v"]),
    "lift of another type": lambda: own(lift=lambda events: pa.table({"total": ["a", "b", "c"]})),
    "merge of fewer rows": lambda: own(name="fewer", merge=lambda older, newer: older.slice(1)),
    "merge gives nothing": lambda: own(name="nothing", merge=lambda older, newer: None),
    "result of too many": lambda: own(result=lambda states: pa.array([1, 2])),
    "result of another type": lambda: own(result=lambda states: pa.array(["a"])),
    "rows give a number": lambda: agg.apply_rows(len, columns=["v"], result_type=pa.int64()),
    "rows give too few": lambda: agg.apply_rows(
        lambda rows: pa.array([], pa.int64()), columns=["v"], result_type=pa.int64()
    ),
    "a group gives text": lambda: each_group(lambda rows: "a"),
    "a group gives too much": lambda: each_group(lambda rows: 2**70),
    "a group gives a table": lambda: each_group(lambda rows: rows),
    "lift raises": lambda: own(lift=lambda rows: 1 // 0),
    "merge raises": lambda: own(name="failing-sum", merge=lambda older, newer: 1 // 0),
    "result raises": lambda: own(result=lambda states: 1 // 0),
    "rows raise": lambda: agg.apply_rows(lambda rows: 1 // 0, columns=["v"], result_type=pa.int64()),
    "a group exits": lambda: each_group(lambda rows: sys.exit(7)),
}


def each_group(function: Callable[[pa.Table], Any]) -> Aggregate:
    return agg.apply_rows(function, columns=["v"], result_type=pa.int64(), per_group=True)


@pytest.mark.parametrize("make", WRONG_ANSWERS.values(), ids=WRONG_ANSWERS.keys())
def test_a_function_that_answers_something_else_is_reported_so(tmp_path: Path, make: Callable[[], Aggregate]) -> None:
    with pytest.raises(UsageError, match="own-function"):
        job(a=make()).standalone(checkpoint=tmp_path).run([BATCH], drain=True)


@pytest.mark.parametrize("values", [[1, None, 5], [None, None, None], [1, 2, 5]])
def test_a_lift_gets_no_nulls(tmp_path: Path, values: list[int | None]) -> None:
    got = []

    def lift(events: pa.Table) -> pa.Table:
        got.append(events.to_pydict())
        return pa.table({"total": pc.add(events["v"], events["w"])})

    weights = [10, 20, None]
    table = BATCH.set_column(1, "v", pa.array(values, pa.int64())).append_column("w", pa.array(weights))
    panes = job(a=own(columns=["v", "w"], lift=lift)).standalone(checkpoint=tmp_path).run([table], drain=True)
    whole = [(v, w) for v, w in zip(values, weights, strict=True) if v is not None and w is not None]
    assert got == ([{"v": [v for v, _ in whole], "w": [w for _, w in whole]}] if whole else [])
    assert panes["a"].to_pylist() == [sum(v + w for v, w in whole) if whole else None]


def test_a_merge_is_called_a_few_times_for_many_rows() -> None:
    calls = []

    def merge(older: pa.Table, newer: pa.Table) -> pa.Table:
        calls.append(older.num_rows)
        return pa.table({"total": pc.add(older["total"], newer["total"])})

    plan = bind_plan(job(a=own(name="counting", merge=merge)).graph.description, SCHEMA)
    bound = plan.aggregates[0]
    values = pa.table({"v": np.arange(10_000)})
    ends = pa.array(np.arange(10_000) % 10).cast(TIME)
    folded = combine(plan.parts, parts_of(plan, ends, bound.lift(values)))
    assert sum(bound.finish(folded).to_pylist()) == 9_999 * 5_000
    assert len(calls) == 10  # of a thousand rows a key: 500, 250, …
    assert sum(calls) == 9_990


def test_a_description_names_functions_and_never_holds_them() -> None:
    described = job(a=own(version=3), b=agg.apply_rows(len, columns=["v"], result_type=pa.int64()))
    common = {"column": None, "columns": ["v"], "result_type": "int64", "functions": None}
    assert configuration_of(described.graph.description)["aggregates"] == {
        "a": common
        | {
            "kind": "accumulate",
            "function": "accumulate",
            "name": "own-sum",
            "version": 3,
            "state": [["total", "int64"]],
        },
        "b": common
        | {"kind": "apply_rows", "function": "apply_rows", "name": "len", "version": 1, "per_group": False},
    }


def test_another_version_of_a_function_is_another_job(tmp_path: Path) -> None:
    job(a=own()).standalone(checkpoint=tmp_path).run([BATCH])
    with pytest.raises(IncompatibleError, match="configuration-changed"):
        job(a=own(version=2)).standalone(checkpoint=tmp_path).run([BATCH])


def test_two_functions_under_one_name_are_refused() -> None:
    def merge(older: pa.Table, newer: pa.Table) -> pa.Table:
        return older

    own(name="shared")
    with pytest.raises(UsageError, match="combiner-name"):
        own(name="shared", merge=merge)


def _merge(older: pa.Table, newer: pa.Table) -> pa.Table:
    return older


def _same(table: pa.Table) -> pa.Table:
    return table


def test_where_an_accumulation_is_unpickled_stores_find_its_merge() -> None:
    made = own(name="travels", merge=_merge, lift=_same, result=_same)
    payload = pickle.dumps(made)
    del combiners._registered["travels", 1]
    assert pickle.loads(payload) == made
    assert combiners.registered("travels", 1)


def test_without_the_library_a_sketch_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasketches", None)
    with pytest.raises(UsageError, match=r"pip install 'tidestate\[sketches\]'"):
        bind_plan(job(a=agg.count_distinct_approx("v")).graph.description, SCHEMA)


def test_every_kind_of_value_counts_in_a_sketch() -> None:
    """Also the empty ones, which the library would pass over, and numbers beyond int64."""
    kinds = {
        "text": pa.array(["", "0", "a", None, ""]),
        "bytes": pa.array([b"", b"\x00", b"a", None, b""]),
        "large": pa.array([2**64 - 1, 2**63, 0, None, 0], pa.uint64()),
        "floats": pa.array([0.0, -0.0, float("nan"), None, 1.5]),
    }
    for values in kinds.values():
        schema = pa.schema([("t", TIME), ("v", values.type)])
        plan = bind_plan(job(a=agg.count_distinct_approx("v")).graph.description, schema)
        bound = plan.aggregates[0]
        lifted = bound.lift(pa.table({"v": values}))
        ends = pa.array(np.zeros(len(values), np.int64)).cast(TIME)
        folded = combine(plan.parts, parts_of(plan, ends, lifted))
        assert bound.finish(folded).to_pylist() == [3]


def test_only_some_aggregates_can_take_events_back() -> None:
    chosen = {
        "a": agg.sum("v"),
        "b": agg.variance("v"),
        "c": agg.min("v"),
        "d": agg.max("v"),
        "e": agg.set("v"),
        "f": own(),
    }
    bounds = {bound.name: bound for bound in bind_plan(job(**chosen).graph.description, SCHEMA).aggregates}
    assert {name: bound.invertible for name, bound in bounds.items()} == {name: name in "ab" for name in chosen}
    with pytest.raises(UsageError, match="not-invertible"):
        bounds["c"].subtract(pa.table({"c": [1]}), pa.table({"c": [1]}))


@pytest.mark.spark
def test_aggregates_on_spark_are_those_of_the_standalone_runner(spark: Any, tmp_path: Path) -> None:
    def partition_by(of: pa.Table) -> pa.Array:
        found = of.group_by("group", use_threads=False).aggregate([("v", "max"), ("v", "min")])
        return pc.subtract(found["v_max"], found["v_min"])

    description = (
        ts.stream(event_time="t", watermark_delay="5 seconds")
        .group_by("k")
        .window(ts.sliding("30 seconds", "10 seconds"))
        .aggregate(
            values=agg.list("v"),
            best=agg.top_n("id", 3, by="v"),
            often=agg.count_by_value("v"),
            about=agg.count_distinct_approx("v"),
            middle=agg.median("v"),
            deviation=agg.stddev("v"),
            newest=agg.last("v", by="id"),
            own=own(name="spark-sum"),
            partition_by=agg.apply_rows(partition_by, columns=["v"], result_type=pa.int64()),
        )
        .allowed_lateness("1 minute")
        .accumulation("retracting")
    )
    tables = [batch([(0.0, "a", 1)]), *sample(2, 60)]
    for number, table in enumerate(tables):
        write(tmp_path / "input", number, table)
    source = spark.readStream.schema("t timestamp, k string, v long, id long").option("maxFilesPerTrigger", 1)
    stream = source.parquet(str(tmp_path / "input"))
    query = description.on_spark(stream, checkpoint=tmp_path / "spark", partitions=2).start()
    query.processAllAvailable()
    query.stop(drain=True)
    alone = description.standalone(checkpoint=tmp_path / "alone").run(tables, drain=True)
    assert sorted(map(repr, observed(tmp_path / "spark"))) == sorted(map(repr, rows(alone)))


def observed(root: Path) -> list[tuple[object, ...]]:
    import pyarrow.parquet as pq

    from tidestate.recovery.log.checkpoint import Checkpoint

    checkpoint = Checkpoint.open(root)
    refs = [ref for manifest in checkpoint.history() for ref in manifest.panes]
    return rows(pa.concat_tables([pq.read_table(checkpoint.objects.locate(ref.path)) for ref in refs]))


LISTS = (Column("v", "list<item: int64>"), Column("w", "list<item: int64>"), Column("n", "int64"))
NESTED = (Column("v", "list<item: list<item: int64>>"), Column("w", "list<item: double>"))
WRONG_GROUPS: dict[str, tuple[tuple[Column, ...], Group]] = {
    "union of two": (LISTS, Group(("v", "w"), "union")),
    "union of no list": (LISTS, Group(("n",), "union")),
    "union of lists of lists": (NESTED, Group(("v",), "union")),
    "tally of one": (LISTS, Group(("v",), "tally")),
    "tally in doubles": (NESTED, Group(("w",), "tally")),
    "largest by nothing": (LISTS, Group(("v", "w"), "largest")),
    "smallest by another": (LISTS, Group(("v",), "smallest", by="w")),
    "fewer than none": (LISTS, Group(("v", "w"), "smallest", by="w", limit=-1)),
    "newest by nothing": (LISTS, Group(("v", "n"), "arg_max_newest")),
    "newest by a list": (LISTS, Group(("v", "n"), "arg_max_newest", by="v")),
}


@pytest.mark.parametrize(("values", "group"), WRONG_GROUPS.values(), ids=WRONG_GROUPS.keys())
def test_a_group_that_cannot_combine_is_refused(values: tuple[Column, ...], group: Group) -> None:
    with pytest.raises(UsageError, match="table-groups"):
        TableSpec("table", (Column("k", "int64"),), values, groups=(group,))
