"""A job with retention: ``python -m tests.children.upkeep ROOT NAME NUMBER``. It is killed when it is about to delete
so many files whose paths begin with that name.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from tests.helpers.collected import STORE, TABLES
from tests.helpers.forks import JOB
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.retention import upkeep
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.statestore.storage.objects import Objects

STORED_CHECKPOINTS = 3
_delete, _deleted = Objects.delete, list[str]()


def delete(self: Objects, path: str) -> None:
    if path.startswith(sys.argv[2]):
        _deleted.append(path)
        if len(_deleted) == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
    _delete(self, path)


def main() -> None:
    upkeep.LEAST_PAUSE_S, upkeep.TIMES_AS_LONG = 0.001, 0
    Objects.delete = delete  # type: ignore[method-assign]
    job = JOB.standalone(
        checkpoint=sys.argv[1],
        store=STORE,
        checkpoints=CheckpointRetention(newest=STORED_CHECKPOINTS, grace="0 seconds"),
    )
    for _panes in job.stream(TABLES):
        while len(Checkpoint.open(sys.argv[1]).stored_ids()) > STORED_CHECKPOINTS:
            time.sleep(0.001)


if __name__ == "__main__":
    main()
