"""Combining lists of a key: sets, counted sets, ordered lists of limited length. Pure and vectorised.

The lists of all keys are worked on as one flat array of values, each with the number of its key.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.statestore.arrays import Numbers


def whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """A column in one piece."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def lengths_of(lists: pa.Array) -> Numbers:
    """How long each list is; a null has none."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return lengths.astype(np.int64)  # type: ignore[no-any-return]


def flat(column: pa.ChunkedArray | pa.Array) -> tuple[pa.Array, Numbers]:
    """The values of all lists one after the other, and the row of each."""
    lists = whole(column)
    return list_values(lists), np.repeat(np.arange(len(lists)), lengths_of(lists))


def list_values(lists: pa.Array) -> pa.Array:
    """The values of all lists one after the other; of a null none."""
    return cast(pa.ListArray, lists).flatten()  # of any kind of list


def struct_fields(structs: pa.Array) -> list[pa.Array]:
    """The fields of an array of structs; those of a null are null."""
    return cast(pa.StructArray, structs).flatten()


def nested(values: pa.ChunkedArray | pa.Array, lengths: Numbers, kind: pa.DataType) -> pa.Array:
    """``values`` cut into lists of these ``lengths``."""
    large = pa.types.is_large_list(kind)
    offsets = np.append(0, np.cumsum(lengths)).astype(np.int64 if large else np.int32)
    array_type = pa.LargeListArray if large else pa.ListArray
    return array_type.from_arrays(pa.array(offsets), whole(values), type=kind)


def distinct(values: pa.Array, owners: Numbers) -> tuple[Numbers, Numbers]:
    """Places of the first of equal values of an owner, by owner, then value; and which of them each value equals.

    NaN equals NaN and comes after all numbers.
    """
    if not len(values):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    ranks = pc.rank(values, sort_keys="ascending", tiebreaker="dense").to_numpy().astype(np.int64)
    # One number for owner and value, in their order: so one pass sorts and groups by both.
    codes = owners * (int(ranks.max()) + 1) + ranks
    _, firsts, group = np.unique(codes, return_index=True, return_inverse=True)
    return firsts, group


def by_value(values: pa.Array, owners: Numbers, *, descending: bool = False) -> Numbers:
    """Places of the values by owner, then value, equal ones as they were; NaN and then null come last."""
    direction = "descending" if descending else "ascending"
    order = pc.sort_indices(values, sort_keys=[("", direction)]).to_numpy().astype(np.int64)
    positions: Numbers = order[np.argsort(owners[order], kind="stable")]
    return positions


def places_within(lengths: Numbers) -> Numbers:
    """0, 1, 2 … for each of the ``lengths``."""
    starts = np.cumsum(lengths) - lengths
    positions: Numbers = np.arange(int(lengths.sum())) - np.repeat(starts, lengths)
    return positions


def union_lists(rows: pa.Table, starts: Numbers) -> pa.Table:
    """Per key its values, sorted, each once. A second column has counts, which are added up; of a second and a third
    one the smallest and the largest number of each value stays.
    """
    values, owners = _of_keys(rows.column(0), starts)
    firsts, group = distinct(values, owners)
    lengths = np.bincount(owners[firsts], minlength=len(starts))
    columns = [nested(values.take(pa.array(firsts)), lengths, rows.schema.types[0])]
    folds = (np.add,) if rows.num_columns == 2 else (np.minimum, np.maximum)
    for index, fold in zip(range(1, rows.num_columns), folds, strict=False):
        numbers = flat(rows.column(index))[0].to_numpy(zero_copy_only=False)
        # Each value begins with its first number; the others are folded in.
        totals = np.zeros(len(firsts), np.int64) if fold is np.add else numbers[firsts].copy()
        fold.at(totals, group, numbers)
        columns.append(nested(pa.array(totals), lengths, rows.schema.types[index]))
    return pa.table(columns, schema=rows.schema)


def ordered_lists(rows: pa.Table, starts: Numbers, by: str, limit: int, *, descending: bool) -> pa.Table:
    """Per key its entries in the order of the lists ``by``, at most ``limit``; lists side by side are as long."""
    values, owners = _of_keys(rows[by], starts)
    order = by_value(values, owners, descending=descending)
    lengths = np.bincount(owners, minlength=len(starts))
    if limit:
        order, lengths = order[places_within(lengths) < limit], np.minimum(lengths, limit)
    indices = pa.array(order)
    columns = [nested(flat(column)[0].take(indices), lengths, column.type) for column in rows.columns]
    return pa.table(columns, schema=rows.schema)


def _of_keys(lists: pa.ChunkedArray, starts: Numbers) -> tuple[pa.Array, Numbers]:
    """The values of all lists, and the number of the key of each."""
    values, row = flat(lists)
    key = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(lists))))
    return values, key[row]
