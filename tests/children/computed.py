"""A standalone job with filters and computed columns, of its input and of its results, that dies by its own hand:
``python -m tests.children.computed ROOT DEATH``.
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

import tidestate as ts
from tidestate import agg, col, fn
from tidestate.operators.engine.driver import Sinks
from tidestate.operators.local.standalone import StandaloneRunner
from tidestate.statestore.spec.store import Parquet

ORDER_FIELDS = pa.schema(
    {"at": pa.timestamp("us", "UTC"), "item": pa.string(), "price": pa.int64(), "count": pa.int64()}
)


def computed_sums() -> Any:
    """Sums of what items sold for; then how many of them were large, of the results that are."""
    sold = ts.stream(event_time="at").where(col("count") > 0)
    sold = sold.with_columns(total=col("price") * col("count"), item=fn.upper("item"))
    sums = sold.group_by("item").window(ts.tumbling("4 seconds")).aggregate(n=agg.count(), total=agg.sum("total"))
    sums = sums.allowed_lateness("2 seconds").retain_windows("1 hour").accumulation("retracting").named("sums")
    large = sums.where("total >= 20").select("item", half=col("total") / 2)
    shares = large.group_by().window(ts.tumbling("8 seconds")).aggregate(n=agg.count(), halves=agg.sum("half"))
    return shares.allowed_lateness("4 seconds").accumulation("retracting").named("shares")


def orders() -> list[pa.Table]:
    """Eight batches; some rows are late, and a third has no count."""
    batches = []
    for number in range(8):
        rows = []
        for place in range(12):
            time = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=3 * number + place % 5 - 20 * (place == 7))
            rows.append({"at": time, "item": "ab"[place % 2], "price": place, "count": place % 3})
        batches.append(pa.Table.from_pylist(rows, ORDER_FIELDS))
    return batches


def main(root: str, death: str = "") -> None:
    """Run to the end, or to the death."""

    def hook(moment: str, checkpoint_id: int) -> None:
        if death == f"{moment}:{checkpoint_id}":
            os.kill(os.getpid(), signal.SIGKILL)

    runner = StandaloneRunner(computed_sums().graph.description, root, Parquet(), Sinks(), 2, hook)
    runner.run(orders(), drain=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
