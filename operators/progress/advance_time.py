"""Advance-time settings of StreamInsight: CTIs by count or span, and the events that violate one. Pure, vectorised.

Everything is in application time and in the order (origin, offset) of the rows, row by row, so it does not depend on
the cut into batches. An event is compared with the CTIs before it; a CTI comes after the event that causes it. An
event counts towards the next CTI as it was received, even if it is dropped or adjusted.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.progress.cti_settings import AdvanceTime, Generation
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US, instants, is_watermark, moved
from tidestate.statestore.arrays import Flags, Reasons, Times
from tidestate.statestore.missing_columns import missing_columns

SHAPES = ("point", "interval", "edge_start", "edge_end", "cti")
"""Shapes of rows. The start of a ``cti`` row is a CTI of the source itself."""
POINT, INTERVAL, EDGE_START, EDGE_END, CTI = range(len(SHAPES))
UNKNOWN_SHAPE = len(SHAPES)

CTI_VIOLATION = "cti_violation"
ADVANCE_REASONS = (
    "",
    CTI_VIOLATION,
    "null_event_time",
    "event_time_out_of_range",
    "bad_lifetime",
    "unknown_shape",
    "bad_cti",
)
"""Why a row is rejected; the first means that it is not. A valid ``cti`` row has no reason, and is removed too."""


class Advance(msgspec.Struct, frozen=True):
    """The state of a stream between batches; plain data for the manifest.

    ``cti_us`` is the most recent CTI, `BEGINNING_US` before the first. ``counted``: events since the last generated
    CTI; ``reference_us``: the start time from which the next span counts. The rest are totals.
    """

    cti_us: int = BEGINNING_US
    counted: int = 0
    reference_us: int | None = None
    ctis: int = 0
    ignored: int = 0
    dropped: int = 0
    adjusted: int = 0


@dataclass(frozen=True)
class Lifetimes:
    """The rows of a batch: shapes (int8, indices of `SHAPES`), starts and ends (int64 us). All of shape ``(rows,)``.

    Only intervals and edge ends have an end. A start or end whose flag is set is undefined.
    """

    shapes: Reasons
    starts: Times
    ends: Times
    no_start: Flags
    no_end: Flags


@dataclass(frozen=True)
class Advanced:
    """The result of a batch.

    ``kept``: rows that go on. ``starts``: their start times, of adjusted ones the CTI that they violate. ``reasons``:
    indices of `ADVANCE_REASONS` (int8). All of shape ``(rows,)``. ``state`` is the one after the batch.
    """

    kept: Flags
    starts: Times
    adjusted: Flags
    reasons: Reasons
    state: Advance


def lifetimes(
    events: pa.Table, start: str, end: str | None = None, shape: str = "point", shape_column: str | None = None
) -> Lifetimes:
    """Lifetimes of the rows of a table: all of one ``shape``, or each of that in ``shape_column`` (text).

    ``start`` and ``end`` are columns of timestamps or microseconds; a shape with an end has a column of ends, which
    the function ``lifetime`` of users checks. Raises `UsageError` for a missing column.
    """
    columns = [name for name in (start, end, shape_column) if name is not None]
    if missing := [name for name in columns if name not in events.column_names]:
        raise missing_columns("a batch lacks columns of its lifetimes", missing, events.column_names)
    starts, no_start = instants(events[start], start)
    ends, no_end = instants(events[end], end) if end is not None else (starts, np.ones(len(starts), bool))
    if shape_column is None:
        return Lifetimes(np.full(len(starts), SHAPES.index(shape), np.int8), starts, ends, no_start, no_end)
    codes = pc.fill_null(pc.index_in(events[shape_column].cast(pa.string()), pa.array(SHAPES)), UNKNOWN_SHAPE)
    return Lifetimes(np.asarray(codes).astype(np.int8), starts, ends, no_start, no_end)


def advance(settings: AdvanceTime, state: Advance, rows: Lifetimes, imported_us: int = BEGINNING_US) -> Advanced:
    """Process a batch in order. ``imported_us``: the CTI of the imported stream before the first row.

    Bad rows never raise: they are dropped with a reason, or adjusted.
    """
    reasons = _reasons(rows)
    valid = reasons == 0
    candidates, generated, next_ = _candidates(settings.generation, state, rows, valid)
    imported = imported_us if settings.import_from is not None else BEGINNING_US
    opening = max(state.cti_us, imported)
    course = np.maximum.accumulate(np.concatenate([np.array([opening], np.int64), candidates]))
    before = course[:-1]
    times = np.where(rows.shapes == EDGE_END, rows.ends, rows.starts)
    violates = valid & (times < before) & (rows.shapes != CTI)
    adjusted = violates & (settings.policy == "adjust") & (_last_instants(rows) >= before)
    reasons[violates & ~adjusted] = ADVANCE_REASONS.index(CTI_VIOLATION)
    moves = int(np.count_nonzero(course[1:] > course[:-1]))
    return Advanced(
        kept=(reasons == 0) & (rows.shapes != CTI),
        starts=np.where(adjusted, before, rows.starts),
        adjusted=adjusted,
        reasons=reasons,
        state=msgspec.structs.replace(
            next_,
            cti_us=int(course[-1]),
            ctis=state.ctis + moves + (opening > state.cti_us),
            ignored=state.ignored + generated - moves,
            dropped=state.dropped + int(np.count_nonzero(violates & ~adjusted)),
            adjusted=state.adjusted + int(np.count_nonzero(adjusted)),
        ),
    )


def finish(settings: AdvanceTime, state: Advance) -> Advance:
    """The state when the input ends: at the end of time if the settings have a final CTI, else unchanged."""
    if settings.generation is None or not settings.generation.final or state.cti_us == END_US:
        return state
    return msgspec.structs.replace(state, cti_us=END_US, ctis=state.ctis + 1)


def _reasons(rows: Lifetimes) -> Reasons:
    """The reason of each invalid row, 0 for the others."""
    ends_count = (rows.shapes == INTERVAL) | (rows.shapes == EDGE_END)
    # An edge may end at its start: that retracts the event. An interval must not be empty.
    short = np.where(rows.shapes == INTERVAL, rows.ends <= rows.starts, rows.ends < rows.starts)
    beyond = ~is_watermark(rows.starts) | (rows.starts == BEGINNING_US) | (rows.starts == END_US)
    control = rows.shapes == CTI
    reasons = np.zeros(len(rows.starts), np.int8)
    for mask, reason in (
        (ends_count & (rows.no_end | short), "bad_lifetime"),
        (beyond & ~control, "event_time_out_of_range"),
        (rows.no_start & ~control, "null_event_time"),
        (control & (rows.no_start | ~is_watermark(rows.starts)), "bad_cti"),
        (rows.shapes == UNKNOWN_SHAPE, "unknown_shape"),
    ):
        reasons[mask] = ADVANCE_REASONS.index(reason)
    return reasons


def _last_instants(rows: Lifetimes) -> Times:
    """The last instant of each event's lifetime: a point is one instant, an edge start has no end yet."""
    last = np.where(rows.shapes == EDGE_START, END_US, rows.starts)
    return np.where(rows.shapes == INTERVAL, rows.ends - 1, last)


def _candidates(
    settings: Generation | None, state: Advance, rows: Lifetimes, valid: Flags
) -> tuple[Times, int, Advance]:
    """The CTI that each row causes (`BEGINNING_US`: none), how many there are, and the counts after the batch."""
    ctis = np.full(len(rows.starts), BEGINNING_US, np.int64)
    control = valid & (rows.shapes == CTI)
    ctis[control] = rows.starts[control]
    if settings is None:
        return ctis, int(np.count_nonzero(control)), state
    # Ends of edges count neither as events nor as time.
    places = np.flatnonzero(valid & (rows.shapes != EDGE_END) & ~control)
    starts = rows.starts[places]
    if settings.every is not None:
        fires = np.arange(settings.every - 1 - state.counted % settings.every, len(places), settings.every)
        state = msgspec.structs.replace(state, counted=(state.counted + len(places)) % settings.every)
    else:
        fires, reference = _spans(starts, state.reference_us, settings.span_us or 1)
        state = msgspec.structs.replace(state, reference_us=reference)
    ctis[places[fires]] = moved(starts[fires], -settings.delay_us)
    return ctis, len(fires) + int(np.count_nonzero(control)), state


def _spans(starts: Times, reference_us: int | None, span_us: int) -> tuple[Times, int | None]:
    """Indices of the events that start ``span_us`` or more after the last such event (before it: the first event),
    and the new reference. Only a new maximum can be one, so each next one is searched in the running maximum.
    """
    if not len(starts):
        return np.zeros(0, np.int64), reference_us
    reference = int(starts[0]) if reference_us is None else reference_us
    peaks = np.maximum.accumulate(starts)
    place = int(np.searchsorted(peaks, reference + span_us))
    following = np.searchsorted(peaks, moved(peaks, span_us)).tolist() if place < len(peaks) else []
    places = []
    while place < len(peaks):
        places.append(place)
        place = following[place]
    return np.array(places, np.int64), int(peaks[places[-1]]) if places else reference
