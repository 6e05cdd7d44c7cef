"""A share of a file has the rows whose hashes are in its range: the first one is, the end is not."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidestate.statestore.files.refs import FileRef
from tidestate.statestore.files.shares import Share
from tidestate.statestore.spec.changes import PUT, Layer
from tidestate.statestore.spec.keyhash import key_hash
from tidestate.statestore.spec.tables import Column, TableSpec

SPEC = TableSpec("t", (Column("k", "string"),), (Column("n", "int64"),), partition_by=("k",))
ROWS = pa.table({"k": [f"key {number}" for number in range(40)], "n": range(40)}, schema=SPEC.schema)


def shared(low: int, high: int) -> list[int]:
    layers = Share(SPEC, FileRef("f", 1, "", ROWS.num_rows, hashes=(low, high))).of([Layer(PUT, ROWS)])
    return sorted(number for layer in layers for number in layer.rows["n"].to_pylist())


def test_neighbouring_shares_have_each_row_once() -> None:
    hashes = key_hash(ROWS.select(["k"])).astype(np.int64)
    order, ends = np.argsort(hashes).tolist(), [*np.sort(hashes).tolist(), 2**32]
    for place, number in enumerate(order):
        assert shared(ends[place], ends[place + 1]) == [number]
        assert shared(0, ends[place]) == sorted(order[:place])
    assert shared(0, 2**32) == list(range(40))
