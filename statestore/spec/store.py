"""The store protocol: one instance holds the state of one operator on one state partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, Protocol, get_args

import msgspec
import pyarrow as pa

from tidestate.statestore.arguments import called, checked
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.changes import Applied, ChangeSet, KeyBound, Lookup, Ranges
from tidestate.statestore.spec.keyrange import EVERYTHING, KeyRange

StoreName = Literal["memory", "rocksdb", "parquet"]


class TableView(Protocol):
    """One state table as a step reads it. Reading changes nothing; expired rows are never returned."""

    @property
    def expired(self) -> int | None:
        """Rows at or below this bound have expired."""
        ...

    def lookup(self, keys: pa.Table) -> Lookup:
        """Rows for these keys (they may repeat; a null finds nothing), aligned with them."""
        ...

    def scan(self, keys: KeyRange = EVERYTHING, *, reverse: bool = False, folded: bool = True) -> Iterator[pa.Table]:
        """Rows within ``keys`` (see `key_range`), in key order, in batches.

        With ``folded=False`` a row may come in parts that combine to it: cheaper for a caller who combines anyway.
        Batches are then of ranges of keys that follow each other, and within a batch parts are in the order in which
        they combine, not of the key. Read a scan before the next ``apply``.
        """
        ...

    def ranges(self, prefixes: pa.Table, lower: KeyBound = None, upper: KeyBound = None) -> Ranges:
        """Per row of ``prefixes`` the rows with that key prefix, the next column in ``lower[i] <= … < upper[i]``.

        ``prefixes`` holds the leading key columns, all but one at most, none at least. A null bound is no bound.
        """
        ...


class StateView(Protocol):
    """State as a step reads it: a mapping of table names to tables."""

    def __getitem__(self, table: str, /) -> TableView:
        """Raises `NotFoundError` for an unknown table."""
        ...


class StateStore(StateView, Protocol):
    """A place for state tables. `tidestate.statestore.testing` holds the contract as tests."""

    @property
    def applied(self) -> Applied:
        """The sequence and lineage id last applied."""
        ...

    @property
    def expired(self) -> Mapping[str, int]:
        """The bound of each table that has one, see `TableView.expired`."""
        ...

    def apply(self, changes: ChangeSet, applied: Applied) -> None:
        """Apply all of ``changes`` or nothing, and remember ``applied`` together with them.

        Raises `UsageError` when the sequence does not grow or rows break their table's rules, `NotFoundError` for
        an unknown table, `LimitError` past a documented limit; nothing is applied then.
        """
        ...

    def expire(self, table: str, bound: int) -> None:
        """Forget rows at or below ``bound`` outside of a change set; a bound never goes back."""
        ...

    def snapshot(self) -> dict[str, Iterator[pa.Table]]:
        """Live rows of every table in key order, in batches: the same rows whichever store wrote them."""
        ...

    def load(
        self, rows: Mapping[str, Iterable[pa.Table]], applied: Applied, expired: Mapping[str, int] | None = None
    ) -> None:
        """Fill an empty store with a snapshot: per table batches in key order, each key once.

        Raises `UsageError` when something has been applied already; nothing is loaded then.
        """
        ...

    def close(self) -> None:
        """Release files and memory. Closing twice is fine."""
        ...


RESTORE_BYTES_PER_S = 50 << 20
"""How fast a partition is taken to be restored before that is measured: docs/internals/performance.md."""


@called("a store", "Parquet()")
class StoreConfig(msgspec.Struct, frozen=True):
    """Which store, and its settings. Each start may choose another: the durable files are the same for all three.

    ``restore_bytes_per_s`` is how fast a partition is restored; a job sets it from what its last starts measured.
    """

    name: StoreName
    cache_dir: str = ""
    budget_bytes: int = 256 << 20
    max_levels: int = 12
    snapshot_bytes: int = 64 << 20
    recovery_s: int = 30
    restore_bytes_per_s: int = RESTORE_BYTES_PER_S

    def __post_init__(self) -> None:
        if self.max_levels < 2:
            raise UsageError("max_levels= must be at least 2", code="store-levels", max_levels=self.max_levels)
        if self.budget_bytes < 1 << 20:
            raise UsageError(
                "budget_bytes= must be at least one mebibyte", code="store-budget", budget_bytes=self.budget_bytes
            )
        if self.recovery_s < 1 or self.snapshot_bytes < 1:
            raise UsageError(
                "snapshot_bytes= must be at least 1, and recovery_s= at least 1 second",
                code="store-snapshots",
                snapshot_bytes=self.snapshot_bytes,
                recovery_s=self.recovery_s,
            )


@checked
def Memory(  # noqa: N802
    *, max_levels: int = 12, snapshot_bytes: int = 64 << 20, recovery_s: int = 30
) -> StoreConfig:
    """State in RAM, in the Python worker that last held the partition. For state that fits there.

    A table of a partition is folded from ``max_levels`` levels on, see docs/how-to/choose-a-store.md. It is written
    out as a snapshot when its log since the last one has grown to ``snapshot_bytes`` and to a few times the size of
    that, or when reading all its files would take longer than ``recovery_s``.
    """
    return StoreConfig("memory", max_levels=max_levels, snapshot_bytes=snapshot_bytes, recovery_s=recovery_s)


@checked
def Parquet(  # noqa: N802
    *, budget_bytes: int = 256 << 20, max_levels: int = 12, snapshot_bytes: int = 64 << 20, recovery_s: int = 30
) -> StoreConfig:
    """State in the durable files themselves, read where a batch touches it. The default.

    ``budget_bytes``: memory that one partition's state may take in a task, however large it is.
    """
    return StoreConfig(
        "parquet",
        budget_bytes=budget_bytes,
        max_levels=max_levels,
        snapshot_bytes=snapshot_bytes,
        recovery_s=recovery_s,
    )


@checked
def RocksDB(  # noqa: N802
    *, cache_dir: str = "", max_levels: int = 12, snapshot_bytes: int = 64 << 20, recovery_s: int = 30
) -> StoreConfig:
    """State in a local RocksDB under ``cache_dir`` (default: a folder in the system's temporary one).

    The folder is a cache of the durable files: losing it costs a rebuild, never state. Only this user may have
    access: a folder that others can read or write is refused.
    """
    return StoreConfig(
        "rocksdb",
        cache_dir=cache_dir,
        max_levels=max_levels,
        snapshot_bytes=snapshot_bytes,
        recovery_s=recovery_s,
    )


def store_of(store: StoreConfig | StoreName | None) -> StoreConfig:
    """The store that an argument ``store=`` means: ``"rocksdb"`` is short for ``RocksDB()``, None is the default.
    Raises `UsageError` (``store``) for anything else.
    """
    if isinstance(store, StoreConfig):
        return store
    name = "parquet" if store is None else store
    if not isinstance(name, str) or name not in get_args(StoreName):
        raise UsageError(
            'unknown store: give "parquet", "memory" or "rocksdb", or a store with settings, such as '
            'RocksDB(cache_dir="/mnt/state")',
            code="store",
            found=f"{store!r:.100} ({type(store).__name__})",
        )
    return {"memory": Memory, "parquet": Parquet, "rocksdb": RocksDB}[name]()


class Restored(msgspec.Struct, frozen=True):
    """Files, bytes and rows that were read to have a store at hand, and how long that took.

    All 0 where there was nothing to read: the store held the partition, or reads on demand.
    """

    files: int = 0
    bytes: int = 0
    rows: int = 0
    seconds: float = 0.0

    def plus(self, later: Restored) -> Restored:
        """Both, one after the other."""
        return Restored(
            self.files + later.files,
            self.bytes + later.bytes,
            self.rows + later.rows,
            self.seconds + later.seconds,
        )

    @property
    def rate(self) -> float:
        """Bytes a second; 0 where there were none."""
        return self.bytes / max(self.seconds, 1e-6)
