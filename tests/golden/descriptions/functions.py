"""The user's own functions that recipes name."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.progress.generators import MaxEventTime
from tidestate.operators.progress.progress import SourceReading


class Slower:
    """A generator of watermarks of one's own."""

    column = "at"

    def read(self, events: pa.Table, now_us: int, *, source: str, by: str | None = None) -> SourceReading:
        """As the largest event time, a minute less."""
        return MaxEventTime(self.column, 60_000_000).read(events, now_us, source=source, by=by)


slower = Slower()


def lift(events: pa.Table) -> pa.Table:
    """The first column as state."""
    return pa.table({"total": pc.cast(events.column(0), pa.int64())})


def add(older: pa.Table, newer: pa.Table) -> pa.Table:
    """State of two parts."""
    return pa.table({"total": pc.add(older["total"], newer["total"])})


def total(state: pa.Table) -> pa.ChunkedArray:
    """State as a result."""
    return state["total"]


def spread(rows: pa.Table) -> int:
    """A value of the rows of one group."""
    return rows.num_rows


def spreads(rows: pa.Table) -> pa.Array:
    """A value of the rows of each group."""
    return pc.value_counts(rows["group"]).field("counts")
