"""Small batches that the driver processes itself: the same checkpoints as from tasks, which process all others."""

from __future__ import annotations

import logging
import os
import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.helpers.process import in_turn
from tests.helpers.spark_inputs import job, sample, two_streams, write, write_int96
from tests.helpers.spark_runs import same, stream
from tidestate.agg import apply_rows, count
from tidestate.operators import tumbling
from tidestate.operators.describe.given_join import join
from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.describe.windowed import windowed
from tidestate.operators.engine.in_process import InProcess
from tidestate.operators.spark import in_driver
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import UsageError
from tidestate.stores import Memory

pytestmark = pytest.mark.spark

FILE_BYTES = 3_000
"""The limit of a small batch here: about 100 rows of `sample`."""


@pytest.fixture(autouse=True)
def _limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_driver, "LIMITS", in_driver.Limits())


def run(description: Runnable, streams: list[Any], root: Path, *, drain: bool = True, **settings: Any) -> None:
    started = description.on_spark(*streams, checkpoint=root, partitions=3, **settings).start()
    started.processAllAvailable()
    started.stop(drain=drain)


def places(root: Path) -> list[bool]:
    """Whether the driver processed each batch."""
    return [one.scan.in_driver for one in Checkpoint.open(root).history() if one.scan is not None]


@pytest.mark.parametrize(("name", "threads"), in_turn(["windows", "join", "chain"], [True, False]))
def test_the_driver_and_tasks_make_the_same_checkpoints(
    spark: SparkSession, tmp_path: Path, name: str, threads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if threads:
        monkeypatch.setattr(in_driver, "LIMITS", in_driver.Limits(thread_bytes=0))
    ticks: list[bool] = []
    tick = in_driver.InDriver.tick

    def seen(self: in_driver.InDriver, *given: Any) -> Any:
        results = tick(self, *given)
        ticks.append(results is not None)
        return results

    monkeypatch.setattr(in_driver.InDriver, "tick", seen)
    for seed, side in enumerate(("left", "right")):
        for number, table in enumerate(sample(2, 100, seed)):
            write(tmp_path / side, number, table)
    near = join(event_time="t", on="k", within=("-1 second", "2 seconds"), how="full", late="5 seconds")
    for way in (True, False):
        sides = [stream(spark, tmp_path / side) for side in ("left", "right")]
        description, given = {
            "windows": (job(), sides[:1]),
            "join": (near, sides),
            "chain": (two_streams(), [dict(zip(("orders", "prices"), sides, strict=True))]),
        }[name]
        run(description, given, tmp_path / str(way), in_driver=way)
    same(tmp_path / "True", tmp_path / "False")
    assert places(tmp_path / "True") == [True] * 2
    assert places(tmp_path / "False") == [False] * 2
    assert ticks == [True]  # the drain


def test_batches_of_any_size_restarts_and_deaths(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_driver, "LIMITS", in_driver.Limits(file_bytes=FILE_BYTES, thread_bytes=FILE_BYTES // 2))
    chance = random.Random(19)
    found: list[bool] = []
    tables = sample(6, 400)
    for first in range(0, 6, 2):
        for number in range(first, first + 2):
            write(tmp_path / "input", number, tables[number].slice(0, chance.choice([1, 40, 100, 200, 400])))
        dies_at, way, begun = chance.randrange(1, 3), chance.random() < 0.5, len(found)

        def fail(moment: str, checkpoint_id: int, left: list[int] = [dies_at]) -> None:  # noqa: B006
            left[0] -= moment == "before-manifest"
            if not left[0]:
                raise RuntimeError("the driver dies")

        dying = job().on_spark(
            stream(spark, tmp_path / "input"), checkpoint=tmp_path / "one", partitions=3, in_driver=way
        )
        query = dying.with_hook(fail).start()
        for end in (query.processAllAvailable, query.stop):
            with pytest.raises(RuntimeError, match="the driver dies"):
                end()
        run(job(), [stream(spark, tmp_path / "input")], tmp_path / "one", in_driver=not way, drain=first == 4)
        found = places(tmp_path / "one")
        assert len(found) == begun + 2
    run(job(), [stream(spark, tmp_path / "input")], tmp_path / "other", in_driver=False)
    same(tmp_path / "one", tmp_path / "other")
    assert 1 < sum(found) < 5, found


TOO_LARGE = {"files": 0, "file_bytes": 1, "partitions": 2, "state_bytes": 1, "": 0, "read_bytes": 1}
"""Limits, each of one batch after another; in the place of the empty one the driver fails."""


def test_what_is_not_small_or_fails_goes_to_tasks(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for number, table in enumerate(sample(8, 60)):
        (write_int96 if number == 7 else write)(tmp_path / "input", number, table)

    def fail(*_given: Any) -> Any:
        raise UsageError("the driver has no memory left", code="own-function")

    def change(moment: str, checkpoint_id: int) -> None:
        if moment != "after-manifest":
            return
        number = checkpoint_id - 2  # of the next batch, after one in the driver
        name, value = list(TOO_LARGE.items())[number] if 0 <= number < len(TOO_LARGE) else ("", 0)
        monkeypatch.undo()
        monkeypatch.setattr(in_driver, "LIMITS", replace(in_driver.Limits(), **({name: value} if name else {})))
        if not name and 0 <= number < len(TOO_LARGE):
            monkeypatch.setattr(InProcess, "run", fail)

    started = job().on_spark(stream(spark, tmp_path / "input"), checkpoint=tmp_path / "one", partitions=3)
    query = started.with_hook(change).start()
    with caplog.at_level(logging.INFO, "tidestate"):
        query.processAllAvailable()
        query.stop(drain=True)
    assert places(tmp_path / "one") == [True] + [False] * 7
    assert [one for one in caplog.messages if "the driver has no memory left" in one]
    assert [one for one in caplog.messages if "INT96" in one]
    run(job(), [stream(spark, tmp_path / "input")], tmp_path / "other", store=Memory())
    assert places(tmp_path / "other") == [False] * 8  # tasks have the caches of this store
    same(tmp_path / "one", tmp_path / "other")


def test_threads_call_no_function_of_the_users(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_driver, "LIMITS", in_driver.Limits(thread_bytes=0))
    threads: set[str] = set()

    def ones(rows: pa.Table) -> pa.Array:
        threads.add(threading.current_thread().name)
        return pa.array([1] * (max(rows["group"].to_pylist()) + 1))

    write(tmp_path / "input", 0, sample(1, 400)[0])
    described = windowed(event_time="t", key="k").window(tumbling("1 second"))
    own = described.aggregate(one=apply_rows(ones, columns=["v"], result_type=pa.int64()))
    run(own, [stream(spark, tmp_path / "input")], tmp_path / "root")
    assert places(tmp_path / "root") == [True]
    assert threads
    assert not any(name.startswith("tidestate-tasks") for name in threads)


def test_a_function_that_exits_in_the_driver_is_called_by_tasks(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = os.getpid()

    def ones(rows: pa.Table) -> pa.Array:
        if os.getpid() == driver:
            raise SystemExit(7)
        return pa.array([1] * (max(rows["group"].to_pylist()) + 1))

    write(tmp_path / "input", 0, sample(1, 400)[0])
    write(tmp_path / "input", 1, sample(2, 400)[1])
    described = windowed(event_time="t", key="k").window(tumbling("1 second"))
    own = described.aggregate(one=apply_rows(ones, columns=["v"], result_type=pa.int64()))
    run(own, [stream(spark, tmp_path / "input")], tmp_path / "root")
    assert places(tmp_path / "root")[-1] is False
    assert "failed in the driver, so tasks process" in caplog.text


@pytest.mark.parametrize("way", ["driver", "tasks", "spark"])
def test_rows_of_which_no_column_is_read_count(spark: SparkSession, tmp_path: Path, way: str) -> None:
    for number in range(2):
        write(tmp_path / "input", number, sample(1, 15)[0])
    described = windowed(processing_time=True).window(tumbling("1 second")).aggregate(n=count())
    run(
        described,
        [stream(spark, tmp_path / "input")],
        tmp_path / "root",
        direct_scan=way != "spark",
        in_driver=way == "driver",
    )
    assert places(tmp_path / "root") == [way == "driver"] * 2
    assert Checkpoint.open(tmp_path / "root").head().manifest.totals["events"] == 30
