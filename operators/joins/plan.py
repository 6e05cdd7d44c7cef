"""Tables of a join: the rows of each side that may still find a partner, and those that have found none yet.

| table | key | forgets by |
|---|---|---|
| ``left``, ``right`` | key, time, number | time |
| the same, in windows | key, window end, time, number | window end |
| ``waiting`` | due, side, key, window end, time, number | – |

``due`` is the watermark behind which no partner can come. A number tells rows of one key and time apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from operators.assignment import refused
from operators.joins.description import Joined
from operators.joins.names import DUE, NUMBER, NUMBERED, PLACE, SIDES, WAITING, WINDOW_END
from operators.joins.step import join_step
from operators.plan import Flags, Intake, Plan
from operators.sides import LEFT, RIGHT, SIDE
from operators.transition import BEGINNING_US, END_US, Moments, Transition
from operators.windows import Sliding, Times
from statestore.store import StateView
from statestore.tables import TIME, Column, TableSpec


@dataclass(frozen=True, kw_only=True)
class JoinPlan(Plan):
    """A join bound to the schema of its one stream."""

    joined: Joined

    @property
    def windows(self) -> Sliding | None:
        """The windows in which rows meet, where they do not by their distance."""
        return self.joined.windows

    def payload(self, side: str) -> list[pa.Field]:
        """Columns of a side's own."""
        return [field for field in self.input_schema if field.name.startswith(f"{side}_")]

    @cached_property
    def meeting(self) -> tuple[Column, ...]:
        """Columns in which partners agree."""
        ends = (Column(WINDOW_END, "int64"),) if self.windows else ()
        return (*self.key_specs, *ends)

    @cached_property
    def identity(self) -> tuple[Column, ...]:
        """Columns that tell the rows of a side apart."""
        return (*self.meeting, Column(PLACE, "int64"), Column(NUMBER, "int64"))

    @cached_property
    def sides(self) -> dict[str, TableSpec]:
        """The rows of each side."""
        expiry = WINDOW_END if self.windows else PLACE
        return {
            side: TableSpec(
                side,
                self.identity,
                tuple(Column(field.name, str(field.type)) for field in self.payload(side)),
                expiry,
            )
            for side in SIDES
        }

    @cached_property
    def waiting(self) -> TableSpec:
        """Rows of an outer join without a partner."""
        return TableSpec(WAITING, (Column(DUE, "int64"), Column(SIDE, "string"), *self.identity), ())

    @cached_property
    def numbered(self) -> TableSpec:
        """How many rows there were."""
        return TableSpec(NUMBERED, (Column("side", "string"),), (Column("count", "int64"),))

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """All state tables."""
        return (*self.sides.values(), self.waiting, self.numbered)

    @cached_property
    def exchanged(self) -> TableSpec:
        """Rows as they are."""
        rest = [field for field in self.input_schema if field.name not in self.key_names]
        return TableSpec("rows", self.key_specs, tuple(Column(field.name, str(field.type)) for field in rest))

    @cached_property
    def pane_schema(self) -> pa.Schema:
        """Keys, the window where there are windows, the time of the later row, and both rows."""
        bounds = [pa.field(name, TIME) for name in ("window_start", "window_end")] if self.windows else []
        payload = [field for side in SIDES for field in self.payload(side)]
        kind = pa.field("kind", pa.dictionary(pa.int8(), pa.string()))
        return pa.schema([*self.key_fields, *bounds, pa.field("time", TIME), *payload, kind])

    def keeps(self, side: str) -> bool:
        """Whether rows of a side are shown also without a partner."""
        return self.joined.how in (side, "full")

    def last_matchable(self, side: str, places: Times) -> Times:
        """The latest time of the other side that rows of a side at these times can meet; `END_US` for no bound."""
        lower, upper = self.joined.lower_us, self.joined.upper_us
        reach = upper if side == LEFT else None if lower is None else -lower
        return np.full(len(places), END_US) if reach is None else places + reach

    def dues(self, side: str, places: Times, ends: Times | None) -> Times:
        """The last watermark at which a partner may come, per row; ``ends`` of windows where there are any."""
        last = self.last_matchable(side, places) if ends is None else ends - 1
        return np.where(last == END_US, END_US, np.minimum(last, END_US - self.allowed_us) + self.allowed_us)

    def too_late(self, events: pa.Table, times: Times, watermark: int, *, feeding: bool) -> Flags:
        """Rows behind the watermark that no partner can come for any more."""
        is_left = np.asarray(pc.fill_null(pc.equal(events[SIDE], LEFT), False))
        ends = self.windows.assign(times) if self.windows else None
        if ends is not None:
            newest = np.full(len(times), BEGINNING_US)
            np.maximum.at(newest, ends[0], ends[2])
            late: Flags = (self.dues(LEFT, times, newest) < watermark) & (newest > BEGINNING_US)
            return late
        due = np.where(is_left, self.dues(LEFT, times, None), self.dues(RIGHT, times, None))
        # What is not behind the watermark may meet what is there, though nobody who comes.
        found: Flags = (due < watermark) & (times < self.closed_at(watermark))
        return found

    def refused(self, accepted: pa.Table, times: Times, watermark: int, *, feeding: bool) -> pa.Table | None:
        """A row per row and window in which nothing meets any more."""
        return refused(self, accepted, times, watermark, feeding=feeding) if self.overlapping else None

    def arrive(self, accepted: pa.Table, times: Times, intake: Intake) -> pa.Table:
        """Rows as they are, in order."""
        return self.exchanged.conform(accepted)

    def step(self, view: StateView, arriving: pa.Table, at: Moments) -> Transition:
        """Show what meets, remember the rest."""
        return join_step(self, view, arriving, at)
