"""An adoption in a process that dies: ``python -m tests.children.adoption FOLDER MOMENT`` executes a pickled plan."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from pathlib import Path

from tidestate.operators.spark.adopt import execute_adoption


def main(folder: Path, death: str) -> None:
    """Execute ``folder/plan`` up to the moment."""

    def hook(moment: str, _checkpoint_id: int) -> None:
        if moment == death:
            os.killpg(os.getpid(), signal.SIGKILL)

    execute_adoption(pickle.loads((folder / "plan").read_bytes()), partitions=3, hook=hook)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
