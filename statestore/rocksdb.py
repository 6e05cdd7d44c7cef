"""The RocksDB store: a local cache of the durable files, for point reads.

Raw bytes, memcomparable keys, no write-ahead log (the changelog is the log). What was applied last is written in
the same batch as the data. One table is one key prefix; expiry is a logical bound plus a range deletion.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
from rocksdict import BlockBasedOptions, DbClosedError, Options, Rdict, ReadOptions, WriteBatch, WriteOptions

from statestore.changes import DELETE, MERGE, Applied, ChangeSet, Layer, Lookup
from statestore.errors import CorruptionError, NotFoundError, UnavailableError, UsageError
from statestore.fold import combine
from statestore.layers import align, bounds, leading_values
from statestore.rows import decode_rows, encode_bound, encode_keys, encode_rows, prefix_end
from statestore.store import check_sequence, specs_by_name
from statestore.tables import TableSpec

_META = b"\xfe"
SCAN_ROWS = 1 << 16


class _Meta(msgspec.Struct):
    sequence: int
    lineage: str
    expired: dict[str, int]
    tables: list[TableSpec]


class RocksStore:
    """State tables of one partition in one RocksDB folder. One read-write opener at a time."""

    def __init__(self, specs: Sequence[TableSpec], folder: str | Path) -> None:
        self._specs = specs_by_name(specs)
        self._prefixes = {name: bytes([index]) for index, name in enumerate(self._specs)}
        self._folder = Path(folder)
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._db = Rdict(str(folder), _options())
        except Exception as error:  # rocksdict raises bare Exception
            raise UnavailableError(
                f"rocksdb did not open its folder ({error})", code="rocksdb-open", folder=str(folder)
            ) from error
        self._no_wal = WriteOptions()
        self._no_wal.disable_wal = True
        stored = self._db.get(_META)
        meta = msgspec.json.decode(stored, type=_Meta) if stored is not None else _Meta(0, "", {}, list(specs))
        if meta.tables != list(specs):
            self.close()
            raise CorruptionError("the rocksdb cache holds other tables", code="rocksdb-tables", folder=str(folder))
        self._expired = meta.expired
        self._applied = Applied(meta.sequence, meta.lineage)

    @property
    def applied(self) -> Applied:
        """The sequence and lineage id last applied."""
        return self._applied

    @property
    def expired(self) -> Mapping[str, int]:
        """Per table the bound at or below which rows are forgotten."""
        return self._expired

    def lookup(self, table: str, keys: pa.Table) -> Lookup:
        """Rows for these keys, aligned with them: one sorted multi-get."""
        spec = self._spec(table)
        wanted = keys.select(spec.key_names).cast(spec.key_schema)
        rows = self._get(spec, sorted(set(encode_keys(self._prefixes[table], wanted))))
        bound = self._expired.get(table)
        if bound is not None and spec.expiry is not None and rows.num_rows:
            rows = _after(spec, rows, bound)
        return align(spec, wanted, rows)

    def scan(
        self, table: str, lower: int | None = None, upper: int | None = None, *, folded: bool = True
    ) -> Iterator[pa.Table]:
        """Live rows in a range of the leading key column, always in key order."""
        spec, prefix = self._spec(table), self._prefixes[table]
        low, high = bounds(spec, lower, upper, self._expired.get(table))
        leading = spec.key[0].arrow if spec.key else pa.int64()
        first = prefix if low is None else encode_bound(prefix, low, leading)
        last = prefix_end(prefix) if high is None else encode_bound(prefix, high, leading)
        values = self._values(first, last)
        while chunk := list(itertools.islice(values, SCAN_ROWS)):
            yield decode_rows(chunk, spec.schema)

    def apply(self, changes: ChangeSet, applied: Applied) -> None:
        """One write batch: all tables and the new lineage together."""
        check_sequence(self._applied, applied)
        batch = WriteBatch(raw_mode=True)
        expired = dict(self._expired)
        for name, table_changes in changes.items():
            spec = self._spec(name)
            pending: dict[bytes, bytes | None] = {}
            for layer in table_changes.layers():
                self._stage(spec, layer, pending)
            for key, value in pending.items():
                if value is None:
                    batch.delete(key)
                else:
                    batch.put(key, value)
            if table_changes.expire is not None:
                self._stage_expiry(spec, table_changes.expire, batch, expired)
        self._commit(batch, expired, applied)

    def expire(self, table: str, bound: int) -> None:
        """Forget rows at or below ``bound`` outside of a change set; a bound never goes back."""
        batch, expired = WriteBatch(raw_mode=True), dict(self._expired)
        self._stage_expiry(self._spec(table), bound, batch, expired)
        if expired != self._expired:
            self._commit(batch, expired, self._applied)

    def snapshot(self) -> dict[str, pa.Table]:
        """Live rows of every table in key order."""
        return {
            name: pa.concat_tables([spec.schema.empty_table(), *self.scan(name)])
            for name, spec in self._specs.items()
        }

    def close(self) -> None:
        """Flush and give the folder free. Closing twice is fine."""
        with contextlib.suppress(DbClosedError):
            self._db.close()

    def _commit(self, batch: WriteBatch, expired: dict[str, int], applied: Applied) -> None:
        meta = _Meta(applied.sequence, applied.lineage, expired, list(self._specs.values()))
        batch.put(_META, msgspec.json.encode(meta))
        self._db.write(batch, self._no_wal)
        self._expired, self._applied = expired, applied

    def _stage(self, spec: TableSpec, layer: Layer, pending: dict[bytes, bytes | None]) -> None:
        """Lay one layer over what is stored and what is pending."""
        prefix = self._prefixes[spec.name]
        if layer.op == DELETE:
            pending.update(dict.fromkeys(encode_keys(prefix, layer.rows.select(spec.key_names))))
            return
        rows = spec.conform(layer.rows)
        if layer.op == MERGE:
            rows = combine(spec, rows)
            keys = encode_keys(prefix, rows.select(spec.key_names))
            staged = [pending[key] for key in keys if pending.get(key) is not None]
            stored = self._get(spec, sorted(key for key in keys if key not in pending))
            older = [stored, decode_rows([value for value in staged if value is not None], spec.schema)]
            rows = combine(spec, pa.concat_tables([*self._unexpired(spec, older), rows]))
        keys = encode_keys(prefix, rows.select(spec.key_names))
        pending.update(zip(keys, encode_rows(rows), strict=True))

    def _unexpired(self, spec: TableSpec, tables: list[pa.Table]) -> list[pa.Table]:
        bound = self._expired.get(spec.name)
        if bound is None or spec.expiry is None:
            return tables
        return [_after(spec, rows, bound) for rows in tables]

    def _stage_expiry(self, spec: TableSpec, bound: int, batch: WriteBatch, expired: dict[str, int]) -> None:
        if spec.expiry is None:
            raise UsageError("this table has no expiry column", code="table-expiry", table=spec.name)
        if bound <= expired.get(spec.name, bound - 1):
            return
        prefix = self._prefixes[spec.name]
        batch.delete_range(prefix, encode_bound(prefix, bound + 1, spec.key[0].arrow))
        expired[spec.name] = bound

    def _get(self, spec: TableSpec, keys: list[bytes]) -> pa.Table:
        try:
            found = self._db.get(keys) if keys else []
        except Exception as error:  # rocksdict raises bare Exception
            raise self._damaged(error) from error
        return decode_rows([value for value in found if value is not None], spec.schema)

    def _values(self, first: bytes, last: bytes) -> Iterator[bytes]:
        """Values of the keys in ``[first, last)``. An iterator that ends early without saying so is caught."""
        options = ReadOptions()
        options.set_iterate_upper_bound(last)
        cursor = self._db.iter(options)
        try:
            cursor.seek(first)
            while cursor.valid():
                yield cursor.value()
                cursor.next()
            try:
                cursor.status()
            except Exception as error:  # rocksdict raises bare Exception
                raise self._damaged(error) from error
        finally:
            # The folder's lock lives as long as an iterator does.
            del cursor

    def _damaged(self, error: Exception) -> CorruptionError:
        return CorruptionError(
            f"the rocksdb cache is damaged ({error}): delete the folder, it is rebuilt from the checkpoint",
            code="rocksdb-damaged",
            folder=str(self._folder),
        )

    def _spec(self, table: str) -> TableSpec:
        try:
            return self._specs[table]
        except KeyError:
            raise NotFoundError("no such state table", code="no-table", table=table) from None


def _after(spec: TableSpec, rows: pa.Table, bound: int) -> pa.Table:
    """Rows that have not expired."""
    expiry = leading_values(rows.select([spec.expiry]))
    return rows if expiry is None else rows.filter(pa.array(expiry > bound))


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(64 << 20)
    table = BlockBasedOptions()
    table.set_bloom_filter(10, False)
    options.set_block_based_table_factory(table)
    return options
