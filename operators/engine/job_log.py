"""The log of a job: one line per published checkpoint, and warnings, as of a watermark that leapt because of one
event."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidestate.operators.engine.micro_batch import TaskResult
from tidestate.operators.plan.plan import Plan
from tidestate.operators.plan.reasons import PURGED, VERY_LATE
from tidestate.operators.progress.generators import MaxEventTime
from tidestate.operators.progress.metrics import gaps_of_progress, metrics_of
from tidestate.operators.progress.progress import Peak, Progress, TimeSteps
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.log.summary import time_text
from tidestate.statestore.arrays import total
from tidestate.statestore.durations import text_of

log = logging.getLogger("tidestate")
LARGE = 40
"""From this number of events a bulk is large."""
LARGE_STRIDES, SMALL_STRIDES = 2, 10
"""A leap is this many times longer than the longest step of the run, with a large and with a small bulk."""
FEW_STEPS, LEAST_STEPS = 300, 3
"""With a small bulk and ``n`` known steps, a leap is at least ``FEW_STEPS / n`` times longer; with fewer than
``LEAST_STEPS`` there is none."""
WARN_EVERY_S = 60.0
"""How often a source, or an operator, is warned of."""


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
    if steps.known < LEAST_STEPS:
        return False
    return distance_us > max(SMALL_STRIDES, FEW_STEPS // steps.known) * steps.longest_us


def time_steps(before_us: int, after_us: int, peak: Peak | None) -> TimeSteps:
    """The steps of a batch that moved the watermark: to its bulk, within it, and from there to the new watermark."""
    if peak is None:
        return TimeSteps() if before_us == BEGINNING_US else TimeSteps(1, after_us - before_us)
    bulk_us = before_us if peak.bulk_us is None else max(before_us, peak.bulk_us)
    ends = [(before_us, peak.least_us), (bulk_us, after_us)] if peak.bulk_us is not None else [(before_us, after_us)]
    return sum((TimeSteps(1, end - start) for start, end in ends if BEGINNING_US < start < end), peak.steps)


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


def is_minute_over(warned_s: Mapping[str, float], name: str, now_s: float) -> bool:
    """Whether a name may be warned of, if it was last at the time that it has in ``warned_s``, by the same clock."""
    return now_s - warned_s.get(name, -WARN_EVERY_S) >= WARN_EVERY_S


@dataclass(frozen=True)
class RejectedSince:
    """What an operator has rejected from this checkpoint on: how many rows by reason, and one of them in words."""

    checkpoint_id: int
    reasons: Mapping[str, int]
    example: str


class JobLog:
    """What the job in ``root`` logs of its checkpoints: a line for each, and warnings, one of a kind a minute for an
    operator.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._manifest: Manifest | None = None
        """The newest checkpoint; with its plans and its progress, by operator."""
        self._plans: Mapping[str, Plan] = {}
        self._progress: Mapping[str, Progress] = {}
        self._steps: dict[str, TimeSteps] = {}
        """The steps of event time since the job started, by operator: others as long are neither leap nor gap."""
        self._warned_ahead_s: dict[str, float] = {}
        self._warned_s: dict[str, float] = {}
        self._waiting: dict[str, RejectedSince] = {}
        """What was rejected since an operator was last warned of: once a minute is enough, and no row is left out."""

    def published(
        self,
        manifest: Manifest,
        plans: Mapping[str, Plan],
        progress: Mapping[str, Progress],
        answers: Mapping[str, Sequence[TaskResult]],
        now_s: float,
    ) -> None:
        """Log a checkpoint, with the plan, the progress and the answers of each operator. ``now_s``: of a clock that
        only rises.

        A watermark that leapt is a warning, else events ahead of it across a gap in time; then what was rejected.
        """
        self._manifest, self._plans, self._progress = manifest, plans, progress
        if log.isEnabledFor(logging.INFO):
            self._log_checkpoint(manifest)
        for name, of_name in answers.items():
            leap, gap = self._moved(manifest, name)
            ahead = sum(answer.counters.get("future", 0) for answer in of_name)
            if leap is not None:
                self._warn_of_leap(manifest, name, leap)
            elif gap and ahead and is_minute_over(self._warned_ahead_s, name, now_s):
                self._warned_ahead_s[name] = now_s
                self._warn_of_ahead(manifest, name, ahead)
        for name, rows in self.rejections_due(manifest.id, answers, now_s).items():
            self._warn_of_rejections(manifest, name, rows)

    def end(self) -> None:
        """Warn of the rows that were rejected since the last warning; the run ends."""
        if self._manifest is not None:
            for name, rows in self.rejections_left().items():
                self._warn_of_rejections(self._manifest, name, rows)

    def rejections_due(
        self, checkpoint_id: int, answers: Mapping[str, Sequence[TaskResult]], now_s: float
    ) -> dict[str, RejectedSince]:
        """What each operator has rejected since it was last warned of, if that is long enough ago; with what this
        checkpoint adds.
        """
        for name, of_name in answers.items():
            reasons = total([answer.rejected for answer in of_name])
            if set(reasons) <= {PURGED}:
                continue  # `tidestate.operators.engine.reprocess` logs those
            waiting = self._waiting.get(name, RejectedSince(checkpoint_id, {}, ""))
            example = next(answer.example for answer in of_name if answer.rejected)
            reasons = total([dict(waiting.reasons), reasons])
            self._waiting[name] = RejectedSince(waiting.checkpoint_id, reasons, example)
        due = [name for name in self._waiting if is_minute_over(self._warned_s, name, now_s)]
        self._warned_s |= dict.fromkeys(due, now_s)
        return {name: self._waiting.pop(name) for name in due}

    def rejections_left(self) -> dict[str, RejectedSince]:
        """What nobody has been warned of when a job ends."""
        waiting, self._waiting = self._waiting, {}
        return waiting

    def _moved(self, manifest: Manifest, name: str) -> tuple[Peak | None, bool]:
        """The event, of a few, that moved the watermark far ahead of the others, if it was so; and whether event time
        passed over a stretch without events that is long for this input, or nothing says that it did not.
        """
        plan, progress = self._plans[name], self._progress[name]
        before_us = manifest.operators[name].watermark_before_us
        before, after = BEGINNING_US if before_us is None else before_us, progress.watermark_us
        if after in (before, END_US):
            # Where the watermark stood still, its progress says nothing of the events of the batch.
            return None, True
        steps, peak = self._steps.get(name, TimeSteps()), progress.peak
        self._steps[name] = steps + time_steps(before, after, peak)
        leap = leapt(before, after, peak, plan.input.future_us + plan.allowed_us, steps)
        gap = peak is None or crosses_gap(before + plan.input.delay_us, peak, plan.input.future_us, steps)
        return peak if leap else None, gap

    def _log_checkpoint(self, manifest: Manifest) -> None:
        """The watermark of the output; lag, idle sources and gaps of the first operator."""
        first = next(iter(self._progress.values()))
        numbers = metrics_of(first)
        log.info(
            "checkpoint %d (%s): watermark %s, lag %s, idle sources: %s",
            manifest.id,
            manifest.kind,
            watermark_text(list(self._plans.values())[-1], manifest.watermark_us),
            "none" if numbers.lag_us is None else text_of(numbers.lag_us),
            ", ".join(name for name, one in numbers.sources.items() if one.idle) or "none",
        )
        for gap in gaps_of_progress(first):
            log.info("checkpoint %d: origin %s waits for %d to %d", manifest.id, gap.source, gap.first, gap.last)

    def _warn_of_ahead(self, manifest: Manifest, name: str, count: int) -> None:
        plan, before = self._plans[name], manifest.operators[name].watermark_before_us
        tolerance = f" ({plan.future_option})" if plan.future_option else ""
        log.warning(
            "checkpoint %d: %d events of %s are far ahead of the watermark, %s, by more than its delay, %s, and the "
            "tolerance, %s%s, together; they are processed; %s",
            manifest.id,
            count,
            name,
            watermark_text(plan, before),
            text_of(plan.input.delay_us),
            text_of(plan.input.future_us),
            tolerance,
            _prevention(plan),
        )

    def _warn_of_leap(self, manifest: Manifest, name: str, peak: Peak) -> None:
        plan, operator = self._plans[name], manifest.operators[name]
        after = watermark_text(plan, operator.watermark_us)
        log.warning(
            "checkpoint %d: the watermark of %s leapt from %s to %s, far ahead of the other events, %s: events "
            "before %s are late from now on; %s; to go back, run tidestate rewind %s %d",
            manifest.id,
            name,
            watermark_text(plan, operator.watermark_before_us),
            after,
            f"because of an event with {peak.event}" if peak.event else "as its sources reported",
            after,
            _prevention(plan),
            self._root,
            manifest.id - 1,
        )

    def _warn_of_rejections(self, manifest: Manifest, name: str, rejected: RejectedSince) -> None:
        first, last, plan = rejected.checkpoint_id, manifest.id, self._plans[name]
        late = plan.reprocesses and VERY_LATE in rejected.reasons
        log.warning(
            "%s: %d rows rejected by %s (%s), for example one with %s%s; they are in the late ledger, "
            "late/%s: tidestate late %s%s",
            f"checkpoint {last}" if first == last else f"checkpoints {first} to {last}",
            sum(rejected.reasons.values()),
            name,
            ", ".join(f"{reason} {count}" for reason, count in sorted(rejected.reasons.items())),
            rejected.example,
            self._behind(name),
            name,
            self._root,
            f"; reprocess_late() processes those ({VERY_LATE}) {plan.taken_again}" if late else "",
        )

    def _behind(self, name: str) -> str:
        """The watermark, and the event that moved it there."""
        progress = self._progress[name]
        peak = progress.peak
        moved = f", moved by an event with {peak.event}" if peak is not None and peak.event else ""
        return f"; the watermark is {watermark_text(self._plans[name], progress.watermark_us)}{moved}"


def _prevention(plan: Plan) -> str:
    """The settings that keep one event from moving the watermark so far."""
    claimant = plan.input.watermarks.generator
    claimants = [*claimant.of_sides.values()] or [claimant]
    bounded = [claimant for claimant in claimants if isinstance(claimant, MaxEventTime)]
    if not bounded:
        return "the sources report their own progress (docs/how-to/watermarks.md)"
    waits = f" or {plan.waits_by}" if plan.waits_by else ""
    future_us = bounded[0].hold_future_us
    held = "" if future_us is None else f", now {text_of(future_us)}"
    return (
        f"if its time is wrong, watermark.bounded(…, hold_future=…{held}) ignores events ahead of the clock; if it "
        f"is right, a longer watermark delay (now {text_of(plan.input.delay_us)}){waits} waits for the other events"
    )


def watermark_text(plan: Plan, watermark: int | None) -> str:
    """A watermark as text: a time, or an offset."""
    if watermark in (None, BEGINNING_US):
        return "undefined"
    return str(watermark) if plan.by_offset else str(time_text(watermark))
