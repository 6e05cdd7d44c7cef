"""Columns of rows and of the table that they go to: never a row made of two panes, nor a value cut to fit. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pyarrow as pa

from tidestate.statestore.errors import UsageError

ColumnChanges = Literal["refuse", "merge"]
"""What becomes of columns that rows have and their table has not, or the other way round: the rows are refused, or
the table gets the columns, and what it has more is null in these rows.
"""


def checked_changes(schema: str) -> ColumnChanges:
    """``schema`` as one of the two choices. Raises `UsageError` (``sink-form``) for any other text."""
    if schema == "refuse":
        return "refuse"
    if schema == "merge":
        return "merge"
    raise UsageError('schema= must be "refuse" or "merge"', code="sink-form", found=schema)


def new_columns(
    table: pa.Schema, rows: pa.Schema, schema: ColumnChanges, sink: str, by: Sequence[str], *, own: bool = False
) -> pa.Schema:
    """The columns that the table of a ``sink`` gets. ``by`` identifies its rows; ``own``: it may have more columns
    than the rows. Raises `UsageError` (``sink-target``) where they are to be refused, for a column that identifies
    rows, and for numbers that its types would cut.
    """
    new = [field for field in rows if field.name not in table.names]
    check_identity([field.name for field in new], by, sink)
    less = [name for name in table.names if name not in rows.names and not own]
    if schema == "refuse" and (new or less):
        raise UsageError(
            "the table and these rows have different columns, so none of these rows were stored: add the missing "
            'columns to the table and drop those that are gone, or let the sink do it with schema="merge", which '
            "leaves the latter null",
            code="sink-target",
            sink=sink,
            missing=[field.name for field in new],
            gone=less,
        )
    if cut := [field.name for field in rows if field.name in table.names and _cuts(table.field(field.name), field)]:
        raise UsageError(
            "a column of the table has a numeric type that cannot hold these values, so none of these rows were "
            "stored: change its type",
            code="sink-target",
            sink=sink,
            columns=cut,
            types=[str(table.field(name).type) for name in cut],
            found=[str(rows.field(name).type) for name in cut],
        )
    return pa.schema(new)


def check_identity(new: Sequence[str], by: Sequence[str], sink: str) -> None:
    """Check that no new column of a table identifies its rows: those that are there would have a null in it, so a
    renamed key would leave them forever. Raises `UsageError` (``sink-target``).
    """
    if unknown := [name for name in new if name in by]:
        raise UsageError(
            "the table lacks columns that identify rows, so none of these rows were stored: if the key has a new "
            "name, rename its column in the table too, else use a new table",
            code="sink-target",
            sink=sink,
            missing=unknown,
        )


def padded(rows: pa.Table, table: pa.Schema) -> pa.Table:
    """``rows`` with a null in each column of the table that they have not."""
    for field in table:
        if field.name not in rows.column_names:
            rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
    return rows


_SIGNED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}


def without_unsigned(rows: pa.Table) -> pa.Table:
    """``rows`` for targets without unsigned numbers, in types that have room for their values."""
    return rows.cast(pa.schema([field.with_type(_SIGNED.get(field.type, field.type)) for field in rows.schema]))


def with_signed(rows: pa.Table, table: pa.Schema, sink: str) -> pa.Table:
    """`without_unsigned`, but unsigned numbers of a column that has whole numbers in the ``table`` of a ``sink`` get
    the type that it has there. Raises `UsageError` (``sink-target``) for numbers that are too large for that one.
    """
    fields = []
    for field in rows.schema:
        kind = _SIGNED.get(field.type, field.type)
        if field.type in _SIGNED and field.name in table.names and pa.types.is_integer(table.field(field.name).type):
            kind = table.field(field.name).type
        fields.append(field.with_type(kind))
    columns = []
    for field in fields:
        try:
            columns.append(rows[field.name].cast(field.type))
        except pa.ArrowInvalid:
            raise UsageError(
                "a column of the table has a numeric type that cannot hold these values, so none of these rows were "
                "stored: change its type, or take another table",
                code="sink-target",
                sink=sink,
                column=field.name,
                type=str(field.type),
                found=str(rows.schema.field(field.name).type),
            ) from None
    return pa.table(columns, schema=pa.schema(fields))


def _cuts(stored: pa.Field, field: pa.Field) -> bool:
    """Whether numbers are stored in a type that has no fractions, where they may have some."""
    fractions = pa.types.is_floating(field.type) or (pa.types.is_decimal(field.type) and field.type.scale > 0)
    return fractions and pa.types.is_integer(stored.type)
