"""SIGKILL on jobs over real flights and weather, at moments of the protocol: a chain, a join, a merge, windows of
messages that come again. A process that is killed has several of them, each at its own moment.
"""

from __future__ import annotations

import random
import time
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.children.spark_job import JOBS, PARTITIONS, at_once, parsed, run
from tests.helpers.killed_jobs import FILES, batches_of_spark, begun_together, fill, forget_planned_batch, is_exact
from tests.helpers.process import LONG, REMOTE
from tidestate.operators.spark import in_driver
from tidestate.recovery.log.checkpoint import Checkpoint
from tools.demo.child import Child

pytestmark = pytest.mark.spark

MOMENTS = ("before-manifest:4", "after-manifest:4", "between-the-logs", "random")
STORES = ("parquet", "memory", "rocksdb")
Case = tuple[str, str, str]
TOGETHER: list[list[Case]] = [[(job, moment, store) for job in JOBS] for moment in MOMENTS for store in STORES]
BOUNDED: list[list[Case]] = [
    [
        ("chain", "after-manifest:4", "parquet"),
        ("merge", "between-the-logs", "memory"),  # killed before the manifest, too
    ]
]
"""Either side of a manifest. With the other store, and of a join, in every run `tests.operators.local` and
`tests.operators.embedded` are killed without Spark; at random moments: `tests.faults.test_kills`.
"""
COUNT = FILES if LONG else 4


@pytest.mark.parametrize(
    "cases", TOGETHER if LONG else BOUNDED, ids=lambda cases: " ".join("-".join(one) for one in cases)
)
def test_killed_and_exact(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cases: list[Case]
) -> None:
    monkeypatch.setattr(in_driver, "LIMITS", in_driver.Limits())
    for job, _, _ in cases:
        fill(tmp_path / job, COUNT)
    begun = [
        [job, str(tmp_path / job), "--store", store, *([] if LONG else ["--for-seconds"])] for job, _, store in cases
    ]
    child = begun_together(
        tmp_path, [[*one, *pause(moment)] for one, (_, moment, _) in zip(begun, cases, strict=True)]
    )
    wait(child, cases)
    child.kill()
    for job, moment, _ in cases:
        if moment == "between-the-logs":
            forget_planned_batch(tmp_path / job / "checkpoint" / "spark")
    rest = [[*one, "--drain", "--in-driver"] for one in begun]
    if LONG:
        child = begun_together(tmp_path, rest)
        for _ in cases:
            child.wait_for(lambda event: event["event"] == "done")
        child.finish()
    elif REMOTE:  # each start is a process of the server, for which it waits ten seconds
        for one in rest:
            run(spark, parsed(one))
    else:  # this process is another one, too
        at_once(partial(run, spark), [parsed(one) for one in rest])
    for case in cases:
        went_on(tmp_path, *case)


def pause(moment: str) -> list[str]:
    paused = "before-manifest:4" if moment == "between-the-logs" else moment
    return [] if moment == "random" else ["--pause", paused]


def wait(child: Child, cases: list[Case]) -> None:
    """Until each job is where it is to be killed."""
    _, moment, store = cases[0]
    place = "started" if moment == "random" else "paused"
    for _ in cases:
        child.wait_for(lambda event: event["event"] == place)
    if moment == "random":
        time.sleep(random.Random(store).uniform(1.0, 8.0))


def went_on(folder: Path, job: str, moment: str, store: str) -> None:
    root = folder / job / "checkpoint"
    if moment == "between-the-logs":
        last = [0] * (len(JOBS[job]().graph.streams) - 1)  # the second stream is a file behind
        assert [len(first) for first, *_ in batches_of_spark(root / "spark")] == [1, 1, 2, *[1] * (COUNT - 4), *last]
    is_exact(folder / job, job)
    places = [one.scan.in_driver for one in Checkpoint.open(root).history() if one.scan is not None]
    in_driver = store == "parquet" and job not in PARTITIONS
    # A random kill may come after the last batch; on Spark Connect the job goes on by tasks of the server.
    assert REMOTE or moment == "random" or places[-1] == in_driver, "killed in tasks, continued in the driver"
    assert {bool(of.base) for of in Checkpoint.open(root).head().manifest.operators.values()} == {job in PARTITIONS}
