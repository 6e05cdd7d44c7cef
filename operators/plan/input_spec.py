"""What an operator reads, and the conditions that rows must meet before it takes them: the late ledger has the reason
of one that does not. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.aggregates.aggregate import KIND
from tidestate.operators.describe.windows import NamedWindow, Sessions, Sliding, Windows
from tidestate.operators.expressions.tree import RowExpression
from tidestate.operators.plan.gaps import computed_spans_us, spans_us
from tidestate.operators.plan.reasons import BAD_WINDOW
from tidestate.operators.plan.stages import Stages
from tidestate.operators.progress.watermarks import LIMIT_US, OFFSET_LIMIT, Watermarks
from tidestate.statestore.arrays import Flags, Times
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.arrowtypes import type_text
from tidestate.statestore.spec.tables import Column
from tidestate.statestore.table.validation import too_long

TOUCHED_LIMIT = 100_000
"""The number of windows that the lifetime of an event may touch."""


Check: TypeAlias = tuple[str, Callable[[pa.Table, Times], Flags]]
"""A condition that rows must meet: why those that fail it are in the late ledger, and which of these events, at these
times, fail it, of shape ``(events,)``; of length 0 if none does. Tasks get it pickled, so it is a function of some
module, or a partial of one.
"""


def any_null(columns: Sequence[str], events: pa.Table, _times: Times) -> Flags:
    """Rows with a null in any of ``columns``."""
    return nulls_in(events, columns)


def too_long_keys(columns: Sequence[str], events: pa.Table, _times: Times) -> Flags:
    """Rows whose key does not fit in the index of a store."""
    return too_long(events.select(list(columns)))


def beyond_range(_events: pa.Table, times: Times) -> Flags:
    """Rows whose times have no room for the size of any window before and after them."""
    if not len(times) or (times.max() <= LIMIT_US and times.min() >= -LIMIT_US):
        return np.zeros(0, bool)
    return (times > LIMIT_US) | (times < -LIMIT_US)


def misplaced(order: Sequence[str], events: pa.Table, _times: Times) -> Flags:
    """Rows without a place in the ``order`` of messages, whose last column is the offset."""
    return without_place(events, order)


def wrong_lifetimes(kind: Sliding, end: str, events: pa.Table, times: Times) -> Flags:
    """Rows that have an ``end`` which is not behind their start, or touch more than `TOUCHED_LIMIT` windows; of
    length 0 if there are none.
    """
    ends = events[end].cast(pa.int64())
    last = pc.fill_null(ends, 0).to_numpy()
    # Far times would leave int64; a start of that kind has a reason of its own.
    lasts, firsts = (np.clip(edge, -LIMIT_US, LIMIT_US) for edge in (last, times))
    many = (lasts - firsts) // kind.slide > TOUCHED_LIMIT
    bad = ~ends.is_null().to_numpy() & (times == firsts) & ((last <= times) | many | (last != lasts))
    return bad if bad.any() else np.zeros(0, bool)


def short_spans(column: str, least_us: int, events: pa.Table, _times: Times) -> Flags:
    """Rows whose span in ``column`` is not there, or below ``least_us``."""
    return _below(spans_us(events[column]), least_us)


def short_computed_spans(span: RowExpression, least_us: int, events: pa.Table, _times: Times) -> Flags:
    """Rows of which no span is computed, or one below ``least_us``."""
    return _below(computed_spans_us(span, events), least_us)


def _below(spans: pa.ChunkedArray, least_us: int) -> Flags:
    bad: Flags = ~np.asarray(pc.fill_null(pc.greater_equal(spans, least_us), False))
    return bad if bad.any() else np.zeros(0, bool)


def wrong_bounds(signed: bool, events: pa.Table, _times: Times) -> Flags:
    """Rows that name a window whose start is not before its end. Raises `UsageError` for a retraction, unless the
    operator applies these (``signed``).
    """
    kinds = KIND in events.column_names and not signed
    if kinds and pc.any(pc.equal(events[KIND].cast(pa.string()), "retract")).as_py():
        raise UsageError(
            'some of these rows have a column kind that says "retract", as panes have that are taken back, and would '
            "be counted: read an operator that accumulates and emits each window once, say "
            "stream(…, retractions=True), or give a column of your own another name",
            code="retractions",
        )
    bad: Flags = ~np.asarray(pc.fill_null(pc.less(events["window_start"], events["window_end"]), False))
    return bad if bad.any() else np.zeros(0, bool)


def window_checks(kind: Windows, *, signed: bool) -> tuple[Check, ...]:
    """What rows of windows must meet that they bring themselves: lifetimes, gaps, or whole windows."""
    if isinstance(kind, Sliding) and kind.end_column is not None:
        return ((BAD_WINDOW, partial(wrong_lifetimes, kind, kind.end_column)),)
    if isinstance(kind, Sessions) and kind.gap_column is not None:
        return ((BAD_WINDOW, partial(short_spans, kind.gap_column, 1)),)
    return ((BAD_WINDOW, partial(wrong_bounds, signed)),) if isinstance(kind, NamedWindow) else ()


def without_place(events: pa.Table, order: Sequence[str]) -> Flags:
    """Rows whose offset, the last column of ``order``, is none, or that lack a column; of length 0 if none do."""
    offsets = events[order[-1]]
    # A larger offset could not be a watermark.
    negative = np.asarray(pc.fill_null(pc.or_(pc.less(offsets, 0), pc.greater(offsets, OFFSET_LIMIT)), True))
    nulls = nulls_in(events, order)
    bad = negative | nulls if len(nulls) else negative
    return bad if bad.any() else np.zeros(0, bool)


def nulls_in(events: pa.Table, columns: Sequence[str]) -> Flags:
    """Rows with a null in any of ``columns``; of length 0 if there are none."""
    mask: Flags = np.zeros(0, bool)
    for name in columns:
        if events[name].null_count:
            nulls = events[name].is_null().to_numpy()
            mask = nulls if not len(mask) else mask | nulls
    return mask


FUTURE_US = 60_000_000
"""The default distance ahead of all events before it from which an event is counted as future."""


@dataclass(frozen=True, kw_only=True)
class InputSpec:
    """The rows of an operator's input, and who says how far they have come."""

    schema: pa.Schema
    """The columns that are read, as tables can hold them, then those in ``added``."""
    event_time: str
    """The column of event times, or of offsets that stand for them: watermark and lateness are offsets then, too."""
    key: tuple[pa.Field, ...]
    """Its hash chooses the state partition of a row; a null in it rejects the row."""
    watermarks: Watermarks
    order: tuple[str, ...] = ()
    """The columns that order messages: (origin, offset), (offset,), or none."""
    added: tuple[str, ...] = ()
    """Columns that the operator adds: the processing time, or the last instant of a window."""
    signed: bool = False
    """Whether rows take earlier ones back."""
    future_us: int = FUTURE_US
    """How far ahead of all rows before it a row counts as one of the future."""
    upstream_delay_us: int = 0
    """The longest watermark delay of the operators that it reads."""
    stages: Stages | None = None
    """What happens to rows before they have the columns of ``schema``; None: nothing."""

    @cached_property
    def key_names(self) -> list[str]:
        """Names of the key columns."""
        return [field.name for field in self.key]

    @cached_property
    def key_specs(self) -> tuple[Column, ...]:
        """The key columns of state tables."""
        return tuple(Column(field.name, type_text(field.type), "key") for field in self.key)

    @property
    def read_names(self) -> list[str]:
        """The columns that are read from the input."""
        return self.read_schema.names

    @property
    def read_schema(self) -> pa.Schema:
        """The columns that are read from the input, with their types: before all stages."""
        if self.stages is not None:
            return self.stages.read_schema
        return pa.schema([field for field in self.schema if field.name not in self.added])

    @property
    def delay_us(self) -> int:
        """How far the watermark stays behind the newest event."""
        return max(self.watermarks.delay_us, self.upstream_delay_us)
