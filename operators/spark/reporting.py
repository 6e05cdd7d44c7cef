"""What a job logs of each checkpoint."""

from __future__ import annotations

import logging

from operators.job import Job
from operators.plan import Plan
from operators.progress.metrics import metrics
from recovery.manifest import Manifest
from recovery.summary import time_text
from statestore.durations import text_of

log = logging.getLogger("tidemark")


def log_checkpoint(job: Job, manifest: Manifest) -> None:
    """How far time has come, by the first operator; who is idle or waited for; what was rejected."""
    first = next(iter(job.progress.values()))
    found = metrics(first.tracker)
    log.info(
        "checkpoint %d (%s): watermark %s, lag %s, idle sources: %s",
        manifest.id,
        manifest.kind,
        mark_text(job.plan, manifest.watermark_us),
        "none" if found.lag_us is None else text_of(found.lag_us),
        ", ".join(name for name, one in found.sources.items() if one.idle) or "none",
    )
    for gap in first.gaps:
        log.info("checkpoint %d: origin %d waits for %d to %d", manifest.id, gap.origin, gap.first, gap.last)
    if future := manifest.counters.get("future"):
        log.info("checkpoint %d: %d events ahead of the watermark by more than the tolerance", manifest.id, future)
    if rejected := sum(ref.rows for ref in manifest.late):
        log.warning("checkpoint %d: %d events rejected, see the late ledger", manifest.id, rejected)


def mark_text(plan: Plan, watermark: int | None) -> str:
    """A watermark for people: a time, or an offset."""
    return str(watermark) if plan.by_offset and watermark is not None else time_text(watermark) or "none"
