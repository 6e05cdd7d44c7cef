"""The durable files of a partition as a store: what a task, a manifest and the next task do together, in one process.

Each change set is a segment and a small head file, created if absent, which commits it; reading is the parquet
store's.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa

from tidestate.statestore.files.partition_log import PartitionLog
from tidestate.statestore.files.refs import FileRef, PartitionState, SegmentName
from tidestate.statestore.files.sortedfile import write_sorted
from tidestate.statestore.spec.changes import Applied, ChangeSet
from tidestate.statestore.spec.store import Parquet, StoreConfig, TableView
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.stores.parquet import ParquetStore
from tidestate.statestore.table.validation import (
    check_sequence,
    expiring,
    in_order,
    loadable,
    specs_by_name,
    validate_changes,
)


class Head(msgspec.Struct, frozen=True):
    """What a head file says: the state and how far it is."""

    state: PartitionState = PartitionState()
    sequence: int = 0
    lineage: str = ""
    write: str = ""


class DurableStore:
    """State tables below ``objects``; one writer at a time."""

    def __init__(self, specs: Sequence[TableSpec], objects: Objects, config: StoreConfig = Parquet()) -> None:  # noqa: B008
        self._specs, self._objects, self._config = specs_by_name(specs), objects, config
        names = [name for name in objects.names("heads") if name.endswith(".json")]
        self._number = int(names[-1].removesuffix(".json")) if names else 0
        self._head = msgspec.json.decode(objects.read(f"heads/{names[-1]}"), type=Head) if names else Head()
        self._open()

    @property
    def applied(self) -> Applied:
        return Applied(self._head.sequence, self._head.lineage)

    @property
    def expired(self) -> Mapping[str, int]:
        return dict(self._head.state.expired)

    def __getitem__(self, table: str) -> TableView:
        return self._files[table]

    def apply(self, changes: ChangeSet, applied: Applied) -> None:
        check_sequence(self.applied, applied)
        validate_changes(self._specs, changes)
        log = PartitionLog(
            self._objects, tuple(self._specs.values()), self._config, "durable", 0, 1, uuid.uuid4().hex
        )
        self._publish(log.append(self._head.state, changes, applied.sequence), applied)

    def expire(self, table: str, bound: int) -> None:
        expiring(self._specs, table, bound)
        expired = self._head.state.expired
        expired = expired | {table: max(bound, expired.get(table, bound))}
        self._publish(msgspec.structs.replace(self._head.state, expired=expired), self.applied)

    def snapshot(self) -> dict[str, Iterator[pa.Table]]:
        return self._files.snapshot()

    def load(
        self, rows: Mapping[str, Iterable[pa.Table]], applied: Applied, expired: Mapping[str, int] | None = None
    ) -> None:
        bounds = loadable(self._specs, self, rows, expired)
        files: list[FileRef] = []
        lineage = uuid.uuid4().hex
        for table, batches in rows.items():
            spec, at = self._specs[table], applied.sequence
            name = SegmentName("durable", 0, 1, at, at, lineage, "", lineage, at)
            files += write_sorted(self._objects, spec, "snapshot", name, in_order(spec, batches))
        self._publish(PartitionState(tuple(files), bounds, lineage, applied.sequence), applied)

    def close(self) -> None:
        self._files.close()

    def _publish(self, state: PartitionState, applied: Applied) -> None:
        head = Head(state, applied.sequence, applied.lineage, uuid.uuid4().hex)
        self._objects.create(f"heads/{self._number + 1:012d}.json", msgspec.json.encode(head))
        self._number, self._head = self._number + 1, head
        self._files.close()
        self._open()

    def _open(self) -> None:
        budget = self._config.budget_bytes
        self._files = ParquetStore(tuple(self._specs.values()), self._objects, self._head.state, budget_bytes=budget)
