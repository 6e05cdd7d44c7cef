"""State as it will be after the next flush: the store as it lies, under the changes since. None of it is durable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from tidestate.statestore.spec.changes import DELETE, MERGE, PUT, ChangeSet, Layer, Lookup, Ranges, TableChanges
from tidestate.statestore.spec.keyrange import Key, key_range
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.table import layers as reading
from tidestate.statestore.table.fold import fold_run
from tidestate.statestore.table.validation import spec_of, specs_by_name, validate_changes

MAX_LAYERS = 16
"""Layers of changes a table may have before they are folded."""


class Overlay:
    """A view of ``store`` with changes over it; what they amount to is one change set, `changes`."""

    def __init__(self, store: StateView, specs: Sequence[TableSpec]) -> None:
        self._store, self._specs = store, specs_by_name(specs)
        self._layers: dict[str, list[Layer]] = {name: [] for name in self._specs}
        self._bounds: dict[str, int] = {}

    def fork(self) -> Overlay:
        """A copy that can be thrown away when what is tried on it fails."""
        other = Overlay(self._store, tuple(self._specs.values()))
        other._layers, other._bounds = dict(self._layers), dict(self._bounds)
        return other

    def apply(self, changes: ChangeSet) -> None:
        """Lay ``changes`` over what is there."""
        for name, new in validate_changes(self._specs, changes).items():
            layers, bound = [*self._layers[name], *new], changes[name].expire
            if len(layers) > MAX_LAYERS:
                folded = fold_run(self._specs[name], layers)
                layers = [Layer(layer.op, reading.clustered(layer.rows)) for layer in folded]
            self._layers[name] = layers
            if bound is not None:
                self._bounds[name] = max(bound, self._bounds.get(name, bound))

    def changes(self) -> ChangeSet:
        """Everything laid over the store, as one change set."""
        found = {}
        for name, spec in self._specs.items():
            rows = (
                {layer.op: layer.rows for layer in fold_run(spec, self._layers[name])} if self._layers[name] else {}
            )
            if rows or name in self._bounds:
                bound = self._bounds.get(name)
                found[name] = TableChanges(rows.get(DELETE), rows.get(PUT), rows.get(MERGE), bound)
        return found

    def lookup(self, table: str, keys: pa.Table) -> Lookup:
        """Rows for these keys, aligned with them."""
        spec, expired = self._spec(table)
        if expired is None and not self._layers[table]:
            return self._store.lookup(table, keys)
        wanted = spec.conform_keys(keys)
        found = self._store.lookup(table, wanted.group_by(wanted.column_names, use_threads=False).aggregate([]))
        below = Layer(PUT, reading.clustered(found.rows.filter(found.found)))
        return reading.lookup(spec, [below, *self._layers[table]], keys, expired)

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
        spec, expired = self._spec(table)
        if expired is None and not self._layers[table]:
            return self._store.scan(table, lower, upper, prefix=prefix, reverse=reverse, folded=folded)
        stored = [spec.schema.empty_table(), *self._store.scan(table, lower, upper, prefix=prefix)]
        layers = [Layer(PUT, pa.concat_tables(stored), ordered=True), *self._layers[table]]
        keys = key_range(spec, prefix, lower, upper)
        if not folded:
            return iter([reading.unfolded(spec, layers, keys, expired)])
        return reading.scan(spec, layers, keys, expired, reverse=reverse)

    def ranges(
        self,
        table: str,
        prefixes: pa.Table,
        lower: pa.Array | pa.ChunkedArray | None = None,
        upper: pa.Array | pa.ChunkedArray | None = None,
    ) -> Ranges:
        """Rows of many prefixes at once, each with its own interval."""
        spec, expired = self._spec(table)
        if expired is None and not self._layers[table]:
            return self._store.ranges(table, prefixes, lower, upper)
        prefixes, lower, upper = reading.requests(spec, prefixes, lower, upper)
        stored = _once(spec, self._store.ranges(table, prefixes, lower, upper).rows)
        asked = prefixes.drop_null() if prefixes.num_columns else prefixes
        near = reading.matching(reading.rows_between(self._layers[table], reading.extent(asked)), asked)
        layers = [Layer(PUT, reading.clustered(stored)), *near]
        return reading.assign_keys(
            spec, reading.sorted_by_key(spec, reading.folded(spec, layers, expired)), prefixes, lower, upper
        )

    @property
    def expired(self) -> Mapping[str, int]:
        """Per table the bound at or below which rows are forgotten."""
        return {**self._store.expired, **self._bounds}

    def _spec(self, table: str) -> tuple[TableSpec, int | None]:
        spec = spec_of(self._specs, table)
        own = self._bounds.get(table)
        stored = self._store.expired.get(table)
        if own is None:
            # Rows that the store has forgotten must not come back from here.
            return spec, stored if self._layers[table] else None
        return spec, own if stored is None else max(own, stored)


def _once(spec: TableSpec, rows: pa.Table) -> pa.Table:
    """Rows that several askers found, each once."""
    if rows.num_rows < 2:
        return rows
    numbered = rows.select(spec.key_names).append_column("__row", pa.array(np.arange(rows.num_rows)))
    firsts = numbered.group_by(spec.key_names, use_threads=False).aggregate([("__row", "min")])
    return rows if firsts.num_rows == rows.num_rows else rows.take(firsts["__row_min"])
