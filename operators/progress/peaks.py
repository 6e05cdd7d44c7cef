"""The event that is furthest ahead of a batch, how far the others are, and when the watermark has leapt. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from operators.progress.instants import Times
from operators.transition import BEGINNING_US, END_US

SAMPLE_ROWS = 10_000
BULK_SHARE = 20
"""All but a 20th of a batch, one event at least, are its bulk."""
STRIDES = 10
"""Of an event that comes alone, so many times the longest step so far is a leap."""
VALUE_LENGTH = 80


class Peak(msgspec.Struct, frozen=True):
    """The accepted event with the largest time, ``event`` in words, or nothing where the watermark does not follow
    from it. The others lie between ``least_us`` and ``bulk_us``, but for a few; None where it came alone.
    """

    time_us: int
    event: str
    least_us: int
    bulk_us: int | None = None


def peak_of(times: Times, events: pa.Table, columns: Sequence[str]) -> Peak:
    """Of ``events`` at these ``times``, one at least. What lies between is judged by a sample of them."""
    place = int(np.argmax(times))
    sample = times[:: len(times) // SAMPLE_ROWS + 1]
    ahead = len(sample) - 1 - max(1, len(sample) // BULK_SHARE)
    bulk = int(np.partition(sample, ahead)[ahead]) if ahead >= 0 else None
    return Peak(int(times[place]), in_words(events.slice(place, 1), columns), int(times.min()), bulk)


def highest(peaks: Iterable[Peak]) -> Peak | None:
    """The peak of a batch out of those of its pieces."""
    found = sorted(peaks, key=lambda peak: (peak.time_us, peak.event))
    if not found:
        return None
    bulks = [peak.bulk_us for peak in found if peak.bulk_us is not None]
    bulks += [peak.time_us for peak in found[:-1] if peak.bulk_us is None]
    return msgspec.structs.replace(
        found[-1], least_us=min(peak.least_us for peak in found), bulk_us=max(bulks, default=None)
    )


def leapt(before_us: int, after_us: int, peak: Peak | None, ahead_us: int, stride_us: int) -> bool:
    """Whether one event, or a few, took the watermark so far that others like those of the same batch come too late.

    That is: further than ``ahead_us`` (the tolerance for the future and the allowed lateness) and the span of the
    batch ahead of its bulk, and of where the watermark was. Of an event that came alone: further than that, and ten
    times ``stride_us``, the longest step before it, where there was one. Before the first watermark there is no leap.
    """
    if peak is None or before_us == BEGINNING_US or after_us == END_US or after_us - before_us <= ahead_us:
        return False
    if peak.bulk_us is None:
        return 0 < STRIDES * stride_us < after_us - before_us
    return after_us - max(before_us, peak.bulk_us) > ahead_us + peak.bulk_us - peak.least_us


def in_words(rows: pa.Table, columns: Sequence[str]) -> str:
    """These columns of the first row, for a log: short, and without characters that a terminal obeys."""
    names = [name for name in dict.fromkeys(columns) if name in rows.column_names]
    return ", ".join(f"{name}={_value(rows[name][0])}" for name in names)


def _value(value: pa.Scalar) -> str:
    if not value.is_valid:
        return "null"
    if pa.types.is_timestamp(value.type):
        unit = value.type.unit
        return str(np.datetime64(value.cast(pa.int64()).as_py(), unit)).replace("T", " ").removesuffix(".000000")
    try:
        text = repr(value.as_py())
    except (ArithmeticError, ValueError, pa.ArrowException):
        return f"a {value.type} that Python cannot have"
    return text if len(text) <= VALUE_LENGTH else f"{text[:VALUE_LENGTH]}…"
