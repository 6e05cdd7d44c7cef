"""What all joins have: the tables of their sides, and the columns of their panes. Pure.

A row is stored once, in the message store of its side. Where offsets are not named a running number stands for them.

| table | key | expires by |
|---|---|---|
| ``left``, ``right`` | as the side's message layout says | position; rows of a session are deleted with it |
| ``left_seen``, ``right_seen``, of sides that name offsets | offset, origin | the position up to which it is known |
| ``numbered`` | what is counted | – |
| ``back_left``, ``back_right``, where lost rows can be put back: those that were | as ``left_seen`` | as that |
| ``gone_left``, ``gone_right``, likewise: those that never will be | as ``left_seen`` | as that |
| ``ahead``, where rows are held: `tidestate.operators.plan.held_rows` | time, number, key | time |

The **position** of a row is its time, or its offset where windows are of offsets.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import msgspec
import pyarrow as pa

from tidestate.operators.describe.join import Join
from tidestate.operators.describe.session_join import SessionJoin
from tidestate.operators.describe.sides import AT, LEFT, RIGHT, SIDES
from tidestate.operators.describe.windows import END, START
from tidestate.operators.joins.names import given_up_table, kept_as, put_back_table
from tidestate.operators.joins.rule import JoinRule, Mark
from tidestate.operators.plan.held_rows import numbers_table
from tidestate.operators.plan.plan import BY_WATERMARK, ReplayedPlan, WindowedPlan
from tidestate.operators.plan.transition import KINDS
from tidestate.operators.progress.progress import Context
from tidestate.statestore.arrays import Times, Values, constant
from tidestate.statestore.messages.keys import Layout
from tidestate.statestore.messages.tables import OFFSET, ORIGIN, MessageTables
from tidestate.statestore.spec.arrowtypes import type_text
from tidestate.statestore.spec.tables import TIME, Column, TableSpec


@dataclass(frozen=True, kw_only=True)
class JoinTables(WindowedPlan, ReplayedPlan):
    """Columns and tables of a join, and the rule of its rows."""

    joined: Join | SessionJoin
    late_option = "allowed_lateness=…"
    may_lose_again = False

    @property
    @abstractmethod
    def meeting(self) -> JoinRule:
        """The rule of which rows of the two sides meet, and for how long each may."""

    @property
    def session_key(self) -> tuple[Column, ...]:
        """Key columns of sessions, as tables have them."""
        return ()

    @property
    def bookkeeping(self) -> tuple[Column, ...]:
        """Columns that the sides' tables have in addition."""
        return ()

    @property
    def windowed(self) -> bool:
        """Whether panes name a window."""
        return True

    @property
    def pane_keys(self) -> tuple[pa.Field, ...]:
        """The columns of panes that say which key they are of."""
        return self.input.key

    @property
    def never_null(self) -> list[str]:
        return [field.name for field in self.pane_keys]

    @cached_property
    def kept(self) -> dict[str, str]:
        """The names of the key columns in tables."""
        return {name: kept_as(name) for name in self.never_null}

    @cached_property
    def equal(self) -> tuple[Column, ...]:
        """Columns that are equal in the rows of a pair, as tables have them; but for those of its session."""
        return kept_columns(self.input.key_specs)

    @property
    def equal_names(self) -> list[str]:
        """Names of the columns of ``equal``."""
        return [column.name for column in self.equal]

    @property
    def partition_by(self) -> tuple[str, ...]:
        return tuple(kept_as(name) for name in self.input.key_names)

    @property
    def layouts(self) -> dict[str, Layout]:
        """The message key of each side."""
        return {side: self.joined.layout(side) for side in SIDES}

    def given(self, side: str, what: str) -> str | None:
        """The column that holds a side's ``offset`` or ``origin``, where it is named."""
        names = self.joined.offsets if what == OFFSET else self.joined.origins
        name = names[SIDES.index(side)]
        return None if name is None else self.joined.sides.prefixed(side, name)

    @property
    def identified(self) -> tuple[str, ...]:
        """Sides whose messages are known by their offsets."""
        return tuple(side for side in SIDES if self.given(side, OFFSET))

    @property
    def numbers_rows(self) -> bool:
        """Whether rows or pairs have running numbers."""
        return len(self.identified) < len(SIDES)

    @abstractmethod
    def may_meet(self, side: str, mark: Mark) -> int | None:
        """Rows known up to this position or an earlier one meet no row any more."""

    def known_by(self, side: str) -> str:
        """The column of new rows up to which each is known."""
        return self.stores[side].position

    def with_bookkeeping(self, side: str, rows: pa.Table, context: Context) -> pa.Table:
        """Admitted rows with the columns of ``bookkeeping``."""
        return rows

    def payload(self, side: str) -> list[pa.Field]:
        """Columns of a side's own."""
        shared = self.joined.sides.shared
        return [
            field for field in self.input.schema if field.name not in shared and field.name.startswith(f"{side}_")
        ]

    @cached_property
    def stores(self) -> dict[str, MessageTables]:
        """The messages of each side."""
        return {side: self._store(side) for side in SIDES}

    @cached_property
    def sides(self) -> dict[str, TableSpec]:
        """The rows of each side."""
        return {side: store.messages for side, store in self.stores.items()}

    def seen(self, side: str) -> TableSpec:
        """The identities of a side's messages."""
        return self.stores[side].seen

    @property
    @abstractmethod
    def depends_on(self) -> str:
        """Why lost rows cannot be put back, even if both sides know theirs by offsets; empty where they can."""

    @property
    def message_tables(self) -> tuple[str, ...]:
        return SIDES

    @property
    def not_replayable(self) -> str:
        return BY_WATERMARK if self.input.watermarks.filters_rows else self.depends_on or self.not_run_again

    @property
    def not_run_again(self) -> str:
        unknown = "its rows are not known by their offsets: name them, stream(offset=…), and set identity=True"
        return "" if self.identified == SIDES else unknown

    @property
    def stored_under(self) -> dict[str, tuple[str, ...]]:
        return {self.seen(side).name: (side, gone.name) for side, gone in self.gone.items()}

    @cached_property
    def back(self) -> dict[str, TableSpec]:
        """The identities of rows that were lost and put back."""
        return self._identities(put_back_table)

    @cached_property
    def gone(self) -> dict[str, TableSpec]:
        """The identities of rows that were lost, and given up."""
        return self._identities(given_up_table)

    def _identities(self, name: Callable[[str], str]) -> dict[str, TableSpec]:
        if self.depends_on or self.identified != SIDES:
            return {}
        return {side: msgspec.structs.replace(self.seen(side), name=name(side)) for side in SIDES}

    @cached_property
    def numbered(self) -> TableSpec:
        """How many rows there were."""
        return numbers_table(self.partition_by)

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        ahead = [self.holding.ahead] if self.holding else []
        lost = [*self.back.values(), *self.gone.values()]
        return (*self.sides.values(), *map(self.seen, self.identified), self.numbered, *ahead, *lost)

    @cached_property
    def pane_schema(self) -> pa.Schema:
        """Keys, the window where there are windows, a time where times place rows, the columns of both sides, and the
        kind.
        """
        bounds = [pa.field(name, self.bound_type) for name in (START, END)] if self.windowed else []
        times = [] if self.by_offset else [pa.field(AT, TIME)]
        payload = [field for side in SIDES for field in self.payload(side)]
        kind = pa.field("kind", pa.dictionary(pa.int8(), pa.string()))
        return pa.schema([*self.pane_keys, *bounds, *times, *payload, kind])

    def panes(
        self, rows: dict[str, pa.Table], times: Values, kind: str, windows: tuple[Times, Times] | None
    ) -> pa.Table:
        """Panes of pairs, or of ``rows`` of one side: the columns of the other are null then.

        ``windows``: starts and ends, where panes name a window.
        """
        keyed = rows[LEFT] if LEFT in rows else rows[RIGHT]
        payload = [
            self._given_value(side, rows[side], field) if side in rows else pa.nulls(keyed.num_rows, field.type)
            for side in SIDES
            for field in self.payload(side)
        ]
        keys = [keyed[self.kept[name]] for name in self.never_null]
        bounds = [pa.array(bound).cast(self.bound_type) for bound in windows or ()]
        at = [] if self.by_offset else [times.cast(TIME)]
        columns = [*keys, *bounds, *at, *payload, constant(keyed.num_rows, kind, KINDS)]
        return pa.table(columns, schema=self.pane_schema)

    def _given_value(self, side: str, rows: pa.Table, field: pa.Field) -> pa.ChunkedArray:
        """A side's own column, from that of the table where it is kept as offset or origin."""
        kept = next((what for what in (OFFSET, ORIGIN) if self.given(side, what) == field.name), None)
        return rows[field.name] if kept is None else rows[kept].cast(field.type)

    def _store(self, side: str) -> MessageTables:
        offset, origin = self.given(side, OFFSET), self.given(side, ORIGIN)
        payload = [field for field in self.payload(side) if field.name not in (offset, origin)]
        return MessageTables(
            self.joined.layout(side),
            (*(Column(field.name, type_text(field.type)) for field in payload), *self.bookkeeping),
            equal=self.equal,
            session=self.session_key,
            time=str(self.mark_type),
            origin=type_text(self.input.schema.field(origin).type) if origin else "int8",
            name=side,
            partition_by=self.partition_by,
        )


def kept_columns(columns: tuple[Column, ...]) -> tuple[Column, ...]:
    """Key columns as tables have them."""
    return tuple(Column(kept_as(column.name), column.type, column.role) for column in columns)
