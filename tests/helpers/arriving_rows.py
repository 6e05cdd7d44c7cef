"""Rows as they arrive in front of stages: drawn batches, and as tables."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

TIME_TYPE = pa.timestamp("us", "UTC")
STAGED_SCHEMA = pa.schema({"at": TIME_TYPE, "p": pa.int64(), "q": pa.int64(), "k": pa.string()})
DRAWN_ROW = st.tuples(st.integers(0, 300), st.none() | st.integers(-3, 9), st.integers(0, 5), st.sampled_from("abc"))
DRAWN_BATCHES = st.lists(st.lists(DRAWN_ROW, max_size=6), min_size=1, max_size=5)


def arriving(rows: list[Any]) -> pa.Table:
    """Rows of a second, ``p``, ``q`` and ``k`` as a table."""
    columns = list(zip(*rows, strict=True)) if rows else [[]] * 4
    times = pa.array([second * 1_000_000 for second in columns[0]], pa.int64()).view(TIME_TYPE)
    return pa.table(
        [times, *(pa.array(c, f.type) for c, f in zip(columns[1:], list(STAGED_SCHEMA)[1:], strict=True))],
        schema=STAGED_SCHEMA,
    )
