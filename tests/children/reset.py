"""A reset that is killed at a moment: root, checkpoint, moment."""

from __future__ import annotations

import os
import signal
import sys

from tests.helpers.moves import reset_to
from tidestate.recovery.log.checkpoint import Checkpoint


def main(root: str, to: int, moment: str) -> None:
    def dies(at: str, _checkpoint_id: int) -> None:
        if at == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    reset_to(Checkpoint.open(root), to, hook=dies)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
