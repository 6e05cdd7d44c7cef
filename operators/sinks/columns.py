"""Columns of rows and of the table that they go to: never a row made of two panes, nor a value cut to fit. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pyarrow as pa
import pyarrow.types as pt

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
    rows, and for values that its types would change.
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
    shared = [field for field in rows if field.name in table.names]
    changed = [field.name for field in shared if not _holds(table.field(field.name).type, field.type)]
    if changed:
        raise UsageError(
            "a column of the table has a type that would change these values, so none of these rows were stored: "
            "change its type, or cast what the column is made of",
            code="sink-target",
            sink=sink,
            columns=changed,
            types=[str(table.field(name).type) for name in changed],
            found=[str(rows.field(name).type) for name in changed],
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


_EXACT_BITS = {pa.float16(): 11, pa.float32(): 24, pa.float64(): 53}
"""Whole numbers of so many bits are numbers of these types."""


def _holds(stored: pa.DataType, kind: pa.DataType) -> bool:
    """Whether a column of the type ``stored`` has values of another type as they are, or the target refuses a value
    that it has not: targets round, cut and shift the others without a word, and two keys become one.
    """
    if pt.is_nested(kind):
        return _holds_nested(stored, kind)
    if _plain(stored) == _plain(kind) or pt.is_null(kind):
        return True
    if pt.is_integer(kind):
        bits = _EXACT_BITS.get(stored, 0)
        return pt.is_integer(stored) or pt.is_decimal(stored) or kind.bit_width - pt.is_signed_integer(kind) <= bits
    if pt.is_decimal(kind):
        return bool(stored.scale >= kind.scale if pt.is_decimal(stored) else pt.is_integer(stored) and not kind.scale)
    # A time without a zone is in UTC, for targets that are written without Spark.
    is_wider = pt.is_floating(kind) and pt.is_floating(stored) and stored.bit_width >= kind.bit_width
    return is_wider or bool(pt.is_timestamp(kind) and pt.is_timestamp(stored))


def _holds_nested(stored: pa.DataType, kind: pa.DataType) -> bool:
    alike = (pt.is_struct, pt.is_map, lambda nested: pt.is_nested(nested) and nested.num_fields == 1)
    if not any(of_kind(stored) and of_kind(kind) for of_kind in alike) or stored.num_fields != kind.num_fields:
        return False
    inner = [(stored.field(number), kind.field(number)) for number in range(kind.num_fields)]
    named = not pt.is_struct(kind) or all(mine.name.lower() == other.name.lower() for mine, other in inner)
    return named and all(_holds(mine.type, other.type) for mine, other in inner)


def _plain(kind: pa.DataType) -> pa.DataType:
    """One type for those that differ in how Arrow keeps their values alone."""
    if pt.is_dictionary(kind):
        return _plain(kind.value_type)
    if pt.is_large_string(kind) or pt.is_string_view(kind):
        return pa.string()
    if pt.is_large_binary(kind) or pt.is_binary_view(kind) or pt.is_fixed_size_binary(kind):
        return pa.binary()
    return _SIGNED.get(kind, kind)
