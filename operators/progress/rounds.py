"""How a round moves the watermark of a job: the claims of pieces of input, and the progress after all of them. Pure.

Every state partition gets the claims of all pieces of a round and computes the same progress, so the watermark after
a batch is known where windows fire, without another pass or job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

import msgspec
import pyarrow as pa

from tidestate.operators.progress.advance_time import Advance
from tidestate.operators.progress.buffered import BufferState, begin_buffers, buffers_after, read_buffers
from tidestate.operators.progress.cti_settings import Ctis
from tidestate.operators.progress.ctis import CtiRounds
from tidestate.operators.progress.figures import Gap
from tidestate.operators.progress.generators import MaxEventTime
from tidestate.operators.progress.instants import BEGINNING_US, END_US
from tidestate.operators.progress.maxima import Maxima
from tidestate.operators.progress.metrics import Family, metrics, progress_families
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
    """The progress of an operator's input, as the manifest stores it between rounds.

    ``advances``: the state of advance-time settings, by source; ``buffers``: the state of buffers, if rows have them.
    """

    tracker: Tracker
    advances: dict[str, Advance] = {}
    buffers: BufferState | None = None

    @property
    def watermark_us(self) -> int:
        """W, exclusive; `BEGINNING_US` before the first."""
        return self.tracker.watermark_us

    @property
    def gaps(self) -> list[Gap]:
        """The gaps that origins wait for."""
        now_us = self.tracker.processing_us
        return self.buffers.gaps(now_us) if self.buffers is not None and now_us is not None else []

    def families(self, counters: Mapping[str, int]) -> Iterator[Family]:
        """Its metrics, with those of events and panes by class."""
        buffers = {INPUT: self.buffers.origins.counters} if self.buffers is not None else {}
        return progress_families(metrics(self.tracker), self.advances, buffers, self.gaps, counters)


class Claims(msgspec.Struct, frozen=True):
    """What one piece of input claims of the watermark. ``reports`` are by source; ``rejected`` has the row counts of
    rejected rows, which keep a known source from being idle and add no source. ``buffers`` are packed; ``ends`` are
    declared last sequence numbers by origin; ``newest`` packed steps by side; ``peak`` the event furthest ahead.
    """

    reports: Reports = {}
    rejected: Reports = {}
    advances: dict[str, Advance] = {}
    buffers: bytes = b""
    ends: dict[str, int] = {}
    newest: dict[str, bytes] = {}
    peak: Peak | None = None

    def with_rejected(self, rejected: Reports) -> Claims:
        """These claims with reports of rejected rows."""
        return msgspec.structs.replace(self, rejected=merged([self.rejected, rejected]))


@dataclass(frozen=True)
class Observed:
    """A piece of input: the events that go on, its claims, and the rows that were ``refused``, with reasons; ``ends``
    of edges, which go no further.
    """

    events: pa.Table
    claims: Claims
    counters: Counters = field(default_factory=dict)
    refused: tuple[pa.Table, pa.Array] | None = None
    ends: pa.Table | None = None


@dataclass(frozen=True)
class Rounds:
    """How rounds move the watermark, with these settings."""

    settings: Watermarks

    def begin(self) -> Progress:
        """The progress before the first round."""
        with_buffers = isinstance(self.settings.generator, BufferProgress)
        buffers = begin_buffers(self.settings.sources.names) if with_buffers else None
        return Progress(begin(self.settings.sources), {}, buffers)

    def observe(self, events: pa.Table, now_us: int, so_far: Progress | None, began: Progress | None) -> Observed:
        """Read ``events`` at processing time ``now_us``. ``began`` is the progress at the start of the batch,
        ``so_far`` that after the earlier pieces of the same sources.
        """
        observed = self._observe(events, now_us, so_far, began)
        if not self.settings.positions:
            return observed
        claims = msgspec.structs.replace(
            observed.claims, newest={one.side: one.steps(observed.events) for one in self.settings.positions}
        )
        return replace(observed, claims=claims)

    def with_positions(self, progress: Progress, claims: Iterable[Claims]) -> Progress:
        """``progress`` with the positions of a round's rows."""
        if not self.settings.positions:
            return progress
        claims, ahead = list(claims), {}
        for side in self._sides:
            steps = [progress.tracker.ahead.get(side, b""), *(one.newest.get(side, b"") for one in claims)]
            ahead[side] = Maxima.unpacked(steps)
        return msgspec.structs.replace(
            progress, tracker=msgspec.structs.replace(progress.tracker, ahead=_packed(ahead))
        )

    def steps(self, progress: Progress) -> tuple[Maxima, ...]:
        """The steps of each side in a round that ends with this progress; without those of held rows."""
        bound, ahead = self._passed_us(progress), progress.tracker.ahead
        return tuple(Maxima.unpacked([ahead.get(side, b"")]).before(bound) for side in self._sides)

    def newest(self, progress: Progress) -> tuple[int, ...]:
        """The largest position of each side; `BEGINNING_US` before its first row."""
        before = [progress.tracker.newest.get(side, BEGINNING_US) for side in self._sides]
        return tuple(steps.last(first) for first, steps in zip(before, self.steps(progress), strict=True))

    def between_rounds(self, progress: Progress) -> Progress:
        """``progress`` as it is stored: of the steps only those of rows that are still held."""
        if not self.settings.positions:
            return progress
        by_side = zip(self._sides, self.newest(progress), strict=True)
        newest = {side: position for side, position in by_side if position != BEGINNING_US}
        bound = self._passed_us(progress)
        held = {side: Maxima.unpacked([steps]).since(bound) for side, steps in progress.tracker.ahead.items()}
        tracker = msgspec.structs.replace(progress.tracker, newest=newest, ahead=_packed(held))
        return msgspec.structs.replace(progress, tracker=tracker)

    @property
    def _sides(self) -> list[str]:
        return [positions.side for positions in self.settings.positions]

    def _passed_us(self, progress: Progress) -> int:
        """Rows before this time count already."""
        return progress.watermark_us if self.settings.in_order else END_US

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
        reading = CtiRounds(generator).apply(events, parts, so_far.advances, began.advances)
        claims = Claims(self.present(events), advances=reading.states)
        return Observed(reading.events, claims, reading.counters, (reading.refused, reading.reasons), reading.ends)

    @property
    def _generator(self) -> Generator:
        """The generator, if it is neither `Ctis` nor `BufferProgress`."""
        return cast(Generator, self.settings.generator)

    def present(self, rows: pa.Table) -> Reports:
        """Reports with the row counts of ``rows`` and no watermark: a source that sends rows is not idle."""
        return self._named(rows_per_source(rows, source=INPUT, by=self.settings.by))

    def _named(self, reports: Reports) -> Reports:
        return {self._name(name): report for name, report in reports.items()}

    def _name(self, name: str) -> str:
        return name if self.settings.by is None else name.removeprefix(f"{INPUT}/")

    def after(self, before: Progress, claims: Iterable[Claims], now_us: int) -> Progress:
        """The progress after a round at processing time ``now_us``; every known source was polled."""
        claims, tracker = list(claims), before.tracker
        # A batch may have been planned before the last tick: the clock did not jump back then.
        now_us = max(now_us, tracker.processing_us or now_us)
        advances, buffers = before.advances, before.buffers
        generated = {name: SourceReport() for name in tracker.sources}
        given = [one.reports for one in claims]
        if self.settings.by_clock:
            claim = self._generator.read(pa.table({}), now_us, source=INPUT).reports[INPUT]
            generated = dict.fromkeys(generated or {INPUT: claim}, claim)
        if isinstance(self.settings.generator, Ctis):
            upstream = {
                name: END_US if report.ended else report.watermark_us
                for one in given
                for name, report in one.items()
                if name in self.settings.followed and report.generated | report.ended
            }
            advances = CtiRounds(self.settings.generator).after(
                before.advances, [one.advances for one in claims], tracker.sources, upstream
            )
            generated |= {name: SourceReport(state.cti_us, generated=True) for name, state in advances.items()}
        if isinstance(self.settings.generator, BufferProgress) and buffers is not None:
            arrived, ends = [one.buffers for one in claims], [one.ends for one in claims]
            buffers, by_origin = buffers_after(self.settings.generator, buffers, arrived, ends, now_us)
            generated |= by_origin
            # Rows of an unusable buffer, or of an origin that had ended, add no source.
            given = [{name: one for name, one in piece.items() if name in generated} for piece in given]
        reports = merged([generated, *given])
        rejected = merged(one.rejected for one in claims)
        reports = merged([reports, {name: one for name, one in rejected.items() if name in reports}])
        grown = observe(self.settings.sources, tracker, reports, now_us, self.settings.quiet_us)
        moved = grown.watermark_us > tracker.watermark_us
        peak = self._peak(claims, grown.watermark_us) if moved else grown.peak
        latest = max([grown.latest_us, *(one.peak.time_us for one in claims if one.peak is not None)])
        return Progress(msgspec.structs.replace(grown, peak=peak, latest_us=latest), advances, buffers)

    def _peak(self, claims: Iterable[Claims], watermark_us: int) -> Peak | None:
        """The event furthest ahead; it is described only if the watermark follows from it."""
        peak = highest(one.peak for one in claims if one.peak is not None)
        if peak is None:
            return None
        delay_us = self.settings.generator.delay_us if isinstance(self.settings.generator, MaxEventTime) else None
        if delay_us is not None and peak.time_us - delay_us == watermark_us:
            return peak
        return msgspec.structs.replace(peak, event="")

    def finished(self, progress: Progress) -> Progress:
        """The progress at the end of time, when every window is due."""
        ended = advanced_to(progress, END_US)
        if not isinstance(self.settings.generator, Ctis):
            return ended
        return msgspec.structs.replace(ended, advances=CtiRounds(self.settings.generator).finished(ended.advances))


def _buffers(generator: BufferProgress, events: pa.Table, began: Progress) -> Observed:
    reading = read_buffers(generator, events, began.buffers or begin_buffers(()))
    claims = Claims(reading.rows, buffers=reading.arrived, ends=reading.ends)
    counters = {"control_rows": reading.announced} if reading.announced else {}
    return Observed(reading.events, claims, counters, (reading.refused, reading.reasons))


def advanced_to(progress: Progress, watermark_us: int) -> Progress:
    """``progress`` with this watermark; a step back is ignored."""
    tracker = progress.tracker
    if watermark_us <= tracker.watermark_us:
        return progress
    moved = msgspec.structs.replace(tracker, watermark_us=watermark_us, peak=None)
    return msgspec.structs.replace(progress, tracker=moved)


def at_watermark(progress: Progress, watermark_us: int) -> Progress:
    """``progress`` with this watermark, which may be an earlier one."""
    if progress.watermark_us == watermark_us:
        return progress
    return msgspec.structs.replace(
        progress, tracker=msgspec.structs.replace(progress.tracker, watermark_us=watermark_us)
    )


def restarted(progress: Progress, begun: Progress) -> Progress:
    """``progress`` after a restart; sources that were declared meanwhile are those of ``begun``. No source was idle,
    and no origin waited for a gap, while the job was stopped.
    """
    buffers, tracker, sources = progress.buffers, reset_sources(progress.tracker), begun.tracker.sources
    if buffers is not None:
        new = buffers.origins if begun.buffers is None else begun.buffers.origins
        buffers = msgspec.structs.replace(buffers, origins=declare_origins(buffers.origins, new), waiting=[])
        present = {str(origin) for origin, *_ in buffers.origins.origins}
        # A declared source that has ended does not come back.
        sources = {name: one for name, one in sources.items() if name in present}
    tracker = msgspec.structs.replace(tracker, sources=sources | tracker.sources)
    return Progress(tracker, progress.advances, buffers)


def skip_idle_time(progress: Progress, now_us: int) -> Progress:
    """``progress`` in which no source was idle until ``now_us``: a batch was running, and no source was polled."""
    last = progress.tracker.processing_us
    if last is None or last >= now_us:
        return progress
    tracker = msgspec.structs.replace(progress.tracker, processing_us=now_us)
    return msgspec.structs.replace(progress, tracker=tracker)


def _packed(steps: Mapping[str, Maxima]) -> dict[str, bytes]:
    return {side: own.packed() for side, own in steps.items() if len(own.times)}


def watermark_of(progress: Progress) -> int | None:
    """The watermark; None before the first one."""
    return None if progress.watermark_us == BEGINNING_US else progress.watermark_us
