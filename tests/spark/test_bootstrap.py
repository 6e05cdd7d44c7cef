"""Jobs on Spark that begin with state from a batch: exact, whether the process dies, and on every kind of source."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.apis import Notes
from tests.helpers.checkout import ROOT
from tests.helpers.command import json_lines, tidestate
from tests.helpers.process import REMOTE
from tests.helpers.spark_inputs import SCHEMA, batch, job, rows, sample, two_streams, write
from tests.helpers.spark_runs import output, stream
from tidestate.operators.describe.runs import SparkJob
from tidestate.operators.spark.sources import FileStamps
from tidestate.recovery.inspect.verify import verify
from tidestate.recovery.log import spark_log
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import ConflictError, UsageError
from tools.demo.child import Child, ChildFailedError

pytestmark = pytest.mark.spark


def history(spark: SparkSession, *files: Path) -> DataFrame:
    return spark.read.schema(SCHEMA).parquet(*map(str, files))


def write_all(folder: Path, tables: list[pa.Table]) -> list[Path]:
    for number, table in enumerate(tables):
        write(folder, number, table)
    return sorted(folder.glob("*.parquet"))


def finish(begun: SparkJob, *, drain: bool = True) -> None:
    query = begun.start()
    query.processAllAvailable()
    query.stop(drain=drain)


def net(root: Path) -> list[tuple[object, ...]]:
    """What the panes come to: emitted, less retracted, without their numbers."""
    found: dict[tuple[object, ...], int] = {}
    checkpoint = Checkpoint.open(root)
    for path in checkpoint.pane_paths():
        for row in rows(pq.read_table(path)):
            sign = -1 if "retract" in row else 1
            found[row[:6]] = found.get(row[:6], 0) + sign
    assert set(found.values()) <= {0, 1}
    return sorted((row for row, times in found.items() if times), key=repr)


@pytest.mark.long
def test_half_in_a_batch_and_half_streamed(spark: SparkSession, tmp_path: Path) -> None:
    tables = sample(4, 60)
    files = write_all(tmp_path / "input", tables)
    begun = job().on_spark(stream(spark, tmp_path / "input"), checkpoint=tmp_path / "root", partitions=3)
    assert not begun.begun
    manifest = begun.bootstrap(history(spark, *files[:2]))
    assert begun.begun
    assert manifest.kind == "bootstrap"
    assert manifest.counters["events"] == 120
    assert manifest.panes
    finish(begun, drain=False)
    finish(begun)
    # The same without Spark: the first two files are one batch.
    together = [pa.concat_tables(tables[:2]), *tables[2:]]
    job().standalone(checkpoint=tmp_path / "alone").run(together, drain=True)
    assert output(tmp_path / "root", "panes") == output(tmp_path / "alone", "panes")
    assert output(tmp_path / "root", "late") == output(tmp_path / "alone", "late")
    found = evidence.manifests(tmp_path / "root")
    batches = [m for m in found if m["kind"] in ("bootstrap", "batch")]
    assert [m["spark"]["batch_id"] for m in batches] == [0, 1, 2]
    read = [path.split()[0].rsplit("/")[-1] for m in batches for path in m["spark"]["files"]["0"]]
    assert read == [f"{number:04d}.parquet" for number in range(4)]
    assert verify(Checkpoint.open(tmp_path / "root"), read_percent=100, spark=True).findings == ()


@pytest.mark.long  # in every run: operators/local/test_bootstrap.py
def test_what_is_in_time_is_as_in_a_run_from_the_beginning(spark: SparkSession, tmp_path: Path) -> None:
    tables = [batch([(n * 10 + s, "abc"[s % 3], n * s) for s in range(12)], n * 12) for n in range(6)]
    files = write_all(tmp_path / "input", tables)
    for name, known in (("whole", []), ("handed", files[:4])):
        begun = job().on_spark(stream(spark, tmp_path / "input"), checkpoint=tmp_path / name, partitions=2)
        if known:
            begun.bootstrap(history(spark, *known))
        finish(begun)
    assert net(tmp_path / "handed") == net(tmp_path / "whole")
    assert len(net(tmp_path / "whole")) == 20
    totals = [evidence.manifests(tmp_path / name)[-1]["totals"] for name in ("handed", "whole")]
    assert totals[0]["accepted"] == totals[1]["accepted"] == 72


@pytest.mark.long
def test_more_files_than_a_manifest_holds_and_names_of_every_kind(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_log, "INLINE_FILES", 10)
    named = ["with space", "plus+and%25", "ümlaut€", "a=b;c,d&e@f~g'(h)!*", "br[1]{x}^`|", "hash#ask?"]
    tables = [batch([(n / 4, "a", n)], n) for n in range(12)]
    write_all(tmp_path / "input", tables[: -len(named)])
    for name, table in zip(named, tables[-len(named) :], strict=True):
        write(tmp_path / "made", 0, table)
        os.rename(tmp_path / "made" / "0000.parquet", tmp_path / "input" / f"{name}.parquet")
    whole = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "input"))
    begun = job().on_spark(whole, checkpoint=tmp_path / "root", partitions=2)
    manifest = begun.bootstrap(history(spark, tmp_path / "input"))
    assert manifest.spark is not None
    assert manifest.spark.files_ref is not None
    assert manifest.counters["events"] == len(tables)
    write(tmp_path / "input", 200, batch([(100, "z", 1)], 1000))
    finish(begun)
    assert evidence.manifests(tmp_path / "root")[-1]["totals"]["events"] == len(tables) + 1


# In every run `tests.spark.test_adopt` is killed where Spark's log is half written, which both finish in one way, and
# `tests.operators.local.test_bootstrap` before the manifest.
@pytest.mark.long
@pytest.mark.parametrize("moment", ["spark-half-written", "before-manifest", "after-manifest"])
def test_killed_while_it_is_handed_over(spark: SparkSession, tmp_path: Path, moment: str) -> None:
    tables = sample(4, 60)
    files = write_all(tmp_path / "input", tables)
    command = [sys.executable, "-m", "tests.children.bootstrap", str(tmp_path), "2", moment]
    with pytest.raises(ChildFailedError):
        Child(command, tmp_path / "log", cwd=ROOT).finish()
    assert "Traceback" not in (tmp_path / "log").read_text()
    begun = job().on_spark(stream(spark, tmp_path / "input"), checkpoint=tmp_path / "root", partitions=2)
    assert begun.begun is (moment != "before-manifest")
    if moment == "before-manifest":
        assert not (tmp_path / "root" / "spark").exists()
        begun.bootstrap(history(spark, *files[:2]))
    assert (tmp_path / "root" / "spark" / "metadata").exists() is (moment == "before-manifest")
    finish(begun)
    job().standalone(checkpoint=tmp_path / "alone").run([pa.concat_tables(tables[:2]), *tables[2:]], drain=True)
    assert output(tmp_path / "root", "panes") == output(tmp_path / "alone", "panes")
    assert output(tmp_path / "root", "late") == output(tmp_path / "alone", "late")


@pytest.mark.long  # in every run: operators/local/test_bootstrap.py
def test_a_chain_of_two_streams_one_of_them_without_history(spark: SparkSession, tmp_path: Path) -> None:
    orders, prices = sample(4, 40, seed=1), sample(4, 40, seed=2)
    files = write_all(tmp_path / "orders", orders)
    write_all(tmp_path / "prices", prices)
    # Named the other way round: Spark's order is that of the chain.
    streams = {name: stream(spark, tmp_path / name) for name in ("prices", "orders")}
    begun = two_streams().on_spark(streams, checkpoint=tmp_path / "root", partitions=3)
    with pytest.raises(UsageError, match="streams"):
        begun.bootstrap(history(spark, *files[:2]))
    manifest = begun.bootstrap({"orders": history(spark, *files[:2])})
    assert manifest.spark is not None
    assert manifest.spark.end == ('{"logOffset":0}', "-")
    assert list(manifest.spark.files) == ["0"]
    finish(begun)
    both: list[dict[str, pa.Table]] = [{"orders": pa.concat_tables(orders[:2])}]
    both[0]["prices"] = prices[0].slice(0, 0)
    both += [{"orders": orders[2], "prices": prices[0]}, {"orders": orders[3], "prices": prices[1]}]
    both += [{"orders": orders[0].slice(0, 0), "prices": rest} for rest in prices[2:]]
    two_streams().standalone(checkpoint=tmp_path / "alone").run(both, drain=True)
    assert output(tmp_path / "root", "panes") == output(tmp_path / "alone", "panes")


@pytest.mark.long  # in every run: the same without Spark, and two streams in test_what_does_not_fit_the_stream
def test_a_join_with_history_of_both_sides(spark: SparkSession, tmp_path: Path) -> None:
    left, right = sample(3, 40, seed=1), sample(3, 40, seed=2)
    files = {name: write_all(tmp_path / name, tables) for name, tables in (("left", left), ("right", right))}
    met = ts.stream(event_time="t").join(
        ts.stream(event_time="t"), on="k", within=("0 seconds", "5 seconds"), how="full", allowed_lateness="5 seconds"
    )
    sides = {name: stream(spark, tmp_path / name) for name in ("left", "right")}
    begun = met.on_spark(sides, checkpoint=tmp_path / "root", partitions=2)
    begun.bootstrap({name: history(spark, *found[:2]) for name, found in files.items()})
    finish(begun)
    pairs = [(pa.concat_tables(left[:2]), pa.concat_tables(right[:2])), (left[2], right[2])]
    met.standalone(checkpoint=tmp_path / "alone").run(
        [{"left": one, "right": other} for one, other in pairs], drain=True
    )
    assert output(tmp_path / "root", "panes") == output(tmp_path / "alone", "panes")
    assert output(tmp_path / "root", "late") == output(tmp_path / "alone", "late")


def rated(spark: SparkSession, rows_a_batch: int = 50) -> DataFrame:
    """Spark's source of numbers: row n is of n milliseconds after its start, offsets are counts."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows_a_batch)
    found = source.option("startTimestamp", 0).option("advanceMillisPerBatch", 1000).load()
    return found.selectExpr(
        "timestamp_micros(value * 20000) as t", "string(value % 3) as k", "value as v", "value as id"
    )


@pytest.mark.long
def test_a_source_that_is_no_files_goes_on_at_the_offset(spark: SparkSession, tmp_path: Path) -> None:
    past = spark.range(1000).selectExpr("timestamp_micros(id * 20000) as t", "string(id % 3) as k", "id as v", "id")
    begun = job().on_spark(rated(spark), checkpoint=tmp_path / "root", partitions=2)
    with pytest.raises(UsageError, match="endingOffsets"):
        begun.bootstrap(past)
    for wrong in ("latest", ["1", "2"]):
        with pytest.raises(UsageError, match="bootstrap-offsets"):
            begun.bootstrap(past, offsets=wrong)
    assert not (tmp_path / "root").exists()
    begun.bootstrap(past, offsets={"offset": 1000, "timestamp": 20_000})
    query = begun.trigger(processingTime="0 seconds").start()
    while query.manifest.spark is None or query.manifest.spark.batch_id < 3:
        query.awaitTermination(0.2)
    query.stop(drain=True)
    found = evidence.manifests(tmp_path / "root")
    assert next(m["spark"]["end"] for m in found if m["kind"] == "batch") == ['{"offset":1050,"timestamp":21000}']
    count = found[-1]["totals"]["events"]
    observed = [dict(zip(("start", "end", "k", "n"), row, strict=False)) for row in net(tmp_path / "root")]
    assert sum(row["n"] for row in observed) == count  # type: ignore[misc]
    # Brute force: numbers from 0 on, ten seconds are 500 of them.
    expected = Counter((n // 500, str(n % 3)) for n in range(count))
    assert sorted(row["n"] for row in observed) == sorted(expected.values())  # type: ignore[type-var]


def test_offsets_of_several_sources(spark: SparkSession, tmp_path: Path) -> None:
    files = write_all(tmp_path / "input", sample(2, 30))
    both = stream(spark, tmp_path / "input").unionByName(rated(spark))
    begun = job().on_spark(both, checkpoint=tmp_path / "root", partitions=2)
    past = history(spark, files[0])
    with pytest.raises(UsageError, match="bootstrap-offsets"):
        begun.bootstrap(past, offsets="-")
    with pytest.raises(UsageError, match="bootstrap-offsets"):
        begun.bootstrap(past, offsets=["5", None])
    manifest = begun.bootstrap(past, offsets=[None, "-"])
    assert manifest.spark is not None
    assert manifest.spark.end == ('{"logOffset":0}', "-")


@pytest.mark.long
def test_what_does_not_fit_the_stream(spark: SparkSession, tmp_path: Path) -> None:
    files = write_all(tmp_path / "input", sample(2, 30))
    past, source = history(spark, *files), stream(spark, tmp_path / "input")
    begun = job().on_spark(source, checkpoint=tmp_path / "root", partitions=2)
    for wrong, code in (
        (source, "bootstrap-stream"),
        (past.withColumn("v", sf.col("v").cast("int")), "bootstrap-columns"),
        (past.drop("k"), "bootstrap-columns"),
        (past.where("v > 0"), "bootstrap-rows"),
        (past.limit(3), "bootstrap-rows"),
        (spark.createDataFrame([], SCHEMA), "bootstrap-offsets"),
        ({}, "streams"),
        ({"another": past}, "streams"),
    ):
        with pytest.raises(UsageError) as caught:
            begun.bootstrap(wrong)
        assert caught.value.code == code
    assert not (tmp_path / "root").exists()
    # What the stream leaves out the history leaves out too.
    filtered = job().on_spark(source.where("v > 0"), checkpoint=tmp_path / "filtered", partitions=2)
    manifest = filtered.bootstrap(past.where("v > 0"))
    assert 0 < manifest.counters["events"] < 60
    twice = {"orders": source, "prices": source}
    again = two_streams().on_spark(twice, checkpoint=tmp_path / "twice", partitions=2)
    both = again.bootstrap({"orders": past, "prices": past}).spark
    assert both is not None
    assert both.end == ('{"logOffset":0}',) * 2


def test_a_root_that_is_used(spark: SparkSession, tmp_path: Path) -> None:
    files = write_all(tmp_path / "input", sample(3, 30))
    begun = job().on_spark(stream(spark, tmp_path / "input"), checkpoint=tmp_path / "root", partitions=2)
    begun.bootstrap(history(spark, *files[:1]))
    before = sorted((tmp_path / "root").rglob("*"))
    with pytest.raises(UsageError, match="bootstrap-used"):
        begun.bootstrap(history(spark, *files[:1]))
    assert sorted((tmp_path / "root").rglob("*")) == before
    (tmp_path / "other" / "spark" / "offsets").mkdir(parents=True)
    other = job().on_spark(stream(spark, tmp_path / "input"), checkpoint=tmp_path / "other")
    with pytest.raises(UsageError, match="bootstrap-used"):
        other.bootstrap(history(spark, *files[:1]))


@pytest.mark.long
def test_files_that_change_or_are_too_old(spark: SparkSession, tmp_path: Path) -> None:
    files = write_all(tmp_path / "input", sample(3, 30))
    root = tmp_path / "root"
    begun = job().on_spark(stream(spark, tmp_path / "input"), checkpoint=root, partitions=2)

    first = str(files[0])
    changing = sf.udf(lambda v: (os.utime(first, (1_000_000_500, 1_000_000_500)), v)[1], "long")
    past = history(spark, *files[:2]).withColumn("v", changing("v"))
    with pytest.raises(ConflictError, match="bootstrap-files-changed"):
        begun.bootstrap(past)
    assert not begun.begun
    # Once it has read a file, Spark passes over those that are a week older.
    os.utime(files[2], (900_000_000, 900_000_000))
    if not REMOTE:  # a client of Spark Connect cannot know the stream's options
        with pytest.raises(UsageError, match="bootstrap-file-age"):
            begun.bootstrap(history(spark, *files[:2]))
    patient = spark.readStream.schema(SCHEMA).option("maxFileAge", "10000d").parquet(str(tmp_path / "input"))
    finish_on = job().on_spark(patient, checkpoint=root, partitions=2)
    finish_on.bootstrap(history(spark, *files[:2]))
    finish(finish_on)
    assert evidence.manifests(root)[-1]["totals"]["events"] == 90


def test_a_file_that_appears_meanwhile_is_read_by_the_stream(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On classic Spark a history has its files from when it was made, on Spark Connect from its first use."""
    files = write_all(tmp_path / "input", sample(2, 30))
    begun = job().on_spark(stream(spark, tmp_path / "input"), checkpoint=tmp_path / "root", partitions=2)
    past, take, taken = history(spark, tmp_path / "input"), FileStamps.take, list[int]()

    def take_and_write(stamps: FileStamps, past: DataFrame, paths: list[str]) -> dict[str, int]:
        found = take(stamps, past, paths)
        taken.append(len(paths))
        write(tmp_path / "input", 5, batch([(50, "a", 1)], 1000))
        return found

    monkeypatch.setattr(FileStamps, "take", take_and_write)
    assert begun.bootstrap(past).counters["events"] == 30 * len(files)
    assert taken == [2]
    finish(begun)
    assert evidence.manifests(tmp_path / "root")[-1]["totals"]["events"] == 61


@pytest.mark.long
def test_panes_that_no_sink_gets(spark: SparkSession, tmp_path: Path) -> None:
    files = write_all(tmp_path / "input", sample(3, 60))
    seen: Notes[int] = Notes(tmp_path / "seen")
    begun = job().on_spark(
        stream(spark, tmp_path / "input"),
        checkpoint=tmp_path / "root",
        sink=lambda _panes, one: seen.append(one.checkpoint),
        partitions=2,
    )
    made = begun.bootstrap(history(spark, *files[:2]), deliver=False)
    assert made.panes
    finish(begun)
    assert seen
    assert min(seen) > made.id


def test_the_verb_makes_a_root_that_spark_goes_on_from(spark: SparkSession, tmp_path: Path) -> None:
    tables = sample(4, 60)
    files = write_all(tmp_path / "input", tables)
    done = tidestate(
        "bootstrap", "tests.helpers.spark_inputs:job", tmp_path / "root", "--confirm", "--partitions", 2,
        *(part for path in files[:3] for part in ("--input", path)),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "180, of which" in done.stdout
    assert "6 rows rejected" in done.stderr
    begun = job().on_spark(stream(spark, tmp_path / "input"), checkpoint=tmp_path / "root")
    assert begun.begun
    finish(begun)
    job().standalone(checkpoint=tmp_path / "alone").run([pa.concat_tables(tables[:3]), *tables[3:]], drain=True)
    assert output(tmp_path / "root", "panes") == output(tmp_path / "alone", "panes")
    assert output(tmp_path / "root", "late") == output(tmp_path / "alone", "late")
    checked = tidestate("verify", tmp_path / "root", "--read-data", "--spark-checkpoint")
    assert checked.returncode == 0, checked.stdout
    kinds = [row["kind"] for row in json_lines(tidestate("list", tmp_path / "root", "--json"))]
    assert kinds == ["fence", "bootstrap", "fence", "batch", "drained"]
