"""The watermark of each source, and their minimum. Pure.

`observe` is called once per round (a batch or a tick) with the report of each source and the processing time of the
round. It returns the next tracker, which the manifest stores. The overall watermark W never goes back, and moves only
when the slowest source does. A source that was polled without result for longer than its timeout is idle: it leaves
the minimum, and counts again once it has caught up with W. While all are idle W stays.

With a quiet time, the watermark of a source that was polled without result for longer goes on with the clock: by as
much as its quiet time grows beyond that. Its rows stop it, and it stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import msgspec

from tidestate.operators.progress.declared_sources import Sources
from tidestate.operators.progress.instants import BEGINNING_US, END_US, moved_one, usable

SourceStatus = Literal["counted", "idle", "catching_up"]


class SourceReport(msgspec.Struct, frozen=True):
    """The report of one source in one round.

    ``watermark_us`` is exclusive; `BEGINNING_US` is none. ``generated``: it follows from this round's rows alone, so
    a lower one than before is no step back. ``asked``: the source was polled. ``status``: the source itself reports
    that it is idle, or active again. ``ended``: this is its last report.
    """

    watermark_us: int = BEGINNING_US
    rows: int = 0
    asked: bool = True
    generated: bool = False
    status: Literal["idle", "active"] | None = None
    ended: bool = False


Reports = dict[str, SourceReport]
"""The reports of a round by source."""


class TimeSteps(msgspec.Struct, frozen=True):
    """Steps from one event to the next in time, if they differ: how many, and the longest."""

    known: int = 0
    longest_us: int = 0

    def __add__(self, other: TimeSteps) -> TimeSteps:
        return TimeSteps(self.known + other.known, max(self.longest_us, other.longest_us))


class Peak(msgspec.Struct, frozen=True):
    """The accepted event with the largest time. ``event`` describes it; empty if the watermark does not follow from
    it. Its bulk of ``bulk`` events has times from ``least_us`` to ``bulk_us``, with these ``steps``; ``bulk_us`` is
    None if there is no bulk.
    """

    time_us: int
    event: str
    least_us: int
    bulk_us: int | None = None
    bulk: int = 0
    steps: TimeSteps = TimeSteps()


class TrackedSource(msgspec.Struct, frozen=True):
    """One source so far. ``quiet_us`` is how long it has been polled without result; ``rows`` and the fields after it
    are totals: rows, moves of its watermark, ignored steps back, invalid watermarks.
    """

    watermark_us: int = BEGINNING_US
    standing: SourceStatus = "counted"
    says_idle: bool = False
    quiet_us: int = 0
    rows: int = 0
    advances: int = 0
    backward: int = 0
    refused: int = 0


class Tracker(msgspec.Struct, frozen=True):
    """All sources so far, and W; `BEGINNING_US` is none yet. Once every source has ended, W is ``ended_us``, the
    largest of their watermarks: only a drain moves it to the end of time.

    Plain data, stored in the manifest as it is. ``processing_us`` is the latest processing time, None before the
    first round and after a restart. ``backward`` counts ignored steps back, also those of sources that have ended.
    ``newest`` has the largest position of each side (`NewestPositions`), ``ahead`` the packed steps of rows that
    are held. ``peak`` is the event that moved W to where it is, if one did. ``latest_us`` is the largest time of an
    accepted event.
    """

    sources: dict[str, TrackedSource]
    watermark_us: int = BEGINNING_US
    processing_us: int | None = None
    advances: int = 0
    backward: int = 0
    refused: int = 0
    clock_backward: int = 0
    ended: int = 0
    max_drift_us: int = 0
    newest: dict[str, int] = {}
    ahead: dict[str, bytes] = {}
    ended_us: int = BEGINNING_US
    peak: Peak | None = None
    latest_us: int = BEGINNING_US

    @property
    def idle(self) -> bool:
        """Whether there are sources and every one is idle."""
        return bool(self.sources) and all(source.standing == "idle" for source in self.sources.values())

    @property
    def drift_us(self) -> int:
        """How far the slowest counted source is behind the fastest one; 0 where fewer than two have a watermark."""
        known = [one.watermark_us for one in self.sources.values() if one.standing == "counted"]
        real = [mark for mark in known if mark not in (BEGINNING_US, END_US)]
        return max(real) - min(real) if real else 0


def begin(settings: Sources) -> Tracker:
    """The tracker before the first round: every declared source counts, and has no watermark yet."""
    return Tracker({name: TrackedSource() for name in settings.names})


def reset_sources(saved: Tracker) -> Tracker:
    """The tracker after a restart: no source was idle meanwhile, and sources that ended do not come back."""
    return msgspec.structs.replace(saved, processing_us=None)


def merged(reports: Iterable[Mapping[str, SourceReport]]) -> dict[str, SourceReport]:
    """Combine the reports of one round's pieces (tasks, files): for each source the largest watermark, the sum of
    rows.
    """
    combined: dict[str, SourceReport] = {}
    for piece in reports:
        for name, report in piece.items():
            combined[name] = _combine(combined[name], report) if name in combined else report
    return combined


def _combine(first: SourceReport, second: SourceReport) -> SourceReport:
    return SourceReport(
        watermark_us=max(first.watermark_us, second.watermark_us),
        rows=first.rows + second.rows,
        asked=first.asked or second.asked,
        generated=first.generated or second.generated,
        status=second.status or first.status,
        ended=first.ended or second.ended,
    )


def never_quiet(_source: str) -> int | None:
    """No watermark goes on with the clock."""
    return None


def observe(
    settings: Sources,
    tracker: Tracker,
    reports: Mapping[str, SourceReport],
    now_us: int,
    quiet_after: Callable[[str], int | None] = never_quiet,
) -> Tracker:
    """The tracker after a round at processing time ``now_us``; sources without a report were not polled. The
    watermark of one that is quiet for longer than ``quiet_after`` says goes on with the clock (None: never).

    An invalid watermark (after the year 9999) and one that goes back are ignored and counted. A clock that jumps back
    is counted too; no time has passed then.
    """
    last = tracker.processing_us
    elapsed = 0 if last is None else max(0, now_us - last)
    before = tracker.watermark_us
    observed, ended_now = dict(tracker.sources), []
    for name in sorted(observed.keys() | reports.keys()):
        source = observed.get(name) or TrackedSource(watermark_us=before)
        report = reports.get(name) or SourceReport(asked=False)
        polled = _observe(source, report, elapsed, settings.timeout_us(name))
        observed[name] = _settle(_by_clock(polled, source.quiet_us, quiet_after(name)), before)
        if report.ended:
            ended_now.append(observed.pop(name))
    ended_us = max([tracker.ended_us, *(source.watermark_us for source in ended_now)])
    after = _overall(observed, before, ended_us)
    old = tracker.sources.values()
    now = [*observed.values(), *ended_now]
    grown = Tracker(
        sources=observed,
        watermark_us=after,
        processing_us=now_us if last is None else max(last, now_us),
        advances=tracker.advances + (after > before),
        backward=tracker.backward + sum(source.backward for source in now) - sum(source.backward for source in old),
        refused=tracker.refused + sum(source.refused for source in now) - sum(source.refused for source in old),
        clock_backward=tracker.clock_backward + (last is not None and now_us < last),
        ended=tracker.ended + len(ended_now),
        newest=tracker.newest,
        ahead=tracker.ahead,
        ended_us=ended_us,
        peak=tracker.peak if after == before else None,
        latest_us=tracker.latest_us,
    )
    return msgspec.structs.replace(grown, max_drift_us=max(tracker.max_drift_us, grown.drift_us))


def _observe(source: TrackedSource, report: SourceReport, elapsed_us: int, timeout_us: int | None) -> TrackedSource:
    """The source after its report. Whether it has caught up is decided by `_settle`."""
    if source.says_idle and report.status != "active":
        # Until it reports that it is active, its rows do not count.
        return msgspec.structs.replace(source, rows=source.rows + report.rows)
    valid = usable(report.watermark_us)
    forward = valid and report.watermark_us > source.watermark_us
    back = valid and BEGINNING_US < report.watermark_us < source.watermark_us and not report.generated
    active = forward or report.rows > 0 or report.status == "active"
    quiet = 0 if active else source.quiet_us + (elapsed_us if report.asked else 0)
    idle = report.status == "idle" or (not active and timeout_us is not None and quiet > timeout_us)
    standing: SourceStatus = source.standing
    if idle:
        standing = "idle"
    elif active and standing == "idle":
        standing = "catching_up"
    return TrackedSource(
        watermark_us=report.watermark_us if forward else source.watermark_us,
        standing=standing,
        says_idle=report.status == "idle",
        quiet_us=quiet,
        rows=source.rows + report.rows,
        advances=source.advances + forward,
        backward=source.backward + back,
        refused=source.refused + (not valid),
    )


def _by_clock(source: TrackedSource, before_us: int, quiet_us: int | None) -> TrackedSource:
    """The source with a watermark that has gone on since it was quiet for ``before_us``."""
    if quiet_us is None or source.quiet_us <= quiet_us:
        return source
    gone_us = source.quiet_us - max(before_us, quiet_us)
    return msgspec.structs.replace(source, watermark_us=moved_one(source.watermark_us, gone_us))


def _settle(source: TrackedSource, watermark_us: int) -> TrackedSource:
    """A source that has caught up with W counts again."""
    if source.standing == "catching_up" and source.watermark_us >= watermark_us:
        return msgspec.structs.replace(source, standing="counted")
    return source


def _overall(observed: Mapping[str, TrackedSource], before_us: int, ended_us: int) -> int:
    counted = [source.watermark_us for source in observed.values() if source.standing == "counted"]
    reached = min(counted, default=before_us) if observed else ended_us
    return max(before_us, reached)
