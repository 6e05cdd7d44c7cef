"""What session joins have in addition: tables of the sessions, and the rule of their rows. Pure.

| table | key | values | expires by |
|---|---|---|---|
| ``sessions`` | key, window start | window end | window end |
| ``ends`` | window end, key, window start | – | window end |
| ``moved``, see `session_rebuild` | key, window start | window end, which loss | window end |

A row is stored once and never moved: sessions are intervals, and the rows of one are a range of their table's key. So
a row costs the same however large its session is. A row is known until the session that it would be alone has closed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from tidestate.operators.describe.session_join import SessionJoin
from tidestate.operators.describe.sides import SIDES
from tidestate.operators.describe.windows import END, START
from tidestate.operators.joins.names import ENDS, MOVED, SESSIONS, SINCE, UNTIL
from tidestate.operators.joins.rule import JoinRule, Mark
from tidestate.operators.joins.tables import JoinTables, kept_columns
from tidestate.operators.progress.numbers import LoneOrigin
from tidestate.operators.progress.progress import Observer
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
from tidestate.operators.windows.names import NO_KEY
from tidestate.statestore.messages.tables import ORIGIN
from tidestate.statestore.spec.arrowtypes import type_text
from tidestate.statestore.spec.tables import Column, TableSpec


@dataclass(frozen=True)
class SessionRule(JoinRule):
    """Rows meet in a session; ``closed_at`` a watermark those are closed that end at or before its result."""

    closed_at: Callable[[int], int]

    def unknown(self, side: str, mark: Mark) -> int | None:
        return None if mark.watermark == BEGINNING_US else min(self.closed_at(mark.watermark), END_US - 1)

    def output_watermark(self, watermark: int) -> int:
        return self.closed_at(watermark)


@dataclass(frozen=True, kw_only=True)
class SessionJoinTables(JoinTables):
    """Columns and tables of a session join."""

    joined: SessionJoin
    equal_fields: tuple[pa.Field, ...] = ()
    """Columns by which rows of a session pair up, those of its key aside."""

    @property
    def observers(self) -> tuple[Observer, ...]:
        columns = {f"{side}/": self.given(side, ORIGIN) for side in SIDES if self.by_offset}
        named = {front: column for front, column in columns.items() if column is not None}
        return (LoneOrigin(named),) if named else ()

    @property
    def retracts(self) -> bool:
        """If rows may be late: one that is not is never of a session that was emitted."""
        return self.allowed_us > 0

    @property
    def meeting(self) -> SessionRule:
        return SessionRule(self.closed_at)

    @property
    def pane_keys(self) -> tuple[pa.Field, ...]:
        return (*self.input.key, *self.equal_fields)

    @cached_property
    def session_key(self) -> tuple[Column, ...]:
        """The key; a constant where all rows are in one group."""
        return kept_columns(self.input.key_specs) or (Column(NO_KEY, "int8", "key"),)

    @property
    def group_keys(self) -> list[str]:
        """Names of the columns of ``session_key``."""
        return [column.name for column in self.session_key]

    @cached_property
    def equal(self) -> tuple[Column, ...]:
        return kept_columns(tuple(Column(f.name, type_text(f.type), "key") for f in self.equal_fields))

    @property
    def computed(self) -> tuple[Column, ...]:
        """The end of the session that each row would be by itself."""
        return (Column(UNTIL, "int64"), *(() if self.input.key else self.session_key))

    @property
    def depends_on(self) -> str:
        """Of outer ones it is not known who was emitted alone."""
        outer = "which rows a session emitted without a partner depends on rows whose identities have expired"
        return "" if self.joined.how == "inner" else outer

    def may_meet(self, side: str, mark: Mark) -> int | None:
        return self.meeting.unknown(side, mark)

    def known_by(self, side: str) -> str:
        return UNTIL

    @cached_property
    def sessions(self) -> TableSpec:
        """The state table of open sessions by key and start, for finding the session of a row."""
        start, end = self._bounds
        return TableSpec(SESSIONS, (*self.session_key, start), (end,), END, partition_by=self.partition_by)

    @cached_property
    def ends(self) -> TableSpec:
        """The state table of open sessions by end, for finding those that are due."""
        start, end = self._bounds
        return TableSpec(ENDS, (end, *self.session_key, start), (), END, partition_by=self.partition_by)

    @cached_property
    def moved(self) -> TableSpec:
        """Sessions that fired before rows were lost, and are part of others since."""
        start, end = self._bounds
        values = (end, Column(SINCE, "int64"))
        return TableSpec(MOVED, (*self.session_key, start), values, END, partition_by=self.partition_by)

    @property
    def _bounds(self) -> tuple[Column, Column]:
        return Column(START, "int64", START), Column(END, "int64", END)

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        return (*super().tables, self.sessions, self.ends, *([self.moved] if self.back else []))
