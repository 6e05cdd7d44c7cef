"""A root goes on on either API and without Spark: begun on classic, then on Connect, standalone, and back."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import tidestate as ts
from tests.children.spark_job import JOBS, parsed, run
from tests.helpers.checkout import ROOT
from tests.helpers.killed_jobs import batches_of_root, inputs, is_exact
from tests.helpers.process import REMOTE
from tests.helpers.spark_inputs import write
from tidestate.recovery.log.checkpoint import Checkpoint
from tools.demo.child import Child

pytestmark = pytest.mark.skipif(not REMOTE, reason="of the form on Spark Connect: make connect")

PARTS = ("classic", "connect", "standalone", "classic", "standalone", "connect")
"""Who takes the files of each part, two of each stream."""


def feed(folder: Path, tables: dict[str, list[pa.Table]], part: int) -> None:
    """The files of a part, of each stream."""
    for stream, of_stream in tables.items():
        for number in range(2 * part, 2 * part + 2):
            write(folder / stream, number, of_stream[number])


def on_classic(folder: Path, words: list[str]) -> None:
    """The job over what is there, in a process with a classic session."""
    command = [sys.executable, "-m", "tests.children.spark_job", *words, "--for-seconds"]
    child = Child(command, folder / "classic.log", ROOT)
    child.wait_for(lambda event: event["event"] == "done")
    child.finish()


def without_spark(folder: Path, job: str) -> None:
    """The job over what is there, in this process."""
    described = JOBS[job]()
    folders = {stream: folder / stream for stream in described.graph.streams}
    running = described.standalone(checkpoint=folder / "checkpoint")
    running.run(ts.ParquetFolder(folders, files_per_batch=1))


@pytest.mark.parametrize("job", ["chain", "join"])
def test_each_goes_on_where_the_other_stopped(spark: SparkSession, tmp_path: Path, job: str) -> None:
    folder, tables = tmp_path / job, inputs(2 * len(PARTS))
    for part, runner in enumerate(PARTS):
        feed(folder, tables, part)
        words = [job, str(folder), *(["--drain"] if part == len(PARTS) - 1 else [])]
        if runner == "connect":
            run(spark, parsed(words))
        elif runner == "classic":
            on_classic(tmp_path, words)
        else:
            without_spark(folder, job)
    batches = [one for one in Checkpoint.open(folder / "checkpoint").history() if one.kind == "batch"]
    assert len(batches) >= 2 * len(PARTS)
    is_exact(folder, job, batches_of_root(folder / "checkpoint"))
