"""Roots that a job on Spark has left: the same jobs over files, and how such a root goes on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tests.golden.continued import Root, Step, newest_id, put_out, store_of
from tests.golden.inputs import Case
from tests.golden.jobs import CASES
from tests.helpers.spark_inputs import write
from tidestate import OperatorStream, ParquetFolder

NAMES = ("tumbling_retracting", "in_order_sessions", "messages", "chain_deduplicated", "join_full")
"""Kinds that are kept of Spark too."""
_TYPES = {"string": "string", "int64": "long", "double": "double", "decimal128(18, 4)": "decimal(18, 4)"}


def spark_case(name: str) -> Case:
    return CASES[name]()._replace(runner="spark", partitions=2)


def write_steps(inputs: Path, steps: Iterable[Step], first: int) -> None:
    """Each step as a file of each stream, beginning with number ``first``."""
    for number, step in enumerate(steps, first):
        for name, rows in step.get("streams", {"": step.get("rows")}).items():
            write(folder_of(inputs, name), number, rows)


def folder_of(inputs: Path, stream: str) -> Path:
    return inputs / (stream or "rows")


class SparkRun:
    """A job over files in a folder of its own, a file for each step and stream. A root goes on with the files that
    follow alone: what Spark has read it does not read again.
    """

    def __init__(self, spark: SparkSession, about: Mapping[str, Any], job: OperatorStream, root: Path) -> None:
        self.spark, self.about, self.job, self.root = spark, about, job, root
        self.streams = list(about["schemas"])

    def take(self, steps: Iterable[Step], first: int) -> None:
        """All of them, beginning with number ``first``."""
        write_steps(self.root.parent / "input", steps, first)
        frames = {name: self._read(name) for name in self.streams}
        rows = frames if len(frames) > 1 else next(iter(frames.values()))
        store = store_of(self.about["store"], self.root.parent / "cache")
        started = self.job.on_spark(rows, checkpoint=self.root, store=store, partitions=self.about["partitions"])
        self.query = started.start()
        self.query.processAllAvailable()

    def _read(self, stream: str) -> DataFrame:
        columns = self.about["schemas"][stream].items()
        schema = ", ".join(f"`{name}` {_TYPES.get(kind, 'timestamp')}" for name, kind in columns)
        reader = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        # As a pattern: of a folder Spark requires that the last batch, which it looks up again, is in it.
        return reader.parquet(f"{folder_of(self.root.parent / 'input', stream)}/*.parquet")


def continued_on_spark(spark: SparkSession, stored: Root, job: OperatorStream, folder: Path) -> dict[str, Any]:
    """As `continued` of a root that was made without Spark."""
    root = stored.unpack(folder)
    before = newest_id(root)
    run = SparkRun(spark, stored.about, job, root)
    run.take(stored.steps, first=stored.about["batches"])
    following, after = put_out(root, before), newest_id(root)
    run.query.stop(drain=True)
    return {"continued": following, "drained": put_out(root, after)}


def continued_standalone(stored: Root, job: OperatorStream, folder: Path) -> dict[str, Any]:
    """As `continued_on_spark`, over the same files without Spark."""
    root, inputs = stored.unpack(folder), folder / "input"
    before = newest_id(root)
    write_steps(inputs, stored.steps, first=stored.about["batches"])
    folders = {name: folder_of(inputs, name) for name in stored.about["schemas"]}
    files = ParquetFolder(folders if len(folders) > 1 else next(iter(folders.values())), files_per_batch=1)
    run = job.standalone(checkpoint=root, store=store_of(stored.about["store"], folder / "cache"))
    run.run(files)
    following, after = put_out(root, before), newest_id(root)
    run.drain()
    return {"continued": following, "drained": put_out(root, after)}
