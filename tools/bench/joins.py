"""Interval joins of two streams of bids: ours against Spark's own, and what retained history costs a batch.

``python -m tools.bench.joins ours|spark FOLDER FORMAT`` is one side in a process of its own: it prints a JSON object.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from tidestate.operators import Join, Memory, Parquet, RocksDB, join, tumbling
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.spec.store import StoreConfig
from tidestate.statestore.spec.tables import TIME
from tools.bench.bids import FILES_PER_BATCH, JITTER_US, SCHEMA, START_US, Bids
from tools.bench.sides import summary, use_rocksdb
from tools.java import local_session

AIM = 2.0
COLD = 3
RATE = 50_000
PARTITIONS = 2
DELAY, WITHIN = "5 seconds", ("0 seconds", "2 seconds")
# As small as in the tumbling bench, so that a short run folds and writes snapshots as a long one would.
STORE = Parquet(max_levels=3)
SIDES = ("left", "right")
PAIR = ("key", "left_event_time", "left_price", "right_event_time", "right_price")
STORES: dict[str, StoreConfig] = {"parquet": Parquet(), "rocksdb": RocksDB(), "memory": Memory()}
BIDS = pa.schema([("event_time", TIME), ("key", pa.int64()), ("price", pa.int64())])
KEPT = (0, 1_000_000, 4_000_000)
LOAD = 250_000
HISTORY_US = 400 * 3_600_000_000


def interval_join(late: str = "0 seconds") -> Join:
    """Bids of one key on the right at most two seconds after those on the left."""
    return join(event_time="event_time", on="key", within=WITHIN, late=late, watermark_delay=DELAY, name="interval")


def against_spark(keys: int, events: int, batch: int, state_format: int) -> dict[str, Any]:
    """Both sides on the same files, in turn: ``events`` warm ones in each stream, ``batch`` of a stream at a time.

    Spark keeps its state in ``state_format``, of which 2 is its default and 3 puts all into one RocksDB a partition.
    """
    with tempfile.TemporaryDirectory(prefix="tidestate-bench-") as name:
        folder = Path(name)
        for seed, side in enumerate(SIDES):
            Bids(keys, batch, COLD + -(-events // batch), RATE, seed).write(folder / side)
        mine, theirs = (_run(side, folder, state_format) for side in ("ours", "spark"))
    return {
        "name": f"interval join, {keys:,} keys, batches of twice {batch:,}",
        "events_per_s": mine["events_per_s"],
        "peer": f"spark stream-stream inner join, state format {state_format}, rocksdb + changelog, parquet sink",
        "peer_events_per_s": theirs["events_per_s"],
        "ratio": round(mine["events_per_s"] / theirs["events_per_s"], 2),
        "aim": AIM,
        "median_batch_s": mine["median_batch_s"],
        "peer_median_batch_s": theirs["median_batch_s"],
        "events": mine["events"],
        "panes": mine["pairs"],
        "panes_equal": (mine["pairs"], mine["check"]) == (theirs["pairs"], theirs["check"]) and mine["pairs"] > 0,
        "ours": mine,
        "theirs": theirs,
    }


def ours(spark: SparkSession, left: DataFrame, right: DataFrame, folder: Path) -> dict[str, Any]:
    """Our join: a durable checkpoint and Parquet files of pairs every batch."""
    root = folder / "ours"
    query = interval_join().on_spark(left, right, checkpoint=root, store=STORE, partitions=PARTITIONS).start()
    query.process_all_available()
    progress = query.progress()
    query.stop()
    return _summary(progress) | _pairs(spark.read.parquet(*Checkpoint.open(root).pane_paths()))


def peer(spark: SparkSession, left: DataFrame, right: DataFrame, folder: Path) -> dict[str, Any]:
    """Spark's own join: RocksDB with changelog checkpoints, Parquet file sink."""
    use_rocksdb(spark)
    spark.conf.set("spark.sql.streaming.join.stateFormatVersion", sys.argv[3])
    lefts, rights = (
        stream.withWatermark("event_time", DELAY).select(
            sf.col("key").alias("key" if side == "left" else "right_key"),
            sf.col("event_time").alias(f"{side}_event_time"),
            sf.col("price").alias(f"{side}_price"),
        )
        for side, stream in zip(SIDES, (left, right), strict=True)
    )
    lower, upper = (f"left_event_time + INTERVAL {span}" for span in WITHIN)
    pairs = lefts.join(
        rights, sf.expr(f"key = right_key AND right_event_time >= {lower} AND right_event_time <= {upper}")
    )
    output = str(folder / "spark-pairs")
    writer = pairs.select(*PAIR).writeStream.outputMode("append").format("parquet").option("path", output)
    query = writer.option("checkpointLocation", str(folder / "spark-checkpoint")).start()
    query.processAllAvailable()
    progress = [json.loads(p.json) for p in query.recentProgress]
    query.stop()
    return _summary(progress) | _pairs(spark.read.parquet(output))


def _summary(progress: list[dict[str, Any]]) -> dict[str, Any]:
    """Of full batches: not the one that closes the streams, nor Spark's without input that follows it."""
    return summary([p for p in progress if p["numInputRows"] > 2 * FILES_PER_BATCH], COLD)


def _pairs(pairs: DataFrame) -> dict[str, Any]:
    """How many, and sums over the columns; the hashes of whole rows tell which left row met which right one."""
    apart = sf.unix_micros("right_event_time") - sf.unix_micros("left_event_time")
    hashes = sf.bit_xor(sf.xxhash64(*PAIR))
    sums = [sf.sum("left_price"), sf.sum("right_price"), sf.sum(apart), hashes]
    row = pairs.agg(sf.count("*"), *sums).collect()[0]
    return {"pairs": row[0], "check": list(row[1:])}


def _run(side: str, folder: Path, state_format: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "tools.bench.joins", side, str(folder), str(state_format)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{side} failed:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


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
            joined = join(
                event_time="event_time",
                on="key",
                window=(tumbling("2 seconds"), tumbling("2 seconds")),
                watermark_delay=DELAY,
                in_order=in_order,
                name="held",
            )
            filling = -(-5 * RATE // batch)
            inputs = _inputs(joined, keys, [], batch, filling + COLD + batches)
            row = _measured(joined, Path(folder), STORES[store], inputs, filling)
        base = base or row["median_cpu_ms"]
        name = "held until the watermark" if in_order else "as they come"
        yield {"name": f"{store}, {name}", **row, "ratio": round(row["median_cpu_ms"] / base, 2)}


def _with_history(folder: Path, store: StoreConfig, keys: int, batch: int, batches: int, kept: int) -> dict[str, Any]:
    joined = interval_join(late="10000 hours")
    loads = -(-kept // LOAD)
    inputs = _inputs(joined, keys, [kept // loads] * loads if loads else [], batch, COLD + batches)
    return _measured(joined, folder, store, inputs, loads)


def _measured(
    joined: Join, folder: Path, store: StoreConfig, inputs: Iterator[pa.Table], loads: int
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


def _inputs(joined: Join, keys: int, loads: Sequence[int], batch: int, batches: int) -> Iterator[pa.Table]:
    """Rows of long ago, nearly none of which meet each other, then batches as they come."""
    schema = joined.schema(BIDS, BIDS)
    chance = np.random.default_rng(len(loads))
    for place, rows in enumerate(loads):
        first = START_US - HISTORY_US + place * (HISTORY_US // 2 // len(loads))
        span = HISTORY_US // 2 // len(loads)
        yield joined.rows(schema, **{side: _bids(chance, keys, rows // 2, first, span) for side in SIDES})
    chance, span = np.random.default_rng(keys), batch * 1_000_000 // RATE
    for place in range(batches):
        first = START_US + place * span
        yield joined.rows(schema, **{side: _bids(chance, keys, batch, first, span) for side in SIDES})


def _bids(chance: np.random.Generator, keys: int, rows: int, first: int, span: int) -> pa.Table:
    times = first + np.sort(chance.integers(0, span, rows)) - chance.integers(0, JITTER_US, rows)
    return pa.table([times, chance.integers(0, keys, rows), chance.integers(1, 10_000, rows)], schema=BIDS)


def main() -> None:
    """Run one side."""
    side, folder = sys.argv[1], Path(sys.argv[2])
    spark = local_session("bench", sustained=True, **{"spark.sql.streaming.numRecentProgressUpdates": "1000"})
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", FILES_PER_BATCH)
    left, right = (reader.parquet(str(folder / name)) for name in SIDES)
    print(json.dumps({"ours": ours, "spark": peer}[side](spark, left, right, folder)), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
