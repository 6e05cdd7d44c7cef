"""Compares, selects and replaces columns of groups. Pure and vectorised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.windows.groups import NEVER
from tidestate.statestore.arrays import Flags, Values
from tidestate.statestore.spec.lists import flat
from tidestate.statestore.table.group_ids import map_entries


def equal(now: Values, then: Values) -> Flags:
    """Whether two columns are equal, row by row: nulls equal nulls, NaN equals NaN, lists are compared by value."""
    missing = np.asarray(pc.is_null(now)), np.asarray(pc.is_null(then))
    if pa.types.is_map(now.type):
        return equal(map_entries(now), map_entries(then))
    if pa.types.is_nested(now.type) and not pa.types.is_struct(now.type):
        same = _equal_lists(now, then)
    elif pa.types.is_struct(now.type):
        fields = range(now.type.num_fields)
        parts = [equal(pc.struct_field(now, [n]), pc.struct_field(then, [n])) for n in fields]
        same = np.logical_and.reduce(parts) if parts else np.ones(len(now), bool)
    else:
        same = np.asarray(pc.fill_null(pc.equal(now, then), False))
        if pa.types.is_floating(now.type):
            same |= np.asarray(pc.fill_null(pc.and_(pc.is_nan(now), pc.is_nan(then)), False))
    equal_rows: Flags = np.where(missing[0] | missing[1], missing[0] & missing[1], same)
    return equal_rows


def _equal_lists(now: Values, then: Values) -> Flags:
    """Whether lists have the same length and equal values."""
    sizes = [np.bincount(flat(lists)[1], minlength=len(lists)) for lists in (now, then)]
    same: Flags = sizes[0] == sizes[1]
    where = pa.array(same)
    values, owners = flat(now.filter(where))
    others, _ = flat(then.filter(where))
    if len(values):
        differ = np.bincount(owners[~equal(values, others)], minlength=int(same.sum()))
        same[np.flatnonzero(same)] = differ == 0
    return same


def chosen(where: pa.Array, new: pa.Array | pa.ChunkedArray, old: pa.ChunkedArray) -> pa.ChunkedArray:
    """Rows of ``new`` if ``where``, else of ``old``; for any type."""
    both = pa.chunked_array([*(new.chunks if isinstance(new, pa.ChunkedArray) else [new]), *old.chunks], old.type)
    places = np.arange(len(old))
    return both.take(pa.array(np.where(np.asarray(where), places, places + len(old))))


def with_columns(groups: pa.Table, changed: Mapping[str, Any]) -> pa.Table:
    """``groups`` with these columns replaced; `NEVER` is null in a ``_since_`` column of ours, which is NumPy's."""
    for name, values in changed.items():
        if name.startswith("_since_") and isinstance(values, np.ndarray):
            values = pa.array(values, mask=values == NEVER)
        column = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
        place = groups.column_names.index(name)
        groups = groups.set_column(place, groups.schema.field(name), column)
    return groups
