"""A job with retention: ``python -m tests.children.upkeep ROOT NAME NUMBER``. It is killed when it is about to delete
so many files whose paths begin with that name.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from tests.helpers.collected import STORE, TABLES
from tests.helpers.forks import JOB
from tests.helpers.internals import driver_of
from tidestate.recovery.retention import upkeep
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.statestore.storage.objects import Objects

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
    job: Any = JOB.standalone(
        checkpoint=sys.argv[1], store=STORE, checkpoints=CheckpointRetention(newest=3, grace="0 seconds")
    )

    def collections() -> int:
        upkept = driver_of(job).upkept
        assert upkept is not None
        return upkept.collections

    for _panes in job.stream(TABLES):
        done = collections()
        while collections() == done:
            time.sleep(0.001)


if __name__ == "__main__":
    main()
