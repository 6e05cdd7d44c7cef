"""What state partitions cost: the smallest batches on Spark, and a few changed partitions among many.

``python -m tools.bench.partitions small|few [--json]``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidestate.operators import Parquet, Windowed, count, max_, mean, tumbling, windowed
from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.engine.driver import Driver
from tidestate.operators.engine.in_process import InProcess
from tidestate.operators.engine.job import Job, Position
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.spec.keyhash import partition_of
from tools.bench.bids import SCHEMA as SPARK_SCHEMA
from tools.bench.bids import START_US

ARROW = pa.schema([("event_time", pa.timestamp("us", tz="UTC")), ("key", pa.int64()), ("price", pa.int64())])
ROWS, COLD, WARM, KEYS = 200, 5, 20, 100
CHANGED = 100
STEP_US = 1_000_000


def bids() -> Windowed:
    """What both sides compute."""
    job = windowed(event_time="event_time", key="key", watermark_delay="5 seconds", name="bids")
    job = job.window(tumbling("10 seconds")).late(allowed="0 seconds")
    return job.aggregate(bids=count(), mean_price=mean("price"), best=max_("price"))


def small(partitions: list[int]) -> Iterator[dict[str, Any]]:
    """Batches of 200 rows on Spark, against Spark's own aggregation with RocksDB and as many partitions."""
    for number in partitions:
        found = {}
        with tempfile.TemporaryDirectory(prefix="tidestate-bench-") as folder:
            _write(Path(folder) / "input")
            for side in ("ours", "spark"):
                command = [sys.executable, "-m", "tools.bench.partitions", side, str(number), folder]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                found[side] = json.loads(done.stdout.splitlines()[-1])
        yield {
            "name": f"smallest batch ({ROWS} rows), {number} partitions",
            "batch_ms": round(found["ours"] * 1000),
            "peer": "spark rocksdb",
            "peer_batch_ms": round(found["spark"] * 1000),
            "ratio": round(found["spark"] / found["ours"], 2),
        }


def few(many: int = 10_000) -> Iterator[dict[str, Any]]:
    """Batches that change 100 state partitions of ``many``, against those of a job that has no others; standalone."""
    seconds, sizes = {}, {}
    with tempfile.TemporaryDirectory(prefix="tidestate-bench-") as folder:
        jobs = {number: _begun(Path(folder) / str(number), number) for number in (CHANGED, many)}
        taken: dict[int, list[float]] = {number: [] for number in jobs}
        for place in range(1, COLD + WARM):
            for number, (driver, keys) in jobs.items():
                started = time.perf_counter()
                driver.batch([_events(keys, place)], place, lambda _id: Position())
                taken[number].append(time.perf_counter() - started)
        for number in jobs:
            seconds[number] = median(taken[number][COLD:])
            sizes[number] = max(path.stat().st_size for path in (Path(folder) / str(number) / "manifests").iterdir())
    yield {
        "name": f"a checkpoint that changes {CHANGED} of {many:,} state partitions",
        "batch_ms": round(seconds[many] * 1000, 1),
        "manifest_bytes": sizes[many],
        "peer": f"{CHANGED} partitions",
        "peer_batch_ms": round(seconds[CHANGED] * 1000, 1),
        "peer_manifest_bytes": sizes[CHANGED],
        "ratio": round(seconds[many] / seconds[CHANGED], 2),
    }


def _begun(root: Path, partitions: int) -> tuple[Driver[Any, Any], np.ndarray[Any, Any]]:
    """A job whose partitions all have state, and a key in each of 100 partitions."""
    names = np.arange(partitions * 12)
    owners = partition_of(pa.table({"key": names}), partitions)
    _, first = np.unique(owners, return_index=True)
    job = Job.begin(bind_graph(bids(), ARROW), Checkpoint.open_or_create(root), Parquet(), partitions=partitions)
    driver = Driver(job, InProcess())
    driver.batch([_events(names[first], 0)], 0, lambda _id: Position())
    step = max(1, len(first) // CHANGED)
    return driver, names[first][::step][:CHANGED]


def _events(keys: np.ndarray[Any, Any], place: int) -> pa.Table:
    times = START_US + place * STEP_US + np.arange(len(keys)) % 1000
    return pa.table([times, keys, keys % 1000], names=ARROW.names).cast(ARROW)


def _write(folder: Path) -> None:
    """A file for each batch."""
    folder.mkdir()
    chance = np.random.default_rng(7)
    for place in range(COLD + WARM):
        times = START_US + place * STEP_US + np.sort(chance.integers(0, STEP_US, ROWS))
        rows = [times, chance.integers(0, KEYS, ROWS), chance.integers(1, 10_000, ROWS)]
        table = pa.table(rows, names=ARROW.names).cast(ARROW)
        path = folder / f"{place:05d}.parquet"
        pq.write_table(table, path)
        os.utime(path, (1_000_000_000 + place,) * 2)


def _on_spark(side: str, partitions: int, folder: Path) -> float:
    """The median of the warm batches, in seconds."""
    from pyspark.sql import functions as sf

    from tools.bench.sides import use_rocksdb
    from tools.java import local_session

    options = {
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        "spark.sql.shuffle.partitions": str(partitions),
    }
    spark = local_session("bench", sustained=True, **options)
    stream = spark.readStream.schema(SPARK_SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder / "input"))
    if side == "ours":
        query = bids().on_spark(stream, checkpoint=folder / "ours", partitions=partitions).start()
        query.process_all_available()
        progress = query.progress()
        query.stop()
    else:
        use_rocksdb(spark)
        made = stream.withWatermark("event_time", "5 seconds").groupBy(sf.window("event_time", "10 seconds"), "key")
        made = made.agg(sf.count("*").alias("bids"), sf.avg("price").alias("mean"), sf.max("price").alias("best"))
        writer = made.writeStream.outputMode("append").format("parquet").option("path", str(folder / "spark-panes"))
        peer = writer.option("checkpointLocation", str(folder / "spark-checkpoint")).start()
        peer.processAllAvailable()
        progress = [json.loads(one.json) for one in peer.recentProgress]
        peer.stop()
    spark.stop()
    warm = [one for one in progress if one["batchId"] >= COLD and one["numInputRows"]]
    return float(median(one["durationMs"]["triggerExecution"] / 1000 for one in warm))


def main() -> None:
    """Run a bench, or one side of it."""
    what, *rest = [one for one in sys.argv[1:] if not one.startswith("-")]
    if what in ("ours", "spark"):
        print(json.dumps(_on_spark(what, int(rest[0]), Path(rest[1]))), flush=True)
        return
    rows = few(*map(int, rest)) if what == "few" else small([int(one) for one in rest] or [4, 64])
    for row in rows:
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
