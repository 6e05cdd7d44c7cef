"""Filters and computed columns of a stream, as users write them, as stages. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

from tidestate.operators.aggregates.aggregate import KIND
from tidestate.operators.describe.stages import Expect, Otherwise, Select
from tidestate.operators.describe.windows import PANE_TIME
from tidestate.operators.expressions.builder import Expr, condition_tree
from tidestate.operators.expressions.tree import ExprNode
from tidestate.operators.streams.nodes import StreamView
from tidestate.statestore.errors import UsageError

LONGEST_NAME = 80
"""How many letters the name of an expectation may have."""


def column_trees(columns: Mapping[str, Expr | str], *, least: int = 1) -> dict[str, ExprNode]:
    """The tree of each computed column. Raises `UsageError` (``stage-column``) for fewer than ``least``."""
    if len(columns) < least:
        raise UsageError(
            'name a column and what it is computed by: with_columns(total=col("price") * col("qty"))',
            code="stage-column",
        )
    return {name: condition_tree(value) for name, value in columns.items()}


def expectation(
    view: StreamView, name: str, condition: Expr | str, otherwise: Otherwise, at_most: float | None
) -> Expect:
    """An expectation of the rows of a stream. Raises `UsageError` (``expectation-name``, ``-otherwise``,
    ``-share``).
    """
    is_plain = name.strip() == name and name.isprintable() and 0 < len(name) <= LONGEST_NAME
    other_names = [stage.name for stage in view.stages if isinstance(stage, Expect)]
    if not is_plain or name in other_names:
        raise UsageError(
            f"each expectation of a stream has a name of its own, of at most {LONGEST_NAME} printable letters: it is "
            "in the ledger and in metrics",
            code="expectation-name",
            found=name,
        )
    if otherwise not in get_args(Otherwise):
        raise UsageError(
            'otherwise= must be "ledger", "count" or "fail"', code="expectation-otherwise", found=repr(otherwise)
        )
    if at_most is not None and not 0 <= at_most <= 1:
        raise UsageError(
            "at_most= is the share of the events of a batch that may miss an expectation, from 0 to 1",
            code="expectation-share",
            found=at_most,
        )
    return Expect(name=name, condition=condition_tree(condition), otherwise=otherwise, at_most=at_most)


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
    keeps = (KIND, PANE_TIME) if of_operator else ()
    return Select(names=tuple(names), columns=dict(columns), keeps=keeps)
