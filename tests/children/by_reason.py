"""A standalone job whose late rows are put back by reason, that dies by its own hand:
``python -m tests.children.by_reason ROOT DEATH``.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import pyarrow as pa

import tidestate as ts
from tidestate import agg
from tidestate.operators.engine.driver import Sinks
from tidestate.operators.local.standalone import StandaloneRunner
from tidestate.statestore.spec.store import Parquet

LATE, UNEXPECTED = "very_late", "expectation"
PRICES = pa.schema({"t": pa.timestamp("us", "UTC"), "k": pa.string(), "p": pa.int64(), "v": pa.int64()})


def arriving(rows: list[tuple[int, int, int]]) -> pa.Table:
    """Rows of a second, a price and a number."""
    seconds, prices, numbers = zip(*rows, strict=True)
    times = pa.array([second * 1_000_000 for second in seconds], pa.int64()).view(PRICES.field("t").type)
    return pa.table([times, ["a"] * len(rows), prices, numbers], schema=PRICES)


PRICED_BATCHES = [arriving([(100, 1, 1), (10, -1, 2)]), arriving([(20, 2, 3), (120, -2, 4), (110, 3, 5)])]
"""At the end 1 and 5 are in windows, 3 was too late, 2 and 4 were not as expected."""


def pricing(least: int = 0) -> Any:
    """Lists of numbers whose rows are not too late and have at least this price; all windows are kept."""
    rows = ts.stream(event_time="t").expect("price", f"p >= {least}")
    lists = rows.group_by("k").window(ts.tumbling("1 minute")).aggregate(values=agg.list("v"))
    kept = lists.allowed_lateness("0 seconds").retain_windows("1 day")
    return kept.accumulation("retracting").named("short")


def run(root: str, hook: Any = lambda *_: None) -> None:
    """Put back what was too late, and, by a condition that was mended, what was not as expected; then end. All of it
    may be done again.
    """
    for least, reason in ((0, LATE), (-2, UNEXPECTED)):
        runner = StandaloneRunner(pricing(least).graph.description, root, Parquet(), Sinks(), 2, hook)
        runner.run(PRICED_BATCHES)
        runner.reprocess_late(reason=reason)
    runner.run(PRICED_BATCHES, drain=True)


def main(root: str, death: str = "") -> None:
    """Run to the end, or to the death."""

    def hook(moment: str, checkpoint_id: int) -> None:
        if death == f"{moment}:{checkpoint_id}":
            os.kill(os.getpid(), signal.SIGKILL)

    run(root, hook)


if __name__ == "__main__":
    main(*sys.argv[1:])
