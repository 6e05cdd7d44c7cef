"""How long a job on Spark takes from its start to its first committed batch. The session runs already."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tools.bench.bids import ARROW_SCHEMA, FILES_PER_BATCH, SCHEMA, START_US, Bids
from tools.bench.sides import STORE
from tools.bench.workloads import WORKLOADS
from tools.java import local_session

ROWS = 20_000
"""Of the batch after a restart."""


class Settings(msgspec.Struct, frozen=True):
    """``rows`` of state, in batches of ``batch``, then ``turns`` restarts."""

    folder: str
    rows: int
    batch: int
    turns: int = 3


def measured(settings: Settings) -> float:
    """Median seconds, from a process of its own. Raises `subprocess.CalledProcessError`."""
    command = [sys.executable, "-m", "tools.bench.restart", msgspec.json.encode(settings).decode()]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def restarts(spark: SparkSession, settings: Settings) -> Iterator[float]:
    """Seconds from ``start`` to the first committed batch, of each restart; the first one warms up."""
    folder = Path(settings.folder)
    batches = settings.rows // settings.batch
    # No two bids have the same key, so each is a row of state.
    Bids(1 << 40, settings.batch, batches, settings.batch, closing_us=1_000_000).write(folder / "input")
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", FILES_PER_BATCH).parquet(f"{folder}/input")
    job = WORKLOADS["held"].ours.on_spark(stream, checkpoint=folder / "root", store=STORE, partitions=2)
    query = job.start()
    query.processAllAvailable()
    query.stop()
    for turn in range(settings.turns + 1):
        time_us = START_US + (batches + 2 + turn) * 1_000_000
        _write(folder / "input" / f"more-{turn}.parquet", np.arange(ROWS) + (turn << 41), time_us)
        before = query.checkpoint_id
        started = time.perf_counter()
        query = job.start()
        while query.checkpoint_id <= before + 1:  # a fence, then the batch
            time.sleep(0.005)
        yield time.perf_counter() - started
        query.processAllAvailable()
        query.stop()


def _write(path: Path, keys: np.ndarray, time_us: int) -> None:
    times = pa.array(np.full(len(keys), time_us), ARROW_SCHEMA.types[0])
    ones = np.ones(len(keys), np.int64)
    pq.write_table(pa.table([times, keys, ones, ones], schema=ARROW_SCHEMA), path, compression="NONE")


def main() -> None:
    """Print the median of seconds from a start to its first batch, without the first restart."""
    settings = msgspec.json.decode(sys.argv[1], type=Settings)
    spark = local_session("bench", sustained=True, **{"spark.sql.streaming.numRecentProgressUpdates": "1000"})
    print(median(list(restarts(spark, settings))[1:]), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
