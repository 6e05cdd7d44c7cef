"""State as it will be after the next flush: the store as it lies, under the changes since. None of it is durable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy

import pyarrow as pa

from tidestate.statestore.spec.changes import (
    DELETE,
    MERGE,
    PUT,
    ChangeSet,
    KeyBound,
    Layer,
    Lookup,
    Ranges,
    TableChanges,
)
from tidestate.statestore.spec.keyrange import EVERYTHING, KeyRange, check_range
from tidestate.statestore.spec.store import StateView, TableView
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.table import layers as reading
from tidestate.statestore.table.fold import fold_run
from tidestate.statestore.table.validation import find_table, specs_by_name, validate_changes

MAX_LAYERS = 16
"""Layers of changes a table may have before they are folded."""


class Overlay(TableView):
    """One table of ``below`` with changes over it."""

    def __init__(
        self, below: TableView, spec: TableSpec, layers: Sequence[Layer] = (), bound: int | None = None
    ) -> None:
        self._below, self._spec, self._layers, self._bound = below, spec, list(layers), bound

    def over(self, layers: Sequence[Layer], bound: int | None) -> Overlay:
        """The same table with more changes, already validated, over it."""
        all_layers = [*self._layers, *layers]
        if len(all_layers) > MAX_LAYERS:
            folded = fold_run(self._spec, all_layers)
            all_layers = [Layer(layer.op, reading.clustered(layer.rows)) for layer in folded]
        return Overlay(self._below, self._spec, all_layers, _later(self._bound, bound))

    @property
    def changes(self) -> TableChanges | None:
        """Everything laid over the table; None if that is nothing."""
        layers = fold_run(self._spec, self._layers) if self._layers else []
        rows = {layer.op: layer.rows for layer in layers}
        if not rows and self._bound is None:
            return None
        return TableChanges(rows.get(DELETE), rows.get(PUT), rows.get(MERGE), self._bound)

    @property
    def expired(self) -> int | None:
        """The later bound of the table and of the changes."""
        return _later(self._below.expired, self._bound)

    def lookup(self, keys: pa.Table) -> Lookup:
        if self._unchanged:
            return self._below.lookup(keys)
        wanted = self._spec.conform_keys(keys)
        found = self._below.lookup(wanted.group_by(wanted.column_names, use_threads=False).aggregate([]))
        stored = Layer(PUT, reading.clustered(found.rows.filter(found.found)))
        return reading.lookup(self._spec, [stored, *self._layers], keys, self.expired)

    def scan(self, keys: KeyRange = EVERYTHING, *, reverse: bool = False, folded: bool = True) -> Iterator[pa.Table]:
        """Reads all rows of the range at once, unless nothing has changed."""
        if self._unchanged:
            return self._below.scan(keys, reverse=reverse, folded=folded)
        stored = [self._spec.no_rows, *self._below.scan(keys)]
        layers = [Layer(PUT, pa.concat_tables(stored), ordered=True), *self._layers]
        keys = check_range(self._spec, keys)
        if not folded:
            return iter([reading.unfolded(self._spec, layers, keys, self.expired)])
        return reading.scan(self._spec, layers, keys, self.expired, reverse=reverse)

    def ranges(self, prefixes: pa.Table, lower: KeyBound = None, upper: KeyBound = None) -> Ranges:
        if self._unchanged:
            return self._below.ranges(prefixes, lower, upper)
        prefixes, lower, upper = reading.check_requests(self._spec, prefixes, lower, upper)
        # Several requests may find a row.
        stored = reading.distinct_rows(self._below.ranges(prefixes, lower, upper).rows, self._spec.key_names)
        asked = prefixes.drop_null() if prefixes.num_columns else prefixes
        changed = reading.matching(reading.rows_between(self._layers, reading.extent(asked)), asked)
        rows = reading.folded(self._spec, [Layer(PUT, reading.clustered(stored)), *changed], self.expired)
        return reading.assign_keys(self._spec, reading.sorted_by_key(self._spec, rows), prefixes, lower, upper)

    @property
    def _unchanged(self) -> bool:
        return self._bound is None and not self._layers


class OverlayView(StateView):
    """State with changes over it: an `Overlay` for each of its tables."""

    def __init__(self, below: StateView, specs: Sequence[TableSpec]) -> None:
        self._specs = specs_by_name(specs)
        self._tables = {name: Overlay(below[name], spec) for name, spec in self._specs.items()}

    def __getitem__(self, table: str) -> Overlay:
        return find_table(self._tables, table)

    def fork(self) -> OverlayView:
        """A copy that can be dropped if a step on it fails."""
        other = copy(self)
        other._tables = dict(self._tables)
        return other

    def apply(self, changes: ChangeSet) -> None:
        """Lay ``changes`` over what is there, all or none. Raises as `StateStore.apply` does."""
        layers = validate_changes(self._specs, changes)
        self._tables |= {name: self[name].over(new, changes[name].expire) for name, new in layers.items()}

    def changes(self) -> ChangeSet:
        """Everything laid over the state, as one change set."""
        found = {name: table.changes for name, table in self._tables.items()}
        return {name: changes for name, changes in found.items() if changes is not None}


def _later(one: int | None, other: int | None) -> int | None:
    return max((bound for bound in (one, other) if bound is not None), default=None)
