"""A standalone job whose panes are shown by a condition, which dies by its own hand: ``python -m tests.children.shown
ROOT DEATH``.
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import UTC, datetime, timedelta

import pyarrow as pa

import tidestate as ts
from tidestate import Aggregation, agg, trigger
from tidestate.operators.engine.driver import Sinks
from tidestate.operators.local.standalone import StandaloneRunner
from tidestate.statestore.spec.store import Parquet


def shown_sums() -> Aggregation:
    """Windows whose number of rows is odd: each batch shows some, and takes others back."""
    windows = ts.stream(event_time="t").group_by("k").window(ts.tumbling("10 seconds"))
    results = windows.aggregate(n=agg.count(), high=agg.count(where="v > 5"), total=agg.sum("v", where="v % 3 > 0"))
    results = results.derive(share="high / n", odd="n % 2 = 1").having("odd and total is not null")
    return results.allowed_lateness("1 hour").accumulation("retracting").trigger(early=trigger.each_batch())


def numbers() -> list[pa.Table]:
    """Eight batches of rows in time and late ones."""
    begin, batches = datetime(2024, 1, 1, tzinfo=UTC), []
    for number in range(8):
        rows = [
            {
                "t": begin + timedelta(seconds=4 * number + place % 5 - 15 * (place == 2)),
                "k": "ab"[place % 2],
                "v": place,
            }
            for place in range(5 + number % 3)
        ]
        schema = pa.schema({"t": pa.timestamp("us", "UTC"), "k": pa.string(), "v": pa.int64()})
        batches.append(pa.Table.from_pylist(rows, schema))
    return batches


def main(root: str, death: str = "") -> None:
    """Run to the end, or to the death."""

    def hook(moment: str, checkpoint_id: int) -> None:
        if death == f"{moment}:{checkpoint_id}":
            os.kill(os.getpid(), signal.SIGKILL)

    runner = StandaloneRunner(shown_sums().graph.description, root, Parquet(), Sinks(), 2, hook)
    runner.run(numbers(), drain=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
