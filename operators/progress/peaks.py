"""The event furthest ahead in a batch, the bulk of the others, and whether the watermark leapt. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from tidestate.operators.progress.instants import BEGINNING_US, END_US
from tidestate.operators.progress.tracker import Peak, TimeSteps
from tidestate.statestore.arrays import Times

PEAK_SAMPLE_ROWS = 10_000
BULK_SHARE, STRAYS = 20, 2
"""The bulk of a batch is all of it except the latest 20th, and at least the latest two events."""
LARGE = 40
"""From this number of events a bulk is large."""
LARGE_STRIDES, SMALL_STRIDES = 2, 10
"""A leap is this many times longer than the longest step of the run, with a large and with a small bulk."""
FEW_STEPS, LEAST_STEPS = 300, 3
"""With a small bulk and ``n`` known steps, a leap is at least ``FEW_STEPS / n`` times longer; with fewer than
``LEAST_STEPS`` there is none."""
VALUE_LENGTH = 80


def peak_of(times: Times, events: pa.Table, columns: Sequence[str]) -> Peak:
    """The peak of ``events`` at these ``times`` (at least one). The bulk is that of a sample."""
    place = int(np.argmax(times))
    sample = np.sort(times[:: len(times) // PEAK_SAMPLE_ROWS + 1])
    bulk = sample[: -max(STRAYS, len(sample) // BULK_SHARE)]
    gaps = np.diff(bulk)
    return Peak(
        int(times[place]),
        in_words(events.slice(place, 1), columns),
        int(times.min()),
        int(bulk[-1]) if len(bulk) else None,
        len(bulk),
        TimeSteps(int(np.count_nonzero(gaps)), int(gaps.max(initial=0))),
    )


def highest(peaks: Iterable[Peak]) -> Peak | None:
    """The peak of a batch from those of its pieces."""
    ordered = sorted(peaks, key=lambda peak: (peak.time_us, peak.event))
    if not ordered:
        return None
    bulks = [peak.bulk_us for peak in ordered if peak.bulk_us is not None]
    bulks += [peak.time_us for peak in ordered[:-1] if peak.bulk_us is None]
    return msgspec.structs.replace(
        ordered[-1],
        least_us=min(peak.least_us for peak in ordered),
        bulk_us=max(bulks, default=None),
        bulk=sum(peak.bulk for peak in ordered),
        steps=sum((peak.steps for peak in ordered), TimeSteps()),
    )


def leapt(before_us: int, after_us: int, peak: Peak | None, ahead_us: int, run: TimeSteps) -> bool:
    """Whether one event, or a few, moved the watermark so far that events like the rest of the batch would be too
    late.

    That is the case if it is ahead of the bulk, and of the watermark before, by more than ``ahead_us`` (future
    tolerance and allowed lateness) plus the span of the bulk, and by many times the longest step of the ``run`` so
    far and of this bulk. Without a bulk the first watermark is never a leap: there is nothing to compare it with.
    """
    if peak is None or after_us == END_US or (before_us == BEGINNING_US and peak.bulk_us is None):
        return False
    bulk_us = before_us if peak.bulk_us is None else peak.bulk_us
    span_us = 0 if peak.bulk_us is None else bulk_us - peak.least_us
    distance_us, steps = after_us - max(before_us, bulk_us), run + peak.steps
    if distance_us <= ahead_us + span_us:
        return False
    if peak.bulk >= LARGE:
        return distance_us > LARGE_STRIDES * run.longest_us
    return steps.known >= LEAST_STEPS and distance_us > _strides(steps.known) * steps.longest_us


def _strides(known: int) -> int:
    return max(SMALL_STRIDES, FEW_STEPS // known)


def time_steps(before_us: int, after_us: int, peak: Peak | None) -> TimeSteps:
    """The steps of a batch that moved the watermark: to its bulk, within it, and from there to the new watermark."""
    if peak is None:
        return TimeSteps() if before_us == BEGINNING_US else TimeSteps(1, after_us - before_us)
    bulk_us = before_us if peak.bulk_us is None else max(before_us, peak.bulk_us)
    ends = [(before_us, peak.least_us), (bulk_us, after_us)] if peak.bulk_us is not None else [(before_us, after_us)]
    return sum((TimeSteps(1, end - start) for start, end in ends if BEGINNING_US < start < end), peak.steps)


def in_words(rows: pa.Table, columns: Sequence[str]) -> str:
    """These columns of the first row, for a log: short, and without control characters."""
    names = [name for name in dict.fromkeys(columns) if name in rows.column_names]
    return ", ".join(f"{name}={_value(rows[name][0])}" for name in names)


def _value(value: pa.Scalar) -> str:
    if not value.is_valid:
        return "null"
    if pa.types.is_timestamp(value.type):
        moment = np.array(value.cast(pa.int64()).as_py()).astype(f"M8[{value.type.unit}]")
        return str(moment).replace("T", " ").removesuffix(".000000")
    try:
        text = repr(value.as_py())
    except (ArithmeticError, ValueError, pa.ArrowException):
        return f"a {value.type} that Python cannot represent"
    return text if len(text) <= VALUE_LENGTH else f"{text[:VALUE_LENGTH]}…"
