"""The tables of a join. A row is stored once, in the message store of its side.

| table | key | forgets by |
|---|---|---|
| ``left``, ``right`` | as the side's message layout says | position |
| ``left_seen``, ``right_seen``, of sides that name offsets | offset, origin | position |
| ``waiting_left``, …, of sides that are shown alone | due, the row | – |
| ``alone_left``, … where they may be taken back | due, the row | due |
| ``held``, with update periods | due, order | due |
| ``numbered`` | what is counted | – |
| ``ahead``, where rows are held: `tidestate.operators.plan.held_rows` | time, number, key | time |

The **position** of a row is its time, or its offset where windows are of offsets. **Due** is the last watermark, or
position of the side, at which a partner may come, but for late ones. Where offsets are not named a running number
stands for them.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from tidestate.operators.describe.join import Join
from tidestate.operators.describe.sides import AT, LEFT, SIDES
from tidestate.operators.joins.batch import JoinedRows, kept_value
from tidestate.operators.joins.names import (
    DUE,
    FIRST,
    HELD_PAIRS,
    NUMBER,
    PHASE,
    SECOND,
    SENT,
    kept_as,
    unmatched_table,
    waiting,
)
from tidestate.operators.joins.rule import JoinRule
from tidestate.operators.plan.held_rows import numbers_table
from tidestate.operators.plan.plan import Plan
from tidestate.operators.plan.transition import KINDS, constant
from tidestate.statestore.arrays import Times
from tidestate.statestore.messages.keys import Layout
from tidestate.statestore.messages.tables import MESSAGE_TIME, OFFSET, ORIGIN, MessageTables
from tidestate.statestore.spec.arrowtypes import positions, type_text
from tidestate.statestore.spec.tables import TIME, Column, TableSpec


@dataclass(frozen=True, kw_only=True)
class JoinTables(Plan):
    """What the steps of a join know of it: columns, tables, and the rule by which rows meet."""

    joined: Join
    late_option = "late=…"

    @property
    def waits_by(self) -> str | None:
        """Allowed lateness; a window of each side goes by what is retained."""
        return super().waits_by if self.joined.own is None else None

    @property
    @abstractmethod
    def meeting(self) -> JoinRule:
        """Which rows meet."""

    @property
    def layouts(self) -> dict[str, Layout]:
        """The message key of each side."""
        return {side: self.joined.layout(side) for side in SIDES}

    @property
    def clocked(self) -> bool:
        """Whether time alone may show something: also pairs that were held."""
        return super().clocked or self.joined.held

    @property
    def overlapping(self) -> bool:
        """Whether a row may be too late for some of its windows, and not for others."""
        return super().overlapping and self.joined.occurrence == "each"

    def given(self, side: str, what: str) -> str | None:
        """The column that holds a side's ``offset`` or ``origin``, where it is named."""
        names = self.joined.offsets if what == OFFSET else self.joined.origins
        name = names[SIDES.index(side)]
        return None if name is None else self.joined.sides.prefixed(side, name)

    def payload(self, side: str) -> list[pa.Field]:
        """Columns of a side's own."""
        return [field for field in self.input_schema if field.name.startswith(f"{side}_")]

    @cached_property
    def equal(self) -> tuple[Column, ...]:
        """Key columns as the sides' tables have them: under another name where the message store has one like it."""
        return tuple(Column(kept_as(column.name), column.type, column.role) for column in self.key_specs)

    @property
    def equal_names(self) -> list[str]:
        """Their names."""
        return [column.name for column in self.equal]

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The key, as the sides' tables have it."""
        return tuple(self.equal_names)

    @cached_property
    def stores(self) -> dict[str, MessageTables]:
        """The messages of each side."""
        return {side: self._store(side) for side in SIDES}

    @cached_property
    def sides(self) -> dict[str, TableSpec]:
        """The rows of each side."""
        return {side: store.messages for side, store in self.stores.items()}

    @cached_property
    def identity(self) -> dict[str, tuple[Column, ...]]:
        """Columns that tell the rows of each side apart."""
        return {
            side: (
                *self.equal,
                Column(MESSAGE_TIME, str(TIME)),
                Column(OFFSET, "int64"),
                Column(ORIGIN, self.stores[side].origin),
            )
            for side in SIDES
        }

    @cached_property
    def waiting(self) -> dict[str, TableSpec]:
        """Rows without a partner, of sides that are shown alone."""
        due = Column(DUE, "int64")
        return {
            side: TableSpec(waiting(side), (due, *self.identity[side]), (), partition_by=self.partition_by)
            for side in SIDES
            if self.joined.keeps(side)
        }

    @cached_property
    def alone(self) -> dict[str, TableSpec]:
        """Rows that were shown alone and may be taken back."""
        return {
            side: TableSpec(unmatched_table(side), spec.key, (), DUE, partition_by=self.partition_by)
            for side, spec in self.waiting.items()
            if self.takes_back
        }

    @property
    def takes_back(self) -> bool:
        """Whether a late partner takes back what was shown alone."""
        return self.joined.unmatched == "close" and self.allowed_us > 0 and self.joined.how != "inner"

    @cached_property
    def held(self) -> TableSpec:
        """Pairs that wait for their update period."""
        order = (Column(name, "int64") for name in (DUE, PHASE, FIRST, SECOND, NUMBER))
        others = [field for field in self.pane_schema if field.name not in ("kind", *self.key_names)]
        values = tuple(Column(field.name, type_text(field.type)) for field in others)
        # The numbers are those of a state partition: without the key pairs of two might look alike in a third.
        return TableSpec(HELD_PAIRS, (*order, *self.key_specs), values, DUE, partition_by=tuple(self.key_names))

    @cached_property
    def numbered(self) -> TableSpec:
        """How many rows there were."""
        return numbers_table(self.partition_by)

    @property
    def identified(self) -> tuple[str, ...]:
        """Sides whose messages are known by their offsets."""
        return tuple(side for side in SIDES if self.given(side, OFFSET))

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """All state tables."""
        seen = [self.stores[side].seen for side in self.identified]
        held = [self.held] if self.joined.held else []
        ahead = [self.holding.ahead] if self.holding else []
        return (
            *self.sides.values(),
            *seen,
            *self.waiting.values(),
            *self.alone.values(),
            *held,
            self.numbered,
            *ahead,
        )

    @cached_property
    def exchanged(self) -> TableSpec:
        """Rows as they are."""
        rest = [field for field in self.input_schema if field.name not in self.key_names]
        key = self.key_specs or (Column(AT, str(TIME)),)
        names = [column.name for column in key]
        values = (Column(field.name, type_text(field.type)) for field in rest if field.name not in names)
        return TableSpec("rows", key, tuple(values))

    @cached_property
    def pane_schema(self) -> pa.Schema:
        """Keys, the window where there are windows, the time of the later row, and both rows."""
        bounds = [pa.field(name, TIME) for name in ("window_start", "window_end")] if self.joined.windows else []
        payload = [field for side in SIDES for field in self.payload(side)]
        kind = pa.field("kind", pa.dictionary(pa.int8(), pa.string()))
        return pa.schema([*self.key_fields, *bounds, pa.field("time", TIME), *payload, kind])

    def panes(self, pairs: JoinedRows) -> pa.Table:
        """Pairs as panes."""
        later = np.maximum(*(positions(pairs.rows[side][MESSAGE_TIME]) for side in SIDES))
        return self._rows(pairs.rows[LEFT], pairs.rows, pa.array(later).cast(TIME), pairs.ends, "emit")

    def rows_alone(self, side: str, rows: pa.Table, dues: Times, kind: str) -> pa.Table:
        """Rows of one side as panes; a window ends just after it is due."""
        return self._rows(rows, {side: rows}, rows[MESSAGE_TIME], dues + 1 if self.joined.windows else None, kind)

    def _rows(
        self,
        keyed: pa.Table,
        rows: dict[str, pa.Table],
        times: pa.Array | pa.ChunkedArray,
        ends: Times | None,
        kind: str,
    ) -> pa.Table:
        """Rows of panes; a side that is not in ``rows`` is null."""
        count = keyed.num_rows
        bounds = []
        if self.joined.windows is not None and ends is not None:
            bounds = [pa.array(ends - self.joined.windows.size).cast(TIME), pa.array(ends).cast(TIME)]
        payload = [
            kept_value(self.given, side, rows[side], field) if side in rows else pa.nulls(count, field.type)
            for side in SIDES
            for field in self.payload(side)
        ]
        keys = [keyed[name] for name in self.equal_names]
        columns = [*keys, *bounds, times, *payload, constant(count, kind, KINDS)]
        return pa.table(columns, schema=self.pane_schema)

    def _store(self, side: str) -> MessageTables:
        own = [name for what in (OFFSET, ORIGIN) if (name := self.given(side, what))]
        payload = [Column(field.name, type_text(field.type)) for field in self.payload(side) if field.name not in own]
        sent = [Column(SENT, "int64")] if self.joined.held else []
        origin = self.given(side, ORIGIN)
        return MessageTables(
            self.joined.layout(side),
            (*payload, *sent),
            equal=self.equal,
            origin=type_text(self.input_schema.field(origin).type) if origin else "int8",
            name=side,
            partition_by=self.partition_by,
        )
