"""Tables of a session join: the rows of each side, and the sessions that they are in.

| table | key | values | forgets by |
|---|---|---|---|
| ``left``, ``right`` | key, time, number | the side's columns | deleted with their session |
| ``sessions`` | key, window start | window end | window end |
| ``ends`` | window end, key, window start | – | window end |
| ``numbered`` | side | rows so far | – |

A row is stored once and never moved: sessions are intervals, and what lies in one is a range of its key. So a row
costs the same however large its session is. A number tells rows of one key and time apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from operators.assignment import assign, too_late
from operators.merging.description import SessionJoined
from operators.merging.names import ALONE, END, ENDS, NUMBER, NUMBERED, PLACE, SESSIONS, START, UNTIL
from operators.merging.session_step import session_step
from operators.plan import PANE_TIME, Flags, Intake, Plan
from operators.sides import AT, SIDE
from operators.transition import Moments, Transition
from operators.windows import Times
from statestore.errors import UsageError
from statestore.store import StateView
from statestore.tables import TIME, Column, TableSpec


@dataclass(frozen=True, kw_only=True)
class SessionJoinPlan(Plan):
    """A session join bound to the schema of its one stream."""

    joined: SessionJoined

    @cached_property
    def key_columns(self) -> tuple[Column, ...]:
        """Key columns of all tables; a constant where all rows are of one group."""
        return self.key_specs or (Column(ALONE, "int8", "key"),)

    @property
    def group_keys(self) -> list[str]:
        """Their names."""
        return [column.name for column in self.key_columns]

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
        key = (*self.key_columns, Column(PLACE, "int64"), Column(NUMBER, "int64"))
        return {
            side: TableSpec(side, key, tuple(Column(field.name, str(field.type)) for field in self.payload(side)))
            for side in self.joined.sides.names
        }

    @cached_property
    def sessions(self) -> TableSpec:
        """Sessions by their start."""
        return TableSpec(SESSIONS, (*self.key_columns, Column(START, "int64")), (Column(END, "int64"),), END)

    @cached_property
    def ends(self) -> TableSpec:
        """Sessions by their end."""
        return TableSpec(ENDS, (Column(END, "int64"), *self.key_columns, Column(START, "int64")), (), END)

    @cached_property
    def numbered(self) -> TableSpec:
        """How many rows there were."""
        return TableSpec(NUMBERED, (Column(SIDE, "string"),), (Column("count", "int64"),))

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """All state tables."""
        return (*self.rows.values(), self.sessions, self.ends, self.numbered)

    @cached_property
    def exchanged(self) -> TableSpec:
        """Rows with the end of the session that each would be by itself."""
        payload = [field for side in self.joined.sides.names for field in self.payload(side)]
        fields = [pa.field(SIDE, pa.string()), *payload]
        beside = (Column(PLACE, "int64"), Column(UNTIL, "int64"))
        return TableSpec("rows", self.key_columns, (*(Column(f.name, str(f.type)) for f in fields), *beside))

    @cached_property
    def pane_schema(self) -> pa.Schema:
        """Keys, the session, its last moment as ``time``, and both rows."""
        bounds = [pa.field(name, TIME) for name in (START, END, AT)]
        payload = [field for side in self.joined.sides.names for field in self.payload(side)]
        kind = pa.field("kind", pa.dictionary(pa.int8(), pa.string()))
        return pa.schema([*self.key_fields, *bounds, *payload, kind])

    def too_late(self, events: pa.Table, times: Times, watermark: int, *, feeding: bool) -> Flags:
        """Rows whose own session would be over."""
        return too_late(self, events, times, watermark, feeding=feeding)

    def arrive(self, accepted: pa.Table, times: Times, intake: Intake) -> pa.Table:
        """Rows with their times, in order."""
        _, _, ends = assign(self.kind, times, accepted)
        if not self.key_fields:
            accepted = accepted.append_column(ALONE, pa.array(np.zeros(len(times), np.int8)))
        for name, values in ((PLACE, times), (UNTIL, ends)):
            accepted = accepted.append_column(name, pa.array(values))
        return self.exchanged.conform(accepted)

    def step(self, view: StateView, arriving: pa.Table, at: Moments) -> Transition:
        """Sessions with what is new; pairs of those that are over."""
        return session_step(self, view, arriving, at)

    def released(self, watermark: int, column: str = AT) -> int:
        """No row to come, late ones included, has an earlier ``time``, or ``window_end``."""
        if column not in (AT, END, PANE_TIME):
            raise UsageError(
                "a session may have begun at any time: go by its end", code="chain-time", column=column, use=AT
            )
        return self.closed_at(watermark)
