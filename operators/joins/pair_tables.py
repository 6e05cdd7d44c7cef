"""What joins by distance and by windows have in addition: tables of rows without a partner, and of held pairs. Pure.

| table | key | expires by |
|---|---|---|
| ``waiting_left``, …, of sides that are emitted unmatched | due, the row | – |
| ``alone_left``, … where they may be retracted | due, the row | due |
| ``held``, with update periods | due, order | due |
| ``limited_left``, … where an outer join by distance is rebuilt: `.limits` | as ``left_seen`` | – |

**Due** is the last watermark, or position of the side, at which a partner may come, but for late ones; of held pairs
the processing time at which they are emitted.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from tidestate.operators.describe.join import Join
from tidestate.operators.describe.sides import AT, LEFT, RIGHT, SIDE, SIDES
from tidestate.operators.describe.windows import Sliding
from tidestate.operators.joins.batch import JoinedRows
from tidestate.operators.joins.names import (
    DUE,
    EMIT,
    FIRST,
    HELD_PAIRS,
    NUMBER,
    OVER,
    PHASE,
    SECOND,
    SENT,
    limited_table,
    unmatched_table,
    waiting,
)
from tidestate.operators.joins.rule import Mark, PairRule, mark_before
from tidestate.operators.joins.tables import JoinTables
from tidestate.operators.progress.maxima import SidePositions
from tidestate.operators.progress.numbers import LoneOrigin
from tidestate.operators.progress.positions import NewestPositions
from tidestate.operators.progress.progress import Context, Observer
from tidestate.statestore.arrays import Times
from tidestate.statestore.messages.tables import MESSAGE_TIME, OFFSET, ORIGIN
from tidestate.statestore.spec.arrowtypes import positions, type_text
from tidestate.statestore.spec.tables import TIME, Column, TableSpec


@dataclass(frozen=True, kw_only=True)
class PairTables(JoinTables):
    """Columns and tables of a join by distance or by windows."""

    joined: Join

    @property
    @abstractmethod
    def meeting(self) -> PairRule: ...

    @property
    def windowed(self) -> bool:
        return self.joined.windows is not None

    @property
    def observers(self) -> tuple[Observer, ...]:
        """Where each side has windows of its own, how far it has come; late rows move none."""
        if self.joined.own is None or self.reprocessing:
            return ()
        placed = tuple(map(self._placed, SIDES, self.joined.own))
        # Of two origins each has a first offset.
        aligned = {f"{side.side}/": self.given(side.side, ORIGIN) for side in placed if side.from_first}
        named = {front: column for front, column in aligned.items() if column is not None}
        newest = NewestPositions(placed, self.in_order)
        return (newest, LoneOrigin(named)) if named else (newest,)

    def _placed(self, side: str, windows: Sliding | None) -> SidePositions:
        """What places the rows of a side, and how exactly that counts."""
        named = (self.given(side, ORIGIN), self.given(side, OFFSET)) if self.joined.by_offset(side) else ()
        kept = self.joined.retained[SIDES.index(side)]
        exact = kept is not None and (kept.span_us, kept.messages) != (None, None)
        return SidePositions(side, SIDE, AT, tuple(name for name in named if name), windows, exact)

    @property
    def waits_by(self) -> str | None:
        """Allowed lateness; a window of each side goes by what is retained."""
        return super().waits_by if self.joined.own is None else None

    @property
    def clocked(self) -> bool:
        return super().clocked or self.joined.held

    @property
    def follows_sides(self) -> bool:
        """Whether rows wait for a partner until the windows of their own side have left them: then something may be
        due in each state partition once the newest position of a side moves.
        """
        return self.joined.own is not None and bool(self.waiting)

    @property
    def overlapping(self) -> bool:
        return super().overlapping and self.joined.occurrence == "each"

    @property
    def bookkeeping(self) -> tuple[Column, ...]:
        return (Column(SENT, "int64"),) if self.joined.held else ()

    @property
    def numbers_rows(self) -> bool:
        return super().numbers_rows or self.joined.held

    def with_bookkeeping(self, side: str, rows: pa.Table, context: Context) -> pa.Table:
        """Rows with the processing time from which each may be emitted, where pairs are held."""
        if not self.joined.held:
            return rows
        place = SIDES.index(side)
        update, late_update = self.joined.updates[place], self.joined.late_updates[place]
        where = positions(rows[self.stores[side].position])
        late = self.meeting.late(side, positions(rows[MESSAGE_TIME]), where, mark_before(context))
        dues = [period.next(context.now_us) if period else context.now_us for period in (late_update, update)]
        return rows.append_column(SENT, pa.array(np.where(late, *dues)))

    @cached_property
    def waiting(self) -> dict[str, TableSpec]:
        """Rows without a partner so far, of sides that are emitted unmatched."""
        return {side: self._unmatched(waiting(side), side, None) for side in SIDES if self.joined.keeps(side)}

    @cached_property
    def alone(self) -> dict[str, TableSpec]:
        """Rows that were emitted unmatched and may be retracted."""
        sides = self.waiting if self.retracts_unmatched else ()
        return {side: self._unmatched(unmatched_table(side), side, DUE) for side in sides}

    @property
    def retracts(self) -> bool:
        return self.retracts_unmatched

    @property
    def retracts_unmatched(self) -> bool:
        """Whether a late partner retracts a row that was emitted unmatched."""
        return self.joined.unmatched == "close" and self.allowed_us > 0 and self.joined.how != "inner"

    @cached_property
    def held(self) -> TableSpec:
        """Pairs that wait for their update period."""
        order = (Column(name, "int64") for name in (DUE, PHASE, FIRST, SECOND, NUMBER))
        others = [field for field in self.pane_schema if field.name not in ("kind", *self.input.key_names)]
        values = tuple(Column(field.name, type_text(field.type)) for field in others)
        # The numbers are those of a state partition: without the key, pairs of two could have equal ones in a third.
        return TableSpec(
            HELD_PAIRS, (*order, *self.input.key_specs), values, DUE, partition_by=tuple(self.input.key_names)
        )

    @property
    def depends_on(self) -> str:
        """Else every pair follows from its two rows alone."""
        joined = self.joined
        if joined.own is not None:
            return "which windows of each side are current depends on when its rows arrived"
        if joined.windows is not None and joined.windows.shares_events:
            return "in windows that overlap, which ones two rows share depends on when they arrived"
        return "with update periods, when a row may be sent depends on when it arrived" if joined.held else ""

    @property
    def may_stand(self) -> bool:
        return bool(self.replayable) and bool(self.waiting)

    def standing(self, context: Context) -> Context:
        """The times of a step, while rows of an outer join are missing: what expires and what is due stay as they
        were at the loss, and a replay meets others as it would have then.
        """
        if not self.stands:
            return context
        reached = self.mended_loss.watermark
        return context.reaching(reached if self.replaying else context.watermark_before, reached)

    @cached_property
    def limited(self) -> dict[str, TableSpec]:
        """Rows that have come since a loss and could not meet all older rows of the other side."""
        if not self.may_stand or self.joined.windows is not None:
            return {}
        values = (Column(OVER, "int64"),)
        return {
            side: TableSpec(limited_table(side), seen.key, values, shared=seen.shared, partition_by=seen.partition_by)
            for side, seen in self.back.items()
        }

    def may_meet(self, side: str, mark: Mark) -> int | None:
        return self.meeting.unreachable(side, mark)

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        held = [self.held] if self.joined.held else []
        more = (*self.waiting.values(), *self.alone.values(), *self.limited.values())
        return (*super().tables, *more, *held)

    def pair_panes(self, pairs: JoinedRows) -> pa.Table:
        """Panes of pairs, each with the time of the later row."""
        later = np.maximum(*(positions(pairs.rows[side][MESSAGE_TIME]) for side in (LEFT, RIGHT)))
        return self.panes(pairs.rows, pa.array(later), EMIT, self._windows(pairs.ends))

    def unmatched_panes(self, side: str, rows: pa.Table, dues: Times, kind: str) -> pa.Table:
        """Panes of rows of one side; a window ends just after it is due."""
        return self.panes({side: rows}, rows[MESSAGE_TIME], kind, self._windows(dues + 1))

    def _windows(self, ends: Times | None) -> tuple[Times, Times] | None:
        if self.joined.windows is None or ends is None:
            return None
        return ends - self.joined.windows.size, ends

    def _unmatched(self, name: str, side: str, expiry: str | None) -> TableSpec:
        """A table of rows of a side by when they are due, with the columns that tell them apart."""
        origin = Column(ORIGIN, self.stores[side].origin)
        row = (*self.equal, Column(MESSAGE_TIME, str(TIME)), Column(OFFSET, "int64"), origin)
        return TableSpec(name, (Column(DUE, "int64"), *row), (), expiry, partition_by=self.partition_by)
