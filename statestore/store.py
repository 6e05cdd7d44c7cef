"""The store protocol: one instance holds the state of one operator on one state partition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, Protocol

import msgspec
import pyarrow as pa

from statestore.changes import Applied, ChangeSet, Lookup
from statestore.errors import UsageError
from statestore.tables import TableSpec

StoreName = Literal["memory", "rocksdb", "parquet"]


class StateView(Protocol):
    """What a step may ask of state. Reading changes nothing."""

    def lookup(self, table: str, keys: pa.Table) -> Lookup:
        """Rows for these keys, aligned with them; expired rows are not found."""
        ...

    def scan(
        self, table: str, lower: int | None = None, upper: int | None = None, *, folded: bool = True
    ) -> Iterator[pa.Table]:
        """Live rows with ``lower <= leading key column < upper``, in batches, sorted by the whole key.

        Bounds are integers in the unit of the column (microseconds for times). With ``folded=False`` a row may
        come in parts that combine to it, in any order: cheaper for a caller who combines anyway.
        """
        ...


class StateStore(StateView, Protocol):
    """A place for state tables."""

    @property
    def applied(self) -> Applied:
        """The sequence and lineage id last applied."""
        ...

    def apply(self, changes: ChangeSet, applied: Applied) -> None:
        """Apply all of ``changes`` or nothing, and remember ``applied`` together with them.

        Raises `UsageError` when the sequence does not grow; nothing is applied then.
        """
        ...

    @property
    def expired(self) -> Mapping[str, int]:
        """Per table the bound at or below which rows are forgotten."""
        ...

    def expire(self, table: str, bound: int) -> None:
        """Forget rows at or below ``bound`` outside of a change set; a bound never goes back."""
        ...

    def snapshot(self) -> dict[str, pa.Table]:
        """Live rows of every table in key order: the same rows whichever store wrote them."""
        ...

    def close(self) -> None:
        """Release files and memory. Closing twice is fine."""
        ...


class StoreConfig(msgspec.Struct, frozen=True):
    """Which store, and its settings. Choose it anew at any start: the durable files are the same for all three."""

    name: StoreName
    cache_dir: str = ""
    max_files: int = 12
    snapshot_every: int = 50

    def __post_init__(self) -> None:
        if self.max_files < 2:
            raise UsageError("a partition needs room for two files", code="store-files", max_files=self.max_files)
        if self.snapshot_every < 1:
            raise UsageError(
                "snapshots come every one or more checkpoints",
                code="store-snapshots",
                snapshot_every=self.snapshot_every,
            )


def Memory(*, max_files: int = 12, snapshot_every: int = 50) -> StoreConfig:  # noqa: N802
    """State in RAM, in the Python worker that last held the partition. For state that fits there."""
    return StoreConfig("memory", max_files=max_files, snapshot_every=snapshot_every)


def Parquet(*, max_files: int = 12, snapshot_every: int = 50) -> StoreConfig:  # noqa: N802
    """State in the durable files themselves, mapped into memory as they are needed. The default."""
    return StoreConfig("parquet", max_files=max_files, snapshot_every=snapshot_every)


def RocksDB(*, cache_dir: str = "", max_files: int = 12, snapshot_every: int = 50) -> StoreConfig:  # noqa: N802
    """State in a local RocksDB under ``cache_dir`` (default: a folder in the system's temporary one).

    The folder is a cache of the durable files: losing it costs a rebuild, never state.
    """
    return StoreConfig("rocksdb", cache_dir=cache_dir, max_files=max_files, snapshot_every=snapshot_every)


def check_sequence(now: Applied, then: Applied) -> None:
    """Raise `UsageError` unless ``then`` comes after ``now``."""
    if then.sequence <= now.sequence:
        raise UsageError(
            "a change set must come after the one before it",
            code="sequence",
            applied=now.sequence,
            offered=then.sequence,
        )


def specs_by_name(specs: Sequence[TableSpec]) -> dict[str, TableSpec]:
    """Specs by table name; raises `UsageError` when a name repeats."""
    named = {spec.name: spec for spec in specs}
    if len(named) != len(specs):
        raise UsageError("tables of one operator need different names", code="table-names")
    return named
