"""Which columns of Spark's aggregation state belong to which aggregate: in exactly one way, or refused."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from tidestate.agg import count, mean
from tidestate.agg import max as max_
from tidestate.agg import min as min_
from tidestate.agg import sum as sum_
from tidestate.operators.adopt.buffers import match_buffers, state_columns
from tidestate.operators.aggregates.aggregate import Aggregate, BoundAggregate, bind
from tidestate.statestore.errors import UsageError

SCHEMA = pa.schema(
    {"i": pa.int32(), "d": pa.float64(), "p": pa.decimal128(10, 2), "t": pa.string(), "t2": pa.string()}
)
DECIMAL = pa.decimal128(20, 2)
LONG, DOUBLE = pa.int64(), pa.float64()


def bound(**aggregates: Aggregate) -> list[BoundAggregate]:
    return [bind(name, one, SCHEMA) for name, one in aggregates.items()]


def fields(*columns: tuple[str, pa.DataType]) -> list[pa.Field]:
    return [pa.field(*column) for column in columns]


def test_every_function_in_any_order() -> None:
    job = bound(n=count(), m=mean("d"), s=sum_("i"), x=max_("t"), y=min_("i"), ps=sum_("p"), pm=mean("p"))
    spark = fields(
        ("min", pa.int32()),
        ("sum", DECIMAL),
        ("isEmpty", pa.bool_()),
        ("sum", DOUBLE),
        ("count", LONG),
        ("count", LONG),
        ("max", pa.string()),
        ("sum", DECIMAL),
        ("count", LONG),
        ("sum", LONG),
    )
    found = match_buffers(job, spark, {})
    assert found == {"y": 0, "ps": 1, "m": 3, "n": 5, "x": 6, "pm": 7, "s": 9}


@pytest.mark.parametrize(
    "spark",
    [
        [("count", LONG), ("count", LONG)],
        [("count", LONG)],
        [("max", DOUBLE), ("count", LONG)],
        [("max", pa.string()), ("count", pa.int32())],
        [("max", pa.string()), ("count", LONG), ("buf", pa.binary())],
        [],
    ],
)
def test_other_aggregates_are_refused(spark: list[tuple[str, pa.DataType]]) -> None:
    with pytest.raises(UsageError, match="adopt-aggregate"):
        match_buffers(bound(n=count(), x=max_("t")), fields(*spark), {})


def test_two_that_look_the_same_are_named() -> None:
    job, spark = bound(x=max_("t"), y=max_("t2")), fields(("max", pa.string()), ("max", pa.string()))
    with pytest.raises(UsageError, match="adopt-ambiguous") as raised:
        match_buffers(job, spark, {})
    assert raised.value.context["unclear"] == ["x", "y"]
    assert match_buffers(job, spark, {"x": 1}) == {"y": 0, "x": 1}
    for wrong in ({"x": 2}, {"z": 0}, {"x": 0, "y": 0}):
        with pytest.raises(UsageError, match="adopt-aggregate"):
            match_buffers(job, spark, wrong)


def test_columns_that_two_queries_keep_are_what_the_job_describes() -> None:
    spark = fields(("sum", DOUBLE), ("count", LONG))
    assert match_buffers(bound(m=mean("d")), spark, {}) == {"m": 0}
    assert match_buffers(bound(s=sum_("d"), n=count()), spark, {}) == {"s": 0, "n": 1}


def test_sums_that_spark_has_not_kept_exactly_are_refused() -> None:
    (of_ints, of_decimals) = bound(m=mean("i"), p=sum_("p"))
    counts = pa.array([1, 1, 0])
    made = state_columns(of_ints, [pa.array([-3.0, 2.0**53 - 1, 0.0]), counts])
    assert [column.to_pylist() for column in made] == [[-3, 2**53 - 1, 0], [1, 1, 0]]
    for wrong in (2.0**53, 0.5, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="adopt-inexact"):
            state_columns(of_ints, [pa.array([wrong]), pa.array([1])])
    (none,) = state_columns(of_decimals, [pa.array([None], DECIMAL), pa.array([True])])
    assert none.type == pa.decimal128(38, 2)
    assert none.to_pylist() == [None]
    with pytest.raises(UsageError, match="overflowed"):
        state_columns(of_decimals, [pa.array([None], DECIMAL), pa.array([False])])


def test_a_sum_of_nulls_alone_is_null() -> None:
    (of_decimals,) = bound(p=sum_("p"))
    (state,) = state_columns(of_decimals, [pa.array([0, 5], DECIMAL), pa.array([True, False])])
    assert state.to_pylist() == [None, Decimal(5)]


def test_decimals_of_few_digits_are_whole_numbers_in_spark() -> None:
    few = pa.schema({"p": pa.decimal128(8, 2)})
    total, average = bind("s", sum_("p"), few), bind("m", mean("p"), few)
    spark = fields(("sum", LONG), ("sum", DOUBLE), ("count", LONG))
    assert match_buffers([average, total], spark, {}) == {"s": 0, "m": 1}
    (state,) = state_columns(total, [pa.chunked_array([[1234, None], [-5]], LONG)])
    assert state.to_pylist() == [Decimal("12.34"), None, Decimal("-0.05")]
    sums, counts = state_columns(average, [pa.array([1234.0, None], DOUBLE), pa.array([2, 0])])
    assert (sums.to_pylist()[0], counts.to_pylist()) == (Decimal("12.34"), [2, 0])
    with pytest.raises(UsageError, match="adopt-inexact"):
        state_columns(average, [pa.array([2.0**54], DOUBLE), pa.array([2])])
