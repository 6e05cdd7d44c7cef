"""A collection that is killed when so much is done: ``python -m tests.children.collecting ROOT WHAT DONE``."""

from __future__ import annotations

import os
import signal
import sys

from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.retention.collection import collect
from tidestate.recovery.retention.rules import CheckpointRetention


def seen(what: str, done: int, _total: int) -> None:
    if (what, done) == (sys.argv[2], int(sys.argv[3])):
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    collect(Checkpoint.open(sys.argv[1], seen), CheckpointRetention(newest=3, grace="0 seconds"))
