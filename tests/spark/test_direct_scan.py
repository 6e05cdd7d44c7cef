"""Jobs whose tasks read the files themselves: the same checkpoints as through Spark, which reads what only it can."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import tidestate as ts
from tests.helpers.direct_runs import files, run, ways, ways_to_take
from tests.helpers.process import longer
from tests.helpers.spark_inputs import SCHEMA, job, sample, two_streams, write, write_int96
from tests.helpers.spark_runs import output, same, stream
from tidestate import agg, watermark
from tidestate.operators.spark import transport
from tidestate.recovery.log.checkpoint import Checkpoint

pytestmark = [pytest.mark.spark, pytest.mark.classic("scan")]

COMPACTED = "spark.sql.streaming.fileSource.log.compactInterval"


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.unset(name)


def test_the_checkpoints_are_the_same_however_the_files_are_read(spark: SparkSession, tmp_path: Path) -> None:
    with setting(spark, COMPACTED, "2"):
        files(tmp_path / "input", 3)
        for way in (True, False):
            run(job(), [stream(spark, tmp_path / "input")], tmp_path / str(way), direct=way)
    assert list((tmp_path / "True" / "spark" / "sources" / "0").glob("*.compact"))
    same(tmp_path / "True", tmp_path / "False")
    assert ways(tmp_path / "True") == [(True, "")] * 3
    assert ways(tmp_path / "False") == [(False, "paths without direct_scan")] * 3


@pytest.mark.long
def test_the_way_may_change_at_a_restart_and_a_batch_may_be_repeated_in_the_other(
    spark: SparkSession, tmp_path: Path
) -> None:
    tables = sample(2, 100)

    def fail(moment: str, _checkpoint_id: int) -> None:
        if moment == "before-manifest":
            raise RuntimeError("the driver dies")

    for number, table in enumerate(tables):
        write(tmp_path / "input", number, table)
        way = number % 2 == 0
        dying = job().on_spark(
            stream(spark, tmp_path / "input"), checkpoint=tmp_path / "one", partitions=2, paths=ways_to_take(not way)
        )
        query = dying.with_hook(fail).start()
        with pytest.raises(RuntimeError, match="the driver dies"):
            query.processAllAvailable()
        with pytest.raises(RuntimeError, match="the driver dies"):
            query.stop()
        run(job(), [stream(spark, tmp_path / "input")], tmp_path / "one", direct=way, drain=number == 1)
    job().standalone(checkpoint=tmp_path / "alone").run(tables, drain=True)
    for kind in ("panes", "late"):
        assert output(tmp_path / "one", kind) == output(tmp_path / "alone", kind)
    assert [direct for direct, _ in ways(tmp_path / "one")] == [True, False]


# In every run `test_a_batch_that_makes_too_much_for_the_shuffle_is_read_by_spark` reads two streams in both ways.
@pytest.mark.long
@pytest.mark.parametrize("name", ["join", "chain"])
def test_several_streams_are_read_each_from_its_files(spark: SparkSession, tmp_path: Path, name: str) -> None:
    files(tmp_path / "left", 3, 1)
    files(tmp_path / "right", 3, 2)
    near = ts.stream(event_time="t").join(
        ts.stream(event_time="t"), on="k", within=("-1 second", "2 seconds"), how="full", allowed_lateness="5 seconds"
    )
    for way in (True, False):
        sides = [stream(spark, tmp_path / side) for side in ("left", "right")]
        if name == "join":
            run(near, sides, tmp_path / str(way), direct=way)
        else:
            run(two_streams(), [dict(zip(("orders", "prices"), sides, strict=True))], tmp_path / str(way), direct=way)
    same(tmp_path / "True", tmp_path / "False")
    assert ways(tmp_path / "True") == [(True, "")] * 3


@pytest.mark.long
def test_filters_and_options_of_the_stream(spark: SparkSession, tmp_path: Path) -> None:
    files(tmp_path / "input", 4)
    for way in (True, False):
        rows = spark.readStream.schema("T timestamp, k string, v long, id long, later date")
        rows = rows.options(latestFirst="true", maxFilesPerTrigger="2", pathGlobFilter="*.parquet")
        chosen = rows.parquet(str(tmp_path / "input")).filter("v > 5 and k in ('a', 'b') or v is null")
        chosen = chosen.select("t", "k", sf.col("v").alias("v"), "id")
        run(job().renamed(), [chosen], tmp_path / str(way), direct=way)
    same(tmp_path / "True", tmp_path / "False")
    assert ways(tmp_path / "True") == [(True, "")] * 2


@pytest.mark.long
def test_a_file_in_the_middle_of_a_run_that_only_spark_can_read(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tables = sample(4, 60)
    for number, table in enumerate(tables):
        (write_int96 if number == 1 else write)(tmp_path / "input", number, table)
    with caplog.at_level(logging.INFO, "tidestate"):
        run(job(), [stream(spark, tmp_path / "input")], tmp_path / "one")
    job().standalone(checkpoint=tmp_path / "alone").run(tables, drain=True)
    for kind in ("panes", "late"):
        assert output(tmp_path / "one", kind) == output(tmp_path / "alone", kind)
    found = ways(tmp_path / "one")
    assert [direct for direct, _ in found] == [True, False, False, True]  # one batch without a try
    assert found[1][1] == found[2][1]
    assert "INT96" in found[1][1]
    assert len([one for one in caplog.messages if "INT96" in one]) == 1


@pytest.mark.long
def test_a_batch_that_makes_too_much_for_the_shuffle_is_read_by_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files(tmp_path / "left", 2, 1)
    files(tmp_path / "right", 2, 2)
    for most in (1 << 30, 10_000):
        monkeypatch.setattr(transport, "SHUFFLED_BYTES", most)
        sides = [stream(spark, tmp_path / side) for side in ("left", "right")]
        run(two_streams(), [dict(zip(("orders", "prices"), sides, strict=True))], tmp_path / str(most))
    same(tmp_path / "10000", tmp_path / str(1 << 30))
    assert ways(tmp_path / "10000") == [
        (False, "a task sends more than 10000 bytes"),
        (False, "a task sends more than 10000 bytes"),
    ]


PLANS: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "a file name": (lambda rows: rows.withColumn("k", sf.input_file_name()), "computed by InputFileName"),
    "a cast": (lambda rows: rows.withColumn("v", sf.col("v").cast("double")), "computed by cast"),
    "metadata": (lambda rows: rows.withColumn("k", sf.col("_metadata.file_name")), "attribute"),
    "observed": (lambda rows: rows.observe("seen", sf.count("*").alias("n")), "the plan has CollectMetrics"),
}


# Each of them without Spark: `tests.operators.spark.test_scan_decide`.
@pytest.mark.parametrize("name", ["a file name", *longer(*list(PLANS)[1:])])
def test_a_plan_that_spark_must_run(spark: SparkSession, tmp_path: Path, name: str) -> None:
    files(tmp_path / "input", 1)
    change, reason = PLANS[name]
    run(job(), [change(stream(spark, tmp_path / "input"))], tmp_path / "one")
    ((direct, found),) = ways(tmp_path / "one")
    assert not direct
    assert reason in found


@pytest.mark.long  # in every run: tests.operators.spark.test_scan_decide
def test_folders_of_no_partition_and_rows_in_order_are_left_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    files(tmp_path / "input" / "day=1", 1)
    run(job(), [stream(spark, tmp_path / "input")], tmp_path / "one")
    assert ways(tmp_path / "one") == [(True, "")]
    rows = spark.readStream.schema(SCHEMA).option("recursiveFileLookup", "true").parquet(str(tmp_path / "input"))
    run(job(), [rows], tmp_path / "other")
    assert ways(tmp_path / "other") == [
        (False, "the files lie in folders with = in the name, which may be partitions")
    ]
    made = watermark.ctis(watermark.cti_settings("drop", generate=watermark.generate_ctis(7)))
    events = ts.stream(event_time="t", offset="id", origin="k").watermark(made, sources=["a"])
    ordered = events.group_by("v").window(ts.tumbling("10 seconds")).aggregate(n=agg.count())
    run(ordered, [stream(spark, tmp_path / "input" / "day=1")], tmp_path / "ordered")
    assert ways(tmp_path / "ordered") == [(False, "rows are processed in the order of columns")]


# Each of them without Spark: `tests.operators.spark.test_scan_footer`.
@pytest.mark.long
@pytest.mark.parametrize("harm", ["cut", "gone", "flipped"])
def test_a_lost_or_damaged_file_ends_as_it_does_with_spark(spark: SparkSession, tmp_path: Path, harm: str) -> None:
    found = []
    for way in (True, False):
        files(tmp_path / f"input-{way}", 2)
        path = tmp_path / f"input-{way}" / "0001.parquet"

        def damage(moment: str, checkpoint_id: int, path: Path = path) -> None:
            if (moment, checkpoint_id) != ("after-manifest", 2):
                return
            data = path.read_bytes()
            if harm == "gone":
                path.unlink()
            elif harm == "cut":
                path.write_bytes(data[:-20])
            else:
                path.write_bytes(data[:200] + bytes([data[200] ^ 255]) * 300 + data[500:])

        root = tmp_path / str(way)
        started = job().on_spark(
            stream(spark, tmp_path / f"input-{way}"), checkpoint=root, partitions=2, paths=ways_to_take(way)
        )
        query = started.with_hook(damage).start()
        try:
            query.processAllAvailable()
            found.append("no error")
            query.stop()
        except Exception as error:
            found.append(f"{type(error).__name__} {getattr(error, 'getCondition', lambda: None)()}")
        found.append(str(Checkpoint.open(root).head().manifest.counters))
    assert found[:2] == found[2:]
