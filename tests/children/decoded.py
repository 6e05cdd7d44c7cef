"""A standalone job over JSON values that dies by its own hand: ``python -m tests.children.decoded ROOT DEATH``."""

from __future__ import annotations

import json
import os
import signal
import sys
from datetime import UTC, datetime, timedelta

import pyarrow as pa

import tidestate as ts
from tidestate import Aggregation, agg
from tidestate.operators.engine.driver import Sinks
from tidestate.operators.local.standalone import StandaloneRunner
from tidestate.statestore.spec.store import Parquet

FIELDS = {"k": "string", "t": pa.timestamp("us", "UTC"), "v": "int64"}
SPOILED = b'{"k":"a","v":"text"}'


def decoded_sums(fields: dict[str, object] = FIELDS) -> Aggregation:
    events = ts.stream(event_time="t", decode=ts.json("value", fields))
    windows = events.group_by("k").window(ts.tumbling("4 seconds")).aggregate(n=agg.count(), v=agg.sum("v"))
    return windows.allowed_lateness("2 seconds").retain_windows("1 hour").accumulation("retracting")


def texts() -> list[pa.Table]:
    """Eight batches; some rows are late, and every fourth is no object of the schema."""
    batches = []
    for number in range(8):
        values = []
        for place in range(12):
            time = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=3 * number + place % 5 - 20 * (place == 7))
            value = json.dumps({"k": "ab"[place % 2], "t": time.isoformat(), "v": place}).encode()
            values.append(SPOILED if place % 4 == 3 and place != 7 else value)
        batches.append(pa.table({"value": pa.array(values, pa.binary())}))
    return batches


def main(root: str, death: str = "") -> None:
    """Run to the end, or to the death."""

    def hook(moment: str, checkpoint_id: int) -> None:
        if death == f"{moment}:{checkpoint_id}":
            os.kill(os.getpid(), signal.SIGKILL)

    runner = StandaloneRunner(decoded_sums().graph.description, root, Parquet(), Sinks(), 2, hook)
    runner.run(texts(), drain=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
