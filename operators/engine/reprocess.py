"""What comes back from the late ledger: events that came too late, for windows that are still kept."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.engine.delivery import as_written, read_rows
from tidestate.operators.engine.job_view import JobView
from tidestate.operators.plan.ledger import PURGED, VERY_LATE
from tidestate.operators.plan.plan import Plan
from tidestate.operators.windows.assignment import last_ends
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.moves.fork import advice
from tidestate.statestore.errors import UsageError

log = logging.getLogger("tidestate")


def to_feed(job: JobView, rows: pa.Table | None, operator: str | None = None) -> dict[str, pa.Table]:
    """Events to feed back, by operator: ``rows``, or all of the ledgers that came too late and was not fed before.

    Raises `UsageError` where no operator keeps windows, or it is not said which one ``rows`` are for.
    """
    windowed = {name: plan for name, plan in job.graph.plans.items() if plan.feeds_back}
    if not windowed:
        raise UsageError("this description has no windows to feed events back to", code="feed")
    chosen = [name for name in windowed if operator in (None, name)]
    if not chosen or (rows is not None and len(chosen) > 1):
        raise UsageError(
            "say which operator takes them: operator=...",
            code="feed-operator",
            operator=operator,
            there=list(windowed),
        )
    if rows is not None:
        return {chosen[0]: rows} if rows.num_rows else {}
    found = {name: [windowed[name].late_schema.empty_table()] for name in chosen}
    for output in job.checkpoint.outputs(job.head.fed + 1):
        if not output.late:
            continue
        for name, tables in found.items():
            for rows_then in as_written(job.checkpoint, output.late_of(name)):
                renamed = [pair for at, *pair in job.head.operators[name].renamed if at > output.id]
                ledger = _as_now(windowed[name], rows_then, renamed)
                tables.append(ledger.filter(pc.equal(ledger["reason"], VERY_LATE)))
    whole = {name: pa.concat_tables(tables) for name, tables in found.items()}
    return {name: table for name, table in whole.items() if table.num_rows}


def _as_now(plan: Plan, rows: pa.Table, renamed: Sequence[Sequence[str]]) -> pa.Table:
    """Ledger rows as written, with the columns of now: ``renamed`` since, oldest first; null what was not kept."""
    for old, new in renamed:
        if old in rows.column_names:
            rows = rows.drop_columns([name for name in (new,) if name in rows.column_names])
            rows = rows.rename_columns([new if name == old else name for name in rows.column_names])
    columns = [
        rows[field.name].cast(field.type) if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type)
        for field in plan.late_schema
    ]
    return pa.table(columns, schema=plan.late_schema)


def warn_of_purged(job: JobView, fed: Manifest) -> str | None:
    """Say how to take in what came back for windows that are gone: the newest checkpoint that had them all, forked.

    The command is logged and returned; None where nothing was purged, or no checkpoint that is left had the windows.
    """
    command = None
    for name, plan in job.graph.plans.items():
        rows = read_rows(job.checkpoint, fed.late_of(name), plan.late_schema)
        rows = rows.filter(pc.equal(rows["reason"], PURGED))
        if rows.num_rows:
            command = _warn(job, plan, fed, rows)
    return command


def _warn(job: JobView, plan: Plan, fed: Manifest, rows: pa.Table) -> str | None:
    last = last_ends(plan.kind, rows[plan.event_time].cast(pa.int64()).to_numpy(), rows)
    if "window_end" in rows.column_names:
        named = pc.fill_null(rows["window_end"].cast(pa.int64()), np.iinfo(np.int64).max).to_numpy()
        last = np.minimum(last, named)
    earliest = int(last.min())
    kept = [
        manifest.id
        for manifest in job.checkpoint.history()
        if manifest.id < fed.id
        and (mark := manifest.operators.get(plan.name)) is not None
        and (mark.watermark_us is None or plan.forgotten(mark.watermark_us) < earliest)
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
