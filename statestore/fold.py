"""Folding layers of changes into rows. Pure and vectorised: no loop over rows or groups.

The law: for a key, the newest put or delete hides every older layer; merges at or above it combine.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statestore.changes import DELETE, MERGE, PUT, Layer
from statestore.tables import COMBINERS, TableSpec


def combine(spec: TableSpec, rows: pa.Table) -> pa.Table:
    """One row per key: the rows of a key combined in their order, each value column by its combiner."""
    if rows.num_rows <= 1:
        return rows
    replaced = [c.name for c in spec.values if c.combiner == "replace"]
    combined = [c for c in spec.values if c.combiner != "replace"]
    aggregates = [(c.name, COMBINERS[c.combiner]) for c in combined]
    if replaced:
        # Arrow's "last" knows few types; the number of the last row does for all.
        rows = rows.append_column("__row", pa.array(np.arange(rows.num_rows)))
        aggregates.append(("__row", "max"))
    # Without threads the groups come in order of first appearance and sums fold in row order: repeatable.
    grouped = rows.group_by(spec.key_names, use_threads=False).aggregate(aggregates)
    grouped = grouped.rename_columns({f"{c.name}_{COMBINERS[c.combiner]}": c.name for c in combined})
    if replaced:
        newest = rows.select(replaced).take(grouped["__row_max"])
        for name in replaced:
            grouped = grouped.append_column(name, newest[name])
    return spec.conform(grouped)


def fold(spec: TableSpec, layers: Sequence[Layer]) -> pa.Table:
    """The rows that ``layers`` (oldest first) amount to, in no particular order."""
    if not layers:
        return spec.schema.empty_table()
    if len(layers) == 1 and layers[0].op == PUT:
        return layers[0].rows
    return combine(spec, parts(spec, layers))


def parts(spec: TableSpec, layers: Sequence[Layer]) -> pa.Table:
    """Rows that combine to what ``layers`` amount to: a key may repeat, in the order in which its rows combine."""
    if all(layer.op == MERGE for layer in layers) or [layer.op for layer in layers] == [PUT]:
        return pa.concat_tables([spec.schema.empty_table(), *(layer.rows for layer in layers)])
    return _visible(spec, layers).select(spec.schema.names)


def fold_run(spec: TableSpec, layers: Sequence[Layer]) -> list[Layer]:
    """The same layers in at most three, still a *run*: what they hide below themselves stays hidden.

    Needed where older files remain underneath, so deletes and puts must keep hiding them.
    """
    if all(layer.op == MERGE for layer in layers):
        return [Layer(MERGE, fold(spec, layers))]
    rows = _visible(spec, layers, keep_deletes=True)
    based = pc.greater_equal(rows["__base"], 0)
    deleted = pc.equal(rows["__op"], DELETE)
    put = combine(spec, rows.filter(pc.and_(based, pc.invert(deleted))).select(spec.schema.names))
    # A key deleted and merged into afterwards is a put of the merged value; it needs no delete of its own.
    gone = rows.filter(deleted).select(spec.key_names)
    if gone.num_rows and put.num_rows:
        gone = gone.join(put.select(spec.key_names), keys=spec.key_names, join_type="left anti")
    merged = combine(spec, rows.filter(pc.invert(based)).select(spec.schema.names))
    result = [Layer(DELETE, gone.cast(spec.key_schema)), Layer(PUT, put), Layer(MERGE, merged)]
    return [layer for layer in result if layer.rows.num_rows]


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
