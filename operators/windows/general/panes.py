"""Panes out of groups, and columns of groups changed. Pure and vectorised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.plan.transition import KINDS, TIMINGS, constant
from tidestate.operators.windows.general.groups import NEVER
from tidestate.operators.windows.general.names import END, NET, PANES, START
from tidestate.operators.windows.general.tables import GeneralTables
from tidestate.statestore.spec.lists import flat
from tidestate.statestore.table.group_ids import entries

if TYPE_CHECKING:
    from tidestate.operators.plan.plan import Plan

Flags = npt.NDArray[np.bool_]
Values: TypeAlias = pa.Array | pa.ChunkedArray


def values_of(plan: Plan, groups: pa.Table) -> pa.Table:
    """The result of each group, one column per aggregate; a count of nothing is 0."""
    for column in (column for aggregate in plan.aggregates for column in aggregate.state):
        if column.role == "count" and groups[column.name].null_count:
            filled = pc.fill_null(groups[column.name], 0)
            groups = groups.set_column(groups.column_names.index(column.name), column.name, filled)
    results = {a.name: a.finish(groups) for a in plan.aggregates}
    return pa.table(results, schema=pa.schema([pa.field(a.name, a.result_type) for a in plan.aggregates]))


def values_where(plan: GeneralTables, groups: pa.Table, where: Flags) -> pa.Table:
    """Results of the groups asked for, nulls in the others: a function of yours may read a lot for them."""
    if where.all():
        return values_of(plan, groups)
    values = values_of(plan, groups.filter(pa.array(where)))
    places = np.cumsum(where) - 1
    return values.take(pa.array(places, mask=~where))


def results_of(plan: Plan, groups: pa.Table) -> pa.Table:
    """Window, key and values of stored ``groups``, for people."""
    if plan.signed:
        groups = groups.filter(pc.greater(groups[NET], 0))
    values = values_of(plan, groups)
    columns = [groups[START], groups[END], *(groups[name] for name in plan.key_names), *values.columns]
    return pa.table(columns, names=[START, END, *plan.key_names, *values.column_names])


def equal(now: Values, then: Values) -> Flags:
    """Whether two columns agree, row by row: nulls with nulls, NaN with NaN, lists by what they hold."""
    missing = np.asarray(pc.is_null(now)), np.asarray(pc.is_null(then))
    if pa.types.is_map(now.type):
        return equal(entries(now), entries(then))
    if pa.types.is_nested(now.type) and not pa.types.is_struct(now.type):
        alike = _equal_lists(now, then)
    elif pa.types.is_struct(now.type):
        fields = range(now.type.num_fields)
        parts = [equal(pc.struct_field(now, [n]), pc.struct_field(then, [n])) for n in fields]
        alike = np.logical_and.reduce(parts) if parts else np.ones(len(now), bool)
    else:
        alike = np.asarray(pc.fill_null(pc.equal(now, then), False))
        if pa.types.is_floating(now.type):
            alike |= np.asarray(pc.fill_null(pc.and_(pc.is_nan(now), pc.is_nan(then)), False))
    same: Flags = np.where(missing[0] | missing[1], missing[0] & missing[1], alike)
    return same


def _equal_lists(now: Values, then: Values) -> Flags:
    """Of the same length, and every value equal."""
    sizes = [np.bincount(flat(lists)[1], minlength=len(lists)) for lists in (now, then)]
    alike: Flags = sizes[0] == sizes[1]
    where = pa.array(alike)
    values, owners = flat(now.filter(where))
    others, _ = flat(then.filter(where))
    if len(values):
        differ = np.bincount(owners[~equal(values, others)], minlength=int(alike.sum()))
        alike[np.flatnonzero(alike)] = differ == 0
    return alike


def taken_back(plan: GeneralTables, groups: pa.Table, timing: str) -> pa.Table:
    """The last panes of ``groups`` once more, as retractions."""
    results = [groups[f"_last_{a.name}"] for a in plan.aggregates]
    values = pa.table(results, names=[a.name for a in plan.aggregates])
    number = pc.subtract(groups[PANES], 1)
    return pane_rows(plan, groups, values, number, timing, "retract", np.zeros(groups.num_rows, bool))


def pane_rows(
    plan: GeneralTables,
    groups: pa.Table,
    values: pa.Table,
    number: pa.ChunkedArray,
    timing: str,
    kind: str,
    last: Flags,
) -> pa.Table:
    """Rows of `Plan.pane_schema` about ``groups``, with these values and numbers."""
    count = groups.num_rows
    columns = [
        groups[START],
        groups[END],
        *(groups[name] for name in plan.key_names),
        *values.columns,
        number,
        constant(count, timing, TIMINGS),
        constant(count, kind, KINDS),
        pa.array(last),
    ]
    return pa.table(columns, schema=plan.pane_schema)


def chosen(where: pa.Array, new: pa.Array | pa.ChunkedArray, old: pa.ChunkedArray) -> pa.ChunkedArray:
    """Rows of ``new`` where asked, else of ``old``; for any type."""
    both = pa.chunked_array([*(new.chunks if isinstance(new, pa.ChunkedArray) else [new]), *old.chunks], old.type)
    places = np.arange(len(old))
    return both.take(pa.array(np.where(np.asarray(where), places, places + len(old))))


def with_columns(groups: pa.Table, changed: Mapping[str, Any]) -> pa.Table:
    """``groups`` with other values in these columns; `NEVER` is null in a ``_since_`` column."""
    for name, values in changed.items():
        if name.startswith("_since_"):
            values = pa.array(values, mask=values == NEVER)
        column = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
        place = groups.column_names.index(name)
        groups = groups.set_column(place, groups.schema.field(name), column)
    return groups
