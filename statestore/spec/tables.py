"""What a state table is: key columns in order, value columns with their combiners, and an expiry column.

Declared once, written into every manifest, so that a checkpoint describes its own tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property, lru_cache
from typing import Any

import msgspec
import pyarrow as pa

from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.arrowtypes import (
    is_close,
    is_comparable,
    is_ordered,
    is_position,
    item_type,
    parse_type,
    type_text,
)

TIME = pa.timestamp("us", tz="UTC")

HASHED = ("sum", "min", "max")
"""Combiners of one column that are an Arrow hash aggregate of this name."""

COLUMN_COMBINERS = ("replace", "append", *HASHED)
"""Combiners a single column may name."""

EXTREMES = ("arg_min", "arg_max", "arg_max_newest")
"""Combiners that keep one row of a key, chosen ``by`` a column."""

LIST_COMBINERS = ("union", "tally", "ranges", "smallest", "largest")
"""Combiners of lists: values sorted and each once; the same with counts; with smallest and largest numbers; the first
``limit`` in an order ``by``.
"""

GROUP_COMBINERS = (*EXTREMES, "moments", *LIST_COMBINERS)
"""Built-in combiners over several columns."""

MOMENT_COLUMNS = ("count", "mean", "m2")
"""What the three columns of ``moments`` are, in this order: int64, double, double."""


class Column(msgspec.Struct, frozen=True, omit_defaults=True):
    """A column: its name, Arrow type as text, role (for tools that know no windows) and combiner.

    Combiners of one column: ``replace`` (the newest), ``sum``, ``min``, ``max``, ``append`` (lists). ``identity`` is
    what it keeps for life, its first name where none is given: files that were written under another name, or when
    another column had this one, differ by it (`tidestate.statestore.spec.schema_evolution`).
    """

    name: str
    type: str
    role: str = ""
    combiner: str = "replace"
    identity: str = ""

    @property
    def lasting(self) -> str:
        """The name by which files are matched with the column, which no renaming changes."""
        return self.identity or self.name

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type that `type` is the name of."""
        return parse_type(self.type)


class Group(msgspec.Struct, frozen=True, omit_defaults=True):
    """Value columns that combine together, by one of these combiners or your own (see `register_combiner`).

    ``arg_min``, ``arg_max``, ``arg_max_newest`` ``by`` one of the columns; ``moments`` of a count (int64), a mean and
    an m2 (double); ``smallest`` and ``largest`` of lists, side by side, ``by`` one of them, ``limit`` entries (0:
    all); ``union`` of a list; ``tally`` of a list and its counts (a list of int64); ``ranges`` of a list and the
    smallest and largest number of each value (two lists of int64). Your own combiner gets a ``limit`` that is not 0.
    """

    columns: tuple[str, ...]
    combiner: str
    by: str = ""
    version: int = 1
    limit: int = 0


class TableSpec(msgspec.Struct, frozen=True, omit_defaults=True, dict=True):
    """A state table. Rows are ordered by ``key`` for reading; ``expiry`` names the column that orders forgetting.

    The expiry column holds integers, times or dates. It is a key column, leading or not, or a value column; with
    a value column the table takes puts only, because a row that has expired may not be merged into.

    ``partition_by`` are the key columns by whose hash rows go to state partitions; with none
    all rows are in the first partition; None: the table cannot be rescaled. Rows of a ``shared`` table do not name
    their key: a rescaled partition has those of all partitions that it is made of, as merges where columns combine.
    """

    name: str
    key: tuple[Column, ...]
    values: tuple[Column, ...]
    expiry: str | None = None
    groups: tuple[Group, ...] = ()
    partition_by: tuple[str, ...] | None = None
    shared: bool = False

    def __post_init__(self) -> None:
        _checked(self)

    def _check(self) -> None:
        """Raise `UsageError` if this is no table."""
        names = [column.name for column in (*self.key, *self.values)]
        identities = {column.lasting for column in (*self.key, *self.values)}
        if len(set(names)) != len(names) or len(identities) != len(names):
            duplicates = sorted({name for name in names if names.count(name) > 1})
            raise UsageError(
                "the column names of a table must all differ",
                code="table-columns",
                table=self.name,
                columns=duplicates,
            )
        if reserved_names := [name for name in names if name.startswith("__")]:
            raise UsageError(
                "column names that begin with two underscores are reserved: choose other names",
                code="table-columns",
                table=self.name,
                columns=reserved_names,
            )
        if not self.key:
            raise UsageError("a table needs at least one key column", code="table-columns", table=self.name)
        for column in self.key:
            if not is_ordered(column.arrow):
                raise UsageError(
                    "a key column cannot have this type: cast it",
                    code="key-type",
                    column=column.name,
                    type=column.type,
                )
        if self.partition_by and not self.shared and not set(self.partition_by) <= set(self.key_names):
            raise UsageError(
                "partition_by= must name key columns of the table",
                code="table-columns",
                table=self.name,
                partition_by=self.partition_by,
            )
        self._check_expiry()
        self._check_combiners()

    def _check_expiry(self) -> None:
        columns = {column.name: column for column in (*self.key, *self.values)}
        if self.expiry is None:
            return
        if self.expiry not in columns or not is_position(columns[self.expiry].arrow):
            raise UsageError(
                "the expiry column must be a column of the table and hold integers, timestamps or dates",
                code="table-expiry",
                table=self.name,
                expiry=self.expiry,
            )

    def _check_combiners(self) -> None:
        values = {column.name: column for column in self.values}
        group_columns = [name for group in self.groups for name in group.columns]
        if len(set(group_columns)) != len(group_columns) or not set(group_columns) <= set(values):
            raise UsageError("a value column can be in one group only", code="table-groups", table=self.name)
        for group in self.groups:
            _check_group(self, group)
        for column in self.values:
            _check_column(self, column)

    @cached_property
    def lengthening(self) -> tuple[str, ...]:
        """Lists that become longer as rows are combined, and what was made of such (role ``result``)."""
        return tuple(
            column.name
            for column in self.values
            if (column.combiner == "append" or column.name in self.grouped or column.role == "result")
            and (pa.types.is_list(column.arrow) or pa.types.is_large_list(column.arrow))
        )

    @cached_property
    def key_names(self) -> list[str]:
        """Names of the key columns, in key order."""
        return [column.name for column in self.key]

    @cached_property
    def schema(self) -> pa.Schema:
        """Key columns, then value columns."""
        return pa.schema([pa.field(c.name, c.arrow) for c in (*self.key, *self.values)])

    @cached_property
    def key_schema(self) -> pa.Schema:
        """The Arrow schema of the key columns, without the values."""
        return pa.schema([pa.field(c.name, c.arrow) for c in self.key])

    @cached_property
    def no_rows(self) -> pa.Table:
        """A table of this schema without rows: Arrow makes it column by column, and a step asks for hundreds."""
        return self.schema.empty_table()

    @cached_property
    def grouped(self) -> frozenset[str]:
        """Value columns that combine in a group."""
        return frozenset(name for group in self.groups for name in group.columns)

    @property
    def combines(self) -> bool:
        """Whether a merge does anything but replace."""
        return bool(self.groups) or any(column.combiner != "replace" for column in self.values)

    @property
    def expires_by_key(self) -> bool:
        """Whether all rows of a key expire together: then parts of a row can be dropped before they are folded."""
        return self.expiry is not None and self.expiry in self.key_names

    @property
    def expires_in_order(self) -> bool:
        """Whether the expiry column leads the key: then what expires is a range."""
        return bool(self.key) and self.expiry == self.key[0].name

    def conform(self, rows: pa.Table) -> pa.Table:
        """``rows`` with exactly this table's columns, in order. Raises `UsageError` for a missing or mistyped one."""
        return _conform(self.name, rows, self.schema)

    def conform_keys(self, rows: pa.Table, width: int | None = None) -> pa.Table:
        """The key columns of ``rows``, or the first ``width`` of them. Raises `UsageError` like `conform`."""
        if width == 0:
            return rows.select([])  # a cast would forget how many rows there are
        schema = self.key_schema if width is None else pa.schema(list(self.key_schema)[:width])
        return _conform(self.name, rows, schema)


def _conform(table: str, rows: pa.Table, schema: pa.Schema) -> pa.Table:
    if rows.schema.equals(schema):
        return rows
    names = set(rows.column_names)
    missing_names = [name for name in schema.names if name not in names]
    if missing_names:
        raise UsageError(
            "the rows lack columns of their table", code="rows-columns", table=table, missing=missing_names
        )
    columns = [rows[name] for name in schema.names]
    for field, column in zip(schema, columns, strict=True):
        if column.type != field.type and not is_close(column.type, field.type):
            raise _mistyped(table, field, column.type, "a value of another kind")
    try:
        cast = [
            column if column.type == field.type else column.cast(field.type)
            for field, column in zip(schema, columns, strict=True)
        ]
        return pa.table(cast, schema=schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _mistyped(table, schema, rows.schema, str(error)) from None


def _mistyped(table: str, target: Any, actual: Any, reason: str) -> UsageError:
    return UsageError(
        f"the types of the rows are not those of their table ({reason.lower()}): cast them first",
        code="rows-type",
        table=table,
        expected=str(target).replace("\n", ", "),
        found=str(actual).replace("\n", ", "),
    )


@lru_cache(maxsize=1024)
def _checked(spec: TableSpec) -> None:
    """Check a table once: each manifest that is decoded has those of the one before."""
    spec._check()


def _check_group(spec: TableSpec, group: Group) -> None:
    facts: dict[str, Any] = {"table": spec.name, "columns": list(group.columns), "combiner": group.combiner}
    types = [type_text(column.arrow) for column in spec.values if column.name in group.columns]
    if group.combiner in COLUMN_COMBINERS:
        raise UsageError("this combiner is for single columns: set it on the column", code="table-groups", **facts)
    chooses = group.combiner in (*EXTREMES, "smallest", "largest")
    if chooses and group.by not in group.columns:
        raise UsageError("name the column of the group that decides: by=", code="table-groups", by=group.by, **facts)
    by = [column for column in spec.values if column.name == group.by]
    if group.combiner in LIST_COMBINERS:
        _check_lists(spec, group, facts)
    elif chooses and not is_comparable(by[0].arrow):
        raise UsageError(
            "values of this type cannot be compared, so by= cannot name this column",
            code="table-groups",
            by=group.by,
            **facts,
        )
    if group.combiner == "moments" and types != ["int64", "double", "double"]:
        raise UsageError(
            f"moments needs {', '.join(MOMENT_COLUMNS)}: one int64 and two doubles",
            code="table-groups",
            types=types,
            **facts,
        )
    if any(c.combiner != "replace" for c in spec.values if c.name in group.columns):
        raise UsageError("a column in a group must not have a combiner of its own", code="table-groups", **facts)


def _check_lists(spec: TableSpec, group: Group, facts: dict[str, Any]) -> None:
    kinds = {column.name: column.arrow for column in spec.values if column.name in group.columns}
    lists = all(pa.types.is_list(kind) or pa.types.is_large_list(kind) for kind in kinds.values())
    width = {"union": 1, "tally": 2, "ranges": 3}.get(group.combiner, len(group.columns))
    if not lists or len(kinds) != width or group.limit < 0:
        raise UsageError("this combiner needs list columns: see Group", code="table-groups", **facts)
    if not is_comparable(item_type(kinds[group.by or group.columns[0]])):
        raise UsageError("lists of this type cannot be sorted", code="table-groups", **facts)
    numbers = group.columns[1:] if group.combiner in ("tally", "ranges") else ()
    if any(item_type(kinds[name]) != pa.int64() for name in numbers):
        raise UsageError("the numbers of a tally, or of ranges, must be lists of int64", code="table-groups", **facts)


def _check_column(spec: TableSpec, column: Column) -> None:
    kind, combiner = column.arrow, column.combiner
    facts = {"table": spec.name, "column": column.name, "combiner": combiner, "type": column.type}
    if combiner not in COLUMN_COMBINERS:
        choices = "those for one column are " + ", ".join(COLUMN_COMBINERS)
        hint = " for one column (this one is for a group)" if combiner in GROUP_COMBINERS else ""
        raise UsageError(f"unknown combiner{hint}: {choices}", code="combiner-type", **facts)
    wide = type_text(kind) in ("int64", "uint64", "float", "double")
    has_sum = wide or pa.types.is_decimal(kind)
    has_order = is_comparable(kind)
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    fits = {"sum": has_sum, "min": has_order, "max": has_order, "append": is_list, "replace": True}[combiner]
    if not fits:
        raise UsageError("this combiner does not support the type of the column", code="combiner-type", **facts)


def table_named(specs: Iterable[TableSpec], name: str, *, code: str) -> TableSpec:
    """The table of this ``name``. Raises `UsageError`, of this ``code`` and with all names, where there is none."""
    by_name = {spec.name: spec for spec in specs}
    if name not in by_name:
        raise UsageError(
            "the operator has no such table: choose from those listed", code=code, table=name, tables=sorted(by_name)
        )
    return by_name[name]
