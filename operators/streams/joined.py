"""Joins by distance and by windows, as the stored description of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidestate.operators.describe.join import Join, Occurrence, Unmatched
from tidestate.operators.describe.join_choices import Update
from tidestate.operators.describe.sides import LEFT, RIGHT, SIDES, How
from tidestate.operators.describe.windows import Sliding, Windows
from tidestate.operators.streams.nodes import StreamView, WatermarkSettings
from tidestate.operators.streams.settings import SideSettings, period
from tidestate.operators.streams.sides import check_how, check_order, columns_of, delays_us, orders_of, time_of
from tidestate.operators.streams.watermarks import with_watermarks
from tidestate.statestore.durations import Span, span_us, text_of
from tidestate.statestore.errors import UsageError


def joined(
    views: Mapping[str, StreamView],
    on: str | Sequence[str],
    within: tuple[Span | None, Span | None] | None,
    window: Windows | None,
    how: How,
    allowed_lateness: Span,
    sides: Mapping[str, SideSettings],
    occurrence: Occurrence,
    unmatched: Unmatched,
    in_order: bool | None,
    large_windows: bool | None,
    over: WatermarkSettings | None,
    identity: bool,
    name: str,
) -> Join:
    """Pairs of rows of two streams. Raises `UsageError` where the settings do not go together."""
    left, right = sides[LEFT], sides[RIGHT]
    _check_places(within, window, left, right)
    low, high = (None if span is None else span_us(span) for span in within or (None, None))
    own = (left.window, right.window)
    by_side = own != (None, None) or (window is None and within is None)
    updates = (_update(left.update), _update(right.update))
    late_updates = (_update(left.late_update), _update(right.late_update))
    needing = {side for side, settings in sides.items() if identity or _by_offset(settings)}
    offsets, origins = orders_of(views, needing)
    delays = delays_us(views, over)
    bounded = window is not None or (low is not None and high is not None)
    made = Join(
        left_time=time_of(LEFT, views[LEFT]),
        right_time=time_of(RIGHT, views[RIGHT]),
        on=columns_of(on),
        how=how,
        bounded=within is not None,
        lower_us=low,
        upper_us=high,
        windows=window if isinstance(window, Sliding) else None,
        own=own if by_side else None,
        allowed_us=span_us(allowed_lateness),
        delays_us=(delays[0], delays[1]),
        offsets=offsets,
        origins=origins,
        # Between two bounds, all that a batch may meet lies close together where time leads.
        large=not bounded if large_windows is None else large_windows,
        occurrence=occurrence,
        unmatched=unmatched,
        updates=updates,
        late_updates=late_updates,
        retained=(left.retained, right.retained),
        in_order=by_side and not any((*updates, *late_updates)) if in_order is None else in_order,
        name=name,
    )
    _check(made, alone=within is None and window is None and own == (None, None))
    return with_watermarks(made, views, over)


def _check_places(
    within: tuple[Span | None, Span | None] | None, window: Windows | None, left: SideSettings, right: SideSettings
) -> None:
    """Check that one setting alone names where rows meet."""
    if isinstance(window, tuple):
        raise UsageError(
            "window= is for both sides together: for windows of each side use left=side(window=…) and "
            "right=side(window=…)",
            code="join-window",
            found=window,
        )
    if window is not None and (within is not None or left.window is not None or right.window is not None):
        raise UsageError(
            "within=, window= and windows of the sides exclude each other: give one of them",
            code="join-bounds",
        )
    if left.start is not None or right.start is not None:
        raise UsageError("start= is only for sessions of offsets: remove it", code="window-start")
    for windows in (window, left.window, right.window):
        if windows is not None and (not isinstance(windows, Sliding) or windows.end_column is not None):
            raise UsageError(
                "a join needs tumbling or sliding windows of time, or for each side windows of offsets, "
                "offset_windows(n)",
                code="join-window",
                found=repr(windows),
            )


def _update(chosen: Span | Update | None) -> Update | None:
    return chosen if chosen is None or isinstance(chosen, Update) else period(chosen)


def _by_offset(settings: SideSettings) -> bool:
    """Whether the rows of a side are placed or counted by offset."""
    window, retained = settings.window, settings.retained
    return (window is not None and window.by_offset) or (retained is not None and retained.messages is not None)


def _check(join: Join, *, alone: bool) -> None:
    """Raises `UsageError` for what makes no sense; ``alone``: neither bounds nor a window of both are given."""
    _check_columns(join)
    _check_words(join)
    if alone and (not join.on or None in join.retained):
        raise UsageError(
            "say which rows match: within=(lower, upper) or window=, or on= with how long each side keeps its "
            "rows, side(retain=…); within=(None, None) keeps them for ever",
            code="join-bounds",
        )
    low, high = join.lower_us, join.upper_us
    if low is not None and high is not None and low > high:
        raise UsageError(
            "the lower bound of a join must not be above the upper one",
            code="join-bounds",
            within=(text_of(low), text_of(high)),
        )
    _check_windows(join)
    if min(join.allowed_us, *join.delays_us) < 0:
        raise UsageError("lateness and watermark delay must not be negative", code="lateness")
    if join.own is not None and join.allowed_us:
        raise UsageError(
            "a side with a window of its own accepts rows in that window and in past windows that it retains: use "
            "side(retain=…) and remove allowed_lateness=",
            code="lateness",
        )
    if join.in_order and any((*join.updates, *join.late_updates)):
        raise UsageError("update periods emit pairs as rows arrive: remove in_order=", code="in-order")
    for side in SIDES:
        _check_retained(join, side)


def _check_columns(join: Join) -> None:
    if len(set(join.on)) != len(join.on) or {join.left_time, join.right_time} & set(join.on):
        raise UsageError(
            "on= must name each column once, and none that holds times, offsets or origins",
            code="join-on",
            on=join.on,
        )
    for side, offset, origin in zip(SIDES, join.offsets, join.origins, strict=True):
        check_order(join.sides, side, offset, origin)


def _check_words(join: Join) -> None:
    check_how(join.how)
    if join.occurrence not in ("first", "each"):
        raise UsageError('occurrence= must be "first" or "each"', code="join-occurrence", found=join.occurrence)
    if join.occurrence == "each" and join.windows is None:
        raise UsageError(
            'occurrence="each" needs windows of both sides, window=, as only these can hold a pair several times',
            code="join-occurrence",
        )
    if join.unmatched not in ("close", "final"):
        raise UsageError(
            'unmatched= must be "close" or "final"',
            code="join-unmatched",
            found=repr(join.unmatched),
        )


def _check_windows(join: Join) -> None:
    if join.windows is not None and join.windows.by_offset:
        raise UsageError(
            "offsets of two streams cannot be compared: give each side its own window, side(window=…)",
            code="join-window",
        )
    for place, window in enumerate(join.own or ()):
        if window is not None and window.by_offset and not join.offsets[place]:
            raise UsageError(
                "a window of offsets needs the column that holds them: stream(offset=…)",
                code="join-offset",
                side=SIDES[place],
            )


def _check_retained(join: Join, side: str) -> None:
    place = SIDES.index(side)
    kept = join.retained[place]
    if kept is None:
        return
    if kept.windows is not None and join.windows is None and (join.own is None or join.own[place] is None):
        raise UsageError(
            "only a side with windows can keep a number of windows: use a span, or give it a window",
            code="join-retain",
            side=side,
        )
    if kept.messages is not None and not join.by_offset(side):
        raise UsageError(
            "only a side without a window or bounds of time can keep a number of messages, and it needs "
            "stream(offset=…): add the offset, or use a span",
            code="join-retain",
            side=side,
        )
    if kept.span_us is not None and join.by_offset(side):
        raise UsageError(
            "rows of this side are placed by offset: keep a number of messages or windows, not a span",
            code="join-retain",
            side=side,
        )
