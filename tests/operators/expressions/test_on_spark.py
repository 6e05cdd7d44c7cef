"""Drawn expressions against Spark's own: the same values for the same rows, but for what has a name here."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.helpers.drawn_expressions import DRAWN_COLUMNS, RULES, Draw, call, rows, table_of
from tests.helpers.spark_expressions import SparkText, Unlike, plain_text
from tests.twins.expressions import plain
from tidestate.operators.expressions.binding import BoundExpression, bind_expression
from tidestate.operators.expressions.printing import expression_text
from tidestate.operators.expressions.tree import CallNode, ColumnNode, LiteralNode, nodes_of
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


def test_drawn_expressions_are_those_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    expressions, listed = drawn()
    assert len(expressions) > MOST * 0.7
    table = table_of(listed)
    pq.write_table(table.select([field.name for field in COLUMNS]), tmp_path / "rows.parquet")
    zone, ansi = (spark.conf.get(name) for name in ("spark.sql.session.timeZone", "spark.sql.ansi.enabled"))
    try:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        spark.conf.set("spark.sql.ansi.enabled", "true")
        frame = spark.read.parquet(str(tmp_path / "rows.parquet")).coalesce(1)
        writer = SparkText(DRAWN_COLUMNS)
        texts = [
            f"{plain_text(writer.text(bound.tree), bound.type)} AS c{place}"
            for place, bound in enumerate(expressions)
        ]
        answers = [row.asDict() for row in frame.selectExpr(*texts).collect()]
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
        spark.conf.set("spark.sql.ansi.enabled", ansi)
    wrong = []
    for place, bound in enumerate(expressions):
        values = [plain(value) for value in bound.evaluate(table)]
        theirs = [answer[f"c{place}"] for answer in answers]
        wrong += [
            (expression_text(bound.tree), texts[place], value, other, {name: row[name] for name in bound.columns})
            for value, other, row in zip(values, theirs, listed, strict=True)
            if not is_same(value, other)
        ][:1]
    assert not wrong, f"{len(wrong)} of {len(expressions)}"


def is_same(value: Any, other: Any) -> bool:
    if isinstance(value, float) and isinstance(other, float):
        return (math.isnan(value) and math.isnan(other)) or value == other
    return bool(value == other) and (value is None) == (other is None)


def test_the_exceptions_are_few() -> None:
    assert len(EXCEPTIONS) < 6
