"""Descriptions that make no sense, whatever the input. Checked when one is bound, before anything happens."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from tidestate.operators.aggregates.aggregate import inputs
from tidestate.operators.aggregates.timestamps import EndOfWindow
from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.describe.windowed import USUAL_US, Windowed
from tidestate.operators.describe.windows import Counted, Global, Rolling, Sessions, Sliding, Windows
from tidestate.operators.plan.plan import PANE_KIND
from tidestate.operators.progress.generators import IngestionTime
from tidestate.statestore.durations import text_of
from tidestate.statestore.errors import UsageError


def check_sense(description: Windowed) -> None:
    """Raises `UsageError` for settings that contradict each other; warns where panes do not add up."""
    _check_axis(description)
    _check_ledger(description)
    _check_order(description)
    _check_rolling(description)
    _check_triggers(description)
    _check_retention(description)
    if (
        isinstance(description.windows, Sessions)
        and description.mode != "retracting"
        and description.emits_unfinished
    ):
        warnings.warn(
            'sessions grow and merge, and only .accumulation("retracting") retracts what the earlier sessions had '
            "emitted",
            UserWarning,
            stacklevel=4,
        )


def check_signed(description: Runnable) -> None:
    """Raises `UsageError` for what cannot follow rows that are taken back."""
    for wrong, why, facts in _not_with_signs(description):
        if wrong:
            raise UsageError(f"its input retracts rows, {why}", code="signed", **facts)


def _not_with_signs(description: Runnable) -> Iterator[tuple[bool, str, dict[str, Any]]]:
    """What does not go with rows that are taken back, and what to do about it."""
    if not isinstance(description, Windowed):
        yield True, "and only windowed aggregates can apply retractions", {"operator": description.name}
        return
    kind, watermarks = description.windows, description.watermarks
    why = "and these windows cannot shrink: use tumbling, sliding or global ones, or those of the input"
    yield isinstance(kind, Sessions | Rolling) or _by_number(kind), why, {"window": type(kind).__name__}
    clocked = watermarks is not None and (watermarks.filters_rows or isinstance(watermarks.generator, IngestionTime))
    why = "each at its own event time: use the event time of the input as it is"
    yield description.processing_time or clocked, why, {}
    yield description.in_order, "in an order of its own: remove .in_order()", {}
    identity = description.known.identity if description.known is not None else ()
    why = (
        "and a row that takes another back may have the same identity, and would be left out as one that comes "
        "again: remove .messages(…), know messages by the origin and offset of the stream, or have the column kind "
        'in their identity, .messages(identity=(…, "kind"))'
    )
    other_identity = bool(identity) and PANE_KIND not in identity and identity != description.order
    yield other_identity, why, {"identity": identity}
    yield description.triggers.per_element, "so there is no n-th element: use a trigger by batch", {}
    columns = sorted({"kind", "timing", "last"} & {*inputs(description.aggregates.values()), *description.key})
    why = "and these columns differ between a pane and its retraction: remove them from keys and aggregates"
    yield bool(columns), why, {"columns": columns}


def _check_axis(description: Windowed) -> None:
    kind = description.windows
    if kind is not None and kind.by_offset:
        if description.offset is None:
            raise UsageError("windows of offsets need an offset column: stream(offset=…)", code="offset")
        if description.processing_time or description.watermark_delay_us:
            raise UsageError(
                "windows of offsets have no event time: remove processing_time= and watermark_delay=", code="offset"
            )
        if description.watermarks is not None:
            raise UsageError(
                "the watermark of windows of offsets follows the offsets: remove the watermark setting", code="offset"
            )
        chosen = (description.lateness_us, description.late_rule, description.future_tolerance_us)
        if chosen != (USUAL_US, "event", USUAL_US) and kind.numbered:
            raise UsageError(
                "a message keeps its number, so none can come between those that have one: remove "
                ".allowed_lateness(…); the late ledger has those that do",
                code="message-sessions",
                operator=description.name,
            )
        if chosen != (USUAL_US, "event", USUAL_US):
            raise UsageError(
                "set how many offsets may be late on the windows: offset_windows(…, late=…)", code="window-late"
            )
    elif description.event_time is None and not description.processing_time and kind is not None:
        raise UsageError(
            "name the event time column, stream(event_time=…), or set processing_time=True", code="event-time"
        )
    if description.processing_time and description.watermarks is not None:
        raise UsageError(
            "with processing time the clock is the watermark: remove the watermark setting", code="processing-time"
        )
    if description.processing_time and kind is None:
        raise UsageError(
            "these windows come with the input and are in event time: remove processing_time=", code="processing-time"
        )
    if _by_number(kind) and any(isinstance(one, EndOfWindow) for one in description.aggregates.values()):
        raise UsageError('these windows have no end in time: use "earliest" or "latest"', code="pane-timestamp")


def _check_ledger(description: Windowed) -> None:
    if description.ledger_timing and not isinstance(description.windows, Sliding):
        raise UsageError(
            "only tumbling and sliding windows, and windows of offsets, have a current window: remove window_timing=",
            code="window-timing",
            operator=description.name,
        )


def _check_order(description: Windowed) -> None:
    kind, watermarks = description.windows, description.watermarks
    ingested = watermarks is not None and isinstance(watermarks.generator, IngestionTime)
    if description.in_order and (description.processing_time or ingested or (kind is not None and kind.by_offset)):
        raise UsageError(
            ".in_order() needs an event time: remove it for processing time, ingestion time and windows of offsets",
            code="in-order",
        )


def _check_rolling(description: Windowed) -> None:
    if not isinstance(description.windows, Rolling):
        return
    if description.in_order:
        raise UsageError(
            "rolling windows have a pane for each time of an event, whose events are in the order of time already: "
            "remove .in_order()",
            code="rolling-window",
        )
    if description.triggers.per_element or description.triggers.when is not None:
        raise UsageError(
            "rolling windows begin with events that came before, which no trigger has seen one by one: use triggers "
            "by batch, without .when(…)",
            code="rolling-window",
        )


def _by_number(kind: Windows | None) -> bool:
    """Whether windows are of numbers or offsets."""
    return isinstance(kind, Counted) or (kind is not None and kind.by_offset)


def _check_triggers(description: Windowed) -> None:
    triggers, kind = description.triggers, description.windows
    by_event_time = triggers.early is not None and triggers.early.kind == "every_event_time"
    if by_event_time and (_by_number(kind) or isinstance(kind, Global)):
        raise UsageError(
            "these windows have no event time, so a trigger by event time never fires: use a trigger by count or "
            "processing time",
            code="trigger-window",
        )
    alone = triggers.early is None and triggers.when is None
    shows_late = triggers.late is not None or triggers.closing != "never"
    if alone and triggers.on_time == "never" and not shows_late:
        raise UsageError("these triggers never emit a pane: choose others", code="trigger-nothing")
    once = alone and not shows_late and not isinstance(kind, Sessions)
    if once and description.mode == "retracting":
        raise UsageError(
            "with these triggers every window emits one pane, so there is nothing to retract: remove "
            '.accumulation("retracting")',
            code="nothing-to-retract",
        )


def _check_retention(description: Windowed) -> None:
    retained, kind = description.retained, description.windows
    if retained is None:
        return
    if isinstance(kind, Global | Counted):
        raise UsageError(
            "count and global windows are kept until they are full, or for ever: remove the retention of windows",
            code="retention",
        )
    if kind is not None and kind.numbered:
        raise UsageError(
            "sessions of messages are over once they have fired, as no message can come late: remove the retention "
            "of windows",
            code="retention",
        )
    if isinstance(kind, Sessions) and kind.by_offset:
        raise UsageError(
            "sessions of offsets are kept as long as they accept offsets: set offset_sessions(…, late=…) and no "
            "retention",
            code="retention",
        )
    own_gaps = isinstance(kind, Sessions) and kind.gap_column is not None
    if own_gaps and description.late_rule == "window":
        raise UsageError(
            'with rule="window" and a gap column, a session may begin where one that is still kept began: give '
            'all sessions one gap, or use .allowed_lateness(rule="event")',
            code="retention",
        )
    if retained.windows is not None and not isinstance(kind, Sliding):
        raise UsageError(
            "only windows on a grid can be retained by number: retain these for a span", code="retention"
        )
    if kind is not None and kind.by_offset:
        if retained.span_us is not None:
            raise UsageError(
                "windows of offsets are retained by number: use .retain_windows(windows=…)", code="retention"
            )
    elif retained.span_us is not None and retained.span_us < description.lateness_us:
        raise UsageError(
            "windows must be retained at least as long as they accept late events: raise .retain_windows(…) or lower "
            "the allowed lateness",
            code="retention",
            retain=text_of(retained.span_us),
            lateness=text_of(description.lateness_us),
        )
