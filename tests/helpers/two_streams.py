"""Two small streams for tests of merges and session joins: orders on the left, costs on the right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from tidestate import OperatorStream
from tidestate.operators.bind.operator import bind_plan
from tidestate.operators.describe.runnable import Sided
from tidestate.statestore.errors import of_type
from tidestate.statestore.spec.store import StoreConfig
from tidestate.stores import Memory, Parquet, RocksDB

SECOND = 1_000_000
TIME = pa.timestamp("us", tz="UTC")
LEFT = pa.schema([("k", pa.string()), ("ordered", TIME), ("price", pa.int64()), ("gap", pa.duration("us"))])
RIGHT = pa.schema([("k", pa.string()), ("paid", TIME), ("cost", pa.int64()), ("gap", pa.duration("us"))])
STORES: dict[str, StoreConfig] = {
    "memory": Memory(),
    "parquet": Parquet(max_levels=2, snapshot_bytes=1),
    "rocksdb": RocksDB(max_levels=2),
}


@dataclass(frozen=True)
class Row:
    side: str
    key: str
    at: int
    value: int
    gap: int = 5


def table(rows: list[Row], schema: pa.Schema) -> pa.Table:
    columns = [
        pa.array([row.key for row in rows], pa.string()),
        pa.array([row.at * SECOND for row in rows], pa.int64()).cast(TIME),
        pa.array([row.value for row in rows], pa.int64()),
        pa.array([row.gap * SECOND for row in rows], pa.int64()).cast(pa.duration("us")),
    ]
    return pa.table(columns, schema=schema)


SIDES = {"left": LEFT, "right": RIGHT}


def by_side(rows: list[Row]) -> dict[str, pa.Table]:
    return {side: table([row for row in rows if row.side == side], schema) for side, schema in SIDES.items()}


def bound(job: OperatorStream, left: pa.Schema = LEFT, right: pa.Schema = RIGHT) -> Any:
    """The plan of a job over two sides."""
    description = of_type(job.graph.description, Sided)
    return bind_plan(description, description.sides.schema({"left": left, "right": right}))


def seconds(panes: pa.Table, name: str) -> list[int]:
    found: list[Any] = panes[name].cast(pa.int64()).to_pylist()
    return [time // SECOND for time in found]


rows = st.builds(
    Row,
    side=st.sampled_from(["left", "right"]),
    key=st.sampled_from("aab"),
    at=st.integers(0, 40),
    value=st.integers(0, 10**6),
    gap=st.integers(1, 8),
)


def numbered(batches: list[list[Row]]) -> list[list[Row]]:
    """Every row with a value of its own."""
    return [
        [Row(row.side, row.key, row.at, 100 * number + place, row.gap) for place, row in enumerate(batch)]
        for number, batch in enumerate(batches)
    ]
