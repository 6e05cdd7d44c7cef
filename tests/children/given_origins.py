"""A job whose origins the engine gives, in a process of its own that dies of its own hand.

``python -m tests.children.given_origins ROOT [MOMENT:ID]``: at this moment before or after a manifest.
"""

from __future__ import annotations

import os
import signal
import sys

import pyarrow as pa

import tidestate as ts
from tests.helpers.buffers import SECOND, TIME
from tidestate import Aggregation, agg, watermark
from tidestate.operators.describe.sinks import Sinks
from tidestate.operators.local.standalone import StandaloneRunner
from tidestate.statestore.spec.store import Memory

SHARDS = pa.schema([("t", TIME), ("shard", pa.int32())])


def job() -> Aggregation:
    events = ts.stream(event_time="t").watermark(watermark.buffers(), by="shard", sources=["1"])
    return events.group_by().window(ts.tumbling("10 seconds")).aggregate(n=agg.count()).named("job")


def batches() -> list[pa.Table]:
    """Shard 1 is in every batch, shard 2 in every second one, and shard 3 begins late."""
    tables = []
    for number in range(8):
        shards = [1, *([2] if number % 2 else []), *([3] if number > 5 else [])]
        rows = [{"t": (5 * number + shard) * SECOND, "shard": shard} for shard in shards]
        tables.append(pa.Table.from_pylist(rows, SHARDS))
    return tables


def main(root: str, death: str = "") -> None:
    """Run to the end, or to the death."""

    def hook(moment: str, checkpoint_id: int) -> None:
        if death == f"{moment}:{checkpoint_id}":
            os.kill(os.getpid(), signal.SIGKILL)

    description = job().graph.description
    StandaloneRunner(description, root, Memory(), Sinks(), 2, hook).run(batches(), progress=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
