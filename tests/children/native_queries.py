"""Queries of Spark's own, without anything of ours, and what is left of one that is killed in the middle of a batch:
that which reads file `DEATH`. Its state has been written, and its output not.

In ``whole`` they run to their end; ``native`` has what a kill leaves. As a process they are killed there.
"""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming import StreamingQuery

from tests.helpers.spark_inputs import SCHEMA
from tests.servers.packages import for_seconds
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


def start(
    spark: SparkSession, root: Path, source: Path, name: str, at_death: Callable[[str], object]
) -> StreamingQuery:
    """Start a query on the files of ``source``; its output goes to a file for each batch."""
    query, mode, provider = QUERIES[name]
    (root / "output").mkdir(parents=True)

    def sink(rows: DataFrame, batch_id: int) -> None:
        lines = [json.dumps(row.asDict(recursive=True), default=str) for row in rows.collect()]
        planned = json.loads((root / "checkpoint" / "offsets" / str(batch_id)).read_text().splitlines()[2])
        if planned["logOffset"] == DEATH:
            at_death(name)
        (root / "output" / f"{batch_id}.json").write_text("\n".join(lines))

    spark.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDERS[provider])
    spark.conf.set("spark.sql.shuffle.partitions", 2 if name in ("tumbling", "sliding") else 1)
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source))
    writer = query(stream.withWatermark("t", "5 seconds")).writeStream.outputMode(mode).foreachBatch(sink)
    return writer.option("checkpointLocation", str(root / "checkpoint")).trigger(availableNow=True).start()


def to_the_end(
    spark: SparkSession,
    folder: Path,
    names: Iterable[str] = QUERIES,
    at_death: Callable[[str], object] = lambda _: None,
) -> None:
    """Each of them over the files of ``folder/input``."""
    session = spark.newSession()  # with settings of its own
    running = [start(session, folder / "whole" / name, folder / "input", name, at_death) for name in names]
    for one in running:
        one.awaitTermination()


def copied_at_death(spark: SparkSession, folder: Path, names: Iterable[str]) -> None:
    """The same, and the files of each as they are at its death: no process that is killed there leaves others."""
    to_the_end(spark, folder, names, lambda name: shutil.copytree(folder / "whole" / name, folder / "native" / name))


def main() -> None:
    folder = Path(sys.argv[1])
    spark = local_session("native", **for_seconds())
    to_the_end(spark, folder)
    waiting: set[str] = set()
    all_wait = threading.Event()

    def hold(name: str) -> None:
        waiting.add(name)
        if waiting == set(QUERIES):
            all_wait.set()
        time.sleep(3600)

    for name in QUERIES:
        start(spark, folder / "native" / name, folder / "input", name, hold)
    all_wait.wait()
    print(json.dumps({"event": "paused"}), flush=True)
    time.sleep(3600)


if __name__ == "__main__":
    main()
