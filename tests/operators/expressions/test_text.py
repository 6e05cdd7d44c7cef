"""The text of expressions, both ways; and text that is none."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.drawn_expressions import Draw, call
from tidestate.operators.expressions.builder import Expr, col, expr, lit, when
from tidestate.operators.expressions.names import FUNCTION_NAMES, SIGNATURES
from tidestate.operators.expressions.parsing import parse_expression
from tidestate.operators.expressions.printing import expression_text
from tidestate.operators.expressions.sql_types import sql_name, type_named
from tidestate.operators.expressions.tree import CallNode, ColumnNode, ExprNode, LiteralNode, literal_node
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.arrowtypes import type_text

NAMES = st.text(min_size=1, max_size=8) | st.sampled_from(
    ["and", "Date", "null", "x", "zone", "a`b", "a.b", "end", "interval"]
)
VALUES = st.one_of(
    *(st.text(max_size=10), st.binary(max_size=6), st.booleans(), st.none()),
    *(st.integers(-(2**63), 2**63 - 1), st.floats(), st.dates(), st.datetimes(), st.timedeltas()),
    st.datetimes(timezones=st.timezones()),
    st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**20), max_value=10**20),
)


def literals() -> st.SearchStrategy[ExprNode]:
    return VALUES.filter(is_literal).map(literal_node)


def is_literal(value: object) -> bool:
    try:
        literal_node(value)
    except UsageError:
        return False  # a time before the year 1 in UTC
    return True


@st.composite
def calls(draw: st.DrawFn, parts: st.SearchStrategy[ExprNode]) -> ExprNode:
    """Any function of any arguments: text does not ask whether types fit."""
    name = draw(st.sampled_from(sorted(FUNCTION_NAMES)))
    signature = SIGNATURES[name]
    maximum = signature.minimum + 2 if signature.maximum is None else signature.maximum
    args = tuple(draw(st.lists(parts, min_size=signature.minimum, max_size=maximum)))
    if name == "cast":
        kinds = (
            "bigint",
            "double",
            "decimal(12,3)",
            "string",
            "boolean",
            "date",
            "timestamp",
            "timestamp_ntz",
            "binary",
        )
        return CallNode(name, args, type=type_text(type_named(draw(st.sampled_from(kinds)))))  # type: ignore[arg-type]
    zone = draw(st.sampled_from([None, "UTC", "Europe/Berlin"])) if signature.takes_zone else None
    return CallNode(name, args, zone)


TREES = st.recursive(literals() | NAMES.map(ColumnNode), calls, max_leaves=12)


@settings(max_examples=settings.default.max_examples * 100)  # type: ignore[union-attr]
@given(TREES)
def test_a_text_is_its_tree_again(tree: ExprNode) -> None:
    text = expression_text(tree)
    assert parse_expression(text) == tree, text
    assert parse_expression(f" ( {text}\n)") == tree, text


@settings(max_examples=settings.default.max_examples * 20)  # type: ignore[union-attr]
@given(Draw().any(4))
def test_a_text_of_what_has_types_is_its_tree_again(tree: ExprNode) -> None:
    assert parse_expression(expression_text(tree)) == tree


@pytest.mark.parametrize(
    ("text", "built"),
    [
        ("price > 0 and country in ('nl', 'de')", (col("price") > 0) & col("country").isin("nl", "de")),
        ("a + b * c - -5", col("a") + col("b") * col("c") - -5),
        ("-a % 2 = 1 or not b", (-col("a") % 2 == 1) | ~col("b")),
        ("a is not null and b <=> null", col("a").isNotNull() & col("b").eqNullSafe(None)),
        ("a not in (1, 2)", ~col("a").isin([1, 2])),
        ("a not between 1 and 2 + 1", ~col("a").between(1, lit(2) + 1)),
        ("s like 'a%' and s not rlike 'b'", col("s").like("a%") & ~col("s").rlike("b")),
        ("case when a > 9 then 'many' when a > 1 then 'few' else 'one' end",
         when(col("a") > 9, "many").when(col("a") > 1, "few").otherwise("one")),
        ("CASE WHEN a THEN 1 END", when(col("a"), 1)),
        ("cast(a as decimal(10, 2))", col("a").cast("decimal(10,2)")),
        ("a.b.`c d` = 'it''s'", col("a").getField("b").getField("c d") == "it's"),
        ("`a.b` == 1 <> true", (col("a.b") == 1) != True),  # noqa: E712
        ("a or b or (c or d)", (col("a") | col("b")) | (col("c") | col("d"))),
        ("(a and b) and c", Expr(call("and", call("and", ColumnNode("a"), ColumnNode("b")), ColumnNode("c")))),
        ("at - interval '90' minutes", col("at") - __import__("datetime").timedelta(hours=1.5)),
        ("-(5)", -lit(5)),
        ("2 div 3", lit(2) // 3),
        ("x'00ff'", lit(b"\x00\xff")),
        ("decimal '1.50' / 1e3", lit(__import__("decimal").Decimal("1.50")) / 1000.0),
    ],
)  # fmt: skip
def test_what_is_written_is_what_python_makes(text: str, built: Expr) -> None:
    assert expr(text).tree == built.tree
    assert parse_expression(expression_text(built.tree)) == built.tree


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", 1),
        ("a +", 4),
        ("a b", 3),
        ("a and", 6),
        ("(a", 3),
        ("a)", 2),
        ("'open", 1),
        ("a = `b", 5),
        ("a ; drop", 3),
        ("a in ()", 7),
        ("a not 5", 7),
        ("case a end", 6),
        ("case when a end", 13),
        ("cast(a as nothing)", 11),
        ("cast(a as decimal(99, 2))", 11),
        ("date '2026-02-30'", 6),
        ("interval 1 month", 12),
        ("interval x day", 12),
        ("99999999999999999999", 1),
        ("and", 1),
        ("a.5", 2),
        ("x'0'", 1),
        ("hour(a, zone => b)", 17),
        ("hour(a, zone => 'UTC', b)", 22),
        ("select 1", 8),
        ("a between 1", 12),
        ("%", 1),
    ],
)
def test_where_a_text_cannot_be_read(text: str, place: int) -> None:
    with pytest.raises(UsageError, match="expression-text") as refused:
        parse_expression(text)
    assert refused.value.context["place"] == place


def test_a_function_that_is_not_there() -> None:
    with pytest.raises(UsageError, match=r"expression-function.*uper.*upper"):
        parse_expression("uper(a)")


@pytest.mark.parametrize(
    "text", ["(" * 101 + "a" + ")" * 101, "not " * 101 + "a", "-" * 3_000 + "a", "case when " * 500]
)
def test_text_that_is_too_deep(text: str) -> None:
    with pytest.raises(UsageError, match=r"expression-(text|size)"):
        parse_expression(text)


@pytest.mark.parametrize("text", ["a + " * 5_000 + "a", "a, " * 3, "'" + "a" * 70_000 + "'", "a" * 140_000])
def test_text_that_is_too_long(text: str) -> None:
    with pytest.raises(UsageError, match=r"expression-(text|size)"):
        parse_expression(text)


def test_only_text_is_read() -> None:
    with pytest.raises(UsageError, match="expression-text"):
        parse_expression(5)  # type: ignore[arg-type]


WORDS = [
    "a",
    "(",
    ")",
    "and",
    "not",
    "-",
    "'x'",
    "1",
    "in",
    "case",
    "when",
    "then",
    "end",
    "is",
    "null",
    "between",
    ".",
    ",",
]
WORDS += [
    "cast",
    "as",
    "bigint",
    "interval",
    "day",
    "=",
    "date",
    "zone",
    "=>",
    "hour",
    "like",
    "`b`",
    "1e5",
    "x'00'",
    "div",
]


@settings(max_examples=settings.default.max_examples * 100)  # type: ignore[union-attr]
@given(st.text(max_size=60) | st.lists(st.sampled_from(WORDS), max_size=14).map(" ".join))
def test_any_text_is_a_tree_or_a_usage_error(text: str) -> None:
    try:
        tree = parse_expression(text)
    except UsageError as error:
        assert error.code in ("expression-text", "expression-function", "expression-size")  # noqa: PT017
        return
    assert parse_expression(expression_text(tree)) == tree


def test_names_of_types_are_one_to_one() -> None:
    for name in (
        "boolean",
        "tinyint",
        "ubigint",
        "float",
        "string",
        "date",
        "timestamp",
        "timestamp_ntz",
        "decimal(5,2)",
    ):
        kind = type_named(name.upper())
        assert kind is not None
        assert sql_name(kind) == name
    assert type_named("decimal(5,6)") is None


def test_literals_print_as_themselves() -> None:
    assert expression_text(LiteralNode("1.5", "double")) == "1.5"
    assert expression_text(literal_node(float("inf"))) == "double 'inf'"
    assert repr(col("a") > 1) == "<Expr a > 1>"
