"""The offsets of a window's messages in answers. Pure."""

from __future__ import annotations

import pyarrow as pa

from tidestate.statestore.arrays import Numbers
from tidestate.statestore.spec.lists import nested, whole

OFFSETS = "offsets"
"""The column with the first and the last offset of each origin."""


def nested_offsets(
    origins: pa.ChunkedArray, firsts: pa.ChunkedArray, lasts: pa.ChunkedArray, lengths: Numbers
) -> pa.Array:
    """A list of (origin, start_offset, last_offset) for each window: so many rows as ``lengths`` says."""
    kind = offsets_type(origins.type)
    columns = [whole(column) for column in (origins, firsts, lasts)]
    structs = pa.StructArray.from_arrays(columns, names=["origin", "start_offset", "last_offset"])
    return nested(structs.cast(kind.field(0).type), lengths, kind)


def offsets_type(origin: pa.DataType) -> pa.DataType:
    """The type of `OFFSETS`, by that of origins."""
    fields = [("origin", origin), ("start_offset", pa.int64()), ("last_offset", pa.int64())]
    return pa.list_(pa.struct([pa.field(name, kind) for name, kind in fields]))
