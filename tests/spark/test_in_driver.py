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

import tidestate as ts
from tests.helpers.process import longer
from tests.helpers.spark_inputs import job, sample, two_streams, write, write_int96
from tests.helpers.spark_runs import output, same, stream
from tidestate import OperatorStream, agg
from tidestate.operators.engine.tasks import InProcess
from tidestate.operators.spark import in_driver
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import Memory

pytestmark = [pytest.mark.spark, pytest.mark.classic("patched")]

FILE_BYTES = 3_000
"""The limit of a small batch here: about 100 rows of `sample`."""


@pytest.fixture(autouse=True)
def _limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_driver, "LIMITS", in_driver.Limits())


def paths(direct_scan: bool, in_driver: bool) -> set[Any]:
    return {name for name, taken in (("direct_scan", direct_scan), ("in_driver", in_driver)) if taken}


def run(
    description: OperatorStream,
    streams: list[Any],
    root: Path,
    *,
    drain: bool = True,
    direct_scan: bool = True,
    in_driver: bool = True,
    **settings: Any,
) -> None:
    names = description.graph.streams
    given = streams[0] if isinstance(streams[0], dict) else dict(zip(names, streams, strict=True))
    taken = paths(direct_scan, in_driver)
    started = description.on_spark(given, checkpoint=root, partitions=3, paths=taken, **settings).start()
    started.processAllAvailable()
    started.stop(drain=drain)


def places(root: Path) -> list[bool]:
    """Whether the driver processed each batch."""
    return [one.scan.in_driver for one in Checkpoint.open(root).history() if one.scan is not None]


@pytest.mark.parametrize(
    ("name", "threads"),
    [
        ("chain", True),  # a join of windows
        *(
            pytest.param(name, threads, marks=pytest.mark.long)
            for name in ("windows", "join", "chain")
            for threads in (True, False)
            if (name, threads) != ("chain", True)
        ),
    ],
)
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
    tables = {side: sample(2, 100, seed) for seed, side in enumerate(("left", "right"))}
    for side, files in tables.items():
        for number, table in enumerate(files):
            write(tmp_path / side, number, table)
    near = ts.stream(event_time="t").join(
        ts.stream(event_time="t"), on="k", within=("-1 second", "2 seconds"), how="full", allowed_lateness="5 seconds"
    )
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
    if name == "chain":
        both = [dict(zip(("orders", "prices"), sides, strict=True)) for sides in zip(*tables.values(), strict=True)]
        two_streams().standalone(checkpoint=tmp_path / "alone").run(both, drain=True)
        for kind, operator in (("panes", None), ("late", "counted"), ("late", "met")):
            assert output(tmp_path / "True", kind, operator) == output(tmp_path / "alone", kind, operator)


# In every run `test_what_is_not_small_or_fails_goes_to_tasks` changes the place from batch to batch, and
# `tests.spark.test_jobs_killed` after a death.
@pytest.mark.long
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
            stream(spark, tmp_path / "input"), checkpoint=tmp_path / "one", partitions=3, paths=paths(True, way)
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


@pytest.mark.long
def test_what_is_not_small_or_fails_goes_to_tasks(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tables = sample(8, 30)
    for number, table in enumerate(tables):
        (write_int96 if number == 7 else write)(tmp_path / "input", number, table)

    def fail(*_given: Any, **_named: Any) -> Any:
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
    # Spark reads the last one, for tasks of which the driver takes the steps.
    assert places(tmp_path / "one") == [True] + [False] * 6 + [True]
    assert [one for one in caplog.messages if "the driver has no memory left" in one]
    assert [one for one in caplog.messages if "INT96" in one]
    job().standalone(checkpoint=tmp_path / "alone").run(tables, drain=True)
    for kind in ("panes", "late"):
        assert output(tmp_path / "one", kind) == output(tmp_path / "alone", kind)


def test_tasks_have_the_caches_of_a_store_in_memory(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 0, sample(1, 30)[0])
    run(job(), [stream(spark, tmp_path / "input")], tmp_path / "root", store=Memory(), drain=False)
    assert places(tmp_path / "root") == [False]


def test_threads_call_no_function_of_the_users(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_driver, "LIMITS", in_driver.Limits(thread_bytes=0))
    threads: set[str] = set()

    def ones(rows: pa.Table) -> pa.Array:
        threads.add(threading.current_thread().name)
        return pa.array([1] * (max(rows["group"].to_pylist()) + 1))

    write(tmp_path / "input", 0, sample(1, 400)[0])
    described = ts.stream(event_time="t").group_by("k").window(ts.tumbling("1 second"))
    own = described.aggregate(one=agg.apply_rows(ones, columns=["v"], result_type=pa.int64()))
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
    described = ts.stream(event_time="t").group_by("k").window(ts.tumbling("1 second"))
    own = described.aggregate(one=agg.apply_rows(ones, columns=["v"], result_type=pa.int64()))
    run(own, [stream(spark, tmp_path / "input")], tmp_path / "root")
    assert places(tmp_path / "root")[-1] is False
    assert "failed in the driver, so tasks process" in caplog.text


@pytest.mark.parametrize("way", ["driver", *longer("tasks"), "spark"])
def test_rows_of_which_no_column_is_read_count(spark: SparkSession, tmp_path: Path, way: str) -> None:
    for number in range(2):
        write(tmp_path / "input", number, sample(1, 15)[0])
    described = ts.stream(processing_time=True).group_by().window(ts.tumbling("1 second")).aggregate(n=agg.count())
    run(
        described,
        [stream(spark, tmp_path / "input")],
        tmp_path / "root",
        direct_scan=way != "spark",
        in_driver=way == "driver",
    )
    assert places(tmp_path / "root") == [way == "driver"] * 2
    assert Checkpoint.open(tmp_path / "root").head().manifest.totals["events"] == 30
