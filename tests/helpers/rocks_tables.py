"""Tables and helpers for the tests of the RocksDB store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidestate.statestore.spec.changes import Applied, TableChanges
from tidestate.statestore.spec.keyrange import key_range
from tidestate.statestore.spec.tables import Column, TableSpec
from tidestate.statestore.stores.memory import MemoryStore
from tidestate.statestore.stores.rocksdb import RocksStore

LEADING = TableSpec(
    "leading",
    (Column("t", "int64"), Column("k", "string")),
    (Column("n", "int64", combiner="sum"), Column("names", "list<item: string>", combiner="append")),
    "t",
)
SECOND = TableSpec(
    "second", (Column("k", "string"), Column("t", "int32")), (Column("n", "int64", combiner="sum"),), "t"
)
VALUE = TableSpec("value", (Column("k", "binary"),), (Column("t", "timestamp[us]"), Column("n", "int64")), "t")
PLAIN = TableSpec("plain", (Column("k", "int64"),), (Column("v", "string"),))
SPECS = (LEADING, SECOND, VALUE, PLAIN)


@contextlib.contextmanager
def opened(folder: Path, *specs: TableSpec) -> Iterator[RocksStore]:
    with contextlib.closing(RocksStore(specs or SPECS, folder)) as store:
        yield store


def numbers(first: int, last: int, text: str = "x") -> pa.Table:
    return pa.table({"k": range(first, last), "v": [f"{text}{i}" for i in range(first, last)]}, schema=PLAIN.schema)


def rows_of(
    store: RocksStore | MemoryStore, table: str, *, reverse: bool = False, **bounds: Any
) -> list[dict[str, Any]]:
    return [row for batch in store[table].scan(key_range(**bounds), reverse=reverse) for row in batch.to_pylist()]


def fill(folder: Path, count: int = 5000) -> pa.Table:
    """A closed store with one table of ``count`` rows in files."""
    with opened(folder, PLAIN) as store:
        store.apply({"plain": TableChanges(put=numbers(0, count))}, Applied(1, "a"))
    return numbers(0, count)


def sst_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.sst"))
