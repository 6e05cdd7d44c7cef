"""A restore drill: restore a checkpoint into a temporary store and measure how long it takes.

The root is not changed. Files of a remote root are downloaded again, as on a new host.
"""

from __future__ import annotations

import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import msgspec

from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest, OperatorState
from tidestate.recovery.log.summary import pluralize, size_text
from tidestate.recovery.start.restore_budget import predicted_s, rate_of
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import Restored, StoreConfig, StoreName
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.storage.private import temporary_folder
from tidestate.statestore.stores.opening import forget_cache, open_store
from tidestate.statestore.stores.restore_monitor import (
    RestoreCallback,
    RestoreMonitor,
    no_restore_progress,
    restored_size,
)


@dataclass(frozen=True, repr=False)
class RestoreDrill:
    """How long the restore took: by operator, the sum over its partitions; ``whole``: until all were restored.

    ``predicted_s`` was the prediction, ``budget_s`` is the job's budget (None before its first batch). It prints
    itself.
    """

    checkpoint: int
    store: StoreName
    parallel: int
    operators: dict[str, Restored]
    whole: Restored
    predicted_s: float
    budget_s: int | None

    @property
    def summary(self) -> str:
        """What was restored, and what was predicted, in two lines."""
        partitions = f"{pluralize(self.parallel, 'partition')} at a time"
        budget = f"budget {self.budget_s} s" if self.budget_s is not None else "no budget before the first batch"
        made = f"checkpoint {self.checkpoint} into {self.store}, {partitions}"
        return f"{made}\npredicted {self.predicted_s:.2f} s, {budget}"

    def __str__(self) -> str:
        whole = self.whole
        size = f"{pluralize(whole.files, 'file')}, {size_text(whole.bytes)}, {pluralize(whole.rows, 'row')}"
        return f"restored {size} in {whole.seconds:.2f} s: {self.summary}"

    __repr__ = __str__


@dataclass(frozen=True)
class _Piece:
    """A state partition of an operator."""

    operator: str
    state: OperatorState
    partition: int


def store_for(manifest: Manifest) -> StoreName:
    """The default store of a drill: the job's, or memory if the job's store reads on demand."""
    return "rocksdb" if manifest.restored is not None and manifest.restored.store == "rocksdb" else "memory"


def run_restore_drill(
    checkpoint: Checkpoint,
    manifest: Manifest,
    store: StoreName | None = None,
    *,
    parallel: int = 1,
    on_progress: RestoreCallback = no_restore_progress,
) -> RestoreDrill:
    """Restore all state of ``manifest``, ``parallel`` partitions at a time, on threads of this process; each is
    discarded as soon as it is restored. ``on_progress`` is called with what is done and with the total, from any
    thread, one call at a time.

    Raises `UsageError` for a store that reads on demand or is not installed, and `CorruptionError` or
    `UnavailableError` for files that cannot be read.
    """
    store = store or store_for(manifest)
    if store not in ("memory", "rocksdb") or parallel < 1:
        raise UsageError(
            'a restore drill needs the store "memory" or "rocksdb", and at least one partition at a time',
            code="restore",
            store=store,
            parallel=parallel,
        )
    pieces = list(_pieces(manifest))
    board = _Board(manifest, on_progress)
    with tempfile.TemporaryDirectory(prefix="tidestate-restore-", dir=temporary_folder()) as folder:
        objects = Objects(checkpoint.objects.root, bases=checkpoint.objects.bases, copies=f"{folder}/copies")
        config = StoreConfig(store, cache_dir=str(Path(folder) / "store"))
        begun = time.monotonic()
        with ThreadPoolExecutor(parallel) as pool:
            try:
                found = list(pool.map(lambda piece: _restore(piece, config, objects, board), pieces))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        seconds = time.monotonic() - begun
    operators = dict.fromkeys(manifest.operators, Restored())
    for piece, restored in zip(pieces, found, strict=True):
        operators[piece.operator] = operators[piece.operator].plus(restored)
    return RestoreDrill(
        manifest.id,
        store,
        parallel,
        operators,
        msgspec.structs.replace(board.done, seconds=seconds),
        predicted_s(manifest.operators.values(), store, rate_of(manifest, store), parallel),
        manifest.restored.budget_s if manifest.restored is not None else None,
    )


def _pieces(manifest: Manifest) -> Iterator[_Piece]:
    for name, operator in manifest.operators.items():
        for partition in range(len(operator.partitions)):
            yield _Piece(name, operator, partition)


def _restore(piece: _Piece, config: StoreConfig, objects: Objects, board: _Board) -> Restored:
    watch = RestoreMonitor(board.callback(piece), every_s=0.1)
    identity = uuid.uuid4().hex
    base = piece.state.states[piece.partition]
    try:
        with open_store(config, objects, identity, piece.state.tables, base, watch) as store, closing(store):
            return watch.restored
    finally:
        forget_cache(config, identity)


class _Board:
    """The total of what all partitions have restored."""

    def __init__(self, manifest: Manifest, on_progress: RestoreCallback) -> None:
        self._all = restored_size(
            ref for one in _pieces(manifest) for ref in one.state.partitions[one.partition].files
        )
        self._on_progress, self._lock, self._begun = on_progress, threading.Lock(), time.monotonic()
        self._parts: dict[tuple[str, int], Restored] = {}

    def callback(self, piece: _Piece) -> RestoreCallback:
        """The callback of one partition."""

        def report(done: Restored, _all: Restored) -> None:
            with self._lock:
                self._parts[piece.operator, piece.partition] = done
                self._on_progress(self.done, self._all)

        return report

    @property
    def done(self) -> Restored:
        """What has been restored in total, and the time since the beginning."""
        whole = reduce(Restored.plus, list(self._parts.values()), Restored())
        return msgspec.structs.replace(whole, seconds=time.monotonic() - self._begun)
