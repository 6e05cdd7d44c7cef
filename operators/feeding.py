"""What comes back from the late ledger: events that came too late, for windows that are still kept."""

from __future__ import annotations

import logging

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from operators.assignment import assign
from operators.delivery import read_rows
from operators.general.plan import GeneralPlan
from operators.job import Job
from operators.prepare import PURGED, VERY_LATE
from operators.slices.plan import SlicePlan
from recovery.fork import advice
from recovery.manifest import Manifest
from statestore.errors import UsageError

log = logging.getLogger("tidemark")


def to_feed(job: Job, rows: pa.Table | None) -> pa.Table:
    """The events to feed back: ``rows``, or all of the ledger that came too late and was not fed before.

    Raises `UsageError` where the job keeps no windows, or has nothing that could be fed.
    """
    plan = job.plan
    if not isinstance(plan, GeneralPlan | SlicePlan):
        raise UsageError("this description has no windows to feed events back to", code="feed")
    if rows is not None:
        return rows
    found = [plan.late_schema.empty_table()]
    for manifest in job.checkpoint.history():
        if manifest.id > job.head.fed and manifest.late:
            ledger = read_rows(job.checkpoint, manifest.late, plan.late_schema)
            found.append(ledger.filter(pc.equal(ledger["reason"], VERY_LATE)))
    return pa.concat_tables(found)


def warn_of_purged(job: Job, fed: Manifest) -> str | None:
    """Say how to take in what came back for windows that are gone: the newest checkpoint that had them all, forked.

    The command is logged and returned; None where nothing was purged, or no checkpoint that is left had the windows.
    """
    plan = job.plan
    rows = read_rows(job.checkpoint, fed.late, plan.late_schema)
    rows = rows.filter(pc.equal(rows["reason"], PURGED))
    if not rows.num_rows:
        return None
    index, _, ends = assign(plan.kind, rows[plan.event_time].cast(pa.int64()).to_numpy(), rows)
    last = np.full(rows.num_rows, np.iinfo(np.int64).min)
    np.maximum.at(last, index, ends)
    if "window_end" in rows.column_names:
        named = pc.fill_null(rows["window_end"].cast(pa.int64()), np.iinfo(np.int64).max).to_numpy()
        last = np.minimum(last, named)
    earliest = int(last.min())
    kept = [
        manifest.id
        for manifest in job.checkpoint.history()
        if manifest.id < fed.id
        and (manifest.watermark_us is None or plan.forgotten(manifest.watermark_us) < earliest)
    ]
    command = advice(job.checkpoint.objects.root, kept[-1]) if kept else None
    log.warning(
        "checkpoint %d: %d events came back for windows that are gone: their rows are in its late ledger (%s)%s",
        fed.id,
        rows.num_rows,
        PURGED,
        f"; to take them in, begin a job where the windows are kept, and feed_back(rows) there: {command}"
        if command
        else "",
    )
    return command
