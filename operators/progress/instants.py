"""Which int64 microseconds are valid watermarks, and saturating sums of times. Pure and vectorised.

A watermark after the year 9999 is a mistaken unit (nanoseconds for microseconds, say), and would close every window
forever. So a watermark that comes as data must lie in the years 1 to 9999; times before 1970 are valid.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.statestore.arrays import Flags, Times
from tidestate.statestore.errors import UsageError

BEGINNING_US, END_US = -(2**63), 2**63 - 1
LIMIT_US = 2**61
"""Event times lie within 73,000 years of 1970, so that a time plus a span never overflows int64."""
OFFSET_LIMIT = 2**57
"""Offsets are smaller than this."""
FIRST_US, LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The first and the last microsecond of the years 1 to 9999."""
_WHOLE_LIMIT = 2.0**63


def is_watermark(instants: Times) -> Flags:
    """Whether each is a valid watermark: within the years 1 to 9999, or one of the two ends of time."""
    within: Flags = (instants >= FIRST_US) & (instants <= LAST_US)
    within |= (instants == BEGINNING_US) | (instants == END_US)
    return within


def usable(instant_us: int) -> bool:
    """`is_watermark` of a single instant."""
    return FIRST_US <= instant_us <= LAST_US or instant_us in (BEGINNING_US, END_US)


def moved(instants: Times, by_us: int) -> Times:
    """Each instant plus ``by_us`` (a span of `tidestate.statestore.durations`, so within 2^62; may be negative).

    The ends of time stay as they are, and no other instant becomes one.
    """
    least, most = BEGINNING_US + 1, END_US - 1
    room = np.minimum(instants, most - by_us) if by_us >= 0 else np.maximum(instants, least - by_us)
    shifted = np.maximum(np.minimum(room + by_us, most), least)
    kept: Times = np.where((instants == BEGINNING_US) | (instants == END_US), instants, shifted)
    return kept


def moved_one(instant_us: int, by_us: int) -> int:
    """`moved` of a single instant."""
    if instant_us in (BEGINNING_US, END_US):
        return instant_us
    return max(BEGINNING_US + 1, min(END_US - 1, instant_us + by_us))


def instants(column: Any, name: str) -> tuple[Times, Flags]:
    """A column as microseconds, and which rows have none (null, NaN, not whole, not 64 bits). Both of shape
    ``(rows,)``.

    ``column`` is an Arrow or numpy array of timestamps, integers or floats (microseconds). A row that has none is
    `BEGINNING_US`. Raises `UsageError` for another type.
    """
    array = column if isinstance(column, pa.ChunkedArray | pa.Array) else pa.array(column)
    if pa.types.is_floating(array.type):
        return _from_floats(array)
    if pa.types.is_timestamp(array.type):
        # Rounded down: a watermark a little too low is only slow, a little too high is wrong.
        whole = pc.floor_temporal(array, unit="microsecond") if array.type.unit == "ns" else array
        array = whole.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64())
    elif pa.types.is_uint64(array.type):
        array = pc.if_else(pc.greater(array, END_US), None, array).cast(pa.int64())
    elif pa.types.is_integer(array.type) or pa.types.is_null(array.type):
        array = array.cast(pa.int64())
    else:
        raise UsageError(
            "the column must hold timestamps, or integers of microseconds",
            code="progress-column",
            column=name,
            found=array.type,
        )
    missing: Flags = np.zeros(len(array), bool)
    if array.null_count:
        missing = np.asarray(array.is_null())
        array = pc.fill_null(array, BEGINNING_US)
    return np.asarray(array).astype(np.int64, copy=False), missing


def _from_floats(array: Any) -> tuple[Times, Flags]:
    values = np.asarray(pc.fill_null(array, float("nan"))).astype(np.float64, copy=False)
    finite = np.isfinite(values)
    missing = ~finite | (np.floor(np.where(finite, values, 0.5)) != values) | (np.abs(values) >= _WHOLE_LIMIT)
    return np.where(missing, BEGINNING_US, np.where(missing, 0, values).astype(np.int64)), missing
