"""A standalone job with expectations, whose rejected rows come back after the condition was mended, that dies by its
own hand: ``python -m tests.children.expected ROOT DEATH``.
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

import tidestate as ts
from tidestate import agg
from tidestate.operators.engine.driver import Sinks
from tidestate.operators.local.standalone import StandaloneRunner
from tidestate.statestore.spec.store import Parquet

SALES_SCHEMA = pa.schema(
    {"at": pa.timestamp("us", "UTC"), "shop": pa.string(), "price": pa.int64(), "kind": pa.string()}
)
STRICT_BATCHES = 3
STRICT, MENDED = "price > 0", "price > 0 or kind = 'refund'"


def sales(condition: str) -> Any:
    """Sums by shop of rows whose price is as expected."""
    rows = ts.stream(event_time="at").expect_all({"price": condition, "shop is known": "shop is not null"})
    rows = rows.expect("few at once", "price < 15", otherwise="count")
    sums = rows.group_by("shop").window(ts.tumbling("4 seconds")).aggregate(n=agg.count(), total=agg.sum("price"))
    return sums.allowed_lateness("1 hour", ledger_columns=["kind"]).accumulation("retracting").named("sales")


def batches() -> list[pa.Table]:
    """Six batches, in which some rows are refunds, some have a bad price, and some no shop."""
    tables = []
    for number in range(6):
        rows = []
        for place in range(12):
            time = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=3 * number + place % 5)
            price = -place if place % 4 == 1 else None if place == 6 else 2 * place
            shop = None if place == 10 else "ab"[place % 2]
            kind = "refund" if place in (1, 6) else "sale"
            rows.append({"at": time, "shop": shop, "price": price, "kind": kind})
        tables.append(pa.Table.from_pylist(rows, SALES_SCHEMA))
    return tables


def run(root: str, hook: Any = lambda *_: None) -> None:
    """Take the first batches under the strict condition; then the others under the mended one, with what it takes
    back put back in between, where that has not happened; then end.
    """
    head = ts.Root(root).manifest() if os.path.exists(os.path.join(root, "manifests")) else None
    taken = head.input.batches if head is not None and head.input is not None else 0
    if taken < STRICT_BATCHES:
        StandaloneRunner(sales(STRICT).graph.description, root, Parquet(), Sinks(), 2, hook).run(
            batches()[:STRICT_BATCHES]
        )
    if head is not None and head.drained:
        return
    runner = StandaloneRunner(sales(MENDED).graph.description, root, Parquet(), Sinks(), 2, hook)
    runner.run(batches()[: max(taken, STRICT_BATCHES)])
    if not ts.Root(root).manifest().fed:
        runner.reprocess_late(reason="expectation")
    runner.run(batches(), drain=True)


def main(root: str, death: str = "") -> None:
    """Run to the end, or to the death."""

    def hook(moment: str, checkpoint_id: int) -> None:
        if death == f"{moment}:{checkpoint_id}":
            os.kill(os.getpid(), signal.SIGKILL)

    run(root, hook)


if __name__ == "__main__":
    main(*sys.argv[1:])
