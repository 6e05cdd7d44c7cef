"""State tables as plain dictionaries: what every store must amount to, one row at a time.

Written from the protocol's words, naive on purpose, and independent of the code that stores share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import Any

from tidestate.statestore.spec.changes import Applied, ChangeSet, TableChanges
from tidestate.statestore.spec.tables import Group, TableSpec
from tidestate.statestore.testing.rows import KeyRow, as_tuples

GroupRule = Callable[[KeyRow, KeyRow], KeyRow]
"""The group's columns of two rows of one key, the older first; gives the combined ones."""

GROUP_RULES: dict[str, GroupRule] = {}
"""Naive twins of registered combiners, by name. Add yours to see your own combiner under the contract."""


class TableModel:
    """One table as a dictionary from key to values. Times are whole numbers in the unit of their column."""

    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec
        self.width = len(spec.key)
        self.rows: dict[KeyRow, KeyRow] = {}
        self.expired: int | None = None

    def apply(self, changes: TableChanges) -> None:
        """Delete, put, merge, expire, in this order."""
        for row in as_tuples(changes.delete) if changes.delete is not None else []:
            self.rows.pop(row, None)
        for row in as_tuples(changes.put) if changes.put is not None else []:
            self.rows[row[: self.width]] = row[self.width :]
        for row in as_tuples(changes.merge) if changes.merge is not None else []:
            self.merge(row)
        if changes.expire is not None:
            self.expire(changes.expire)
        self._forget()

    def merge(self, row: KeyRow) -> None:
        """Combine one row with what is there."""
        key, values = row[: self.width], row[self.width :]
        old = self.rows.get(key)
        self.rows[key] = values if old is None else combined_values(self.spec, old, values)

    def expire(self, bound: int) -> None:
        """Forget rows at or below ``bound``, which never goes back."""
        self.expired = bound if self.expired is None else max(self.expired, bound)
        self._forget()

    def _forget(self) -> None:
        if self.expired is None or self.spec.expiry is None:
            return
        index = self.spec.schema.names.index(self.spec.expiry)
        for key, values in list(self.rows.items()):
            position = (*key, *values)[index]
            if position is not None and orderly(position) <= self.expired:
                del self.rows[key]

    def snapshot(self) -> list[KeyRow]:
        """Live rows in key order."""
        return [(*key, *self.rows[key]) for key in sorted(self.rows, key=key_order)]

    def lookup(self, keys: Sequence[KeyRow]) -> list[KeyRow | None]:
        """The row of each key, or None."""
        return [(*key, *self.rows[key]) if key in self.rows else None for key in keys]

    def scan(self, lower: KeyRow | None = None, upper: KeyRow | None = None, *, prefix: KeyRow = ()) -> list[KeyRow]:
        """Live rows within bounds; a bound is compared with as many columns as it has values."""
        return [row for row in self.snapshot() if self._within(row, prefix, lower, upper)]

    def _within(self, row: KeyRow, prefix: KeyRow, lower: KeyRow | None, upper: KeyRow | None) -> bool:
        key, start = key_order(row[: self.width]), len(prefix)
        starts = key[:start] == key_order(prefix)
        tail = key[start:]
        above = lower is None or tail[: len(lower)] >= key_order(lower)
        below = upper is None or tail[: len(upper)] < key_order(upper)
        return starts and above and below

    def ranges(
        self, prefixes: Sequence[KeyRow], lower: Sequence[Any] | None = None, upper: Sequence[Any] | None = None
    ) -> list[tuple[int, KeyRow]]:
        """Each request's number with the rows that are in its range, by request and in key order."""
        pairs: list[tuple[int, KeyRow]] = []
        for request_index, prefix in enumerate(prefixes):
            low = None if lower is None or lower[request_index] is None else (lower[request_index],)
            high = None if upper is None or upper[request_index] is None else (upper[request_index],)
            pairs += [(request_index, row) for row in self.scan(low, high, prefix=prefix)]
        return pairs

    def folded(self, parts: Sequence[KeyRow]) -> list[KeyRow]:
        """What rows that come in parts amount to."""
        model = TableModel(self.spec)
        for row in parts:
            model.merge(row)
        return model.snapshot()

    def copy(self) -> TableModel:
        """A model with the same rows, keys and expiry, which changes of this one do not reach."""
        model = TableModel(self.spec)
        model.rows, model.expired = dict(self.rows), self.expired
        return model


class StoreModel:
    """All tables of a store, and how far it has come."""

    def __init__(self, specs: Sequence[TableSpec]) -> None:
        self.tables = {spec.name: TableModel(spec) for spec in specs}
        self.applied = Applied()

    def apply(self, changes: ChangeSet, applied: Applied) -> None:
        """All changes of one step."""
        for name, part in changes.items():
            self.tables[name].apply(part)
        self.applied = applied

    def expire(self, bounds: Mapping[str, int]) -> None:
        """Forget rows at or below these bounds."""
        for name, bound in bounds.items():
            self.tables[name].expire(bound)

    @property
    def expired(self) -> dict[str, int]:
        """Per table the bound at or below which rows are forgotten."""
        return {name: table.expired for name, table in self.tables.items() if table.expired is not None}

    def copy(self) -> StoreModel:
        """A model with a copy of each table, and as far applied; changes of this one do not reach it."""
        model = StoreModel([])
        model.tables = {name: table.copy() for name, table in self.tables.items()}
        model.applied = self.applied
        return model


def key_order(key: KeyRow) -> KeyRow:
    """A key as what it is ordered by."""
    return tuple(orderly(value) for value in key)


def orderly(value: Any) -> Any:
    """A value as what it is ordered by: text by its UTF-8, dates by their number."""
    if isinstance(value, str):
        return value.encode()
    return (value - date(1970, 1, 1)).days if isinstance(value, date) else value


def combined_values(spec: TableSpec, old: KeyRow, new: KeyRow) -> KeyRow:
    """The values of two rows of one key, the older first, as one."""
    names = [column.name for column in spec.values]
    triples = zip(spec.values, old, new, strict=True)
    row = {column.name: _combined(column.combiner, a, b) for column, a, b in triples}
    for group in spec.groups:
        indices = [names.index(name) for name in group.columns]
        part = _group(group, tuple(old[p] for p in indices), tuple(new[p] for p in indices))
        row.update(zip(group.columns, part, strict=True))
    return tuple(row[name] for name in names)


def _combined(combiner: str, old: Any, new: Any) -> Any:
    if combiner == "replace":
        return new
    if old is None or new is None:
        return new if old is None else old
    if combiner in ("sum", "append"):
        return old + new
    return {"min": min, "max": max}[combiner](old, new)


def _group(group: Group, old: KeyRow, new: KeyRow) -> KeyRow:
    if group.combiner == "moments":
        return _moments(old, new)
    if group.combiner not in ("arg_min", "arg_max"):
        return GROUP_RULES[group.combiner](old, new)
    by = group.columns.index(group.by)
    if old[by] is None or new[by] is None:
        return new if old[by] is None else old
    older, newer = orderly(old[by]), orderly(new[by])
    better = newer < older if group.combiner == "arg_min" else newer > older
    return new if better else old  # the first of equals


def _moments(old: KeyRow, new: KeyRow) -> KeyRow:
    """Null is the identity; so is a count of nothing."""
    if not old[0] or not new[0]:
        return new if not old[0] and (new[0] or old[0] is None) else old
    count = old[0] + new[0]
    mean = (old[0] * old[1] + new[0] * new[1]) / count
    distance = new[1] - old[1]
    return count, mean, old[2] + new[2] + distance * distance * old[0] * new[0] / count
