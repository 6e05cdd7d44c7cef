"""Filters and computed columns of a stream, as users write them, as stages. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidestate.operators.describe.stages import Select
from tidestate.operators.describe.windows import PANE_TIME
from tidestate.operators.expressions.builder import Expr, as_expr, expr
from tidestate.operators.expressions.tree import ExprNode
from tidestate.operators.plan.plan import PANE_KIND
from tidestate.statestore.errors import UsageError


def condition_tree(condition: Expr | str) -> ExprNode:
    """The tree of a condition, or of its text. Raises `UsageError` for anything else."""
    return (expr(condition) if isinstance(condition, str) else as_expr(condition)).tree


def column_trees(columns: Mapping[str, Expr | str], *, least: int = 1) -> dict[str, ExprNode]:
    """The tree of each computed column. Raises `UsageError` (``stage-column``) for fewer than ``least``."""
    if len(columns) < least:
        raise UsageError(
            'name a column and what it is computed by: with_columns(total=col("price") * col("qty"))',
            code="stage-column",
        )
    return {name: condition_tree(value) for name, value in columns.items()}


def selection(names: Sequence[str], columns: Mapping[str, ExprNode], *, of_operator: bool) -> Select:
    """These columns alone. What an operator says of its rows stays with them: their time, and what they take back.
    Raises `UsageError` (``stage-column``).
    """
    chosen = [*names, *columns]
    if not chosen or len(set(chosen)) < len(chosen):
        raise UsageError(
            'select names at least one column, and each once: select("user", total=col("price") * col("qty"))',
            code="stage-column",
            found=chosen,
        )
    keeps = (PANE_KIND, PANE_TIME) if of_operator else ()
    return Select(names=tuple(names), columns=dict(columns), keeps=keeps)
