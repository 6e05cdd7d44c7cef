"""Operators that pass rows on, as they are or with other times, at once or when the watermark passes them: held rows
are their one state. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.describe.altered import Altered
from tidestate.operators.describe.sides import AT
from tidestate.operators.expressions.tree import RowExpression
from tidestate.operators.plan.gaps import computed_spans_us
from tidestate.operators.plan.input_spec import Check, short_computed_spans
from tidestate.operators.plan.plan import PANE_KIND, Plan
from tidestate.operators.plan.reasons import BAD_WINDOW
from tidestate.operators.plan.transition import Transition
from tidestate.operators.progress.progress import Context
from tidestate.operators.progress.watermarks import moved_one
from tidestate.statestore.arrays import Flags, Times, with_column
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.spec.tables import TIME, TableSpec


@dataclass(frozen=True, kw_only=True)
class PassingPlan(Plan):
    """Rows go to state partitions by their time: evenly, and equal rows together."""

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        return self.held_tables

    @property
    def retracts(self) -> bool:
        return PANE_KIND in self.input.schema.names and not self.has_plain_rows

    def too_late(self, events: pa.Table, times: Times, watermark: int) -> Flags:
        """None: the reader of the rows decides what is too late."""
        return np.zeros(len(times), bool)

    def step(self, view: StateView, arriving: pa.Table, context: Context) -> Transition:
        return self.taking(view, arriving, context, self.passed)

    def passed(self, rows: pa.Table) -> Transition:
        """What becomes of rows whose turn it is."""
        counters = {"passed": rows.num_rows} if rows.num_rows else {}
        return Transition({}, rows.select(self.pane_schema.names), counters)


@dataclass(frozen=True)
class UnionPlan(PassingPlan):
    """The rows of all sides, which all have their time, the column ``time``."""

    has_plain_rows: bool = False

    @property
    def pane_schema(self) -> pa.Schema:  # type: ignore[override]
        return self.input.schema

    def output_watermark(self, watermark: int, column: str = AT) -> int:
        """No later row has an earlier time, except for rows that arrive behind ``watermark``."""
        if column != AT:
            raise UsageError(
                'the event time of a union must be the time of its rows: use the column "time"',
                code="chain-time",
                column=column,
                use=AT,
            )
        return watermark


@dataclass(frozen=True, kw_only=True)
class AlteredPlan(PassingPlan):
    """Rows get other times: moved, or with an end of their own."""

    altered: Altered
    shift: RowExpression | None = None
    """What says how far each row is shifted; None where all are by as much."""
    duration: RowExpression | None = None
    """What says how long each row lasts; None where all last as long, or keep their ends."""

    @property
    def held_by(self) -> tuple[str, ...]:
        return (self.input.event_time, *self.input.order)

    @property
    def own_checks(self) -> tuple[Check, ...]:
        """Each row has the spans that it is to bring: a shift of at least the bound, and a duration above 0."""
        spans = ((self.shift, self.altered.shift_us), (self.duration, 1))
        given = [(span, least_us) for span, least_us in spans if span is not None]
        return tuple((BAD_WINDOW, partial(short_computed_spans, span, least_us)) for span, least_us in given)

    @property
    def has_plain_rows(self) -> bool:
        return self.altered.signed is False

    @property
    def pane_schema(self) -> pa.Schema:  # type: ignore[override]
        end, schema = self.altered.end, self.input.schema
        return schema if end is None or end in schema.names else schema.append(pa.field(end, TIME))

    def passed(self, rows: pa.Table) -> Transition:
        """Their times are moved before they pass, and so are ends that they have."""
        about = self.altered
        shift = about.shift_us if self.shift is None else computed_spans_us(self.shift, rows)
        starts = _later(rows[self.input.event_time], shift)
        ends = None
        if about.end is not None and self.duration is not None:
            ends = _later(starts, computed_spans_us(self.duration, rows))
        elif about.end is not None and about.duration_us is not None:
            ends = _later(starts, about.duration_us)
        elif about.end is not None:
            ends = _later(rows[about.end], shift)
        rows = with_column(rows, self.input.event_time, starts)
        if about.end is not None and ends is not None:
            rows = with_column(rows, about.end, ends)
        return super().passed(rows)

    def output_watermark(self, watermark: int, column: str) -> int:
        """The watermark, shifted by no more than any row; a later row is behind it only if it arrived behind
        ``watermark``.
        """
        if column != self.input.event_time:
            return super().output_watermark(watermark, column)
        return moved_one(watermark, self.altered.shift_us)


def _later(times: pa.ChunkedArray, by_us: int | pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.add(times.cast(pa.int64()), by_us).cast(TIME)
