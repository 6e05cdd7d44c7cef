"""The message store: every message once, until it is forgotten. Pure functions from a view of state to changes.

A message is known by **(origin, offset)**. The first one stored wins, whatever a redelivery says. The identity
index remembers (origin, offset) with the position of the message, as puts into a table that forgets by that
position: a message and its identity are forgotten together. A replay of a forgotten message lies at or below the
bound and is refused as out of retention. Cost: one look-up of the batch's identities within its range of offsets,
and one index row a message (two int64 and the origin).

Nothing here applies anything: all changes of a step are applied as one change set.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidestate.statestore.messages.identities import first_of_each, is_known, remember
from tidestate.statestore.messages.reads import messages_for
from tidestate.statestore.messages.retention import Marks, read_marks, retention_bound, slot_bound, tally
from tidestate.statestore.messages.tables import MESSAGE_TIME, MessageTables
from tidestate.statestore.spec.arrowtypes import positions
from tidestate.statestore.spec.changes import ChangeSet, TableChanges
from tidestate.statestore.spec.store import StateView

STORED, DUPLICATE, OUT_OF_RETENTION = 0, 1, 2
"""What became of a message."""


@dataclass(frozen=True)
class Added:
    """``changes`` to apply, ``stored``: the new messages, ``verdicts`` on all rows of the batch, shape (rows,)."""

    changes: ChangeSet = field(repr=False)
    stored: pa.Table = field(repr=False)
    verdicts: npt.NDArray[np.int8] = field(repr=False)

    @property
    def counters(self) -> dict[str, int]:
        """How many rows of the batch were stored, were duplicates, were out of retention."""
        stored, duplicates, out = np.bincount(self.verdicts, minlength=3).tolist()
        return {"stored": stored, "duplicates": duplicates, "out_of_retention": out}


def add(tables: MessageTables, view: StateView, batch: pa.Table, *, expire: int | None = None) -> Added:
    """Take ``batch`` (columns of ``tables.schema``, any order) in, and forget what retention or ``expire`` says.

    Rows are judged one after the other, against the bound before the batch: known ones are duplicates, then those
    at or below the bound are out of retention, the others are stored. A message that the batch itself makes too old
    counts as stored, and is gone. Raises `UsageError` for missing columns, other types or nulls in the key.
    """
    rows = tables.conform(batch)
    marks = read_marks(tables, view)
    verdicts = _judge(tables, view, rows, marks.bound)
    stored = rows.filter(pa.array(verdicts == STORED))
    newest = [t for t in (marks.newest, _greatest(stored[MESSAGE_TIME])) if t is not None]
    after = Marks(max(newest, default=None), _bound(tables, view, stored, max(newest, default=None), marks, expire))
    return Added(_taken_in(tables, stored, marks, after), stored, verdicts)


def expire_messages(tables: MessageTables, view: StateView, bound: int) -> ChangeSet:
    """Forget messages with a position (time, or offset) at or below ``bound``. A bound never goes back."""
    marks = read_marks(tables, view)
    after = Marks(marks.newest, bound if marks.bound is None else max(bound, marks.bound))
    return _taken_in(tables, tables.schema.empty_table(), marks, after)


def retire(tables: MessageTables, view: StateView, requests: pa.Table) -> ChangeSet:
    """Delete the messages that each of ``requests`` would read (see `messages_for`), at once and for good.

    Their identities stay known until their position is forgotten, so a replay does not bring them back.
    """
    found = messages_for(tables, view, requests).rows
    once = first_of_each(found.select(tables.seen.key_names)) == np.arange(found.num_rows)
    rows = found.filter(pa.array(once))
    changes = {tables.messages.name: TableChanges(delete=tables.messages.conform_keys(rows))}
    if tables.counts_sizes:
        changes[tables.sizes.name] = TableChanges(merge=tally(tables, rows, -1))
    return changes


def _judge(tables: MessageTables, view: StateView, rows: pa.Table, bound: int | None) -> npt.NDArray[np.int8]:
    """The verdict on each row, as if they came one by one."""
    known = is_known(view, tables.seen, rows)
    fresh = np.ones(rows.num_rows, bool) if bound is None else positions(rows[tables.position]) > bound
    first, place = first_of_each(rows.select(tables.seen.key_names), fresh & ~known), np.arange(rows.num_rows)
    verdicts = np.where(place > first, DUPLICATE, OUT_OF_RETENTION).astype(np.int8)
    verdicts[place == first] = STORED
    verdicts[known] = DUPLICATE
    return verdicts


def _greatest(column: pa.ChunkedArray) -> int | None:
    return int(positions(column).max()) if len(column) else None


def _bound(
    tables: MessageTables, view: StateView, stored: pa.Table, newest: int | None, marks: Marks, asked: int | None
) -> int | None:
    """The bound after the batch: the furthest of what was, what is asked and what retention says."""
    added = tally(tables, stored) if tables.counts_sizes else tables.sizes.schema.empty_table()
    kept = retention_bound(tables, view, added, newest) if stored.num_rows else None
    return max((bound for bound in (marks.bound, asked, kept) if bound is not None), default=None)


def _taken_in(tables: MessageTables, stored: pa.Table, marks: Marks, after: Marks) -> ChangeSet:
    """Changes of all tables that store messages and forget up to the new bound."""
    bound = after.bound
    if bound is not None and stored.num_rows:
        # What is forgotten in the same step need not be written.
        stored = stored.filter(pa.array(positions(stored[tables.position]) > bound))
    moved = bound if bound != marks.bound else None
    changes = {
        tables.messages.name: TableChanges(put=tables.messages.conform(stored), expire=moved),
        tables.seen.name: remember(tables.seen, stored, stored[tables.position], moved),
        tables.marks.name: marks.changed_to(tables, after),
    }
    if tables.counts_sizes:
        slots = None if moved is None else slot_bound(tables, moved)
        changes[tables.sizes.name] = TableChanges(merge=tally(tables, stored), expire=slots)
    return {name: change for name, change in changes.items() if change.layers() or change.expire is not None}
