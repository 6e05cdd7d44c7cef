"""What comes back from the late ledger: events that came too late, for windows that are still kept."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from operators.dedup.plan import DedupPlan
from operators.delivery import read_rows
from operators.job import Job
from operators.prepare import VERY_LATE
from statestore.errors import UsageError


def to_feed(job: Job, rows: pa.Table | None) -> pa.Table:
    """The events to feed back: ``rows``, or all of the ledger that came too late and was not fed before.

    Raises `UsageError` where the job keeps no windows, or has nothing that could be fed.
    """
    plan = job.plan
    if isinstance(plan, DedupPlan):
        raise UsageError("this description has no windows to feed events back to", code="feed")
    if rows is not None:
        return rows
    found = [plan.late_schema.empty_table()]
    for manifest in job.checkpoint.history():
        if manifest.id > job.head.fed and manifest.late:
            ledger = read_rows(job.checkpoint, manifest.late, plan.late_schema)
            found.append(ledger.filter(pc.equal(ledger["reason"], VERY_LATE)))
    return pa.concat_tables(found)
