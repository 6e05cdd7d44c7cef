"""What the handle of a query says once there is nobody to ask: nothing is passed over in silence."""

from __future__ import annotations

import json
import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tidestate as ts
from tests.helpers.process import REMOTE
from tests.helpers.spark_inputs import batch, job, write
from tests.helpers.spark_runs import stream
from tidestate import DurableQuery, UnavailableError, UsageError
from tidestate.recovery.log.checkpoint import Checkpoint

pytestmark = pytest.mark.skipif(not REMOTE, reason="of the form on Spark Connect: make connect")


def started(spark: SparkSession, folder: Path, **trigger: bool) -> DurableQuery:
    write(folder / "input", 0, batch([(1, "a", 1), (25, "b", 2)]))
    described = job().on_spark(stream(spark, folder / "input"), checkpoint=folder / "root", partitions=2)
    return (described.trigger(**trigger) if trigger else described).start()


def test_a_query_that_has_ended_cannot_be_drained(spark: SparkSession, tmp_path: Path) -> None:
    query = started(spark, tmp_path, availableNow=True)
    assert query.awaitTermination(60)
    with pytest.raises(UsageError) as caught:
        query.stop(drain=True)
    assert caught.value.code == "not-running"
    query.stop()
    assert not Checkpoint.open(tmp_path / "root").chosen(None).manifest.drained


def test_several_stop_a_job_at_once(spark: SparkSession, tmp_path: Path) -> None:
    query = started(spark, tmp_path)
    handles = [query, ts.attach(spark, tmp_path / "root"), ts.attach(spark, tmp_path / "root")]
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda handle: handle.stop(drain=True), handles))
    assert Checkpoint.open(tmp_path / "root").chosen(None).manifest.drained
    query.stop(drain=True)


def test_a_process_that_dies_between_two_batches(spark: SparkSession, tmp_path: Path) -> None:
    query = started(spark, tmp_path)
    query.processAllAvailable()
    (lease,) = (tmp_path / "root" / "alive").iterdir()
    os.kill(json.loads(lease.read_text())["process"]["pid"], signal.SIGKILL)
    with pytest.raises(UnavailableError) as caught:
        query.awaitTermination()
    assert caught.value.code == "server-process"
    with pytest.raises(UnavailableError):
        query.stop()
    assert not query.isActive


def test_a_query_whose_root_is_gone_can_be_stopped(spark: SparkSession, tmp_path: Path) -> None:
    query = started(spark, tmp_path)
    query.processAllAvailable()
    shutil.rmtree(tmp_path / "root")
    query.stop()
    assert not query.isActive
