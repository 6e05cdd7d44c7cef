"""An edit of a root that is killed at a moment: root, a side of a join or nothing, the moment.

It retires what lies before 12 seconds. The moments: ``file``, after the first segment of a state partition;
``before-manifest`` and ``after-manifest``.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from tidestate import Root
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.files.partition_log import PartitionLog

EDIT_MOMENTS = ("file", "before-manifest", "after-manifest")
RETIRED_UNTIL_US = 12_000_000


def main(root: str, side: str, moment: str) -> None:
    def die(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def then_die(call: Any) -> Any:
        def called(*given: Any) -> None:
            call(*given)
            die()

        return called

    if moment == "file":
        PartitionLog.append = then_die(PartitionLog.append)  # type: ignore[method-assign]
    else:
        publish = then_die(Checkpoint.publish) if moment == "after-manifest" else die
        Checkpoint.publish = publish  # type: ignore[method-assign]
    Root(root).retire(0, RETIRED_UNTIL_US, side=side or None).execute()


if __name__ == "__main__":
    main(*sys.argv[1:])
