"""Joins by lifetime, unions, and single streams passed on, as the stored description of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidestate.operators.describe.altered import Altered
from tidestate.operators.describe.deduplicate import Deduplicate
from tidestate.operators.describe.overlap_join import OverlapJoin
from tidestate.operators.describe.union import Union
from tidestate.operators.expressions.builder import Expr, as_expr
from tidestate.operators.expressions.tree import ColumnNode, ExprNode
from tidestate.operators.streams.nodes import StreamView, WatermarkSettings
from tidestate.operators.streams.sides import (
    check_no_retractions,
    check_order,
    columns_of,
    delays_us,
    event_columns,
    orders_of,
    say_retractions,
    shared_order,
    sides_of,
    time_of,
    times_of,
)
from tidestate.operators.streams.watermarks import with_watermark, with_watermarks
from tidestate.statestore.durations import Span, span_us
from tidestate.statestore.errors import UsageError


def joined_by_lifetime(views: Mapping[str, StreamView], on: str | Sequence[str] | None, name: str) -> OverlapJoin:
    """Pairs of rows whose lifetimes overlap. Raises `UsageError` where a stream has no order."""
    if lacking := [side for side, view in views.items() if view.is_input and view.offset is None]:
        raise UsageError(
            "a join by lifetimes takes rows in the order of their offsets: name the column, stream(offset=…)",
            code="join-offset",
            sides=lacking,
        )
    sides = sides_of(times_of(views), columns_of(on))
    events = {}
    for (side, view), offset, origin in zip(views.items(), *orders_of(views, set(views)), strict=True):
        check_order(sides, side, offset, origin)
        order = tuple(sides.prefixed(side, column) for column in (origin, offset) if column)
        events[side] = event_columns(sides, side, order, view.lifetime)
    return with_watermarks(OverlapJoin(sides, columns_of(on), events, name=name), views, None)


def united(
    views: Mapping[str, StreamView], over: WatermarkSettings | None, in_order: bool | None, name: str
) -> Union:
    """Several streams as one. Raises `UsageError` where they do not go together."""
    offset, origin = shared_order(views)
    sides = sides_of(times_of(views), same_columns=True)
    waits = waits_for_ctis(*views.values()) if in_order is None else in_order
    signed = say_retractions(views) or None
    made = Union(sides, delays_us(views, over), offset, origin, waits, signed, name=name)
    return with_watermarks(made, views, over)


def waits_for_ctis(*views: StreamView) -> bool:
    """Whether rows are held unless they are to pass at once: StreamInsight's query "will release its result only up
    to the most recent CTI".
    """
    return any(view.follows_ctis for view in views)


def without_repetitions(
    view: StreamView,
    on: str | Sequence[str],
    within: Span | None,
    allowed_lateness: Span | None,
    in_order: bool | None,
    name: str,
) -> Deduplicate:
    """The first row with each value. Raises `UsageError` where the settings do not go together."""
    check_no_retractions(view)
    columns = columns_of(on)
    if not columns or len(set(columns)) != len(columns):
        raise UsageError("name the columns that identify a row, each once", code="key-columns", found=list(columns))
    within_us = None if within is None else span_us(within)
    allowed_us = None if allowed_lateness is None else span_us(allowed_lateness)
    if (within_us or 0) < 0:
        raise UsageError("the time to remember ids must not be negative", code="watermark-delay", within=within)
    if (allowed_us or 0) < 0:
        raise UsageError("lateness must not be negative", code="lateness", allowed=allowed_lateness)
    waits = waits_for_ctis(view) if in_order is None else in_order
    made = Deduplicate(
        time_of("input", view),
        columns,
        within_us,
        span_us(view.delay),
        waits,
        allowed_us,
        name=name,
        stages=view.stages,
    )
    return with_watermark(made, view)


def shifted(
    view: StreamView,
    by: Span | Expr,
    at_least: Span | None,
    duration: Span | Expr | None,
    end: str | None,
    in_order: bool | None,
    name: str,
) -> Altered:
    """Rows with other times. Raises `UsageError` where nothing changes."""
    time, ends = time_of("input", view), end or view.lifetime.end
    shift, lasting = row_span(by), row_span(duration)
    if at_least is not None and not shift.is_by_row:
        raise UsageError(
            "at_least= is of shifts that each row has of its own, by a column or an expression: remove it",
            code="altered",
            at_least=at_least,
        )
    shift_us = shift.span_us
    if shift_us is None:
        shift_us = 0 if at_least is None else span_us(at_least)
    if (lasting.span_us is not None and lasting.span_us <= 0) or (duration is not None and ends is None):
        raise UsageError(
            "duration= must be above 0 and needs the column of end times: end=",
            code="altered",
            duration=duration,
            end=ends,
        )
    spans = {column for column in (shift.column, lasting.column) if column is not None}
    if ends == time or not (shift_us or shift.is_by_row or duration is not None):
        raise UsageError("say what changes: by=, or duration= with end=", code="altered", end=ends)
    if wrong := sorted(spans & {time, ends}):
        raise UsageError("by= and duration= name a column of spans, not of times", code="altered", found=wrong)
    description = Altered(
        time,
        shift_us,
        ends,
        lasting.span_us,
        span_us(view.delay),
        view.offset,
        view.origin,
        shift.column,
        lasting.column,
        waits_for_ctis(view) if in_order is None else in_order,
        shift.expression,
        lasting.expression,
        view.retractions or None,
        name=name,
        stages=view.stages,
    )
    return with_watermark(description, view)


@dataclass(frozen=True)
class RowSpan:
    """A span of every row, in microseconds, or what says it of each row: a column, or an expression. At most one of
    them is there.
    """

    span_us: int | None = None
    column: str | None = None
    expression: ExprNode | None = None

    @property
    def is_by_row(self) -> bool:
        """Whether each row has its own."""
        return self.column is not None or self.expression is not None


def row_span(value: Span | Expr | None) -> RowSpan:
    """What a user gives as a span that rows may have of their own: a text that is no span names a column, and an
    expression that is a column alone is that column. Raises `UsageError` for what is none of these.
    """
    if value is None:
        return RowSpan()
    if isinstance(value, Expr) or type(value).__module__.startswith("pyspark."):
        tree = as_expr(value).tree
        return RowSpan(column=tree.name) if isinstance(tree, ColumnNode) else RowSpan(expression=tree)
    try:
        return RowSpan(span_us(value))
    except UsageError:
        if not isinstance(value, str) or not value:
            raise
        return RowSpan(column=value)
