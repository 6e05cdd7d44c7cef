"""What a state table is: key columns in order, value columns with their combiners, and an expiry column.

Declared once, written into every manifest, so that a checkpoint describes its own tables.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec
import pyarrow as pa

from statestore.errors import UsageError, invariant

Combiner = Literal["sum", "min", "max", "replace"]

COMBINERS: dict[Combiner, str] = {"sum": "sum", "min": "min", "max": "max"}
"""Combiner to the name of Arrow's hash aggregate; null is their identity. ``replace`` takes the newest row's."""

TIME = pa.timestamp("us", tz="UTC")


class Column(msgspec.Struct, frozen=True, omit_defaults=True):
    """A column: its name, Arrow type as text, role (for tools that know no windows) and combiner."""

    name: str
    type: str
    role: str = ""
    combiner: Combiner = "replace"

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type."""
        return parse_type(self.type)


class TableSpec(msgspec.Struct, frozen=True):
    """A state table. ``expiry`` names the key column by which rows are forgotten; here it is the first one."""

    name: str
    key: tuple[Column, ...]
    values: tuple[Column, ...]
    expiry: str | None = None

    def __post_init__(self) -> None:
        names = [column.name for column in (*self.key, *self.values)]
        if len(set(names)) != len(names):
            raise UsageError("column names of a table must differ", code="table-columns", table=self.name)
        if self.expiry is not None and self.expiry != self.key[0].name:
            raise UsageError("the expiry column must lead the key", code="table-expiry", table=self.name)

    @property
    def key_names(self) -> list[str]:
        """Names of the key columns, in key order."""
        return [column.name for column in self.key]

    @property
    def schema(self) -> pa.Schema:
        """Key columns, then value columns."""
        return pa.schema([pa.field(c.name, c.arrow) for c in (*self.key, *self.values)])

    @property
    def key_schema(self) -> pa.Schema:
        """The key columns alone."""
        return pa.schema([pa.field(c.name, c.arrow) for c in self.key])

    def conform(self, rows: pa.Table) -> pa.Table:
        """``rows`` with exactly this table's columns, in order; a missing or mistyped one is a bug of the caller."""
        missing = [name for name in self.schema.names if name not in rows.column_names]
        invariant(not missing, "rows lack columns of their table", table=self.name, missing=missing)
        chosen = rows.select(self.schema.names)
        return chosen if chosen.schema.equals(self.schema) else chosen.cast(self.schema)


_DECIMAL = re.compile(r"decimal128\((\d+), (-?\d+)\)")
_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns)(?:, tz=(.+))?\]")
_ALIASES = {"date32[day]": "date32", "date64[ms]": "date64"}


def parse_type(text: str) -> pa.DataType:
    """The Arrow type that prints as ``text``. Raises `UsageError` for one no state table can hold."""
    if match := _DECIMAL.fullmatch(text):
        return pa.decimal128(int(match[1]), int(match[2]))
    if match := _TIMESTAMP.fullmatch(text):
        return pa.timestamp(match[1], tz=match[2])
    try:
        return pa.type_for_alias(_ALIASES.get(text, text))
    except ValueError:
        raise UsageError("no state column can have this type", code="column-type", type=text) from None
