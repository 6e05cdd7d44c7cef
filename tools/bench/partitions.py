"""What state partitions cost: a few changed ones among many, against a job that has no others; standalone."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

from tidestate.statestore.spec.keyhash import partition_of
from tidestate.stores import Parquet
from tools.bench.bids import ARROW_SCHEMA, START_US, Numbers
from tools.bench.workloads import WORKLOADS

COLD = 2


def few_changes(changed: int, many: int, warm: int) -> tuple[float, float]:
    """Median seconds of a batch that changes so many of ``many`` state partitions, all of which have state, and of
    one of a job with ``changed`` partitions. Both take each batch in turn.
    """
    numbers = (many, changed)
    taken: dict[int, list[float]] = {number: [] for number in numbers}
    with tempfile.TemporaryDirectory(prefix="tidestate-bench-") as folder:
        running = {number: _panes(Path(folder) / str(number), number, changed, warm) for number in numbers}
        for _ in range(1 + COLD + warm):
            for number, panes in running.items():
                started = time.perf_counter()
                next(panes)
                taken[number].append(time.perf_counter() - started)
        for panes in running.values():
            next(panes, None)  # the job ends: its heartbeat must not write while the folder is removed
    many_s, few_s = (median(taken[number][1 + COLD :]) for number in numbers)
    return many_s, few_s


def _panes(root: Path, partitions: int, changed: int, warm: int) -> Iterator[pa.Table]:
    keys = one_key_each(partitions)
    some = spread(keys, changed)
    batches = [events(keys, 0), *(events(some, place) for place in range(1, 1 + COLD + warm))]
    job = WORKLOADS["held"].ours.standalone(checkpoint=root, store=Parquet(), partitions=partitions)
    return job.stream(batches)


def one_key_each(partitions: int) -> Numbers:
    """Keys, one in each state partition."""
    names = np.arange(partitions * 12)
    _, first = np.unique(partition_of(pa.table({"key": names}), partitions), return_index=True)
    return names[first]


def spread(keys: Numbers, changed: int) -> Numbers:
    """So many of the keys, evenly spread."""
    return keys[:: max(1, len(keys) // changed)][:changed]


def events(keys: Numbers, place: int) -> pa.Table:
    """A bid for each key, ``place`` seconds after the start."""
    times = pa.array(np.full(len(keys), START_US + place * 1_000_000), ARROW_SCHEMA.types[0])
    return pa.table([times, keys, keys % 1000, keys], schema=ARROW_SCHEMA)
