"""Lateness, triggers, retention and messages of a windowed aggregation, as the stored description of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar

from msgspec.structs import replace

from tidestate.operators.aggregates.functions import max_, min_
from tidestate.operators.aggregates.timestamps import EndOfWindow
from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.describe.sides import SIDE
from tidestate.operators.describe.windowed import KnownMessages, LateRule, Merge, Retained, Windowed
from tidestate.operators.describe.windows import PANE_TIME
from tidestate.operators.streams.settings import SpanOrRetention, retention_of
from tidestate.operators.streams.sides import columns_of
from tidestate.statestore.durations import Span, span_us
from tidestate.statestore.errors import UsageError

_W = TypeVar("_W", bound=Windowed)
TIMESTAMP = "timestamp"
"""The column that `Aggregation.pane_timestamp` adds."""
PaneTimestamp = Literal["end_of_window", "earliest", "latest"]


def with_allowed_lateness(
    made: _W,
    span: Span | None,
    rule: LateRule,
    ledger_columns: str | Sequence[str],
    future_tolerance: Span | None,
    window_timing: bool,
) -> _W:
    """`made`, which accepts events this far behind the watermark, and this far ahead. Raises `UsageError` for a
    negative span and an unknown rule.
    """
    allowed_us = None if span is None else span_us(span)
    future_us = span_us("60 seconds" if future_tolerance is None else future_tolerance)
    if (allowed_us or 0) < 0 or future_us < 0:
        raise UsageError("lateness and future tolerance must not be negative", code="lateness", allowed=span)
    if rule not in ("event", "window"):
        raise UsageError('rule= must be "event" or "window"', code="late-rule", found=repr(rule))
    return replace(
        made,
        allowed_lateness_us=allowed_us,
        late_rule=rule,
        ledger_columns=columns_of(ledger_columns),
        future_tolerance_us=future_us,
        ledger_timing=window_timing,
    )


def with_retained_windows(made: _W, span: Span | None, windows: int | None) -> _W:
    """`made`, which keeps closed windows for a span, or so many of them. Raises `UsageError` for neither."""
    retained_us = span_us(span) if span is not None else None
    whole = windows is None or (isinstance(windows, int) and not isinstance(windows, bool) and windows > 0)
    if (span is None and windows is None) or (retained_us is not None and retained_us < 0) or not whole:
        raise UsageError(
            "windows must be retained for a span of 0 or more, for a number of 1 or more, or for both",
            code="retention",
            span=span,
            windows=windows,
        )
    return replace(made, retained=Retained(retained_us, windows))


def with_messages(
    made: _W,
    identity: str | Sequence[str] | None,
    retain: SpanOrRetention | None,
    layout: str | None,
    equal: str | Sequence[str],
) -> _W:
    """`made`, which knows each message by its ``identity``: the origin columns and last the offset, by default those
    of the stream. Raises `UsageError` without an identity, and where not all sides of a merge have it.
    """
    columns = tuple(name for name in (made.origin, made.offset) if name) if identity is None else columns_of(identity)
    if not columns or len(set(columns)) != len(columns):
        raise UsageError(
            'an identity must be an offset column, with the columns of its origin before it: ("partition", "offset")',
            code="message-identity",
            found=columns,
        )
    if isinstance(made, Merge):
        if lacking := [name for name in columns if name not in (*made.sides.shared, SIDE)]:
            raise UsageError(
                "the identity of messages of several streams must be columns that all of them have: name them in "
                ".sharing(…)",
                code="message-identity",
                columns=lacking,
            )
        # Each side has offsets of its own.
        columns = (SIDE, *(name for name in columns if name != SIDE))
    chosen = retention_of(retain)
    by_offset = made.windows is not None and made.windows.by_offset
    kept = None if chosen is None else chosen.of_messages(by_offset=by_offset)
    return replace(made, known=KnownMessages(columns, kept, layout, columns_of(equal)))


def with_timestamp(made: _W, choice: PaneTimestamp, reads: Runnable | None) -> _W:
    """`made`, whose panes have this timestamp and no other; ``reads``: the one operator that it reads, if it is one.
    Raises `UsageError` for an unknown choice, and without an event time.
    """
    if choice not in ("end_of_window", "earliest", "latest"):
        raise UsageError(
            'the timestamp of panes must be "end_of_window", "earliest" or "latest"',
            code="pane-timestamp",
            found=repr(choice),
        )
    time = made.event_time or pane_time(reads)
    if choice != "end_of_window" and time is None:
        raise UsageError(
            '"earliest" and "latest" need an event time: name its column', code="pane-timestamp", found=choice
        )
    time = str(time)
    stamps = {"end_of_window": EndOfWindow(), "earliest": min_(time), "latest": max_(time)}
    if (own := made.aggregates.get(TIMESTAMP)) is not None and own not in stamps.values():
        raise UsageError(
            "the panes already have a result of this name: rename that result",
            code="aggregate-twice",
            names=[TIMESTAMP],
        )
    return replace(made, aggregates=made.aggregates | {TIMESTAMP: stamps[choice]})


def pane_time(description: Runnable | None) -> str | None:
    """The column of times that readers of panes have; None of what are no panes."""
    if not isinstance(description, Windowed):
        return None
    return TIMESTAMP if TIMESTAMP in description.aggregates else PANE_TIME
