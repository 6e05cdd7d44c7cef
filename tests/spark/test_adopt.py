"""Queries of Spark's own that are killed in the middle of a batch, and jobs that go on exactly there."""

from __future__ import annotations

import json
import pickle
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from typer.testing import CliRunner

import tidestate as ts
from tests.children.native_queries import QUERIES, copied_at_death
from tests.helpers import native_jobs
from tests.helpers.checkout import ROOT
from tests.helpers.forked import ForkedChild
from tests.helpers.process import LONG, WIDE, longer
from tests.helpers.spark_inputs import SCHEMA, at, batch, write
from tests.helpers.spark_runs import output, stream
from tidestate import agg, trigger
from tidestate.operators.cli.adopt import adopt_command
from tidestate.operators.engine.bootstrap import has_begun
from tidestate.operators.local.history_files import schema_of
from tidestate.operators.spark.adopt import Adoption, execute_adoption, plan_adoption
from tidestate.operators.spark.compat import SPARK_4
from tidestate.recovery.inspect.verify import verify
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import UsageError
from tools.demo.child import Child, ChildFailedError

pytestmark = [
    pytest.mark.spark,
    pytest.mark.classic("adoption"),
    pytest.mark.kill,
    pytest.mark.skipif(not SPARK_4, reason="Spark reads its state from 4.0 on"),
]

COLUMNS = schema_of(SCHEMA)
IN_EVERY_RUN = ("tumbling",)
LATE = {"tumbling": [9], "distinct": [9, 12.5, 13]}
"""What Spark drops as late after the kill: it is in the ledger.
"""


@pytest.fixture(scope="module")
def killed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Queries run to their end, and as a kill in their fourth batch leaves them; in the long form by a kill."""
    folder = tmp_path_factory.mktemp("native")
    for number, events in enumerate(native_jobs.INPUT):
        write(folder / "input", number, batch(events, number * 10))
    if not LONG:
        copied_at_death(spark, folder, QUERIES if WIDE else IN_EVERY_RUN)
        return folder
    child = Child([sys.executable, "-m", "tests.children.native_queries", str(folder)], folder / "log", cwd=ROOT)
    child.wait_for(lambda event: event["event"] == "paused")
    child.kill()
    return folder


def plan(spark: SparkSession, folder: Path, name: str, root: Path) -> Adoption:
    location = str(folder / "native" / name / "checkpoint")
    return plan_adoption(spark, location, str(root), native_jobs.JOBS[name]().graph.description, COLUMNS)


def finish(spark: SparkSession, folder: Path, name: str, root: Path) -> None:
    job = native_jobs.JOBS[name]().on_spark(stream(spark, folder / "input"), checkpoint=root, partitions=2)
    query = job.start()
    query.processAllAvailable()
    query.stop()


def native(folder: Path, name: str) -> list[list[dict[str, Any]]]:
    """The output of a query's batches."""
    files = sorted((folder / name / "output").iterdir(), key=lambda path: int(path.stem))
    return [[_flat(json.loads(line)) for line in path.read_text().splitlines()] for path in files]


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    window = row.pop("window", None) or row.pop("session_window", None)
    flat = row if window is None else {"window_start": window["start"], "window_end": window["end"], **row}
    times = ("window_start", "window_end", "t")
    return {
        name: datetime.fromisoformat(value).replace(tzinfo=UTC) if name in times else value
        for name, value in flat.items()
    }


def ours(root: Path, columns: list[str]) -> list[dict[str, Any]]:
    paths = Checkpoint.open(root).pane_paths()
    return [row for path in paths for row in pq.read_table(path).select(columns).to_pylist()] if paths else []


def undisturbed(folder: Path, name: str) -> list[dict[str, Any]]:
    """The output of a query that nobody has killed."""
    return [row for rows in native(folder / "whole", name) for row in rows]


def together(folder: Path, name: str, root: Path) -> list[dict[str, Any]]:
    """The output of the query that was killed, then of the job."""
    first = [row for rows in native(folder / "native", name) for row in rows]
    assert first
    return ordered(first + ours(root, list(first[0])))


def ordered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(({name: row[name] for name in sorted(row)} for row in rows), key=repr)


# Spark keeps sliding windows by the same operator as tumbling ones; duplicates: `tests.operators.adopt`.
@pytest.mark.parametrize("name", ["tumbling", *longer("session", "sliding", "distinct")])
def test_query_killed_in_a_batch_goes_on_as_if_it_had_not(
    spark: SparkSession, killed: Path, tmp_path: Path, name: str
) -> None:
    root = tmp_path / "root"
    before = _contents(killed / "native" / name / "checkpoint")
    adoption = plan(spark, killed, name, root)
    assert not root.exists()
    assert (adoption.query.batch_id, adoption.query.planned) == (2, 3)
    manifest = execute_adoption(adoption, partitions=2)
    assert not manifest.panes
    finish(spark, killed, name, root)
    assert ours(root, ["window_start"] if name != "distinct" else ["t"])
    assert together(killed, name, root) == ordered(undisturbed(killed, name))
    if name in LATE:
        assert sorted(row[0] for rows in output(root, "late").values() for row in rows) == [*map(at, LATE[name])]
    assert _contents(killed / "native" / name / "checkpoint") == before
    assert verify(Checkpoint.open(root), read_percent=100, spark=True).findings == ()


# Before the manifest, in every run: `tests.operators.local.test_bootstrap`.
@pytest.mark.parametrize("moment", [*longer("before-manifest", "after-manifest"), "spark-half-written"])
def test_killed_while_it_is_adopted(spark: SparkSession, killed: Path, tmp_path: Path, moment: str) -> None:
    root = tmp_path / "root"
    adoption = plan(spark, killed, "tumbling", root)
    (tmp_path / "plan").write_bytes(pickle.dumps(adoption))
    with pytest.raises(ChildFailedError):
        ForkedChild("tests.children.adoption", tmp_path, moment, log=tmp_path / "log").finish()
    assert "Traceback" not in (tmp_path / "log").read_text()
    assert has_begun(root) is (moment != "before-manifest")
    if moment == "before-manifest":
        execute_adoption(adoption)  # the fence that is there is no obstacle
    else:
        with pytest.raises(UsageError, match="bootstrap-used"):
            execute_adoption(adoption)
        assert not (root / "spark" / "metadata").exists()
    finish(spark, killed, "tumbling", root)
    assert together(killed, "tumbling", root) == ordered(undisturbed(killed, "tumbling"))


@pytest.mark.long
def test_first_panes_after_update_mode_are_those_that_the_query_has_put_out(
    spark: SparkSession, killed: Path, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    manifest = execute_adoption(plan(spark, killed, "updating", root), partitions=2, deliver=False)
    last = {row["window_start"]: row["count"] for rows in native(killed / "native", "updating") for row in rows}
    first = ours(root, ["window_start", "count", "pane", "timing"])
    open_ = {start: count for start, count in last.items() if start >= at(10)}
    assert {row["window_start"]: row["count"] for row in first} == open_
    assert {(row["pane"], row["timing"]) for row in first} == {(0, "early")}
    taken: list[int] = []
    job = native_jobs.JOBS["updating"]()
    query = job.on_spark(
        stream(spark, killed / "input"),
        checkpoint=root,
        sink=lambda panes, delivery: taken.extend(row["pane"] for row in panes.select("pane").collect()),
    ).start()
    query.processAllAvailable()
    query.stop()
    assert manifest.panes
    # The sink has the first panes from the query: it gets those that follow.
    assert 0 < len(taken) < len(ours(root, ["pane"]))
    results = {row["window_start"]: row["count"] for row in ours(root, ["window_start", "count"])}
    expected = {row["window_start"]: row["count"] for row in undisturbed(killed, "updating")}
    assert last | results == expected


@pytest.mark.long  # in every run: tests.operators.adopt
def test_closed_windows_stay_closed_whatever_lateness_the_job_allows(
    spark: SparkSession, killed: Path, tmp_path: Path
) -> None:
    """Their state is gone: with it the late event would be in a pane alone."""
    location, root = str(killed / "native" / "tumbling" / "checkpoint"), tmp_path / "root"
    lenient = native_jobs.JOBS["tumbling"]().allowed_lateness("1 hour", rule="window", ledger_columns="id")
    execute_adoption(plan_adoption(spark, location, str(root), lenient.graph.description, COLUMNS), partitions=2)
    # Another rule than Spark's, from now on.
    for job in (lenient, lenient.allowed_lateness("1 hour", rule="event", ledger_columns="id")):
        query = job.on_spark(stream(spark, killed / "input"), checkpoint=root).start()
        query.processAllAvailable()
        query.stop()
    assert together(killed, "tumbling", root) == ordered(undisturbed(killed, "tumbling"))
    assert [row[0] for rows in output(root, "late").values() for row in rows] == [at(9)]


def test_command_shows_what_it_does_and_does_it(
    spark: SparkSession, killed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, location = tmp_path / "root", str(killed / "native" / "tumbling" / "checkpoint")
    arguments = [location, str(root), "tests.helpers.native_jobs:tumbling_job"]
    assert CliRunner().invoke(adopt_command, arguments).exit_code == 0
    plan = ts.Root(root).adopt(location, native_jobs.tumbling_job())
    assert "windows: " in repr(plan)
    assert not root.exists()
    dry = json.loads(CliRunner().invoke(adopt_command, [*arguments, "--json"]).stdout)
    done = json.loads(CliRunner().invoke(adopt_command, [*arguments, "--json", "--confirm"]).stdout)
    assert plan.as_dict() == dry
    assert (dry["batch"], dry["kind"], dry["again"], dry["files"]) == (2, "windows", [3, 3], 3)
    assert done == {**dry, "done": True, "checkpoint": 2}
    head = Checkpoint.open(root).head()
    assert head is not None
    assert head.manifest.watermark_us == dry["watermark_us"] == int(at(13).timestamp() * 1_000_000)


@pytest.mark.long
def test_source_of_any_other_kind_goes_on_at_its_offset(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's source of numbers counts from the time of its first start, which only its own log has."""
    numbers = spark.readStream.format("rate").option("rowsPerSecond", 50).load()
    counted = (
        numbers.withWatermark("timestamp", "1 second")
        .groupBy(sf.window("timestamp", "30 days"))
        .agg(sf.count("*").alias("n"), sf.max("value").alias("x"))
    )
    query = (
        counted.writeStream.outputMode("update")
        .option("checkpointLocation", str(tmp_path / "native"))
        .foreachBatch(lambda rows, _: rows.collect())
        .start()
    )
    wait_for(lambda: len(list((tmp_path / "native" / "commits").glob("[1-9]"))) > 0)
    query.stop()
    job = (
        ts.stream(event_time="timestamp", watermark_delay="1 second")
        .group_by()
        .window(ts.tumbling("30 days"))
        .aggregate(n=agg.count(), x=agg.max("value"))
        .allowed_lateness("0 seconds", rule="window")
        .trigger(early=trigger.each_batch())
        .named("counted")
    )
    root, schema = tmp_path / "root", schema_of("timestamp timestamp, value long")
    adoption = plan_adoption(spark, str(tmp_path / "native"), str(root), job.graph.description, schema)
    before = adoption.query.end
    execute_adoption(adoption)
    running = job.on_spark(numbers, checkpoint=root).start()
    wait_for(lambda: len(ours(root, ["n"])) > 1)
    running.stop()
    panes = ours(root, ["n", "x"])
    assert len(panes) > 1
    assert all(row["n"] == row["x"] + 1 for row in panes)
    head = Checkpoint.open(root).head()
    assert head is not None
    assert head.manifest.spark is not None
    assert [*map(int, head.manifest.spark.end)] > [*map(int, before)]  # numbers of seconds, as text


def wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.05)


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
