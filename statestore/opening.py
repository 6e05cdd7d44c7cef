"""Opening the store of a state partition at the lineage a manifest names.

A store that outlives a task only ever holds a prefix of the committed lineage: it catches up from committed
segments, never from the change a task has just computed. Where its own last segment is not among the files any
more, it is rebuilt from them.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import pyarrow as pa

from statestore.changes import DELETE, MERGE, PUT, Applied, ChangeSet, Layer, TableChanges
from statestore.errors import CorruptionError, UnavailableError
from statestore.fold import fold
from statestore.layered import LayeredStore
from statestore.objects import Objects
from statestore.segments import FileRef, PartitionState, read_segment
from statestore.store import StateStore, StoreConfig
from statestore.tables import TableSpec


def forget_cache(config: StoreConfig, identity: str) -> None:
    """Throw away the local cache of a partition; the next opening rebuilds it from the durable files."""
    if config.name == "rocksdb":
        shutil.rmtree(rocks_folder(config, identity), ignore_errors=True)


@contextmanager
def open_store(
    config: StoreConfig, objects: Objects, identity: str, specs: Sequence[TableSpec], base: PartitionState
) -> Iterator[StateStore]:
    """The store holding exactly what ``base`` says. ``identity`` names job, operator and partition.

    Raises `CorruptionError` when a file that ``base`` names is damaged or gone. Cost: parquet maps files;
    memory and rocksdb apply the segments written since they last held this partition, or rebuild.
    """
    if config.name == "parquet":
        with contextlib.closing(_open_files(objects, specs, base)) as store:
            yield store
    elif config.name == "memory":
        yield _open_memory(objects, identity, specs, base)
    else:
        with contextlib.closing(_open_rocks(config, objects, identity, specs, base)) as rocks:
            yield rocks


def _open_files(objects: Objects, specs: Sequence[TableSpec], base: PartitionState) -> LayeredStore:
    layers = {spec.name: _layers(objects, spec, base.files, mapped=True) for spec in specs}
    return LayeredStore(specs, layers, expired=base.expired, applied=_applied(base), compact=False)


_memory: dict[str, LayeredStore] = {}


def _open_memory(objects: Objects, identity: str, specs: Sequence[TableSpec], base: PartitionState) -> LayeredStore:
    store = _memory.get(identity)
    if store is None or not _catch_up(store, objects, specs, base):
        layers = {spec.name: _layers(objects, spec, base.files, mapped=False) for spec in specs}
        store = LayeredStore(specs, layers, expired=base.expired, applied=_applied(base))
        _memory[identity] = store
    return store


def _open_rocks(
    config: StoreConfig, objects: Objects, identity: str, specs: Sequence[TableSpec], base: PartitionState
) -> StateStore:
    from statestore.rocksdb import RocksStore  # rocksdict is an extra

    folder = rocks_folder(config, identity)
    try:
        store = RocksStore(specs, folder)
    except UnavailableError as error:
        if "lock" in error.message.lower():
            # A zombie holds the folder: leave it alone and serve this task from a folder of its own.
            folder = folder.with_name(f"{folder.name}-{uuid.uuid4().hex}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    except CorruptionError:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        # Whatever is damaged, cache or files: the rebuild below mends the one and names the other.
        try:
            if _catch_up(store, objects, specs, base):
                return store
            store.close()
        except CorruptionError:
            store.close()
        except BaseException:
            store.close()
            raise
        shutil.rmtree(folder, ignore_errors=True)
    store = RocksStore(specs, folder)
    try:
        _rebuild(store, objects, specs, base)
    except BaseException:
        store.close()
        raise
    return store


def rocks_folder(config: StoreConfig, identity: str) -> Path:
    """Where the cache of this partition lies on this host."""
    parent = Path(config.cache_dir) if config.cache_dir else Path(tempfile.gettempdir()) / "tidemark-rocksdb"
    return parent / hashlib.sha256(identity.encode()).hexdigest()[:24]


def _rebuild(store: StateStore, objects: Objects, specs: Sequence[TableSpec], base: PartitionState) -> None:
    changes = {}
    for spec in specs:
        rows = fold(spec, _layers(objects, spec, base.files, mapped=True))
        changes[spec.name] = TableChanges(put=rows, expire=base.expired.get(spec.name))
    if base.sequence:
        store.apply(changes, _applied(base))


def _applied(base: PartitionState) -> Applied:
    return Applied(base.sequence, base.lineage)


def _layers(objects: Objects, spec: TableSpec, files: Sequence[FileRef], *, mapped: bool) -> list[Layer]:
    own = (ref for ref in files if ref.table == spec.name)
    return [layer for ref in own for layer in read_segment(objects, spec, ref, mapped=mapped)]


def _catch_up(store: StateStore, objects: Objects, specs: Sequence[TableSpec], base: PartitionState) -> bool:
    """Apply the committed segments the store lacks; False when it is not a prefix of ``base``."""
    have = store.applied
    if any(bound > base.expired.get(table, bound - 1) for table, bound in store.expired.items()):
        return False  # it has forgotten rows that ``base`` still has: it followed another copy of this checkpoint
    if have.lineage != base.lineage:
        if have.sequence < base.floor:
            return False
        newer = [ref for ref in base.files if ref.last > have.sequence]
        known = any(ref.segment == have.lineage and ref.last == have.sequence for ref in base.files)
        if not known or any(ref.first <= have.sequence for ref in newer):
            return False
        by_last = sorted(newer, key=lambda ref: ref.last)
        for last, refs in groupby(by_last, key=lambda ref: ref.last):
            group = list(refs)
            store.apply(_changes(objects, specs, group), Applied(last, group[0].segment))
        if store.applied.lineage != base.lineage:
            return False
    for table, bound in base.expired.items():
        store.expire(table, bound)
    return True


def _changes(objects: Objects, specs: Sequence[TableSpec], refs: Sequence[FileRef]) -> ChangeSet:
    changes: dict[str, TableChanges] = {}
    for spec in specs:
        by_op: dict[int, list[pa.Table]] = {}
        for layer in _layers(objects, spec, refs, mapped=False):
            by_op.setdefault(layer.op, []).append(layer.rows)
        if by_op:
            rows = {op: pa.concat_tables(tables) for op, tables in by_op.items()}
            changes[spec.name] = TableChanges(rows.get(DELETE), rows.get(PUT), rows.get(MERGE))
    return changes
