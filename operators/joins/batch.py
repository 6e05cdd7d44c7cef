"""What a step has in hand: the new rows of each side, and pairs. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.progress.instants import OFFSET_LIMIT
from tidestate.statestore.arrays import Times
from tidestate.statestore.messages.tables import MESSAGE_TIME, OFFSET, ORIGIN
from tidestate.statestore.spec.arrowtypes import positions
from tidestate.statestore.spec.changes import TableChanges

GivenColumn = Callable[[str, str], str | None]
"""The column that holds the offset or origin of a side, where it is named."""
DUPLICATES = "duplicates"
"""Counts rows that are known already."""


@dataclass
class Admitted:
    """``rows`` of each side that take part, ``numbers`` of those before them, and what that changes."""

    rows: dict[str, pa.Table] = field(default_factory=dict)
    changes: dict[str, TableChanges] = field(default_factory=dict)
    rejected: list[pa.Table] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)

    def times(self, side: str) -> Times:
        """Event times of a side's rows."""
        return positions(self.rows[side][MESSAGE_TIME])

    def places(self, position: str, side: str) -> Times:
        """Their positions, in the column ``position``."""
        return positions(self.rows[side][position])

    def count(self, name: str, rows: int) -> None:
        """Add to a counter."""
        if rows:
            self.counters[name] = self.counters.get(name, 0) + rows


@dataclass(frozen=True)
class JoinedRows:
    """A row of each side, as their tables have them; ``places`` of those that are new, −1 of stored ones; and the
    ``ends`` of windows of both. All of equal length.
    """

    rows: dict[str, pa.Table]
    places: dict[str, Times]
    ends: Times | None = None

    def take(self, numbers: Times, ends: Times | None = None) -> JoinedRows:
        """Some of them."""
        index = pa.array(numbers)
        rows = {side: table.take(index) for side, table in self.rows.items()}
        ends = self.ends[numbers] if ends is None and self.ends is not None else ends
        return JoinedRows(rows, {side: place[numbers] for side, place in self.places.items()}, ends)


def kept_value(given: GivenColumn, side: str, rows: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    """A side's own column, also where it is kept as offset or origin; ``given`` is that of the tables."""
    places = {given(side, OFFSET): OFFSET, given(side, ORIGIN): ORIGIN}
    place = places.get(field.name)
    return rows[field.name] if place is None else rows[place].cast(field.type)


def bad_offsets(rows: pa.Table, offset: str, origin: str | None) -> pa.ChunkedArray | None:
    """Which rows say nothing of their place, by these columns; None where all do."""
    offsets = rows[offset]
    bad = pc.fill_null(pc.or_(pc.less(offsets, 0), pc.greater(offsets, OFFSET_LIMIT)), True)
    if origin:
        bad = pc.or_(bad, rows[origin].is_null())
    return bad if pc.any(bad).as_py() else None
