"""What the functions of aggregates take: a column or an expression, and a condition of the rows. Pure."""

from __future__ import annotations

from typing import Any, TypeAlias

from tidestate.operators.expressions.builder import Expr, as_column, condition_tree
from tidestate.operators.expressions.tree import ColumnNode, ExprNode
from tidestate.statestore.errors import UsageError

ColumnOrExpr: TypeAlias = str | Expr
"""The name of a column, or what is computed of each row."""
RowCondition: TypeAlias = str | Expr | None
"""A condition, as an expression or as text that `expr` reads; None: all rows."""


def fields_of_rows(column: ColumnOrExpr | None, where: RowCondition, **by: ColumnOrExpr | None) -> dict[str, Any]:
    """The fields of an aggregate that say what it is of; an expression that is a column alone is that column."""
    fields: dict[str, Any] = {} if where is None else {"condition": condition_tree(where)}
    for name, value in {"column": column, **by}.items():
        tree = None if value is None else _column_tree(name, value)
        if isinstance(tree, ColumnNode):
            fields[name] = tree.name
        elif tree is not None:
            fields["expression" if name == "column" else f"expression_{name}"] = tree
    return fields


def _column_tree(name: str, value: ColumnOrExpr) -> ExprNode:
    if isinstance(value, str):
        return ColumnNode(value)
    if not isinstance(value, Expr) and not type(value).__module__.startswith("pyspark."):
        raise UsageError(
            f'an aggregate takes a column by its name, such as {name}="name", or an expression, such as '
            'col("price") * col("qty")',
            code="argument",
            parameter=name,
            found=f"{value!r:.100} ({type(value).__name__})",
        )
    return as_column(value).tree
