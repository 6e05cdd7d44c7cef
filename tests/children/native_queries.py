"""Queries of Spark's own, without anything of ours, as a process that is killed in the middle of a batch of each.

Those whose name begins with ``whole`` run to their end first; the others stop in the batch that reads file `DEATH`:
its state has been written, and its output not.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from tests.helpers.spark_inputs import SCHEMA
from tests.servers.packages import without_links
from tools.java import local_session

DEATH = 3
PROVIDERS = {
    "hdfs": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}
Query = Callable[[DataFrame], DataFrame]


def _sums(grouped: object) -> DataFrame:
    columns = [sf.count("*").alias("n"), sf.sum("v").alias("s"), sf.max("v").alias("x"), sf.avg("v").alias("m")]
    return grouped.agg(*columns)  # type: ignore[attr-defined,no-any-return]


QUERIES: dict[str, tuple[Query, str, str]] = {
    "tumbling": (lambda rows: _sums(rows.groupBy(sf.window("t", "10 seconds"), "k")), "append", "hdfs"),
    "sliding": (
        lambda rows: _sums(rows.groupBy("k", sf.window("t", "10 seconds", "5 seconds"))),
        "append",
        "rocksdb",
    ),
    "updating": (lambda rows: rows.groupBy(sf.window("t", "10 seconds")).count(), "update", "rocksdb"),
    "session": (lambda rows: _sums(rows.groupBy(sf.session_window("t", "4 seconds"), "k")), "append", "rocksdb"),
    "distinct": (lambda rows: rows.dropDuplicatesWithinWatermark(["v", "k"]), "append", "hdfs"),
}


def start(spark: SparkSession, folder: Path, name: str, hold: Callable[[str], None] | None) -> object:
    """Start a query on the files of ``folder/input``; its output goes to a file for each batch."""
    query, mode, provider = QUERIES[name]
    root = folder / ("whole" if hold is None else "native") / name
    (root / "output").mkdir(parents=True)

    def sink(rows: DataFrame, batch_id: int) -> None:
        lines = [json.dumps(row.asDict(recursive=True), default=str) for row in rows.collect()]
        planned = json.loads((root / "checkpoint" / "offsets" / str(batch_id)).read_text().splitlines()[2])
        if hold is not None and planned["logOffset"] == DEATH:
            hold(name)
        (root / "output" / f"{batch_id}.json").write_text("\n".join(lines))

    spark.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDERS[provider])
    spark.conf.set("spark.sql.shuffle.partitions", 2 if name in ("tumbling", "sliding") else 1)
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder / "input"))
    writer = query(stream.withWatermark("t", "5 seconds")).writeStream.outputMode(mode).foreachBatch(sink)
    return writer.option("checkpointLocation", str(root / "checkpoint")).trigger(availableNow=True).start()


def main() -> None:
    folder = Path(sys.argv[1])
    # Each of its queries runs for seconds: compiled stages would cost more than they save.
    interpreted = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    spark = local_session("native", **interpreted, **without_links())
    for one in [start(spark, folder, name, None) for name in QUERIES]:
        one.awaitTermination()  # type: ignore[attr-defined]
    waiting: set[str] = set()
    all_wait = threading.Event()

    def hold(name: str) -> None:
        waiting.add(name)
        if waiting == set(QUERIES):
            all_wait.set()
        time.sleep(3600)

    for name in QUERIES:
        start(spark, folder, name, hold)
    all_wait.wait()
    print(json.dumps({"event": "paused"}), flush=True)
    time.sleep(3600)


if __name__ == "__main__":
    main()
