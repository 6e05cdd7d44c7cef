"""Which joins make sense. Everything is checked before anything happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidestate.operators.describe.sides import SIDES
from tidestate.statestore.errors import UsageError

if TYPE_CHECKING:
    from tidestate.operators.describe.join import Joined


def check_join(join: Joined, *, alone: bool) -> None:
    """Raises `UsageError` for what makes no sense; ``alone``: neither bounds nor windows are given."""
    _check_columns(join)
    _check_words(join)
    if alone and (not join.on or None in join.retained):
        raise UsageError(
            "say how near rows are: within=(lower, upper) or window=; or for how long each side keeps its rows: "
            "on= with retain=; within=(None, None) keeps them for ever",
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
            "say retain=, not late=",
            code="lateness",
        )
    if join.in_order and any((*join.updates, *join.late_updates)):
        raise UsageError("update periods show pairs as rows come: leave in_order= out", code="in-order")
    for side in SIDES:
        _check_retained(join, side)


def _check_columns(join: Joined) -> None:
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


def _check_words(join: Joined) -> None:
    if join.how not in ("inner", "left", "right", "full"):
        raise UsageError("a join is inner, left, right or full", code="join-how", found=repr(join.how))
    if join.occurrence not in ("first", "each"):
        raise UsageError(
            "a pair is shown in its first window or in each", code="join-occurrence", found=join.occurrence
        )
    if join.occurrence == "each" and join.windows is None:
        raise UsageError("only windows of both sides hold a pair several times", code="join-occurrence")
    if join.unmatched not in ("close", "final"):
        raise UsageError(
            "rows without a partner are shown at the close, or once they are final",
            code="join-unmatched",
            found=repr(join.unmatched),
        )


def _check_windows(join: Joined) -> None:
    if join.windows is not None and join.bounded:
        raise UsageError("rows meet within bounds or in a window of both: give one", code="join-bounds")
    if join.windows is not None and join.windows.by_offset:
        raise UsageError(
            "offsets of two streams do not make one line: give each side its window, window=(left, right)",
            code="join-window",
        )
    for place, window in enumerate(join.own or ()):
        if window is not None and window.by_offset and not join.offsets[place]:
            raise UsageError(
                "a window of offsets needs the column that holds them: offset=", code="join-offset", side=SIDES[place]
            )


def _check_retained(join: Joined, side: str) -> None:
    place = SIDES.index(side)
    kept = join.retained[place]
    if kept is None:
        return
    if kept.windows is not None and join.windows is None and (join.own is None or join.own[place] is None):
        raise UsageError("only a side with windows keeps a number of them", code="join-retain", side=side)
    if kept.messages is not None and not join.by_offset(side):
        raise UsageError(
            "only a side of which offsets place the rows keeps a number of messages: name offset=, and give it no "
            "window or bounds of time; or give a span",
            code="join-retain",
            side=side,
        )
    if kept.span_us is not None and join.by_offset(side):
        raise UsageError(
            "offsets place the rows of this side: keep a number of messages or windows", code="join-retain", side=side
        )
