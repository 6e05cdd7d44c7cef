"""The handle of a job for whoever did not start it: all it knows is in the root."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tidestate as ts
from tests.helpers.requests import until
from tests.helpers.spark_inputs import batch, job, write
from tests.helpers.spark_runs import output, stream
from tidestate import UsageError

pytestmark = pytest.mark.spark

EVENTS = batch([(1, "a", 1), (25, "b", 2), (3, "c", 3), (60, "b", 4)])
LATE = batch([(2, "a", 10), (3, "a", 20)], first_id=100)


def test_a_job_is_asked_and_stopped_by_another_handle(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 0, EVENTS)
    root = tmp_path / "root"
    described = job().retain_windows("1 hour")
    started = described.on_spark(stream(spark, tmp_path / "input"), checkpoint=root, partitions=2).start()
    started.processAllAvailable()
    until((root / "control" / "1" / "begun.json").exists)
    other = ts.attach(spark, root)
    assert (other.isActive, other.id, other.name) == (True, started.id, started.name)
    assert other.checkpoint_id == started.checkpoint_id
    assert other.metrics().watermark_us == started.metrics().watermark_us
    assert other.lastProgress is None
    assert other.awaitTermination(0.1) is False
    for verb in (other.processAllAvailable, other.explain):
        with pytest.raises(UsageError) as caught:
            verb()
        assert caught.value.code == "attached"
    assert other.reprocess_late(LATE) == 2
    assert other.manifest.counters["fed"] == 2
    other.stop(drain=True)
    started.awaitTermination(60)
    assert (other.isActive, started.isActive) == (False, False)
    assert other.exception() is None
    alone = described.standalone(checkpoint=tmp_path / "alone")
    alone.run([EVENTS])
    alone.reprocess_late(LATE)
    alone.drain()
    assert output(root, "panes") == output(tmp_path / "alone", "panes")
    with pytest.raises(UsageError) as caught:
        ts.attach(spark, root)
    assert caught.value.code == "not-running"


def test_there_is_nothing_to_attach_to(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ts.NotFoundError):
        ts.attach(spark, tmp_path / "nowhere")
