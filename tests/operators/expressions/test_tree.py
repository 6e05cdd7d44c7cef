"""Trees as they are stored: both ways, bounds, and what no manifest holds."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.drawn_expressions import Draw, call
from tidestate.operators.expressions.binding import BINDERS
from tidestate.operators.expressions.builder import col
from tidestate.operators.expressions.names import FUNCTION_NAMES
from tidestate.operators.expressions.tree import (
    ExprNode,
    check_bounds,
    columns_needed,
    literal_node,
    literal_scalar,
    stored_tree,
    tree_of,
)
from tidestate.statestore.errors import UsageError


def deep(levels: int) -> dict[str, Any]:
    tree: dict[str, Any] = {"kind": "col", "name": "a"}
    for _ in range(levels - 1):
        tree = {"kind": "call", "function": "not", "args": [tree]}
    return tree


@settings(max_examples=settings.default.max_examples * 20)  # type: ignore[union-attr]
@given(Draw().any(4))
def test_a_stored_tree_is_the_tree(tree: ExprNode) -> None:
    stored = stored_tree(tree)
    assert tree_of(stored) == tree
    assert stored_tree(tree_of(stored)) == stored
    assert tree_of(msgspec.json.decode(msgspec.json.encode(stored))) == tree


def test_the_stored_form() -> None:
    tree = (col("price") * 2 > 1.5).tree
    assert stored_tree(tree) == {
        "kind": "call",
        "function": "gt",
        "args": [
            {
                "kind": "call",
                "function": "mul",
                "args": [{"kind": "col", "name": "price"}, {"kind": "lit", "value": "2", "type": "int64"}],
            },
            {"kind": "lit", "value": "1.5", "type": "double"},
        ],
    }
    assert columns_needed(tree) == ("price",)


@pytest.mark.parametrize(
    ("value", "text", "kind"),
    [
        (True, "true", "bool"),
        (-5, "-5", "int64"),
        (-0.0, "-0.0", "double"),
        (float("nan"), "nan", "double"),
        ("Straße", "Straße", "string"),
        (b"\x00\xff", "00ff", "binary"),
        (Decimal("1.50"), "1.50", "decimal128(3, 2)"),
        (Decimal("1E+3"), "1000", "decimal128(4, 0)"),
        (Decimal("0.001"), "0.001", "decimal128(3, 3)"),
        (datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01T00:00:00Z", "timestamp[us, tz=UTC]"),
        (datetime(2026, 1, 1, 0, 0, 0, 5), "2026-01-01T00:00:00.000005", "timestamp[us]"),
        (datetime(2026, 1, 1).date(), "2026-01-01", "date32[day]"),
        (datetime(2026, 1, 2) - datetime(2026, 1, 1), "86400000000", "duration[us]"),
    ],
)
def test_each_literal_has_one_text(value: object, text: str, kind: str) -> None:
    node = literal_node(value)
    assert (node.value, node.type) == (text, kind)
    assert tree_of(stored_tree(node)) == node
    scalar = literal_scalar(node)
    assert scalar.is_valid
    assert value != value or scalar.as_py() == value


@pytest.mark.parametrize(
    "value", [object(), [1], 2**63, -(2**63) - 1, Decimal("nan"), Decimal("1E+40"), "\ud800", 1j]
)
def test_other_values_are_no_literals(value: object) -> None:
    with pytest.raises(UsageError, match="expression-type"):
        literal_node(value)


@pytest.mark.parametrize(
    "stored",
    [
        None,
        5,
        "a",
        [],
        {},
        {"kind": "col"},
        {"kind": "col", "name": 5},
        {"kind": "col", "name": "a", "more": 1},
        {"kind": "sql", "text": "1"},
        {"kind": "call", "function": "not"},
        {"kind": "call", "function": "not", "args": "a"},
        {"kind": "call", "function": "not", "args": [5]},
        {"kind": "lit", "value": "05", "type": "int64"},
        {"kind": "lit", "value": "5", "type": "int8"},
        {"kind": "lit", "value": 5, "type": "int64"},
        {"kind": "lit", "value": "1.50", "type": "decimal128(9, 2)"},
        {"kind": "lit", "value": "yes", "type": "bool"},
        {"kind": "lit", "value": None, "type": "int64"},
        {"kind": "lit", "value": "", "type": "null"},
        {"kind": "lit", "value": "2026-01-01", "type": "timestamp[us]"},
        {"kind": "lit", "value": "9" * 5_000, "type": "int64"},
        {"kind": "lit", "value": "1e999999999", "type": "decimal128(3, 2)"},
        {"kind": "lit", "value": "0" * 70_000, "type": "string"},
        deep(65),
        deep(100_000),
        {"kind": "call", "function": "and", "args": [{"kind": "col", "name": "a"}] * 2_000},
    ],
)
def test_what_no_manifest_holds_is_a_value_error(stored: Any) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        tree_of(stored)
    assert not isinstance(refused.value, UsageError)


def test_the_bounds_themselves_are_allowed() -> None:
    assert tree_of(deep(64))
    assert tree_of({"kind": "call", "function": "and", "args": [{"kind": "col", "name": "a"}] * 1_999})


FIELDS = ["kind", "name", "value", "type", "function", "args", "zone"]
SCRAPS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6)
    | st.sampled_from([{"kind": "col", "name": "a"}, {"kind": "lit", "value": "1", "type": "int64"}]),
    lambda parts: st.lists(parts, max_size=3)
    | st.dictionaries(st.sampled_from(FIELDS), parts, max_size=5)
    | st.builds(lambda args: {"kind": "call", "function": "and", "args": args}, st.lists(parts, max_size=3)),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=settings.default.max_examples * 50)  # type: ignore[union-attr]
@given(SCRAPS)
def test_anything_is_a_tree_or_a_value_error(stored: Any) -> None:
    try:
        tree = tree_of(stored)
    except ValueError as error:
        assert not isinstance(error, UsageError)  # noqa: PT017
        return
    assert stored_tree(tree) == {
        name: value for name, value in stored.items() if value is not None or name == "value"
    }


def test_python_meets_the_bounds_at_once() -> None:
    column = col("a")
    with pytest.raises(UsageError, match="expression-size"):
        sum([column] * 100, column)
    with pytest.raises(UsageError, match="expression-size"):
        check_bounds(call("isin", *range(2_000)))
    many = col("a") == 1
    for number in range(500):
        many = many | (col("a") == number)  # one call, however long
    assert len(many.tree.args) == 501  # type: ignore[union-attr]


def test_the_table_is_closed() -> None:
    """Names are for ever: a function may be added here, and none may go or change its meaning."""
    assert set(BINDERS) == FUNCTION_NAMES
    assert len(FUNCTION_NAMES) == 79
    assert pa.types.is_int64(literal_scalar(literal_node(5)).type)
