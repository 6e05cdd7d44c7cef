"""Spark reads a root by options given in Python alone: the environment has no credentials, and Spark shows none."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import tidestate as ts
from tests.helpers.worked_example import STREAM, example
from tests.servers.s3 import (  # noqa: F401  (fixtures)
    make_bucket,
    options_of,
    s3_elsewhere,
    s3_endpoint,
    without_credentials,
)
from tidestate.operators.inspect.on_spark import register
from tidestate.operators.spark.compat import SPARK_4
from tidestate.statestore.errors import UsageError
from tidestate.statestore.storage import options as storage_options

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.usefixtures("without_credentials")]
OF_SPARK_4 = pytest.mark.skipif(not SPARK_4, reason="Spark has had sources in Python since 4.0")
SECRETS = ("Of-Nobody-aG3x/+Q", "Nor-Of-Her-bH4y/+R")


@pytest.fixture
def roots(s3_endpoint: str, s3_elsewhere: str) -> dict[str, dict[str, Any]]:  # noqa: F811
    """Two roots in a bucket of one name, each on a server of its own, with the options for it."""
    bucket, found = f"read-{uuid.uuid4().hex[:12]}", dict[str, dict[str, Any]]()
    for number, endpoint in enumerate((s3_endpoint, s3_elsewhere)):
        make_bucket(endpoint, bucket)
        root, options = f"s3://{bucket}/root-{number}", options_of(endpoint, SECRETS[number])
        example("retracting").standalone(checkpoint=root, storage_options=options).run(STREAM[: 5 + number])
        found[root] = options
    # What the format and the tasks get is what goes along with them.
    storage_options._given.clear()
    return found


def shown(frame: DataFrame, capsys: pytest.CaptureFixture[str]) -> str:
    """All that Spark says of a frame."""
    frame.explain("extended")
    frame.explain("formatted")
    frame.printSchema()
    return capsys.readouterr().out + repr(frame) + frame.schema.json()


def quoted(folder: Path) -> list[str]:
    """The files below a folder that have a secret."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [str(path) for path in files if any(secret.encode() in path.read_bytes() for secret in SECRETS)]


@OF_SPARK_4
def test_the_format_reads_each_root_by_its_own(
    spark: SparkSession,
    roots: dict[str, dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("botocore").setLevel(logging.INFO)
    register(spark, storage_options=roots)
    expected = [ts.Root(root, storage_options=given).panes().to_table().num_rows for root, given in roots.items()]
    storage_options._given.clear()
    said = ""
    for root, rows in zip(roots, expected, strict=True):
        frame = spark.read.format("tidestate").load(root)
        assert frame.count() == rows > 0
        said += shown(frame, capsys)
    spark.sql(f"CREATE OR REPLACE TEMP VIEW given USING tidestate OPTIONS (path '{root}', kind 'state')")
    assert spark.sql("SELECT * FROM given").count() > 0
    said += shown(spark.sql("SELECT * FROM given"), capsys)
    said += str([tuple(row) for row in spark.sql("DESCRIBE EXTENDED given").collect()])
    stream = spark.readStream.format("tidestate").option("retractions", "keep").load(root)
    writer = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(tmp_path / "panes"))
    query.awaitTermination()
    assert spark.read.parquet(str(tmp_path / "panes")).count() == rows
    said += str(query.lastProgress) + str(query.recentProgress) + caplog.text
    assert not any(secret in said for secret in SECRETS)
    assert quoted(tmp_path) == []


@OF_SPARK_4
def test_options_of_storage_are_no_options_of_a_reader(spark: SparkSession, roots: dict[str, dict[str, Any]]) -> None:
    register(spark, storage_options=roots)
    root = next(iter(roots))
    with pytest.raises(Exception, match="storage-options") as caught:
        spark.read.format("tidestate").option("storage_options", str(roots[root])).load(root).collect()
    assert not any(secret in str(caught.value) for secret in SECRETS)
    with pytest.raises(UsageError) as refused:
        register(spark, storage_options={"/data/root": {"secret": SECRETS[0]}})
    assert refused.value.code == "storage-options"
    # Later registrations replace earlier ones: nothing is left behind in the session.
    register(spark)
    with pytest.raises(Exception, match="credentials"):
        spark.read.format("tidestate").load(root).collect()


def test_frames_of_a_root_have_its_options_along(
    spark: SparkSession, roots: dict[str, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    for url, given in roots.items():
        root = ts.Root(url, storage_options=given)
        asked: list[tuple[Callable[[], DataFrame], int]] = [
            (lambda root=root: root.panes(spark=spark), root.panes().to_table().num_rows),  # type: ignore[misc]
            (lambda root=root: root.state(spark=spark), root.state().to_table().num_rows),  # type: ignore[misc]
            (lambda root=root: root.windows(spark=spark), root.windows().to_table().num_rows),  # type: ignore[misc]
        ]
        for ask, rows in asked:
            frame = ask()
            assert frame.count() == rows > 0
            assert not any(secret in shown(frame, capsys) for secret in SECRETS)
        with pytest.raises(UsageError, match="no-messages"):
            root.messages(spark=spark)
