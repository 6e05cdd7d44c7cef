"""A Spark job whose source falls quiet, in a process of its own, to be killed.

``python -m tests.children.quiet INPUT ROOT DEATH``. It stops dead before manifest DEATH (0: never), its files
written. Else it says ``fired`` once a window has fired without input, waits for a line, and runs to the end of the
input and of time.
"""

from __future__ import annotations

import sys
import time

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
    """Windows of ten seconds; two seconds without a row and the watermark goes on with the clock."""
    described = windowed(event_time="t", key="k", name="job").window(tumbling("10 seconds"))
    described = described.aggregate(n=count(), all=list_("id")).late("0 seconds", keep=["id"])
    return described.watermark(max_event_time("t", quiet="2 seconds"))


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
