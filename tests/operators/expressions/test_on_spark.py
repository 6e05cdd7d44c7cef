"""Drawn expressions against Spark's own: the same values for the same rows, but for what has a name here."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.helpers.drawn_expressions import DRAWN_COLUMNS, RULES, TRUNCATED_UNITS, Draw, call, rows, table_of
from tests.helpers.spark_expressions import SparkText, Unlike, plain_text
from tests.twins.expressions import CLOCK, plain
from tidestate.operators.expressions.binding import BoundExpression, bind_expression
from tidestate.operators.expressions.printing import expression_text
from tidestate.operators.expressions.spark_sql import TRANSLATES, NoSqlError, spark_sql, spark_type_name
from tidestate.operators.expressions.tree import CallNode, ColumnNode, LiteralNode, columns_needed, nodes_of
from tidestate.statestore.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST = 400
COLUMNS = [field for field in DRAWN_COLUMNS if not str(field.type).startswith("uint")]
DRAW = Draw(spark=True)
PARTS = ("year", "quarter", "month", "day", "day_of_week", "day_of_year", "week", "hour", "minute", "second")
KINDS = ("whole", "float", "decimal", "bool", "text", "date", "time", "clock")
EXCEPTIONS = {
    "lower, upper": "letters outside of ASCII, since Spark 4 by the tables of ICU",
    "like, rlike": "a line break at the end of a text, where Java's $ holds",
    "cast": "the double 2 to the 63, of which Spark makes the largest number of 64 bits",
}


@cache
def drawn() -> tuple[list[BoundExpression], list[dict[str, Any]]]:
    """Expressions that Spark has too, and rows for all of them."""
    found: dict[str, BoundExpression] = {}
    listed: list[dict[str, Any]] = []
    forms = [form() for kind in KINDS for form in DRAW.branches(kind, 2)]
    share = MOST // len(forms) + 1

    @settings(max_examples=3 * share, phases=[Phase.generate])
    @given(st.tuples(*forms), rows(6))
    def draw(trees: tuple[Any, ...], few: list[dict[str, Any]]) -> None:
        listed.extend(few if len(listed) < 60 else [])
        for number, tree in enumerate(trees):
            try:
                bound = bind_expression(tree, DRAWN_COLUMNS, RULES)
                SparkText(DRAWN_COLUMNS).text(tree)
            except (UsageError, Unlike):
                continue
            if drawn_of[number] < share and not has_exception(bound) and expression_text(tree) not in found:
                found[expression_text(tree)] = bound
                drawn_of[number] += 1

    drawn_of = [0] * len(forms)
    draw()
    for name, column in product(PARTS, ("at", "day", "clock")):
        tree = call(name, ColumnNode(column), zone="Europe/Berlin")
        found[expression_text(tree)] = bind_expression(tree, DRAWN_COLUMNS, RULES)
    return list(found.values()), listed


def of_each_function() -> Iterator[CallNode]:
    """Calls with columns of each type: what few draws have, and what the writer of the tests has no SQL for."""
    whole, text, day, at = map(ColumnNode, ("i64", "s", "day", "at"))
    yield from (call(name, at) for name in (*PARTS, "to_date", "to_timestamp", "unix_micros"))
    yield from (call(name, column) for name in PARTS for column in (day, ColumnNode("clock")))
    yield from (call("date_trunc", unit, column) for unit in TRUNCATED_UNITS[:5] for column in (day, at))
    yield from (call("date_trunc", unit, at) for unit in TRUNCATED_UNITS[5:])
    yield from (call(name, text, letters) for name in ("contains", "startswith", "endswith") for letters in "aß'")
    yield from (call("like", text, pattern) for pattern in ("a%", "%\\_%", "_", "${x}%", "%'%"))
    yield from (call("pmod", ColumnNode(name), other) for name in ("i8", "i32", "i64") for other in (-7, 7, whole))
    yield from (call("cast", ColumnNode(name), kind="bool") for name in ("i8", "i64"))
    yield from (call("cast", ColumnNode(name), kind="int64") for name in ("f32", "f64", "d18", "flag"))
    yield from (call(name, ColumnNode("f64")) for name in ("floor", "ceil", "sqrt", "is_nan"))
    yield from (call(name, ColumnNode("d9")) for name in ("floor", "ceil", "round", "neg", "abs"))
    yield from (call(name, text) for name in ("length", "trim", "ltrim", "rtrim", "crc32", "xxhash64"))
    yield from (call(name, ColumnNode("i64"), ColumnNode("i32")) for name in ("int_div", "mod", "ne", "eq_null_safe"))
    yield from (call(name, at, at) for name in ("greatest", "least", "nullif"))
    yield call("date_add", day, whole)
    yield call("substring", text, -3, 2)
    yield call("replace", text, "ab", "")
    yield call("split_part", text, ",", -2)
    yield call("lpad", text, 5, "'x")
    yield call("concat_ws", "$", text, ColumnNode("digits"))
    yield call("between", text, "A", ColumnNode("digits"))
    yield call("when", ColumnNode("flag"), at, call("not", ColumnNode("flag")), None)
    yield call("isin", ColumnNode("f64"), *(float(value) for value in range(-3, 12)))
    yield call("concat", text, "\\n'\"${a}", ColumnNode("digits"))
    yield from (call("timestamp_micros", column) for column in (whole, ColumnNode("i32")))
    yield call("to_timestamp", day)
    yield call("date_diff", day, "2024-02-29")
    yield call("coalesce", at, datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=UTC))
    yield call("coalesce", day, date(1969, 12, 31))
    yield call("lt", ColumnNode("clock"), datetime(2024, 2, 29, 1, 2, 3, 4))
    yield call("eq", ColumnNode("f64"), math.nan)
    yield call("mul", ColumnNode("f64"), -0.0)


def has_exception(bound: BoundExpression) -> bool:
    """Whether it has a node whose value differs by a named exception; those have tests of their own."""
    calls = [node for node in nodes_of(bound.tree) if isinstance(node, CallNode)]
    cased = any(call.function in ("lower", "upper") for call in calls)
    return cased or any(
        call.function in ("like", "rlike")
        and isinstance(call.args[1], LiteralNode)
        and "\n" in (call.args[1].value or "")
        for call in calls
    )


@contextmanager
def settings_of(spark: SparkSession, values: dict[str, str]) -> Iterator[None]:
    """A session with these settings, which has its own again afterwards."""
    former = {name: spark.conf.get(name, None) for name in values}
    try:
        for name, value in values.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, own in former.items():
            if own is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, own)


def differences(
    spark: SparkSession, folder: Path, texts: list[tuple[BoundExpression, str]]
) -> list[tuple[str, str, object, object, dict[str, Any]]]:
    """Of each expression the first row for which Spark gives another value for its text."""
    _, listed = drawn()
    table = table_of(listed)
    pq.write_table(table.select([field.name for field in COLUMNS]), folder / "rows.parquet")
    frame = spark.read.parquet(str(folder / "rows.parquet")).coalesce(1)
    named = [f"{text} AS c{place}" for place, (_, text) in enumerate(texts)]
    answers = [row.asDict() for row in frame.selectExpr(*named).collect()]
    wrong = []
    for place, (bound, text) in enumerate(texts):
        values = [plain(value) for value in bound.evaluate(table)]
        theirs = [answer[f"c{place}"] for answer in answers]
        wrong += [
            (expression_text(bound.tree), text, value, other, {name: row[name] for name in bound.columns})
            for value, other, row in zip(values, theirs, listed, strict=True)
            if not is_same(value, other)
        ][:1]
    return wrong


def product_text(bound: BoundExpression) -> str | None:
    """The SQL by which the product has it computed; None if rows are handed over for it."""
    try:
        return spark_sql(bound.tree, DRAWN_COLUMNS, {name: f"`{name}`" for name in DRAWN_COLUMNS.names})
    except NoSqlError:
        return None


def test_drawn_expressions_are_those_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    expressions, _ = drawn()
    assert len(expressions) > MOST * 0.7
    writer, texts = SparkText(DRAWN_COLUMNS), list[tuple[BoundExpression, str]]()
    for bound in expressions:
        texts.append((bound, plain_text(writer.text(bound.tree), bound.type)))
    with settings_of(spark, {"spark.sql.session.timeZone": "UTC", "spark.sql.ansi.enabled": "true"}):
        wrong = differences(spark, tmp_path, texts)
    assert not wrong, f"{len(wrong)} of {len(expressions)}"


SESSIONS: dict[str, dict[str, str]] = {
    "ansi": {
        "spark.sql.ansi.enabled": "true",
        "spark.sql.session.timeZone": "America/St_Johns",
        "spark.sql.caseSensitive": "true",
        "spark.sql.optimizer.inSetConversionThreshold": "0",
    },
    "not ansi": {
        "spark.sql.ansi.enabled": "false",
        "spark.sql.session.timeZone": "Asia/Kathmandu",
        "spark.sql.parser.escapedStringLiterals": "true",
        "spark.sql.decimalOperations.allowPrecisionLoss": "false",
        "spark.sql.storeAssignmentPolicy": "LEGACY",
        "spark.sql.legacy.timeParserPolicy": "LEGACY",
    },
}


@pytest.mark.parametrize("session", SESSIONS)
def test_what_the_product_has_computed_is_the_same_in_any_session(
    spark: SparkSession, tmp_path: Path, session: str
) -> None:
    expressions = [*drawn()[0], *(bind_expression(tree, DRAWN_COLUMNS) for tree in of_each_function())]
    texts = [(bound, text) for bound in expressions if (text := product_text(bound)) is not None]
    shown = [(bound, plain_text(text, bound.type)) for bound, text in texts if bound.type != CLOCK]
    with settings_of(spark, SESSIONS[session]):
        wrong = differences(spark, tmp_path, shown)
        empty = spark.read.parquet(str(tmp_path / "rows.parquet")).limit(0)
        frame = empty.selectExpr(*(f"{text} AS c{place}" for place, (_, text) in enumerate(texts)))
    assert not wrong, f"{len(wrong)} of {len(shown)}"
    kinds = [field.dataType.simpleString() for field in frame.schema.fields]
    assert kinds == [spark_type_name(bound.type) for bound, _ in texts]
    assert len(shown) > len(expressions) * 0.4
    assert {expression_text(tree) for tree in of_each_function()} <= {
        expression_text(bound.tree) for bound, _ in texts
    }
    # Calls of literals are computed by the product, also of functions that are not in the table.
    nodes = (node for bound, _ in shown for node in nodes_of(bound.tree) if columns_needed(node))
    assert {node.function for node in nodes if isinstance(node, CallNode)} == set(TRANSLATES)


def is_same(value: Any, other: Any) -> bool:
    if isinstance(value, float) and isinstance(other, float):
        return (math.isnan(value) and math.isnan(other)) or value == other
    return bool(value == other) and (value is None) == (other is None)


def test_the_exceptions_are_few() -> None:
    assert len(EXCEPTIONS) < 6
