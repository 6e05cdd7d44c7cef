"""A job that has lost its message files, in a process of its own: it replays its input, serves, and dies.

``python -m tests.children.rebuild ROOT MOMENT:ID``.
"""

from __future__ import annotations

import os
import signal
import sys

from tests.helpers.lost_messages import REBUILD
from tests.helpers.operator_messages import WINDOWS, description, stream, table
from tidestate.operators.describe.sinks import Sinks
from tidestate.operators.local.standalone import StandaloneRunner
from tidestate.statestore.spec.store import Parquet

JOB = description(WINDOWS["sliding"], "retracting", allowed=200).messages(identity=("part", "at"))
BATCHES = [table(batch) for batch in stream(3, batches=5, size=8)]
LOST_AFTER, SERVED = 3, 4
"""The batches before the loss, and those before the replay."""


def main(root: str, death: str = "") -> None:
    """Go on without the messages, put them back in two pieces, and go on to the end."""

    def hook(moment: str, checkpoint_id: int) -> None:
        if death == f"{moment}:{checkpoint_id}":
            os.kill(os.getpid(), signal.SIGKILL)

    runner = StandaloneRunner(JOB.graph.description, root, Parquet(max_levels=3), Sinks(), 2, hook, REBUILD)
    runner.run(BATCHES[:SERVED])
    runner.rebuild(BATCHES[:2])
    runner.rebuild(BATCHES[2:SERVED])
    runner.run(BATCHES, drain=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
