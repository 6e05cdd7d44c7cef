"""The window operator in a process of its own, to be killed.

``python -m tests.children.window_operator ROOT STORE CACHE OUT KIND``. What it takes as a result it appends to OUT, a
line per checkpoint, before it acknowledges; ``MOMENT:ID`` as a further argument is where it dies of its own hand.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

import tidestate as ts
from tests.helpers.join_operator_messages import LEFT, RIGHT, sided, two_streams
from tests.helpers.operator_messages import description, operator, plain, store_config, stream, table
from tidestate import Aggregation, agg
from tidestate.operators import WindowOperator
from tidestate.statestore.spec.store import StoreConfig, StoreName

MERGED = (
    ts.merge(
        left=ts.stream(event_time="t", watermark_delay="2 seconds", offset="at", origin="part"),
        right=ts.stream(event_time="t", watermark_delay="2 seconds", offset="at", origin="part"),
    )
    .group_by("k")
    .window(ts.sessions("3 seconds"))
    .aggregate(n=agg.count(), left=agg.sum("left_v"), right=agg.sorted_list("right_w"))
    .allowed_lateness("6 seconds", ledger_columns=("part", "at"))
    .accumulation("retracting")
)
JOBS: dict[str, Aggregation] = {
    "windows": description(ts.sessions("3 seconds"), "retracting", allowed=20),
    "merge": MERGED,
}


def opened(kind: str, root: Path, store: StoreConfig, **more: Any) -> WindowOperator:
    if kind == "windows":
        return operator(JOBS[kind], root, store, **more)
    sides = {"left": LEFT, "right": RIGHT}
    return WindowOperator(
        MERGED.graph.description, sides, checkpoint=root, origin="part", offset="at", store=store, **more
    )


def batches(kind: str) -> list[dict[str, pa.Table] | pa.Table]:
    """As `WindowOperator.add_messages` takes them: of a merge by side."""
    return [sided(one) for one in two_streams(9, 8)] if kind == "merge" else [table(one) for one in stream(9, 8)]


def main(root: str, name: StoreName, cache: str, out: str, kind: str, death: str = "") -> None:
    """Run to the end, or to the death; every start gives the whole input again."""

    def hook(moment: str, checkpoint_id: int) -> None:
        print(moment, checkpoint_id, flush=True)
        if death == f"{moment}:{checkpoint_id}":
            os.kill(os.getpid(), signal.SIGKILL)

    def received(panes: pa.Table, checkpoint_id: int) -> None:
        with Path(out).open("a") as file:
            file.write(json.dumps([checkpoint_id, plain(panes)], default=str) + "\n")
        hook("received", checkpoint_id)

    with opened(kind, Path(root), store_config(name, Path(cache)), hook=hook, partitions=2) as running:
        for batch in [] if running.drained else batches(kind):
            running.add_messages(**batch) if isinstance(batch, dict) else running.add_messages(batch)
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
