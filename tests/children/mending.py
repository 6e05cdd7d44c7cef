"""A start that is killed while it rewrites Spark's checkpoint: root, moment."""

from __future__ import annotations

import os
import signal
import sys

from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.start.policy import Policy
from tidestate.recovery.start.spark_repair import SparkRepair


def main(root: str, moment: str) -> None:
    def dies(at: str, _checkpoint_id: int) -> None:
        if at == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    checkpoint = Checkpoint.open(root)
    head = checkpoint.head()
    assert head is not None
    mending = SparkRepair(checkpoint, Policy(), hook=dies)
    mending.compare(head.manifest)
    mending.repair(head.manifest)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
