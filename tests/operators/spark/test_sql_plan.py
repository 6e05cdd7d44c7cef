"""Of which jobs and columns Spark SQL makes partials, without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, IntegerType, StructType

import tidestate as ts
from tidestate import OperatorStream, agg, trigger, watermark
from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.plan.slicing import Slicing
from tidestate.operators.progress.watermarks import BEGINNING_US
from tidestate.operators.spark.sql_partials import SqlPlan, joined_halves, sql_plan
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
