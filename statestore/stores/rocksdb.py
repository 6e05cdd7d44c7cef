"""The RocksDB store: a local cache of the durable files, for point reads.

Raw bytes, memcomparable keys, no write-ahead log (the changelog is the log). What was applied last is written in
the same batch as the data. One table is one key prefix; expiry is a logical bound, and its rows are deleted later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
from rocksdict import WriteBatch

from tidestate.statestore.errors import CorruptionError
from tidestate.statestore.spec.changes import Applied, ChangeSet
from tidestate.statestore.spec.store import StateStore
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.stores.rocks.files import Database
from tidestate.statestore.stores.rocks.table import RocksTable, Sweep
from tidestate.statestore.table.validation import (
    check_sequence,
    expiring,
    find_table,
    loadable,
    specs_by_name,
    validate_changes,
)

_META = b"\xfe"


class _Meta(msgspec.Struct, frozen=True):
    """What a folder knows about itself. ``widest`` is the longest packed row that a table ever held."""

    tables: msgspec.Raw
    sequence: int = 0
    lineage: str = ""
    expired: dict[str, int] = {}
    widest: dict[str, int] = {}
    sweeps: dict[str, Sweep] = {}


# Made here, once: two threads that are the first to decode a type end the process.
_DECODER = msgspec.json.Decoder(_Meta)


class RocksStore(StateStore):
    """State tables of one partition in one RocksDB folder. One read-write opener at a time."""

    def __init__(self, specs: Sequence[TableSpec], folder: str | Path) -> None:
        self._specs = specs_by_name(specs)
        self._folder = Path(folder)
        self._database = Database(self._folder)
        try:
            self._meta = self._known(msgspec.Raw(msgspec.json.encode(list(specs))))
        except BaseException:
            self._database.close()
            raise
        self._tables = {
            name: RocksTable(
                self._database, spec, place, self._meta.widest.get(name, 0), self._meta.expired.get(name)
            )
            for place, (name, spec) in enumerate(self._specs.items())
        }

    @property
    def applied(self) -> Applied:
        return Applied(self._meta.sequence, self._meta.lineage)

    @property
    def expired(self) -> Mapping[str, int]:
        return dict(self._meta.expired)

    def __getitem__(self, table: str) -> RocksTable:
        return find_table(self._tables, table)

    def apply(self, changes: ChangeSet, applied: Applied) -> None:
        """One write batch: all tables and the new lineage together."""
        check_sequence(self.applied, applied)
        layers = validate_changes(self._specs, changes)
        batch = WriteBatch(raw_mode=True)
        expired = dict(self.expired)
        for name, part in changes.items():
            if part.expire is not None:
                self._forget(name, part.expire, expired, batch)
        tables, swept = self._tables, self._meta.sweeps
        sweeps = {name: tables[name].sweep(swept.get(name, Sweep()), bound, batch) for name, bound in expired.items()}
        for name, new in layers.items():
            self._tables[name].stage(new, expired.get(name), batch)
        self._commit(batch, applied, expired, sweeps)

    def expire(self, table: str, bound: int) -> None:
        expiring(self._specs, table, bound)
        batch, expired = WriteBatch(raw_mode=True), dict(self.expired)
        self._forget(table, bound, expired, batch)
        if expired != self.expired:
            self._commit(batch, self.applied, expired, self._meta.sweeps)

    def snapshot(self) -> dict[str, Iterator[pa.Table]]:
        return {name: self[name].scan() for name in self._specs}

    def load(
        self, rows: Mapping[str, Iterable[pa.Table]], applied: Applied, expired: Mapping[str, int] | None = None
    ) -> None:
        """Fill an empty store with a snapshot. A crash on the way leaves a folder that is refused when opened."""
        bounds = loadable(self._specs, self, rows, expired)
        self._refuse_leftovers()
        with self._database.ingesting() as files:
            for name in self._specs:  # keys of one file grow from table to table
                self._tables[name].load(rows.get(name, ()), bounds.get(name), files)
        self._commit(WriteBatch(raw_mode=True), applied, bounds, {})
        self._database.flush()

    def close(self) -> None:
        """Flush and give the folder free, also while scans are unfinished. Closing twice is fine."""
        self._database.close()

    def _known(self, tables: msgspec.Raw) -> _Meta:
        """What the folder knows about itself. Raises `CorruptionError` when it is not for these tables."""
        stored = self._database.get(_META)
        try:
            meta = _Meta(tables) if stored is None else _DECODER.decode(stored)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._database.faults.damaged(error) from None
        if bytes(meta.tables) != bytes(tables):
            raise CorruptionError(
                "the rocksdb cache holds tables of another job: delete the folder, and it is rebuilt from the "
                "checkpoint",
                code="rocksdb-tables",
                folder=str(self._folder),
            )
        if meta.sequence == 0:
            self._refuse_leftovers()
        return meta

    def _refuse_leftovers(self) -> None:
        """Raise `CorruptionError` when an empty store holds rows: a load was cut off."""
        if self._database.first_key() not in (None, _META):
            raise self._database.faults.damaged("rows of a load that did not finish")

    def _forget(self, name: str, bound: int, expired: dict[str, int], batch: WriteBatch) -> None:
        if bound > expired.get(name, bound - 1):
            self._tables[name].forget(expired.get(name), bound, batch)
            expired[name] = bound

    def _commit(
        self, batch: WriteBatch, applied: Applied, expired: dict[str, int], sweeps: Mapping[str, Sweep]
    ) -> None:
        widest = {name: table.widest for name, table in self._tables.items()}
        meta = _Meta(self._meta.tables, applied.sequence, applied.lineage, expired, widest, dict(sweeps))
        batch.put(_META, msgspec.json.encode(meta))
        self._database.write(batch)
        self._meta = meta
        for name, bound in expired.items():
            self._tables[name].expired = bound
