"""Windowed aggregation of what is read, as the stored description of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from msgspec.structs import replace

from tidestate.operators.aggregates.aggregate import Aggregate
from tidestate.operators.aggregates.stored import StoredAggregate
from tidestate.operators.describe.sides import AT
from tidestate.operators.describe.windowed import Merge, Windowed
from tidestate.operators.describe.windows import SlidingLifetimes, Windows
from tidestate.operators.streams.nodes import OperatorNode, StreamInput, StreamView, WatermarkSettings
from tidestate.operators.streams.sides import delays_us, say_retractions, shared_order, sides_of, times_of
from tidestate.operators.streams.watermarks import with_watermark, with_watermarks
from tidestate.statestore.durations import Span, span_us
from tidestate.statestore.errors import UsageError

_W = TypeVar("_W", bound=Windowed)


def aggregated(
    view: StreamView, keys: Sequence[str], windows: Windows | None, results: Mapping[str, Aggregate]
) -> Windowed:
    """One stream by keys and windows. Raises `UsageError` where they do not go together."""
    if len(set(keys)) != len(keys) or view.event_time in keys:
        raise UsageError("the key columns must differ from one another and from the event time", code="key-columns")
    by_offset = windows is not None and windows.by_offset
    made = Windowed(
        view.event_time,
        tuple(keys),
        0 if by_offset else span_us(view.delay),
        view.offset,
        view.origin,
        view.processing_time,
        None if windows is None else _of_lifetime(windows, [view]),
        _checked_results(results),
        signed=view.retractions,
        name="windows",
        stages=view.stages,
    )
    return with_watermark(_tolerant(made, [view]), view)


def merged_aggregation(
    views: Mapping[str, StreamView],
    keys: Sequence[str],
    shared: Sequence[str],
    windows: Windows | None,
    results: Mapping[str, Aggregate],
    over: WatermarkSettings | None,
) -> Merge:
    """Several streams by keys and windows, in one state. Raises `UsageError` where they do not go together."""
    if windows is not None and windows.by_offset:
        raise UsageError(
            "offsets of several streams cannot be compared, so their windows cannot be of offsets: count messages "
            "instead, count_windows(…)",
            code="offset",
        )
    streams = list(views.values())
    kind = None if windows is None else _of_lifetime(windows, streams)
    ends = (kind.end,) if isinstance(kind, SlidingLifetimes) else ()
    offset, origin = shared_order(views)
    order = tuple(column for column in (origin, offset) if column)
    also = [name for name in dict.fromkeys((*shared, *ends)) if name not in keys]
    made = Merge(
        AT,
        tuple(keys),
        0,
        offset,
        origin,
        windows=kind,
        aggregates=_checked_results(results),
        sides=sides_of(times_of(views), (*keys, *also, *order)),
        delays_us=delays_us(views, over),
        signed=say_retractions(views),
        name="merged",
    )
    return with_watermarks(_tolerant(made, streams), views, over)


def _checked_results(results: Mapping[str, Aggregate]) -> dict[str, StoredAggregate]:
    """The aggregates by name. Raises `UsageError` for what is none."""
    for name, aggregate in results.items():
        if not isinstance(aggregate, Aggregate):
            named = '; the name of the operator is .named("…")' if name == "name" else ""
            raise UsageError(
                f"give an aggregate, such as agg.count() or agg.mean(…){named}",
                code="aggregate",
                name=name,
                found=repr(aggregate),
            )
    return dict(results)  # type: ignore[arg-type]  # an aggregate that is stored is one of these


def _of_lifetime(windows: Windows, views: Sequence[StreamView]) -> Windows:
    """Windows of lifetimes with the column of their ends."""
    if not isinstance(windows, SlidingLifetimes) or windows.end:
        return windows
    ends = {view.lifetime.end for view in views}
    if None in ends or len(ends) > 1:
        raise UsageError(
            'windows with of="lifetime" need the ends of the events: stream(…, lifetime=lifetime(end="…")), with '
            "the same column for all streams",
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
            "an operator has one future tolerance: give all of its streams the same, or set it on the operator, "
            ".allowed_lateness(future_tolerance=…)",
            code="future-tolerance",
            found=spans,
        )
    return next(iter(spans), None)


def _tolerant(made: _W, views: Sequence[StreamView]) -> _W:
    chosen = tolerance([view.node for view in views])
    if chosen is None:
        return made
    if (tolerance_us := span_us(chosen)) < 0:
        raise UsageError("a future tolerance must not be negative", code="lateness", found=chosen)
    return replace(made, future_tolerance_us=tolerance_us)
