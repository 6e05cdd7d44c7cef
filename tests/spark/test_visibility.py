"""What Spark's own tools see of a job: names, descriptions of jobs, reports, gauges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.helpers.spark_inputs import job, sample, write
from tests.helpers.spark_runs import stream
from tidestate.operators import DurableQuery
from tidestate.operators.spark import visibility
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.summary import brief, events_of, state_size

pytestmark = pytest.mark.spark

TABLES = sample(3, 60)


def started(spark: SparkSession, folder: Path, root: Path, **more: Any) -> DurableQuery:
    query = job().on_spark(stream(spark, folder), checkpoint=root, partitions=2, **more).start()
    query.processAllAvailable()
    return query


def jobs_of(spark: SparkSession) -> list[tuple[str, str]]:
    """Description and group of Spark's jobs."""
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    found = [jobs.apply(number) for number in range(jobs.size())]
    return [(_text(one.description()), _text(one.jobGroup())) for one in found]


def _text(option: Any) -> str:
    return str(option.get()) if option.isDefined() else ""


def gauges(spark: SparkSession, name: str) -> dict[str, int]:
    """The values of the accumulators that are registered as gauges."""
    known = visibility._registered[spark.sparkContext.applicationId]
    return {one.rpartition(".")[2]: java.sum() for one, java in known.items() if one.startswith(f"tidestate.{name}.")}


def test_names_jobs_reports_and_gauges(spark: SparkSession, tmp_path: Path) -> None:
    for number, table in enumerate(TABLES):
        write(tmp_path / "input", number, table)
    root = tmp_path / "root"
    query = started(spark, tmp_path / "input", root)
    name = query.name
    assert (name, query.isActive, query.exception()) == ("job", True, None)
    assert set(query.status) >= {"message", "isDataAvailable", "isTriggerActive"}
    (of_spark,) = [one for one in spark.streams.active if one.name == name]
    assert query.id == of_spark.id

    described = jobs_of(spark)
    batches = [one for one in Checkpoint.open(root).ids() if Checkpoint.open(root).read(one).manifest.kind == "batch"]
    for one in batches:
        assert (f"job: checkpoint {one}", str(of_spark.runId)) in described  # stop() cancels the group

    last, head = query.lastProgress, query.manifest
    reports = [one for one in query.recentProgress if "tidestate" in one]
    assert [one["tidestate"]["id"] for one in reports] == batches
    assert [one["batchId"] for one in reports] == [one["tidestate"]["spark_batch"] for one in reports]
    assert last is not None
    newest = reports[-1]["tidestate"]
    assert {**newest, "seconds": None} == {**brief(head), "seconds": None}
    assert {"publish", "deliver", "step"} <= set(newest["seconds"])

    found, size = gauges(spark, "job"), state_size(head)
    late = sum(head.totals.get(one, 0) for one in ("mildly_late", "very_late"))
    assert found == {
        "checkpoint": head.id,
        "events": events_of(head, head.totals),
        "late": late,
        "state_rows": size.rows,
        "state_bytes": size.bytes,
        "watermark_ms": (head.watermark_us or 0) // 1000,
    }

    other = started(spark, tmp_path / "input", tmp_path / "other")
    assert other.name == f"job ({tmp_path / 'other'})"
    for one in (query, other):
        one.stop()
        assert (one.isActive, one.exception(), one.awaitTermination()) == (False, None, True)
    again = started(spark, tmp_path / "input", root)
    assert (again.id, again.name) == (query.id, "job")
    again.stop()


def test_an_error_is_ours_wherever_it_is_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 0, TABLES[0])

    def sink(*_: Any) -> None:
        raise ZeroDivisionError("of the sink")

    query = job().on_spark(stream(spark, tmp_path / "input"), checkpoint=tmp_path / "root", sink=sink).start()
    with pytest.raises(ZeroDivisionError):
        query.awaitTermination(60)
    assert isinstance(query.exception(), ZeroDivisionError)
    assert query.isActive is False
    with pytest.raises(ZeroDivisionError):
        query.stop()
