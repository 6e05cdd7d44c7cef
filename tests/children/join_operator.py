"""The join operator in a process of its own, to be killed: as `tests.children.window_operator`.

It dies at the first such moment from that checkpoint on.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pyarrow as pa

from tests.helpers.join_operator_messages import (
    held,
    near,
    of_offsets,
    one_log,
    operator,
    plain,
    sessions,
    sided,
    two_streams,
)
from tests.helpers.operator_messages import store_config
from tidestate import OperatorStream
from tidestate.statestore.spec.store import StoreName

JOBS: dict[str, OperatorStream | OperatorStream] = {
    "join": near(),
    "sessions": sessions(),
    "held": held(),
    "offsets": of_offsets(),
}
BATCHES = {kind: two_streams(9, 8) for kind in JOBS} | {"offsets": one_log(two_streams(9, 8))}


def main(root: str, name: StoreName, cache: str, out: str, kind: str, death: str = "") -> None:
    """Run to the end, or to the death; every start gives the whole input again."""

    def hook(moment: str, checkpoint_id: int) -> None:
        print(moment, checkpoint_id, flush=True)
        at, _, least = death.partition(":")
        if at == moment and checkpoint_id >= int(least):
            os.kill(os.getpid(), signal.SIGKILL)

    def received(panes: pa.Table, checkpoint_id: int) -> None:
        with Path(out).open("a") as file:
            file.write(json.dumps([checkpoint_id, plain(panes)], default=str) + "\n")
        hook("received", checkpoint_id)

    with operator(JOBS[kind], Path(root), store_config(name, Path(cache)), hook=hook) as running:
        for batch in [] if running.drained else BATCHES[kind]:
            running.add_messages(**sided(batch))
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
