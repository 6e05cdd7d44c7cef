"""How far all sources have come: a watermark per source, and the smallest of them. Pure.

`observe` is called once a round (a batch or a tick) with what each source reported and the processing time of the
round; it returns the next tracker, which is what a manifest keeps. The overall watermark W never goes back, and moves
only when the slowest source does. A source that was asked and gave nothing for longer than its timeout is idle: it
leaves the minimum, and is counted again when it has caught up with W. When all are idle W stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from tidestate.operators.progress.instants import BEGINNING_US, END_US, usable
from tidestate.operators.progress.peaks import Peak
from tidestate.operators.progress.watermarks import SourceReport, Sources

SourceStatus = Literal["counted", "idle", "catching_up"]


class TrackedSource(msgspec.Struct, frozen=True):
    """One source so far. ``quiet_us`` is how long it has been asked in vain."""

    watermark_us: int = BEGINNING_US
    standing: SourceStatus = "counted"
    says_idle: bool = False
    quiet_us: int = 0
    rows: int = 0
    advances: int = 0
    backward: int = 0
    refused: int = 0


class Tracker(msgspec.Struct, frozen=True):
    """All sources so far, and W; `BEGINNING_US` is none yet. Once every source has ended it is ``ended_us``, the
    largest watermark of those that did: the input ends by being drained.

    Plain data: it goes into a manifest as it is. ``processing_us`` is the latest processing time seen, None before
    the first round and after a restart. ``backward`` counts ignored steps back, also of sources that have ended.
    ``newest`` positions of sides are kept for operators that go by them, see `Watermarks.positions`; ``ahead`` holds
    the packed steps of rows that wait until W passes them. ``peak`` is the event that took W where it is, where one
    did.
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
    """Before the first round: every declared source is counted and has no watermark yet."""
    return Tracker({name: TrackedSource() for name in settings.names})


def reset_sources(saved: Tracker) -> Tracker:
    """As the checkpoint had it. The time since then is nobody's idle time; sources that ended do not come back."""
    return msgspec.structs.replace(saved, processing_us=None)


def observe(settings: Sources, tracker: Tracker, reports: Mapping[str, SourceReport], now_us: int) -> Tracker:
    """The tracker after a round at processing time ``now_us``; sources without a report were not asked.

    A report that cannot be a watermark (beyond the year 9999) or goes back is ignored and counted. A clock that jumps
    back is counted, and no time has passed then.
    """
    last = tracker.processing_us
    elapsed = 0 if last is None else max(0, now_us - last)
    before = tracker.watermark_us
    observed, left = dict(tracker.sources), []
    for name in sorted(observed.keys() | reports.keys()):
        source = observed.get(name) or TrackedSource(watermark_us=before)
        report = reports.get(name) or SourceReport(asked=False)
        observed[name] = _settle(_observe(source, report, elapsed, settings.timeout_us(name)), before)
        if report.ended:
            left.append(observed.pop(name))
    ended = tracker.ended + len(left)
    ended_us = max([tracker.ended_us, *(one.watermark_us for one in left)])
    after = _overall(observed, before, ended_us)
    old = tracker.sources.values()
    now = [*observed.values(), *left]
    grown = Tracker(
        sources=observed,
        watermark_us=after,
        processing_us=now_us if last is None else max(last, now_us),
        advances=tracker.advances + (after > before),
        backward=tracker.backward + sum(one.backward for one in now) - sum(one.backward for one in old),
        refused=tracker.refused + sum(one.refused for one in now) - sum(one.refused for one in old),
        clock_backward=tracker.clock_backward + (last is not None and now_us < last),
        ended=ended,
        newest=tracker.newest,
        ahead=tracker.ahead,
        ended_us=ended_us,
        peak=tracker.peak if after == before else None,
    )
    return msgspec.structs.replace(grown, max_drift_us=max(tracker.max_drift_us, grown.drift_us))


def _observe(source: TrackedSource, report: SourceReport, elapsed_us: int, timeout_us: int | None) -> TrackedSource:
    """The source after its report, before it is known whether it has caught up."""
    if source.says_idle and report.status != "active":
        # Until it says that it is back, what it sends does not speak for it.
        return msgspec.structs.replace(source, rows=source.rows + report.rows)
    good = usable(report.watermark_us)
    forward = good and report.watermark_us > source.watermark_us
    back = good and BEGINNING_US < report.watermark_us < source.watermark_us and not report.generated
    there = forward or report.rows > 0 or report.status == "active"
    quiet = 0 if there else source.quiet_us + (elapsed_us if report.asked else 0)
    gone = report.status == "idle" or (not there and timeout_us is not None and quiet > timeout_us)
    standing: SourceStatus = source.standing
    if gone:
        standing = "idle"
    elif there and standing == "idle":
        standing = "catching_up"
    return TrackedSource(
        watermark_us=report.watermark_us if forward else source.watermark_us,
        standing=standing,
        says_idle=report.status == "idle",
        quiet_us=quiet,
        rows=source.rows + report.rows,
        advances=source.advances + forward,
        backward=source.backward + back,
        refused=source.refused + (not good),
    )


def _settle(source: TrackedSource, watermark_us: int) -> TrackedSource:
    """One that has caught up is counted again."""
    if source.standing == "catching_up" and source.watermark_us >= watermark_us:
        return msgspec.structs.replace(source, standing="counted")
    return source


def _overall(observed: Mapping[str, TrackedSource], before_us: int, ended_us: int) -> int:
    counted = [source.watermark_us for source in observed.values() if source.standing == "counted"]
    reached = min(counted, default=before_us) if observed else ended_us
    return max(before_us, reached)
