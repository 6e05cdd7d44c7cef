"""What the examples share: times of day, and a run in this process or on Spark that prints each pane in words."""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

import tidestate as ts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TIME = pa.timestamp("us", tz="UTC")
Batch = Mapping[str, pa.Table]
"""What each stream has that is new, by its name."""
Pane = Mapping[str, Any]


def at(time: str, day: int = 1) -> datetime:
    """A time of this day in January 2026, such as ``09:30``."""
    return datetime.fromisoformat(f"2026-01-{day:02}T{time}Z")


def clock(time: datetime) -> str:
    """The time of day."""
    return f"{time:%H:%M}"


def rows(schema: pa.Schema, *values: tuple[Any, ...]) -> pa.Table:
    """A table with a tuple for each row."""
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in values], schema)


def run(job: ts.OperatorStream, batches: Sequence[Batch], words: Callable[[Pane], str]) -> None:
    """``python examples/NAME.py [FOLDER] [--spark]``: run the job, and print each of its panes in words."""
    options = argparse.ArgumentParser()
    options.add_argument("folder", nargs="?", help="a new folder for the checkpoint, which is kept")
    options.add_argument("--spark", action="store_true", help="run on Spark")
    chosen = options.parse_args()
    logging.getLogger("tidestate").setLevel(logging.ERROR)  # it warns of input that leaps ahead by hours, as these do
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(chosen.folder or temporary)
        panes = run_with_spark(job, batches, folder) if chosen.spark else run_alone(job, batches, folder)
    for pane in panes.to_pylist():
        print(words(pane))


def run_alone(job: ts.OperatorStream, batches: Sequence[Batch], folder: Path) -> pa.Table:
    """The panes of a run in this process; the end of the input ends every window."""
    return job.standalone(checkpoint=folder / "checkpoint").run(batches, drain=True)


def run_with_spark(job: ts.OperatorStream, batches: Sequence[Batch], folder: Path) -> pa.Table:
    """The same on a Spark of its own."""
    from tools.java import local_session  # the Java of the demo; any session will do

    spark = local_session("example")
    try:
        return run_on_spark(job, batches, folder, spark)
    finally:
        spark.stop()


def run_on_spark(job: ts.OperatorStream, batches: Sequence[Batch], folder: Path, spark: SparkSession) -> pa.Table:
    """The panes of a streaming query over Parquet files, of which each trigger reads one of each stream."""
    frames = {name: _files(spark, folder / name, [batch[name] for batch in batches]) for name in batches[0]}
    sink = ts.sinks.ParquetSink(folder / "panes")
    query = job.on_spark(frames, checkpoint=folder / "checkpoint", partitions=2, sink=sink).start()
    query.processAllAvailable()
    query.stop(drain=True)
    return pa.concat_tables(pq.read_table(file) for file in sorted((folder / "panes").glob("*.parquet")))


def _files(spark: SparkSession, folder: Path, tables: Sequence[pa.Table]) -> DataFrame:
    """A stream over a file for each table."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, table in enumerate(tables):
        file = folder / f"{number}.parquet"
        pq.write_table(table, file)
        os.utime(file, (number + 1, number + 1))  # the order in which Spark reads them
    schema = spark.read.parquet(str(folder)).schema
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))
