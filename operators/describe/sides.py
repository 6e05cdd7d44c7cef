"""Several streams as one: a row has its side, its time, its key, and the columns of its side.

Joins, merges and unions read such a stream, whether its rows come from the input or from other operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import pyarrow as pa

from tidestate.operators.progress.watermarks import SideColumns
from tidestate.statestore.errors import UsageError
from tidestate.statestore.missing_columns import missing_columns
from tidestate.statestore.spec.plain import schema_with_fields, with_fields
from tidestate.statestore.spec.schema_evolution import same_instants
from tidestate.statestore.spec.tables import TIME

SIDE, AT = "side", "time"
"""Columns of every row: which side it is of, and its event time."""
LEFT, RIGHT = "left", "right"
SIDES = (LEFT, RIGHT)
How = Literal["inner", "left", "right", "full"]
"""Which sides keep rows without a partner."""


class Sides(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``names`` of the sides and their columns of event ``times``, in parallel; ``shared`` columns have one name and
    type on all sides, the others get their side's name in front. With ``same_columns`` all columns are shared. Where
    rows go ``by_offset``, ``times`` are columns of offsets on one line.
    """

    names: tuple[str, ...]
    times: tuple[str, ...]
    shared: tuple[str, ...] = ()
    same_columns: bool = False
    by_offset: bool | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if len(set(self.names)) < max(2, len(self.names)):
            raise UsageError("give two or more sides with different names", code="sides", found=self.names)
        self.check_each(self.times, "event times")

    def check_each(self, values: Sequence[object], what: str) -> None:
        """Raise `UsageError` unless there is a value for each side, in their order."""
        if len(values) != len(self.names):
            raise UsageError(f"give {what} for each side", code="sides", sides=self.names, found=len(values))

    @property
    def time_type(self) -> pa.DataType:
        """The type of event times: of offsets, where these stand for them."""
        return pa.int64() if self.by_offset else TIME

    def check_time(self, column: str, schema: pa.Schema) -> None:
        """Check that a column can be the event time, or the offset that stands for it. Raises `UsageError`."""
        if self.by_offset:
            check_offset(schema, column)
        else:
            check_event_time(column, schema)

    def schema(self, schemas: dict[str, pa.Schema]) -> pa.Schema:
        """Columns of the one stream, of those of each side. Raises `UsageError` where they do not go together."""
        whole = {side: schema_with_fields(one, self._named(side)) for side, one in schemas.items()}
        first, columns = whole[self.names[0]], self._shared(schemas, whole)
        # Streams that are unions themselves have these marks already, and get new ones.
        known = {*columns, SIDE, AT} if self.same_columns else {*columns}
        marks = [pa.field(SIDE, pa.string()), pa.field(AT, self.time_type)]
        rest = [
            pa.field(self.prefixed(side, field.name), field.type)
            for side in self.names
            for field in schemas[side]
            if field.name not in known
        ]
        fields = [*(first.field(name).remove_metadata() for name in columns), *marks, *rest]
        names = [field.name for field in fields]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise UsageError(
                "joining the sides would make two columns of the same name: rename the column on each side (the "
                f"join adds the columns {SIDE} and {AT}, and puts the name of the side in front of columns that "
                "are not shared)",
                code="name-taken",
                names=twice,
            )
        return pa.schema(fields)

    def rows(self, schema: pa.Schema, side: str, rows: pa.Table) -> pa.Table:
        """``rows`` of a side as the one stream has them. Raises `UsageError` where a column is missing
        (``column-missing``), or does not fit its type (``batch-type``).
        """
        time = self.time_of(side)
        own = {self.prefixed(side, name): name for name in rows.column_names} | {AT: time}
        needed = self._named(side)
        rows = with_fields(rows, needed)
        own |= {name: name for name in needed if name in self.shared}
        if missing := [name for name in needed if name not in rows.column_names]:
            raise missing_columns("a side lacks columns", missing, rows.column_names, side=side)
        columns = [
            pa.repeat(pa.scalar(side), rows.num_rows)
            if field.name == SIDE
            else _cast(rows, own[field.name], field.type, side)
            if field.name in own
            else pa.nulls(rows.num_rows, field.type)
            for field in schema
        ]
        return pa.table(columns, schema=schema)

    def names_on(self, side: str) -> SideColumns:
        """What the columns of a side are called in the one stream, and there."""
        return SideColumns(side, None if self.same_columns else self.shared)

    def prefixed(self, side: str, name: str) -> str:
        """What a side's column is called in the one stream."""
        return self.names_on(side).in_stream(name)

    def own(self, side: str, name: str) -> str:
        """What a column of the one stream is called on a side: the reverse of `prefixed`."""
        return self.names_on(side).on_side(name)

    def columns_of(self, side: str, schema: pa.Schema) -> list[str]:
        """The columns of a side, as they are called there, of the one stream."""
        names = [name for name in schema.names if name not in (SIDE, AT)]
        return [*self.names_on(side).columns(names).values()]

    def time_of(self, side: str) -> str:
        """The column of event times of a side."""
        return self.times[self.names.index(side)]

    def _named(self, side: str) -> list[str]:
        """The columns of a side that the description names; ``a.b`` may be a field of a struct."""
        return [self.time_of(side), *self.shared]

    def _shared(self, schemas: dict[str, pa.Schema], whole: dict[str, pa.Schema]) -> list[str]:
        """Columns that all sides have, of the same type. ``whole``: the schemas with the fields that are named."""
        first = whole[self.names[0]]
        all_of_first = [name for name in schemas[self.names[0]].names if name not in (SIDE, AT)]
        shared = all_of_first if self.same_columns else list(self.shared)
        for side, schema in whole.items():
            if missing := [name for name in (*shared, self.time_of(side)) if name not in schema.names]:
                columns = [name for name in schemas[side].names if name not in (SIDE, AT)]
                raise missing_columns("a side lacks columns", missing, columns, side=side)
            if self.same_columns and (more := sorted(set(schemas[side].names) - {*shared, SIDE, AT})):
                raise UsageError(
                    "all sides must have the same columns: select them first",
                    code="side-columns",
                    side=side,
                    more=more,
                )
            self.check_time(self.time_of(side), schema)
            if differ := [
                name for name in shared if not _same_values(schema.field(name).type, first.field(name).type)
            ]:
                raise UsageError(
                    "a column has different types on the two sides: cast one of them",
                    code="side-types",
                    columns=differ,
                )
        return shared


def _cast(rows: pa.Table, name: str, kind: pa.DataType, side: str) -> pa.ChunkedArray:
    try:
        return rows[name].cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise UsageError(
            f"the types of the batch are not those of the first input ({error}): cast the column to the first type",
            code="batch-type",
            side=side,
            column=name,
            type=str(rows.schema.field(name).type),
            expected=str(kind),
        ) from None


def _same_values(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether a shared column may have both types: rows are cast to the first."""
    return one.equals(other) or same_instants(one, other)


def check_event_time(column: str, schema: pa.Schema) -> None:
    """Check that a column can be an event time. Raises `UsageError`."""
    event_type = schema.field(column).type
    if not pa.types.is_timestamp(event_type) or event_type.tz is None:
        naive = pa.types.is_timestamp(event_type)
        way = "cast it to timestamp on Spark, elsewhere give time_zone=" if naive else "make it one in the input"
        raise UsageError(
            f"the event time must be a timestamp with a time zone: {way}",
            code="event-time-type",
            column=column,
            type=str(event_type),
        )


def check_offset(schema: pa.Schema, column: str) -> None:
    """Check that a column can hold offsets. Raises `UsageError`."""
    kind = schema.field(column).type
    if not pa.types.is_integer(kind):
        raise UsageError("an offset column must have an integer type", code="offset", column=column, type=str(kind))
