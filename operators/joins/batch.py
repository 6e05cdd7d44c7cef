"""The values that a step of a join passes on: admitted rows of each side, pairs, and lost rows. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from tidestate.statestore.arrays import Times
from tidestate.statestore.messages.tables import MESSAGE_TIME
from tidestate.statestore.spec.arrowtypes import positions
from tidestate.statestore.spec.changes import TableChanges


@dataclass
class Admitted:
    """New ``rows`` of each side as its table has them, and what admitting them changes.

    ``until``: by side, the position up to which each row is known; of a session join the end of the session that the
    row would be by itself. ``numbers``: how many rows there were so far, of what is counted.
    """

    rows: dict[str, pa.Table] = field(default_factory=dict)
    until: dict[str, Times] = field(default_factory=dict)
    changes: dict[str, TableChanges] = field(default_factory=dict)
    rejected: list[pa.Table] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)

    def times(self, side: str) -> Times:
        """Event times of a side's rows."""
        return positions(self.rows[side][MESSAGE_TIME])

    def count(self, name: str, rows: int) -> None:
        """Add so many rows to the counter ``name``; none add nothing."""
        if rows:
            self.counters[name] = self.counters.get(name, 0) + rows

    def reject(self, reason: str, rows: pa.Table) -> None:
        """Add ``rows`` of the ledger, and count them."""
        self.rejected.append(rows)
        self.count(reason, rows.num_rows)


@dataclass(frozen=True)
class JoinedRows:
    """A row of each side, as their tables have them; ``places`` of those that are new, −1 of stored ones; and the
    ``ends`` of windows of both. All of equal length.
    """

    rows: dict[str, pa.Table]
    places: dict[str, Times]
    ends: Times | None = None

    def take(self, numbers: Times, ends: Times | None = None) -> JoinedRows:
        """The pairs with these ``numbers``."""
        index = pa.array(numbers)
        rows = {side: table.take(index) for side, table in self.rows.items()}
        ends = self.ends[numbers] if ends is None and self.ends is not None else ends
        return JoinedRows(rows, {side: place[numbers] for side, place in self.places.items()}, ends)


@dataclass(frozen=True)
class LostRows:
    """``rows`` of each side that a replay puts back, what that ``changes``, and how many are missing still."""

    rows: dict[str, pa.Table]
    changes: dict[str, TableChanges]
    lacking: int
