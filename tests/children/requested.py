"""A standalone run that is asked from elsewhere, to be killed: ``python -m tests.children.requested ROOT BATCHES``.

It takes so many batches, says ``ready`` once it can be asked, and ends with the input: a line of standard input each.
With ``MOMENT:ID`` as a further argument it kills itself at that moment before or after that manifest.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

import tidestate as ts
from tests.helpers.worked_example import batch
from tidestate import Aggregation, agg
from tidestate.operators.describe.sinks import Sinks
from tidestate.operators.local.standalone import StandaloneRunner
from tidestate.recovery.log.requests import BEGUN, control_folder
from tidestate.statestore.spec.store import Parquet

TAKEN = [
    batch([(1, "a", 1), (3, "b", 2)]),
    batch([(33, "a", 4)]),
    batch([(2, "a", 8), (5, "b", 16), (11, "a", 32)]),  # later than allowed, in windows that are retained
]
OFFERED = batch([(4, "b", 64), (12, "c", 128)])


def described() -> Aggregation:
    """Sums of windows that take no late event by themselves, and are retained for those that are put back."""
    windows = ts.stream(event_time="t", watermark_delay="2 seconds").group_by("k").window(ts.tumbling("10 seconds"))
    counted = windows.aggregate(n=agg.count(), total=agg.sum("v")).named("counted")
    return counted.allowed_lateness("0 seconds").retain_windows("1 hour").accumulation("accumulating")


def main(root: str, batches: str, death: str = "") -> None:
    def hook(moment: str, checkpoint_id: int) -> None:
        if death == f"{moment}:{checkpoint_id}":
            os.kill(os.getpid(), signal.SIGKILL)

    def given() -> Iterator[pa.Table]:
        yield from TAKEN[: int(batches)]
        while not runner.head.drained and not Path(root, control_folder(runner.head.epoch), BEGUN).exists():
            time.sleep(0.01)
        print('{"event": "ready"}', flush=True)
        for line in sys.stdin:
            yield batch([(json.loads(line)[0], "z", 1)])

    runner = StandaloneRunner(described().graph.description, root, Parquet(), Sinks(), 2, hook)
    runner.run(given(), progress=False)
    print('{"event": "done"}', flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
