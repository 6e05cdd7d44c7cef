"""In time, past or future: where the time of an event lies from the current window, in the words of Samza's design.

The **current window** is "the latest window we just opened": of windows on a grid the newest that has begun before
the watermark. So it holds the last moment before the watermark, or ends before it where windows leave gaps. An event
before its start is past, one at or after its end is future, all others are in time. On time and late go by the
watermark beside it. Before the first watermark no window has begun, and every event is in time.

Pure and vectorised.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.progress.instants import BEGINNING_US, END_US, LIMIT_US
from tidestate.statestore.arrays import Counters, Times

WINDOW_TIMING = "window_timing"
"""The column of the late ledger, where `Aggregation.allowed_lateness` asks for it."""
IN_TIME, PAST, FUTURE = "in_time", "past", "future"
"""Its values; the counters of events have ``window_`` before them."""


@dataclass(frozen=True)
class CurrentWindow:
    """The bounds of the current window, ``[start, end)``."""

    start: int
    end: int

    def count(self, times: Times) -> Counters:
        """How many of these event times are in time, past and future."""
        past, future = int(np.count_nonzero(times < self.start)), int(np.count_nonzero(times >= self.end))
        counts = {IN_TIME: len(times) - past - future, PAST: past, FUTURE: future}
        return {f"window_{timing}": count for timing, count in counts.items()}

    def timing_of(self, times: pa.ChunkedArray) -> pa.ChunkedArray:
        """Which of the three each event time is; null where it is null, or out of range."""
        moments = times.cast(pa.int64())
        ahead = pc.if_else(pc.greater_equal(moments, self.end), FUTURE, IN_TIME)
        timing = pc.if_else(pc.less(moments, self.start), PAST, ahead)
        usable = pc.and_(pc.less_equal(moments, LIMIT_US), pc.greater_equal(moments, -LIMIT_US))
        return pc.if_else(usable, timing, pa.scalar(None, pa.string()))


ALL_OF_TIME = CurrentWindow(BEGINNING_US, END_US)
"""The current window before the first watermark."""


def current_window(start: int, size: int) -> CurrentWindow:
    """The window that begins at ``start``, as far as 64 bits hold it."""
    return CurrentWindow(max(start, BEGINNING_US), min(start + size, END_US))
