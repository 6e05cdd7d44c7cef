"""What functions give, against the twin of one row."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.drawn_expressions import DRAWN_COLUMNS, RULES, Draw, call, column_of, rows, table_of
from tests.twins.expressions import evaluate, plain
from tidestate.operators.expressions.binding import bind_expression
from tidestate.operators.expressions.printing import expression_text
from tidestate.operators.expressions.tree import ColumnNode, ExprNode
from tidestate.statestore.errors import UsageError

DRAW = Draw()


def values_of(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return [plain(value) for chunk in chunks for value in chunk]


def is_same(left: Any, right: Any) -> bool:
    """NaN is itself, and so is each of the zeros."""
    if isinstance(left, float) and isinstance(right, float):
        return (math.isnan(left) and math.isnan(right)) or left == right
    return type(left) is type(right) and left == right


def check(tree: ExprNode, listed: list[dict[str, Any]], is_near: Any = is_same) -> None:
    table = table_of(listed)
    try:
        bound = bind_expression(tree, DRAWN_COLUMNS, RULES)
    except UsageError as error:
        assert error.code == "expression-decimal", error  # noqa: PT017 (any other is a fault)
        return
    result = bound.evaluate(table)
    assert result.type == bound.type
    result.validate(full=True)
    expected = [evaluate(tree, row, DRAWN_COLUMNS) for row in listed]
    assert {kind for kind, _ in expected} == {bound.type}, expression_text(tree)
    pairs = list(zip(values_of(result), [value for _, value in expected], listed, strict=True))
    wrong = [pair for pair in pairs if not is_near(pair[0], pair[1])]
    assert not wrong, expression_text(tree)
    # A row has the same value whatever rows stand around it.
    alone = bound.evaluate(table.slice(len(listed) - 1))
    assert is_near(values_of(alone)[0], pairs[-1][0]), expression_text(tree)


@settings(max_examples=settings.default.max_examples * 60)  # type: ignore[union-attr]
@given(DRAW.any(3), rows())
def test_columns_at_once_are_rows_one_by_one(tree: ExprNode, listed: list[dict[str, Any]]) -> None:
    check(tree, listed)


def is_close(left: Any, right: Any) -> bool:
    both = isinstance(left, float) and isinstance(right, float)
    return is_same(left, right) or (both and math.isclose(left, right, rel_tol=1e-12))


@settings(max_examples=settings.default.max_examples * 5)  # type: ignore[union-attr]
@given(st.sampled_from(["exp", "ln", "pow"]), st.sampled_from(["i64", "f64", "d9"]), rows())
def test_functions_whose_last_bit_is_the_libraries(name: str, column: str, listed: list[dict[str, Any]]) -> None:
    args = [ColumnNode(column)] * (2 if name == "pow" else 1)
    check(call(name, *args), listed, is_close)


@pytest.mark.parametrize("kind", ["whole", "float", "decimal", "bool", "text", "date", "time", "clock"])
def test_each_kind_at_the_root(kind: str) -> None:
    @settings(max_examples=settings.default.max_examples * 15)  # type: ignore[union-attr]
    @given(DRAW.of(kind, 2), rows())
    def run(tree: ExprNode, listed: list[dict[str, Any]]) -> None:
        check(tree, listed)

    run()


def test_no_row_is_no_value() -> None:
    table = DRAWN_COLUMNS.empty_table()
    for column in DRAWN_COLUMNS.names:
        bound = bind_expression(call("coalesce", ColumnNode(column)), DRAWN_COLUMNS)
        assert len(bound.evaluate(table)) == 0
    assert column_of([], pa.int64()).type == pa.int64()
