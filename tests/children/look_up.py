"""The look-up with imported CTIs as a job in a process of its own, to be killed.

``python -m tests.children.look_up FOLDER RUNNER``: on ``spark``, with ``left`` and ``right`` in it as input, or
``standalone``. With a further argument N it stops dead before manifest N, its files written, and waits there for the
SIGKILL.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.children.pausing import paused_before
from tests.helpers.look_up import JOINED, batches
from tidestate.operators.describe.runs import JobHook
from tidestate.operators.describe.sinks import Sinks
from tidestate.operators.local.standalone import StandaloneRunner
from tidestate.statestore.spec.store import Memory
from tidestate.testing import with_hook
from tools.demo.job import say

CUTS = (2, 4)


def standalone(folder: str, hook: JobHook) -> None:
    """The whole input, at every start."""
    runner = StandaloneRunner(JOINED.graph.description, f"{folder}/checkpoint", Memory(), Sinks(), 2, hook)
    runner.run(batches(CUTS), drain=True)


def spark(folder: str, hook: JobHook) -> None:
    """To the end of the files."""
    from tests.children.spark_job import read
    from tools.java import local_session

    session = local_session("look_up")
    sides = {side: read(session, Path(folder) / side) for side in ("left", "right")}
    job = JOINED.on_spark(sides, checkpoint=f"{folder}/checkpoint", partitions=2, paths={"direct_scan"})
    query = with_hook(job, hook).start()
    query.processAllAvailable()
    query.stop(drain=True)
    session.stop()


def main(folder: str, runner: str, death: str = "0") -> None:
    """Run to the end of the input, or to the death."""
    {"spark": spark, "standalone": standalone}[runner](folder, paused_before(int(death)))
    say("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
