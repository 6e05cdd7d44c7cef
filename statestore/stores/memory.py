"""The memory store: state as layers of Arrow tables, newest last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from tidestate.statestore.spec.changes import PUT, Applied, ChangeSet, Layer, Lookup, Ranges
from tidestate.statestore.spec.keyrange import Key, key_range
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.table import layers as reading
from tidestate.statestore.table.fold import fold_run
from tidestate.statestore.table.validation import (
    check_sequence,
    expiring,
    in_order,
    loadable,
    spec_of,
    specs_by_name,
    validate_changes,
)

MAX_TABLE_LAYERS = 16
"""Layers a table may have in RAM before the young ones are folded."""


class MemoryStore:
    """State tables of one partition in RAM.

    A merge appends and reads nothing. Reads fold the layers they touch; a scan of everything keeps what it folded.
    """

    def __init__(self, specs: Sequence[TableSpec]) -> None:
        self._specs = specs_by_name(specs)
        self._layers: dict[str, list[Layer]] = {name: [] for name in self._specs}
        self._expired: dict[str, int] = {}
        self._applied = Applied()

    def serves(self, specs: Sequence[TableSpec]) -> bool:
        """Whether it holds these tables, in this form."""
        return list(self._specs.values()) == list(specs)

    @property
    def applied(self) -> Applied:
        """The sequence and lineage id last applied."""
        return self._applied

    @property
    def expired(self) -> Mapping[str, int]:
        """Per table the bound at or below which rows are forgotten."""
        return dict(self._expired)

    def lookup(self, table: str, keys: pa.Table) -> Lookup:
        """Rows for these keys, aligned with them."""
        spec = spec_of(self._specs, table)
        return reading.lookup(spec, self._layers[table], keys, self._expired.get(table))

    def scan(
        self,
        table: str,
        lower: Key | None = None,
        upper: Key | None = None,
        *,
        prefix: Key = (),
        reverse: bool = False,
        folded: bool = True,
    ) -> Iterator[pa.Table]:
        """Live rows of a range of keys."""
        spec = spec_of(self._specs, table)
        keys, expired = key_range(spec, prefix, lower, upper), self._expired.get(table)
        if not folded:
            return iter([reading.unfolded(spec, self._layers[table], keys, expired)])
        if keys.whole:
            self._layers[table] = self._settled(spec)
        return reading.scan(spec, self._layers[table], keys, expired, reverse=reverse)

    def ranges(
        self,
        table: str,
        prefixes: pa.Table,
        lower: pa.Array | pa.ChunkedArray | None = None,
        upper: pa.Array | pa.ChunkedArray | None = None,
    ) -> Ranges:
        """Rows of many prefixes at once, each with its own interval."""
        spec = spec_of(self._specs, table)
        prefixes, lower, upper = reading.requests(spec, prefixes, lower, upper)
        asked = prefixes.drop_null() if prefixes.num_columns else prefixes
        near = reading.matching(reading.rows_between(self._layers[table], reading.extent(asked)), asked)
        rows = reading.sorted_by_key(spec, reading.folded(spec, near, self._expired.get(table)))
        return reading.assign_keys(spec, rows, prefixes, lower, upper)

    def apply(self, changes: ChangeSet, applied: Applied) -> None:
        """Append the changes as layers, all tables at once."""
        check_sequence(self._applied, applied)
        layers, expired = dict(self._layers), dict(self._expired)
        for name, new in validate_changes(self._specs, changes).items():
            spec, bound = self._specs[name], changes[name].expire
            layers[name] = tidied(spec, layers[name] + new, expired.get(name))
            if bound is not None:
                expired[name] = max(bound, expired.get(name, bound))
                layers[name] = reading.live(spec, layers[name], expired[name])
        # Folding may fail: until here nothing has changed.
        self._layers, self._expired, self._applied = layers, expired, applied

    def expire(self, table: str, bound: int) -> None:
        """Forget rows at or below ``bound``; a bound never goes back."""
        spec = expiring(self._specs, table, bound)
        if bound > self._expired.get(table, bound - 1):
            self._expired[table] = bound
            self._layers[table] = reading.live(spec, self._layers[table], bound)

    def snapshot(self) -> dict[str, Iterator[pa.Table]]:
        """Live rows of every table in key order."""
        return {name: self.scan(name) for name in self._specs}

    def load(
        self, rows: Mapping[str, Iterable[pa.Table]], applied: Applied, expired: Mapping[str, int] | None = None
    ) -> None:
        """Fill an empty store with a snapshot."""
        bounds = loadable(self._specs, self._applied, rows, expired)
        layers = dict(self._layers)
        for name, batches in rows.items():
            table = pa.concat_tables([self._specs[name].schema.empty_table(), *in_order(self._specs[name], batches)])
            layers[name] = reading.live(self._specs[name], [Layer(PUT, table, ordered=True)], bounds.get(name))
        self._layers, self._expired, self._applied = layers, bounds, applied

    def close(self) -> None:
        """Drop the layers."""
        self._layers = {name: [] for name in self._specs}

    def _settled(self, spec: TableSpec) -> list[Layer]:
        """The table as one ordered layer: the same rows, folded once."""
        layers = self._layers[spec.name]
        if reading.is_settled(layers):
            return layers
        rows = reading.sorted_by_key(spec, reading.folded(spec, layers, self._expired.get(spec.name)))
        return [Layer(PUT, rows, ordered=True)] if rows.num_rows else []


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
