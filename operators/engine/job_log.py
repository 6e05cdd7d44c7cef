"""The log of a job: one line per published checkpoint, and warnings."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.plan.plan import Plan
from tidestate.operators.plan.reasons import PURGED, VERY_LATE
from tidestate.operators.progress.generators import MaxEventTime
from tidestate.operators.progress.instants import BEGINNING_US, END_US
from tidestate.operators.progress.metrics import gaps_of_progress, metrics
from tidestate.operators.progress.peaks import LARGE_STRIDES, LEAST_STEPS, in_words, leapt, time_steps
from tidestate.operators.progress.progress import Progress
from tidestate.operators.progress.tracker import Peak, TimeSteps
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.log.summary import time_text
from tidestate.statestore.arrays import total
from tidestate.statestore.durations import text_of

log = logging.getLogger("tidestate")
WARN_EVERY_S = 60.0
"""How often a source, or an operator, is warned of."""


class Rejections(msgspec.Struct, frozen=True):
    """The number of ledger rows by reason, and one of them as text."""

    reasons: dict[str, int] = {}
    example: str = ""


def rejections_of(plan: Plan, ledger: pa.Table | None) -> Rejections:
    """A summary of ledger rows, for the log."""
    if ledger is None or not ledger.num_rows:
        return Rejections()
    reasons = {row["values"]: row["counts"] for row in pc.value_counts(ledger["reason"]).to_pylist()}
    return Rejections(reasons, in_words(ledger, plan.named_by))


@dataclass(frozen=True)
class TimeJump:
    """How a batch moved event time, compared with the steps before it and within it. ``leap``: one event, or a few,
    moved the watermark far ahead of the others. ``gap``: it passed over a stretch of time without events that is long
    for this input, or nothing says that it did not.
    """

    leap: bool
    gap: bool


class LeapDetector:
    """Detects leaps and gaps from the steps of event times since the job started, by operator."""

    def __init__(self) -> None:
        self._known: dict[str, TimeSteps] = {}

    def jump(self, plan: Plan, before_us: int | None, progress: Progress) -> TimeJump:
        """How event time moved to ``progress``. Its steps are recorded: others as long are neither leap nor gap.

        Where the watermark stood still, its progress says nothing of the events of the batch.
        """
        before, after = BEGINNING_US if before_us is None else before_us, progress.watermark_us
        if after in (before, END_US):
            return TimeJump(leap=False, gap=True)
        steps, peak = self._known.get(plan.name, TimeSteps()), progress.tracker.peak
        self._known[plan.name] = steps + time_steps(before, after, peak)
        return TimeJump(
            leap=leapt(before, after, peak, plan.future_us + plan.allowed_us, steps),
            gap=peak is None or crosses_gap(before + plan.delay_us, peak, plan.future_us, steps),
        )


def crosses_gap(newest_us: int, peak: Peak, tolerance_us: int, run: TimeSteps) -> bool:
    """Whether there is a gap between the events before a batch, the newest at ``newest_us``, and its events, or among
    these: a step in time longer than ``tolerance_us``, and by far longer than those of the ``run`` and of the batch.

    The batch of an ordinary day has none: its events follow those of the day before, and each other, in small steps.
    """
    steps = run + peak.steps
    if _is_gap(peak.least_us - newest_us, tolerance_us, steps) or leapt(
        newest_us, peak.time_us, peak, tolerance_us, run
    ):
        return True
    if peak.bulk_us is None:
        return _is_gap(peak.time_us - max(peak.least_us, newest_us), tolerance_us, steps)
    longest_us = peak.steps.longest_us
    if run.known:
        return _is_gap(longest_us, tolerance_us, run)
    # Nothing but the batch itself to compare with: a gap is longer than all of its other steps together.
    others_us = peak.bulk_us - peak.least_us - longest_us
    return peak.steps.known >= LEAST_STEPS and longest_us > max(tolerance_us, others_us)


def _is_gap(step_us: int, tolerance_us: int, others: TimeSteps) -> bool:
    return step_us > max(tolerance_us, LARGE_STRIDES * others.longest_us)


@dataclass(frozen=True)
class AheadDue:
    """The ``counts`` of events ahead, of the operators whose last warning is a minute ago at ``now_s``."""

    counts: Mapping[str, int]
    now_s: float
    warned: dict[str, float]

    def take(self, name: str) -> int:
        """How many events to warn of now, 0 for none. The minute of this operator begins again."""
        if name in self.counts:
            self.warned[name] = self.now_s
        return self.counts.get(name, 0)


class AheadWarnings:
    """When the source of each operator was last warned of: once a minute is enough."""

    def __init__(self) -> None:
        self._warned: dict[str, float] = {}

    def due(self, ahead: Mapping[str, int], now_s: float) -> AheadDue:
        """The operators that may be warned of, of those with so many events ``ahead``, at this time of a clock.

        A minute begins with a warning, so what is taken from the answer; most batches with such events give no reason
        for one.
        """
        counts = {
            name: count
            for name, count in ahead.items()
            if count and now_s - self._warned.get(name, -WARN_EVERY_S) >= WARN_EVERY_S
        }
        return AheadDue(counts, now_s, self._warned)


@dataclass(frozen=True)
class RejectedSince:
    """What an operator has rejected from this checkpoint on."""

    checkpoint_id: int
    rows: Rejections


class RejectionWarnings:
    """Collects what operators reject: once a minute is enough, and no row is left out."""

    def __init__(self) -> None:
        self._warned: dict[str, float] = {}
        self._waiting: dict[str, RejectedSince] = {}

    def due(
        self, checkpoint_id: int, rejected: Mapping[str, Sequence[Rejections]], now_s: float
    ) -> dict[str, RejectedSince]:
        """What each operator has rejected since it was last warned of, if that is long enough ago."""
        for name, parts in rejected.items():
            reasons = total([part.reasons for part in parts])
            if set(reasons) <= {PURGED}:
                continue  # `tidestate.operators.engine.reprocess` logs those
            waiting = self._waiting.get(name, RejectedSince(checkpoint_id, Rejections()))
            example = next(part.example for part in parts if part.reasons)
            rows = Rejections(total([waiting.rows.reasons, reasons]), example)
            self._waiting[name] = RejectedSince(waiting.checkpoint_id, rows)
        due = [name for name in self._waiting if now_s - self._warned.get(name, -WARN_EVERY_S) >= WARN_EVERY_S]
        self._warned |= dict.fromkeys(due, now_s)
        return {name: self._waiting.pop(name) for name in due}

    def rest(self) -> dict[str, RejectedSince]:
        """What nobody has been warned of when a job ends."""
        rest, self._waiting = self._waiting, {}
        return rest


@dataclass(frozen=True)
class CheckpointLog:
    """A published checkpoint of the job in ``root``, with the plan and the progress of each operator, by name."""

    root: str
    plans: Mapping[str, Plan]
    progress: Mapping[str, Progress]
    manifest: Manifest

    def report(self, leaps: LeapDetector, ahead: AheadDue, rejected: Mapping[str, RejectedSince]) -> None:
        """Log one line, and a warning for each watermark that leapt, else for events ``ahead`` of it across a gap,
        and for what operators rejected.
        """
        _log_checkpoint(self)
        for name, plan in self.plans.items():
            progress = self.progress[name]
            before = self.manifest.operators[name].watermark_before_us
            jump = leaps.jump(plan, before, progress)
            if jump.leap and progress.tracker.peak is not None:
                _warn_of_leap(self, plan, before, progress.tracker.peak)
            elif jump.gap and (count := ahead.take(name)):
                _warn_of_ahead(self, plan, count)
        self.warn_of_rejections(rejected)

    def warn_of_rejections(self, rejected: Mapping[str, RejectedSince]) -> None:
        """A line for each operator."""
        for name, rows in rejected.items():
            _warn_of_rejections(self, self.plans[name], rows)


def _log_checkpoint(job: CheckpointLog) -> None:
    """The watermark of the output; lag, idle sources and gaps of the first operator."""
    if not log.isEnabledFor(logging.INFO):
        return
    manifest, first = job.manifest, next(iter(job.progress.values()))
    numbers = metrics(first.tracker)
    log.info(
        "checkpoint %d (%s): watermark %s, lag %s, idle sources: %s",
        manifest.id,
        manifest.kind,
        watermark_text(list(job.plans.values())[-1], manifest.watermark_us),
        "none" if numbers.lag_us is None else text_of(numbers.lag_us),
        ", ".join(name for name, one in numbers.sources.items() if one.idle) or "none",
    )
    for gap in gaps_of_progress(first):
        log.info("checkpoint %d: origin %d waits for %d to %d", manifest.id, gap.origin, gap.first, gap.last)


def _warn_of_ahead(job: CheckpointLog, plan: Plan, count: int) -> None:
    before = job.manifest.operators[plan.name].watermark_before_us
    tolerance = f" ({plan.future_option})" if plan.future_option else ""
    log.warning(
        "checkpoint %d: %d events of %s are far ahead of the watermark, %s, by more than its delay, %s, and the "
        "tolerance, %s%s, together; they are processed; %s",
        job.manifest.id,
        count,
        plan.name,
        watermark_text(plan, before),
        text_of(plan.delay_us),
        text_of(plan.future_us),
        tolerance,
        _prevention(plan),
    )


def _warn_of_leap(job: CheckpointLog, plan: Plan, before: int | None, peak: Peak) -> None:
    manifest = job.manifest
    after = manifest.operators[plan.name].watermark_us
    log.warning(
        "checkpoint %d: the watermark of %s leapt from %s to %s, far ahead of the other events, %s: events before "
        "%s are late from now on; %s; to go back, run tidestate rewind %s %d",
        manifest.id,
        plan.name,
        watermark_text(plan, before),
        watermark_text(plan, after),
        f"because of an event with {peak.event}" if peak.event else "as its sources reported",
        watermark_text(plan, after),
        _prevention(plan),
        job.root,
        manifest.id - 1,
    )


def _prevention(plan: Plan) -> str:
    """The settings that keep one event from moving the watermark so far."""
    claimant = plan.watermarks.generator
    claimants = [*claimant.of_sides.values()] or [claimant]
    bounded = [claimant for claimant in claimants if isinstance(claimant, MaxEventTime)]
    if not bounded:
        return "the sources report their own progress (docs/how-to/watermarks.md)"
    waits = f" or {plan.waits_by}" if plan.waits_by else ""
    future_us = bounded[0].hold_future_us
    held = "" if future_us is None else f", now {text_of(future_us)}"
    return (
        f"if its time is wrong, watermark.bounded(…, hold_future=…{held}) ignores events ahead of the clock; if it "
        f"is right, a longer watermark delay (now {text_of(plan.delay_us)}){waits} waits for the other events"
    )


def _warn_of_rejections(job: CheckpointLog, plan: Plan, rejected: RejectedSince) -> None:
    first, last, reasons = rejected.checkpoint_id, job.manifest.id, rejected.rows.reasons
    late = plan.reprocesses and VERY_LATE in reasons
    log.warning(
        "%s: %d rows rejected by %s (%s), for example one with %s%s; they are in the late ledger, "
        "late/%s: tidestate late %s%s",
        f"checkpoint {last}" if first == last else f"checkpoints {first} to {last}",
        sum(reasons.values()),
        plan.name,
        ", ".join(f"{name} {count}" for name, count in sorted(reasons.items())),
        rejected.rows.example,
        _behind(job, plan),
        plan.name,
        job.root,
        f"; reprocess_late() processes those ({VERY_LATE}) {plan.taken_again}" if late else "",
    )


def _behind(job: CheckpointLog, plan: Plan) -> str:
    """The watermark, and the event that moved it there."""
    progress = job.progress[plan.name]
    peak = progress.tracker.peak
    moved = f", moved by an event with {peak.event}" if peak is not None and peak.event else ""
    return f"; the watermark is {watermark_text(plan, progress.watermark_us)}{moved}"


def watermark_text(plan: Plan, watermark: int | None) -> str:
    """A watermark as text: a time, or an offset."""
    if watermark in (None, BEGINNING_US):
        return "undefined"
    return str(watermark) if plan.by_offset else str(time_text(watermark))
