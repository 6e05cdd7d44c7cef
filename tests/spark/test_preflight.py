"""What a start on Spark checks before it writes anything."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.helpers.other_python import other_python
from tests.helpers.spark_inputs import batch, job, sample, write
from tests.helpers.spark_runs import stream
from tests.servers.s3 import s3_endpoint as s3_endpoint
from tests.servers.s3 import s3_root as s3_root
from tidestate.operators.spark import handles
from tidestate.operators.spark.platforms import platform_of
from tidestate.operators.spark.worker_facts import worker_facts
from tidestate.statestore.distribution import version
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import RocksDB
from tidestate.statestore.storage.objects import Objects

pytestmark = pytest.mark.spark


def refused(rows: DataFrame, root: Path) -> UsageError:
    with pytest.raises(UsageError) as caught:
        job().on_spark(rows, checkpoint=root).start()
    assert not root.exists()
    return caught.value


@pytest.fixture
def rows(spark: SparkSession, tmp_path: Path) -> DataFrame:
    write(tmp_path / "input", 0, batch([(1, "a", 1)]))
    return stream(spark, tmp_path / "input")


def test_a_watermark_of_spark_is_refused(rows: DataFrame, tmp_path: Path) -> None:
    error = refused(rows.withWatermark("t", "1 minute"), tmp_path / "cp")
    assert error.code == "watermark-of-spark"


@pytest.mark.classic("environment")
def test_a_spark_without_s3a_is_reported_what_it_lacks(rows: DataFrame, s3_root: str) -> None:
    root = f"{s3_root}/untouched"
    with pytest.raises(UsageError, match="hadoop-aws") as caught:
        job().on_spark(rows, checkpoint=root).start()
    assert caught.value.code == "spark-storage"
    assert "S3AFileSystem not found" in caught.value.context["reason"]
    assert Objects(root).names("") == []


def test_state_of_spark_is_warned_of(spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number, table in enumerate(sample(2, 20)):
        write(tmp_path / "input", number, table)
    once = stream(spark, tmp_path / "input").withWatermark("t", "1 minute").dropDuplicatesWithinWatermark(["k", "t"])
    with caplog.at_level(logging.WARNING, "tidestate"):
        job().on_spark(once, checkpoint=tmp_path / "cp").start().stop()
    (warning,) = [record.getMessage() for record in caplog.records if "state of its own" in record.getMessage()]
    assert "(DeduplicateWithinWatermark)" in warning
    static = spark.createDataFrame([("a",)], "k string")
    caplog.clear()
    with caplog.at_level(logging.WARNING, "tidestate"):
        joined = stream(spark, tmp_path / "input").join(static, "k")
        job().on_spark(joined, checkpoint=tmp_path / "joined").start().stop()
    assert "state of its own" not in caplog.text


@pytest.mark.parametrize(
    ("libraries", "installed", "code", "reason"),
    [
        pytest.param(False, None, "worker-python", "pyarrow", marks=pytest.mark.long),  # one that is not there: below
        (True, None, "worker-package", "No module named 'tidestate'"),
        pytest.param(True, "9.9.9", "worker-version", None, marks=pytest.mark.long),
    ],
)
@pytest.mark.classic("jvm")
def test_workers_that_cannot_run_the_job(
    rows: DataFrame,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    libraries: bool,
    installed: str | None,
    code: str,
    reason: str | None,
) -> None:
    python = other_python(tmp_path / "python", libraries=libraries, installed=installed)
    context = rows.sparkSession.sparkContext
    monkeypatch.setattr(context, "pythonExec", python)
    monkeypatch.setitem(context.environment, "PYTHONSAFEPATH", "1")  # not from the folder that runs the tests
    error = refused(rows, tmp_path / "cp")
    assert error.code == code
    if reason is None:
        assert (error.context["worker"], error.context["driver"]) == (installed, version())
    else:
        assert reason in str(error.context["reason"])


@pytest.mark.classic("jvm")
def test_a_python_of_workers_that_is_not_there(
    rows: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows.sparkSession.sparkContext, "pythonExec", str(tmp_path / "no" / "python"))
    error = refused(rows, tmp_path / "cp")
    assert error.code == "worker-python"
    assert "Cannot run program" in str(error.context["reason"])
    assert f"PYSPARK_PYTHON={sys.executable}" in error.message


@pytest.mark.long
@pytest.mark.classic("jvm")
def test_a_worker_without_a_package_that_the_store_needs(
    rows: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = other_python(tmp_path / "python", libraries=True, installed=version())
    (site,) = (tmp_path / "python").glob("lib/python*/site-packages")
    (site / "rocksdict.py").write_text("raise ModuleNotFoundError(\"No module named 'rocksdict'\")")
    context = rows.sparkSession.sparkContext
    monkeypatch.setattr(context, "pythonExec", python)
    monkeypatch.setitem(context.environment, "PYTHONSAFEPATH", "1")
    with pytest.raises(UsageError, match="rocksdict") as caught:
        job().on_spark(rows, checkpoint=tmp_path / "cp", store=RocksDB()).start()
    assert caught.value.code == "worker-package"
    assert not (tmp_path / "cp").exists()


@pytest.mark.classic("jvm")
def test_a_query_that_another_driver_begins_too(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handles, "BEGUN_PAUSE_S", 0.0)
    errors = [1, 2]

    class Writer:
        def start(self) -> str:
            if errors:
                errors.pop()
                failed = spark._jvm.java.util.concurrent.CompletableFuture()
                failed.completeExceptionally(spark._jvm.java.util.ConcurrentModificationException("metadata"))
                failed.join()
            return "the query"

    assert handles.started(Writer()) == "the query"
    assert errors == []


def test_what_runs_on_workers_like_the_driver(spark: SparkSession) -> None:
    (found,) = worker_facts(platform_of(spark))
    assert (found.python, found.version, found.failure) == (sys.version.split()[0], version(), "")
