"""Watermarks per source on real Spark, and time that goes on between batches by real ticks."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import tidestate as ts
from tests.children.progress import job as killed_job
from tests.helpers import evidence
from tests.helpers.apis import raises_foreign
from tests.helpers.checkout import ROOT
from tests.helpers.internals import count_ticks, ticks
from tests.helpers.process import REMOTE, longer
from tests.helpers.spark_inputs import START, Event, batch, sample, write
from tests.helpers.spark_runs import output, stream
from tidestate import Aggregation, DurableQuery, Stream, UsageError, agg, trigger, watermark
from tidestate.operators.progress.figures import Metrics
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest
from tidestate.watermark import SourceReading
from tools.demo.child import Child

pytestmark = pytest.mark.spark

SECOND = 1_000_000
BASE = int(START.timestamp()) * SECOND
TICK = "200 milliseconds"


def counting(events: Stream, window: str = "10 seconds") -> Aggregation:
    return events.group_by("k").window(ts.tumbling(window)).aggregate(n=agg.count())


def by_watermark(generator: Any) -> Aggregation:
    return counting(ts.stream(event_time="t").watermark(generator))


def union(spark: SparkSession, folder: Path) -> DataFrame:
    """Two streams as one, with the name of each in a column."""
    for name in ("orders", "prices"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    first, second = (stream(spark, folder / n).withColumn("src", sf.lit(n)) for n in ("orders", "prices"))
    return first.unionByName(second)


def until(found: Callable[[], Any], seconds: float = 120) -> Any:
    """What ``found`` gives once it gives something."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if what := found():
            return what
        time.sleep(0.05)
    raise AssertionError("that did not happen")


def await_ticks(query: DurableQuery, count: int) -> None:
    """Return when so many more ticks have ended; at once where they are another process's."""
    if REMOTE:
        return
    ended = list[bool]()
    count_ticks(query, ended)
    until(lambda: len(ended) > count)


def has_no_ticker(query: DurableQuery) -> bool:
    return not query.isActive if REMOTE else not ticks(query)


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


@pytest.mark.long  # in every run: operators/progress/test_tracker.py, and test_input_types.py
def test_two_sources_one_falls_idle_and_comes_back(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tidestate")
    root, files = tmp_path / "root", iter(range(100))

    def give(query: DurableQuery, **events: list[Event]) -> None:
        for name, found in events.items():
            write(tmp_path / "in" / name, next(files), batch(found))
        query.processAllAvailable()

    events = ts.stream(event_time="t").watermark(
        by="src", sources=["orders", "prices"], own_timeouts={"prices": "8 seconds"}
    )
    described = counting(events).allowed_lateness("0 seconds")
    started = described.on_spark(union(spark, tmp_path / "in"), checkpoint=root, partitions=2, tick=TICK)
    query = started.start()
    give(query, orders=[(25, "a", 1)])
    assert marks(query) == (None, {"orders": 25, "prices": None})
    query.stop()  # a first batch is slow to be planned

    query = started.start()
    give(query, orders=[(31, "a", 1)], prices=[(5, "a", 1)])
    assert marks(query) == (5, {"orders": 31, "prices": 5})
    kept = query.checkpoint_id
    await_ticks(query, 3)
    assert query.checkpoint_id == kept, "ticks that change nothing publish nothing"
    query.stop()

    query = started.start()  # in the middle of the quiet time
    query.processAllAvailable()
    assert marks(query) == (5, {"orders": 31, "prices": 5})
    give(query, orders=[(32, "a", 1)])
    until(lambda: marks(query)[0] == 32)  # by a tick: nothing came
    assert query.metrics().idle_sources == 1
    assert query.manifest.kind == "tick"
    answered = f"checkpoint {query.checkpoint_id} (tick): watermark 2024-01-01 00:00:32, lag "
    messages = [message for message in caplog.messages if message.startswith(answered)]
    assert REMOTE or "idle sources: prices" in messages[0], "on Spark Connect the server logs it"
    assert panes(root) == [("tick", 10, 1), ("tick", 30, 1)]
    give(query, prices=[(6, "a", 1)])
    assert marks(query)[1]["prices"] == 5  # too late: it is there, but behind
    assert query.manifest.totals["very_late"] == 1
    if not REMOTE:
        (answered,) = [message for message in caplog.messages if " rejected by " in message]
        assert answered.startswith(f"checkpoint {query.checkpoint_id}: 1 rows rejected by ")
    give(query, prices=[(34, "a", 1)], orders=[(59, "a", 1)])
    assert marks(query) == (34, {"orders": 59, "prices": 34})
    assert query.metrics().idle_sources == 0

    found = {family.name: family.samples for family in text_string_to_metric_families(query.prometheus())}
    assert {s.labels["source"]: s.value - BASE / SECOND for s in found["tidestate_source_watermark_seconds"]} == {
        "orders": 59,
        "prices": 34,
    }
    assert found["tidestate_watermark_seconds"][0].labels == {"query": "windows", "operator": "windows"}
    query.stop(drain=True)
    assert has_no_ticker(query), "a drained query ticks no more"
    assert query.checkpoint_id == evidence.manifests(root)[-1]["id"]


def rows_and_lag(numbers: Metrics) -> tuple[int, int | None]:
    """Of one moment: a tick may come before the batch, too."""
    return sum(source.rows for source in numbers.sources.values()), numbers.lag_us


def test_time_alone_shows_panes(spark: SparkSession, tmp_path: Path) -> None:
    """Processing-time windows and triggers, a fixed watermark and ingestion time: all observed by ticks."""
    received = ts.stream(event_time="ingestion_time").watermark(watermark.ingestion_time())
    described = {
        "processing time": counting(ts.stream(processing_time=True), "1 second"),
        "trigger": counting(ts.stream(event_time="t")).trigger(early=trigger.after_processing_time("1 second")),
        "fixed": by_watermark(watermark.fixed("1 second")).allowed_lateness("100000 days"),
        "ingestion": counting(received, "1 second"),
    }
    pair = batch([(1, "a", 1), (2, "a", 2)])
    for name in described:
        write(tmp_path / "in" / name, 0, pair)
    queries = {
        name: one.on_spark(
            stream(spark, tmp_path / "in" / name), checkpoint=tmp_path / name, partitions=1, tick=TICK
        ).start()
        for name, one in described.items()
    }
    for name, query in queries.items():
        shown = until(lambda name=name: panes(tmp_path / name))
        if name == "fixed":  # between a batch and the next tick, the lag has the time that the batch took, too
            until(lambda query=query: rows_and_lag(query.metrics()) == (2, SECOND))
        # A batch may begin so long after Spark has planned it that ticks have passed the window of its rows: then it
        # shows them itself. So more rows come, until a window waits for a tick.
        while name in ("processing time", "ingestion") and shown[-1][0] == "batch":
            so_far = len(shown)
            write(tmp_path / "in" / name, so_far, pair)
            shown += until(lambda name=name, so_far=so_far: panes(tmp_path / name)[so_far:])
        query.stop()
        assert {n for _, _, n in shown} == {2}
        # The clock is far beyond the events of the fixed watermark.
        assert shown[-1][0] == ("batch" if name == "fixed" else "tick")
        assert has_no_ticker(query), "a stopped query ticks no more"
    assert queries["fixed"].manifest.watermark_us is not None


@pytest.mark.long  # in every run: tests.operators.progress
def test_punctuation_is_that_of_the_standalone_runner(spark: SparkSession, tmp_path: Path) -> None:
    tables = [batch([(3, "a", 1), (25, "a", 1)]), batch([(20, "a", -1), (4, "b", 2)]), batch([(5, "a", 1)])]
    for number, table in enumerate(tables):
        write(tmp_path / "in", number, table)
    described = by_watermark(watermark.punctuated("t", flag="v", equals=-1)).allowed_lateness("0 seconds")
    query = described.on_spark(stream(spark, tmp_path / "in"), checkpoint=tmp_path / "root", partitions=2).start()
    query.processAllAvailable()
    query.stop(drain=True)
    alone = described.standalone(checkpoint=tmp_path / "alone")
    alone.run(tables, drain=True)
    assert output(tmp_path / "root", "panes") == output(tmp_path / "alone", "panes")
    assert output(tmp_path / "root", "late") == output(tmp_path / "alone", "late")
    assert query.manifest.totals == alone.head.totals


def ordered(generator: Any, sources: list[str], **about: Any) -> Aggregation:
    """Origins are ``k``, offsets ``id``."""
    events = ts.stream(event_time="t", offset="id", origin="k", **about).watermark(generator, sources=sources)
    described = events.group_by("v").window(ts.tumbling("10 seconds"))
    return described.aggregate(n=agg.count(), all=agg.list("id"))


def settings(policy: Any, every: Any, import_from: str | None = None, **generated: Any) -> Any:
    return watermark.cti_settings(
        policy, generate=watermark.generate_ctis(every, **generated), import_from=import_from
    )


IN_ORDER = {
    "dropped": ordered(watermark.ctis(settings("drop", 7, delay="2 seconds")), ["a", "b"]),
    "adjusted and imported": ordered(
        watermark.ctis(
            {"a": settings("adjust", "5 seconds", final=True), "b": settings("adjust", 3, import_from="a")}
        ),
        ["a", "b"],
        cti_settings=settings("drop", 1),
        lifetime=ts.lifetime(shape="edge_start"),
    ),
    "buffers": ordered(
        watermark.buffers(origin="v", sequence="seq", chunk="chunk", last="last", watermark="t"), ["1", "2"]
    ),
}


def shuffled(count: int = 12) -> list[pa.Table]:
    """Files of three origins, rows in any order; columns of buffers: some come twice, one comes late."""
    chance = np.random.default_rng(3)
    tables = []
    for number, table in enumerate(sample(count, 40)):
        first = number - 3 if number % 4 == 3 else number  # an earlier one once more
        sequence = {5: 6, 6: 5}.get(first, first) + 1
        rows = np.arange(40)
        columns = {
            "k": pa.array([None if row == 3 else "abc"[row % 3] for row in rows]),
            "v": pa.array(rows % 2 + 1),
            "seq": pa.array(np.full(40, sequence)),
            "chunk": pa.array(rows % 4 // 2),
            "last": pa.array(rows % 4 // 2 == 1),
        }
        for name, column in columns.items():
            place = table.schema.get_field_index(name)
            table = table.append_column(name, column) if place < 0 else table.set_column(place, name, column)
        tables.append(table.take(pa.array(chance.permutation(40))))
    return tables


# Buffers on Spark, in every run: `tests.spark.test_input_types`.
@pytest.mark.parametrize("name", ["dropped", *longer("adjusted and imported", "buffers")])
def test_ctis_and_buffers_are_those_of_the_standalone_runner(spark: SparkSession, tmp_path: Path, name: str) -> None:
    tables, described = shuffled(6 if name == "dropped" else 12), IN_ORDER[name]
    for number, table in enumerate(tables):
        write(tmp_path / "in", number, table)
    schema = "t timestamp, k string, v long, id long, seq long, chunk long, last boolean"
    given = spark.readStream.schema(schema).option("maxFilesPerTrigger", 2).parquet(str(tmp_path / "in"))
    started = described.on_spark(given, checkpoint=tmp_path / "root", partitions=2, tick="1 hour")
    query = started.start()
    query.processAllAvailable()
    families = {one.name: one.samples for one in text_string_to_metric_families(query.prometheus())}
    assert ("tidestate_buffers" if name == "buffers" else "tidestate_cti_violations") in families
    query.stop(drain=True)
    alone = described.standalone(checkpoint=tmp_path / "alone")
    alone.run([pa.concat_tables(tables[at : at + 2]) for at in range(0, len(tables), 2)], drain=True)
    for kind in ("panes", "late"):
        assert in_any_order(output(tmp_path / "root", kind)) == in_any_order(output(tmp_path / "alone", kind))
    assert query.manifest.totals == alone.head.totals
    for found in ("advances", "watermark_us"):
        assert [getattr(m.operators["windows"], found) for m in history(tmp_path / "root")] == [
            getattr(m.operators["windows"], found) for m in history(tmp_path / "alone")
        ]
    assert history(tmp_path / "root")[-2].watermark_us is not None
    totals = query.manifest.totals
    assert totals["duplicate_buffer"] if name == "buffers" else totals["bad_offset"]
    assert name != "dropped" or totals["cti_violation"]
    assert not name.startswith("adjusted") or totals["cti_adjusted"]


def history(root: Path) -> list[Manifest]:
    return [manifest for manifest in Checkpoint.open(root).history() if manifest.kind != "fence"]


def in_any_order(found: dict[int, list[tuple[Any, ...]]]) -> list[list[str]]:
    """Lists within a pane are in the order in which their parts came together."""
    return [
        sorted(str([sorted(v) if isinstance(v, list) else v for v in row]) for row in rows) for rows in found.values()
    ]


def test_a_tick_that_fails_stops_the_query_and_its_error_reaches_the_user(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(tmp_path / "in", 0, batch([(1, "a", 1)]))
    by_clock = counting(ts.stream(processing_time=True), "1 second")

    def kinds() -> list[str]:
        return [manifest["kind"] for manifest in evidence.work(tmp_path / "root")]

    def full(_moment: str, _checkpoint_id: int) -> None:
        if threading.current_thread().name == "tidestate-ticker" and "batch" in kinds():
            raise RuntimeError("the disk is full")

    started = by_clock.on_spark(stream(spark, tmp_path / "in"), checkpoint=tmp_path / "root", tick=TICK)
    query = started.with_hook(full).start()
    with raises_foreign(RuntimeError, match="the disk is full"):
        query.awaitTermination(90)
    assert not query.isActive
    with raises_foreign(RuntimeError, match="the disk is full"):
        query.stop()
    assert kinds()[-1] == "batch"
    again = started.start()
    until(lambda: panes(tmp_path / "root"))
    again.stop()


class Broken:
    """A generator of one's own that fails at the first row."""

    def read(self, events: pa.Table, now_us: int, *, source: str, by: str | None = None) -> SourceReading:
        raise KeyError("offset")


@pytest.mark.long  # in every run: tests.operators.progress, and an error in a task in test_chains
def test_an_error_of_a_generator_of_one_s_own_names_its_operator(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 0, batch([(1, "a", 1)]))
    job = by_watermark(Broken()).named("per_key")
    query = job.on_spark(stream(spark, tmp_path / "input"), checkpoint=tmp_path / "root").start()
    with pytest.raises(UsageError, match="the watermark generator Broken raised KeyError: 'offset'") as raised:
        query.processAllAvailable()
    assert raised.value.code == "own-function"
    assert raised.value.context == {"generator": "Broken", "operator": "per_key"}
    assert "in read" in str(raised.value.__cause__), "with the traceback in the task"


@pytest.mark.long
def test_killed_before_a_manifest_it_classifies_as_the_first_run_would(tmp_path: Path) -> None:
    tables = sample(5, 60)
    for number, table in enumerate(tables):
        write(tmp_path / "in", number, table)
    command = [sys.executable, "-m", "tests.children.progress", str(tmp_path / "in"), str(tmp_path / "root")]
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


@pytest.mark.long
def test_a_quiet_source_killed_before_its_window_is_published_fires_it_once(tmp_path: Path) -> None:
    """The time of the run that died counts no more, and no watermark goes back; what comes behind it is late."""
    folder, root = tmp_path / "in", tmp_path / "root"
    write(folder, 0, batch([(1, "a", 1), (8, "a", 1)]))
    command = [sys.executable, "-m", "tests.children.quiet", str(folder), str(root)]
    child = Child([*command, "3"], tmp_path / "log", cwd=ROOT)
    child.wait_for(lambda event: event["event"] == "paused")
    child.kill()
    assert [one["kind"] for one in evidence.manifests(root)] == ["fence", "batch"], "the tick is not published"
    child = Child([*command, "0"], tmp_path / "log", cwd=ROOT)
    child.wait_for(lambda event: event["event"] == "fired")
    write(folder, 1, batch([(3, "a", 1), (300, "a", 1)], 2))
    child.tell("go on")
    child.wait_for(lambda event: event["event"] == "done")
    child.finish()
    manifests = evidence.work(root)
    kinds = [one["kind"] for one in manifests if one["panes"]]
    assert kinds == ["tick", "tick"], "the window that was quiet, and the last one at the end of time"
    assert [sorted(ids) for m in manifests for (ids,) in evidence.rows(root, m["panes"], ["all"])] == [[0, 1], [3]]
    marks = [one["watermark_us"] for one in manifests]
    assert marks == sorted(marks)
    assert [row[0] for m in manifests for row in evidence.rows(root, m["late"], ["id"])] == [2]
