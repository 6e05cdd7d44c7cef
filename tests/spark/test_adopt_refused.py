"""Queries of Spark's own that no job can go on with: refused with the reason, before anything is written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.state import GroupState
from typer.testing import CliRunner

import tidestate as ts
from tests.helpers.command import tidestate
from tests.helpers.native_jobs import JOBS, windows_of
from tests.helpers.other_python import other_python
from tests.helpers.process import LONG, WIDE
from tests.helpers.spark_inputs import SCHEMA, batch, write
from tests.helpers.spark_runs import stream
from tidestate import OperatorStream, agg, trigger
from tidestate.operators.cli.adopt import adopt_command
from tidestate.operators.local.history_files import schema_of
from tidestate.operators.spark import state_reader
from tidestate.operators.spark.adopt import execute_adoption, plan_adoption
from tidestate.operators.spark.compat import SPARK_4
from tidestate.statestore.errors import ConflictError, TidestateError

pytestmark = [
    pytest.mark.spark,
    pytest.mark.classic("adoption"),
    pytest.mark.skipif(not SPARK_4, reason="Spark reads its state from 4.0 on"),
]

COLUMNS = schema_of(SCHEMA)


def _stateful(_key: tuple[str], groups: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    state.update((sum(map(len, groups)),))
    yield pd.DataFrame({"n": [state.get[0]]})


def _own_state(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").applyInPandasWithState(_stateful, "n long", "n long", "append", "NoTimeout")


def _windows(rows: DataFrame, *columns: Any) -> DataFrame:
    return rows.groupBy(sf.window("t", "10 seconds"), "k").agg(*columns)


def _joined(rows: DataFrame) -> DataFrame:
    left, right = (rows.select(sf.col("t").alias(f"t{n}"), sf.col("k").alias(f"k{n}")) for n in "12")
    return left.join(right, sf.expr("k1 = k2 and t2 between t1 and t1 + interval 5 seconds"))


QUERIES: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "complete": (lambda rows: _windows(rows, sf.count("*").alias("n")), "complete"),
    "counted": (lambda rows: _windows(rows, sf.count("*").alias("n"), sf.sum("v").alias("s")), "append"),
    "summed": (lambda rows: _windows(rows, sf.sum("v").alias("s")), "append"),
    "same": (lambda rows: _windows(rows, sf.max("v").alias("x"), sf.max("id").alias("y")), "append"),
    "sketched": (lambda rows: _windows(rows, sf.approx_count_distinct("v").alias("d")), "append"),
    "grouped": (lambda rows: rows.groupBy("k").count(), "update"),
    "null": (lambda rows: _windows(rows.withColumn("k", sf.lit(None).cast("string")), sf.count("*")), "append"),
    "sessions": (
        lambda rows: rows.groupBy(sf.session_window("t", "4 seconds"), "k").agg(sf.count("*").alias("n")),
        "append",
    ),
    "distinct": (lambda rows: rows.dropDuplicates(["id", "t"]), "append"),
    "twice": (
        lambda rows: (
            _windows(rows, sf.count("*").alias("n")).groupBy(sf.window(sf.window_time("window"), "1 minute")).count()
        ),
        "append",
    ),
    "joined": (_joined, "append"),
    "own": (_own_state, "append"),
    "unmarked": (
        lambda rows: (
            rows.select((sf.col("t") + sf.expr("interval 0 seconds")).alias("t"))
            .groupBy(sf.window("t", "10 seconds"))
            .agg(sf.count("*").alias("n"))
        ),
        "update",
    ),
    "stateless": (lambda rows: rows.select("k"), "append"),
}


OF_THE_LONG_FORM = {"sketched", "grouped", "distinct", "own", "unmarked", "stateless", "summed"}
"""Queries of which every run has another with the same code, or with the same reason."""


@pytest.fixture(scope="module")
def folder(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every query after two batches, in ``native``; the watermark has passed the end of the first window."""
    folder = tmp_path_factory.mktemp("refused")
    write(folder / "input", 0, batch([(1, "a", 1), (30, "b", 2)], 0))
    write(folder / "input", 1, batch([(31, "a", 3), (35, "b", 4)], 2))
    running, partitions = [], spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", 1)
    for name in QUERIES.keys() - (set() if LONG or WIDE else OF_THE_LONG_FORM):
        query, mode = QUERIES[name]
        rows = stream(spark, folder / "input").withWatermark("t", "5 seconds")
        writer = query(rows).writeStream.outputMode(mode).foreachBatch(lambda rows, _: rows.collect())
        writer = writer.option("checkpointLocation", str(folder / "native" / name))
        running.append(writer.trigger(availableNow=True).start())
    spark.conf.set("spark.sql.shuffle.partitions", partitions)
    for one in running:
        one.awaitTermination()
    return folder


def counting(**aggregates: Any) -> OperatorStream:
    return windows_of(**(aggregates or {"n": agg.count()}))


REFUSED: dict[str, tuple[str, Callable[[], OperatorStream], str, str]] = {
    "mode complete": ("complete", counting, "adopt-mode", "output mode complete"),
    "function of the user": ("own", counting, "adopt-operator", "applyInPandasWithState|flatMapGroups"),
    "another aggregate": ("sketched", counting, "adopt-aggregate", "no more and no fewer"),
    "aggregate of the job": (
        "counted",
        lambda: counting(d=agg.count_distinct_approx("v")),
        "adopt-aggregate",
        "stores it differently",
    ),
    "fewer aggregates": ("counted", counting, "adopt-aggregate", "0 count int64"),
    "which of two": ("same", lambda: counting(x=agg.max("v"), y=agg.max("id")), "adopt-ambiguous", "buffers="),
    "two operators": ("twice", counting, "adopt-operators", "several stateful operators"),
    "join": ("joined", counting, "adopt-operator", "symmetricHashJoin"),
    "no window": ("grouped", counting, "adopt-operator", "stateStoreSave"),
    "plain duplicates": ("distinct", JOBS["distinct"], "adopt-operator", "dedupe"),
    "no state": ("stateless", counting, "adopt-operators", "no state"),
    "null keys": ("null", counting, "adopt-null-key", "rows=1"),
    "no checkpoint": ("nothing", counting, "adopt-no-checkpoint", "checkpointLocation"),
    "other kind": ("sessions", counting, "adopt-job", "session"),
    "gap": ("sessions", lambda: windows_of(ts.sessions("3 seconds"), n=agg.count()), "adopt-window", "gap"),
    "size": (
        "counted",
        lambda: windows_of(ts.tumbling("5 seconds"), n=agg.count(), s=agg.sum("v")),
        "adopt-window",
        "size",
    ),
    "slide": (
        "counted",
        lambda: windows_of(ts.sliding("20 seconds", "10 seconds"), n=agg.count(), s=agg.sum("v")),
        "adopt-window",
        "slide",
    ),
    "delay": (
        "counted",
        lambda: windows_of(delay="6 seconds", n=agg.count(), s=agg.sum("v")),
        "adopt-watermark",
        "delay",
    ),
    "key": ("counted", lambda: windows_of(key="id", n=agg.count(), s=agg.sum("v")), "adopt-key", "k string"),
    "no watermark": ("unmarked", lambda: windows_of(key=None), "adopt-watermark", "no watermark"),
    "window of all time": (
        "counted",
        lambda: windows_of(ts.global_window(), n=agg.count(), s=agg.sum("v")),
        "adopt-job",
        "tumbling",
    ),
    "gaps of events": ("sessions", lambda: windows_of(ts.sessions(gap_column="v")), "adopt-job", "session"),
    "trigger that counts": (
        "summed",
        lambda: windows_of(s=agg.sum("v")).trigger(early=trigger.after_count(3)),
        "adopt-job",
        "counts events",
    ),
    "single events": (
        "counted",
        lambda: windows_of(n=agg.count(), s=agg.sum("v")).trigger(when=trigger.repeatedly(trigger.after_count(3))),
        "adopt-job",
        "single events",
    ),
    "rule": (
        "counted",
        lambda: windows_of(rule="event", n=agg.count(), s=agg.sum("v")),
        "adopt-job",
        'rule="window"',
    ),
    "chain": (
        "counted",
        lambda: counting().group_by("k").window(ts.tumbling("1 minute")).aggregate(m=agg.count()).named("second"),
        "adopt-job",
        "one operator",
    ),
    "mean": ("counted", lambda: counting(m=agg.mean("v")), "adopt-aggregate", "mean"),
    "identities": ("counted", JOBS["distinct"], "adopt-job", "group_by"),
}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[pytest.mark.long] if query in OF_THE_LONG_FORM else [])
        for case, (query, *_) in REFUSED.items()
    ],
)
def test_refused_before_anything_is_written(spark: SparkSession, folder: Path, tmp_path: Path, case: str) -> None:
    name, job, code, reason = REFUSED[case]
    with pytest.raises(TidestateError, match=reason) as raised:
        plan_adoption(spark, str(folder / "native" / name), str(tmp_path / "root"), job().graph.description, COLUMNS)
    assert raised.value.code == code
    assert list(tmp_path.iterdir()) == []


def test_which_of_two_is_what_the_user_says(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    job = counting(x=agg.max("v"), y=agg.max("id"))
    location, root = str(folder / "native" / "same"), str(tmp_path / "root")
    found = plan_adoption(spark, location, root, job.graph.description, COLUMNS, buffers={"y": 1})
    assert sorted(zip(*(found.taken.rows[name].to_pylist() for name in "xy"), strict=True)) == [(3, 2), (4, 3)]


def test_root_that_exists_and_spark_without_a_reader(
    spark: SparkSession, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location, root, job = (
        str(folder / "native" / "counted"),
        tmp_path / "root",
        counting(n=agg.count(), s=agg.sum("v")),
    )
    for place in (location, f"{location}/"):
        with pytest.raises(TidestateError, match="adopt-root"):
            plan_adoption(spark, location, place, job.graph.description, COLUMNS)
    found = plan_adoption(spark, location, str(root), job.graph.description, COLUMNS)
    execute_adoption(found)
    files = sorted(root.rglob("*"))
    for attempt in (
        lambda: plan_adoption(spark, location, str(root), job.graph.description, COLUMNS),
        lambda: execute_adoption(found),
    ):
        with pytest.raises(TidestateError, match="bootstrap-used"):
            attempt()
    assert sorted(root.rglob("*")) == files
    monkeypatch.setattr(state_reader, "SPARK_4", False)
    with pytest.raises(TidestateError, match="adopt-spark"):
        plan_adoption(spark, location, str(tmp_path / "other"), job.graph.description, COLUMNS)
    assert not (tmp_path / "other").exists()


def test_query_that_goes_on_meanwhile(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    copy, job = tmp_path / "copy", counting(n=agg.count(), s=agg.sum("v"))
    shutil.copytree(folder / "native" / "counted", copy)
    found = plan_adoption(spark, str(copy), str(tmp_path / "root"), job.graph.description, COLUMNS)
    (copy / "offsets" / "9").write_bytes((copy / "offsets" / "1").read_bytes())
    with pytest.raises(ConflictError, match="adopt-moved"):
        execute_adoption(found)
    assert not (tmp_path / "root").exists()


def test_checkpoint_of_an_older_spark_does_not_name_its_operators(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    jobs = {
        "counted": (counting(n=agg.count(), s=agg.sum("v")), 2),
        "sessions": (windows_of(ts.sessions("4 seconds")), 3),
    }
    for name, (job, rows) in jobs.items():
        copy = tmp_path / name
        shutil.copytree(folder / "native" / name, copy)
        shutil.rmtree(copy / "state" / "0" / "_metadata")
        found = plan_adoption(spark, str(copy), str(tmp_path / "root"), job.graph.description, COLUMNS)
        assert found.taken.rows.num_rows == rows


def test_files_that_spark_would_not_read_again_and_state_that_it_cannot_read(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    job = counting(n=agg.count(), s=agg.sum("v"))
    for name in ("old", "damaged"):
        shutil.copytree(folder / "native" / "counted", tmp_path / name)
    entry = {"path": "file:///in/old.parquet", "timestamp": 1_000_000_000_000 - 8 * 86_400_000, "batchId": 2}
    (tmp_path / "old" / "sources" / "0" / "2").write_text(f"v1\n{json.dumps(entry)}")
    (tmp_path / "damaged" / "state" / "0" / "0" / "2.delta").unlink()
    for name, code in (("old", "adopt-file-age"), ("damaged", "adopt-unreadable")):
        with pytest.raises(TidestateError, match=code):
            plan_adoption(spark, str(tmp_path / name), str(tmp_path / "root"), job.graph.description, COLUMNS)
    assert not (tmp_path / "root").exists()


def test_command_asks_for_columns_that_no_file_names(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "native" / "counted", tmp_path / "copy")
    for path in (tmp_path / "copy" / "sources" / "0").iterdir():
        text = path.read_bytes()
        path.unlink()
        if not path.name.startswith("."):
            path.write_bytes(text.replace(b".parquet", b".json"))
    given = [str(tmp_path / "copy"), str(tmp_path / "root"), "tests.helpers.native_jobs:sliding_job"]
    found = CliRunner().invoke(adopt_command, given).exception
    assert isinstance(found, TidestateError)
    assert found.code == "adopt-schema"
    found = CliRunner().invoke(adopt_command, [*given, "--schema", SCHEMA]).exception
    assert isinstance(found, TidestateError)
    assert found.code == "adopt-aggregate"
    assert not (tmp_path / "root").exists()


def test_command_without_a_java(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    given = [folder / "native" / "counted", tmp_path / "root", "tests.helpers.native_jobs:sliding_job"]
    done = tidestate("adopt", *given)
    assert done.returncode == 5
    assert "adopt-spark" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_command_needs_no_python_of_workers(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that it asks of Spark is done by Java, so a Python without pyarrow is no obstacle."""
    monkeypatch.setenv("PYSPARK_PYTHON", other_python(tmp_path / "python"))
    given = [folder / "native" / "counted", tmp_path / "root", "tests.helpers.native_jobs:counting_job"]
    done = tidestate("adopt", *given, "--confirm")
    assert (done.returncode, (tmp_path / "root").exists()) == (0, True), done.stderr
