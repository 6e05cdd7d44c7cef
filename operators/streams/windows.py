"""Windows, as a user names them. Pure."""

from __future__ import annotations

from tidestate.operators.describe.windows import (
    AlignedOffsets,
    Counted,
    Extent,
    Global,
    Rolling,
    Sessions,
    SessionsOfMessages,
    SessionsOfOffsets,
    Sliding,
    SlidingLifetimes,
    SlidingOffsets,
)
from tidestate.statestore.arguments import checked
from tidestate.statestore.durations import Span, span_us, text_of
from tidestate.statestore.errors import UsageError

MOST = 2**60
"""Windows are of fewer messages or offsets, so that sums of them fit 64 bits."""


@checked
def tumbling(size: Span, *, offset: Span = "0 seconds", of: Extent = "start") -> Sliding:
    """Adjacent windows of ``size``: each event is in exactly one; with ``of="lifetime"`` in every window that its
    lifetime touches, which the stream names.
    """
    return _grid(size, size, offset, of, strict=True)


@checked
def sliding(
    size: Span, slide: Span, *, offset: Span = "0 seconds", of: Extent = "start", strict: bool = True
) -> Sliding:
    """Windows of ``size``, one starting every ``slide``. ``strict`` demands that slide divides size. ``of`` is as of
    `tumbling`.
    """
    return _grid(size, slide, offset, of, strict=strict)


def _grid(size: Span, slide: Span, offset: Span, of: Extent, *, strict: bool) -> Sliding:
    size_us, slide_us, offset_us = span_us(size), span_us(slide), span_us(offset)
    if size_us <= 0 or slide_us <= 0:
        raise UsageError(
            "the size and slide of a window must be above 0",
            code="window-size",
            size=text_of(size_us),
            slide=text_of(slide_us),
        )
    if strict and size_us % slide_us:
        raise UsageError(
            "the slide must divide the size; with strict=False it need not",
            code="window-slide",
            size=text_of(size_us),
            slide=text_of(slide_us),
        )
    if of not in ("start", "lifetime"):
        raise UsageError('of= must be "start" or "lifetime"', code="window-of", found=repr(of))
    grid = (size_us, slide_us, offset_us % slide_us)
    # The column of ends is the stream's, which the verb that reads it fills in.
    return Sliding(*grid) if of == "start" else SlidingLifetimes(*grid, "")


@checked
def rolling(size: Span) -> Rolling:
    """The last ``size`` before each event, which is included: of each key a window for every time at which it has an
    event.
    """
    size_us = span_us(size)
    if size_us <= 0:
        raise UsageError("the size of a window must be above 0", code="window-size", size=text_of(size_us))
    return Rolling(size_us)


@checked
def sessions(gap: Span | None = None, *, gap_column: str | None = None) -> Sessions:
    """Windows of activity: events of a key belong together if they are less than ``gap`` apart, or, with
    ``gap_column``, as each event says (in microseconds, or as a duration).
    """
    if (gap is None) == (gap_column is None):
        raise UsageError("a session needs either a gap, or the column that holds it", code="session-gap")
    if gap is None:
        return Sessions(gap_column=gap_column)
    gap_us = span_us(gap)
    if gap_us <= 0:
        raise UsageError("the gap of a session must be above 0", code="session-gap", gap=text_of(gap_us))
    return Sessions(gap_us)


@checked
def offset_sessions(offsets: int, *, late: int | None = None) -> SessionsOfOffsets:
    """Messages of a key belong together if their offsets are less than ``offsets`` apart. A window closes when the
    input is ``late`` offsets (default: as many) past its end.
    """
    return SessionsOfOffsets(_positive(offsets), late=_late(late, offsets))


@checked
def message_sessions(without: int) -> SessionsOfMessages:
    """Messages of a key belong together as long as at most ``without`` other messages of the stream lie between one
    and the next. All messages count, of any key, and offsets that are missing do not: the stream names the column of
    its offsets, and takes messages in their order.

    Windows are of the numbers of messages, from 0: a session ends ``without + 2`` after the number of its last one.
    """
    if isinstance(without, bool) or not isinstance(without, int) or not 0 <= without < MOST:
        raise UsageError(
            "the number of messages without the key must be an integer from 0 to below 2^60",
            code="window-count",
            found=repr(without),
        )
    return SessionsOfMessages(without + 2)


@checked
def count_windows(count: int, step: int | None = None) -> Counted:
    """Windows of the n-th to the m-th accepted message of a key, one beginning every ``step`` (default: ``count``),
    whatever their times; a full window fires.
    """
    return Counted(_positive(count), _positive(count if step is None else step))


@checked
def offset_windows(
    count: int, step: int | None = None, *, late: int | None = None, start: int | None = None
) -> SlidingOffsets:
    """Windows of the input's offsets, ``[start + k*step, start + k*step + count)``, of any key: a window is full when
    the input has passed its end, and accepts late offsets until the input is ``late`` offsets (default: ``count``)
    past it. Offsets before ``start`` are in no window.

    Without ``start`` windows of a side of a join start at the first offset of the side, which the job records, and
    all others at 0.
    """
    each, size, lateness = _positive(count if step is None else step), _positive(count), _late(late, count)
    if start is None:
        return AlignedOffsets(size, each, late=lateness)
    if not 0 <= start < MOST:
        raise UsageError("the first offset must be 0 or more, and below 2^60", code="window-start", start=start)
    return SlidingOffsets(size, each, start, late=lateness)


@checked
def global_window() -> Global:
    """One window over all of time: it fires by its triggers, and when the input ends."""
    return Global()


def _positive(count: int) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count < MOST:
        raise UsageError(
            "a number of messages or offsets must be an integer from 1 to below 2^60",
            code="window-count",
            found=repr(count),
        )
    return count


def _late(late: int | None, default: int) -> int:
    if late is None:
        return default
    if isinstance(late, bool) or not isinstance(late, int) or not 0 <= late < MOST:
        raise UsageError(
            "late= must be a number of offsets from 0 to below 2^60", code="window-late", found=repr(late)
        )
    return late
