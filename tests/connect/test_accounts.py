"""A job on Spark Connect whose root is reached by options given in Python: in no environment, and in nothing that the
server, Spark or the job writes. Spark's own connector has another account.
"""

from __future__ import annotations

import traceback
import uuid
from pathlib import Path

import boto3
import pytest
from pyspark.sql import SparkSession

import tidestate as ts
from tests.helpers.spark_inputs import job, sample, write
from tests.helpers.spark_runs import output, stream
from tests.servers.connect import connect_server
from tests.servers.packages import INTERPRETED, S3A, WITHOUT_BUNDLE
from tests.servers.s3 import make_bucket, options_of, s3_endpoint, without_credentials  # noqa: F401  (fixtures)
from tidestate.operators.inspect.on_spark import register
from tidestate.statestore.errors import TidestateError

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.usefixtures("without_credentials")]
SECRET = "Of-Nobody-aG3x/+Q"


def settings(endpoint: str, folder: Path) -> dict[str, str]:
    """S3A with an account of its own, and a log of all events: plans, statements, jobs."""
    s3a = {"path.style.access": "true", "endpoint": endpoint, "endpoint.region": "us-east-1"}
    s3a |= {"access.key": "spark", "secret.key": "spark-alone"}
    log = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": str(folder), "spark.eventLog.compress": "false"}
    packages = {"spark.jars.packages": ",".join(S3A), "spark.jars.excludes": WITHOUT_BUNDLE}
    return {**packages, **{f"spark.hadoop.fs.s3a.{name}": value for name, value in s3a.items()}, **INTERPRETED, **log}


def stored(endpoint: str, bucket: str) -> dict[str, bytes]:
    """Every object of a bucket."""
    client = boto3.client(
        "s3", endpoint_url=endpoint, aws_access_key_id="a", aws_secret_access_key="b", region_name="us-east-1"
    )
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
    names = [entry["Key"] for page in pages for entry in page.get("Contents", ())]
    return {name: client.get_object(Bucket=bucket, Key=name)["Body"].read() for name in names}


def test_a_job_its_readers_and_its_handle_go_by_them(
    s3_endpoint: str,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bucket, given = f"connect-{uuid.uuid4().hex[:12]}", options_of(s3_endpoint, SECRET)
    make_bucket(s3_endpoint, bucket)
    root, tables, folders = f"s3://{bucket}/root", sample(3, 80), (tmp_path / "temporary", tmp_path / "events")
    for folder in folders:
        folder.mkdir()
    for number, table in enumerate(tables):
        write(tmp_path / "input", number, table)
    monkeypatch.setenv("TMPDIR", str(folders[0]))
    server = connect_server(tmp_path, settings(s3_endpoint, folders[1]))
    session = SparkSession.builder.remote(server.url).create()
    said = ""
    try:
        described = job().on_spark(
            stream(session, tmp_path / "input"), checkpoint=root, partitions=2, storage_options=given
        )
        query = described.start()
        query.processAllAvailable()
        other = ts.attach(session, root, storage_options=given)
        assert other.checkpoint_id == query.checkpoint_id
        other.stop(drain=True)
        assert query.awaitTermination(60)
        register(session, storage_options={root: given})
        frames = [
            session.read.format("tidestate").load(root),
            ts.Root(root, storage_options=given).panes(spark=session),
        ]
        rows = {frame.count() for frame in frames}
        for frame in frames:
            frame.explain("extended")
        nobody = {**given, "endpoint_url": "http://127.0.0.1:1"}
        refused = job().on_spark(
            stream(session, tmp_path / "input"), checkpoint=f"{root}-2", partitions=2, storage_options=nobody
        )
        with pytest.raises(TidestateError) as caught:
            refused.start()
        said += "".join(traceback.format_exception(caught.value)) + repr(query) + repr(described) + repr(other)
    finally:
        session.stop()
        server.stop()
    whole = job().standalone(checkpoint=tmp_path / "alone").run(tables, drain=True)
    assert rows == {whole.num_rows}
    assert output(root, "late") == output(tmp_path / "alone", "late")
    assert SECRET not in said + capsys.readouterr().out
    objects = stored(s3_endpoint, bucket)
    assert {name.split("/")[1] for name in objects} >= {"spark", "manifests", "control"}
    files = {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert len([name for name in files if "/events/" in name]) > 0
    assert server.printed.read_bytes() != b""
    assert [name for name, body in (objects | files).items() if SECRET.encode() in body] == []
