"""A job to be forked, and what a root put out after a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from tidestate.agg import count
from tidestate.agg import sum as sum_
from tidestate.operators import tumbling
from tidestate.operators.describe.windowed import RETRACTING, windowed
from tidestate.operators.engine.delivery import read_rows
from tidestate.recovery.log.checkpoint import Checkpoint

JOB = (
    windowed(event_time="t", key="k", watermark_delay="5 seconds")
    .window(tumbling("10 seconds"))
    .aggregate(n=count(), s=sum_("v"))
    .late("5 seconds")
    .accumulation(RETRACTING)
)


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
