"""One state table in a RocksDB folder: rows to byte strings and back, merges, expiry and its sweep."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np
import pyarrow as pa
from rocksdict import WriteBatch

from tidestate.statestore.arrays import Numbers, flags_at
from tidestate.statestore.spec.changes import DELETE, MERGE, PUT, KeyBound, Layer, Lookup, Ranges
from tidestate.statestore.spec.keyrange import EVERYTHING, KeyRange, after_expiry, check_range
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.stores.rocks.bytestrings import Strings
from tidestate.statestore.stores.rocks.files import Cursor, Database, Staging
from tidestate.statestore.stores.rocks.keys import KeyCodec, prefix_end
from tidestate.statestore.stores.rocks.rows import decode_rows, encode_rows
from tidestate.statestore.table.fold import combine, fold
from tidestate.statestore.table.layers import SCAN_ROWS, assign_keys, check_requests, unexpired
from tidestate.statestore.table.sorting import lasts

CHUNK_BYTES = 64 << 20
"""Bytes of rows that are read or encoded at once."""

PIECE_ROWS = 1 << 13
"""Rows encoded at once: so few that their bytes are still in the processor's cache when RocksDB takes them."""

FIRST_ROWS = 1 << 10
"""Rows of the first batch of a scan; those after it grow, so that a caller who wants few rows pays for few."""

FEW_RANGES = 8
"""Up to so many intervals are read as scans, more of them one seek after the other."""


class Sweep(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far the deletion of expired rows has come: the key where it goes on, and the bound this round is for."""

    at: bytes = b""
    bound: int | None = None


class RocksTable:
    """One table. Its rows lie under one key prefix; a row's value holds its key too, so a scan reads values only."""

    def __init__(
        self, database: Database, spec: TableSpec, place: int, widest: int, expired: int | None = None
    ) -> None:
        self.spec, self.expired = spec, expired
        self.widest = widest
        self._database = database
        self._keys = KeyCodec(bytes([place]), spec.key_schema)

    def lookup(self, keys: pa.Table) -> Lookup:
        """The rows of ``keys``, by one sorted multi-get of the distinct ones."""
        wanted = self.spec.conform_keys(keys)
        distinct, code = _distinct(self._keys.encode(wanted))
        at, rows = self._get(distinct, self.expired)
        place = lasts(at, distinct.count)[code]
        for column in wanted.columns:
            if column.null_count:
                place[np.asarray(column.is_null())] = -1
        indices = pa.array(place, mask=place < 0)
        values = rows.drop_columns(self.spec.key_names).take(indices)
        return Lookup(indices.is_valid(), pa.table([*wanted.columns, *values.columns], schema=self.spec.schema))

    def scan(self, keys: KeyRange = EVERYTHING, *, reverse: bool = False, folded: bool = True) -> Iterator[pa.Table]:
        """Rows as they are now, always in key order and folded."""
        keys = check_range(self.spec, keys)
        lower = self._keys.start if keys.lower is None else self._keys.cut(keys.lower)
        upper = self._keys.end if keys.upper is None else self._keys.cut(keys.upper)
        if (start := after_expiry(self.spec, self.expired)) is not None:
            lower = max(lower, self._keys.cut(start))
        return self._batches(self._database.scan(lower, upper, reverse=reverse), self.expired)

    def ranges(self, prefixes: pa.Table, lower: KeyBound = None, upper: KeyBound = None) -> Ranges:
        """Read the ranges of these prefixes; what several of them share is read once."""
        prefixes, lower, upper = check_requests(self.spec, prefixes, lower, upper)
        values = self._values(self._intervals(prefixes, lower, upper))
        rows = unexpired(self.spec, self._decoded(values), self.expired)
        return assign_keys(self.spec, rows, prefixes, lower, upper)

    def stage(self, layers: Sequence[Layer], bound: int | None, batch: WriteBatch) -> None:
        """Write ``layers``, oldest first, into ``batch``."""
        for layer in self._merged(layers, bound):
            if layer.op == DELETE:
                self._delete(layer.rows, batch)
            else:
                self._put(layer.rows, bound, batch)

    def forget(self, before: int | None, bound: int, batch: WriteBatch) -> None:
        """Delete what expires between two bounds, where it is one range."""
        start, end = after_expiry(self.spec, before), after_expiry(self.spec, bound)
        if end is None:
            return
        first = self._keys.start if start is None else self._keys.cut(start)
        if first < (last := self._keys.cut(end)):
            batch.delete_range(first, last)

    def sweep(self, sweep: Sweep, bound: int, batch: WriteBatch) -> Sweep:
        """Delete expired rows among the next ones. Stays where a round for ``bound`` is complete."""
        if self.spec.expires_in_order or (not sweep.at and sweep.bound == bound):
            return sweep
        goal = sweep.bound if sweep.at else bound
        values = self._database.scan(sweep.at or self._keys.start, self._keys.end).read(self._chunk)
        rows = self._decoded(values)
        dead = ~flags_at(rows.num_rows, _living(self.spec, rows, bound))
        self._delete(rows.filter(pa.array(dead)).select(self.spec.key_names), batch)
        if len(values) < self._chunk:
            return Sweep(bound=goal)
        last = self._keys.encode(rows.slice(rows.num_rows - 1).select(self.spec.key_names)).to_list()[0]
        return Sweep(last + b"\x00", goal)

    def load(self, batches: Iterable[pa.Table], bound: int | None, files: Staging) -> None:
        """Write sorted batches into ``files``."""
        for rows in self._pieces(batches):
            files.write(*self._packed(unexpired(self.spec, rows, bound)))

    def _decoded(self, values: Sequence[bytes]) -> pa.Table:
        """The rows of byte strings. Raises `CorruptionError` for those that no row is."""
        try:
            return decode_rows(values, self.spec.schema)
        except ValueError as error:
            raise self._database.faults.damaged(error) from None

    @property
    def _chunk(self) -> int:
        """Rows that surely fit into memory together."""
        return max(1, min(SCAN_ROWS, CHUNK_BYTES // max(1, self.widest)))

    def _batches(self, cursor: Cursor, bound: int | None) -> Iterator[pa.Table]:
        size = min(FIRST_ROWS, self._chunk)
        while values := cursor.read(size):
            size = min(size * 4, self._chunk)
            rows = unexpired(self.spec, self._decoded(values), bound)
            if rows.num_rows:
                yield rows

    def _get(self, keys: Strings, bound: int | None) -> tuple[Numbers, pa.Table]:
        """Live rows of distinct sorted keys, and the numbers of their keys."""
        values = self._database.get_all(keys.to_list())
        at = np.flatnonzero(np.array([value is not None for value in values], bool))
        rows = self._decoded([value for value in values if value is not None])
        living = _living(self.spec, rows, bound)
        return (at, rows) if len(living) == len(at) else (at[living], rows.take(pa.array(living)))

    def _values(self, intervals: list[tuple[bytes, bytes]]) -> list[bytes]:
        if len(intervals) > FEW_RANGES:
            return self._database.seek_all(intervals)
        found: list[bytes] = []
        for lower, upper in intervals:
            cursor = self._database.scan(lower, upper)
            while values := cursor.read(SCAN_ROWS):
                found += values
        return found

    def _intervals(self, prefixes: pa.Table, lower: KeyBound, upper: KeyBound) -> list[tuple[bytes, bytes]]:
        """The key intervals of the prefixes, sorted, overlapping ones as one."""
        starts = self._keys.encode(prefixes).to_list()
        lows = self._bounded(prefixes, lower, starts)
        highs = self._bounded(prefixes, upper, [prefix_end(start) for start in starts])
        merged: list[tuple[bytes, bytes]] = []
        for low, high in sorted(set(zip(lows, highs, strict=True))):
            if merged and low <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
            elif low < high:
                merged.append((low, high))
        return merged

    def _bounded(self, prefixes: pa.Table, bounds: KeyBound, otherwise: list[bytes]) -> list[bytes]:
        if bounds is None:
            return otherwise
        field = self.spec.key_schema.field(prefixes.num_columns)
        encoded = self._keys.encode(prefixes.append_column(field, bounds.cast(field.type))).to_list()
        if not bounds.null_count:
            return encoded
        valid = bounds.is_valid().to_pylist()
        return [bound if known else other for bound, known, other in zip(encoded, valid, otherwise, strict=True)]

    def _merged(self, layers: Sequence[Layer], bound: int | None) -> list[Layer]:
        """``layers`` with merges carried out on what is stored and what the layers below them put."""
        if not layers or layers[-1].op != MERGE:
            return list(layers)
        keys, _ = _distinct(self._keys.encode(layers[-1].rows.select(self.spec.key_names)))
        _, stored = self._get(keys, bound)
        if len(layers) == 1:
            return [Layer(PUT, combine(self.spec, pa.concat_tables([stored, layers[-1].rows])))]
        rows = fold(self.spec, [Layer(PUT, stored), *layers])
        return [*(layer for layer in layers if layer.op == DELETE), Layer(PUT, rows)]

    def _delete(self, rows: pa.Table, batch: WriteBatch) -> None:
        deque(map(batch.delete, _sorted(self._keys.encode(rows.select(self.spec.key_names)))[0].to_list()), maxlen=0)

    def _put(self, rows: pa.Table, bound: int | None, batch: WriteBatch) -> None:
        """Put rows in key order: a sorted batch is twice as cheap for RocksDB. Expired ones are not written."""
        live = unexpired(self.spec, rows, bound)
        if live.num_rows < rows.num_rows and not self.spec.expires_by_key:
            self._delete(rows, batch)  # an expired row replaces one that may not have expired
        order = self._keys.encode(live.select(self.spec.key_names)).order()
        live = live if order is None else live.take(pa.array(order))
        for rows in self._pieces([live]):
            deque(map(batch.put, *self._packed(rows)), maxlen=0)

    def _pieces(self, batches: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Conforming batches in pieces that are cheap to encode at once."""
        for batch in batches:
            rows = self.spec.conform(batch)
            size = max(1, int(PIECE_ROWS * min(1.0, CHUNK_BYTES / max(1, rows.nbytes))))
            yield from (rows.slice(start, size) for start in range(0, rows.num_rows, size))

    def _packed(self, rows: pa.Table) -> tuple[list[bytes], list[bytes]]:
        packed = encode_rows(rows)
        self.widest = max(self.widest, packed.widest())
        return self._keys.encode(rows.select(self.spec.key_names)).to_list(), packed.to_list()


def _living(spec: TableSpec, rows: pa.Table, bound: int | None) -> Numbers:
    """The places of rows that have not expired."""
    places = np.arange(rows.num_rows)
    if bound is None or spec.expiry is None:
        return places
    column = pa.table([rows[spec.expiry], places], names=[spec.expiry, f"{spec.expiry} at"])
    living: Numbers = unexpired(spec, column, bound).column(1).to_numpy()
    return living


def _sorted(keys: Strings) -> tuple[Strings, Numbers | None]:
    """``keys`` in order, and the places they had if that was another one."""
    order = keys.order()
    return (keys, None) if order is None else (keys.take(order), order)


def _distinct(keys: Strings) -> tuple[Strings, Numbers]:
    """The different keys in order, and for each of ``keys`` the number of its equal there."""
    ordered, order = _sorted(keys)
    first = ordered.starts()
    code = np.cumsum(first) - 1
    if order is not None:
        place = np.empty_like(code)
        place[order] = code
        code = place
    return (ordered if first.all() else ordered.take(np.flatnonzero(first))), code
