"""A job to be forked, and what a root put out after a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

import tidestate as ts
from tidestate import Aggregation, Stream, agg
from tidestate.operators.engine.delivery import read_rows
from tidestate.recovery.log.checkpoint import Checkpoint


def job(events: Stream) -> Aggregation:
    grouped = events.group_by("k").window(ts.tumbling("10 seconds"))
    counted = grouped.aggregate(n=agg.count(), s=agg.sum("v"))
    return counted.allowed_lateness("5 seconds").accumulation("retracting")


JOB = job(ts.stream(event_time="t", watermark_delay="5 seconds"))


def after(root: Path, first: int) -> list[list[tuple[object, ...]]]:
    """Panes of each checkpoint after one."""
    checkpoint = Checkpoint.open(root)
    panes = [one.panes for one in checkpoint.outputs(first + 1) if one.panes]
    found = []
    for refs in panes:
        schema = pq.read_schema(checkpoint.objects.locate(refs[0].path))
        rows = read_rows(checkpoint, refs, schema).to_pylist()
        found.append(sorted((tuple(row.values()) for row in rows), key=repr))
    return found
