"""A Spark job with two sources in a process of its own, to be killed.

``python -m tests.children.progress INPUT ROOT``. With a further argument N it stops dead before manifest N,
its files written, and waits there for the SIGKILL.
"""

from __future__ import annotations

import sys
from pathlib import Path

import tidestate as ts
from tests.children.pausing import paused_before
from tests.helpers.spark_inputs import SCHEMA
from tidestate import Aggregation, agg, watermark
from tools.demo.job import say
from tools.java import local_session


def job() -> Aggregation:
    """Sources are distinguished by the column ``k``."""
    bounded = watermark.bounded("5 seconds")
    events = ts.stream(event_time="t").watermark(bounded, by="k", sources=["a", "b"], idle_timeout="1 hour")
    grouped = events.group_by("k").window(ts.tumbling("10 seconds"))
    described = grouped.aggregate(n=agg.count(), all=agg.list("id")).named("job")
    return described.allowed_lateness("3 seconds", ledger_columns=["id"])


def main(folder: str, root: str, death: str = "0") -> None:
    """Run to the end of the input, or to the death."""
    session = local_session("progress")
    stream = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(Path(folder)))
    made = job().on_spark(stream, checkpoint=root, partitions=2, paths={"direct_scan"})
    query = made.with_hook(paused_before(int(death))).start()
    query.processAllAvailable()
    query.stop(drain=True)
    session.stop()
    say("done", checkpoint=query.checkpoint_id)


if __name__ == "__main__":
    main(*sys.argv[1:])
