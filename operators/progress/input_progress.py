"""How far an input has come after a micro-batch: from what pieces of it claim, and from the sources so far. Pure.

Every state partition gets the claims of all pieces of a micro-batch and computes the same progress, so the watermark
after it is known where windows fire, without another pass or job.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pyarrow as pa

from tidestate.operators.progress.buffer_state import BufferState
from tidestate.operators.progress.declared_sources import INPUT
from tidestate.operators.progress.instants import BEGINNING_US, END_US
from tidestate.operators.progress.origins import declare_origins, origin_sources, register_sources
from tidestate.operators.progress.peaks import highest
from tidestate.operators.progress.progress import (
    Claims,
    GeneratorState,
    InputReading,
    Observer,
    Progress,
    WatermarkGenerator,
)
from tidestate.operators.progress.tracker import (
    Peak,
    Reports,
    SourceReport,
    begin,
    merged,
    observe,
    reset_sources,
    rows_per_source,
)
from tidestate.operators.progress.watermarks import Watermarks
from tidestate.statestore.arrays import Counters
from tidestate.statestore.errors import of_type


def first_progress(watermarks: Watermarks) -> Progress:
    """The progress before the first micro-batch."""
    return Progress(begin(watermarks.sources), _generator(watermarks).begin(watermarks.sources.names))


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


def rows_of_sources(watermarks: Watermarks, rows: pa.Table) -> Reports:
    """Reports with the row counts of ``rows`` and no watermark: a source that sends rows is not idle."""
    return rows_per_source(rows, source=_source(watermarks), by=watermarks.by)


def combined_progress(watermarks: Watermarks, before: Progress, claims: Iterable[Claims], now_us: int) -> Progress:
    """The progress after a micro-batch at processing time ``now_us``; every known source was polled."""
    pieces, tracker, generator = list(claims), before.tracker, _generator(watermarks)
    # A batch may have been planned before the last tick: the clock did not jump back then.
    now_us = max(now_us, tracker.processing_us or now_us)
    state, claimed = generator.combine(before.generator, pieces, tracker.sources, now_us)
    reports = merged([dict.fromkeys(tracker.sources, SourceReport()), claimed])
    rejected = merged(piece.rejected for piece in pieces)
    reports = merged([reports, {source: report for source, report in rejected.items() if source in reports}])
    replaced = _replaced(generator, reports)
    reports = {source: report for source, report in reports.items() if source not in replaced}
    sources = {name: source for name, source in tracker.sources.items() if name not in replaced}
    polled = msgspec.structs.replace(tracker, sources=sources)
    grown = observe(watermarks.sources, polled, reports, now_us, generator.quiet_after)
    moved = grown.watermark_us > tracker.watermark_us
    peak = _peak(generator, pieces, grown.watermark_us) if moved else grown.peak
    latest = max([grown.latest_us, *(piece.peak.time_us for piece in pieces if piece.peak is not None)])
    return Progress(msgspec.structs.replace(grown, peak=peak, latest_us=latest), state)


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
    return Progress(progress.tracker, msgspec.structs.replace(progress.generator, steps={}))


def finished_progress(watermarks: Watermarks, progress: Progress) -> Progress:
    """The progress at the end of time, when every window is due."""
    return Progress(progress.advanced_to(END_US).tracker, _generator(watermarks).finish(progress.generator))


def restarted_progress(watermarks: Watermarks, progress: Progress) -> Progress:
    """``progress`` after a restart; sources that were declared meanwhile are there, and one that is not declared any
    more and never had a row holds nothing back. No source was idle, and no origin waited for a gap, while the job was
    stopped.
    """
    begun = first_progress(watermarks)
    state, tracker, declared = progress.generator, reset_sources(progress.tracker), begun.tracker.sources
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
    replaced = _replaced(_generator(watermarks), tracker.sources)
    declared = {name: source for name, source in declared.items() if name not in replaced}
    heard = {
        name: source
        for name, source in tracker.sources.items()
        if name in declared or source.rows or source.watermark_us != BEGINNING_US
    }
    sources = declared | heard
    registrations = {side: register_sources(sources, state.buffers[side]) for side in of_engine}
    state = msgspec.structs.replace(state, buffers=state.buffers | registrations)
    return Progress(msgspec.structs.replace(tracker, sources=sources), state)


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
