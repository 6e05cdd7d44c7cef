"""Results of combined partials, as columns. Pure and vectorised."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.aggregates.aggregate import BoundAggregate
from tidestate.operators.aggregates.derived_results import BoundDerived
from tidestate.statestore.arrays import Values
from tidestate.statestore.errors import LimitError


def results(aggregates: Sequence[BoundAggregate], groups: pa.Table) -> pa.Table:
    """The results of ``groups``, one column per aggregate; a missing count is 0."""
    for column in (column for aggregate in aggregates for column in aggregate.state):
        if column.role == "count" and groups[column.name].null_count:
            filled = pc.fill_null(groups[column.name], 0)
            groups = groups.set_column(groups.column_names.index(column.name), column.name, filled)
    columns: dict[str, Values] = {}
    for a in aggregates:  # those that are computed of others come after these
        columns[a.name] = (
            a.of_results(groups, columns) if isinstance(a, BoundDerived) else _finished(a, aggregates, groups)
        )
    return pa.table(columns, schema=pa.schema([pa.field(a.name, a.result_type) for a in aggregates]))


def _finished(bound: BoundAggregate, aggregates: Sequence[BoundAggregate], groups: pa.Table) -> Values:
    """Its results. The error of one that leaves its type says of which window and key it is."""
    try:
        return bound.finish(groups)
    except LimitError as error:
        row = error.context.pop("row", None)
        if row is None:
            raise
        state = {column.name for aggregate in aggregates for column in aggregate.state}
        names = [name for name in groups.column_names if name not in state and not name.startswith("_")]
        facts = {name: _text(groups[name][row]) for name in names}
        raise LimitError(error.message, code=error.code, **error.context, group=facts) from None


def _text(value: pa.Scalar) -> str:
    """A value for people; a time beyond the calendar of Python as its number."""
    try:
        return str(value.as_py())
    except (OverflowError, ValueError):
        number = pa.array([value]).view(pa.int64() if pa.types.is_timestamp(value.type) else pa.int32())[0]
        return f"{number} of {value.type}"
