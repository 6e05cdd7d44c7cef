"""A Spark job whose source falls quiet, in a process of its own, to be killed.

``python -m tests.children.quiet INPUT ROOT DEATH``. It stops dead before manifest DEATH (0: never), its files
written. Else it says ``fired`` once a window has fired without input, waits for a line, and runs to the end of the
input and of time.
"""

from __future__ import annotations

import sys
import time

import tidestate as ts
from tests.children.pausing import paused_before
from tests.helpers.spark_inputs import SCHEMA
from tidestate import Aggregation, agg, watermark
from tools.demo.job import say
from tools.java import local_session


def job() -> Aggregation:
    """Windows of ten seconds; two seconds without a row and the watermark goes on with the clock."""
    events = ts.stream(event_time="t").watermark(watermark.bounded(quiet="2 seconds"))
    grouped = events.group_by("k").window(ts.tumbling("10 seconds"))
    described = grouped.aggregate(n=agg.count(), all=agg.list("id")).named("job")
    return described.allowed_lateness("0 seconds", ledger_columns=["id"])


def main(folder: str, root: str, death: str) -> None:
    """Run to the end of the input, or to the death."""
    session = local_session("quiet")
    stream = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(folder)
    started = job().on_spark(stream, checkpoint=root, partitions=2, tick="200 milliseconds")
    query = started.with_hook(paused_before(int(death))).start()
    query.processAllAvailable()
    while not query.manifest.totals.get("panes_on_time"):
        time.sleep(0.05)
    say("fired", checkpoint=query.checkpoint_id)
    sys.stdin.readline()
    query.processAllAvailable()
    query.stop(drain=True)
    session.stop()
    say("done", checkpoint=query.checkpoint_id)


if __name__ == "__main__":
    main(*sys.argv[1:])
