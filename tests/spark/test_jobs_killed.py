"""SIGKILL on jobs over real flights and weather, at moments of the protocol: a chain, a join, a merge, windows of
messages that come again.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.children.spark_job import JOBS, PARTITIONS
from tests.helpers.killed_jobs import batches_of_spark, begun, fill, forget_planned_batch, is_exact
from tests.helpers.process import LONG
from tidestate.recovery.log.checkpoint import Checkpoint

pytestmark = pytest.mark.spark

MOMENTS = ("before-manifest:4", "after-manifest:4", "between-the-logs", "random")
CASES = [(job, moment, store) for job in JOBS for moment in MOMENTS for store in ("parquet", "memory", "rocksdb")]
BOUNDED = [("join", "after-manifest:4", "rocksdb")]
"""Before a manifest: `tests.spark.test_kill`; a chain, at random: `tests.faults.test_kills`."""


@pytest.mark.parametrize(("job", "moment", "store"), CASES if LONG else BOUNDED)
def test_killed_and_exact(tmp_path: Path, job: str, moment: str, store: str) -> None:
    fill(tmp_path)
    if moment == "random":
        child = begun(tmp_path, job, store)
        child.wait_for(lambda event: event["event"] == "started")
        time.sleep(random.Random(f"{job} {store}").uniform(1.0, 8.0))
    else:
        pause = "before-manifest:4" if moment == "between-the-logs" else moment
        child = begun(tmp_path, job, store, "--pause", pause)
        child.wait_for(lambda event: event["event"] == "paused")
    child.kill()
    root = tmp_path / "checkpoint"
    if moment == "between-the-logs":
        forget_planned_batch(root / "spark")
    child = begun(tmp_path, job, store, "--drain", "--in-driver")
    child.wait_for(lambda event: event["event"] == "done")
    child.finish()
    if moment == "between-the-logs":
        assert [len(first) for first, *_ in batches_of_spark(root / "spark")] == [1, 1, 2, 1, 1, 0]
    is_exact(tmp_path, job)
    places = [one.scan.in_driver for one in Checkpoint.open(root).history() if one.scan is not None]
    in_driver = store == "parquet" and job not in PARTITIONS
    # A random kill may come after the last batch.
    assert moment == "random" or places[-1] == in_driver, "killed in tasks, continued in the driver"
    assert {bool(of.base) for of in Checkpoint.open(root).head().manifest.operators.values()} == {job in PARTITIONS}
