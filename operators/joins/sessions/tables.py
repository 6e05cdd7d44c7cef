"""Tables of a session join: the rows of each side, and the sessions that they are in.

| table | key | values | forgets by |
|---|---|---|---|
| ``left``, ``right`` | key, time, ``on``, offset, origin | the side's columns | deleted with their session |
| ``left_seen``, … of sides with offsets | offset, origin | when it would be over by itself | that |
| ``sessions`` | key, window start | window end | window end |
| ``ends`` | window end, key, window start | – | window end |
| ``numbered`` | side | rows so far | – |

A row is stored once and never moved: sessions are intervals, and what lies in one is a range of its key. So a row
costs the same however large its session is. Where offsets are not named a running number stands for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from tidestate.operators.describe.session_join import SessionJoin
from tidestate.operators.describe.sides import AT, SIDE
from tidestate.operators.joins.names import kept_as
from tidestate.operators.joins.sessions.names import END, ENDS, NUMBERED, PLACE, SESSIONS, START, UNTIL
from tidestate.operators.plan.plan import Plan
from tidestate.operators.windows.general.names import NO_KEY
from tidestate.statestore.messages.keys import Layout
from tidestate.statestore.messages.tables import OFFSET, ORIGIN, MessageTables
from tidestate.statestore.spec.arrowtypes import type_text
from tidestate.statestore.spec.tables import TIME, Column, TableSpec


@dataclass(frozen=True, kw_only=True)
class SessionJoinTables(Plan):
    """What the steps of a session join know of it: columns and tables."""

    joined: SessionJoin
    equal_fields: tuple[pa.Field, ...] = ()
    """Columns by which rows of a session pair up, beside its key."""

    late_option = "late=…"

    @cached_property
    def key_columns(self) -> tuple[Column, ...]:
        """Key columns of all tables, as these call them; a constant where all rows are of one group."""
        return _kept(self.key_specs) or (Column(NO_KEY, "int8", "key"),)

    @property
    def group_keys(self) -> list[str]:
        """Their names."""
        return [column.name for column in self.key_columns]

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The key, as tables have it."""
        return tuple(self.group_keys) if self.key_fields else ()

    @cached_property
    def equal(self) -> tuple[Column, ...]:
        """Columns by which rows pair up, as tables call them."""
        return _kept(tuple(Column(field.name, type_text(field.type), "key") for field in self.equal_fields))

    @cached_property
    def kept(self) -> dict[str, str]:
        """What tables call the columns of both keys."""
        return {name: kept_as(name) for name in self.never_null}

    @property
    def never_null(self) -> list[str]:
        """Both keys."""
        return [*self.key_names, *(field.name for field in self.equal_fields)]

    @property
    def layouts(self) -> dict[str, Layout]:
        """The message key of each side."""
        return dict.fromkeys(self.joined.sides.names, self.joined.layout)

    def given(self, side: str, what: str) -> str | None:
        """The column that holds a side's ``offset`` or ``origin``, where it is named."""
        names = self.joined.offsets if what == OFFSET else self.joined.origins
        name = names[self.joined.sides.names.index(side)]
        return None if name is None else self.joined.sides.prefixed(side, name)

    @property
    def identified(self) -> tuple[str, ...]:
        """Sides whose messages are known by their offsets."""
        return tuple(side for side in self.joined.sides.names if self.given(side, OFFSET))

    def payload(self, side: str) -> list[pa.Field]:
        """Columns of a side's own."""
        shared = self.joined.sides.shared
        return [
            field for field in self.input_schema if field.name not in shared and field.name.startswith(f"{side}_")
        ]

    def keeps(self, side: str) -> bool:
        """Whether rows of a side are shown also without the other one."""
        return self.joined.how in (side, "full")

    @cached_property
    def rows(self) -> dict[str, TableSpec]:
        """The rows of each side."""
        return {side: store.messages for side, store in self.stores.items()}

    @cached_property
    def stores(self) -> dict[str, MessageTables]:
        """The messages of each side."""
        return {side: self._store(side) for side in self.joined.sides.names}

    @cached_property
    def seen(self) -> dict[str, TableSpec]:
        """Who has been here, of sides that name offsets."""
        stores = {side: self.stores[side] for side in self.identified}
        until = (Column(UNTIL, "int64"),)
        partition_by, shared = self.partition_by, bool(self.partition_by)
        return {
            side: TableSpec(store.seen.name, store.seen.key, until, UNTIL, partition_by=partition_by, shared=shared)
            for side, store in stores.items()
        }

    @cached_property
    def sessions(self) -> TableSpec:
        """Sessions by their start."""
        key = (*self.key_columns, self._bounds[0])
        return TableSpec(SESSIONS, key, (self._bounds[1],), END, partition_by=self.partition_by)

    @cached_property
    def ends(self) -> TableSpec:
        """Sessions by their end."""
        key = (self._bounds[1], *self.key_columns, self._bounds[0])
        return TableSpec(ENDS, key, (), END, partition_by=self.partition_by)

    @property
    def _bounds(self) -> tuple[Column, Column]:
        return Column(START, "int64", START), Column(END, "int64", END)

    @cached_property
    def numbered(self) -> TableSpec:
        """How many rows there were."""
        key, count = (Column(SIDE, "string"),), (Column("count", "int64", combiner="max"),)
        return TableSpec(NUMBERED, key, count, partition_by=self.partition_by, shared=bool(self.partition_by))

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """All state tables."""
        return (*self.rows.values(), *self.seen.values(), self.sessions, self.ends, self.numbered)

    @cached_property
    def exchanged(self) -> TableSpec:
        """Rows with the end of the session that each would be by itself."""
        payload = [field for side in self.joined.sides.names for field in self.payload(side)]
        gap = self.joined.windows.gap_column
        # A row that is refused for its offset is shown whole in the ledger.
        gaps = [self.input_schema.field(gap)] if gap is not None and self.identified else []
        fields = [pa.field(SIDE, pa.string()), *self.equal_fields, *gaps, *payload]
        beside = (Column(PLACE, "int64"), Column(UNTIL, "int64"))
        key = self.key_specs or self.key_columns
        return TableSpec("rows", key, (*(Column(f.name, type_text(f.type)) for f in fields), *beside))

    @cached_property
    def pane_schema(self) -> pa.Schema:
        """Both keys, the session, its last moment as ``time``, and both rows."""
        bounds = [pa.field(name, TIME) for name in (START, END, AT)]
        payload = [field for side in self.joined.sides.names for field in self.payload(side)]
        kind = pa.field("kind", pa.dictionary(pa.int8(), pa.string()))
        return pa.schema([*self.key_fields, *self.equal_fields, *bounds, *payload, kind])

    def _store(self, side: str) -> MessageTables:
        origin = self.given(side, ORIGIN)
        own = {name for what in (OFFSET, ORIGIN) if (name := self.given(side, what))}
        return MessageTables(
            self.joined.layout,
            tuple(Column(field.name, type_text(field.type)) for field in self.payload(side) if field.name not in own),
            equal=self.equal,
            session=self.key_columns,
            origin=type_text(self.input_schema.field(origin).type) if origin else "int8",
            name=side,
            partition_by=self.partition_by,
        )


def _kept(columns: tuple[Column, ...]) -> tuple[Column, ...]:
    return tuple(Column(kept_as(column.name), column.type, column.role) for column in columns)
