"""A root that the client cannot reach is read, and its run asked, by tasks in the server."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.helpers.process import REMOTE
from tests.helpers.requests import until
from tests.helpers.spark_inputs import batch, job, write
from tests.helpers.spark_runs import stream
from tidestate import ConflictError, DurableQuery, NotFoundError
from tidestate.operators.spark.connect import query
from tidestate.operators.spark.connect.root_by_task import ObjectsByTask, objects_of_client
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.storage.objects import Objects

pytestmark = pytest.mark.skipif(not REMOTE, reason="of the form on Spark Connect: make connect")

EVENTS = batch([(1, "a", 1), (25, "b", 2), (60, "b", 4)])


def started(spark: SparkSession, folder: Path) -> DurableQuery:
    write(folder / "input", 0, EVENTS)
    running = job().on_spark(stream(spark, folder / "input"), checkpoint=folder / "root", partitions=2).start()
    running.processAllAvailable()
    until((folder / "root" / "control" / "1" / "begun.json").exists)
    return running


def test_files_of_a_root(spark: SparkSession, tmp_path: Path) -> None:
    own, by_task = Objects(tmp_path), ObjectsByTask(spark, str(tmp_path))
    by_task.create("control/1/1.json", b"a request")
    assert own.read("control/1/1.json") == by_task.read("control/1/1.json") == b"a request"
    assert by_task.names("control") == ["1"]
    assert by_task.names("nowhere") == []
    assert (by_task.exists("control/1/1.json"), by_task.exists("control/1/2.json")) == (True, False)
    with pytest.raises(ConflictError):
        by_task.create("control/1/1.json", b"another")
    with pytest.raises(NotFoundError) as caught:
        by_task.read("control/1/2.json")
    with pytest.raises(NotFoundError) as same:
        own.read("control/1/2.json")
    assert (caught.value.code, caught.value.context) == (same.value.code, same.value.context)


def test_a_client_reads_itself_what_it_has(spark: SparkSession, tmp_path: Path) -> None:
    Checkpoint.open_or_create(tmp_path / "root")
    assert type(objects_of_client(spark, str(tmp_path / "root"))) is Objects
    with pytest.raises(NotFoundError):
        objects_of_client(spark, str(tmp_path / "nowhere"))


def test_a_job_is_asked_by_tasks(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "objects_of_client", ObjectsByTask)  # as on a machine that has no such folder
    running = started(spark, tmp_path)
    newest = Checkpoint.open(tmp_path / "root").chosen(None).manifest
    assert running.manifest == newest
    assert running.waits.checkpoints == 0
    assert running.reprocess_late(EVENTS) == EVENTS.num_rows
    assert running.checkpoint_id == newest.id + 1
    running.stop(drain=True)
    assert running.manifest.drained
