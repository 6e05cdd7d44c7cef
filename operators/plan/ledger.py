"""Rows of the late ledger: the rejected event, the reason and the watermark. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.plan.plan import Plan


def ledger(plan: Plan, rejected: pa.Table, reasons: str | pa.Array, watermark_us: int | None) -> pa.Table:
    """Rows of the late ledger; without a window if all windows of the event refused it."""
    count = rejected.num_rows
    nowhere = np.zeros(count, np.int64)
    why = pa.array([reasons]).take(pa.array(nowhere)) if isinstance(reasons, str) else reasons
    mark = pa.array([watermark_us], pa.int64()).cast(plan.mark_type) if _real(watermark_us) else None
    marks = pc.take(mark, pa.array(nowhere)) if mark is not None else pa.nulls(count, plan.mark_type)
    given = {"reason": why, "watermark": marks, **plan.window_facts(rejected, watermark_us)}
    columns = [
        given[field.name]
        if field.name in given
        else rejected[field.name]
        if field.name in rejected.column_names
        else pa.nulls(count, field.type)
        for field in plan.late_schema
    ]
    return pa.table(columns, names=plan.late_schema.names).cast(plan.late_schema)


def _real(watermark_us: int | None) -> bool:
    """Whether a watermark fits into a timestamp."""
    return watermark_us is not None and abs(watermark_us) < 2**62
