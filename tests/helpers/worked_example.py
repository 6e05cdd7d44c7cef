"""The worked example: a windowed job, its batches, and its panes and ledger as text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.helpers import evidence
from tidestate.agg import count
from tidestate.agg import sum as sum_
from tidestate.operators import tumbling
from tidestate.operators.describe.windowed import Windowed, windowed

SECOND = 1_000_000
TIME = pa.timestamp("us", tz="UTC")
Rows = Sequence[tuple[Any, ...]]


def batch(rows: Rows) -> pa.Table:
    """Events as (second, key, value)."""
    times = pa.array([None if row[0] is None else row[0] * SECOND for row in rows], TIME)
    return pa.table(
        {
            "t": times,
            "k": pa.array([r[1] for r in rows], pa.string()),
            "v": pa.array([r[2] for r in rows], pa.int64()),
        }
    )


def example(mode: str = "accumulating") -> Windowed:
    job = windowed(event_time="t", key="k", watermark_delay="2 seconds").window(tumbling("10 seconds"))
    return job.aggregate(n=count(), total=sum_("v")).late("20 seconds").accumulation(mode)  # type: ignore[arg-type]


STREAM = [
    batch([(1, "a", 1), (3, "b", 2), (9, "a", 3)]),  # W: none -> 7
    batch([(13, "a", 4)]),  # W: 7 -> 11, [0, 10) is due
    batch([(5, "a", 10), (8, "c", 7)]),  # both mildly late; c had nothing there
    batch([(2, "a", 1)]),  # again
    batch([(45, "a", 5)]),  # W: 11 -> 43, [10, 20) is due and forgotten at once
    batch([(4, "a", 99), (22, None, 1), (None, "a", 1)]),  # all rejected
]
EXPECTED = {
    "accumulating": """
        3 [0,10)  a 2 4  pane 0 on_time emit
        3 [0,10)  b 1 2  pane 0 on_time emit
        4 [0,10)  a 3 14 pane 1 late emit
        4 [0,10)  c 1 7  pane 0 late emit
        5 [0,10)  a 4 15 pane 2 late emit
        6 [10,20) a 1 4  pane 0 on_time emit last
        8 [40,50) a 1 5  pane 0 on_time emit last
    """,
    "discarding": """
        3 [0,10)  a 2 4  pane 0 on_time emit
        3 [0,10)  b 1 2  pane 0 on_time emit
        4 [0,10)  a 1 10 pane 1 late emit
        4 [0,10)  c 1 7  pane 0 late emit
        5 [0,10)  a 1 1  pane 2 late emit
        6 [10,20) a 1 4  pane 0 on_time emit last
        8 [40,50) a 1 5  pane 0 on_time emit last
    """,
    "retracting": """
        3 [0,10)  a 2 4  pane 0 on_time emit
        3 [0,10)  b 1 2  pane 0 on_time emit
        4 [0,10)  a 2 4  pane 0 late retract
        4 [0,10)  a 3 14 pane 1 late emit
        4 [0,10)  c 1 7  pane 0 late emit
        5 [0,10)  a 3 14 pane 1 late retract
        5 [0,10)  a 4 15 pane 2 late emit
        6 [10,20) a 1 4  pane 0 on_time emit last
        8 [40,50) a 1 5  pane 0 on_time emit last
    """,
}


def lines(text: str) -> list[str]:
    return sorted(" ".join(line.split()) for line in text.strip().splitlines())


def panes(root: Path) -> list[str]:
    """All panes as text: checkpoint, window in seconds, key and values, pane, timing, kind, last."""
    found = []
    for manifest in evidence.manifests(root):
        for start, end, *values, pane, timing, kind, last in evidence.rows(root, manifest["panes"]):
            window = f"[{start // SECOND},{end // SECOND})"
            found.append(" ".join(map(str, [manifest["id"], window, *values, "pane", pane, timing, kind])))
            found[-1] += " last" * last
    return sorted(found)


def ledger(root: Path) -> list[str]:
    """All rejected events as text: checkpoint, the event, why, the watermark it met."""
    found = []
    for manifest in evidence.manifests(root):
        for time, key, value, reason, mark in evidence.rows(root, manifest["late"]):
            second = None if time is None else time // SECOND
            found.append(" ".join(map(str, [manifest["id"], second, key, value, reason, mark // SECOND])))
    return sorted(found)
