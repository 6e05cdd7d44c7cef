"""The look-up with imported CTIs as a Spark job in a process of its own, to be killed.

``python -m tests.children.look_up FOLDER``: ``left`` and ``right`` in it are the input. With a further argument N it
stops dead before manifest N, its files written, and waits there for the SIGKILL.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.children.spark_job import read
from tests.helpers.look_up import JOINED
from tools.demo.job import say
from tools.java import local_session


def main(folder: str, death: str = "0") -> None:
    """Run to the end of the input, or to the death."""

    def hook(moment: str, checkpoint_id: int) -> None:
        if moment == "before-manifest" and checkpoint_id == int(death):
            say("paused", checkpoint=checkpoint_id)
            time.sleep(3600)

    session = local_session("look_up")
    sides = [read(session, Path(folder) / side) for side in ("left", "right")]
    query = JOINED.on_spark(*sides, checkpoint=f"{folder}/checkpoint", partitions=2).with_hook(hook).start()
    query.process_all_available()
    query.stop(drain=True)
    session.stop()
    say("done", checkpoint=query.checkpoint_id)


if __name__ == "__main__":
    main(*sys.argv[1:])
