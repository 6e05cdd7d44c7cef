"""The two sides of the benchmarks on Spark, each run in a process of its own with the same Spark settings.

``python -m tools.bench.sides ours|spark tumbling|session FOLDER COLD`` prints one JSON object.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from tidestate.operators import Parquet, count, max_, mean, session, tumbling, windowed
from tidestate.recovery.log.checkpoint import Checkpoint
from tools.bench.bids import FILES_PER_BATCH, SCHEMA
from tools.java import local_session

PARTITIONS = 2
DELAY = "60 seconds"
# Spark merges sessions that only touch, we do not: a microsecond more is the same to whole microseconds.
GAP, SPARKS_GAP = "2 seconds 1 microsecond", "2 seconds"
# Small limits, so that a run of a few windows folds level 0 and writes snapshots, as a long one would.
STORE = Parquet(max_levels=3)


def ours(spark: SparkSession, stream: DataFrame, folder: Path) -> dict[str, Any]:
    """Our job: a durable checkpoint and pane files every batch."""
    bids = (
        windowed(event_time="event_time", key="key", watermark_delay=DELAY, name="bids")
        .window(session(GAP) if sys.argv[2] == "session" else tumbling("10 seconds"))
        .aggregate(bids=count(), mean_price=mean("price"), best=max_("price"))
        .late(allowed="0 seconds")
    )
    root = folder / "ours"
    query = bids.on_spark(stream, checkpoint=root, store=STORE, partitions=PARTITIONS).start()
    query.process_all_available()
    progress = query.progress()
    query.stop()
    _count_rows(progress, root)
    panes = spark.read.parquet(*Checkpoint.open(root).pane_paths())
    kinds: dict[str, set[str]] = {"run": set(), "snapshot": set()}
    for manifest in Checkpoint.open(root).history():
        for state in manifest.operators["bids"].partitions:
            for ref in state.files:
                if ref.kind in kinds:
                    kinds[ref.kind].add(ref.path)
    shape = {"folds": len(kinds["run"] | kinds["snapshot"]), "snapshots": len(kinds["snapshot"])}
    return summary(progress, int(sys.argv[4])) | shape | _panes(panes)


def peer(spark: SparkSession, stream: DataFrame, folder: Path) -> dict[str, Any]:
    """Spark's own windowed aggregation: RocksDB with changelog checkpoints, Parquet file sink."""
    use_rocksdb(spark)
    session_ = sf.session_window("event_time", SPARKS_GAP)
    window = session_ if sys.argv[2] == "session" else sf.window("event_time", "10 seconds")
    bids = (
        stream.withWatermark("event_time", DELAY)
        .groupBy(window, "key")
        .agg(sf.count("*").alias("bids"), sf.avg("price").alias("mean_price"), sf.max("price").alias("best"))
    )
    output = str(folder / "spark-panes")
    writer = bids.writeStream.outputMode("append").format("parquet").option("path", output)
    query = writer.option("checkpointLocation", str(folder / "spark-checkpoint")).start()
    query.processAllAvailable()
    progress = [json.loads(p.json) for p in query.recentProgress]
    query.stop()
    return summary(progress, int(sys.argv[4])) | _panes(spark.read.parquet(output))


def use_rocksdb(spark: SparkSession) -> None:
    """Spark's own state in RocksDB, with changelog checkpoints."""
    spark.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    spark.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")


def summary(progress: list[dict[str, Any]], cold: int) -> dict[str, Any]:
    """Events and wall time of the batches from number ``cold`` on, first to last, whatever ran in between."""
    warm = [p for p in progress if p["batchId"] >= cold and "addBatch" in p["durationMs"]]
    start = datetime.fromisoformat(warm[0]["timestamp"]).timestamp()
    end = (
        datetime.fromisoformat(warm[-1]["timestamp"]).timestamp() + warm[-1]["durationMs"]["triggerExecution"] / 1000
    )
    events = sum(p["numInputRows"] for p in warm)
    full = [p for p in warm if p["numInputRows"] > FILES_PER_BATCH]
    return {
        "events": events,
        "wall_s": round(end - start, 3),
        "events_per_s": round(events / (end - start)),
        "median_batch_s": round(median(p["durationMs"]["triggerExecution"] for p in full) / 1000, 3),
        "batches_s": [p["durationMs"]["triggerExecution"] / 1000 for p in progress],
    }


def _count_rows(progress: list[dict[str, Any]], root: Path) -> None:
    """Spark counts no row that it has not read: the manifests know how many there were."""
    batches = [one for one in Checkpoint.open(root).history() if one.kind == "batch" and one.spark is not None]
    rows = {one.spark.batch_id: one.counters["events"] for one in batches if one.spark is not None}
    for report in progress:
        report["numInputRows"] = rows.get(report["batchId"], 0)


def _panes(panes: DataFrame) -> dict[str, Any]:
    row = panes.agg(sf.count("*"), sf.sum("bids"), sf.sum("best"), sf.sum("mean_price")).collect()[0]
    return {"panes": row[0], "check": [row[1], row[2], round(row[3], 3)]}


def main() -> None:
    """Run one side."""
    side, folder = sys.argv[1], Path(sys.argv[3])
    spark = local_session("bench", sustained=True, **{"spark.sql.streaming.numRecentProgressUpdates": "1000"})
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", FILES_PER_BATCH)
    run = {"ours": ours, "spark": peer}[side]
    print(json.dumps(run(spark, stream.parquet(str(folder / "input")), folder)), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
