"""Every store under any limits, in a folder of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.helpers.process import SCRATCH, forget
from tests.twins.naive import Row
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB, StoreConfig, StoreName

STORES: tuple[StoreName, ...] = ("memory", "parquet", "rocksdb")


@contextmanager
def new_folder() -> Iterator[Path]:
    """A folder of this example alone, in what looks like a new process."""
    forget()
    with tempfile.TemporaryDirectory(prefix="twin-", dir=SCRATCH) as folder:
        yield Path(folder)


def store_config(name: StoreName, folder: Path, limits: tuple[int, int]) -> StoreConfig:
    max_levels, snapshot_bytes = limits
    if name == "rocksdb":
        return RocksDB(cache_dir=str(folder / "cache"), max_levels=max_levels, snapshot_bytes=snapshot_bytes)
    return {"memory": Memory, "parquet": Parquet}[name](max_levels=max_levels, snapshot_bytes=snapshot_bytes)


def added(a: Row, b: Row) -> Row:
    """Two disjoint panes of a window as one; a mean does not add up and is left out."""
    combine = (sum, sum, sum, max, min, sum)
    pairs = [[value for value in pair if value is not None] for pair in zip(a[:6], b[:6], strict=True)]
    return tuple(function(pair) if pair else None for function, pair in zip(combine, pairs, strict=True))
