"""The plan of a window operator: the general one, with the tables of messages and of window metadata. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from tidestate.operators.aggregates.aggregate import BoundAggregate
from tidestate.operators.aggregates.custom import BoundRows
from tidestate.operators.describe.windows import Counted, Global, Sessions, Sliding, Windows
from tidestate.operators.embedded.window_metadata import WindowTables
from tidestate.operators.windows.assignment import FIRST_US, LAST_US
from tidestate.operators.windows.names import NO_KEY
from tidestate.operators.windows.plan import WindowPlan
from tidestate.statestore.errors import UsageError, of_type
from tidestate.statestore.messages.keys import Layout
from tidestate.statestore.messages.tables import MESSAGE_TIME, OFFSET, ORIGIN, MessageTables, Retention
from tidestate.statestore.spec.changes import Ranges
from tidestate.statestore.spec.lists import nested
from tidestate.statestore.spec.tables import TIME, Column, TableSpec

NUMBER = "_number"
"""Of messages in counted windows: which of its key it is."""
METADATA = "metadata"
"""The name of the tables of window metadata."""
Read = Callable[[pa.Table], Ranges]
"""The messages of each of some windows: rows with window bounds and key, as the groups table has them."""


def _unread(windows: pa.Table) -> Ranges:
    raise UsageError("messages are read within a step only", code="message-range", windows=windows.num_rows)


@dataclass(frozen=True)
class FromMessages(BoundAggregate):
    """A function over the rows of a window, read from the message store when the window shows a pane."""

    rows: BoundRows
    columns: tuple[str, ...]
    """Of the message store, one for each that the function reads."""
    read: Read = _unread

    @property
    def state(self) -> tuple[Column, ...]:
        """Nothing of its own: the messages are the state."""
        return ()

    @property
    def result_type(self) -> pa.DataType:
        """As declared."""
        return self.rows.result_type

    def lift(self, events: pa.Table) -> list[pa.Array | pa.ChunkedArray]:
        """Nothing."""
        return []

    def finish(self, partials: pa.Table) -> pa.Array | pa.ChunkedArray:
        """By the function, over all messages of these windows in order of (time, offset, origin)."""
        found = self.read(partials)
        lengths = np.bincount(np.asarray(found.request_index), minlength=partials.num_rows).astype(np.int64)
        lists = [
            nested(found.rows[name].combine_chunks(), lengths, kept.arrow)
            for name, kept in zip(self.columns, self.rows.state, strict=True)
        ]
        return self.rows.finish(pa.table(lists, names=[column.name for column in self.rows.state]))


@dataclass(frozen=True, kw_only=True)
class OperatorPlan(WindowPlan):
    """``messages`` is None where nothing needs the messages again: then only their identities are kept."""

    origin: str
    offset: str
    identities: MessageTables
    messages: MessageTables | None
    metadata: WindowTables
    retention: Retention | None

    @property
    def has_parts(self) -> bool:
        """No: windows and their messages are read at intake."""
        return False

    @property
    def named_by(self) -> list[str]:
        """With the columns of its place in the input."""
        return [*super().named_by, self.origin, self.offset]

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """All state tables."""
        kept = self.messages.specs if self.messages else (self.identities.seen, self.identities.marks)
        return (*super().tables, *kept, *self.metadata.specs)

    @property
    def layout(self) -> Layout | None:
        """The key layout of the messages."""
        return self.messages.layout if self.messages else None

    def reading(self, read: Read) -> OperatorPlan:
        """The same plan with its functions over messages reading by ``read``."""
        given = tuple(replace(a, read=read) if isinstance(a, FromMessages) else a for a in self.aggregates)
        return replace(self, aggregates=given)

    def message_column(self, name: str) -> str:
        """What an input column is called in the message store."""
        return {self.event_time: MESSAGE_TIME, self.origin: ORIGIN, self.offset: OFFSET}.get(name, name)

    def as_messages(self, rows: pa.Table) -> pa.Table:
        """Input rows with the columns of the message store."""
        rows = rows.rename_columns([self.message_column(name) for name in rows.column_names])
        if self.by_offset:
            rows = rows.append_column(MESSAGE_TIME, rows[OFFSET].cast(TIME))
        if self.messages is not None and self.messages.layout.by_session and not self.key_names:
            rows = rows.append_column(NO_KEY, pa.array(np.zeros(rows.num_rows, np.int8)))
        return rows


def of_tuples(kind: Windows) -> bool:
    """Whether windows are of messages, by number or by offset."""
    return isinstance(kind, Counted) or kind.by_offset


def metadata_tables(kind: Windows, keys: tuple[Column, ...], origin: str) -> WindowTables:
    """Of windows of this kind, by these key columns, in the order of the windows' table."""
    if isinstance(kind, Sessions):
        return WindowTables("time", None, keys, origin=origin, name=METADATA)
    if of_tuples(kind):
        return WindowTables("tuple", _length(kind), keys, origin=origin, name=METADATA)
    size = LAST_US - FIRST_US if isinstance(kind, Global) else of_type(kind, Sliding).size
    return WindowTables("time", size, keys, origin=origin, name=METADATA)


def _length(kind: Windows) -> int:
    return kind.count if isinstance(kind, Counted) else of_type(kind, Sliding).size
