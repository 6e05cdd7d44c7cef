"""Columns that are computed of the results of a window, as a manifest holds them. Pure."""

from __future__ import annotations

from typing import ClassVar, Literal

from tidestate.operators.aggregates.aggregate import Aggregate
from tidestate.operators.expressions.tree import ExprNode, columns_needed


class Derived(Aggregate, frozen=True, kw_only=True, tag="derived"):
    """A result of other results: ``value`` reads these, the key, and the bounds of the window."""

    needs: ClassVar[tuple[str, ...]] = ("derived-results/1",)
    function: Literal["derived"] = "derived"
    value: ExprNode

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns of panes that it is computed of."""
        return columns_needed(self.value)
