"""The join operator in a process of its own, to be killed: as `tests.children.window_operator`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.helpers.join_operator_messages import (
    held,
    near,
    of_offsets,
    one_log,
    operator,
    sessions,
    sided,
    two_streams,
)
from tests.helpers.operator_messages import store_config
from tests.helpers.operator_process import killing_hook, run_operator
from tidestate import OperatorStream
from tidestate.statestore.spec.store import StoreName

JOBS: dict[str, OperatorStream] = {
    "join": near(),
    "sessions": sessions(),
    "held": held(),
    "offsets": of_offsets(),
}
BATCHES = {kind: two_streams(9, 8) for kind in JOBS} | {"offsets": one_log(two_streams(9, 8))}


def main(root: str, name: StoreName, cache: str, results: str, kind: str, death: str = "") -> None:
    """Run to the end, or to the death; every start gives the whole input again."""
    hook = killing_hook(death)
    running = operator(JOBS[kind], Path(root), store_config(name, Path(cache)), hook=hook)
    run_operator(running, (sided(batch) for batch in BATCHES[kind]), results, hook)


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
