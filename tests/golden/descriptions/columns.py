"""The columns that every stream of a recipe has."""

from __future__ import annotations

import pyarrow as pa

TIME = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    {
        "at": TIME,
        "seen": TIME,
        "until": TIME,
        "user": pa.string(),
        "country": pa.string(),
        "item": pa.int64(),
        "amount": pa.int64(),
        "weight": pa.float64(),
        "url": pa.string(),
        "number": pa.int64(),
        "part": pa.string(),
        "partition": pa.int64(),
        "id": pa.string(),
        "gap": pa.int64(),
        "shape": pa.string(),
        "flag": pa.bool_(),
        "mark": pa.string(),
        "buffer": pa.int64(),
        "chunk": pa.int64(),
        "last_chunk": pa.bool_(),
        "final": pa.bool_(),
        "empty": pa.bool_(),
        "rows": pa.int64(),
        "progress": TIME,
        "window_start": TIME,
        "window_end": TIME,
    }
)
