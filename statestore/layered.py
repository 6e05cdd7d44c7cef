"""A store of layers: the memory store, and the parquet store once its files are opened as layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from statestore.changes import DELETE, PUT, Applied, ChangeSet, Layer, Lookup
from statestore.errors import NotFoundError, UsageError
from statestore.fold import fold, parts
from statestore.layers import between, bounds, clustered, live, lookup, ordered
from statestore.store import check_sequence, specs_by_name
from statestore.tables import TableSpec

MAX_LAYERS = 16
"""Layers a table may have in RAM before they are folded into one."""


class LayeredStore:
    """State as layers of Arrow tables per state table, newest last.

    A merge appends and reads nothing. Reads fold the layers they touch.
    """

    def __init__(
        self,
        specs: Sequence[TableSpec],
        layers: Mapping[str, Sequence[Layer]] | None = None,
        *,
        expired: Mapping[str, int] | None = None,
        applied: Applied = Applied(),  # noqa: B008  immutable
        compact: bool = True,
    ) -> None:
        self._specs = specs_by_name(specs)
        self._layers: dict[str, list[Layer]] = {name: list((layers or {}).get(name, ())) for name in self._specs}
        self._expired: dict[str, int] = dict(expired or {})
        self._applied = applied
        self._compact = compact

    @property
    def applied(self) -> Applied:
        """The sequence and lineage id last applied."""
        return self._applied

    @property
    def expired(self) -> Mapping[str, int]:
        """Per table the bound at or below which rows are forgotten."""
        return self._expired

    def lookup(self, table: str, keys: pa.Table) -> Lookup:
        """Rows for these keys, aligned with them."""
        spec = self._spec(table)
        return lookup(spec, self._layers[table], keys, self._expired.get(table))

    def scan(
        self, table: str, lower: int | None = None, upper: int | None = None, *, folded: bool = True
    ) -> Iterator[pa.Table]:
        """Live rows in a range of the leading key column."""
        spec = self._spec(table)
        low, high = bounds(spec, lower, upper, self._expired.get(table))
        near = between(self._layers[table], low, high)
        if not folded:
            yield parts(spec, near)
        elif (rows := fold(spec, near)).num_rows:
            yield ordered(spec, rows)

    def apply(self, changes: ChangeSet, applied: Applied) -> None:
        """Append the changes as layers, all tables at once."""
        check_sequence(self._applied, applied)
        additions = {
            name: [Layer(layer.op, clustered(self._conformed(name, layer))) for layer in table_changes.layers()]
            for name, table_changes in changes.items()
        }
        for name, table_changes in changes.items():
            if table_changes.expire is not None:
                self._check_expires(name)
        for name, new in additions.items():
            self._layers[name] = self._layers[name] + new
            bound = changes[name].expire
            if bound is not None:
                self.expire(name, bound)
            if self._compact and len(self._layers[name]) > MAX_LAYERS:
                self._layers[name] = self._folded(name)
        self._applied = applied

    def expire(self, table: str, bound: int) -> None:
        """Forget rows at or below ``bound``; a bound never goes back."""
        spec = self._check_expires(table)
        if bound > self._expired.get(table, bound - 1):
            self._expired[table] = bound
            self._layers[table] = live(spec, self._layers[table], bound)

    def snapshot(self) -> dict[str, pa.Table]:
        """Live rows of every table in key order."""
        return {
            name: ordered(spec, fold(spec, live(spec, self._layers[name], self._expired.get(name))))
            for name, spec in self._specs.items()
        }

    def close(self) -> None:
        """Drop the layers."""
        self._layers = {name: [] for name in self._specs}

    def _check_expires(self, table: str) -> TableSpec:
        spec = self._spec(table)
        if spec.expiry is None:
            raise UsageError("this table has no expiry column", code="table-expiry", table=table)
        return spec

    def _folded(self, table: str) -> list[Layer]:
        rows = fold(self._specs[table], self._layers[table])
        return [Layer(PUT, clustered(rows))] if rows.num_rows else []

    def _conformed(self, table: str, layer: Layer) -> pa.Table:
        spec = self._spec(table)
        return spec.conform(layer.rows) if layer.op != DELETE else layer.rows.select(spec.key_names)

    def _spec(self, table: str) -> TableSpec:
        try:
            return self._specs[table]
        except KeyError:
            raise NotFoundError("no such state table", code="no-table", table=table) from None
