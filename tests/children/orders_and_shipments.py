"""The Orders and Shipments of the Samza design as a Spark job in a process of its own, to be killed.

``python -m tests.children.orders_and_shipments FOLDER EXAMPLE``; with a further argument N it stops dead before
manifest N, its files written, and waits there for the SIGKILL. The clock of the job is that of the example: each
batch is of its moment, and a tick comes at each moment without messages.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from tests.children.pausing import paused_before
from tests.helpers.internals import tick
from tests.helpers.orders_and_shipments import EXPECTED, MOMENTS, arriving, at
from tests.helpers.spark_inputs import write
from tidestate.operators.spark import query as on_spark
from tidestate.recovery.log.spark_log import Planned, SparkLog
from tools.demo.job import say
from tools.java import local_session

SIDES = {
    "left": "id long, time timestamp, offset long, value long",
    "right": "id long, time timestamp, offset long, cost long",
}
BATCHES = [moment for moment in MOMENTS if arriving(moment)]


class Clock:
    """The processing time of the example."""

    def __init__(self) -> None:
        self.us = at(MOMENTS[0])
        self._planned = SparkLog.planned

    def planned(self, log: SparkLog, query_id: str, batch_id: int) -> Planned:
        """A batch that Spark has planned, at the moment of its messages."""
        found = self._planned(log, query_id, batch_id)
        return replace(found, timestamp_ms=at(BATCHES[batch_id]) // 1000)


def feed(folder: Path, moment: str) -> None:
    """Files with the messages of a moment, unless an earlier process has written them."""
    for side, rows in arriving(moment).items():
        if not (folder / side / f"{BATCHES.index(moment):04d}.parquet").exists():
            write(folder / side, BATCHES.index(moment), rows)


def main(given: str, example: str, death: str = "0") -> None:
    """Go through the moments, or to the death."""
    folder, clock = Path(given), Clock()
    session = local_session("orders_and_shipments")
    feed(folder, BATCHES[0])  # of both sides: one batch
    sides = {side: session.readStream.schema(columns).parquet(str(folder / side)) for side, columns in SIDES.items()}
    on_spark.now_us = lambda: clock.us
    SparkLog.planned = lambda *asked: clock.planned(*asked)  # type: ignore[method-assign]
    job = EXPECTED[example][0].on_spark(sides, checkpoint=folder / "checkpoint", partitions=2, paths={"direct_scan"})
    running = job.with_hook(paused_before(int(death))).start()
    for moment in MOMENTS:
        feed(folder, moment)
        running.processAllAvailable()
        clock.us = at(moment)
        if moment not in BATCHES:
            tick(running)
    running.stop(drain=True)
    session.stop()
    say("done", checkpoint=running.checkpoint_id)


if __name__ == "__main__":
    main(*sys.argv[1:])
