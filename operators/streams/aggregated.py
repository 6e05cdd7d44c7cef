"""Windowed aggregation of what is read, as the stored description of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar

from msgspec.structs import replace

from tidestate.operators.aggregates.aggregate import Aggregate
from tidestate.operators.describe.merge import Merge, merge
from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.describe.triggers import Closing, EachElement, OnTime, Trigger
from tidestate.operators.describe.windowed import LateRule, Windowed, windowed
from tidestate.operators.describe.windows import PANE_TIME, Sessions, SlidingLifetimes, Windows
from tidestate.operators.streams.nodes import OperatorNode, StreamInput, StreamView, WatermarkSettings
from tidestate.operators.streams.watermarks import with_watermark, with_watermarks
from tidestate.statestore.durations import Span, span_us
from tidestate.statestore.errors import UsageError

_W = TypeVar("_W", bound=Windowed)
TIMESTAMP = "timestamp"
"""The column that `Aggregation.pane_timestamp` adds."""
FOLLOWING = Trigger("each_batch")
"""The late trigger where none is given: it looks when the others do."""
Evaluate = Literal["element", "batch"]


def aggregated(
    view: StreamView, keys: Sequence[str], windows: Windows | None, results: Mapping[str, Aggregate]
) -> Windowed:
    """One stream by keys and windows. Raises `UsageError` where they do not go together."""
    by_offset = windows is not None and windows.by_offset
    made = windowed(
        event_time=view.event_time,
        key=list(keys) or None,
        watermark_delay="0 seconds" if by_offset else view.delay,
        processing_time=view.processing_time,
        offset=view.offset,
        origin=view.origin,
    )
    if windows is not None:
        made = made.window(_of_lifetime(windows, [view]))
    made = with_watermark(_tolerant(made, [view]), view)
    return made.aggregate(**results)


def merged_aggregation(
    views: Mapping[str, StreamView],
    keys: Sequence[str],
    shared: Sequence[str],
    windows: Windows | None,
    results: Mapping[str, Aggregate],
    over: WatermarkSettings | None,
) -> Merge:
    """Several streams by keys and windows, in one state. Raises `UsageError` where they do not go together."""
    streams = list(views.values())
    kind = None if windows is None else _of_lifetime(windows, streams)
    ends = (kind.end,) if isinstance(kind, SlidingLifetimes) else ()
    offset, origin = shared_order(views)
    made = merge(
        event_time=[time_of(side, view) for side, view in views.items()],
        key=list(keys) or None,
        sides=list(views),
        shared=[name for name in dict.fromkeys((*shared, *ends)) if name not in keys],
        watermark_delay=delays(views, over),
        offset=offset,
        origin=origin,
    )
    if kind is not None:
        made = made.window(kind)
    made = with_watermarks(_tolerant(made, streams), views, over)
    return made.aggregate(**results)


def delays(views: Mapping[str, StreamView], over: WatermarkSettings | None) -> list[Span]:
    """The watermark delay of each side; nothing where one generator is over all, or some side has one of its own."""
    alone = over is None and all(view.delay == view.watermark_delay for view in views.values())
    return [view.watermark_delay if alone else "0 seconds" for view in views.values()]


def time_of(side: str, view: StreamView) -> str:
    """The event time of a side. Raises `UsageError` where it has none."""
    if view.time is None:
        raise UsageError(
            "streams meet by their event times: name it, stream(event_time=…)",
            code="event-time",
            side=side,
            stream=view.name,
        )
    return view.time


def shared_order(views: Mapping[str, StreamView]) -> tuple[str | None, str | None]:
    """Offset and origin that the rows of all sides have. Raises `UsageError` where only some name them."""
    orders = {(view.offset, view.origin) for view in views.values()}
    if len(orders) > 1:
        raise UsageError(
            "all streams name offset= and origin=, with the same columns, or none does",
            code="side-columns",
            sides=list(views),
            found=sorted({name for order in orders for name in order if name}),
        )
    return orders.pop()


def _of_lifetime(windows: Windows, views: Sequence[StreamView]) -> Windows:
    """Windows of lifetimes with the column of their ends."""
    if not isinstance(windows, SlidingLifetimes) or windows.end:
        return windows
    ends = {view.lifetime.end for view in views}
    if None in ends or len(ends) > 1:
        raise UsageError(
            'windows of="lifetime" need the lifetimes of the events: stream(…, lifetime=lifetime(end="…")), one '
            "column for all streams",
            code="side-columns" if len(ends) > 1 else "event-shape",
            found=sorted(str(end) for end in ends),
        )
    return replace(windows, end=str(ends.pop()))


def tolerance(nodes: Sequence[StreamInput | OperatorNode]) -> Span | None:
    """How far in the future events of these streams may be. Raises `UsageError` where they say different things."""
    spans = [
        node.future_tolerance for node in nodes if isinstance(node, StreamInput) and node.future_tolerance is not None
    ]
    if len({span_us(span) for span in spans}) > 1:
        raise UsageError(
            "one operator has one future tolerance: give all streams the same, or say it of the operator, "
            ".allowed_lateness(future_tolerance=…)",
            code="future-tolerance",
            found=spans,
        )
    return next(iter(spans), None)


def _tolerant(made: _W, views: Sequence[StreamView]) -> _W:
    chosen = tolerance([view.node for view in views])
    return made if chosen is None else replace(made, future_tolerance_us=_tolerance_us(chosen))


def _tolerance_us(chosen: Span) -> int:
    if (tolerance_us := span_us(chosen)) < 0:
        raise UsageError("a future tolerance cannot be negative", code="lateness", found=chosen)
    return tolerance_us


def set_lateness(
    made: _W,
    span: Span | None,
    rule: LateRule,
    ledger_columns: str | Sequence[str],
    future_tolerance: Span | None,
) -> _W:
    """`made`, whose lateness is this."""
    future = "60 seconds" if future_tolerance is None else future_tolerance
    return made.late(span, rule=rule, keep=ledger_columns, future=future)


def with_triggers(
    made: _W,
    early: Trigger | None,
    on_time: OnTime,
    late: Trigger | None,
    closing: Closing | None,
    when: Trigger | None,
    only_updated: bool,
    evaluate: Evaluate | None,
) -> _W:
    """`made`, which emits panes by these triggers alone."""
    # By identity: each_batch() that is written means that, and the default follows the others.
    triggers = [
        trigger for trigger in (early, late, when) if isinstance(trigger, Trigger) and trigger is not FOLLOWING
    ]
    by_element = any(isinstance(node, EachElement) for trigger in triggers for node in trigger.nodes)
    if evaluate not in (None, "element", "batch"):
        raise UsageError('evaluate= is "element" or "batch"', code="trigger-element", found=evaluate)
    if by_element and evaluate == "batch":
        raise UsageError('each_element() is a pane per element: leave evaluate="batch" out', code="trigger-element")
    if by_element and any(_once_a_batch(trigger) for trigger in triggers):
        raise UsageError("panes are made by element or by batch: give one of the two", code="trigger-element")
    chosen = evaluate or ("element" if by_element else "batch")
    if chosen == "element" and isinstance(made.windows, Sessions) and when is None:
        raise UsageError("sessions change as a whole with a batch", code="trigger-element")
    if chosen == "element" and made.offset is None:
        raise UsageError("a pane for each element needs an order: stream(offset=…)", code="trigger-element")
    return made.trigger(
        early=stored_trigger(early),
        on_time=on_time,
        late=stored_trigger(late),
        closing=closing,
        only_updated=only_updated,
        when=stored_trigger(when),
        per_element=chosen == "element",
    )


def _once_a_batch(trigger: Trigger) -> bool:
    return any(node.kind == "each_batch" and not isinstance(node, EachElement) for node in trigger.nodes)


def stored_trigger(trigger: Trigger | None) -> Trigger | None:
    """A trigger as a description stores it: whether it looks at each element is another setting."""
    if not isinstance(trigger, Trigger):
        return trigger
    if isinstance(trigger, EachElement):
        return Trigger("each_batch")
    return replace(trigger, of=tuple(_inside(part) for part in trigger.of))


def _inside(trigger: Trigger) -> Trigger:
    """A part of a composite, where each element is a count of one."""
    if isinstance(trigger, EachElement):
        return Trigger("after_count", count=1)
    return replace(trigger, of=tuple(_inside(part) for part in trigger.of))


def with_timestamp(made: _W, choice: Literal["end_of_window", "earliest", "latest"], read: Runnable | None) -> _W:
    """`made`, whose panes have this timestamp and no other. ``read``: the operator whose panes it reads, if any."""
    others = {name: aggregate for name, aggregate in made.aggregates.items() if name != TIMESTAMP}
    time = made.event_time or (None if read is None else pane_time(read))
    stamped = replace(made, aggregates=others, event_time=time).timestamps(choice)
    return replace(stamped, event_time=made.event_time)


def pane_time(description: Runnable) -> str | None:
    """The column of times that readers of panes have; None of what are no panes."""
    if not isinstance(description, Windowed):
        return None
    return TIMESTAMP if TIMESTAMP in description.aggregates else PANE_TIME
