"""How long the command takes to start: one process at a time, in turn with one that only imports pyarrow."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median
from typing import Any

import pyarrow as pa

import tidestate as ts
from tidestate import agg

COMMANDS = ("list ROOT", "show ROOT", "list --help", "--help")
AIM_S = 0.5
PROGRAM = "from tidestate.recovery.cli.main import main; main()"
PEER = "import pyarrow"


def run(turns: int) -> Iterator[dict[str, Any]]:
    """One row each: medians in seconds, of the clock and of both kinds of processor time."""
    with tempfile.TemporaryDirectory(prefix="tidestate-bench-") as folder:
        root = str(Path(folder) / "root")
        _make(root)
        given = {one: [PROGRAM, *one.replace("ROOT", root).split()] for one in COMMANDS} | {PEER: [PEER]}
        taken: dict[str, list[tuple[float, float]]] = {one: [] for one in given}
        for turn in range(turns + 1):
            for one, arguments in given.items():
                seconds = _timed(arguments)
                if turn:  # the first one fills the caches
                    taken[one].append(seconds)
    peer_s, peer_cpu_s = (median(times) for times in zip(*taken[PEER], strict=True))
    for one in COMMANDS:
        wall_s, cpu_s = (median(times) for times in zip(*taken[one], strict=True))
        yield {
            "name": f"tidestate {one}",
            "median_s": round(wall_s, 3),
            "aim": AIM_S,
            "cpu_s": round(cpu_s, 3),
            "peer": PEER,
            "peer_median_s": round(peer_s, 3),
            "peer_cpu_s": round(peer_cpu_s, 3),
        }


def _make(root: str) -> None:
    per_hour = ts.stream(event_time="t").group_by("k").window(ts.tumbling("1 hour"))
    described = per_hour.aggregate(n=agg.count()).named("counted")
    rows = pa.table({"t": [datetime(2013, 1, 1, tzinfo=UTC)], "k": ["a"]})
    described.standalone(checkpoint=root).run([rows])


def _timed(arguments: list[str]) -> tuple[float, float]:
    """Seconds that a process of this Python takes, and of processor time."""
    before, begun = getrusage(RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-c", *arguments], stdout=subprocess.DEVNULL, check=True)
    wall_s, after = time.perf_counter() - begun, getrusage(RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
