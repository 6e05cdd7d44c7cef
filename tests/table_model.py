"""State tables as plain dicts: the law every store obeys, one row at a time, and tables to try it on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from statestore.changes import TableChanges
from statestore.tables import TIME, Column, TableSpec

MAIN = TableSpec(
    "main",
    (Column("t", str(TIME), "window_end"), Column("k", "string", "key"), Column("i", "int64", "key")),
    (
        Column("total", "int64", combiner="sum"),
        Column("low", "double", combiner="min"),
        Column("high", "date32[day]", combiner="max"),
        Column("note", "string", combiner="replace"),
    ),
    "t",
)
NAMED = TableSpec(
    "named", (Column("k", "string", "key"), Column("b", "bool", "key")), (Column("total", "int64", combiner="sum"),)
)
SPECS = (MAIN, NAMED)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Row = tuple[Any, ...]
"""Key values, then values; times as microseconds since 1970."""


def table(spec: TableSpec, rows: Sequence[Row], *, keys_only: bool = False) -> pa.Table:
    """Rows as Arrow."""
    schema = spec.key_schema if keys_only else spec.schema
    columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)]
    return pa.table(columns, schema=schema)


def plain(rows: pa.Table) -> list[Row]:
    """Arrow rows as tuples."""
    columns = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in rows.columns]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def moment(time_us: int) -> datetime:
    """A datetime, for readers outside this project."""
    return EPOCH + timedelta(microseconds=time_us)


class TableModel:
    """One table as a dict from key to values."""

    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec
        self.width = len(spec.key)
        self.rows: dict[Row, Row] = {}
        self.expired: int | None = None

    def apply(self, changes: TableChanges) -> None:
        for row in plain(changes.delete) if changes.delete is not None else []:
            self.rows.pop(row, None)
        for row in plain(changes.put) if changes.put is not None else []:
            self.rows[row[: self.width]] = row[self.width :]
        for row in plain(changes.merge) if changes.merge is not None else []:
            self._merge(row[: self.width], row[self.width :])
        if changes.expire is not None:
            self.expired = changes.expire if self.expired is None else max(self.expired, changes.expire)
        if self.expired is not None:
            self.rows = {key: values for key, values in self.rows.items() if key[0] > self.expired}

    def _merge(self, key: Row, values: Row) -> None:
        old = self.rows.get(key)
        if old is None:
            self.rows[key] = values
        else:
            columns = zip(self.spec.values, old, values, strict=True)
            self.rows[key] = tuple(_combined(column.combiner, a, b) for column, a, b in columns)

    def snapshot(self) -> list[Row]:
        return [(*key, *values) for key, values in sorted(self.rows.items(), key=lambda item: _ordered(item[0]))]

    def lookup(self, keys: Sequence[Row]) -> list[Row | None]:
        return [(*key, *self.rows[key]) if key in self.rows else None for key in keys]

    def scan(self, lower: int | None, upper: int | None) -> list[Row]:
        return [
            row for row in self.snapshot() if (lower is None or row[0] >= lower) and (upper is None or row[0] < upper)
        ]


def _ordered(key: Row) -> Row:
    """Text compares as its UTF-8."""
    return tuple(part.encode() if isinstance(part, str) else part for part in key)


def _combined(combiner: str, old: Any, new: Any) -> Any:
    if combiner == "replace":
        return new
    if old is None or new is None:
        return new if old is None else old
    return {"sum": lambda a, b: a + b, "min": min, "max": max}[combiner](old, new)
