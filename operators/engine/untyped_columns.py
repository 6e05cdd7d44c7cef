"""Columns without a type: what Arrow infers where the first rows have nothing but nulls. Pure."""

from __future__ import annotations

import pyarrow as pa

from tidestate.operators.plan.graph import Graph
from tidestate.statestore.errors import UsageError


def check_types_known(graph: Graph) -> None:
    """Raise `UsageError` (``column-untyped``) for a column of a stream that is read with Arrow's type null, whether
    of its own or inside of a list, struct or map.

    For the start of a new root: its state would keep that type, and no later batch could have a value there.
    """
    untyped = {}
    for node in graph.nodes:
        streams = [feed for feed in node.feeds if feed.origin in graph.streams]
        fields = [field for field in node.plan.input.schema if _has_null(field.type)]
        for feed in streams:
            of_feed = fields
            if node.sides is not None and feed.side is not None:
                names = node.sides.columns_of(feed.side, node.plan.input.schema)
                of_side = {node.sides.prefixed(feed.side, name): name for name in names}
                of_feed = [field.with_name(of_side[field.name]) for field in fields if field.name in of_side]
            if of_feed:
                untyped[feed.origin] = {field.name: str(field.type) for field in of_feed}
    if untyped:
        raise UsageError(
            "the type of a column is not known, as the first rows have nothing but nulls in it: give them a schema, "
            "as in pa.Table.from_pylist(rows, schema=…), or cast the column to the type that its values will have",
            code="column-untyped",
            columns=untyped,
        )


def _has_null(kind: pa.DataType) -> bool:
    children = [kind.field(number).type for number in range(kind.num_fields)] if pa.types.is_nested(kind) else []
    return pa.types.is_null(kind) or any(_has_null(child) for child in children)
