"""A job goes on where another runner has stopped: on Spark, standalone, and back, over one folder of files.

The API is that of the session; from one API to the other: tests/connect/test_goes_on.py.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as run_settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import tidestate as ts
from tests.helpers.apis import raises_foreign
from tests.helpers.arrow_rows import arrow_of
from tests.helpers.command import tidestate_here
from tests.helpers.every_store import STORES, store_config
from tests.helpers.forked import Forked
from tests.helpers.process import LONG, longer, some
from tests.helpers.requests import asker, control_files, until
from tests.helpers.spark_inputs import SCHEMA, job, sample, two_streams, write
from tests.helpers.spark_runs import output, run, same, stream
from tests.twins.on_runners import Job, check, jobs
from tidestate.recovery.inspect.verify import verify
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest
from tidestate.statestore.spec.store import StoreName

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::UserWarning")]
TABLES = sample(6, 30)
TWIN_SCHEMA = "time timestamp, k string, j long, v long, x double"
RUNS = run_settings(
    max_examples=100 if LONG else 2, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)


class DiedError(Exception):
    """Stands for the end of the process."""


def head_of(root: Path) -> Manifest:
    head = Checkpoint.open(root).head()
    assert head is not None
    return head.manifest


def run_standalone(folder: Path, root: Path, *, drain: bool = False) -> Manifest:
    """The job of `spark_inputs` over the files that are there and were not read."""
    files = ts.ParquetFolder(folder, files_per_batch=1, schema=SCHEMA)
    job().standalone(checkpoint=root, partitions=2).run(files, drain=drain)
    return head_of(root)


def feed(folder: Path, first: int, end: int) -> None:
    for number in range(first, end):
        write(folder, number, TABLES[number])


def check_exact(root: Path, alone: Path) -> None:
    """The output is that of one run over the same batches, and all that Spark reads agrees with it."""
    job().standalone(checkpoint=alone, partitions=2).run(TABLES, drain=True)
    for kind in ("panes", "late"):
        assert output(root, kind) == output(alone, kind)
    assert head_of(root).totals["events"] == sum(table.num_rows for table in TABLES)


def test_each_runner_goes_on_where_the_other_stopped(spark: SparkSession, tmp_path: Path) -> None:
    folder, root = tmp_path / "input", tmp_path / "root"
    feed(folder, 0, 1)
    begun = run(spark, folder, root, drain=False)
    feed(folder, 1, 3)
    alone = run_standalone(folder, root)
    assert begun.spark is not None
    assert alone.spark is not None
    assert (alone.spark.query_id, alone.spark.batch_id) == (begun.spark.query_id, 2)
    assert alone.spark.end == ('{"logOffset":2}',)
    assert job().standalone(checkpoint=root).position() == ['{"logOffset":2}']
    feed(folder, 3, 4)
    back = run(spark, folder, root, drain=False)
    assert back.spark is not None
    assert (back.spark.query_id, back.spark.batch_id) == (begun.spark.query_id, 3)
    # Where there is nothing new, a run leaves all as it is but for its fence.
    assert run_standalone(folder, root).spark == back.spark
    feed(folder, 4, 6)
    run(spark, folder, root, drain=True)
    check_exact(root, tmp_path / "alone")
    assert verify(Checkpoint.open(root), spark=True).worst is None


def test_a_root_that_was_begun_standalone_goes_on_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    folder, root = tmp_path / "an input, ünd more%20", tmp_path / "root"
    feed(folder, 0, 2)
    run_standalone(folder, root)
    feed(folder, 2, 4)
    run(spark, folder, root, drain=False)
    feed(folder, 4, 6)
    run_standalone(folder, root, drain=True)
    run(spark, folder, tmp_path / "on spark", drain=True)
    same(root, tmp_path / "on spark")


@pytest.mark.parametrize(("files", "more"), some([(2, 1), (1, 1), (1, 0)], 1))
def test_a_batch_that_spark_had_planned_is_taken_by_the_other(
    spark: SparkSession, tmp_path: Path, files: int, more: int
) -> None:
    """Spark dies with a planned batch; the standalone run takes its file, alone or with the next one."""
    folder, root = tmp_path / "input", tmp_path / "root"

    def dies(moment: str, checkpoint_id: int) -> None:
        if (moment, checkpoint_id) == ("before-manifest", 4):
            raise DiedError

    feed(folder, 0, 3)
    query = job().on_spark(stream(spark, folder), checkpoint=root, partitions=2)
    with raises_foreign(DiedError):
        query.with_hook(dies).start().processAllAvailable()
    assert (root / "spark/offsets/2").exists()
    assert not (root / "spark/commits/2").exists()
    feed(folder, 3, 3 + more)
    job().standalone(checkpoint=root).run(ts.ParquetFolder(folder, files_per_batch=files, schema=SCHEMA))
    position = head_of(root).spark
    assert position is not None
    assert position.batch_id == (3 if files < 1 + more else 2)
    assert position.read["0"].files == 3 + more
    feed(folder, 3 + more, 6)
    last = run(spark, folder, root, drain=True)
    assert last.totals["events"] == sum(table.num_rows for table in TABLES)
    if files == 1:
        check_exact(root, tmp_path / "alone")
    # A plan that is the same batch stays, so Spark's checkpoint was not written again.
    assert (root / "spark-replaced").exists() == (more > 0)
    assert verify(Checkpoint.open(root), spark=True).worst is None


@pytest.mark.parametrize("moment", ["after-manifest", *longer("before-manifest")])
def test_killed_standalone_and_on_spark_again(spark: SparkSession, tmp_path: Path, moment: str) -> None:
    folder, root = tmp_path / "input", tmp_path / "root"
    feed(folder, 0, 1)
    run(spark, folder, root, drain=False)
    feed(folder, 1, 4)
    died_at = head_of(root).id + 3  # a fence, a batch, and the batch in which it dies
    child = Forked("tests.children.parquet_folder", folder, root, f"{moment}:{died_at}")
    child.communicate()
    assert child.returncode == -signal.SIGKILL
    assert head_of(root).id == died_at - (moment == "before-manifest")
    feed(folder, 4, 6)
    run(spark, folder, root, drain=True)
    check_exact(root, tmp_path / "alone")
    assert verify(Checkpoint.open(root), spark=True).worst is None


def test_a_running_query_is_taken_over_from(spark: SparkSession, tmp_path: Path) -> None:
    folder, root = tmp_path / "input", tmp_path / "root"
    feed(folder, 0, 2)
    query = job().on_spark(stream(spark, folder), checkpoint=root, partitions=2).start()
    query.processAllAvailable()
    with pytest.raises(ts.UsageError, match="running"):
        job().standalone(checkpoint=root, policy=ts.Policy(second="refuse")).run(
            ts.ParquetFolder(folder, schema=SCHEMA)
        )
    feed(tmp_path / "later", 2, 3)
    run_standalone(folder, root)
    (tmp_path / "later/0002.parquet").rename(folder / "0002.parquet")
    with pytest.raises(ts.FencedError):
        query.awaitTermination(60)
    assert run_standalone(folder, root).totals["events"] == 90
    feed(folder, 3, 6)
    run(spark, folder, root, drain=True)
    check_exact(root, tmp_path / "alone")


def test_verbs_know_a_root_of_both(spark: SparkSession, tmp_path: Path) -> None:
    folder, root = tmp_path / "input", tmp_path / "root"
    feed(folder, 0, 1)
    run(spark, folder, root, drain=False)
    feed(folder, 1, 3)
    newest = run_standalone(folder, root).id
    assert "spark batch" in tidestate_here("show", root).stdout
    history = tidestate_here("history", root, "--window", "2024-01-01T00:00:05", "--key", "k=a")
    assert (history.returncode, history.stderr) == (0, "")
    assert verify(Checkpoint.open(root)).worst is None
    stops = ts.Policy(spark="stop")
    with pytest.raises(ts.IncompatibleError, match="spark-log-differs"):
        run(spark, folder, root, drain=False, policy=stops)
    ts.Root(root).repair(resync_spark=True).execute()
    feed(folder, 3, 4)
    assert run(spark, folder, root, drain=False, policy=stops).totals["events"] == 120
    feed(folder, 4, 5)
    run_standalone(folder, root)
    # Back to the first batch of the standalone run; what followed is read again, by both.
    ts.Root(root).rewind(newest - 1).execute()
    (folder / "0002.parquet").rename(tmp_path / "later")
    run(spark, folder, root, drain=False)
    (tmp_path / "later").rename(folder / "0002.parquet")
    assert run_standalone(folder, root).totals["events"] == 150
    assert verify(Checkpoint.open(root)).worst is None


def test_a_run_without_spark_is_stopped_from_elsewhere_and_spark_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    folder, root = tmp_path / "input", tmp_path / "root"
    feed(folder, 0, 4)
    running = job().standalone(checkpoint=root).stream(ts.ParquetFolder(folder, files_per_batch=1, schema=SCHEMA))
    next(running)
    with ThreadPoolExecutor(1) as elsewhere:
        stopped = elsewhere.submit(ts.Root(root).stop().execute)
        until(lambda: any("taken" in name for name in control_files(root)))
        list(running)  # what it takes until it knows
        stopped.result()
    ended = asker(root).end(head_of(root).epoch)
    assert ended is not None
    assert ended.why == "stopped"
    feed(folder, 4, 6)
    run(spark, folder, root, drain=True)
    check_exact(root, tmp_path / "alone")


def test_the_files_of_a_folder_are_those_that_spark_records(spark: SparkSession, tmp_path: Path) -> None:
    """Names, times and rows, in a folder with all that Spark leaves out, or lists without reading it."""
    folder = tmp_path / "a folder, ünd more%20"
    names = (
        "b c.parquet",
        "ü#1.txt",
        "k=v",
        "_k=v",
        "no suffix",
        "a+&%25;'.parquet",
        "_hidden",
        ".hidden",
        "d._COPYING_",
        "_metadata",
        "_metadata=1",
        "_metadata.parquet",
        "_common_metadata",
    )
    for number, name in enumerate(names):
        write(folder, number % len(TABLES), TABLES[number % len(TABLES)])
        (folder / f"{number % len(TABLES):04d}.parquet").rename(folder / name)
    (folder / "empty.parquet").touch()
    write(folder / "below", 0, TABLES[0])
    os.utime(folder / "empty.parquet", ns=(1_000_000_009_123_456_789,) * 2)
    frame = spark.readStream.schema(SCHEMA).parquet(str(folder))
    query = job().on_spark(frame, checkpoint=tmp_path / "root", partitions=2).start()
    query.processAllAvailable()
    query.stop()
    position = head_of(tmp_path / "root").spark
    assert position is not None
    ((offsets, rows),) = ts.ParquetFolder(folder, schema=SCHEMA).seek(None)
    assert sorted(offsets.files[0]) == list(position.files["0"])
    assert len(offsets.files[0]) == 11
    of_spark = spark.read.schema(SCHEMA).parquet(str(folder)).count()
    assert head_of(tmp_path / "root").totals["events"] == len(rows) == of_spark == 210
    # A batch of files that Spark does not read, whoever reads the input.
    write(folder, 99, TABLES[0])
    (folder / "0099.parquet").rename(folder / "_metadata_2.parquet")
    query = job().on_spark(frame, checkpoint=tmp_path / "root", partitions=2).start()
    query.processAllAvailable()
    query.stop()
    assert head_of(tmp_path / "root").totals["events"] == 210
    position = head_of(tmp_path / "root").spark
    assert position is not None
    assert [file.rpartition("/")[2] for file in position.files["0"]] == ["_metadata_2.parquet 1000000099000"]


def test_columns_are_read_as_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Names in another case at any depth, and types that are not those which Spark writes."""
    struct = pa.struct([("X", pa.int64()), ("Y", pa.list_(pa.struct([("Z", pa.string()), ("no", pa.int64())])))])
    values = [{"X": 1, "Y": [{"Z": "q", "no": 0}, None]}, None]
    file = {
        "S": (values, struct, "s struct<y:array<struct<z:string,w:int>>,x:bigint>"),
        "M": ([[("a", {"X": 1, "Y": None})], None], pa.map_(pa.string(), struct), "m map<string,struct<x:bigint>>"),
        "L": ([[1, None], []], pa.large_list(pa.int64()), "l array<bigint>"),
        "N": ([TABLES[0]["t"][0].as_py().replace(tzinfo=None), None], pa.timestamp("ms"), "n timestamp"),
        "B": ([b"b", None], pa.binary(), "b string"),
        "U": ([2**32 - 1, None], pa.uint32(), "u bigint"),
        "D": ([Decimal("1.25"), None], pa.decimal128(8, 2), "d decimal(8,2)"),
    }
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({name: pa.array(v, kind) for name, (v, kind, _) in file.items()}), tmp_path / "in/a")
    ddl = ", ".join(column for _, _, column in file.values()) + ", missing string"
    frame = spark.read.schema(ddl).parquet(str(tmp_path / "in"))
    expected = arrow_of(frame)
    ((_, rows),) = ts.ParquetFolder(tmp_path / "in", schema=expected.schema).seek(None)
    assert isinstance(rows, pa.Table)
    assert rows.to_pylist() == expected.to_pylist()
    assert rows.num_rows == 2


def test_streams_have_their_sources_in_the_order_of_the_job(spark: SparkSession, tmp_path: Path) -> None:
    described, sides = two_streams(), {"prices": tmp_path / "prices", "orders": tmp_path / "orders"}
    tables = {name: sample(4, 30, seed=seed) for seed, name in enumerate(sides)}

    def feed_sides(first: int, end: int) -> None:
        for name, folder in sides.items():
            for number in range(first, end):
                write(folder, number, tables[name][number])

    def on_spark() -> None:
        frames = {name: stream(spark, folder) for name, folder in sides.items()}
        query = described.on_spark(frames, checkpoint=tmp_path / "root", partitions=2).start()
        query.processAllAvailable()
        query.stop()

    def on_standalone(*, drain: bool) -> None:
        folders = ts.ParquetFolder(sides, files_per_batch=1)
        described.standalone(checkpoint=tmp_path / "root").run(folders, drain=drain)

    feed_sides(0, 1)
    on_spark()
    feed_sides(1, 2)
    on_standalone(drain=False)
    write(sides["orders"], 2, tables["orders"][2])  # nothing of the other stream in this batch
    on_spark()
    write(sides["prices"], 2, tables["prices"][2])
    feed_sides(3, 4)
    on_standalone(drain=True)
    position = head_of(tmp_path / "root").spark
    assert position is not None
    assert position.files["0"] == ()
    assert [path.split("/")[-2] for path in position.files["1"]] == ["prices"]
    cuts = [{name: of_name[number] for name, of_name in tables.items()} for number in (0, 1)]
    cuts += [{"orders": tables["orders"][2], "prices": tables["prices"][2].slice(0, 0)}]
    cuts += [{"orders": tables["orders"][3], "prices": tables["prices"][2]}]
    cuts += [{"orders": tables["orders"][3].slice(0, 0), "prices": tables["prices"][3]}]
    described.standalone(checkpoint=tmp_path / "alone").run(cuts, drain=True)
    assert output(tmp_path / "root", "panes") == output(tmp_path / "alone", "panes")
    for operator in ("counted", "met"):
        late = [output(tmp_path / name, "late", operator) for name in ("root", "alone")]
        assert late[0] == late[1] != {}


@RUNS
@given(job=jobs(), store=st.sampled_from(STORES), begins_on_spark=st.booleans())
def test_random_jobs_that_change_the_runner_equal_the_twins(
    spark: SparkSession, job: Job, store: StoreName, begins_on_spark: bool
) -> None:
    def run(job: Job, batches: Sequence[pa.Table], folder: Path) -> None:
        schema = TWIN_SCHEMA if job.known == "not" else f"{TWIN_SCHEMA}, at long"
        config, begin, on_spark = store_config(store, folder, (2, 1)), 0, begins_on_spark
        for end in [*sorted(job.restarts), len(batches)]:
            for number in range(begin, end):
                write(folder / "input", number, batches[number])
            settings = {"checkpoint": folder / "root", "store": config, "partitions": job.partitions}
            if on_spark:
                frame = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
                query = job.described.on_spark(frame.parquet(str(folder / "input")), **settings).start()
                query.processAllAvailable()
                query.stop(drain=end == len(batches))
            else:
                files = ts.ParquetFolder(folder / "input", files_per_batch=1, schema=schema)
                job.described.standalone(**settings).run(files, drain=end == len(batches))
            begin, on_spark = end, not on_spark

    check(job, run)


class Numbers(ts.SparkInput):
    """What ``rate-micro-batch`` of Spark has, up to a number: its offsets, and its rows for the job."""

    rows_per_batch = 50

    def __init__(self, end: int) -> None:
        self.end = end

    schema = TABLES[0].schema
    sources = 1

    def seek(self, position: ts.SparkOffsets | None) -> Iterator[tuple[ts.SparkOffsets, pa.Table]]:
        offset = {"offset": 0, "timestamp": 0} if position is None else json.loads(position.ends[0])
        for first in range(offset["offset"], self.end, self.rows_per_batch):
            after = {"offset": first + self.rows_per_batch, "timestamp": offset["timestamp"] + 1000}
            offset = after
            numbers = pa.array(range(first, after["offset"]), pa.int64())
            times = pa.array([number * 20_000 for number in numbers.to_pylist()], TABLES[0]["t"].type)
            keys = pa.array([str(number % 3) for number in numbers.to_pylist()])
            table = pa.table([times, keys, numbers, numbers], schema=TABLES[0].schema)
            yield ts.SparkOffsets((json.dumps(after, separators=(",", ":")),)), table


def test_input_of_ones_own_goes_on_from_the_offsets_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "root"

    def on_spark(batches: int) -> int:
        """Until so many batches are done: the offset where it stopped."""
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", Numbers.rows_per_batch)
        frame = source.option("startTimestamp", 0).option("advanceMillisPerBatch", 1000).load()
        rows = "timestamp_micros(value * 20000) as t", "string(value % 3) as k", "value as v", "value as id"
        begun = job().on_spark(frame.selectExpr(*rows), checkpoint=root, partitions=2)
        query = begun.trigger(processingTime="0 seconds").start()
        while query.manifest.spark is None or query.manifest.spark.batch_id < batches - 1:
            query.awaitTermination(0.1)
        query.stop()
        return offset_of(root)

    reached = on_spark(2)
    job().standalone(checkpoint=root).run(Numbers(reached + 100))
    assert offset_of(root) == reached + 100
    position = head_of(root).spark
    assert position is not None
    reached = on_spark(position.batch_id + 3)
    assert reached >= offset_of(root)
    job().standalone(checkpoint=root).run(Numbers(reached + 50), drain=True)
    batches = [table for _, table in Numbers(offset_of(root)).seek(None)]
    assert len(batches) >= 7
    job().standalone(checkpoint=tmp_path / "alone", partitions=2).run(batches, drain=True)
    for kind in ("panes", "late"):
        assert output(root, kind) == output(tmp_path / "alone", kind)


def offset_of(root: Path) -> int:
    position = head_of(root).spark
    assert position is not None
    return int(json.loads(position.end[0])["offset"])
