"""A job on counted windows that has lost its messages, in a process of its own: it runs its input again, and dies.

``python -m tests.children.runs_again ROOT N``: at the N-th moment that its hook is told of; 0: never.
"""

from __future__ import annotations

import os
import signal
import sys

from tests.helpers.runs_again import REPLAYING, Log, windows
from tidestate.operators.describe.sinks import Sinks
from tidestate.operators.local.standalone import StandaloneRunner
from tidestate.statestore.spec.store import Parquet

GIVEN = windows("counted", 7)
LOST_AFTER = 4
"""The batches before the loss."""


def main(root: str, death: str = "0") -> None:
    """Put back what is lost, and take the other batches."""
    moments: list[str] = []

    def hook(moment: str, checkpoint_id: int) -> None:
        moments.append(f"{moment}:{checkpoint_id}")
        if len(moments) == int(death):
            print(moments[-1], flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    runner = StandaloneRunner(GIVEN.job.graph.description, root, Parquet(), Sinks(), 2, hook, REPLAYING)
    runner.run(Log(GIVEN.batches, GIVEN.schema))


if __name__ == "__main__":
    main(*sys.argv[1:])
