"""Reading a table that lies in layers, oldest first: ordered scans, aligned look-ups, logical expiry. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.changes import Layer, Lookup
from statestore.fold import fold
from statestore.tables import TableSpec


def leading_values(rows: pa.Table) -> npt.NDArray[np.int64] | None:
    """The leading key column as int64 where it is an integer or a time, else None."""
    column = rows.column(0)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    elif pa.types.is_date32(column.type):
        column = column.cast(pa.int32()).cast(pa.int64())
    elif pa.types.is_integer(column.type):
        column = column.cast(pa.int64())
    else:
        return None
    values: npt.NDArray[np.int64] = column.to_numpy()
    return values


def between(layers: Sequence[Layer], lower: int | None, upper: int | None) -> list[Layer]:
    """The layers cut to ``lower <= leading key < upper``. Rows must be sorted by that column: two bisections."""
    if lower is None and upper is None:
        return list(layers)
    return [cut for layer in layers if (cut := _cut(layer, lower, upper)).rows.num_rows]


def _cut(layer: Layer, lower: int | None, upper: int | None) -> Layer:
    values = leading_values(layer.rows)
    if values is None:
        return layer
    first = 0 if lower is None else int(np.searchsorted(values, lower, "left"))
    last = len(values) if upper is None else int(np.searchsorted(values, upper, "left"))
    return Layer(layer.op, layer.rows.slice(first, max(0, last - first)))


def lookup(spec: TableSpec, layers: Sequence[Layer], keys: pa.Table, expired: int | None) -> Lookup:
    """Rows for ``keys`` (which may repeat), aligned with them."""
    wanted = keys.select(spec.key_names).cast(spec.key_schema)
    if not wanted.num_rows or not layers:
        return align(spec, wanted, spec.schema.empty_table())
    leading = leading_values(wanted)
    low, high = (None, None) if leading is None else (int(leading.min()), int(leading.max()) + 1)
    if expired is not None:
        low = expired + 1 if low is None else max(low, expired + 1)
    distinct = wanted.group_by(spec.key_names, use_threads=False).aggregate([])
    near = [Layer(layer.op, _semi_join(layer.rows, distinct, spec.key_names)) for layer in between(layers, low, high)]
    return align(spec, wanted, fold(spec, [layer for layer in near if layer.rows.num_rows]))


def _semi_join(rows: pa.Table, keys: pa.Table, names: list[str]) -> pa.Table:
    numbered = rows.select(names).append_column("__row", pa.array(np.arange(rows.num_rows)))
    hits = numbered.join(keys, keys=names, join_type="left semi", use_threads=False)["__row"]
    return rows.take(pa.array(np.sort(hits.to_numpy())))


def align(spec: TableSpec, wanted: pa.Table, rows: pa.Table) -> Lookup:
    """``rows`` (one per key) brought into the order of ``wanted``, nulls where there is none."""
    asked = wanted.append_column("__ask", pa.array(np.arange(wanted.num_rows)))
    stored = rows.append_column("__found", pa.array(np.ones(rows.num_rows, bool)))
    joined = asked.join(stored, keys=spec.key_names, join_type="left outer", use_threads=False)
    joined = joined.sort_by("__ask")
    found = pc.fill_null(joined["__found"], False).combine_chunks()
    return Lookup(found, joined.select(spec.schema.names).cast(spec.schema))


def ordered(spec: TableSpec, rows: pa.Table) -> pa.Table:
    """``rows`` sorted by the whole key: the canonical order of scans and snapshots."""
    return rows.sort_by([(name, "ascending") for name in spec.key_names]) if rows.num_rows > 1 else rows


def clustered(rows: pa.Table) -> pa.Table:
    """``rows`` sorted by the leading key column alone, stable: what `between` needs, at a fraction of a full sort."""
    values = leading_values(rows)
    if values is None:
        return rows.sort_by(rows.column_names[0])
    if len(values) < 2 or bool(np.all(values[1:] >= values[:-1])):
        return rows
    return rows.take(pa.array(np.argsort(values, kind="stable")))


def live(spec: TableSpec, layers: Sequence[Layer], expired: int | None) -> list[Layer]:
    """The layers without expired rows."""
    if spec.expiry is None or expired is None:
        return list(layers)
    return between(layers, expired + 1, None)


def bounds(spec: TableSpec, lower: Any, upper: Any, expired: int | None) -> tuple[int | None, int | None]:
    """A scan's bounds with the expiry bound taken in."""
    if spec.expiry is not None and expired is not None:
        lower = expired + 1 if lower is None else max(lower, expired + 1)
    return lower, upper
