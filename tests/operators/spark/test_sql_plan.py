"""Of which jobs and columns Spark SQL makes partials, without Spark."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, IntegerType, StructType

import tidestate as ts
from tidestate import OperatorStream, agg, fn, trigger, watermark
from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.expressions.builder import expr
from tidestate.operators.plan.graph import sent_name
from tidestate.operators.plan.slicing import Slicing
from tidestate.operators.progress.watermarks import BEGINNING_US
from tidestate.operators.spark.sql_columns import SqlValue
from tidestate.operators.spark.sql_partials import Bounds, SqlPlan, entries_query, joined_halves, sql_plan
from tidestate.operators.spark.types import arrow_schema

COLUMNS: dict[str, str | ArrayType] = {
    "t": "timestamp",
    "n": "timestamp_ntz",
    "k": "string",
    "v": "long",
    "x": "double",
    "d": "decimal(10,2)",
    "w": "decimal(29,2)",
    "a": ArrayType(IntegerType()),
}
READ = ts.stream(event_time="t", watermark_delay="5 seconds")
MINUTE = ts.tumbling("1 minute")


def counted(read: Any = READ, windows: Any = MINUTE, key: str = "k", **more: Any) -> OperatorStream:
    return read.group_by(key).window(windows).aggregate(n=agg.count(), **more)


def typed(columns: Mapping[str, str | ArrayType]) -> StructType:
    made = StructType()
    for name, kind in columns.items():
        made.add(name, kind)
    return made


def asked(described: OperatorStream, **changed: str) -> SqlPlan | str:
    """What is said of a job whose first input had `COLUMNS`, and whose batch has some of other types."""
    first, batch = typed(COLUMNS), typed({**COLUMNS, **changed})
    graph = bind_graph(described.graph.description, {"": arrow_schema(first, first.names)})
    return sql_plan(graph, StructType([field for field in batch.fields if field.name in graph.columns]))


MADE = {
    "tumbling": counted(x=agg.sum("v"), y=agg.mean("x"), z=agg.max("d")),
    "sliding": counted(windows=ts.sliding("1 minute", "15 seconds")),
    "retracting": counted().accumulation("retracting"),
    "by the clock": counted(ts.stream(event_time="t").watermark(watermark.fixed("1 minute"))),
    "by source": counted(ts.stream(event_time="t").watermark(watermark.bounded("1 minute", "t"), by="k")),
    "any column in the ledger": counted().allowed_lateness("1 minute", ledger_columns=["x", "v", "n"]),
    "a filter": counted(READ.where("v > 3 and k like 'a%'"), x=agg.sum("v")),
    "computed columns": counted(READ.with_columns(y="v * 2", q="k"), key="q", z=agg.max("y")),
    "a selection": counted(READ.select("t", key="concat(k, '!')"), key="key"),
    "a computed time": counted(
        ts.stream(event_time="at", watermark_delay="1 minute").with_columns(at="timestamp_micros(v)")
    ),
    "a computed source": counted(
        ts.stream(event_time="t").watermark(watermark.bounded("1 minute", "t"), by="s").with_columns(s="v % 7")
    ),
    "expectations": counted(READ.expect("positive", "v > 0").expect("small", "x < 3", otherwise="count")),
    "some rows": counted(m=agg.sum("v", where="x > 0"), c=agg.count(where="k = 'a'"), e=agg.mean(expr("v / x"))),
    "results of results": counted(x=agg.sum("v")).derive(y="x / n").having("y > 1").accumulation("retracting"),
}
REFUSED = {
    "sessions": (counted(windows=ts.sessions("1 minute")), "windows are not of a fixed span"),
    "gaps": (counted(windows=ts.sliding("1 minute", "2 minutes", strict=False)), "without gaps"),
    "an early pane": (counted().trigger(early=trigger.each_batch()), "before they are due"),
    "another aggregate": (counted(m=agg.median("v")), "'m' is"),
    "variance": (counted(m=agg.variance("v")), "'m' is variance"),
    "the first value": (counted(m=agg.first("v", by="t")), "'m' is"),
    "text": (counted(m=agg.max("k")), "'m' is a max of type string"),
    "a wide decimal": (counted(m=agg.sum("w")), "'m' is a sum of type decimal(29,2)"),
    "a float as a source": (
        counted(ts.stream(event_time="t").watermark(watermark.bounded("1 minute", "t"), by="x")),
        "the column 'x' of type double is read, as a key",
    ),
    "a list": (counted().allowed_lateness("1 minute", ledger_columns=["a"]), "the column 'a' of type array<int>"),
    "processing time": (counted(ts.stream(processing_time=True)), "that the job gives them"),
    "a mark in the stream": (
        counted(ts.stream(event_time="t").watermark(watermark.punctuated("t", flag="k", equals="x"))),
        "that the job gives them",
    ),
    "a function of a filter": (counted(READ.where("k rlike 'a+'")), "expression: rlike of a filter is not computed"),
    "a function of a column": (
        counted(READ.with_columns(u="upper(k)"), key="u"),
        "expression: upper of column u is not computed by Spark SQL",
    ),
    "a function of a condition": (
        counted(m=agg.count(where="exp(x) > 1")),
        "expression: exp of aggregate m is not computed by Spark SQL",
    ),
    "a function of a value": (counted(m=agg.sum(expr("round(x, 1)"))), "expression: round of double of aggregate m"),
    "a function of an expectation": (counted(READ.expect("known", "k rlike 'a'")), "rlike of expectation known"),
    "the clock of a zone": (
        counted(READ.with_columns(h=fn.hour("t", zone="Europe/Berlin")), key="h"),
        "expression: hour by the clock of a zone of column h",
    ),
    "a computed decimal": (counted(m=agg.sum(expr("w * 2"))), "'m' is a sum of type decimal(31,2)"),
    "a computed float as a source": (
        counted(ts.stream(event_time="t").watermark(watermark.bounded("9 s", "t"), by="f").with_columns(f="x + 1")),
        "the column 'f' of type double is read, as a key",
    ),
    "a computed text": (counted(m=agg.max(expr("concat(k, 'a')"))), "'m' is a max of type string"),
    "another column": (
        counted(ts.stream(event_time="t").watermark(watermark.bounded("1 minute", "n"))),
        "not that of the largest event times",
    ),
}


@pytest.mark.parametrize("name", MADE)
def test_partials_are_made_of(name: str) -> None:
    made = asked(MADE[name])
    assert isinstance(made, SqlPlan), made


@pytest.mark.parametrize("name", REFUSED)
def test_partials_are_not_made_of(name: str) -> None:
    described, why = REFUSED[name]
    assert why in str(asked(described))


def test_a_column_that_only_stages_read_has_its_type_too() -> None:
    described = counted(READ.where("v > 1"))
    assert asked(described, v="integer") == "the column 'v' has another type than in the first input"


def test_why_a_stream_that_is_decoded_is_handed_over() -> None:
    read = ts.stream(event_time="t", watermark_delay="1 s", decode=ts.json("k", {"user": "string"}))
    assert asked(counted(read, key="user")) == "its rows are decoded in the tasks"


def test_a_column_that_is_only_renamed_is_sent_once() -> None:
    made = asked(counted(READ.select("t", user="k", total="v + 1"), key="user", x=agg.sum("total")))
    assert isinstance(made, SqlPlan)
    assert made.judged == {"t": "t1", "k": "k0"}
    assert made.others == ["v"]


def test_stages_see_what_is_computed_before_them() -> None:
    read = READ.with_columns(v="v + 1").where("v > 1").with_columns(v="v * 2").where("v < 9")
    made = asked(counted(read, x=agg.sum("v")))
    assert isinstance(made, SqlPlan)
    first, second, third, fourth = made.columns.levels
    assert first == {"s1": f"try_add({made.read_names['v']}, CAST('1' AS bigint))"}
    assert second == {"f2": "coalesce((s1 > CAST('1' AS bigint)), false)"}
    assert third == {"s3": "try_multiply(s1, CAST('2' AS bigint))"}
    assert fourth["f4"].startswith("coalesce((s3 <")
    assert made.columns.names["v"] == "s3"
    assert made.columns.kept == ("f2", "f4")


def test_a_column_is_computed_of_the_row_as_it_was() -> None:
    made = asked(counted(READ.with_columns(v="v + 1", u="v * 2"), x=agg.sum("u")))
    assert isinstance(made, SqlPlan)
    read = made.read_names["v"]
    assert made.columns.levels[0]["s2"] == f"try_multiply({read}, CAST('2' AS bigint))"


def test_a_count_of_some_rows_is_a_sum_that_may_be_null() -> None:
    made = asked(counted(c=agg.count(where="v > 1"), m=agg.mean("x", where="v > 1")))
    assert isinstance(made, SqlPlan)
    names = made.read_names
    condition = f"({names['v']} > CAST('1' AS bigint))"
    taken = f"CASE WHEN {names['x']} IS NULL THEN 0 ELSE 1 END"
    assert made.values == (
        None,
        SqlValue("sum", f"CASE WHEN {condition} THEN 1 END", "int"),
        SqlValue("sum", f"CASE WHEN {condition} THEN {names['x']} END", "double"),
        SqlValue("sum", f"CASE WHEN {condition} THEN {taken} END", "int"),
    )


def test_a_column_that_has_another_type_now_is_handed_over() -> None:
    assert asked(counted(x=agg.sum("v")), v="integer") == "the column 'v' has another type than in the first input"
    assert isinstance(asked(counted(x=agg.sum("x")), v="integer"), SqlPlan)


@pytest.mark.parametrize(
    ("rule", "lateness", "first_us"),
    [("event", "0 seconds", 130_000_000), ("event", "30 seconds", 100_000_000), ("window", "0 seconds", 120_000_000)],
)
def test_rows_from_the_first_bound_on_are_taken(rule: Any, lateness: str, first_us: int) -> None:
    made = asked(counted().allowed_lateness(lateness, rule=rule))
    assert isinstance(made, SqlPlan)
    slicing: Slicing = made.slicing
    assert slicing.taken_from(130_000_000) == first_us
    assert slicing.taken_from(BEGINNING_US) == BEGINNING_US
    assert (slicing.width_us, slicing.shift_us) == (60_000_000, 0)
    assert made.plan.input.schema.field("t").type == pa.timestamp("us", tz="UTC")


def test_sums_of_halves_are_sums() -> None:
    least, most = -(2**63), 2**63 - 1
    groups = [[least] * 3, [most, most, 1], [-1, 2**32], [least, most], [5], []]
    for given in (groups, groups[2:]):  # with sums beyond 64 bits, and without
        low = [sum(value & (2**32 - 1) for value in group) if group else None for group in given]
        high = [sum(value >> 32 for value in group) if group else None for group in given]
        sums = joined_halves(pa.chunked_array([low], pa.int64()), pa.chunked_array([high], pa.int64()))
        assert [None if one.as_py() is None else int(one.as_py()) for one in sums] == [
            sum(g) if g else None for g in given
        ]


def test_bounds_stay_out_of_the_code_that_spark_generates() -> None:
    plan = asked(MADE["any column in the ledger"])
    assert isinstance(plan, SqlPlan)
    numbers = (1_100, 2_200, 3_300, 4_400, 550)
    query = entries_query(plan, Bounds(*numbers))
    outside = re.sub(r"array\(\d+L\)", "", query)
    assert len(query) - len(outside) == sum(len(f"array({number}L)") for number in numbers)
    assert not [number for number in numbers if str(number) in outside]


def test_a_name_with_braces_is_that_of_a_column() -> None:
    schema = StructType().add("t", "timestamp").add("{k}", "string")
    graph = bind_graph(counted(key="{k}").graph.description, {"": arrow_schema(schema, schema.names)})
    plan = sql_plan(graph, schema)
    assert isinstance(plan, SqlPlan)
    assert "`{k}`" in entries_query(plan, Bounds(0, 1, None, None, 16)).format(rows="rows")


def test_a_name_with_a_variable_is_that_of_a_column() -> None:
    schema = StructType().add("t", "timestamp").add("k", "string").add("v", "long").add("v${x}", "long")
    described = counted(m=agg.sum("v"), w=agg.sum("v${x}"))
    graph = bind_graph(described.graph.description, {"": arrow_schema(schema, schema.names)})
    batch = StructType().add("t", "timestamp").add("k", "string").add("v", "long").add(sent_name("v${x}"), "long")
    plan = sql_plan(graph, batch)
    assert isinstance(plan, SqlPlan)
    assert "$" not in entries_query(plan, Bounds(0, 1, None, None, 16))
