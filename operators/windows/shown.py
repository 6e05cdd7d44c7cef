"""Which panes are shown: a condition of results, of the key, and of the bounds of a window.

A window whose results do not meet it emits nothing, takes no number, and is as one that has not fired: when it meets
the condition later, its pane is emitted then. One whose pane was emitted, and that meets it no more, takes the pane
back, and nothing follows. So what stands, emitted less retracted, is the windows that meet the condition now.

That needs panes which are taken back, or one pane a window: an accumulating window would leave a pane that holds no
more, and the parts of a discarding one do not add up once some are hidden. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.aggregates.derived_results import pane_columns
from tidestate.operators.expressions.tree import RowExpression
from tidestate.statestore.arrays import Flags


@dataclass(frozen=True)
class PaneCondition:
    """A condition of panes: it holds where it is true, neither false nor null."""

    condition: RowExpression

    def holds(self, groups: pa.Table, values: pa.Table) -> Flags:
        """Whether each of the ``groups``, which have keys and bounds, is shown with these results."""
        results = dict(zip(values.column_names, values.columns, strict=True))
        holds = self.condition.evaluate(pane_columns(self.condition.columns, groups, results)).cast(pa.bool_())
        return np.asarray(pc.fill_null(holds, False))
