"""Opening the store of a state partition at the lineage a manifest names.

A store that outlives a task only ever holds a prefix of the committed lineage: it catches up from committed
segments, never from the change a task has just computed. Where its own last segment is not among the files any
more, it is rebuilt from them.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pyarrow as pa

from tidestate.statestore.distribution import install
from tidestate.statestore.errors import CorruptionError, UnavailableError, UsageError
from tidestate.statestore.files.filetable import open_sources
from tidestate.statestore.files.refs import FileRef, PartitionState
from tidestate.statestore.spec.changes import DELETE, MERGE, PUT, Applied, ChangeSet, TableChanges
from tidestate.statestore.spec.keyrange import EVERYTHING
from tidestate.statestore.spec.store import StateStore, StoreConfig
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.storage.private import make_private, of_this_user
from tidestate.statestore.stores.memory import MemoryStore
from tidestate.statestore.stores.parquet import ParquetStore
from tidestate.statestore.stores.restore_monitor import RestoreMonitor


def forget_cache(config: StoreConfig, identity: str) -> None:
    """Throw away the local cache of a partition; the next opening rebuilds it from the durable files."""
    _memory.pop(identity, None)
    if config.name == "rocksdb":
        with contextlib.suppress(OSError):
            _set_aside(rocks_folder(config, identity))


@dataclass(frozen=True)
class _Opening:
    """A state partition as a manifest names it, ``base``, with the files it lies in. ``watch`` sees what is read."""

    config: StoreConfig
    objects: Objects
    specs: Sequence[TableSpec]
    base: PartitionState
    watch: RestoreMonitor

    def files(self) -> ParquetStore:
        own = self.config.name == "parquet"  # another store reads the files once, and has the rows then
        budget = self.config.budget_bytes
        return ParquetStore(self.specs, self.objects, self.base, budget_bytes=budget, stays_decoded=own)


@contextmanager
def open_store(
    config: StoreConfig,
    objects: Objects,
    identity: str,
    specs: Sequence[TableSpec],
    base: PartitionState,
    watch: RestoreMonitor | None = None,
) -> Iterator[StateStore]:
    """The store holding exactly what ``base`` says. ``identity`` names job, operator and partition. ``watch`` sees
    what is read for that.

    Raises `CorruptionError` when a file that ``base`` names is damaged or gone; the parquet store finds out when it
    reads. Raises `UsageError` (``folder-shared``) where the cache would lie in a folder that others may use. Cost:
    parquet nothing; memory and rocksdb apply the segments written since they last held this partition, or rebuild.
    """
    opening = _Opening(config, objects, specs, base, watch or RestoreMonitor())
    if config.name == "parquet":
        with contextlib.closing(opening.files()) as store:
            yield store
    elif config.name == "memory":
        yield _open_memory(opening, identity)
    else:
        with _open_rocks(opening, identity) as rocks:
            yield rocks


_memory: dict[str, MemoryStore] = {}


def _open_memory(opening: _Opening, identity: str) -> MemoryStore:
    # Out of the cache while it moves: what fails on the way is not found there again.
    store = _memory.pop(identity, None)
    with opening.watch.timed():
        if store is None or not store.serves(opening.specs) or not _catch_up(store, opening):
            store = MemoryStore(opening.specs)
            _rebuild(store, opening)
    _memory[identity] = store
    return store


@contextmanager
def _open_rocks(opening: _Opening, identity: str) -> Iterator[StateStore]:
    try:
        from tidestate.statestore.stores.rocksdb import RocksStore  # rocksdict is an extra
    except ImportError as error:
        raise UsageError(f"the rocksdb store needs a package: {install('rocksdb')}", code="store-package") from error
    folder = rocks_folder(opening.config, identity)
    inode, private = _inode(folder), False
    store: RocksStore | None = None
    try:
        store = RocksStore(opening.specs, folder)
    except CorruptionError:
        # Unless somebody has mended it meanwhile.
        if inode is not None and _inode(folder) == inode:
            _set_aside(folder)
    except UnavailableError as error:
        if error.code != "rocksdb-open":
            raise
        # A zombie holds the lock: leave the folder to it and serve this task from one of its own.
        folder, private = folder.with_name(f"{folder.name}-{uuid.uuid4().hex}"), True
    try:
        with opening.watch.timed():
            if store is None or not _caught_up(store, opening):
                if store is not None:
                    # Moved away under the lock: the next process finds no folder and makes a new one.
                    aside = _set_aside(folder, keep=True)
                    store.close()
                    shutil.rmtree(aside, ignore_errors=True)
                store = RocksStore(opening.specs, folder)
                _rebuild(store, opening)
        yield store
    finally:
        if store is not None:
            store.close()
        if private:
            shutil.rmtree(folder, ignore_errors=True)


def _caught_up(store: StateStore, opening: _Opening) -> bool:
    """Whatever is damaged, cache or files: a rebuild mends the one and names the other."""
    try:
        return _catch_up(store, opening)
    except CorruptionError:
        return False


def _set_aside(folder: Path, *, keep: bool = False) -> Path:
    """Give ``folder`` another name, and remove it unless it is still in use."""
    aside = folder.with_name(f"{folder.name}-{uuid.uuid4().hex}")
    folder.rename(aside)
    if not keep:
        shutil.rmtree(aside, ignore_errors=True)
    return aside


def _inode(folder: Path) -> int | None:
    try:
        return folder.stat().st_ino
    except OSError:
        return None


def rocks_folder(config: StoreConfig, identity: str) -> Path:
    """Where the cache of this partition lies on this host, in a folder of this user alone. See `make_private`."""
    parent = Path(config.cache_dir) if config.cache_dir else of_this_user("tidestate-rocksdb")
    make_private(parent)
    return parent / hashlib.sha256(identity.encode()).hexdigest()[:24]


def _rebuild(store: StateStore, opening: _Opening) -> None:
    """Fill an empty store from the files, band by band."""
    base, watch = opening.base, opening.watch
    watch.expect(base.files)
    if base.sequence:
        with contextlib.closing(opening.files()) as files:
            rows = {
                table: watch.reading([ref for ref in base.files if ref.table == table], batches)
                for table, batches in files.snapshot().items()
            }
            store.load(rows, Applied(base.sequence, base.lineage), base.expired)


def _catch_up(store: StateStore, opening: _Opening) -> bool:
    """Apply the committed segments the store lacks; False when it is not a prefix of ``base``."""
    have, base = store.applied, opening.base
    if any(bound > base.expired.get(table, bound - 1) for table, bound in store.expired.items()):
        return False  # it has forgotten rows that ``base`` still has: it followed another copy of this checkpoint
    if have.lineage != base.lineage:
        if have.sequence < base.floor:
            return False
        newer = [ref for ref in base.files if ref.last > have.sequence]
        # Where a partition begins with files of others, nothing but what follows names its own beginning.
        known = any(ref.segment == have.lineage and ref.last == have.sequence for ref in base.files) or (
            have.lineage != "" and any(ref.previous == have.lineage for ref in newer)
        )
        if not known or any(ref.first <= have.sequence for ref in newer):
            return False
        by_last = sorted(newer, key=lambda ref: ref.last)
        opening.watch.expect(by_last)
        for last, refs in groupby(by_last, key=lambda ref: ref.last):
            group = list(refs)
            store.apply(_changes(opening.objects, opening.specs, group), Applied(last, group[0].segment))
            opening.watch.took(group)
        if store.applied.lineage != base.lineage:
            return False
    for table, bound in base.expired.items():
        store.expire(table, bound)
    return True


def _changes(objects: Objects, specs: Sequence[TableSpec], refs: Sequence[FileRef]) -> ChangeSet:
    changes: dict[str, TableChanges] = {}
    for spec in specs:
        by_op: dict[int, list[pa.Table]] = {}
        for source in open_sources(objects, spec, [ref for ref in refs if ref.table == spec.name]):
            for layer in source.layers(EVERYTHING):
                by_op.setdefault(layer.op, []).append(layer.rows)
        if by_op:
            rows = {op: pa.concat_tables(tables) for op, tables in by_op.items()}
            changes[spec.name] = TableChanges(rows.get(DELETE), rows.get(PUT), rows.get(MERGE))
    return changes
