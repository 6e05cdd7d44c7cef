"""Trees as text of Spark SQL, without Spark: what is written, and what is not. That values are the same is shown by
`tests/operators/expressions/test_on_spark.py`.
"""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.helpers.drawn_expressions import DRAWN_COLUMNS, call
from tidestate.operators.expressions.names import FUNCTION_NAMES
from tidestate.operators.expressions.parsing import parse_expression
from tidestate.operators.expressions.spark_sql import MOST_SQL, TRANSLATES, NoSqlError, spark_sql, spark_type_name
from tidestate.operators.expressions.tree import ColumnNode, ExprNode, literal_node

NAMES = {name: f"`{name}`" for name in DRAWN_COLUMNS.names}
AT = ColumnNode("at")


def written(tree: ExprNode) -> str:
    return spark_sql(tree, DRAWN_COLUMNS, NAMES)


def parsed(text: str) -> ExprNode:
    return parse_expression(text)


def test_only_stored_functions_are_written() -> None:
    assert set(TRANSLATES) < FUNCTION_NAMES
    refused = FUNCTION_NAMES - set(TRANSLATES)
    assert {"rlike", "lower", "upper", "date_format", "pow", "ln", "exp", "iso_year"} <= refused


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        ("i64 > 3", "(`i64` > CAST('3' AS bigint))"),
        ("i8 + i32", "try_add(try_cast(`i8` AS int), `i32`)"),
        ("i64 / 2", "try_divide(CAST(`i64` AS double), CAST('2.0' AS double))"),
        ("s = 'a b'", "(`s` = 'a b')"),
        ("s is null or not flag", "((`s` IS NULL) OR (NOT `flag`))"),
        ("d9 * 2", "CAST(try_multiply(`d9`, CAST('2' AS decimal(1,0))) AS decimal(11,2))"),
        ("hour(at)", "CAST(pmod(unix_micros(`at`), 86400000000L) DIV 3600000000L AS int)"),
        ("1 + 2", "CAST('3' AS bigint)"),
        ("coalesce(flag, null)", "coalesce(`flag`, CAST(NULL AS boolean))"),
    ],
)
def test_what_is_written(text: str, sql: str) -> None:
    assert written(parsed(text)) == sql


LITERALS: dict[str, tuple[object, str]] = {
    "empty": ("", "''"),
    "a quote": ("it's", "CAST(X'69742773' AS string)"),
    "a backslash": ("a\\b", "CAST(X'615c62' AS string)"),
    "a variable": ("${spark.app.name}", "CAST(X'247b737061726b2e6170702e6e616d657d' AS string)"),
    "not ASCII": ("ß", "CAST(X'c39f' AS string)"),
    "bytes": (b"\x00\xff", "X'00ff'"),
    "true": (True, "true"),
    "the least": (-(2**63), "CAST('-9223372036854775808' AS bigint)"),
    "a negative zero": (-0.0, "CAST('-0.0' AS double)"),
    "NaN": (math.nan, "CAST('NaN' AS double)"),
    "infinite": (-math.inf, "CAST('-Infinity' AS double)"),
    "a large float": (1e22, "CAST('1e+22' AS double)"),
    "a decimal": (Decimal("1.50"), "CAST('1.50' AS decimal(3,2))"),
    "a date": (date(1969, 12, 31), "date_from_unix_date(-1)"),
    "a time": (datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC), "timestamp_micros(CAST('-1000000' AS bigint))"),
    "a clock": (datetime(2024, 2, 29, 1, 2, 3, 4), "TIMESTAMP_NTZ'2024-02-29 01:02:03.000004'"),
    "null": (None, "CAST(NULL AS boolean)"),
}


@pytest.mark.parametrize("name", LITERALS)
def test_literals_are_exact_whatever_a_parser_is_told(name: str) -> None:
    value, sql = LITERALS[name]
    assert written(literal_node(value)) == sql


REFUSED: dict[str, tuple[Any, str]] = {
    "a regular expression": (call("rlike", ColumnNode("s"), "a+"), "rlike"),
    "letters": (call("upper", ColumnNode("s")), "upper"),
    "a format": (call("date_format", AT, "yyyy"), "date_format"),
    "a zone": (call("add", call("hour", AT, zone="Europe/Berlin"), 1), "hour by the clock of a zone"),
    "a zone in a literal": (call("hour", datetime(2024, 1, 1, tzinfo=UTC), zone="Asia/Kathmandu"), "clock of a zone"),
    "a float as text": (call("cast", ColumnNode("f64"), kind="string"), "cast from double to string"),
    "a text as a number": (call("cast", ColumnNode("digits"), kind="int64"), "cast from string to bigint"),
    "a decimal as a float": (call("cast", ColumnNode("d9"), kind="float"), "cast from decimal(9,2) to float"),
    "rounded floats": (call("round", ColumnNode("f64"), 2), "round of double"),
    "an unsigned number": (call("add", ColumnNode("u32"), 1), "a value of type uint32"),
    "an interval": (call("sub", AT, AT), "a value of type duration"),
    "the clock of a place": (call("date_trunc", "hour", ColumnNode("clock")), "date_trunc of timestamp_ntz"),
    "a date as the clock of a place": (
        call("lt", ColumnNode("day"), ColumnNode("clock")),
        "cast from date to timestamp_ntz",
    ),
    "a pattern with a line break": (call("like", ColumnNode("s"), "a\n"), "like of a pattern with a line break"),
    "a long quotient": (call("div", ColumnNode("d9"), ColumnNode("i64")), "div of decimals"),
    "a far time": (call("lt", ColumnNode("clock"), call("add", datetime(9999, 1, 1), timedelta(days=400))), "9999"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_written(name: str) -> None:
    tree, why = REFUSED[name]
    with pytest.raises(NoSqlError) as refused:
        written(tree)
    assert why in str(refused.value)


def test_sums_of_decimals_that_spark_would_shorten() -> None:
    schema = pa.schema({"x": pa.decimal128(38, 10)})
    with pytest.raises(NoSqlError, match="39 digits"):
        spark_sql(parsed("x + x"), schema, {"x": "x"})


def test_bytes_are_passed_on_and_no_more() -> None:
    schema = pa.schema({"raw": pa.binary()})
    assert spark_sql(ColumnNode("raw"), schema, {"raw": "r0"}) == "r0"
    with pytest.raises(NoSqlError, match="length of binary"):
        spark_sql(call("length", ColumnNode("raw")), schema, {"raw": "r0"})


def test_a_text_has_an_end() -> None:
    """A value that is written twice in each of many calls."""
    tree: ExprNode = ColumnNode("i64")
    for _ in range(20):
        tree = call("neg", tree)
    with pytest.raises(NoSqlError, match=str(MOST_SQL)):
        written(tree)


def test_types_have_their_names_in_spark() -> None:
    assert spark_type_name(pa.decimal128(10, 2)) == "decimal(10,2)"
    assert spark_type_name(pa.decimal128(2, 5)) is None
    assert spark_type_name(pa.timestamp("us", "UTC")) == "timestamp"
    assert spark_type_name(pa.list_(pa.int8())) is None
