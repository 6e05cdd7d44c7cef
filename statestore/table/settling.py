"""All of a small table in at most two layers, so that a read need not look at each of its files. Pure.

What lies under nothing can be put together without combining any values. Of each key only the newest put or delete
and the merges above it count, and a delete that hides nothing further down is no row at all. What is left are puts,
each key once, and merges in the order in which they came. A fold of that goes through the rows of a key in the same
order as a fold of the files, so it gives the same to the last bit, also where addition is not associative.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.statestore.spec.arrowtypes import is_position
from tidestate.statestore.spec.changes import MERGE, PUT, Layer
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.table.fold import visible
from tidestate.statestore.table.layers import clustered, sorted_by_key
from tidestate.statestore.table.sorting import lasts, ranks

SLACK_BYTES = 16 << 10
"""What small rows may keep alive beside themselves."""


def settled(spec: TableSpec, layers: Sequence[Layer]) -> list[Layer]:
    """``layers`` (oldest first, all that there are of a table) as puts in the order of the key, and merges clustered
    as those of a segment are. In memory of their own: nothing of the ``layers`` is kept alive.
    """
    if all(layer.op == MERGE for layer in layers):
        put, merged = None, pa.concat_tables([spec.no_rows, *(layer.rows for layer in layers)])
    elif not any(layer.op == MERGE for layer in layers):
        return _newest_puts(spec, layers)
    elif layers[0].op == PUT and all(layer.op == MERGE for layer in layers[1:]):
        put, merged = layers[0].rows, pa.concat_tables([layer.rows for layer in layers[1:]])
    else:
        rows = visible(spec, layers)
        ops, names = rows["__op"], spec.schema.names
        put = rows.filter(pc.equal(ops, PUT)).select(names)
        merged = rows.filter(pc.equal(ops, MERGE)).select(names)
    parts = [Layer(PUT, sorted_by_key(spec, put), ordered=True)] if put is not None else []
    parts += [Layer(MERGE, clustered(merged))] if merged is not None else []
    return [Layer(part.op, owned(part.rows), part.ordered) for part in parts if part.rows.num_rows]


def _newest_puts(spec: TableSpec, layers: Sequence[Layer]) -> list[Layer]:
    """Where nothing is merged: the newest row of each key, unless that is a delete."""
    keys = pa.concat_tables([layer.rows.select(spec.key_names) for layer in layers])
    last = lasts(*ranks(keys))
    puts = np.repeat([layer.op == PUT for layer in layers], [layer.rows.num_rows for layer in layers])
    rows = pa.concat_tables([spec.no_rows, *(layer.rows for layer in layers if layer.op == PUT)])
    rows = rows.take(pa.array((np.cumsum(puts) - 1)[last[puts[last]]]))
    if not all(is_position(column.arrow) for column in spec.key):  # ranks are in the order of others alone
        rows = sorted_by_key(spec, rows)
    return [Layer(PUT, rows.combine_chunks(), ordered=True)] if rows.num_rows else []


def is_settled_table(layers: Sequence[Layer]) -> bool:
    """Whether `settled` would change nothing but the order of rows."""
    ops = [layer.op for layer in layers]
    return ops in ([], [MERGE]) or (ops in ([PUT], [PUT, MERGE]) and layers[0].ordered)


def owned(rows: pa.Table) -> pa.Table:
    """``rows`` in one piece, and in memory of their own where they are a small part of something larger."""
    rows = rows.combine_chunks()
    size = rows.get_total_buffer_size()
    if size <= SLACK_BYTES or size <= 2 * rows.nbytes + SLACK_BYTES:
        return rows
    return rows.take(pa.array(np.arange(rows.num_rows))).combine_chunks()
