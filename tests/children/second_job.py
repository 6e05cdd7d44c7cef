"""Two jobs, the second of which reads the panes of the first as a stream of Spark, in a process that can be killed.

``python -m tests.children.second_job FOLDER``; with a further argument N the second job stops dead before its
manifest N, its files written, and waits there for the SIGKILL.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa

from tests.children.pausing import paused_before
from tests.helpers.worked_example import batch
from tidestate import tumbling
from tidestate.agg import count
from tidestate.agg import sum as sum_
from tidestate.operators.describe.windowed import windowed
from tidestate.operators.inspect.on_spark import register
from tidestate.recovery.log.checkpoint import Checkpoint
from tools.demo.job import say
from tools.java import local_session

FIRST = windowed(event_time="t", key="k", name="seconds").window(tumbling("10 seconds")).aggregate(n=count())
SECOND = windowed(event_time="window_start", key="k", name="minutes").window(tumbling("1 minute"))
SECOND = SECOND.aggregate(windows=count(), events=sum_("n"))
BATCHES = 3


def batches() -> list[pa.Table]:
    """Events of half a minute each, and each a few seconds."""
    return [batch([(30 * number + at, "ab"[at % 2], at) for at in range(0, 30, 3)]) for number in range(BATCHES)]


def main(given: str, death: str = "0") -> None:
    """Each batch through both jobs, and then their ends; or to the death."""
    folder = Path(given)
    first, second = folder / "first", folder / "second"
    session = local_session("second_job")
    register(session)
    had = 0
    if first.exists():
        head = Checkpoint.open(first).chosen(None).manifest
        had = head.input.batches if head.input is not None else 0
    else:
        FIRST.standalone(checkpoint=first).run(batches()[:1])
    stream = session.readStream.format("tidestate").load(str(first))
    query = SECOND.on_spark(stream, checkpoint=second, partitions=2).with_hook(paused_before(int(death))).start()
    for number in range(max(had, 1), BATCHES + 1):
        FIRST.standalone(checkpoint=first).run(batches()[:number], drain=number == BATCHES)
        query.processAllAvailable()
    query.stop(drain=True)
    session.stop()
    say("done", checkpoint=query.checkpoint_id)


if __name__ == "__main__":
    main(*sys.argv[1:])
