"""The two sides of the benchmarks on Spark, each a process of its own with the same Spark settings.

``python -m tools.bench.sides ours|spark SOURCE`` runs tasks, lines of JSON, and answers each with a line.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Literal, Self, cast

import msgspec
from pyspark.sql import DataFrame, SparkSession

import tidestate as ts
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.stores import Parquet
from tools.bench.bids import FILES_PER_BATCH, JITTER_US, START_US
from tools.bench.memory import largest_descendant_mb
from tools.bench.nexmark import NEXMARK
from tools.bench.sources import Source, settings_of, stream_of
from tools.bench.workloads import WORKLOADS, Check, parsed
from tools.java import local_session

Side = Literal["ours", "spark"]
PROVIDERS = "org.apache.spark.sql.execution.streaming.state"
ALL_WORKLOADS = WORKLOADS | NEXMARK
HELD_BACK = "held-back"
# Small limits, so that a run of a few windows folds level 0 and writes snapshots, as a long one would.
STORE = Parquet(max_levels=6)


class SideError(Exception):
    """A side has failed; the text is the end of what it wrote."""


class Task(msgspec.Struct, frozen=True):
    """A run over the input in ``folder``: so many ``cold`` batches, which are not measured, and ``batches``, of
    ``batch`` events each.

    ``work``: one of `ALL_WORKLOADS`. ``rated``: keys, and rows a second of event time, of
    rows that Spark generates, instead of files. ``source``: what kind of input is in ``place``, if it is none of
    files in ``folder``.
    """

    work: str
    folder: str
    cold: int
    batches: int
    batch: int
    partitions: int = 2
    provider: Literal["rocksdb", "default"] = "rocksdb"
    rated: tuple[int, int] | None = None
    fired_us: int | None = None
    source: Source = "files"
    place: str = ""

    @property
    def until_us(self) -> int | None:
        """The end of windows that both sides have fired, where they differ in that: ``fired_us``, or with generated
        rows, which do not end, well before the last batch.
        """
        if self.rated is None:
            return self.fired_us
        return START_US + (self.cold + self.batches - 2) * self.batch * 1_000_000 // self.rated[1] - 60_000_000


class Answer(msgspec.Struct, frozen=True):
    """What a side measured, from its first warm batch to its last, whatever ran in between."""

    events: int
    wall_s: float
    median_batch_s: float
    batches_s: list[float]
    check: Check
    worker_mb: int
    phases_s: dict[str, float] = {}

    @property
    def events_per_s(self) -> int:
        """Events divided by wall time."""
        return round(self.events / self.wall_s)


class Sides:
    """Processes of both sides, started when they are needed. ``fresh``: a new one for each task."""

    def __init__(self, *, fresh: bool) -> None:
        self._fresh = fresh
        self._running: dict[tuple[Side, Source], _Process] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        for key in list(self._running):
            self._running.pop(key).close()

    def run(self, side: Side, task: Task) -> Answer:
        """Run a task in the process of its side, started if need be. Raises `SideError`, and ends it then."""
        key = (side, task.source)
        process = self._running.pop(key, None) or _Process(*key)
        try:
            answer = process.run(task)
        except BaseException:
            process.close()
            raise
        if self._fresh or task.source in ("s3", "kafka"):  # each server has an address of its own
            process.close()
        else:
            self._running[key] = process
        return answer


class _Process:
    def __init__(self, side: Side, source: Source) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tools.bench.sides", side, source],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._side = side

    def run(self, task: Task) -> Answer:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(msgspec.json.encode(task).decode() + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._process.wait()
            self._errors.seek(0)
            raise SideError(f"{self._side}: {self._errors.read()[-3000:].strip()}")
        return msgspec.json.decode(line, type=Answer)

    def close(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(60)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._errors.close()


class PhaseLog(logging.Handler):
    """Keeps what the job logs of its phases."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self._times: list[dict[str, float]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the times of a checkpoint."""
        if "seconds by phase" in record.msg and isinstance(record.args, tuple):
            self._times.append(msgspec.convert(record.args[1], dict[str, float]))

    def medians(self, cold: int, batches: int) -> dict[str, float]:
        """Of each phase, over the warm batches."""
        warm = self._times[cold : cold + batches]
        return {phase: median(times.get(phase, 0.0) for times in warm) for times in warm[:1] for phase in times}


def ours(spark: SparkSession, task: Task) -> Answer:
    """Our job: a durable checkpoint and pane files every batch."""
    work = ALL_WORKLOADS[task.work]
    root, given, phases = (
        Path(task.folder) / ("decoded" if work.decodes else "prepared" if work.prepare else "ours"),
        streams(spark, task, as_texts=work.decodes),
        PhaseLog(),
    )
    logger = logging.getLogger("tidestate")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(phases)
    where: dict[str, Any] = {"checkpoint": root, "store": STORE, "partitions": task.partitions}
    given = given if work.prepare is None else [work.prepare(stream) for stream in given]
    inputs = dict(zip(work.schemas, given, strict=True)) if len(given) > 1 else given[0]
    query = work.ours.on_spark(inputs, **where).start()
    _finish(task, query.processAllAvailable, lambda: query.recentProgress, query)
    progress, totals = query.recentProgress, query.manifest.totals
    query.stop()
    logger.removeHandler(phases)
    # Rows that Spark's plan leaves out are not seen.
    expected = 1 if work.prepare else task.batch * (task.cold + task.batches)
    # Those of a graph have the operator's name in front.
    events = sum(count for name, count in totals.items() if name.rpartition(".")[2] in ("events", "filtered"))
    assert events >= expected, f"{events} events of {expected}"
    answer = _answer(task, progress, spark.read.parquet(*Checkpoint.open(root).pane_paths()))
    return msgspec.structs.replace(answer, phases_s=phases.medians(task.cold, task.batches))


def peer(spark: SparkSession, task: Task) -> Answer:
    """Spark's own: a state store with checkpoints, panes in Parquet files."""
    name = "RocksDB" if task.provider == "rocksdb" else "HDFSBacked"
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", f"{PROVIDERS}.{name}StateStoreProvider")
    spark.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
    spark.conf.set("spark.sql.shuffle.partitions", str(task.partitions))
    folder, work = Path(task.folder), ALL_WORKLOADS[task.work]
    output = str(folder / "spark-panes")
    writer = work.query(streams(spark, task)).writeStream
    if work.output == "append":
        writer = writer.outputMode("append").format("parquet").option("path", output)
    else:
        writer = writer.outputMode(work.output).foreachBatch(partial(_write_batch, output))
    query = writer.option("checkpointLocation", str(folder / "spark-checkpoint")).start()
    reports: Callable[[], list[dict[str, Any]]] = lambda: [json.loads(p.json) for p in query.recentProgress]  # noqa: E731
    _finish(task, query.processAllAvailable, reports, query)
    progress = reports()
    query.stop()
    return _answer(task, progress, spark.read.parquet(output))


def streams(spark: SparkSession, task: Task, *, as_texts: bool = False) -> list[DataFrame]:
    """The input: files, or rows that Spark generates; messages as Spark parses them, or as texts."""
    _hold_back(task)
    if task.rated is not None:
        return [rated(spark, task.batch, *task.rated)]
    if task.place:
        stream = stream_of(spark, task.source, task.place, task.batch)
        return [parsed(stream) if task.source == "kafka" and not as_texts else stream]
    return [
        spark.readStream.schema(schema)
        .option("maxFilesPerTrigger", FILES_PER_BATCH)
        .parquet(str(Path(task.folder) / name))
        for name, schema in ALL_WORKLOADS[task.work].schemas.items()
    ]


def rated(spark: SparkSession, batch: int, keys: int, rate: int) -> DataFrame:
    """Bids without files, without end: each a function of its number."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", batch).option("numPartitions", 2)
    time_us = f"{START_US} + value * 1000000 div {rate} - pmod(xxhash64(value), {JITTER_US})"
    return (
        source.option("startTimestamp", 0)
        .load()
        .selectExpr(
            f"timestamp_micros({time_us}) AS event_time",
            f"pmod(xxhash64(value, 1), {keys}) AS key",
            "1 + pmod(xxhash64(value, 2), 9999) AS price",
        )
    )


def _write_batch(output: str, panes: DataFrame, batch_id: int) -> None:
    panes.write.mode("overwrite").parquet(f"{output}/batch={batch_id}")


def _hold_back(task: Task) -> None:
    """Take the files of the batch that closes windows out of the input, where these go by the clock."""
    if not ALL_WORKLOADS[task.work].clock_s:
        return
    held = Path(task.folder) / HELD_BACK
    held.mkdir(exist_ok=True)
    for path in Path(task.folder).glob(f"*/*-{task.cold + task.batches:05d}-*"):
        path.rename(held / path.name)


def _finish(
    task: Task, wait: Callable[[], Any], reports: Callable[[], list[dict[str, Any]]], query: ts.DurableQuery | Any
) -> None:
    """Wait for the last batch; generated rows have none. Windows by the clock are over some time after it, so the
    rows of the batch that closes them come after that.
    """
    clock_s = ALL_WORKLOADS[task.work].clock_s
    if task.rated is None:
        wait()
        if clock_s:
            time.sleep(clock_s)
            for path in (Path(task.folder) / HELD_BACK).iterdir():
                path.rename(path.parents[1] / path.name.partition("-")[0] / path.name)
            wait()
        return
    while not any(report["batchId"] >= task.cold + task.batches for report in reports()):
        if hasattr(query, "awaitTermination"):
            query.awaitTermination(0.2)
        else:
            query.awaitTermination(0.2)


def _answer(task: Task, progress: Sequence[dict[str, Any]], result: DataFrame) -> Answer:
    reports = [report for report in progress if "addBatch" in report["durationMs"]]
    last = task.cold + task.batches
    warm = [report for report in reports if task.cold <= report["batchId"] < last]
    # After files comes the batch that closes windows, and Spark's own without input; generated rows have no end, and
    # before the batch that closes windows of the clock the clock is waited for.
    work = ALL_WORKLOADS[task.work]
    final = (warm if task.rated is not None or work.clock_s else reports)[-1]
    begin, end = (datetime.fromisoformat(report["timestamp"]).timestamp() for report in (warm[0], final))
    seconds = [report["durationMs"]["triggerExecution"] / 1000 for report in reports]
    check = work.check(result, task.until_us)
    return Answer(
        events=task.batch * task.batches,
        wall_s=round(end + final["durationMs"]["triggerExecution"] / 1000 - begin, 3),
        median_batch_s=median(report["durationMs"]["triggerExecution"] / 1000 for report in warm),
        batches_s=seconds,
        check=check,
        worker_mb=largest_descendant_mb("pyspark.daemon"),
    )


def main() -> None:
    """Run the tasks of one side."""
    side: Callable[[SparkSession, Task], Answer] = {"ours": ours, "spark": peer}[sys.argv[1]]
    settings = {"spark.sql.streaming.numRecentProgressUpdates": "2000", **settings_of(cast("Source", sys.argv[2]))}
    spark = local_session("bench", sustained=True, **settings)
    for line in sys.stdin:
        answer = side(spark, msgspec.json.decode(line, type=Task))
        print(msgspec.json.encode(answer).decode(), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
