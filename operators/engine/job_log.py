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
from tidestate.operators.progress.input_progress import LARGE_STRIDES, LEAST_STEPS, in_words, leapt, time_steps
from tidestate.operators.progress.instants import BEGINNING_US, END_US
from tidestate.operators.progress.metrics import gaps_of_progress, metrics
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
    """What an operator has rejected from this checkpoint on."""

    checkpoint_id: int
    rows: Rejections


class JobLog:
    """What the job in ``root`` logs of its checkpoints: a line for each, and warnings, one of a kind a minute for an
    operator.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._steps: dict[str, TimeSteps] = {}
        """The steps of event time since the job started, by operator: others as long are neither leap nor gap."""
        self._warned_ahead_s: dict[str, float] = {}
        self._warned_s: dict[str, float] = {}
        self._waiting: dict[str, RejectedSince] = {}
        """What was rejected since an operator was last warned of: once a minute is enough, and no row is left out."""
        self._last: Published | None = None

    def published(
        self,
        checkpoint: Published,
        ahead: Mapping[str, int],
        rejected: Mapping[str, Sequence[Rejections]],
        now_s: float,
    ) -> None:
        """Log a checkpoint; by operator how many events are ``ahead``, and what tasks ``rejected``. ``now_s``: of a
        clock that only rises.

        A watermark that leapt is a warning, else events ahead of it across a gap in time; then what was rejected.
        """
        self._last = checkpoint
        _log_checkpoint(checkpoint)
        for name, count in ahead.items():
            leap, gap = self._moved(checkpoint, name)
            if leap is not None:
                _warn_of_leap(checkpoint, name, leap, self._root)
            elif gap and count and is_minute_over(self._warned_ahead_s, name, now_s):
                self._warned_ahead_s[name] = now_s
                _warn_of_ahead(checkpoint, name, count)
        self._warn_of_rejections(self.rejections_due(checkpoint.manifest.id, rejected, now_s))

    def end(self) -> None:
        """Warn of the rows that were rejected since the last warning; the run ends."""
        self._warn_of_rejections(self.rejections_left())

    def rejections_due(
        self, checkpoint_id: int, rejected: Mapping[str, Sequence[Rejections]], now_s: float
    ) -> dict[str, RejectedSince]:
        """What each operator has rejected since it was last warned of, if that is long enough ago; with what this
        checkpoint adds.
        """
        for name, parts in rejected.items():
            reasons = total([part.reasons for part in parts])
            if set(reasons) <= {PURGED}:
                continue  # `tidestate.operators.engine.reprocess` logs those
            waiting = self._waiting.get(name, RejectedSince(checkpoint_id, Rejections()))
            example = next(part.example for part in parts if part.reasons)
            rows = Rejections(total([waiting.rows.reasons, reasons]), example)
            self._waiting[name] = RejectedSince(waiting.checkpoint_id, rows)
        due = [name for name in self._waiting if is_minute_over(self._warned_s, name, now_s)]
        self._warned_s |= dict.fromkeys(due, now_s)
        return {name: self._waiting.pop(name) for name in due}

    def rejections_left(self) -> dict[str, RejectedSince]:
        """What nobody has been warned of when a job ends."""
        waiting, self._waiting = self._waiting, {}
        return waiting

    def _moved(self, checkpoint: Published, name: str) -> tuple[Peak | None, bool]:
        """The event, of a few, that moved the watermark far ahead of the others, if it was so; and whether event time
        passed over a stretch without events that is long for this input, or nothing says that it did not.
        """
        plan, progress = checkpoint.plans[name], checkpoint.progress[name]
        before_us = checkpoint.watermark_before_us(name)
        before, after = BEGINNING_US if before_us is None else before_us, progress.watermark_us
        if after in (before, END_US):
            # Where the watermark stood still, its progress says nothing of the events of the batch.
            return None, True
        steps, peak = self._steps.get(name, TimeSteps()), progress.tracker.peak
        self._steps[name] = steps + time_steps(before, after, peak)
        leap = leapt(before, after, peak, plan.input.future_us + plan.allowed_us, steps)
        gap = peak is None or crosses_gap(before + plan.input.delay_us, peak, plan.input.future_us, steps)
        return peak if leap else None, gap

    def _warn_of_rejections(self, rejected: Mapping[str, RejectedSince]) -> None:
        for name, rows in rejected.items():
            if self._last is not None:
                _warn_of_rejections(self._last, name, rows, self._root)


@dataclass(frozen=True)
class Published:
    """A published checkpoint, with the plan and the progress of each operator, by name."""

    manifest: Manifest
    plans: Mapping[str, Plan]
    progress: Mapping[str, Progress]

    def watermark_before_us(self, name: str) -> int | None:
        """The watermark of an operator before it."""
        return self.manifest.operators[name].watermark_before_us


def _log_checkpoint(checkpoint: Published) -> None:
    """The watermark of the output; lag, idle sources and gaps of the first operator."""
    if not log.isEnabledFor(logging.INFO):
        return
    manifest, first = checkpoint.manifest, next(iter(checkpoint.progress.values()))
    numbers = metrics(first.tracker)
    log.info(
        "checkpoint %d (%s): watermark %s, lag %s, idle sources: %s",
        manifest.id,
        manifest.kind,
        watermark_text(list(checkpoint.plans.values())[-1], manifest.watermark_us),
        "none" if numbers.lag_us is None else text_of(numbers.lag_us),
        ", ".join(name for name, one in numbers.sources.items() if one.idle) or "none",
    )
    for gap in gaps_of_progress(first):
        log.info("checkpoint %d: origin %s waits for %d to %d", manifest.id, gap.source, gap.first, gap.last)


def _warn_of_ahead(checkpoint: Published, name: str, count: int) -> None:
    plan, before = checkpoint.plans[name], checkpoint.watermark_before_us(name)
    tolerance = f" ({plan.future_option})" if plan.future_option else ""
    log.warning(
        "checkpoint %d: %d events of %s are far ahead of the watermark, %s, by more than its delay, %s, and the "
        "tolerance, %s%s, together; they are processed; %s",
        checkpoint.manifest.id,
        count,
        name,
        watermark_text(plan, before),
        text_of(plan.input.delay_us),
        text_of(plan.input.future_us),
        tolerance,
        _prevention(plan),
    )


def _warn_of_leap(checkpoint: Published, name: str, peak: Peak, root: str) -> None:
    manifest, plan = checkpoint.manifest, checkpoint.plans[name]
    after = manifest.operators[name].watermark_us
    log.warning(
        "checkpoint %d: the watermark of %s leapt from %s to %s, far ahead of the other events, %s: events before "
        "%s are late from now on; %s; to go back, run tidestate rewind %s %d",
        manifest.id,
        name,
        watermark_text(plan, checkpoint.watermark_before_us(name)),
        watermark_text(plan, after),
        f"because of an event with {peak.event}" if peak.event else "as its sources reported",
        watermark_text(plan, after),
        _prevention(plan),
        root,
        manifest.id - 1,
    )


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


def _warn_of_rejections(checkpoint: Published, name: str, rejected: RejectedSince, root: str) -> None:
    first, last, reasons = rejected.checkpoint_id, checkpoint.manifest.id, rejected.rows.reasons
    plan = checkpoint.plans[name]
    late = plan.reprocesses and VERY_LATE in reasons
    log.warning(
        "%s: %d rows rejected by %s (%s), for example one with %s%s; they are in the late ledger, "
        "late/%s: tidestate late %s%s",
        f"checkpoint {last}" if first == last else f"checkpoints {first} to {last}",
        sum(reasons.values()),
        name,
        ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items())),
        rejected.rows.example,
        _behind(checkpoint, name),
        name,
        root,
        f"; reprocess_late() processes those ({VERY_LATE}) {plan.taken_again}" if late else "",
    )


def _behind(checkpoint: Published, name: str) -> str:
    """The watermark, and the event that moved it there."""
    plan, progress = checkpoint.plans[name], checkpoint.progress[name]
    peak = progress.tracker.peak
    moved = f", moved by an event with {peak.event}" if peak is not None and peak.event else ""
    return f"; the watermark is {watermark_text(plan, progress.watermark_us)}{moved}"


def watermark_text(plan: Plan, watermark: int | None) -> str:
    """A watermark as text: a time, or an offset."""
    if watermark in (None, BEGINNING_US):
        return "undefined"
    return str(watermark) if plan.by_offset else str(time_text(watermark))
