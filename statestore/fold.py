"""Folding layers of changes into rows. Pure and vectorised: no loop over rows or groups.

The law: for a key, the newest put or delete hides every older layer; merges at or above it combine.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statestore.changes import DELETE, MERGE, PUT, Layer
from statestore.combiners import HASHED, append, combine_group
from statestore.errors import LimitError
from statestore.tables import Column, TableSpec


def combine(spec: TableSpec, rows: pa.Table) -> pa.Table:
    """One row per key: the rows of a key combined in their order, each value column or group by its combiner.

    Raises `LimitError` when a sum leaves its type.
    """
    if rows.num_rows <= 1:
        return rows
    hashed = [c for c in spec.values if c.combiner in HASHED]
    replaced = [c.name for c in spec.values if c.combiner == "replace" and c.name not in spec.grouped]
    appended = [c.name for c in spec.values if c.combiner == "append"]
    # Under names of our own: an aggregate's name could be that of another column.
    input_ = rows.select([*spec.key_names, *(c.name for c in hashed)])
    input_ = input_.rename_columns([*spec.key_names, *(f"__{place}" for place in range(len(hashed)))])
    aggregates = [(f"__{place}", HASHED[c.combiner]) for place, c in enumerate(hashed)]
    input_ = _widened(hashed, input_)
    if replaced or appended or spec.groups:
        # Arrow's "first", "last" and "list" know few types; numbers of rows do for all.
        input_ = input_.append_column("__row", pa.array(np.arange(rows.num_rows)))
        aggregates.append(("__row", "list" if appended or spec.groups else "max"))
    # Without threads sums fold in row order: repeatable. The order of the groups is Arrow's affair.
    grouped = input_.group_by(spec.key_names, use_threads=False).aggregate(aggregates)
    folded = grouped.select(spec.key_names)
    for place, column in enumerate(hashed):
        values = grouped[f"__{place}_{HASHED[column.combiner]}"]
        folded = folded.append_column(column.name, _narrowed(spec, column, values))
    if appended or spec.groups:
        folded = _adjacent(spec, rows, folded, grouped["__row_list"], replaced, appended)
    elif replaced:
        folded = _with_columns(folded, rows.select(replaced).take(grouped["__row_max"]))
    return folded.select(spec.schema.names).cast(spec.schema)


def _widened(hashed: Sequence[Column], rows: pa.Table) -> pa.Table:
    """Numbers to be summed, in a wider type where their sum might leave their own."""
    for place, column in enumerate(hashed):
        kind = column.arrow
        if column.combiner != "sum" or pa.types.is_floating(kind):
            continue
        name = f"__{place}"
        ends = pc.min_max(rows[name])
        largest = max(_magnitude(ends["min"].as_py()), _magnitude(ends["max"].as_py()))
        if largest * rows.num_rows >= _CAPACITY[kind.id]:
            wide = pa.decimal128(38, 0) if pa.types.is_integer(kind) else pa.decimal256(76, kind.scale)
            if pa.types.is_decimal256(kind):
                raise LimitError(
                    "a sum might leave the widest type there is: round its values",
                    code="sum-overflow",
                    column=column.name,
                )
            rows = rows.set_column(rows.column_names.index(name), name, rows[name].cast(wide))
    return rows


def _magnitude(value: int | Decimal | None) -> int:
    """Its digits as a whole number, without sign and point."""
    if isinstance(value, Decimal):
        return int("".join(map(str, value.as_tuple().digits)))
    return abs(value or 0)


_CAPACITY = {
    pa.int64().id: 2**63,
    pa.uint64().id: 2**63,
    pa.decimal128(1, 0).id: 10**38,
    pa.decimal256(1, 0).id: 10**76,
}
"""Sums below this cannot leave the type that Arrow sums in; decimals without their point."""


def _narrowed(spec: TableSpec, column: Column, values: pa.ChunkedArray) -> pa.ChunkedArray:
    """An aggregate in the type of its column."""
    try:
        return values.cast(column.arrow)
    except pa.ArrowInvalid as error:
        raise LimitError(
            f"a sum leaves the type of its column ({str(error).lower()}): declare a wider one",
            code="sum-overflow",
            table=spec.name,
            column=column.name,
        ) from None


def _adjacent(
    spec: TableSpec,
    rows: pa.Table,
    folded: pa.Table,
    numbers: pa.ChunkedArray,
    replaced: list[str],
    appended: list[str],
) -> pa.Table:
    """``folded`` with the columns whose combiner needs a key's rows side by side; ``numbers``: which they are."""
    members = numbers.combine_chunks()
    order, ends = members.flatten(), np.cumsum(pc.list_value_length(members).to_numpy().astype(np.int64))
    starts = np.concatenate([[0], ends[:-1]])
    folded = _with_columns(folded, rows.select(replaced).take(order.take(pa.array(ends - 1))))
    for name in appended:
        lists = rows[name].take(order)
        folded = folded.append_column(name, append(_one(lists), starts))
    for group in spec.groups:
        part = rows.select(list(group.columns)).take(order)
        together = combine_group(group.combiner, group.version, group.by, part, starts, group.limit)
        folded = _with_columns(folded, together)
    return folded


def _with_columns(rows: pa.Table, more: pa.Table) -> pa.Table:
    for name in more.column_names:
        rows = rows.append_column(name, more[name])
    return rows


def _one(column: pa.ChunkedArray) -> pa.Array:
    chunks = column.combine_chunks()
    return chunks.combine_chunks() if isinstance(chunks, pa.ChunkedArray) else chunks


def fold(spec: TableSpec, layers: Sequence[Layer]) -> pa.Table:
    """The rows that ``layers`` (oldest first) amount to, in no particular order."""
    if not layers:
        return spec.schema.empty_table()
    if len(layers) == 1 and layers[0].op == PUT:
        return layers[0].rows
    if not any(layer.op == MERGE for layer in layers):
        return _newest(spec, layers)[1]
    return combine(spec, parts(spec, layers))


def parts(spec: TableSpec, layers: Sequence[Layer]) -> pa.Table:
    """Rows that combine to what ``layers`` amount to: a key may repeat, in the order in which its rows combine."""
    if all(layer.op == MERGE for layer in layers) or [layer.op for layer in layers] == [PUT]:
        return pa.concat_tables([spec.schema.empty_table(), *(layer.rows for layer in layers)])
    if not any(layer.op == MERGE for layer in layers):
        return _newest(spec, layers)[1]
    return _visible(spec, layers).select(spec.schema.names)


def fold_run(spec: TableSpec, layers: Sequence[Layer]) -> list[Layer]:
    """The same layers in at most three, still a *run*: what they hide below themselves stays hidden.

    Needed where older files remain underneath, so deletes and puts must keep hiding them.
    """
    if all(layer.op == MERGE for layer in layers):
        return [Layer(MERGE, fold(spec, layers))]
    if not any(layer.op == MERGE for layer in layers):
        gone, put = _newest(spec, layers)
        result = [Layer(DELETE, gone), Layer(PUT, put)]
    else:
        result = _fold_mixed(spec, layers)
    return [layer for layer in result if layer.rows.num_rows]


def _fold_mixed(spec: TableSpec, layers: Sequence[Layer]) -> list[Layer]:
    rows = _visible(spec, layers, keep_deletes=True)
    based = pc.greater_equal(rows["__base"], 0)
    deleted = pc.equal(rows["__op"], DELETE)
    put = combine(spec, rows.filter(pc.and_(based, pc.invert(deleted))).select(spec.schema.names))
    # A key deleted and merged into afterwards is a put of the merged value; it needs no delete of its own.
    gone = rows.filter(deleted).select(spec.key_names)
    if gone.num_rows and put.num_rows:
        gone = gone.join(put.select(spec.key_names), keys=spec.key_names, join_type="left anti")
    merged = combine(spec, rows.filter(pc.invert(based)).select(spec.schema.names))
    return [Layer(DELETE, gone.cast(spec.key_schema)), Layer(PUT, put), Layer(MERGE, merged)]


def _newest(spec: TableSpec, layers: Sequence[Layer]) -> tuple[pa.Table, pa.Table]:
    """Where nothing is merged, a key's newest row counts: the keys last deleted, and the rows last put."""
    if len(layers) == 1:
        gone, put = (layers[0].rows, None) if layers[0].op == DELETE else (None, layers[0].rows)
        return (
            spec.key_schema.empty_table() if gone is None else gone,
            spec.schema.empty_table() if put is None else put,
        )
    keys = pa.concat_tables([layer.rows.select(spec.key_names) for layer in layers])
    numbered = keys.append_column("__row", pa.array(np.arange(keys.num_rows)))
    newest = (
        numbered.group_by(spec.key_names, use_threads=False).aggregate([("__row", "max")])["__row_max"].to_numpy()
    )
    ends = np.cumsum([layer.rows.num_rows for layer in layers])
    found: dict[int, list[pa.Table]] = {DELETE: [spec.key_schema.empty_table()], PUT: [spec.schema.empty_table()]}
    for layer, end in zip(layers, ends, strict=True):
        own = newest[(newest >= end - layer.rows.num_rows) & (newest < end)] - (end - layer.rows.num_rows)
        found[layer.op].append(layer.rows if len(own) == layer.rows.num_rows else layer.rows.take(pa.array(own)))
    return pa.concat_tables(found[DELETE]), pa.concat_tables(found[PUT])


def _visible(spec: TableSpec, layers: Sequence[Layer], *, keep_deletes: bool = False) -> pa.Table:
    """Rows not hidden by a newer put or delete, with ``__op`` and ``__base`` (layer of that put, or -1)."""
    parts = [_numbered(spec, layer, index) for index, layer in enumerate(layers)]
    rows = pa.concat_tables(parts)
    count = rows.num_rows
    op, at = rows["__op"].to_numpy(), rows["__at"].to_numpy()
    own_base = np.where(op == MERGE, -1, at)
    numbered = rows.select(spec.key_names).append_column("__own", pa.array(own_base))
    numbered = numbered.append_column("__row", pa.array(np.arange(count)))
    groups = numbered.group_by(spec.key_names, use_threads=False).aggregate([("__own", "max"), ("__row", "list")])
    members = groups["__row_list"].combine_chunks()
    base = np.empty(count, np.int64)
    base[members.flatten().to_numpy()] = np.repeat(
        groups["__own_max"].to_numpy(), pc.list_value_length(members).to_numpy()
    )
    rows = rows.append_column("__base", pa.array(base))
    keep = at >= base
    if not keep_deletes:
        keep &= op != DELETE
    return rows.filter(pa.array(keep))


def _numbered(spec: TableSpec, layer: Layer, index: int) -> pa.Table:
    rows = layer.rows
    for column in spec.values:
        if layer.op == DELETE:
            rows = rows.append_column(column.name, pa.nulls(rows.num_rows, column.arrow))
    rows = spec.conform(rows)
    rows = rows.append_column("__op", pa.array(np.full(rows.num_rows, layer.op, np.int8)))
    return rows.append_column("__at", pa.array(np.full(rows.num_rows, index, np.int64)))
