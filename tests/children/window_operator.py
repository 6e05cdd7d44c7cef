"""The window operator in a process of its own, to be killed.

``python -m tests.children.window_operator ROOT STORE CACHE OUT KIND``. What it takes as a result it appends to OUT, a
line per checkpoint, before it acknowledges; ``MOMENT:ID`` as a further argument is where it kills itself.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

import tidestate as ts
from tests.helpers.join_operator_messages import LEFT, RIGHT, sided, two_streams
from tests.helpers.operator_messages import description, operator, store_config, stream, table
from tests.helpers.operator_process import killing_hook, run_operator
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
    if kind == "merge":
        return [sided(batch) for batch in two_streams(9, 8)]
    return [table(batch) for batch in stream(9, 8)]


def main(root: str, name: StoreName, cache: str, results: str, kind: str, death: str = "") -> None:
    """Run to the end, or to the death; every start gives the whole input again."""
    hook = killing_hook(death)
    operator = opened(kind, Path(root), store_config(name, Path(cache)), hook=hook, partitions=2)
    run_operator(operator, batches(kind), results, hook)


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
