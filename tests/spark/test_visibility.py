"""What Spark's own tools see of a job: names, descriptions of jobs, reports, gauges."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener

from tests.helpers.apis import raises_foreign
from tests.helpers.process import REMOTE, longer
from tests.helpers.spark_inputs import job, sample, write
from tests.helpers.spark_runs import stream
from tidestate.operators import DurableQuery
from tidestate.operators.spark import classic_platform, in_driver
from tidestate.operators.spark.compat import SPARK_4, report_of
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import events_of, state_size
from tidestate.recovery.log.summary import brief
from tidestate.statestore.errors import UsageError

pytestmark = pytest.mark.spark

TABLES = sample(2, 60)


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


def listeners(spark: SparkSession) -> int:
    """How many listeners of queries there are; on Spark Connect those of this client."""
    return len(spark.streams._sqlb._listener_bus if REMOTE else spark.streams._jsqm.listListeners())


def gauges(spark: SparkSession, name: str) -> dict[str, int]:
    """The values of the accumulators that are registered as gauges."""
    known = classic_platform._accumulators[spark.sparkContext.applicationId]
    return {one.rpartition(".")[2]: java.sum() for one, java in known.items() if one.startswith(f"tidestate.{name}.")}


def test_names_jobs_reports_and_gauges(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, table in enumerate(TABLES):
        write(tmp_path / "input", number, table)
    root = tmp_path / "root"
    query = started(spark, tmp_path / "input", root)
    name = query.name
    assert (name, query.isActive, query.exception()) == ("job", True, None)
    assert set(query.status) >= {"message", "isDataAvailable", "isTriggerActive"}
    (of_spark,) = [one for one in spark.streams.active if one.name == name]
    assert (query.id, query.runId) == (of_spark.id, of_spark.runId)
    capsys.readouterr()
    query.explain()
    path, _, plan = capsys.readouterr().out.partition("\n")
    assert path.startswith("Spark reads the rows" if REMOTE else "The tasks read the files directly, because")
    assert path.endswith("Its figures: docs/how-it-works/how-rows-are-read.md.")
    assert plan.startswith("== Physical Plan ==")

    described = [] if REMOTE else jobs_of(spark)
    batches = [one for one in Checkpoint.open(root).ids() if Checkpoint.open(root).read(one).manifest.kind == "batch"]
    for one in batches:
        # stop() cancels the group
        assert REMOTE or (f"job: checkpoint {one}", str(of_spark.runId)) in described

    last, head = query.lastProgress, query.manifest
    reports = [one for one in query.recentProgress if "tidestate" in one]
    assert [one["tidestate"]["id"] for one in reports] == batches
    assert [one["batchId"] for one in reports] == [one["tidestate"]["spark_batch"] for one in reports]
    assert last is not None
    assert type(last) is type(of_spark.lastProgress)
    if SPARK_4:
        assert (last.batchId, json.loads(last.json)["tidestate"]) == (last["batchId"], last["tidestate"])
    newest = reports[-1]["tidestate"]
    assert {**newest, "seconds": None} == {**brief(head), "seconds": None}
    # A client reads the checkpoint, which cannot have what came after it.
    assert ({"step"} if REMOTE else {"publish", "deliver", "step"}) <= set(newest["seconds"])

    size = state_size(head)
    late = sum(head.totals.get(one, 0) for one in ("mildly_late", "very_late"))
    assert REMOTE or gauges(spark, "job") == {
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
        assert (one.isActive, one.exception()) == (False, None)
        assert (one.awaitTermination(1), one.awaitTermination()) == (True, None)
    again = started(spark, tmp_path / "input", root)
    assert (again.id, again.name) == (query.id, "job")
    again.stop()


class Heard(StreamingQueryListener):
    """Keeps what it hears; with ``then``, raises it each time."""

    def __init__(self, then: Exception | None = None) -> None:
        self.events: list[tuple[str, Any]] = []
        self._then = then

    def _hears(self, what: str, event: Any) -> None:
        self.events.append((what, event))
        if self._then is not None:
            raise self._then

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        self._hears("started", event)

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        self._hears("progress", event.progress)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Whether there is one is a matter of time."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        self._hears("terminated", event)

    def of(self, what: str) -> list[Any]:
        return [event for name, event in self.events if name == what]


def until(found: Callable[[], object]) -> None:
    """Wait until it is so: Spark calls listeners from a thread of its own."""
    end = time.monotonic() + 60
    while not found():
        assert time.monotonic() < end
        time.sleep(0.05)


def ours(report: dict[str, Any]) -> dict[str, Any]:
    """What both APIs say in one way: a listener of a client gets rounded rates, and offsets as objects."""
    return {name: report[name] for name in ("id", "batchId", "observedMetrics", "tidestate")} if REMOTE else report


HOW: dict[str, dict[str, Any]] = {
    "by Spark": {"paths": {"in_driver"}},
    "by tasks": {"paths": {"direct_scan"}},
    "in the driver": {},
}


# By tasks and by Spark: what is reported of them, `test_names_jobs_reports_and_gauges` has in every run.
@pytest.mark.parametrize("how", [*longer("by Spark", "by tasks"), "in the driver"])
def test_a_listener_hears_what_checkpoints_have(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(in_driver, "LIMITS", in_driver.Limits())
    for number, table in enumerate(TABLES):
        write(tmp_path / "input", number, table)
    there = listeners(spark)
    heard, failing = Heard(), Heard(ZeroDivisionError("of a listener"))
    source = stream(spark, tmp_path / "input")
    described = job().on_spark(source, checkpoint=tmp_path / "root", partitions=2, **HOW[how])
    query = described.listen(failing).listen(heard).start()
    query.processAllAvailable()
    write(tmp_path / "few", 0, TABLES[0])
    other = started(spark, tmp_path / "few", tmp_path / "other")  # of which they hear nothing
    until(lambda: len([one for one in heard.of("progress") if "tidestate" in one.observedMetrics]) == len(TABLES))
    assert query.exception() is None
    assert query.isActive
    assert query.scan is not None
    assert REMOTE or (query.scan.direct, query.scan.in_driver) == (how != "by Spark", how == "in the driver")

    history = [one for one in Checkpoint.open(tmp_path / "root").history() if one.kind == "batch"]
    reports = [one for one in heard.of("progress") if "tidestate" in one.observedMetrics]
    for report, made in zip(reports, history, strict=True):
        size = state_size(made)
        assert report.observedMetrics["tidestate"].asDict() == {
            "checkpoint": made.id,
            "events": 60,
            "late": sum(made.counters.get(name, 0) for name in ("mildly_late", "very_late")),
            "watermark_ms": (made.watermark_us or 0) // 1000,
            "state_rows": size.rows,
            "state_bytes": size.bytes,
        }
    assert sum(one.observedMetrics["tidestate"].late for one in reports) > 0
    known = [report_of(one) for one in query.recentProgress if "tidestate" in one]
    assert list(map(ours, (json.loads(one.json) for one in reports))) == list(map(ours, known))

    query.stop()
    other.stop()
    until(lambda: heard.of("terminated") and failing.of("terminated"))
    assert [event.name for event in heard.of("started")] == ["job"]
    assert {str(one.runId) for _, one in heard.events} == {str(heard.of("started")[0].runId)}
    assert [what for what, _ in failing.events] == [what for what, _ in heard.events]
    until(lambda: listeners(spark) == there)


def test_a_job_that_does_not_start_leaves_no_listener(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "input", 0, TABLES[0])
    there = listeners(spark)
    described = job().on_spark(stream(spark, tmp_path / "input"), checkpoint=tmp_path / "root")
    with pytest.raises(UsageError, match="listener"):
        described.listen(object())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="spark-trigger"):
        described.trigger(continuous="1 second")
    writer = type(stream(spark, tmp_path / "input").writeStream)
    monkeypatch.setattr(writer, "start", Mock(side_effect=ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):
        described.listen(Heard()).start()
    assert listeners(spark) == there


def test_an_error_is_ours_wherever_it_is_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 0, TABLES[0])

    def sink(*_: Any) -> None:
        raise ZeroDivisionError("of the sink")

    query = job().on_spark(stream(spark, tmp_path / "input"), checkpoint=tmp_path / "root", sink=sink).start()
    with raises_foreign(ZeroDivisionError):
        query.awaitTermination(60)
    assert "of the sink" in str(query.exception())
    assert query.isActive is False
    with raises_foreign(ZeroDivisionError):
        query.stop()


def test_position_and_lag_of_topics_are_metrics(spark: SparkSession, tmp_path: Path) -> None:
    """A source in Python, whose offsets have the form of Kafka's: `test_kafka` has a real one."""
    datasource = pytest.importorskip("pyspark.sql.datasource", reason="Spark has sources in Python from 4.0 on")
    reader: Any = datasource.DataSourceStreamReader
    if not hasattr(reader, "reportLatestOffset"):
        pytest.skip("Spark asks sources in Python for their newest offset from 4.2 on")

    class Clicks(datasource.DataSource):  # type: ignore[name-defined,misc]
        """Six events in two partitions, of which a query reads three."""

        @classmethod
        def name(cls) -> str:
            return "clicks"

        def schema(self) -> str:
            return "t timestamp, k string, v long, id long"

        def streamReader(self, schema: Any) -> Any:  # noqa: N802
            class Reader(reader):  # type: ignore[misc]
                def initialOffset(self) -> dict[str, Any]:  # noqa: N802
                    return {"clicks": {"0": 0, "1": 0}}

                def latestOffset(self, *_: Any) -> dict[str, Any]:  # noqa: N802
                    return {"clicks": {"0": 2, "1": 1}}

                def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
                    return {"clicks": {"0": 5, "1": 1}}

                def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
                    taken = (end["clicks"][number] - start["clicks"][number] for number in ("0", "1"))
                    return [datasource.InputPartition(count) for count in taken]

                def read(self, partition: Any) -> Iterator[tuple[Any, ...]]:
                    for number in range(partition.value):
                        yield datetime(2024, 1, 1, 0, 0, number), "a", number, number

            return Reader()

    spark.dataSource.register(Clicks)
    query = job().on_spark(spark.readStream.format("clicks").load(), checkpoint=tmp_path, partitions=2).start()
    try:
        query.processAllAvailable()
        text = query.prometheus()
    finally:
        query.stop()
    for partition, position, lag in (("0", 2, 3), ("1", 1, 0)):
        labels = f'partition="{partition}",query="job",source="0",topic="clicks"'
        assert f"tidestate_consumer_position{{{labels}}} {position}.0" in text
        assert f"tidestate_consumer_lag{{{labels}}} {lag}.0" in text
