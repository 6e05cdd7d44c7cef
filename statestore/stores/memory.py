"""The memory store: state as layers of Arrow tables, newest last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from tidestate.statestore.spec.changes import PUT, Applied, ChangeSet, KeyBound, Layer, Lookup, Ranges
from tidestate.statestore.spec.keyrange import EVERYTHING, KeyRange, check_range
from tidestate.statestore.spec.store import StateStore
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.table import layers as reading
from tidestate.statestore.table.fold import fold_run
from tidestate.statestore.table.validation import (
    check_sequence,
    expiring,
    find_table,
    in_order,
    loadable,
    specs_by_name,
    validate_changes,
)

MAX_TABLE_LAYERS = 16
"""Layers a table may have in RAM before the young ones are folded."""


class MemoryTable:
    """One table in memory: its layers of rows, newest last."""

    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec
        self.layers: list[Layer] = []
        self.expired: int | None = None

    def lookup(self, keys: pa.Table) -> Lookup:
        """Folds the rows with these keys."""
        return reading.lookup(self.spec, self.layers, keys, self.expired)

    def scan(self, keys: KeyRange = EVERYTHING, *, reverse: bool = False, folded: bool = True) -> Iterator[pa.Table]:
        """A scan of everything keeps what it folded."""
        keys = check_range(self.spec, keys)
        if not folded:
            return iter([reading.unfolded(self.spec, self.layers, keys, self.expired)])
        if keys.whole and not reading.is_settled(self.layers):
            rows = reading.sorted_by_key(self.spec, reading.folded(self.spec, self.layers, self.expired))
            self.layers = [Layer(PUT, rows, ordered=True)] if rows.num_rows else []
        return reading.scan(self.spec, self.layers, keys, self.expired, reverse=reverse)

    def ranges(self, prefixes: pa.Table, lower: KeyBound = None, upper: KeyBound = None) -> Ranges:
        """Folds the rows with these prefixes."""
        prefixes, lower, upper = reading.check_requests(self.spec, prefixes, lower, upper)
        asked = prefixes.drop_null() if prefixes.num_columns else prefixes
        found = reading.matching(reading.rows_between(self.layers, reading.extent(asked)), asked)
        rows = reading.sorted_by_key(self.spec, reading.folded(self.spec, found, self.expired))
        return reading.assign_keys(self.spec, rows, prefixes, lower, upper)


class MemoryStore(StateStore):
    """State tables of one partition in RAM.

    A merge appends and reads nothing. Reads fold the layers they touch.
    """

    def __init__(self, specs: Sequence[TableSpec]) -> None:
        self._specs = specs_by_name(specs)
        self._tables = {name: MemoryTable(spec) for name, spec in self._specs.items()}
        self._applied = Applied()

    def serves(self, specs: Sequence[TableSpec]) -> bool:
        """Whether the store was opened with exactly these tables."""
        return list(self._specs.values()) == list(specs)

    @property
    def applied(self) -> Applied:
        return self._applied

    @property
    def expired(self) -> Mapping[str, int]:
        return {name: table.expired for name, table in self._tables.items() if table.expired is not None}

    def __getitem__(self, table: str) -> MemoryTable:
        return find_table(self._tables, table)

    def apply(self, changes: ChangeSet, applied: Applied) -> None:
        """Append the changes as layers, all tables at once."""
        check_sequence(self._applied, applied)
        changed = {}
        for name, new in validate_changes(self._specs, changes).items():
            table, bound = self._tables[name], changes[name].expire
            layers, expired = tidied(table.spec, table.layers + new, table.expired), table.expired
            if bound is not None:
                expired = bound if expired is None else max(bound, expired)
                layers = reading.live(table.spec, layers, expired)
            changed[name] = layers, expired
        for name, (layers, expired) in changed.items():  # folding may fail: until here nothing has changed
            self._tables[name].layers, self._tables[name].expired = layers, expired
        self._applied = applied

    def expire(self, table: str, bound: int) -> None:
        spec, own = expiring(self._specs, table, bound), self[table]
        if own.expired is None or bound > own.expired:
            own.layers, own.expired = reading.live(spec, own.layers, bound), bound

    def snapshot(self) -> dict[str, Iterator[pa.Table]]:
        return {name: self[name].scan() for name in self._specs}

    def load(
        self, rows: Mapping[str, Iterable[pa.Table]], applied: Applied, expired: Mapping[str, int] | None = None
    ) -> None:
        bounds = loadable(self._specs, self, rows, expired)
        loaded = {}
        for name, batches in rows.items():
            spec = self._specs[name]
            whole = pa.concat_tables([spec.schema.empty_table(), *in_order(spec, batches)])
            loaded[name] = reading.live(spec, [Layer(PUT, whole, ordered=True)], bounds.get(name))
        for name, table in self._tables.items():
            table.layers, table.expired = loaded.get(name, table.layers), bounds.get(name)
        self._applied = applied

    def close(self) -> None:
        for table in self._tables.values():
            table.layers = []


def tidied(spec: TableSpec, layers: list[Layer], expired: int | None) -> list[Layer]:
    """``layers``, or with the young ones folded when there are many: each row is folded a few times in its life."""
    if len(layers) <= MAX_TABLE_LAYERS:
        return layers
    first, size = len(layers), 0
    while first and (len(layers) - first < MAX_TABLE_LAYERS // 2 or layers[first - 1].rows.num_rows <= size):
        first -= 1
        size += layers[first].rows.num_rows
    young = fold_run(spec, layers[first:]) if first else [Layer(PUT, reading.folded(spec, layers, expired))]
    return [*layers[:first], *(Layer(layer.op, reading.clustered(layer.rows)) for layer in young)]
