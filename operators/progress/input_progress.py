"""How far an input has come after a micro-batch: from what pieces of it claim, and from the sources so far; and its
event furthest ahead, with which the watermark may have leapt. Pure.

Every state partition gets the claims of all pieces of a micro-batch and computes the same progress, so the watermark
after it is known where windows fire, without another pass or job.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from tidestate.operators.progress.buffer_state import BufferState
from tidestate.operators.progress.origins import declare_origins, origin_sources, register_sources
from tidestate.operators.progress.progress import (
    Claims,
    GeneratorState,
    InputReading,
    Observer,
    Peak,
    Progress,
    Reports,
    SourceReport,
    TimeSteps,
    WatermarkGenerator,
    begin,
    merged,
    observe,
    parts_of,
    reset_sources,
    rows_per_source,
)
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US, INPUT, Watermarks
from tidestate.statestore.arrays import Counters, Numbers, Times
from tidestate.statestore.errors import of_type


def first_progress(watermarks: Watermarks) -> Progress:
    """The progress before the first micro-batch."""
    state = _generator(watermarks).begin(watermarks.sources.names)
    return msgspec.structs.replace(begin(watermarks.sources), generator=state)


def read_before_checks(
    watermarks: Watermarks, rows: pa.Table, now_us: int, began: GeneratorState, so_far: GeneratorState
) -> InputReading:
    """Read ``rows`` that are not judged yet at processing time ``now_us``, if the generator filters rows. ``began``
    is its state at the start of the micro-batch, ``so_far`` that after the earlier pieces of the same sources.
    """
    generator = _generator(watermarks)
    reading = generator.before_checks(rows, _source(watermarks), watermarks.by, now_us, began, so_far)
    return reading or InputReading(rows, Claims())


def read_after_checks(
    watermarks: Watermarks, accepted: pa.Table, rejected: pa.Table | None, now_us: int
) -> tuple[Claims, Counters]:
    """Read rows that are accepted, if the generator does not filter rows. Rejected rows claim no watermark, but their
    source is not idle.
    """
    return _generator(watermarks).after_checks(accepted, rejected, _source(watermarks), watermarks.by, now_us)


def plain_until(watermarks: Watermarks, now_us: int) -> int | None:
    """Up to which time rows claim by the largest time of their source alone, see `WatermarkGenerator.plain_until`."""
    return _generator(watermarks).plain_until(now_us)


def read_sliced(watermarks: Watermarks, latest: pa.Table, rows: Numbers, now_us: int) -> Claims:
    """The claims of accepted rows that were combined: ``latest`` stands for the latest of each entry, ``rows`` are
    how many it has. Of shape ``(entries,)``; for generators with `WatermarkGenerator.plain_until`.
    """
    claims, _ = read_after_checks(watermarks, latest, None, now_us)
    names, owners = parts_of(latest, _source(watermarks), watermarks.by)
    sums = np.zeros(len(names), np.int64)
    np.add.at(sums, owners, rows)
    counted = {
        name: msgspec.structs.replace(claims.reports[name], rows=count)
        for name, count in zip(names, sums.tolist(), strict=True)
    }
    return msgspec.structs.replace(claims, reports=claims.reports | counted)


def rows_of_sources(watermarks: Watermarks, rows: pa.Table) -> Reports:
    """Reports with the row counts of ``rows`` and no watermark: a source that sends rows is not idle."""
    return rows_per_source(rows, source=_source(watermarks), by=watermarks.by)


def combined_progress(watermarks: Watermarks, before: Progress, claims: Iterable[Claims], now_us: int) -> Progress:
    """The progress after a micro-batch at processing time ``now_us``; every known source was polled."""
    pieces, generator = list(claims), _generator(watermarks)
    # A batch may have been planned before the last tick: the clock did not jump back then.
    now_us = max(now_us, before.processing_us or now_us)
    state, claimed = generator.combine(before.generator, pieces, before.sources, now_us)
    reports = merged([dict.fromkeys(before.sources, SourceReport()), claimed])
    rejected = merged(piece.rejected for piece in pieces)
    reports = merged([reports, {source: report for source, report in rejected.items() if source in reports}])
    replaced = _replaced(generator, reports)
    reports = {source: report for source, report in reports.items() if source not in replaced}
    sources = {name: source for name, source in before.sources.items() if name not in replaced}
    polled = msgspec.structs.replace(before, sources=sources)
    grown = observe(watermarks.sources, polled, reports, now_us, generator.quiet_after)
    moved = grown.watermark_us > before.watermark_us
    peak = _peak(generator, pieces, grown.watermark_us) if moved else grown.peak
    latest = max([grown.latest_us, *(piece.peak.time_us for piece in pieces if piece.peak is not None)])
    return msgspec.structs.replace(grown, peak=peak, latest_us=latest, generator=state)


def observed_progress(observers: Iterable[Observer], progress: Progress, claims: Iterable[Claims]) -> Progress:
    """The progress of a micro-batch, with what ``observers`` read in its pieces."""
    pieces = list(claims)
    for observer in observers:
        progress = observer.after(progress, pieces)
    return progress


def stored_progress(progress: Progress) -> Progress:
    """The progress of a micro-batch as it is stored, without what is of the micro-batch alone."""
    if not progress.generator.steps:
        return progress
    return msgspec.structs.replace(progress, generator=msgspec.structs.replace(progress.generator, steps={}))


def finished_progress(watermarks: Watermarks, progress: Progress) -> Progress:
    """The progress at the end of time, when every window is due."""
    finished = _generator(watermarks).finish(progress.generator)
    return msgspec.structs.replace(progress.advanced_to(END_US), generator=finished)


def restarted_progress(watermarks: Watermarks, progress: Progress) -> Progress:
    """``progress`` after a restart; sources that were declared meanwhile are there, and one that is not declared any
    more and never had a row holds nothing back. No source was idle, and no origin waited for a gap, while the job was
    stopped.
    """
    begun = first_progress(watermarks)
    state, again, declared = progress.generator, reset_sources(progress), begun.sources
    # Where the engine gives origins, sources are registered below, once it is known which there are.
    of_engine = [side for side, saved in state.buffers.items() if isinstance(saved.ids, dict)]
    for side, saved in state.buffers.items():
        if side in of_engine:
            continue
        restarted = _restarted(saved, begun.generator.buffers.get(side, saved))
        state = msgspec.structs.replace(state, buffers=state.buffers | {side: restarted})
        # A declared source that has ended does not come back.
        present = origin_sources(restarted.origins, side)
        of_other_sides = {name for name in declared if side and name.partition("/")[0] != side}
        declared = {name: source for name, source in declared.items() if name in present | of_other_sides}
    replaced = _replaced(_generator(watermarks), again.sources)
    declared = {name: source for name, source in declared.items() if name not in replaced}
    heard = {
        name: source
        for name, source in again.sources.items()
        if name in declared or source.rows or source.watermark_us != BEGINNING_US
    }
    sources = declared | heard
    registrations = {side: register_sources(sources, state.buffers[side]) for side in of_engine}
    state = msgspec.structs.replace(state, buffers=state.buffers | registrations)
    return msgspec.structs.replace(again, sources=sources, generator=state)


def _restarted(saved: BufferState, begun: BufferState) -> BufferState:
    """Buffers after a restart, with the origins that are declared now; nothing waited meanwhile."""
    origins = declare_origins(saved.origins, begun.origins)
    return msgspec.structs.replace(saved, origins=origins, waiting=[])


def _generator(watermarks: Watermarks) -> WatermarkGenerator:
    return of_type(watermarks.generator, WatermarkGenerator)


def _source(watermarks: Watermarks) -> str:
    return INPUT if watermarks.by is None else ""


def _replaced(generator: WatermarkGenerator, names: Iterable[str]) -> set[str]:
    """Sources that stood for their parts, of which some are there by now."""
    wholes = {name.partition("/")[0] for name in names if "/" in name}
    return wholes.intersection(generator.in_parts)


def _peak(generator: WatermarkGenerator, claims: Iterable[Claims], watermark_us: int) -> Peak | None:
    """The event furthest ahead; it is described only if the watermark follows from it."""
    peak = highest(piece.peak for piece in claims if piece.peak is not None)
    if peak is None or generator.explains(peak.time_us, watermark_us):
        return peak
    return msgspec.structs.replace(peak, event="")


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
    sample = times[:: len(times) // PEAK_SAMPLE_ROWS + 1]
    return peak_with_sample(times, events, columns, int(times.min()), sample)


def peak_with_sample(times: Times, events: pa.Table, columns: Sequence[str], least_us: int, sample: Times) -> Peak:
    """As `peak_of`, of ``events`` that stand for others before them: the smallest time of all, and a ``sample``."""
    place, sample = int(np.argmax(times)), np.sort(sample)
    bulk = sample[: -max(STRAYS, len(sample) // BULK_SHARE)]
    gaps = np.diff(bulk)
    return Peak(
        int(times[place]),
        in_words(events.slice(place, 1), columns),
        least_us,
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
