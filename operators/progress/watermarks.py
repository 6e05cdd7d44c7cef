"""How the watermark of an operator's input moves: a generator claims it from rows, for each of the sources. Pure.

Pieces of input are read anywhere, in any order, also twice. Every state partition gets the claims of all pieces of a
micro-batch and computes the same progress, so the watermark after it is known where windows fire, without another
pass or job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import pyarrow as pa

from tidestate.operators.progress.declared_sources import ONE, Sources, given_sources
from tidestate.operators.progress.instants import BEGINNING_US, END_US
from tidestate.operators.progress.maxima import Maxima, SidePositions
from tidestate.operators.progress.origins import declare_origins
from tidestate.operators.progress.peaks import Peak, highest
from tidestate.operators.progress.progress import Claims, GeneratorState, Progress, Reading
from tidestate.operators.progress.sources import INPUT, Reports, SourceReport, merged, rows_per_source
from tidestate.operators.progress.tracker import begin, observe, reset_sources
from tidestate.statestore.arrays import Counters


class WatermarkGenerator:
    """What claims watermarks from rows. It reads them either before they are judged, and may then refuse, drop or
    change them, or afterwards, and then only those that are accepted.

    ``source`` names the source of all rows; with a column ``by`` its values are sources, behind ``source`` and a
    slash, or alone where ``source`` is empty.
    """

    __slots__ = ()

    @property
    def columns(self) -> Sequence[str]:
        """The input columns that it reads."""
        return ()

    @property
    def filters_rows(self) -> bool:
        """Whether it reads rows before they are judged."""
        return False

    @property
    def order(self) -> Sequence[str]:
        """The columns that order the rows of a source; empty if the order does not matter."""
        return ()

    @property
    def orders(self) -> Mapping[str, Sequence[str]]:
        """The columns that order the rows of each side, where each has its own."""
        return {}

    def order_of(self, side: str) -> Sequence[str]:
        """The columns that order the rows of a side."""
        return self.orders.get(side, ()) if self.orders else self.order

    def by_of(self, side: str) -> str | None:
        """The column that names the sources of a side; None if the side is one."""
        return None

    @property
    def followed(self) -> Sequence[str]:
        """The sides that read operators, whose watermarks are theirs."""
        return ()

    def imports_of(self, source: str) -> str | None:
        """The source whose CTIs this one takes over; None for no other."""
        return None

    @property
    def by_clock(self) -> bool:
        """Whether the watermark goes on with the clock, whatever the rows contain."""
        return False

    @property
    def waits(self) -> bool:
        """Whether time alone may move the watermark otherwise."""
        return False

    @property
    def least_quiet_us(self) -> int | None:
        """How long some source must have no rows before its watermark goes on with the clock; None: it never does."""
        return None

    def quiet_after(self, source: str) -> int | None:
        """How long this source must have no rows before its watermark goes on with the clock; None: it never does."""
        return self.least_quiet_us

    @property
    def delay_us(self) -> int:
        """How far the watermark stays behind the newest event; 0 without a delay."""
        return 0

    @property
    def in_parts(self) -> Sequence[str]:
        """Sources that stand for their parts until the first of these has rows."""
        return ()

    def watermarks(self, by: str | None, declared: Sources) -> Watermarks:
        """The settings with this generator. Raises `UsageError` if they contradict each other."""
        return Watermarks(self, given_sources(by, declared), by)

    def begin(self, names: Iterable[str]) -> GeneratorState:
        """The state before the first rows of these declared sources."""
        return GeneratorState()

    def before_checks(
        self, rows: pa.Table, source: str, by: str | None, now_us: int, began: GeneratorState, so_far: GeneratorState
    ) -> Reading | None:
        """Read rows that are not judged yet; None if this one reads accepted rows. ``began`` is the state at the
        start of the micro-batch, ``so_far`` that after the earlier pieces of the same sources.
        """
        return None

    def after_checks(
        self, accepted: pa.Table, rejected: pa.Table | None, source: str, by: str | None, now_us: int
    ) -> tuple[Claims, Counters]:
        """Read rows that are accepted; sources of the rejected ones are not idle."""
        return Claims(), {}

    def combine(
        self, began: GeneratorState, claims: Sequence[Claims], known: Iterable[str], now_us: int
    ) -> tuple[GeneratorState, Reports]:
        """The state after a micro-batch, and the report of each source in it. ``known``: the sources so far."""
        return began, merged(piece.reports for piece in claims)

    def finish(self, state: GeneratorState) -> GeneratorState:
        """The state at the end of the input."""
        return state

    def explains(self, event_us: int, watermark_us: int) -> bool:
        """Whether an event of this time moved the watermark to this one."""
        return False


class Watermarks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``generator`` claims watermarks; ``by`` is the column that names a row's source; ``sources`` are the declared
    ones.
    """

    generator: WatermarkGenerator
    sources: Sources = ONE
    by: str | None = None

    @property
    def positions(self) -> tuple[SidePositions, ...]:
        """The sides whose largest position is tracked."""
        return ()

    @property
    def in_order(self) -> bool:
        """Whether rows are held until W passes them, and count from then on."""
        return False

    @property
    def columns(self) -> list[str]:
        """The input columns that are read."""
        return [name for name in (*self.generator.columns, self.by) if name]

    @property
    def by_clock(self) -> bool:
        """Whether the watermark goes on without input."""
        return self.generator.by_clock

    @property
    def clocked(self) -> bool:
        """Whether time alone may move it: it follows the clock, or sources fall idle, or wait for each other."""
        timed = self.sources.idle_timeout_us is not None or bool(self.sources.own_timeouts_us)
        return self.by_clock or timed or self.generator.waits

    @property
    def quiet_us(self) -> int | None:
        """How long a source has no rows before its watermark goes on with the clock; None: it never does."""
        return self.generator.least_quiet_us

    @property
    def delay_us(self) -> int:
        """How far the watermark stays behind the newest event; 0 of a generator without a delay."""
        return max(self.generator.delay_us, 0)

    @property
    def filters_rows(self) -> bool:
        """Whether the generator removes rows that are no events, before the others are classified."""
        return self.generator.filters_rows

    @property
    def order(self) -> tuple[str, ...]:
        """The columns that order the rows of each source; empty if the order does not matter."""
        return tuple(self.generator.order)

    @property
    def followed(self) -> tuple[str, ...]:
        """The sides that read operators, among others that read streams."""
        return tuple(self.generator.followed)

    def begin(self) -> Progress:
        """The progress before the first micro-batch."""
        return Progress(begin(self.sources), self.generator.begin(self.sources.names))

    def before_checks(self, rows: pa.Table, now_us: int, so_far: Progress | None, began: Progress | None) -> Reading:
        """Read ``rows`` that are not judged yet at processing time ``now_us``, if the generator filters rows.
        ``began`` is the progress at the start of the micro-batch, ``so_far`` that after the earlier pieces of the
        same sources.
        """
        so_far = so_far or self.begin()
        state = (began or so_far).generator
        reading = self.generator.before_checks(rows, self._source, self.by, now_us, state, so_far.generator)
        return reading or Reading(rows, Claims())

    def after_checks(self, accepted: pa.Table, rejected: pa.Table | None, now_us: int) -> tuple[Claims, Counters]:
        """Read rows that are accepted, if the generator does not filter rows. Rejected rows claim no watermark, but
        their source is not idle.
        """
        return self.generator.after_checks(accepted, rejected, self._source, self.by, now_us)

    def present(self, rows: pa.Table) -> Reports:
        """Reports with the row counts of ``rows`` and no watermark: a source that sends rows is not idle."""
        return rows_per_source(rows, source=self._source, by=self.by)

    @property
    def _source(self) -> str:
        return INPUT if self.by is None else ""

    def after(self, before: Progress, claims: Iterable[Claims], now_us: int) -> Progress:
        """The progress after a micro-batch at processing time ``now_us``; every known source was polled."""
        claims, tracker = list(claims), before.tracker
        # A batch may have been planned before the last tick: the clock did not jump back then.
        now_us = max(now_us, tracker.processing_us or now_us)
        state, claimed = self.generator.combine(before.generator, claims, tracker.sources, now_us)
        reports = merged([dict.fromkeys(tracker.sources, SourceReport()), claimed])
        rejected = merged(piece.rejected for piece in claims)
        reports = merged([reports, {name: report for name, report in rejected.items() if name in reports}])
        polled = {name: report for name, report in reports.items() if name not in self._replaced(reports)}
        sources = {name: source for name, source in tracker.sources.items() if name in polled}
        polled_before = msgspec.structs.replace(tracker, sources=sources)
        grown = observe(self.sources, polled_before, polled, now_us, self.generator.quiet_after)
        moved = grown.watermark_us > tracker.watermark_us
        peak = self._peak(claims, grown.watermark_us) if moved else grown.peak
        latest = max([grown.latest_us, *(piece.peak.time_us for piece in claims if piece.peak is not None)])
        return Progress(msgspec.structs.replace(grown, peak=peak, latest_us=latest), state)

    def _replaced(self, names: Iterable[str]) -> set[str]:
        """Sources that stood for their parts, of which some are there by now."""
        wholes = {name.partition("/")[0] for name in names if "/" in name}
        return wholes.intersection(self.generator.in_parts)

    def _peak(self, claims: Iterable[Claims], watermark_us: int) -> Peak | None:
        """The event furthest ahead; it is described only if the watermark follows from it."""
        peak = highest(piece.peak for piece in claims if piece.peak is not None)
        if peak is None or self.generator.explains(peak.time_us, watermark_us):
            return peak
        return msgspec.structs.replace(peak, event="")

    def finish(self, progress: Progress) -> Progress:
        """The progress at the end of time, when every window is due."""
        return Progress(progress.advanced_to(END_US).tracker, self.generator.finish(progress.generator))

    def restarted(self, progress: Progress) -> Progress:
        """``progress`` after a restart; sources that were declared meanwhile are there. No source was idle, and no
        origin waited for a gap, while the job was stopped.
        """
        begun = self.begin()
        state, tracker, declared = progress.generator, reset_sources(progress.tracker), begun.tracker.sources
        if state.buffers is not None:
            new = state.buffers.origins if begun.generator.buffers is None else begun.generator.buffers.origins
            origins = declare_origins(state.buffers.origins, new)
            state = msgspec.structs.replace(
                state, buffers=msgspec.structs.replace(state.buffers, origins=origins, waiting=[])
            )
            present = {str(origin) for origin, *_ in origins.origins}
            # A declared source that has ended does not come back.
            declared = {name: source for name, source in declared.items() if name in present}
        replaced = self._replaced(tracker.sources)
        declared = {name: source for name, source in declared.items() if name not in replaced}
        return Progress(msgspec.structs.replace(tracker, sources=declared | tracker.sources), state)

    def with_positions(self, progress: Progress, claims: Iterable[Claims]) -> Progress:
        """``progress`` with the positions of a micro-batch's rows."""
        if not self.positions:
            return progress
        claims, ahead = list(claims), {}
        for side in self._sides:
            steps = [progress.tracker.ahead.get(side, b""), *(piece.newest.get(side, b"") for piece in claims)]
            ahead[side] = Maxima.unpacked(steps)
        return Progress(msgspec.structs.replace(progress.tracker, ahead=_packed(ahead)), progress.generator)

    def steps(self, progress: Progress) -> tuple[Maxima, ...]:
        """The steps of each side in a micro-batch that ends with this progress; without those of held rows."""
        bound, ahead = self._passed_us(progress), progress.tracker.ahead
        return tuple(Maxima.unpacked([ahead.get(side, b"")]).before(bound) for side in self._sides)

    def newest(self, progress: Progress) -> tuple[int, ...]:
        """The largest position of each side; `BEGINNING_US` before its first row."""
        before = [progress.tracker.newest.get(side, BEGINNING_US) for side in self._sides]
        return tuple(steps.last(first) for first, steps in zip(before, self.steps(progress), strict=True))

    def as_stored(self, progress: Progress) -> Progress:
        """``progress`` as it is stored: of the steps of positions only those of rows that are still held."""
        if not self.positions:
            return progress
        by_side = zip(self._sides, self.newest(progress), strict=True)
        newest = {side: position for side, position in by_side if position != BEGINNING_US}
        bound = self._passed_us(progress)
        held = {side: Maxima.unpacked([steps]).since(bound) for side, steps in progress.tracker.ahead.items()}
        tracker = msgspec.structs.replace(progress.tracker, newest=newest, ahead=_packed(held))
        return Progress(tracker, progress.generator)

    def side_steps(self, rows: pa.Table) -> dict[str, bytes]:
        """The packed steps of the positions of each side in ``rows``."""
        return {positions.side: positions.steps(rows) for positions in self.positions}

    @property
    def _sides(self) -> list[str]:
        return [positions.side for positions in self.positions]

    def _passed_us(self, progress: Progress) -> int:
        """Rows before this time count already."""
        return progress.watermark_us if self.in_order else END_US


class PlacedWatermarks(Watermarks, frozen=True):
    """Watermarks of a join whose sides are placed by positions of their own."""

    positions: tuple[SidePositions, ...] = ()
    in_order: bool = False


def _packed(steps: Mapping[str, Maxima]) -> dict[str, bytes]:
    return {side: own.packed() for side, own in steps.items() if len(own.times)}
