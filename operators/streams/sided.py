"""Joins, unions and single streams passed on, as the stored descriptions of them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tidestate.operators.describe.altered import Altered, altered
from tidestate.operators.describe.deduplicate import Deduplicate, deduplicated
from tidestate.operators.describe.given_join import join
from tidestate.operators.describe.join import Join
from tidestate.operators.describe.overlap_join import OverlapJoin, overlap_join
from tidestate.operators.describe.session_join import SessionJoin, session_join
from tidestate.operators.describe.sides import LEFT, RIGHT
from tidestate.operators.describe.union import Union, union
from tidestate.operators.describe.windows import Windows
from tidestate.operators.streams.aggregated import delays, shared_order, time_of
from tidestate.operators.streams.nodes import StreamView, WatermarkSettings
from tidestate.operators.streams.settings import SideSettings
from tidestate.operators.streams.watermarks import with_watermark, with_watermarks
from tidestate.statestore.durations import Span
from tidestate.statestore.errors import UsageError

Pair = Mapping[str, StreamView]
"""What a join reads, by side."""


def joined(
    views: Pair,
    on: str | Sequence[str],
    within: tuple[Span | None, Span | None] | None,
    window: Windows | None,
    sides: Mapping[str, SideSettings],
    over: WatermarkSettings | None,
    identity: bool,
    name: str,
    **choices: Any,
) -> Join:
    """Pairs of rows of two streams. Raises `UsageError` where the settings do not go together."""
    left, right = sides[LEFT], sides[RIGHT]
    if isinstance(window, tuple):
        raise UsageError(
            "window= is that of both sides: windows of each are in left=side(window=…) and right=side(window=…)",
            code="join-window",
            found=window,
        )
    if window is not None and (within is not None or left.window is not None or right.window is not None):
        raise UsageError(
            "rows meet within=, in a window= of both, or in windows of the sides: window= stands alone",
            code="join-bounds",
        )
    if left.start is not None or right.start is not None:
        raise UsageError("only sessions of offsets have a first offset", code="window-start")
    side_windows = (left.window, right.window)
    needing = {side for side, settings in sides.items() if identity or _by_offset(settings)}
    made = join(
        event_time=_times(views),
        on=on,
        within=within,
        window=window if side_windows == (None, None) else side_windows,
        watermark_delay=_delays(views, over),
        offset=_offsets(views, needing),
        origin=_origins(views, needing),
        update=(left.update, right.update),
        late_update=(left.late_update, right.late_update),
        retain=(left.retained, right.retained),
        name=name,
        **choices,
    )
    return with_watermarks(made, views, over)


def joined_by_session(
    views: Pair,
    on: str | Sequence[str] | None,
    offsets: int | None,
    allowed_lateness: Span | int,
    sides: Mapping[str, SideSettings],
    over: WatermarkSettings | None,
    identity: bool,
    name: str,
    **choices: Any,
) -> SessionJoin:
    """Pairs of rows in one session. Raises `UsageError` where the settings do not go together."""
    for side, settings in sides.items():
        if settings != SideSettings(start=settings.start):
            raise UsageError("a side of a session join has a first offset alone: start=", code="join-side", side=side)
    starts = (sides[LEFT].start, sides[RIGHT].start)
    needing = set(views) if identity or offsets is not None else set()
    times: dict[str, Any] = (
        {}
        if offsets is not None
        else {
            "event_time": _times(views),
            "watermark_delay": _delays(views, over),
        }
    )
    made = session_join(
        on=on,
        offsets=offsets,
        start=None if starts == (None, None) else (starts[0] or 0, starts[1] or 0),
        late=allowed_lateness,
        name=name,
        offset=_offsets(views, needing),
        origin=_origins(views, needing),
        **times,
        **choices,
    )
    return with_watermarks(made, views, over)


def joined_by_lifetime(views: Pair, on: str | Sequence[str] | None, name: str) -> OverlapJoin:
    """Pairs of rows whose lifetimes overlap. Raises `UsageError` where a stream has no order."""
    if lacking := [side for side, view in views.items() if view.is_input and view.offset is None]:
        raise UsageError(
            "lifetimes are joined in the order of offsets: name it, stream(offset=…)",
            code="join-offset",
            sides=lacking,
        )
    lifetimes = [view.lifetime for view in views.values()]
    made = overlap_join(
        event_time=_times(views),
        on=on,
        shape=(lifetimes[0].shape, lifetimes[1].shape),
        end=(lifetimes[0].end, lifetimes[1].end),
        shape_column=(lifetimes[0].shape_column, lifetimes[1].shape_column),
        offset=_offsets(views, set(views)),
        origin=_origins(views, set(views)),
        name=name,
    )
    return with_watermarks(made, views, None)


def united(views: Mapping[str, StreamView], over: WatermarkSettings | None, name: str) -> Union:
    """Several streams as one. Raises `UsageError` where they do not go together."""
    offset, origin = shared_order(views)
    made = union(
        event_time=[time_of(side, view) for side, view in views.items()],
        sides=list(views),
        watermark_delay=delays(views, over),
        offset=offset,
        origin=origin,
        name=name,
    )
    return with_watermarks(made, views, over)


def without_repetitions(
    view: StreamView,
    on: str | Sequence[str],
    within: Span | None,
    allowed_lateness: Span | None,
    in_order: bool,
    name: str,
) -> Deduplicate:
    """The first row with each value. Raises `UsageError` where the settings do not go together."""
    made = deduplicated(
        event_time=time_of("input", view),
        on=on,
        within=within,
        watermark_delay=view.delay,
        in_order=in_order,
        name=name,
    )
    if allowed_lateness is not None:
        made = made.late(allowed_lateness)
    return with_watermark(made, view)


def shifted(view: StreamView, by: Span, duration: Span | None, end: str | None, name: str) -> Altered:
    """Rows with other times. Raises `UsageError` where nothing changes."""
    made = altered(
        event_time=time_of("input", view),
        shift=by,
        end=end or view.lifetime.end,
        duration=duration,
        watermark_delay=view.delay,
        offset=view.offset,
        origin=view.origin,
        name=name,
    )
    return with_watermark(made, view)


def _times(views: Pair) -> tuple[str, str]:
    return time_of(LEFT, views[LEFT]), time_of(RIGHT, views[RIGHT])


def _delays(views: Pair, over: WatermarkSettings | None) -> tuple[Span, Span]:
    left, right = delays(views, over)
    return left, right


def _by_offset(settings: SideSettings) -> bool:
    """Whether the rows of a side are placed or counted by offset."""
    window, retained = settings.window, settings.retained
    return (window is not None and window.by_offset) or (retained is not None and retained.messages is not None)


def _offsets(views: Pair, needing: Collection[str]) -> tuple[str | None, str | None]:
    left, right = (view.offset if _has_order(side, views, needing) else None for side, view in views.items())
    return left, right


def _origins(views: Pair, needing: Collection[str]) -> tuple[str | None, str | None]:
    left, right = (view.origin if _has_order(side, views, needing) else None for side, view in views.items())
    return left, right


def _has_order(side: str, views: Pair, needing: Collection[str]) -> bool:
    """Whether rows of a side count by their offsets: by CTIs those of streams do, and of an operator its watermark is
    enough; otherwise those that need it.
    """
    if any(view.by_ctis for view in views.values()):
        return views[side].is_input
    return side in needing
