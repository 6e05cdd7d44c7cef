"""What the user writes to join two streams. Both travel as one: a row has its side, its time, its side's columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from operators.durations import Span, span_us, text_of
from operators.sides import LEFT, RIGHT, Sided, Sides
from operators.watermarks import Watermarks
from operators.windows import Sliding, Windows
from statestore.errors import UsageError

How = Literal["inner", "left", "right", "full"]


@dataclass(frozen=True)
class Joined(Sided):
    """Pairs of rows of two streams with the same key, near in time or in the same window."""

    left_time: str
    right_time: str
    on: tuple[str, ...]
    how: How
    lower_us: int | None
    upper_us: int | None
    windows: Sliding | None
    allowed_us: int
    watermark_delay_us: int
    name: str
    watermarks: Watermarks | None = None

    @property
    def sides(self) -> Sides:
        """Both."""
        return Sides((LEFT, RIGHT), (self.left_time, self.right_time), self.on)

    def describe(self) -> dict[str, Any]:
        """The configuration as a manifest holds it."""
        bounds = [None if us is None else text_of(us) for us in (self.lower_us, self.upper_us)]
        return {
            "name": self.name,
            "event_times": [self.left_time, self.right_time],
            "on": list(self.on),
            "how": self.how,
            "within": None if self.windows else bounds,
            "window": self.windows.describe() if self.windows else None,
            "allowed_lateness": text_of(self.allowed_us),
            "watermark_delay": text_of(self.watermark_delay_us),
            "watermark": self.watermarks.describe() if self.watermarks else None,
        }


def join(
    *,
    event_time: str | tuple[str, str],
    on: str | Sequence[str],
    within: tuple[Span | None, Span | None] | None = None,
    window: Windows | None = None,
    how: How = "inner",
    late: Span = "0 seconds",
    watermark_delay: Span = "0 seconds",
    name: str = "joined",
) -> Joined:
    """Join two streams: rows with equal ``on`` whose times lie ``within`` each other, or which share a ``window``.

    ``within=(lower, upper)``: the right row's time less the left one's lies between them, both inclusive; None is no
    bound. Pairs are shown as the later of the two comes; of an outer join (``how``) a row without a partner once none
    can come any more, ``late`` included. Each side has a watermark, and the smaller one counts.
    """
    columns = (on,) if isinstance(on, str) else tuple(on)
    left_time, right_time = (event_time, event_time) if isinstance(event_time, str) else event_time
    if not columns or len(set(columns)) != len(columns) or {left_time, right_time} & set(columns):
        raise UsageError("rows are joined on columns, each named once, and not on their times", code="join-on", on=on)
    if (within is None) == (window is None):
        raise UsageError("say how near rows are: within=(lower, upper), or window=", code="join-bounds")
    if window is not None and (not isinstance(window, Sliding) or window.by_offset):
        raise UsageError("rows are joined in tumbling or sliding windows of time", code="join-window")
    if how not in ("inner", "left", "right", "full"):
        raise UsageError("a join is inner, left, right or full", code="join-how", found=repr(how))
    low, high = (None if span is None else span_us(span) for span in within or (None, None))
    if low is not None and high is not None and low > high:
        raise UsageError("the lower bound of a join lies above the upper one", code="join-bounds", within=within)
    allowed, delay = span_us(late), span_us(watermark_delay)
    if allowed < 0 or delay < 0:
        raise UsageError("lateness and watermark delay cannot be negative", code="lateness")
    return Joined(left_time, right_time, columns, how, low, high, window, allowed, delay, name)
