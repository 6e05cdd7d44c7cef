"""The state tables of a message store, and what a batch of messages must look like. Pure.

| table | key | values | forgets by |
|---|---|---|---|
| ``messages`` | as the layout says, then the origin, then what they are spread by | the other columns | position |
| ``messages_seen`` | offset, origin, or the identity | position | position |
| ``messages_marks`` | mark | at | never; two rows, four with a horizon |
| ``messages_sizes`` | slot of positions | count, bytes, newest time | position; only with a limit that needs it |

The **position** is the time, or the offset in layouts without a time. Offsets lead in ``messages_seen``, so the
identities of a batch are looked up within its range of offsets and not in everything that is known. An identity
without an order, as text, is one column in place of offset and origin.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from tidestate.statestore.arguments import called
from tidestate.statestore.errors import UsageError
from tidestate.statestore.messages.keys import Layout
from tidestate.statestore.missing_columns import missing_columns
from tidestate.statestore.spec.arrowtypes import is_ordered, is_position, type_text
from tidestate.statestore.spec.tables import TIME, Column, TableSpec

OFFSET, ORIGIN, MESSAGE_TIME = "offset", "origin", "time"
"""Columns every message has."""
IDENTITY = "identity"
"""In place of offset and origin where a message is known by a value without an order."""

BOUND_NAMES = ("start_time", "start_offset", "end_time", "end_offset")
"""Columns by which requests bound what they read."""


@called("a retention", "Retention(count=1_000_000)")
@dataclass(frozen=True)
class Retention:
    """How much a message store retains. All given limits apply; without any, everything is kept.

    ``time``: messages that are older than the newest one by more than this expire, in the unit of the time column
    (microseconds for ours). ``count``, ``bytes``: the newest messages up to this total, and those as old as the
    oldest of them. Positions are counted per ``slot`` of this many units: a wide slot makes the table of counts
    small; "as old" then means within the same slot, and whole slots expire.
    """

    time: int | None = None
    count: int | None = None
    bytes: int | None = None
    slot: int = 1

    def __post_init__(self) -> None:
        if any(limit is not None and limit < 1 for limit in (self.slot, self.count, self.bytes)):
            raise UsageError("a retention by size must keep at least one", code="message-retention", retention=self)
        if self.time is not None and (not isinstance(self.time, int) or self.time < 0):
            raise UsageError(
                "a retention by time must be a number of units of the time column, 0 or more",
                code="message-retention",
                time=self.time,
            )

    @property
    def by_size(self) -> bool:
        """Whether a size limits it."""
        return self.count is not None or self.bytes is not None


@dataclass(frozen=True)
class MessageTables:
    """What a message store keeps: its layout, its columns and its retention. Nothing in it is state.

    ``payload`` columns may have any type a state column may have. ``session`` and ``equal`` are the session key and
    the equality columns; like offset, origin and time they hold no null. The time column holds times, dates or
    integers. Raises `UsageError` when columns and layout do not fit.
    """

    layout: Layout
    payload: tuple[Column, ...]
    equal: tuple[Column, ...] = ()
    session: tuple[Column, ...] = ()
    retention: Retention = Retention()
    time: str = str(TIME)
    origin: str = "string"
    name: str = "messages"
    partition_by: tuple[str, ...] | None = None
    """The columns by which messages go to state partitions, see `TableSpec`; None: they stay in one."""

    def __post_init__(self) -> None:
        if self.layout.by_session != bool(self.session) or ("eq" in self.layout.parts and not self.equal):
            raise UsageError(
                "the session key and equal fields do not match the layout: declare the columns that the layout "
                "names, and a session key only if it has one",
                code="message-layout",
                layout=self.layout.name,
            )
        for column in (*self.session, *self.equal, Column(ORIGIN, self.origin)):
            if not is_ordered(column.arrow):
                raise UsageError("a key column cannot have this type: cast it", code="key-type", column=column.name)
        if taken := set(BOUND_NAMES) & {*self.session_names, *self.equal_names}:
            raise UsageError(
                "these names are used for the bounds of reads: choose other names", code="name-taken", names=taken
            )
        if not is_position(Column(MESSAGE_TIME, self.time).arrow):
            raise UsageError(
                "the time of messages must be a timestamp, a date or an integer", code="message-time", type=self.time
            )
        _ = self.messages  # a name that is taken twice is refused here, not at the first use

    @property
    def position(self) -> str:
        """The column that orders messages: time or offset."""
        return MESSAGE_TIME if self.layout.by_time else OFFSET

    @property
    def bounds(self) -> tuple[str, ...]:
        """The columns by which requests bound what they read."""
        parts = [name for name, there in (("time", self.layout.by_time), ("offset", self.layout.ordered)) if there]
        return tuple(f"{end}_{part}" for end in ("start", "end") for part in parts)

    @cached_property
    def identity_names(self) -> list[str]:
        """The columns of the identity, as messages of one position are ordered by them."""
        return self.seen.key_names

    @cached_property
    def lead(self) -> list[str]:
        """Key columns in front of the position."""
        return [column.name for part in self.layout.lead for column in self._parts[part]]

    @cached_property
    def equal_names(self) -> list[str]:
        """Names of the equality columns."""
        return [column.name for column in self.equal]

    @cached_property
    def session_names(self) -> list[str]:
        """Names of the columns of the session key."""
        return [column.name for column in self.session]

    @cached_property
    def schema(self) -> pa.Schema:
        """Columns of a batch, and of what is read: origin, offset, time, session key, equal fields, payload."""
        fixed = [self._origin, *self._parts["offset"], *self._parts["ts"]]
        return pa.schema([pa.field(c.name, c.arrow) for c in (*fixed, *self.session, *self.equal, *self.payload)])

    @cached_property
    def messages(self) -> TableSpec:
        """The table of the messages themselves: a row for each, by the key of the layout."""
        key = [*(column for part in self.layout.parts for column in self._parts[part]), self._origin]
        # A delete has the key alone, and must say whose it is.
        key += [column for column in self.equal if column.name in (self.partition_by or ()) and column not in key]
        rest = [column for part in ("ts", "eq") if part not in self.layout.parts for column in self._parts[part]]
        rest = [column for column in rest if column not in key]
        return TableSpec(self.name, tuple(key), (*rest, *self.payload), self.position, partition_by=self.partition_by)

    @cached_property
    def seen(self) -> TableSpec:
        """The identity index: every message ever stored, until its position is forgotten."""
        place = Column("position", type_text(self.schema.field(self.position).type))
        key = (*self._parts["offset"], self._origin)
        return TableSpec(f"{self.name}_seen", key, (place,), "position", **self._shared)

    @cached_property
    def marks(self) -> TableSpec:
        """How far the store has come: the newest time stored, and the bound of what is forgotten."""
        key, values = (Column("mark", "string"),), (Column("at", "int64", combiner="max"),)
        return TableSpec(f"{self.name}_marks", key, values, **self._shared)

    @cached_property
    def sizes(self) -> TableSpec:
        """Messages and bytes per slot of positions, with the newest time in the slot."""
        slot = Column("slot", type_text(self.schema.field(self.position).type))
        sums = (Column("count", "int64", combiner="sum"), Column("bytes", "int64", combiner="sum"))
        values = (*sums, Column("newest", "int64", combiner="max"))
        return TableSpec(f"{self.name}_sizes", (slot,), values, "slot", **self._shared)

    @property
    def counts_sizes(self) -> bool:
        """Whether the table of sizes is kept: for a limit by size, or by time where offsets order messages."""
        return self.retention.by_size or (self.retention.time is not None and not self.layout.by_time)

    @property
    def specs(self) -> tuple[TableSpec, ...]:
        """All tables, for the store."""
        return (self.messages, self.seen, self.marks, *((self.sizes,) if self.counts_sizes else ()))

    def conform(self, batch: pa.Table) -> pa.Table:
        """``batch`` with exactly the columns of `schema`. Raises `UsageError`; nothing has happened then."""
        missing = [name for name in self.schema.names if name not in batch.column_names]
        if missing:
            raise missing_columns("the messages lack columns that the store declares", missing, batch.column_names)
        try:
            rows = batch.select(self.schema.names).cast(self.schema)
        except (pa.ArrowException, ValueError) as error:
            raise UsageError(
                f"the messages have other types than the store declares ({error})", code="batch-type"
            ) from None
        nulls = [name for name in self._never_null if rows[name].null_count]
        if nulls:
            raise UsageError(
                "the origin, offset, time, session key and equal fields of a message must not be null: drop such "
                "rows",
                code="message-null",
                columns=nulls,
            )
        return rows

    @property
    def _shared(self) -> dict[str, Any]:
        """Tables whose rows name no key are those of all keys of a state partition."""
        return {"partition_by": self.partition_by, "shared": bool(self.partition_by)}

    @property
    def _never_null(self) -> list[str]:
        return [*self.identity_names, MESSAGE_TIME, *self.session_names, *self.equal_names]

    @property
    def _origin(self) -> Column:
        name = ORIGIN if self.layout.ordered else IDENTITY
        return Column(name, self.origin, name)

    @cached_property
    def _parts(self) -> dict[str, tuple[Column, ...]]:
        return {
            "session": self.session,
            "eq": self.equal,
            "ts": (Column(MESSAGE_TIME, self.time, "time"),),
            "offset": (Column(OFFSET, "int64", "offset"),) if self.layout.ordered else (),
            "id": (),
        }
