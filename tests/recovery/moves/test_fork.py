"""A job forked from an older checkpoint: the same from there on, and nothing of the first one touched."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.helpers.command import json_here
from tests.helpers.forks import JOB, after
from tests.helpers.moves import fork
from tests.helpers.process import longer
from tests.helpers.spark_inputs import batch, sample, write
from tests.helpers.spark_runs import output, stream
from tidestate import Aggregation
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest
from tidestate.statestore.errors import NotFoundError, UsageError
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB, StoreConfig


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def finish(spark: SparkSession, folder: Path, root: Path) -> Manifest:
    query = JOB.on_spark(stream(spark, folder), checkpoint=root, partitions=2).start()
    query.processAllAvailable()
    query.stop()
    return query.manifest


@pytest.mark.parametrize("store", [Parquet(max_levels=2, snapshot_bytes=1), *longer(Memory(), RocksDB())], ids=repr)
def test_a_fork_goes_on_as_the_first_job_did(tmp_path: Path, store: StoreConfig) -> None:
    tables = sample(6, 120)
    first = JOB.standalone(checkpoint=tmp_path / "first", store=store)
    first.run(tables, drain=True)
    middle = next(m.id for m in Checkpoint.open(tmp_path / "first").history() if m.input and m.input.batches == 3)
    before = files(tmp_path / "first")
    made = fork(tmp_path / "first", tmp_path / "second", middle)
    assert {path: data for path, data in files(tmp_path / "first").items() if not path.startswith("pins/")} == before
    assert not [path for path in files(tmp_path / "second") if path.startswith("data/")]
    assert made.checkpoint_id == middle
    assert made.job_id != Checkpoint.open(tmp_path / "first").marker.job_id
    JOB.standalone(checkpoint=tmp_path / "second", store=store).run(tables, drain=True)
    assert after(tmp_path / "second", middle) == after(tmp_path / "first", middle)


def test_what_is_not_there_and_what_is_not_empty(tmp_path: Path) -> None:
    JOB.standalone(checkpoint=tmp_path / "first").run(sample(2, 50))
    with pytest.raises(NotFoundError, match="no-such-checkpoint"):
        fork(tmp_path / "first", tmp_path / "second", 99)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "something").write_text("of yours")
    with pytest.raises(UsageError, match="fork-used"):
        fork(tmp_path / "first", tmp_path / "used")
    assert files(tmp_path / "used") == {"something": b"of yours"}
    before = files(tmp_path / "first")
    for inside in ("", "late", "spark", "manifests/x"):
        with pytest.raises(UsageError, match="fork-used"):
            fork(tmp_path / "first", tmp_path / "first" / inside)
    assert files(tmp_path / "first") == before
    with pytest.raises(NotFoundError, match="no-checkpoint"):
        fork(tmp_path / "nowhere", tmp_path / "third")


@pytest.mark.parametrize(("source", "target"), [("a\nb", "fork"), ("root", "c\x1bd")])
def test_a_name_that_a_marker_cannot_have_is_refused_before_anything_is_written(
    tmp_path: Path, source: str, target: str
) -> None:
    JOB.standalone(checkpoint=tmp_path / source).run(sample(1, 5))
    with pytest.raises(UsageError, match=r"control character.*root-url"):
        fork(tmp_path / source, tmp_path / target)
    assert not (tmp_path / target).exists()
    assert not (tmp_path / source / "pins").exists()


def test_purged_events_come_with_the_command_that_takes_them_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def near(second: float, value: int) -> pa.Table:
        return batch([(second, "a", value)])

    job: Aggregation = JOB.allowed_lateness("0 seconds")
    first = job.standalone(checkpoint=tmp_path / "first")
    first.run([near(1, 1), near(30, 1), near(2, 5)])
    with caplog.at_level(logging.WARNING, "tidestate"):
        first.reprocess_late()
    answered = caplog.messages[-1]
    command = answered[answered.index("tidestate fork") :].replace("NEW_FOLDER", str(tmp_path / "second")).split()
    (result,) = json_here(*command[1:], "--json")
    assert result["files"] > 0
    second = job.standalone(checkpoint=tmp_path / "second")
    second.run([near(1, 1)])
    second.reprocess_late(near(2, 5))
    panes = second.run([near(1, 1), near(30, 1)])
    assert panes.select(["n", "s"]).to_pylist() == [{"n": 2, "s": 6}]


@pytest.mark.long
@pytest.mark.spark
def test_a_fork_of_a_spark_job_reads_on_from_its_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    tables = sample(14, 60)
    for number, table in enumerate(tables[:12]):
        write(tmp_path / "input", number, table)

    def run(root: Path) -> None:
        finish(spark, tmp_path / "input", root)

    run(tmp_path / "first")
    history = list(Checkpoint.open(tmp_path / "first").history())
    # Batch 11 lies behind Spark's compaction at 9, batch 5 before it: both logs are made again.
    for batch_id in (5, 11):
        at = next(m.id for m in history if m.spark and m.spark.batch_id == batch_id)
        fork(tmp_path / "first", tmp_path / f"fork{batch_id}", at)
    for number, table in enumerate(tables[12:], 12):
        write(tmp_path / "input", number, table)
    run(tmp_path / "first")
    for batch_id in (5, 11):
        run(tmp_path / f"fork{batch_id}")
        at = next(m.id for m in history if m.spark and m.spark.batch_id == batch_id)
        forked = Checkpoint.open(tmp_path / f"fork{batch_id}").head()
        first = Checkpoint.open(tmp_path / "first").head()
        assert forked is not None
        assert first is not None
        assert forked.manifest.totals == first.manifest.totals
        assert forked.manifest.watermark_us == first.manifest.watermark_us
        assert after(tmp_path / f"fork{batch_id}", at) == after(tmp_path / "first", at)
    assert output(tmp_path / "first", "panes")


@pytest.mark.long
@pytest.mark.spark
def test_what_spark_lost_stands_in_the_manifests(spark: SparkSession, tmp_path: Path) -> None:
    tables = sample(3, 20)
    for number, table in enumerate(tables[:2]):
        write(tmp_path / "input", number, table)
    finish(spark, tmp_path / "input", tmp_path / "first")
    shutil.rmtree(tmp_path / "first" / "spark")
    fork(tmp_path / "first", tmp_path / "second")
    write(tmp_path / "input", 2, tables[2])
    assert finish(spark, tmp_path / "input", tmp_path / "second").totals["events"] == 60
