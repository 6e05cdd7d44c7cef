"""Window metadata: which windows there are, their offsets, how many messages they hold. Pure.

| table | fixed windows: key, forgets by | sessions: key, forgets by | values |
|---|---|---|---|
| ``windows`` | window start, key; start | key, window start; end | window end, count |
| ``windows_offsets`` | window start, key, origin; start | key, window start, origin; end | start and last offset |
| ``windows_ends`` | – | window end, key, window start; end | – |
| ``windows_refused`` | window start, key, offset, origin (or identity); start | – | – |

Offsets are comparable only within an origin, so they stand per origin; of identities without an order there are none.
Windows are half-open, ``[start, end)``: of times, or of offsets for tuple windows. Metadata and messages go into one
change set, so no last offset in here is later than the last message stored. ``windows_refused``: messages that a
window would hold by its bounds and has refused, while others took them. Source: Window Metadata in the Samza SQL
window operator design (SAMZA-552).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.plan.dues import keys_within
from tidestate.statestore.errors import UsageError, expect
from tidestate.statestore.messages.keys import KeyMeasure
from tidestate.statestore.messages.tables import IDENTITY
from tidestate.statestore.spec.changes import ChangeSet, Ranges, TableChanges
from tidestate.statestore.spec.lists import whole
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.spec.tables import TIME, Column, TableSpec
from tidestate.statestore.table.fold import combine

START, END = "window_start", "window_end"
_LEAST = -(2**63)


@dataclass(frozen=True)
class WindowTables:
    """What is kept of windows. ``size``: of fixed windows, in microseconds or offsets; None for sessions.

    Raises `UsageError` for a size below 1 or a session without key.
    """

    measure: KeyMeasure = "time"
    size: int | None = None
    key: tuple[Column, ...] = ()
    origin: str = "string"
    name: str = "windows"
    partition_by: tuple[str, ...] | None = None
    """The key columns by which windows go to state partitions, see `TableSpec`."""
    refuses: bool = False
    """Whether fixed windows may refuse messages that others of them take."""
    ordered: bool = True
    """Whether messages have offsets; else ``origin`` is the type of their identities."""

    def __post_init__(self) -> None:
        if self.size is not None and self.size < 1:
            raise UsageError("the size and slide of a window must be above 0", code="window-size", size=self.size)
        if self.size is None and not self.key:
            raise UsageError("sessions need a session key, key=; other windows a size", code="session-key")

    @property
    def sessions(self) -> bool:
        """Whether windows are sessions, of any length."""
        return self.size is None

    @cached_property
    def key_names(self) -> list[str]:
        """Names of the key columns."""
        return [column.name for column in self.key]

    @cached_property
    def windows(self) -> TableSpec:
        """One row a window and key."""
        count = Column("count", "int64", "count", "sum")
        return TableSpec(self.name, self._window, (self._end, count), self._expiry, partition_by=self.partition_by)

    @cached_property
    def offsets(self) -> TableSpec:
        """One row a window, key and origin: the smallest and the largest offset."""
        first = Column("start_offset", "int64", "start_offset", "min")
        last = Column("last_offset", "int64", "last_offset", "max")
        key = (*self._window, Column("origin", self.origin, "origin"))
        return TableSpec(
            f"{self.name}_offsets", key, (self._end, first, last), self._expiry, partition_by=self.partition_by
        )

    @cached_property
    def ends(self) -> TableSpec:
        """Sessions by their end: for firing."""
        return TableSpec(f"{self.name}_ends", (self._end, *self._window), (), END, partition_by=self.partition_by)

    @cached_property
    def refused(self) -> TableSpec:
        """The messages that a window has refused."""
        offset = (Column("offset", "int64", "offset"), Column("origin", self.origin, "origin"))
        key = (*self._window, *(offset if self.ordered else (Column(IDENTITY, self.origin, IDENTITY),)))
        return TableSpec(f"{self.name}_refused", key, (), self._expiry, partition_by=self.partition_by)

    @property
    def specs(self) -> tuple[TableSpec, ...]:
        """All tables, for the store."""
        more = ((self.ends,) if self.sessions else ()) + ((self.refused,) if self.refuses else ())
        return (*self.counted, *more)

    @property
    def counted(self) -> tuple[TableSpec, ...]:
        """The tables that say how many messages a window has taken, and which offsets."""
        return (self.windows, self.offsets) if self.ordered else (self.windows,)

    @property
    def _expiry(self) -> str:
        return END if self.sessions else START

    @property
    def _window(self) -> tuple[Column, ...]:
        start = Column(START, self._type, START)
        return (*self.key, start) if self.sessions else (start, *self.key)

    @property
    def _end(self) -> Column:
        return Column(END, self._type, END, "max")

    @property
    def _type(self) -> str:
        return str(TIME) if self.measure == "time" else "int64"


def add_messages(tables: WindowTables, batch: pa.Table) -> ChangeSet:
    """Messages of fixed windows into the metadata, as merges: nothing is read.

    ``batch`` has a row per message and window that holds it: ``window_start``, ``window_end``, the key, ``origin``,
    ``offset``. Give it stored messages only: a duplicate would count twice.
    """
    parts = zip(tables.counted, _partials(tables, batch), strict=True)
    return {spec.name: TableChanges(merge=rows) for spec, rows in parts}


def extend(tables: WindowTables, view: StateView, batch: pa.Table, replaced: pa.Table) -> ChangeSet:
    """Messages of sessions into the metadata. ``batch`` as in `add_messages`, its windows as they are after merging.

    ``replaced``: the rows of `WindowTables.windows` of stored sessions that grow or are merged with others, each
    once, and what they become, ``new_start`` and ``new_end``. They are deleted, and written with what they became.
    """
    rows, was = _partials(tables, batch), list[pa.Table | None]([None] * len(tables.counted))
    if replaced.num_rows:
        for place, (old, now) in enumerate(_moved(tables, view, replaced)):
            rows[place], was[place] = combine(tables.counted[place], pa.concat_tables([now, rows[place]])), old
    return {
        spec.name: TableChanges(delete=None if old is None else spec.conform_keys(old), put=spec.conform(put))
        for spec, old, put in zip(tables.specs, [*was, was[0]], [*rows, rows[0]], strict=True)
    }


def windows_expiry(tables: WindowTables, bound: int) -> dict[str, int]:
    """The bounds of all tables once windows that end at or before ``bound`` (microseconds, or an offset) go."""
    last = bound if tables.size is None else max(_LEAST, bound - tables.size)
    return dict.fromkeys((spec.name for spec in tables.specs), last)


def get_windows(tables: WindowTables, view: StateView, start: int, end: int) -> pa.Table:
    """Fixed windows that overlap ``[start, end)``, by start and key: one scan of their own range."""
    size = expect(tables.size, "sessions are found by their key")
    keys = keys_within(max(_LEAST, start - size), end - 1)
    return pa.concat_tables([tables.windows.no_rows, *view[tables.windows.name].scan(keys)])


def get_sessions(tables: WindowTables, view: StateView, requests: pa.Table) -> Ranges:
    """For each row of ``requests`` (key, ``start``, ``end``) the sessions that overlap ``[start, end)``, by start.

    A null bound is none. Reads the sessions of each key that start before ``end``.
    """
    kind = tables.windows.schema.field(START).type
    found = view[tables.windows.name].ranges(requests.select(tables.key_names), None, requests["end"].cast(kind))
    start = requests["start"].cast(kind).take(found.request_index)
    keep = pc.fill_null(pc.greater(found.rows[END], start), True)
    return Ranges(found.request_index.filter(whole(keep)), found.rows.filter(keep))


def ended_sessions(tables: WindowTables, view: StateView, upto: int) -> pa.Table:
    """Sessions that end at or before this, by end: key and bounds."""
    return pa.concat_tables([tables.ends.no_rows, *view[tables.ends.name].scan(keys_within(_LEAST, upto))])


def windows_replay_from(tables: WindowTables, views: Iterable[StateView]) -> pa.Table:
    """Of state partitions, per origin the start offset of the earliest window kept, and the last offset taken.

    A replay of each origin from there has the messages of every window that is still known.
    """
    if not tables.ordered:
        raise UsageError(
            "the identity of these messages has no order, so there is no offset to replay from: replay all of the "
            "source",
            code="identity-order",
        )
    return offset_ranges(tables.offsets, views, "start_offset", "last_offset")


def offset_ranges(spec: TableSpec, views: Iterable[StateView], first: str, last: str) -> pa.Table:
    """Of a table of state partitions, per origin the smallest of the offsets in the column ``first`` and the largest
    of those in ``last``, in the order of origins.
    """
    names = list(dict.fromkeys(["origin", first, last]))
    parts = [part.select(names) for view in views for part in view[spec.name].scan(folded=False)]
    known = pa.concat_tables([spec.no_rows.select(names), *parts])
    ranges = known.group_by(["origin"], use_threads=False).aggregate([(first, "min"), (last, "max")])
    ranges = ranges.select(["origin", f"{first}_min", f"{last}_max"])
    return ranges.rename_columns(["origin", "start_offset", "last_offset"]).sort_by("origin")


def _partials(tables: WindowTables, batch: pa.Table) -> list[pa.Table]:
    """Rows of the tables that count messages."""
    counted = batch.append_column("count", pa.array(np.ones(batch.num_rows, np.int64)))
    windows = combine(tables.windows, tables.windows.conform(counted))
    if not tables.ordered:
        return [windows]
    offset = batch["offset"]
    ranged = batch.append_column("start_offset", offset).append_column("last_offset", offset)
    return [windows, combine(tables.offsets, tables.offsets.conform(ranged))]


def _moved(tables: WindowTables, view: StateView, replaced: pa.Table) -> list[tuple[pa.Table, pa.Table]]:
    """Rows of the tables that count messages under their old key and end, and as they are now."""
    of_tables = [(replaced.select(tables.windows.schema.names), replaced)]
    if tables.ordered:
        offsets = view[tables.offsets.name].ranges(replaced.select(tables.windows.key_names))
        of_tables.append((offsets.rows, replaced.take(offsets.request_index)))
    return [(rows, _with_new_bounds(rows, becomes)) for rows, becomes in of_tables]


def _with_new_bounds(rows: pa.Table, becomes: pa.Table) -> pa.Table:
    for old, new in ((START, "new_start"), (END, "new_end")):
        place = rows.schema.get_field_index(old)
        rows = rows.set_column(place, old, becomes[new].cast(rows.schema.field(old).type))
    return rows
