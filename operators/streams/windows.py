"""Windows as a user names them, where `tidestate.operators.describe.windows` has one function for several. Pure."""

from __future__ import annotations

from tidestate.operators.describe.windows import Counted, Sessions, SlidingOffsets, count_window, session
from tidestate.statestore.arguments import checked
from tidestate.statestore.durations import Span


@checked
def sessions(gap: Span | None = None, *, gap_column: str | None = None) -> Sessions:
    """Windows of activity: events of a key belong together if they are less than ``gap`` apart, or, with
    ``gap_column``, as each event says (in microseconds, or as a duration).
    """
    return session(gap, gap_column=gap_column)


@checked
def offset_sessions(offsets: int, *, late: int | None = None) -> Sessions:
    """Messages of a key belong together if their offsets are less than ``offsets`` apart. A window closes when the
    input is ``late`` offsets (default: as many) past its end.
    """
    return session(offsets=offsets, late=late)


@checked
def count_windows(count: int, step: int | None = None) -> Counted | SlidingOffsets:
    """Windows of the n-th to the m-th accepted message of a key, one beginning every ``step`` (default: ``count``),
    whatever their times; a full window fires.
    """
    return count_window(count, step)


@checked
def offset_windows(
    count: int, step: int | None = None, *, late: int | None = None, start: int = 0
) -> Counted | SlidingOffsets:
    """Windows of the input's offsets, ``[start + k*step, start + k*step + count)``, of any key: a window is full when
    the input has passed its end, and accepts late offsets until the input is ``late`` offsets (default: ``count``)
    past it. Offsets before ``start`` are in no window.
    """
    return count_window(count, step, by="offset", late=late, start=start)
