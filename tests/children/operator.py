"""The window operator in a process of its own, to be killed.

``python -m tests.children.operator ROOT STORE CACHE OUT``. What it takes as a result it appends to OUT, a line
per checkpoint, before it acknowledges; ``MOMENT:ID`` as a further argument is where it dies of its own hand.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pyarrow as pa

from tests.helpers.operator_messages import description, operator, plain, store_config, stream, table
from tidestate.operators import session
from tidestate.statestore.spec.store import StoreName

JOB = description(session("3 seconds"), "retracting", allowed=20)


def main(root: str, name: StoreName, cache: str, out: str, death: str = "") -> None:
    """Run to the end, or to the death; every start gives the whole input again."""

    def hook(moment: str, checkpoint_id: int) -> None:
        print(moment, checkpoint_id, flush=True)
        if death == f"{moment}:{checkpoint_id}":
            os.kill(os.getpid(), signal.SIGKILL)

    def received(panes: pa.Table, checkpoint_id: int) -> None:
        with Path(out).open("a") as file:
            file.write(json.dumps([checkpoint_id, plain(panes)], default=str) + "\n")
        hook("received", checkpoint_id)

    with operator(JOB, Path(root), store_config(name, Path(cache)), hook=hook, partitions=2) as running:
        for batch in [] if running.drained else stream(9):
            running.add_messages(table(batch))
            for result in running.get_result():
                received(result.panes, result.id.checkpoint)
                running.acknowledge(result.id)
            running.flush()
        running.drain()
        for result in running.get_result():
            received(result.panes, result.id.checkpoint)
            running.acknowledge(result.id)
        running.flush()
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
