"""Small batches in one process: what a batch costs where there are few rows, and how many files a checkpoint writes.

Standalone, four state partitions, a thousand rows and a checkpoint each batch: so few rows that what is measured is
the path of a batch, not its rows.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

import tidestate as ts
from tidestate import agg
from tidestate.stores import Parquet
from tools.bench.bids import Bids

STATE_PARTITIONS = 4
SMALL_BIDS = Bids(keys=500, batch=1_000, batches=100, rate=1_000)
"""A second of event time a batch, and two events of each key in it."""
FIRST_MEASURED = 30
"""Batches before the clock starts: by then windows close, and files are folded."""
DELAY, GAP = "5 seconds", "1 second"
AIM_FILES = 8


def _windows(windows: object) -> ts.Aggregation:
    by_key = ts.stream(event_time="event_time", watermark_delay=DELAY).group_by("key").window(windows)  # type: ignore[arg-type]
    return by_key.aggregate(bids=agg.count(), middle=agg.mean("price"), best=agg.max("price")).named("bids")


def _with_messages() -> ts.Aggregation:
    by_key = ts.stream(event_time="event_time", watermark_delay=DELAY).group_by("key").window(ts.sessions(GAP))
    made = by_key.aggregate(bids=agg.count(), prices=agg.list("price"))
    return made.messages(identity="id").named("bids")


@dataclass(frozen=True)
class Job:
    """What runs, and how many milliseconds a batch may take."""

    described: Callable[[], ts.Aggregation]
    aim_ms: int


SMALL_JOBS = {
    "tumbling": Job(lambda: _windows(ts.tumbling("10 seconds")), 15),
    "sessions": Job(lambda: _windows(ts.sessions(GAP)), 40),
    "sessions with messages and a list": Job(_with_messages, 90),
}


@dataclass(frozen=True)
class SmallBatches:
    """Milliseconds of the median batch, on the clock and of processors, and of how many files a checkpoint consists
    on average: state, panes, ledger and manifest. Notes that nothing waits for do not count.
    """

    ms: float
    processor_ms: float
    files: float
    panes: int


@cache
def measured(name: str, *, warm: int) -> SmallBatches:
    """A job of `SMALL_JOBS` on so many ``warm`` batches, run once."""
    took: list[float] = []
    used: list[float] = []
    panes = begun = 0
    with warnings.catch_warnings(), tempfile.TemporaryDirectory(prefix="tidestate-bench-") as folder:
        warnings.simplefilter("ignore")  # sessions that retract nothing: nothing comes late
        root = Path(folder) / "root"
        runner = (
            SMALL_JOBS[name].described().standalone(checkpoint=root, store=Parquet(), partitions=STATE_PARTITIONS)
        )
        outputs = runner.stream(_input(FIRST_MEASURED + warm))
        for number in range(FIRST_MEASURED + warm):
            if number == FIRST_MEASURED:
                begun = _written(root)
            started, used_before = time.perf_counter(), time.process_time()
            rows = next(outputs)
            took.append(time.perf_counter() - started)
            used.append(time.process_time() - used_before)
            panes += rows.num_rows
        files = (_written(root) - begun) / warm
        next(outputs, None)  # the job ends: its heartbeat must not write while the folder is removed
    ms, processor_ms = (round(1000 * median(seconds[FIRST_MEASURED:]), 1) for seconds in (took, used))
    return SmallBatches(ms, processor_ms, round(files, 1), panes)


def _input(number: int) -> Iterator[pa.Table]:
    """Bids, each with an id of its own."""
    for place in range(number):
        rows = SMALL_BIDS.table(place)
        yield rows.append_column("id", pa.array(np.arange(rows.num_rows) + place * SMALL_BIDS.batch))


def _written(root: Path) -> int:
    """Files of checkpoints below a root. Nothing is collected in so short a run."""
    return sum(path.is_file() for folder in ("data", "manifests") for path in (root / folder).rglob("*"))
