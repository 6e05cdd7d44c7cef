"""Columns that are computed of the results of a window: they have no state, and are results like all others. So they
are stored with the pane that a window last emitted, and a retraction repeats what was emitted, whatever they are
computed by since. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from tidestate.operators.aggregates.aggregate import BoundAggregate, Partial
from tidestate.operators.expressions.tree import RowExpression
from tidestate.statestore.arrays import Values
from tidestate.statestore.spec.tables import Column


@dataclass(frozen=True)
class BoundDerived(BoundAggregate):
    """No state: the result is computed by ``expression`` of columns of a pane."""

    expression: RowExpression

    @property
    def state(self) -> tuple[Column, ...]:
        return ()

    @property
    def partials(self) -> tuple[Partial, ...]:
        return ()

    @property
    def result_type(self) -> pa.DataType:
        return self.expression.type

    def lift(self, events: pa.Table) -> list[Values]:
        return []

    def finish(self, partials: pa.Table) -> Values:
        """Of rows with the columns of panes, see `of_results`."""
        return self.expression.evaluate(partials)

    def of_results(self, groups: pa.Table, results: Mapping[str, Values]) -> Values:
        """One result for each row of ``groups``, which have keys and bounds, with the other ``results``."""
        return self.finish(pane_columns(self.expression.columns, groups, results))


def pane_columns(names: tuple[str, ...], groups: pa.Table, results: Mapping[str, Values]) -> pa.Table:
    """These columns of panes: results, and keys and bounds from the rows of ``groups``."""
    # A table has as many rows as its columns, so one without any has another one.
    return pa.table({name: results[name] if name in results else groups[name] for name in names or ("window_end",)})
