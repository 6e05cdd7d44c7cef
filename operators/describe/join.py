"""What the user writes to join two streams. Both travel as one: a row has its side, its time, its side's columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from tidestate.operators.describe.join_choices import Kept, Update, every, keep
from tidestate.operators.describe.join_validation import check_join
from tidestate.operators.describe.renames import SAME_NAMES, Renames
from tidestate.operators.describe.runnable import checked_name
from tidestate.operators.describe.sides import LEFT, RIGHT, SIDES, Sided, Sides
from tidestate.operators.describe.windows import Sliding, Windows
from tidestate.operators.progress.watermarks import Watermarks
from tidestate.statestore.durations import Span, span_us, text_of
from tidestate.statestore.errors import UsageError
from tidestate.statestore.messages.keys import Layout, choose_layout

How = Literal["inner", "left", "right", "full"]
Occurrence = Literal["first", "each"]
Unmatched = Literal["close", "final"]
Retain = Span | int | Kept
Period = Span | Update
T = TypeVar("T")


@dataclass(frozen=True)
class Joined(Sided):
    """Pairs of rows of two streams: with the same key, near in time, in the same window, or in the other's window.

    ``windows`` are common to both sides, ``own`` ones belong to a side each; both None: rows meet by their distance.
    Pairs of values are of the left side and the right one.
    """

    left_time: str
    right_time: str
    on: tuple[str, ...]
    how: How
    bounded: bool
    lower_us: int | None
    upper_us: int | None
    windows: Sliding | None
    own: tuple[Sliding | None, Sliding | None] | None
    allowed_us: int
    delays_us: tuple[int, int]
    name: str
    offsets: tuple[str | None, str | None]
    origins: tuple[str | None, str | None]
    large: bool
    occurrence: Occurrence
    unmatched: Unmatched
    updates: tuple[Update | None, Update | None]
    late_updates: tuple[Update | None, Update | None]
    retained: tuple[Kept | None, Kept | None]
    in_order: bool = False
    watermarks: Watermarks | None = None
    renames: Renames = SAME_NAMES

    @property
    def sides(self) -> Sides:
        """Both."""
        return Sides((LEFT, RIGHT), (self.left_time, self.right_time), self.on)

    @property
    def held(self) -> bool:
        """Whether pairs may have to wait for an update period."""
        return any((*self.updates, *self.late_updates))

    def keeps(self, side: str) -> bool:
        """Whether rows of a side are shown also without a partner."""
        return self.how in (side, "full")

    def by_offset(self, side: str) -> bool:
        """Whether offsets place the rows of a side, and not times."""
        place = SIDES.index(side)
        if self.own is None:
            return False
        own, other = self.own[place], self.own[1 - place]
        if own is not None:
            return own.by_offset
        kept = self.retained[place]
        counted = (other is not None and other.by_offset) or (kept is not None and kept.messages is not None)
        return counted and self.offsets[place] is not None

    def layout(self, side: str) -> Layout:
        """The message key of a side's rows, by the matrix of MESSAGES.md."""
        return choose_layout(
            "tuple" if self.by_offset(side) else "time",
            "join",
            equal=bool(self.on),
            time_range=self.windows is not None or (self.lower_us, self.upper_us) != (None, None),
            large=self.large,
        )

    def describe(self) -> dict[str, Any]:
        """The configuration as a manifest holds it."""
        bounds = [None if us is None else text_of(us) for us in (self.lower_us, self.upper_us)]
        return {
            "name": self.name,
            "event_times": [self.left_time, self.right_time],
            "on": list(self.on),
            "how": self.how,
            "within": bounds if self.bounded else None,
            "window": self.windows.describe() if self.windows else None,
            "windows": [_told(window) for window in self.own] if self.own else None,
            "occurrence": self.occurrence,
            "unmatched": self.unmatched,
            "allowed_lateness": text_of(self.allowed_us),
            "watermark_delay": [text_of(us) for us in self.delays_us],
            "offset": list(self.offsets),
            "origin": list(self.origins),
            "layout": [str(self.layout(side)) for side in SIDES],
            "update": [_told(update) for update in self.updates],
            "late_update": [_told(update) for update in self.late_updates],
            "retain": [_told(kept) for kept in self.retained],
            "watermark": self.watermarks.describe() if self.watermarks else None,
        } | ({"in_order": True} if self.in_order else {})


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
) -> Joined:
    """Join two streams: rows with equal ``on`` whose times lie ``within`` each other, or which share a ``window``, or
    each lie in the ``window=(left, right)`` of their side. What is one value for both sides may be a pair.

    ``within=(lower, upper)``: the right row's time less the left one's lies between them, both inclusive; None is no
    bound. With ``in_order`` rows are held until the watermark passes them and taken in the order of their times; that
    is the default where they meet by it, with windows of each side, and no update period says when. Everything else,
    with the choices it gives: docs/JOINS.md. Raises `UsageError` for what makes no sense.
    """
    times = _both(event_time, str)
    assert times[0] is not None
    assert times[1] is not None
    own = _windows(window)
    low, high = (None if span is None else span_us(span) for span in within or (None, None))
    delays = _both(watermark_delay, span_us)
    own = own if own or within is not None or window is not None else (None, None)
    near = isinstance(window, Sliding) or (low is not None and high is not None)
    updates, late_updates = _both(update, _update), _both(late_update, _update)
    by_clock = any((*updates, *late_updates))
    made = Joined(
        left_time=times[0],
        right_time=times[1],
        on=(on,) if isinstance(on, str) else tuple(on),
        how=how,
        bounded=within is not None,
        lower_us=low,
        upper_us=high,
        windows=window if isinstance(window, Sliding) else None,
        own=own,
        allowed_us=span_us(late),
        delays_us=(delays[0] or 0, delays[1] or 0),
        name=checked_name(name),
        offsets=_both(offset, str),
        origins=_both(origin, str),
        # Between two bounds, all that a batch may meet lies close together where time leads.
        large=not near if large_windows is None else large_windows,
        occurrence=occurrence,
        unmatched=unmatched,
        updates=updates,
        late_updates=late_updates,
        retained=_both(retain, _kept),
        in_order=own is not None and not by_clock if in_order is None else in_order,
    )
    check_join(made, alone=within is None and window is None)
    return made


def _both(given: Any, read: Callable[[Any], T]) -> tuple[T | None, T | None]:
    """One value for both sides, or a pair, each read."""
    pair = given if isinstance(given, tuple) else (given, given)
    if len(pair) != len(SIDES):
        raise UsageError("give one value for both sides, or a pair", code="join-pair", found=repr(given))
    left, right = (None if one is None else read(one) for one in pair)
    return left, right


def _windows(given: Any) -> tuple[Sliding | None, Sliding | None] | None:
    """The windows of a side each, where they are given so."""
    pair = given if isinstance(given, tuple) else (None, None)
    for one in (*pair, given if not isinstance(given, tuple) else None):
        if one is not None and not isinstance(one, Sliding):
            raise UsageError(
                "rows are joined in tumbling or sliding windows of time, or by side in those of offsets "
                '(count_window(n, by="offset"))',
                code="join-window",
                found=repr(one),
            )
    return _both(given, lambda one: one) if isinstance(given, tuple) else None


def _update(given: Period) -> Update:
    return given if isinstance(given, Update) else every(given)


def _kept(given: Retain) -> Kept:
    if isinstance(given, Kept):
        return given
    return keep(messages=given) if isinstance(given, int) else keep(given)


def _told(choice: Sliding | Kept | Update | None) -> Any:
    return None if choice is None else choice.describe()
