"""Watermarks per source on real Spark, and time that goes on between batches by real ticks."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from operators import (
    IngestionTime,
    Punctuation,
    Windowed,
    after_processing_time,
    count,
    fixed,
    max_event_time,
    tumbling,
    windowed,
)
from operators.spark.query import DurableQuery
from tests import evidence
from tests.progress_child import job as killed_job
from tests.spark_inputs import START, Event, batch, sample, write
from tests.test_spark_job import output, stream
from tools.demo.child import Child

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parent.parent
SECOND = 1_000_000
BASE = int(START.timestamp()) * SECOND
TICK = "200 milliseconds"


def counting(**about: Any) -> Windowed:
    return windowed(**{"event_time": "t", "key": "k", **about}).window(tumbling("10 seconds")).aggregate(n=count())


def union(spark: SparkSession, folder: Path) -> DataFrame:
    """Two streams as one, with the name of each in a column."""
    for name in ("orders", "prices"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    first, second = (stream(spark, folder / n).withColumn("src", sf.lit(n)) for n in ("orders", "prices"))
    return first.unionByName(second)


def until(found: Callable[[], Any], seconds: float = 30) -> Any:
    """What ``found`` gives once it gives something."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if what := found():
            return what
        time.sleep(0.05)
    raise AssertionError("that did not happen")


def marks(query: DurableQuery) -> tuple[float | None, dict[str, float | None]]:
    """The watermark and that of each source, in seconds after the start."""
    found = query.metrics()
    return _second(found.watermark_us), {name: _second(one.watermark_us) for name, one in found.sources.items()}


def _second(us: int | None) -> float | None:
    return None if us is None else (us - BASE) / SECOND


def panes(root: Path) -> list[tuple[str, int, int]]:
    """Kind of checkpoint, end of the window in seconds after the start, and count of each pane."""
    return [
        (manifest["kind"], (end - BASE) // SECOND, n)
        for manifest in evidence.work(root)
        for end, n in evidence.rows(root, manifest.get("panes", []), ["window_end", "n"])
    ]


def test_two_sources_one_falls_idle_and_comes_back(spark: SparkSession, tmp_path: Path) -> None:
    root, files = tmp_path / "root", iter(range(100))

    def give(query: DurableQuery, **events: list[Event]) -> None:
        for name, found in events.items():
            write(tmp_path / "in" / name, next(files), batch(found))
        query.process_all_available()

    described = (
        counting()
        .late("0 seconds")
        .watermark(max_event_time("t"), by="src", sources=["orders", "prices"], own_timeouts={"prices": "10 seconds"})
    )
    started = described.on_spark(union(spark, tmp_path / "in"), checkpoint=root, partitions=2, tick=TICK)
    query = started.start()
    give(query, orders=[(25, "a", 1)])
    assert marks(query) == (None, {"orders": 25, "prices": None})
    give(query, orders=[(31, "a", 1)], prices=[(5, "a", 1)])
    assert marks(query) == (5, {"orders": 31, "prices": 5})
    kept = query.checkpoint_id
    time.sleep(0.7)
    assert query.checkpoint_id == kept, "ticks that change nothing publish nothing"
    query.stop()

    query = started.start()  # in the middle of the quiet time
    query.process_all_available()
    assert marks(query) == (5, {"orders": 31, "prices": 5})
    give(query, orders=[(32, "a", 1)])
    until(lambda: marks(query)[0] == 32)  # by a tick: nothing came
    assert query.metrics().idle_sources == 1
    assert query.manifest.kind == "tick"
    assert panes(root) == [("tick", 10, 1), ("tick", 30, 1)]
    give(query, prices=[(6, "a", 1)])
    assert marks(query)[1]["prices"] == 5  # too late: it is there, but behind
    assert query.manifest.totals["very_late"] == 1
    give(query, prices=[(34, "a", 1)], orders=[(59, "a", 1)])
    assert marks(query) == (34, {"orders": 59, "prices": 34})
    assert query.metrics().idle_sources == 0

    found = {family.name: family.samples for family in text_string_to_metric_families(query.prometheus())}
    assert {s.labels["source"]: s.value - BASE / SECOND for s in found["tidemark_source_watermark_seconds"]} == {
        "orders": 59,
        "prices": 34,
    }
    assert found["tidemark_watermark_seconds"][0].labels == {"job": "windows"}
    query.stop(drain=True)
    newest = query.checkpoint_id
    time.sleep(0.5)
    assert query.checkpoint_id == newest == evidence.manifests(root)[-1]["id"], "a drained query ticks no more"


def test_time_alone_shows_panes(spark: SparkSession, tmp_path: Path) -> None:
    """Processing-time windows and triggers, a fixed watermark and ingestion time: all shown by ticks."""
    write(tmp_path / "in", 0, batch([(1, "a", 1), (2, "a", 2)]))
    second = tumbling("1 second")
    by_clock = windowed(processing_time=True, key="k").window(second).aggregate(n=count())
    received = windowed(event_time="ingestion_time", key="k").window(second).aggregate(n=count())
    described = {
        "processing time": by_clock,
        "trigger": counting().trigger(early=after_processing_time("1 second")),
        "fixed": counting().watermark(fixed("1 second")).late("100000 days"),
        "ingestion": received.watermark(IngestionTime()),
    }
    queries = {
        name: one.on_spark(
            stream(spark, tmp_path / "in"), checkpoint=tmp_path / name, partitions=1, tick=TICK
        ).start()
        for name, one in described.items()
    }
    for name, query in queries.items():
        until(lambda name=name: panes(tmp_path / name))
        query.stop()
        [(kind, _, n)] = panes(tmp_path / name)
        assert n == 2
        assert (kind, name) in {("tick", name), ("batch", "fixed")}  # the clock is far beyond those events
        newest = len(evidence.manifests(tmp_path / name))
        time.sleep(0.5)
        assert len(evidence.manifests(tmp_path / name)) == newest, "a stopped query ticks no more"
    assert queries["fixed"].manifest.watermark_us is not None
    lag = queries["fixed"].metrics().lag_us
    assert lag == SECOND


def test_punctuation_is_that_of_the_standalone_runner(spark: SparkSession, tmp_path: Path) -> None:
    tables = [batch([(3, "a", 1), (25, "a", 1)]), batch([(20, "a", -1), (4, "b", 2)]), batch([(5, "a", 1)])]
    for number, table in enumerate(tables):
        write(tmp_path / "in", number, table)
    described = counting().watermark(Punctuation("t", "v", equals=-1)).late("0 seconds")
    query = described.on_spark(stream(spark, tmp_path / "in"), checkpoint=tmp_path / "root", partitions=2).start()
    query.process_all_available()
    query.stop(drain=True)
    alone = described.standalone(checkpoint=tmp_path / "alone")
    alone.run(tables, drain=True)
    assert output(tmp_path / "root", "panes") == output(tmp_path / "alone", "panes")
    assert output(tmp_path / "root", "late") == output(tmp_path / "alone", "late")
    assert query.manifest.totals == alone.head.totals


def test_a_tick_that_fails_stops_the_query_and_its_error_reaches_the_user(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(tmp_path / "in", 0, batch([(1, "a", 1)]))
    by_clock = windowed(processing_time=True, key="k").window(tumbling("1 second")).aggregate(n=count())

    def kinds() -> list[str]:
        return [manifest["kind"] for manifest in evidence.work(tmp_path / "root")]

    def full(_moment: str, _checkpoint_id: int) -> None:
        if threading.current_thread().name == "tidemark-ticker" and "batch" in kinds():
            raise RuntimeError("the disk is full")

    started = by_clock.on_spark(stream(spark, tmp_path / "in"), checkpoint=tmp_path / "root", tick=TICK)
    query = started.with_hook(full).start()
    with pytest.raises(RuntimeError, match="the disk is full"):
        query.await_termination(90)
    assert not query.is_active
    with pytest.raises(RuntimeError, match="the disk is full"):
        query.stop()
    assert kinds()[-1] == "batch"
    again = started.start()
    until(lambda: panes(tmp_path / "root"))
    again.stop()


def test_killed_before_a_manifest_it_classifies_as_the_first_run_would(tmp_path: Path) -> None:
    tables = sample(5, 60)
    for number, table in enumerate(tables):
        write(tmp_path / "in", number, table)
    command = [sys.executable, "-m", "tests.progress_child", str(tmp_path / "in"), str(tmp_path / "root")]
    child = Child([*command, "4"], tmp_path / "log", cwd=ROOT)
    child.wait_for(lambda event: event["event"] == "paused")
    child.kill()
    assert len(evidence.manifests(tmp_path / "root")) == 3
    child = Child(command, tmp_path / "log", cwd=ROOT)
    child.wait_for(lambda event: event["event"] == "done")
    child.finish()
    killed_job().standalone(checkpoint=tmp_path / "alone").run(tables, drain=True)
    assert output(tmp_path / "root", "panes") == output(tmp_path / "alone", "panes")
    assert output(tmp_path / "root", "late") == output(tmp_path / "alone", "late")
    found = [
        [(m.get("watermark_before_us"), m.get("watermark_us")) for m in evidence.work(root)]
        for root in (tmp_path / "root", tmp_path / "alone")
    ]
    assert found[0] == found[1]
    assert evidence.manifests(tmp_path / "root")[-1]["epoch"] == 2
