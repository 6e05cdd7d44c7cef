"""What a job logs of each checkpoint once it is published, whichever runner publishes it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.plan.ledger import PURGED, VERY_LATE
from tidestate.operators.plan.plan import Plan
from tidestate.operators.plan.transition import total
from tidestate.operators.progress.generators import MaxEventTime
from tidestate.operators.progress.instants import BEGINNING_US, END_US
from tidestate.operators.progress.metrics import metrics
from tidestate.operators.progress.peaks import Peak, TimeSteps, in_words, leapt, time_steps
from tidestate.operators.progress.rounds import Progress
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.log.summary import time_text
from tidestate.statestore.durations import text_of

log = logging.getLogger("tidestate")


class Rejections(msgspec.Struct, frozen=True):
    """Ledger rows by reason, and one of them in words."""

    reasons: dict[str, int] = {}
    example: str = ""


def rejections_of(plan: Plan, ledger: pa.Table | None) -> Rejections:
    """What a log says of ledger rows."""
    if ledger is None or not ledger.num_rows:
        return Rejections()
    reasons = {one["values"]: one["counts"] for one in pc.value_counts(ledger["reason"]).to_pylist()}
    return Rejections(reasons, in_words(ledger, plan.named_by))


class Strides:
    """The steps that the events of a job's operators have made since it started."""

    def __init__(self) -> None:
        self._known: dict[str, TimeSteps] = {}

    def leap(self, plan: Plan, before_us: int | None, progress: Progress) -> bool:
        """Whether the step to ``progress`` is a leap. It is counted either way: one as long as that is none again."""
        before, after = BEGINNING_US if before_us is None else before_us, progress.watermark_us
        if after in (before, END_US):
            return False
        known, peak = self._known.get(plan.name, TimeSteps()), progress.tracker.peak
        self._known[plan.name] = known + time_steps(before, after, peak)
        return leapt(before, after, peak, plan.future_us + plan.allowed_us, known)


@dataclass(frozen=True)
class Logged:
    """A checkpoint of the job in ``root``: its operators in order, and how far each has come."""

    root: str
    plans: Mapping[str, Plan]
    progress: Mapping[str, Progress]
    manifest: Manifest

    def report(self, strides: Strides, rejected: Mapping[str, Sequence[Rejections]]) -> None:
        """A line of what there is; a warning where a watermark leapt, and one of what each operator rejected."""
        _log_checkpoint(self)
        for name, plan in self.plans.items():
            progress = self.progress[name]
            before = self.manifest.operators[name].watermark_before_us
            if strides.leap(plan, before, progress) and progress.tracker.peak is not None:
                _warn_of_leap(self, plan, before, progress.tracker.peak)
            if any(one.reasons for one in rejected[name]):
                _warn_of_rejections(self, plan, rejected[name])


def _log_checkpoint(job: Logged) -> None:
    """How far time has come, by the first operator; who is idle or waited for."""
    if not log.isEnabledFor(logging.INFO):
        return
    manifest, first = job.manifest, next(iter(job.progress.values()))
    found = metrics(first.tracker)
    log.info(
        "checkpoint %d (%s): watermark %s, lag %s, idle sources: %s",
        manifest.id,
        manifest.kind,
        mark_text(list(job.plans.values())[-1], manifest.watermark_us),
        "none" if found.lag_us is None else text_of(found.lag_us),
        ", ".join(name for name, one in found.sources.items() if one.idle) or "none",
    )
    for gap in first.gaps:
        log.info("checkpoint %d: origin %d waits for %d to %d", manifest.id, gap.origin, gap.first, gap.last)
    if future := manifest.counters.get("future"):
        log.info("checkpoint %d: %d events ahead of the watermark by more than the tolerance", manifest.id, future)


def _warn_of_leap(job: Logged, plan: Plan, before: int | None, peak: Peak) -> None:
    manifest = job.manifest
    after = manifest.operators[plan.name].watermark_us
    log.warning(
        "checkpoint %d: the watermark of %s leapt from %s to %s, far ahead of the other events, %s: events before "
        "%s are late from now on; %s; tidestate rewind %s %d goes back to before it",
        manifest.id,
        plan.name,
        mark_text(plan, before),
        mark_text(plan, after),
        f"by one with {peak.event}" if peak.event else "by what its sources say",
        mark_text(plan, after),
        _prevention(plan),
        job.root,
        manifest.id - 1,
    )


def _prevention(plan: Plan) -> str:
    """Which settings keep one event from moving the watermark that far."""
    generator = plan.watermarks.generator
    if not isinstance(generator, MaxEventTime):
        return "it comes from what the sources say of themselves (docs/PROGRESS.md)"
    waits = f" or {plan.waits_by}" if plan.waits_by else ""
    held = "" if generator.hold_future_us is None else f", now {text_of(generator.hold_future_us)}"
    return (
        f"where its time is wrong, .watermark(max_event_time({generator.column!r}, hold_future=…{held})) leaves out "
        f"events ahead of the clock; where it is right, a longer watermark delay (now {text_of(generator.delay_us)})"
        f"{waits} waits for the others"
    )


def _warn_of_rejections(job: Logged, plan: Plan, rejected: Sequence[Rejections]) -> None:
    reasons = total([one.reasons for one in rejected])
    if set(reasons) == {PURGED}:
        return  # `tidestate.operators.engine.reprocess` says more of those
    example = next(one.example for one in rejected if one.reasons)
    back = plan.feeds_back and VERY_LATE in reasons
    log.warning(
        "checkpoint %d: %d rows rejected by %s (%s), as one with %s%s; they are in the late ledger, late/%s: "
        "tidestate late %s%s",
        job.manifest.id,
        sum(reasons.values()),
        plan.name,
        ", ".join(f"{name} {count}" for name, count in sorted(reasons.items())),
        example,
        _behind_what(job, plan),
        plan.name,
        job.root,
        f"; feed_back() takes those back ({VERY_LATE}) whose windows are kept" if back else "",
    )


def _behind_what(job: Logged, plan: Plan) -> str:
    """Where the watermark is, and which event took it there."""
    progress = job.progress[plan.name]
    peak = progress.tracker.peak
    moved = f", taken there by an event with {peak.event}" if peak is not None and peak.event else ""
    return f"; the watermark is {mark_text(plan, progress.watermark_us)}{moved}"


def mark_text(plan: Plan, watermark: int | None) -> str:
    """A watermark for people: a time, or an offset."""
    if watermark in (None, BEGINNING_US):
        return "undefined"
    return str(watermark) if plan.by_offset else str(time_text(watermark))
