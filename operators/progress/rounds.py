"""How a round moves the watermark of a job: what pieces of input claim, and the progress after all of them. Pure.

Every piece of input says what its sources claim; every state partition gets all claims of a round and comes to the
same progress, so the watermark after a batch is known where windows fire, without another pass or job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

import msgspec
import pyarrow as pa

from tidestate.operators.progress.advance_time import Advance
from tidestate.operators.progress.buffered import BufferState, begin_buffers, buffers_after, sort_rows
from tidestate.operators.progress.ctis import Ctis
from tidestate.operators.progress.figures import Gap
from tidestate.operators.progress.generators import MaxEventTime
from tidestate.operators.progress.instants import BEGINNING_US, END_US
from tidestate.operators.progress.maxima import Maxima
from tidestate.operators.progress.metrics import metrics, prometheus_text
from tidestate.operators.progress.origins import declare_origins
from tidestate.operators.progress.peaks import Peak, highest
from tidestate.operators.progress.sources import SourceRows, merged, parts_of, rows_per_source
from tidestate.operators.progress.tracker import Tracker, begin, observe, reset_sources
from tidestate.operators.progress.watermarks import (
    INPUT,
    BufferProgress,
    Generator,
    Reports,
    SourceReport,
    Watermarks,
)
from tidestate.statestore.arrays import Counters


class Progress(msgspec.Struct, frozen=True):
    """How far the input has come, as it is kept between rounds.

    ``advances``: by source, with advance-time settings; ``buffers``: with buffers.
    """

    tracker: Tracker
    advances: dict[str, Advance] = {}
    buffers: BufferState | None = None

    @property
    def watermark_us(self) -> int:
        """W; `BEGINNING_US` before the first."""
        return self.tracker.watermark_us

    @property
    def gaps(self) -> list[Gap]:
        """Which buffers are waited for."""
        now_us = self.tracker.processing_us
        return self.buffers.gaps(now_us) if self.buffers is not None and now_us is not None else []

    def prometheus(self, name: str, counters: Mapping[str, int]) -> str:
        """In the text format of Prometheus, with the job's name as a label on all samples."""
        buffers = {INPUT: self.buffers.origins.counters} if self.buffers is not None else {}
        return prometheus_text(metrics(self.tracker), {"job": name}, self.advances, buffers, self.gaps, counters)


class Claims(msgspec.Struct, frozen=True):
    """What one piece of input says of the watermark; ``rejected`` is about rows that say nothing of it, which make
    known sources no idle ones, and strange ones no sources. ``buffers`` are packed; ``ends`` are of origins,
    ``newest`` packed steps of the positions of sides. ``peak`` is the event furthest ahead.
    """

    reports: Reports = {}
    rejected: Reports = {}
    advances: dict[str, Advance] = {}
    buffers: bytes = b""
    ends: dict[str, int] = {}
    newest: dict[str, bytes] = {}
    peak: Peak | None = None

    def beside(self, rejected: Reports) -> Claims:
        """With reports of rows that were rejected."""
        return msgspec.structs.replace(self, rejected=merged([self.rejected, rejected]))


@dataclass(frozen=True)
class Observed:
    """A piece of input: the events to go on with, its claims, and what the source ``refused``, with reasons."""

    events: pa.Table
    claims: Claims
    counters: Counters = field(default_factory=dict)
    refused: tuple[pa.Table, pa.Array] | None = None


@dataclass(frozen=True)
class Rounds:
    """Rounds of a job with these settings."""

    settings: Watermarks

    def begin(self) -> Progress:
        """Before the first round."""
        buffers = (
            begin_buffers(self.settings.sources.names)
            if isinstance(self.settings.generator, BufferProgress)
            else None
        )
        return Progress(begin(self.settings.sources), {}, buffers)

    def observe(self, events: pa.Table, now_us: int, so_far: Progress | None, began: Progress | None) -> Observed:
        """What ``events`` claim, at processing time ``now_us``. ``began`` is the progress at the start of the batch,
        ``so_far`` with the pieces of the same sources before this one.
        """
        observed = self._observe(events, now_us, so_far, began)
        if not self.settings.positions:
            return observed
        claims = msgspec.structs.replace(
            observed.claims, newest={one.side: one.steps(observed.events) for one in self.settings.positions}
        )
        return replace(observed, claims=claims)

    def placed(self, progress: Progress, claims: Iterable[Claims]) -> Progress:
        """With the positions of the rows of a round."""
        if not self.settings.positions:
            return progress
        claims = list(claims)
        ahead = {
            one.side: Maxima.together(
                [*_steps_of(progress, one.side), *(c.newest.get(one.side, b"") for c in claims)]
            )
            for one in self.settings.positions
        }
        packed = {side: steps.packed() for side, steps in ahead.items() if len(steps.times)}
        return msgspec.structs.replace(progress, tracker=msgspec.structs.replace(progress.tracker, ahead=packed))

    def steps(self, progress: Progress) -> tuple[Maxima, ...]:
        """How the newest position of each side moves in a round that ends with this progress."""
        bound = progress.watermark_us if self.settings.in_order else END_US
        return tuple(Maxima.together(_steps_of(progress, one.side)).before(bound) for one in self.settings.positions)

    def newest(self, progress: Progress) -> tuple[int, ...]:
        """The newest position of each side; `BEGINNING_US` before its first row."""
        known = [progress.tracker.newest.get(one.side, BEGINNING_US) for one in self.settings.positions]
        return tuple(steps.last(first) for first, steps in zip(known, self.steps(progress), strict=True))

    def settled(self, progress: Progress) -> Progress:
        """As it is kept between rounds: only steps of rows that are still held."""
        if not self.settings.positions:
            return progress
        newest = {
            one.side: place
            for one, place in zip(self.settings.positions, self.newest(progress), strict=True)
            if place != BEGINNING_US
        }
        bound = progress.watermark_us if self.settings.in_order else END_US
        held = {side: Maxima.together([steps]).since(bound) for side, steps in progress.tracker.ahead.items()}
        ahead = {side: steps.packed() for side, steps in held.items() if len(steps.times)}
        tracker = msgspec.structs.replace(progress.tracker, newest=newest, ahead=ahead)
        return msgspec.structs.replace(progress, tracker=tracker)

    def _observe(self, events: pa.Table, now_us: int, so_far: Progress | None, began: Progress | None) -> Observed:
        so_far = so_far or self.begin()
        if isinstance(self.settings.generator, Ctis):
            return self._ctis(self.settings.generator, events, so_far, began or so_far)
        if isinstance(self.settings.generator, BufferProgress):
            return _buffers(self.settings.generator, events, began or so_far)
        reading = self._generator.read(events, now_us, source=INPUT, by=self.settings.by)
        return Observed(reading.events, Claims(self._named(reading.reports)), reading.counters)

    def _ctis(self, generator: Ctis, events: pa.Table, so_far: Progress, began: Progress) -> Observed:
        events = events.sort_by([(name, "ascending") for name in generator.order])
        parts = parts_of(events, INPUT, self.settings.by)
        parts = SourceRows([self._name(name) for name in parts.names], parts.codes, parts.alone)
        acted = generator.act(events, parts, so_far.advances, began.advances)
        claims = Claims(self.present(events), advances=acted.states)
        return Observed(acted.events, claims, acted.counters, (acted.refused, acted.reasons))

    @property
    def _generator(self) -> Generator:
        """It reads, as it neither acts first nor sorts buffers."""
        return cast(Generator, self.settings.generator)

    def present(self, rows: pa.Table) -> Reports:
        """Which sources gave ``rows`` that say nothing of the watermark: a source that sends is not idle."""
        return self._named(rows_per_source(rows, source=INPUT, by=self.settings.by))

    def _named(self, reports: Reports) -> Reports:
        return {self._name(name): report for name, report in reports.items()}

    def _name(self, name: str) -> str:
        return name if self.settings.by is None else name.removeprefix(f"{INPUT}/")

    def after(self, before: Progress, claims: Iterable[Claims], now_us: int) -> Progress:
        """The progress after a round at processing time ``now_us``; every known source was asked."""
        claims, tracker = list(claims), before.tracker
        # A batch is planned before the last tick, perhaps: that is no clock that jumps back.
        now_us = max(now_us, tracker.processing_us or now_us)
        advances, buffers = before.advances, before.buffers
        said = {name: SourceReport() for name in tracker.sources}
        given = [one.reports for one in claims]
        if self.settings.by_clock:
            claim = self._generator.read(pa.table({}), now_us, source=INPUT).reports[INPUT]
            said = dict.fromkeys(said or {INPUT: claim}, claim)
        if isinstance(self.settings.generator, Ctis):
            advances = self.settings.generator.after(
                before.advances, [one.advances for one in claims], tracker.sources
            )
            said |= {name: SourceReport(state.cti_us, generated=True) for name, state in advances.items()}
        if isinstance(self.settings.generator, BufferProgress) and buffers is not None:
            arrived, ends = [one.buffers for one in claims], [one.ends for one in claims]
            buffers, own = buffers_after(self.settings.generator, buffers, arrived, ends, now_us)
            said |= own
            # Rows of no sound buffer, or of an origin that had ended, make no source.
            given = [{name: one for name, one in piece.items() if name in said} for piece in given]
        reports = merged([said, *given])
        rejected = merged(one.rejected for one in claims)
        reports = merged([reports, {name: one for name, one in rejected.items() if name in reports}])
        grown = observe(self.settings.sources, tracker, reports, now_us)
        moved = grown.watermark_us > tracker.watermark_us
        peak = self._peak(claims, grown.watermark_us) if moved else grown.peak
        return Progress(msgspec.structs.replace(grown, peak=peak), advances, buffers)

    def _peak(self, claims: Iterable[Claims], watermark_us: int) -> Peak | None:
        """The event furthest ahead; it is named where the watermark follows from it."""
        peak = highest(one.peak for one in claims if one.peak is not None)
        if peak is None:
            return None
        delay_us = self.settings.generator.delay_us if isinstance(self.settings.generator, MaxEventTime) else None
        if delay_us is not None and peak.time_us - delay_us == watermark_us:
            return peak
        return msgspec.structs.replace(peak, event="")

    def finished(self, progress: Progress) -> Progress:
        """At the end of time: every window is due."""
        ended = at_least(progress, END_US)
        if not isinstance(self.settings.generator, Ctis):
            return ended
        return msgspec.structs.replace(ended, advances=self.settings.generator.finished(ended.advances))


def _buffers(generator: BufferProgress, events: pa.Table, began: Progress) -> Observed:
    known = began.buffers or begin_buffers(())
    found = sort_rows(generator, events, known)
    claims = Claims(found.rows, buffers=found.arrived, ends=found.ends)
    return Observed(found.events, claims, refused=(found.refused, found.reasons))


def at_least(progress: Progress, watermark_us: int) -> Progress:
    """``progress`` moved on by hand; a step back is ignored."""
    tracker = progress.tracker
    if watermark_us <= tracker.watermark_us:
        return progress
    moved = msgspec.structs.replace(tracker, watermark_us=watermark_us, peak=None)
    return msgspec.structs.replace(progress, tracker=moved)


def restarted(progress: Progress, begun: Progress) -> Progress:
    """As the checkpoint had it, with sources that have been declared since as they are ``begun``. The time since then
    is nobody's idle time, and no gap was waited for.
    """
    buffers, tracker, sources = progress.buffers, reset_sources(progress.tracker), begun.tracker.sources
    if buffers is not None:
        new = buffers.origins if begun.buffers is None else begun.buffers.origins
        buffers = msgspec.structs.replace(buffers, origins=declare_origins(buffers.origins, new), waiting=[])
        there = {str(origin) for origin, *_ in buffers.origins.origins}
        # One that was declared and has ended does not come back.
        sources = {name: one for name, one in sources.items() if name in there}
    tracker = msgspec.structs.replace(tracker, sources=sources | tracker.sources)
    return Progress(tracker, progress.advances, buffers)


def skip_idle_time(progress: Progress, now_us: int) -> Progress:
    """The time up to ``now_us`` is nobody's idle time: a batch was at work, and no source was asked for more."""
    last = progress.tracker.processing_us
    if last is None or last >= now_us:
        return progress
    tracker = msgspec.structs.replace(progress.tracker, processing_us=now_us)
    return msgspec.structs.replace(progress, tracker=tracker)


def _steps_of(progress: Progress, side: str) -> list[bytes]:
    """The packed steps of a side; none or one."""
    return [progress.tracker.ahead[side]] if side in progress.tracker.ahead else []


def mark_of(progress: Progress) -> int | None:
    """The watermark; None before the first."""
    return None if progress.watermark_us == BEGINNING_US else progress.watermark_us
