"""Results of combined partials, as columns. Pure and vectorised."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.aggregates.aggregate import BoundAggregate


def results(aggregates: Sequence[BoundAggregate], groups: pa.Table) -> pa.Table:
    """The results of ``groups``, one column per aggregate; a missing count is 0."""
    for column in (column for aggregate in aggregates for column in aggregate.state):
        if column.role == "count" and groups[column.name].null_count:
            filled = pc.fill_null(groups[column.name], 0)
            groups = groups.set_column(groups.column_names.index(column.name), column.name, filled)
    columns = {a.name: a.finish(groups) for a in aggregates}
    return pa.table(columns, schema=pa.schema([pa.field(a.name, a.result_type) for a in aggregates]))
