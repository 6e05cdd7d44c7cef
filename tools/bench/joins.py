"""What retained history, and rows that are held, cost a batch of an interval join: ours alone, standalone."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import pyarrow as pa

import tidestate as ts
from tidestate.statestore.spec.store import StoreConfig
from tidestate.statestore.spec.tables import TIME
from tidestate.stores import Memory, Parquet, RocksDB
from tools.bench.bids import JITTER_US, START_US
from tools.bench.workloads import SIDES, interval_join, two_streams

COLD = 3
RATE = 50_000
STORES: dict[str, StoreConfig] = {"parquet": Parquet(), "rocksdb": RocksDB(), "memory": Memory()}
BIDS = pa.schema([("event_time", TIME), ("key", pa.int64()), ("price", pa.int64())])
Sides = dict[str, pa.Table]
"""A batch."""
KEPT = (0, 1_000_000, 4_000_000)
LOAD = 250_000
HISTORY_US = 400 * 3_600_000_000


def history(
    keys: int, batch: int, batches: int, kept: Sequence[int], stores: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Per store and number of rows ``kept`` out of reach: the same batches on top, each with its checkpoint.

    Standalone, one partition. The rows are kept by allowed lateness, of the keys that the batches have too. The ratio
    is of the process's own time, which other work on the machine changes less, to that over the first number of rows.
    """
    for store in stores:
        base = None
        for rows in kept:
            with tempfile.TemporaryDirectory(prefix="tidestate-bench-") as folder:
                row = _with_history(Path(folder), STORES[store], keys, batch, batches, rows)
            base = base or row["median_cpu_ms"]
            yield {"name": f"{store}, {rows:,} rows kept", **row, "ratio": round(row["median_cpu_ms"] / base, 2)}


def held(keys: int, batch: int, batches: int, store: str) -> Iterator[dict[str, Any]]:
    """A window for each side: rows taken as they come, and held until the watermark passes them. The same batches,
    each with its checkpoint, standalone, in one partition; the ratio is of the process's own time. Only batches count
    that come after the watermark delay.
    """
    base = None
    for in_order in (False, True):
        with tempfile.TemporaryDirectory(prefix="tidestate-bench-") as folder:
            left, right = two_streams()
            windows = ts.side(window=ts.tumbling("2 seconds"))
            joined = left.join(right, on="key", sides=windows, in_order=in_order, name="held")
            filling = -(-5 * RATE // batch)
            inputs = _inputs(keys, [], batch, filling + COLD + batches)
            row = _measured(joined, Path(folder), STORES[store], inputs, filling)
        base = base or row["median_cpu_ms"]
        name = "held until the watermark" if in_order else "as they come"
        yield {"name": f"{store}, {name}", **row, "ratio": round(row["median_cpu_ms"] / base, 2)}


def _with_history(folder: Path, store: StoreConfig, keys: int, batch: int, batches: int, kept: int) -> dict[str, Any]:
    joined = interval_join(late="10000 hours")
    loads = -(-kept // LOAD)
    inputs = _inputs(keys, [kept // loads] * loads if loads else [], batch, COLD + batches)
    return _measured(joined, folder, store, inputs, loads)


def _measured(
    joined: ts.OperatorStream, folder: Path, store: StoreConfig, inputs: Iterator[Sides], loads: int
) -> dict[str, Any]:
    """What batches take after the ``loads`` and the cold ones."""
    running = joined.standalone(checkpoint=folder / "root", store=store).stream(inputs)
    took, pairs = [], 0
    started = time.perf_counter(), time.process_time()
    for panes in running:
        ended = time.perf_counter(), time.process_time()
        took.append([1000 * (end - start) for start, end in zip(started, ended, strict=True)])
        pairs += panes.num_rows if len(took) > loads else 0
        started = time.perf_counter(), time.process_time()
    wall, cpu = zip(*took[loads + COLD :], strict=True)
    return {
        "median_ms": round(median(wall)),
        "mean_ms": round(mean(wall)),
        "worst_ms": round(max(wall)),
        "median_cpu_ms": round(median(cpu)),
        "mean_cpu_ms": round(mean(cpu)),
        "pairs": pairs,
    }


def _inputs(keys: int, loads: Sequence[int], batch: int, batches: int) -> Iterator[Sides]:
    """Rows of long ago, nearly none of which meet each other, then batches as they come."""
    chance = np.random.default_rng(len(loads))
    for place, rows in enumerate(loads):
        first = START_US - HISTORY_US + place * (HISTORY_US // 2 // len(loads))
        span = HISTORY_US // 2 // len(loads)
        yield {side: _bids(chance, keys, rows // 2, first, span) for side in SIDES}
    chance, span = np.random.default_rng(keys), batch * 1_000_000 // RATE
    for place in range(batches):
        first = START_US + place * span
        yield {side: _bids(chance, keys, batch, first, span) for side in SIDES}


def _bids(chance: np.random.Generator, keys: int, rows: int, first: int, span: int) -> pa.Table:
    times = first + np.sort(chance.integers(0, span, rows)) - chance.integers(0, JITTER_US, rows)
    return pa.table([times, chance.integers(0, keys, rows), chance.integers(1, 10_000, rows)], schema=BIDS)
