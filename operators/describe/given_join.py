"""What a user gives to join two streams, as a description; and which joins make sense."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tidestate.operators.describe.join import Join, Occurrence, Period, Retain, Unmatched
from tidestate.operators.describe.join_choices import JoinRetention, Update, every, keep
from tidestate.operators.describe.runnable import checked_name
from tidestate.operators.describe.sides import SIDES, How
from tidestate.operators.describe.windows import Sliding, Windows
from tidestate.statestore.arguments import checked
from tidestate.statestore.durations import Span, span_us
from tidestate.statestore.errors import UsageError

_T = TypeVar("_T")


@checked
def join(
    *,
    event_time: str | tuple[str, str],
    on: str | Sequence[str] = (),
    within: tuple[Span | None, Span | None] | None = None,
    window: Windows | tuple[Windows | None, Windows | None] | None = None,
    how: How = "inner",
    late: Span = "0 seconds",
    watermark_delay: Span | tuple[Span, Span] = "0 seconds",
    name: str = "joined",
    offset: str | tuple[str | None, str | None] | None = None,
    origin: str | tuple[str | None, str | None] | None = None,
    large_windows: bool | None = None,
    occurrence: Occurrence = "first",
    unmatched: Unmatched = "close",
    update: Period | tuple[Period | None, Period | None] | None = None,
    late_update: Period | tuple[Period | None, Period | None] | None = None,
    retain: Retain | tuple[Retain | None, Retain | None] | None = None,
    in_order: bool | None = None,
) -> Join:
    """Join two streams: rows with equal ``on`` whose times lie ``within`` each other, or which share a ``window``, or
    each lie in the ``window=(left, right)`` of their side.

    A setting with one value for both sides may be a pair. ``within=(lower, upper)``: the right row's time minus the
    left one's is between them, both inclusive; None is no bound. With ``in_order`` rows are held until the watermark
    passes them and processed in order of time; that is the default with windows of each side that go by time and no
    update period. All choices: docs/how-to/join-streams.md. Raises `UsageError` for a combination that makes
    no sense.
    """
    left_time, right_time = _times(event_time)
    own = _windows(window, bounded=within is not None)
    low, high = (None if span is None else span_us(span) for span in within or (None, None))
    delays = _both(watermark_delay, span_us)
    bounded = isinstance(window, Sliding) or (low is not None and high is not None)
    updates, late_updates = _both(update, _update), _both(late_update, _update)
    at_once = not any((*updates, *late_updates))
    made = Join(
        left_time=left_time,
        right_time=right_time,
        on=(on,) if isinstance(on, str) else tuple(on),
        how=how,
        bounded=within is not None,
        lower_us=low,
        upper_us=high,
        windows=window if isinstance(window, Sliding) else None,
        own=own,
        allowed_us=span_us(late),
        delays_us=(delays[0] or 0, delays[1] or 0),
        offsets=_both(offset, str),
        origins=_both(origin, str),
        # Between two bounds, all that a batch may meet lies close together where time leads.
        large=not bounded if large_windows is None else large_windows,
        occurrence=occurrence,
        unmatched=unmatched,
        updates=updates,
        late_updates=late_updates,
        retained=_both(retain, _kept),
        in_order=own is not None and at_once if in_order is None else in_order,
        name=checked_name(name),
    )
    return _checked(made, alone=within is None and window is None)


def _times(event_time: str | tuple[str, str]) -> tuple[str, str]:
    """The column of event times of each side."""
    left, right = _both(event_time, str)
    if left is None or right is None:
        raise UsageError("say which column is the event time of each side", code="event-time", found=repr(event_time))
    return left, right


def _both(given: Any, read: Callable[[Any], _T]) -> tuple[_T | None, _T | None]:
    """One value for both sides, or a pair, each read."""
    pair = given if isinstance(given, tuple) else (given, given)
    if len(pair) != len(SIDES):
        raise UsageError("give one value for both sides, or a pair", code="join-pair", found=repr(given))
    left, right = (None if one is None else read(one) for one in pair)
    return left, right


def _windows(given: Any, *, bounded: bool) -> tuple[Sliding | None, Sliding | None] | None:
    """The windows of each side; with neither window nor bounds, none for both."""
    if given is None and not bounded:
        return None, None
    pair = given if isinstance(given, tuple) else (None, None)
    for one in (*pair, given if not isinstance(given, tuple) else None):
        if one is not None and (not isinstance(one, Sliding) or one.end_column is not None):
            raise UsageError(
                "rows are joined in tumbling or sliding windows of time, or by side in those of offsets "
                "(offset_windows(n))",
                code="join-window",
                found=repr(one),
            )
    return _both(given, lambda one: one) if isinstance(given, tuple) else None


def _update(given: Period) -> Update:
    return given if isinstance(given, Update) else every(given)


def _kept(given: Retain) -> JoinRetention:
    if isinstance(given, JoinRetention):
        return given
    return keep(messages=given) if isinstance(given, int) else keep(given)


def _checked(join: Join, *, alone: bool) -> Join:
    """Raises `UsageError` for what makes no sense; ``alone``: neither bounds nor windows are given."""
    _check_columns(join)
    _check_words(join)
    if alone and (not join.on or None in join.retained):
        raise UsageError(
            "say which rows meet: within=(lower, upper) or window=; or for how long each side keeps its rows: "
            "on= with side(retain=…); within=(None, None) keeps them for ever",
            code="join-bounds",
        )
    low, high = join.lower_us, join.upper_us
    if low is not None and high is not None and low > high:
        raise UsageError("the lower bound of a join lies above the upper one", code="join-bounds", within=(low, high))
    _check_windows(join)
    if min(join.allowed_us, *join.delays_us) < 0:
        raise UsageError("lateness and watermark delay cannot be negative", code="lateness")
    if join.own is not None and join.allowed_us:
        raise UsageError(
            "with a window of its own a side takes what lies in it, or in past windows that it retains: "
            "say side(retain=…), not allowed_lateness=",
            code="lateness",
        )
    if join.in_order and any((*join.updates, *join.late_updates)):
        raise UsageError("update periods emit pairs as rows arrive: leave in_order= out", code="in-order")
    for side in SIDES:
        _check_retained(join, side)
    return join


def _check_columns(join: Join) -> None:
    columns = [join.left_time, join.right_time, *join.offsets, *join.origins]
    if len(set(join.on)) != len(join.on) or set(columns) & set(join.on):
        raise UsageError(
            "rows are joined on columns, each named once, and not on their times, offsets or origins",
            code="join-on",
            on=join.on,
        )
    for place, side in enumerate(SIDES):
        own = [name for name in (join.origins[place], join.offsets[place]) if name]
        if join.origins[place] and not join.offsets[place]:
            raise UsageError("a message is known by its origin and offset: name both", code="join-offset", side=side)
        if len(set(own)) != len(own):
            raise UsageError("origin and offset are two columns", code="join-offset", side=side, found=own)


def _check_words(join: Join) -> None:
    if join.how not in ("inner", "left", "right", "full"):
        raise UsageError("a join is inner, left, right or full", code="join-how", found=repr(join.how))
    if join.occurrence not in ("first", "each"):
        raise UsageError(
            "a pair is emitted in its first window or in each", code="join-occurrence", found=join.occurrence
        )
    if join.occurrence == "each" and join.windows is None:
        raise UsageError("only windows of both sides hold a pair several times", code="join-occurrence")
    if join.unmatched not in ("close", "final"):
        raise UsageError(
            "rows without a partner are emitted at the close, or once they are final",
            code="join-unmatched",
            found=repr(join.unmatched),
        )


def _check_windows(join: Join) -> None:
    if join.windows is not None and join.bounded:
        raise UsageError("rows meet within bounds or in a window of both: give one", code="join-bounds")
    if join.windows is not None and join.windows.by_offset:
        raise UsageError(
            "offsets of two streams do not make one line: give each side its window, side(window=…)",
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
        raise UsageError("only a side with windows keeps a number of them", code="join-retain", side=side)
    if kept.messages is not None and not join.by_offset(side):
        raise UsageError(
            "only a side of which offsets place the rows keeps a number of messages: name stream(offset=…), and give "
            "it no window or bounds of time; or give a span",
            code="join-retain",
            side=side,
        )
    if kept.span_us is not None and join.by_offset(side):
        raise UsageError(
            "offsets place the rows of this side: keep a number of messages or windows", code="join-retain", side=side
        )
