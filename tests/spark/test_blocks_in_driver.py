"""Rows that Spark hands over to tasks, of which the driver takes the steps: checkpoints as of other paths."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import tidestate as ts
from tests.helpers.spark_inputs import at, job, sample, write
from tests.helpers.spark_runs import output, stream
from tidestate import Aggregation, agg
from tidestate.operators.spark import in_driver, transport
from tidestate.operators.spark.tasks import failed, sent_blocks
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import UsageError

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("_small")]

PATHS: set[Any] = {"in_driver"}


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_driver, "LIMITS", in_driver.Limits())


def sessions() -> Aggregation:
    """Sessions with messages, whose rows are in no slices."""
    windows = ts.stream(event_time="t", watermark_delay="5 seconds").group_by("k").window(ts.sessions("3 seconds"))
    return windows.aggregate(n=agg.count(), all=agg.list("v")).allowed_lateness("20 seconds").messages(identity="id")


def chain() -> Any:
    """An operator that reads another one."""
    counted = ts.stream(event_time="t", watermark_delay="5 seconds").group_by("k").window(ts.tumbling("5 seconds"))
    by_key = counted.aggregate(n=agg.count(), total=agg.sum("v")).allowed_lateness("0 seconds").named("by_key")
    return by_key.group_by("n").window(ts.tumbling("10 seconds")).aggregate(keys=agg.count()).named("by_count")


JOBS = {"tumbling": job, "sessions": sessions, "chain": chain}


def whole(root: Path, kind: str = "panes") -> list[str]:
    """All rows that were put out, without their order."""
    return sorted(repr(row) for rows in output(root, kind).values() for row in rows)


def run(described: Any, tables: list[pa.Table], folder: Path, spark: SparkSession, **settings: Any) -> list[bool]:
    """Whether the driver took the steps of each batch. With a restart in the middle."""
    for half in (tables[: len(tables) // 2], tables):
        for number, table in enumerate(half):
            if not (folder / "input" / f"{number:04d}.parquet").exists():
                write(folder / "input", number, table)
        frame = stream(spark, folder / "input")
        query = described.on_spark(frame, checkpoint=folder / "root", partitions=3, **settings).start()
        query.processAllAvailable()
        query.stop(drain=len(half) == len(tables))
    history = Checkpoint.open(folder / "root").history()
    return [manifest.scan.in_driver for manifest in history if manifest.scan is not None]


@pytest.mark.parametrize("name", JOBS)
def test_the_checkpoints_are_those_of_one_process(spark: SparkSession, tmp_path: Path, name: str) -> None:
    tables = sample(4, 60)
    assert run(JOBS[name](), tables, tmp_path, spark, paths=PATHS) == [True] * 4
    JOBS[name]().standalone(checkpoint=tmp_path / "alone", partitions=3).run(tables, drain=True)
    for kind in ("panes", "late"):
        assert whole(tmp_path / "root", kind) == whole(tmp_path / "alone", kind)
    assert whole(tmp_path / "alone")


@pytest.mark.classic("patched")
def test_blocks_of_more_bytes_are_left_to_tasks(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After one in vain one goes without a try, then two: the limit holds for what each task sends."""
    monkeypatch.setattr(in_driver, "LIMITS", in_driver.Limits(block_bytes=200))
    tables = sample(5, 60)
    tries = []
    asked = transport.FrameTransport.blocks

    def counted(self: Any, batch: Any, rows: Any, most: int) -> Any:
        tries.append(most)
        return asked(self, batch, rows, most)

    monkeypatch.setattr(transport.FrameTransport, "blocks", counted)
    for number, table in enumerate(tables):
        write(tmp_path / "input", number, table)
    query = job().on_spark(stream(spark, tmp_path / "input"), checkpoint=tmp_path / "root", paths=PATHS).start()
    query.processAllAvailable()
    query.stop(drain=True)
    scans = [m.scan for m in Checkpoint.open(tmp_path / "root").history() if m.scan is not None]
    assert [scan.in_driver for scan in scans] == [False] * 5
    assert tries == [200, 200]
    job().standalone(checkpoint=tmp_path / "alone", partitions=4).run(tables, drain=True)
    assert whole(tmp_path / "root") == whole(tmp_path / "alone")


@pytest.mark.classic("jvm")
def test_blocks_that_spark_does_not_collect_are_left_to_tasks(spark: SparkSession, tmp_path: Path) -> None:
    number = 20_000
    times = pa.array([at(place % 60) for place in range(number)], pa.timestamp("us", tz="UTC"))
    keys = pa.array([f"key {place * 7919 % number}" for place in range(number)])
    rows = pa.table({"t": times, "k": keys, "v": pa.array(range(number)), "id": pa.array(range(number))})
    settings, name = spark._jsc.sc().conf(), "spark.driver.maxResultSize"  # type: ignore[union-attr]
    former = settings.get(name, "1g")
    settings.set(name, "100k")
    try:
        in_driver = run(job(), [rows, rows.slice(0, 100)], tmp_path, spark, paths=PATHS)
    finally:
        settings.set(name, former)
    assert in_driver == [False, True]  # each with a query of its own, whose first try it is
    job().standalone(checkpoint=tmp_path / "alone", partitions=3).run([rows, rows.slice(0, 100)], drain=True)
    assert whole(tmp_path / "root") == whole(tmp_path / "alone")


@pytest.mark.parametrize("paths", [PATHS, set()])
def test_functions_of_yours_run_in_tasks(spark: SparkSession, tmp_path: Path, paths: set[Any]) -> None:
    def ones(rows: pa.Table) -> pa.Array:
        return pa.array([1] * (max(rows["group"].to_pylist()) + 1))

    windows = ts.stream(event_time="t").group_by("k").window(ts.tumbling("1 second"))
    own = windows.aggregate(one=agg.apply_rows(ones, columns=["v"], result_type=pa.int64()))
    assert run(own, sample(2, 20), tmp_path, spark, paths=paths) == [False] * 2


def test_a_task_that_fails_fails_the_batch() -> None:
    batch: Any = SimpleNamespace(spans=((0, 1), (1, 2)))
    rows = pa.Table.from_batches(list(failed(batch, UsageError("your function failed", code="own-function"))))
    with pytest.raises(UsageError, match="own-function"):
        sent_blocks(rows)
