"""A Spark job with two sources in a process of its own, to be killed.

``python -m tests.children.progress INPUT ROOT``. With a further argument N it stops dead before manifest N,
its files written, and waits there for the SIGKILL.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.children.pausing import paused_before
from tests.helpers.spark_inputs import SCHEMA
from tidestate.agg import count
from tidestate.agg import list as list_
from tidestate.operators import tumbling
from tidestate.operators.describe.windowed import Windowed, windowed
from tidestate.operators.progress.generators import max_event_time
from tools.demo.job import say
from tools.java import local_session


def job() -> Windowed:
    """Sources are distinguished by the column ``k``."""
    described = windowed(event_time="t", key="k", name="job").window(tumbling("10 seconds"))
    described = described.aggregate(n=count(), all=list_("id")).late("3 seconds", keep=["id"])
    return described.watermark(max_event_time("t", "5 seconds"), by="k", sources=["a", "b"], idle_timeout="1 hour")


def main(folder: str, root: str, death: str = "0") -> None:
    """Run to the end of the input, or to the death."""
    session = local_session("progress")
    stream = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(Path(folder)))
    made = job().on_spark(stream, checkpoint=root, partitions=2, in_driver=False)
    query = made.with_hook(paused_before(int(death))).start()
    query.processAllAvailable()
    query.stop(drain=True)
    session.stop()
    say("done", checkpoint=query.checkpoint_id)


if __name__ == "__main__":
    main(*sys.argv[1:])
