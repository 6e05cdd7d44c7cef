"""A Spark job whose root is on S3: Spark's own checkpoint through Hadoop's S3A, ours through fsspec, a real server.

Spark fetches S3A from Maven Central, 20 MB; without it these tests are skipped, but in CI they fail.
"""

from __future__ import annotations

import io
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pyarrow.parquet as pq
import pytest

from tests.children.driver import Driver
from tests.helpers.checkout import ROOT
from tests.helpers.command import json_lines, tidestate
from tests.helpers.forked import ForkedChild
from tests.helpers.spark_inputs import job, sample, write
from tests.helpers.spark_runs import output
from tests.servers.packages import S3A, WITHOUT_BUNDLE
from tests.servers.proxy import Proxy
from tests.servers.s3 import VARIABLES, s3_endpoint, s3_front  # noqa: F401  (fixtures)
from tidestate.recovery.inspect.verify import verify
from tidestate.recovery.log.checkpoint import Checkpoint
from tools.demo.child import ChildFailedError

pytestmark = pytest.mark.spark
TABLES = sample(3, 80)
BEFORE = 2
"""Batches of the root that tests begin with; its newest checkpoint is the next number."""
SECRET = "not-to-be-printed-3141592653"


class Bucket:
    """A bucket with the job's input, and roots in it."""

    def __init__(self, endpoint: str) -> None:
        self.name = "spark"
        self.client = boto3.client("s3", endpoint_url=endpoint)
        self.client.create_bucket(Bucket=self.name)

    def put_input(self, first: int, last: int) -> None:
        for number in range(first, last):
            file = io.BytesIO()
            pq.write_table(TABLES[number], file)
            self.client.put_object(Bucket=self.name, Key=f"input/{number:04d}.parquet", Body=file.getvalue())

    def url(self, name: str, scheme: str = "s3") -> str:
        return f"{scheme}://{self.name}/{name}"

    def keys(self, prefix: str) -> list[str]:
        """All names below, the empty objects that stand for folders too."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
        return [entry["Key"] for page in pages for entry in page.get("Contents", ())]

    def copy(self, old: str, new: str) -> str:
        for key in self.keys(f"{old}/"):
            source = {"Bucket": self.name, "Key": key}
            self.client.copy_object(Bucket=self.name, Key=new + key.removeprefix(old), CopySource=source)
        return self.url(new)

    def remove(self, prefix: str) -> None:
        for key in self.keys(prefix):
            self.client.delete_object(Bucket=self.name, Key=key)

    def holds(self, text: str) -> list[str]:
        """Names of the objects of a root with this text in them."""
        everything = {key: self.client.get_object(Bucket=self.name, Key=key)["Body"] for key in self.keys("died/")}
        return [key for key, body in everything.items() if text.encode() in body.read()]


@pytest.fixture(scope="module")
def bucket(s3_endpoint: str) -> Iterator[Bucket]:  # noqa: F811
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (VARIABLES | {"AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ENDPOINT_URL": s3_endpoint}).items():
            patch.setenv(name, value)
        yield Bucket(s3_endpoint)


@pytest.fixture(scope="module")
def driver(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """With all of the input in the bucket."""
    bucket.put_input(0, len(TABLES))
    try:
        driver = Driver(tmp_path_factory.mktemp("driver"), "tests.children.s3_job", bucket.url("input", "s3a"))
    except ChildFailedError as error:
        if "resolveMavenCoordinates" not in str(error) or os.environ.get("CI"):
            raise
        pytest.skip("Hadoop's S3A could not be had from Maven Central")
    yield driver
    driver.finish()


@pytest.fixture(scope="module")
def before(driver: Driver, bucket: Bucket) -> str:
    """A job that has read two of its three files."""
    bucket.remove(f"input/{BEFORE:04d}")
    assert driver.start(bucket.url("before"))["event"] == "started"
    assert driver.ask("settle", until="settled")["checkpoint"] == BEFORE + 1
    driver.ask("stop", until="stopped")
    bucket.put_input(BEFORE, len(TABLES))
    return "before"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same job on a local disk without Spark."""
    root = tmp_path_factory.mktemp("alone") / "root"
    job().standalone(checkpoint=root).run(TABLES, drain=True)
    return root


@pytest.fixture(scope="module")
def died(driver: Driver, bucket: Bucket) -> str:
    """One that died in its second batch, by an error: on S3 nothing is half written, so it is as after a kill."""
    root = bucket.url("died")
    driver.start(root, "before-manifest:3", dies=True)
    assert driver.ask("settle", until="died")["event"] == "died"
    return root


@pytest.fixture
def root(before: str, bucket: Bucket) -> str:
    return bucket.copy(before, uuid.uuid4().hex)


def answered(*arguments: object) -> Any:
    done = tidestate(*arguments, "--json")
    assert (done.returncode, done.stderr, SECRET in done.stdout) == (0, "", False)
    return json.loads(done.stdout)


def lines(*arguments: object) -> list[dict[str, Any]]:
    return json_lines(tidestate(*arguments, "--json"))


def is_exact(root: str, alone: Path) -> None:
    head = Checkpoint.open(root).head()
    assert head is not None
    assert head.manifest.totals["events"] == sum(table.num_rows for table in TABLES)
    for kind in ("panes", "late"):
        assert output(root, kind) == output(alone, kind)
    scans = [one.scan for one in Checkpoint.open(root).history() if one.scan is not None]
    assert [(one.direct, one.reason) for one in scans] == [(True, "")] * len(scans), "tasks read the files on S3"
    assert len(scans) > 0
    assert verify(Checkpoint.open(root), read_percent=100, spark=True).worst is None


@pytest.mark.long
def test_it_is_looked_into_while_it_runs(driver: Driver, root: str, alone: Path) -> None:
    driver.start(root)
    driver.ask("settle", until="settled")
    listed = lines("list", root)
    batches = [row["spark_batch"] for row in listed if row["kind"] == "batch"]
    assert batches == list(range(len(TABLES)))
    observed = answered("show", root)
    assert (observed["id"], observed["spark"]["batch_id"]) == (listed[-1]["id"], batches[-1])
    assert "running" in tidestate("show", root).stdout
    committed = [row for found in output(root, "panes").values() for row in found]
    assert len(lines("panes", root)) == len(committed) > 0
    assert lines("state", root)
    assert answered("verify", root, "--read-data", "--spark-checkpoint")["findings"] == []
    refused = tidestate("rewind", root, "--to", 2, "--confirm")
    assert (refused.returncode, "[running]" in refused.stderr) == (5, True)
    last = driver.ask("drain", until="stopped")
    assert set(last["sink"]) == {last["checkpoint"]}
    is_exact(root, alone)
    panes = sum(map(len, output(alone, "panes").values()))
    assert driver.ask("panes", root, until="panes")["rows"] == panes > 0, "Spark reads pane_paths()"


@pytest.mark.long
@pytest.mark.parametrize("to", [1, 2])
def test_rewound(driver: Driver, bucket: Bucket, root: str, alone: Path, to: int) -> None:
    assert [Path(path).name for path in answered("rewind", root, "--to", to)["sources"][0]["files"]] == [
        f"{number:04d}.parquet" for number in range(to - 1, BEFORE)
    ]
    assert answered("rewind", root, "--to", to, "--confirm")["done"]
    checkpoint = Checkpoint.open(root)
    assert checkpoint.objects.names("spark-replaced") == [str(BEFORE + 2)]
    assert checkpoint.objects.names("spark") == ([] if to == 1 else ["commits", "metadata", "offsets", "sources"])
    if to == 1:  # Spark would begin again; nothing that stands for a folder is left
        assert bucket.keys(f"{root.rpartition('/')[2]}/spark/") == []
    done = driver.goes_on(root)
    assert checkpoint.objects.names("spark-replaced") == [str(BEFORE + 2)]
    assert min(done["sink"]) > BEFORE + 2
    is_exact(root, alone)


@pytest.mark.long
def test_spark_mended(driver: Driver, bucket: Bucket, root: str, alone: Path) -> None:
    name = root.rpartition("/")[2]
    bucket.client.put_object(Bucket=bucket.name, Key=f"{name}/spark/sources/0/0", Body=b"v1")
    assert [one["path"] for one in answered("repair", root, "--resync-spark")["findings"]] == ["spark/sources/0"]
    driver.goes_on(root)
    is_exact(root, alone)
    assert len(Checkpoint.open(root).objects.names("spark-replaced")) == 1
    bucket.remove(f"{name}/spark/")
    assert answered("repair", root, "--resync-spark", "--confirm")["done"]


@pytest.mark.long
def test_forked_and_collected(driver: Driver, bucket: Bucket, root: str, alone: Path) -> None:
    driver.start(root)
    fork = bucket.url("fork")
    assert answered("fork", root, fork, "--at", 3)["checkpoint_id"] == 3
    collected = answered("gc", root, "--newest", 1, "--grace", "0 seconds", "--confirm")
    assert collected["checkpoints"][0] == 1
    driver.ask("settle", until="settled")
    driver.ask("drain", until="stopped")
    is_exact(root, alone)
    driver.goes_on(fork)
    assert verify(Checkpoint.open(fork), read_percent=100, spark=True).worst is None
    ours = [row for found in output(fork, "panes").values() for row in found]
    whole = list(output(alone, "panes").values())
    had = sum(len(one.panes) > 0 for one in Checkpoint.open(root).outputs(1, 3))
    assert sorted(ours, key=repr) == sorted((row for found in whole[had:] for row in found), key=repr)


@pytest.mark.long
def test_bootstrapped(driver: Driver, bucket: Bucket) -> None:
    root = bucket.url("bootstrapped")
    history = [bucket.url(f"input/{number:04d}.parquet", "s3a") for number in range(BEFORE)]
    assert driver.ask("bootstrap", root, history, until="bootstrapped")["event"] == "bootstrapped"
    driver.goes_on(root)
    head = Checkpoint.open(root).head()
    assert head is not None
    assert head.manifest.totals["events"] == sum(table.num_rows for table in TABLES)
    assert [row["spark_batch"] for row in lines("list", root) if row["kind"] == "batch"] == [1]


@pytest.mark.long
@pytest.mark.usefixtures("died")  # Hadoop keeps its connection to the bucket of the input
def test_another_storage_in_spark_is_noticed(driver: Driver, bucket: Bucket, s3_front: Proxy) -> None:  # noqa: F811
    s3_front.reset()
    s3_front.faults = {method: [(404, "NoSuchBucket")] * 50 for method in ("GET", "HEAD")}
    driver.ask("set", "fs.s3a.endpoint", s3_front.url, until="set")
    bucket.client.create_bucket(Bucket="elsewhere")  # its name decides whether Hadoop makes a new connection
    refused = driver.start("s3://elsewhere/root")
    driver.ask("set", "fs.s3a.endpoint", bucket.client.meta.endpoint_url, until="set")
    assert (refused["event"], refused["code"]) == ("refused", "spark-storage-differs")
    assert SECRET not in refused["text"]
    assert Checkpoint.open("s3://elsewhere/root").ids() == []


def test_a_query_that_died_goes_on(driver: Driver, died: str, alone: Path) -> None:
    assert Checkpoint.open(died).ids() == [1, 2]
    driver.goes_on(died)
    is_exact(died, alone)


@pytest.mark.long
def test_killed(driver: Driver, root: str, alone: Path) -> None:
    """Between the files of a checkpoint and its manifest, with Spark's plan of the batch in its log. In every run
    `test_a_query_that_died_goes_on` ends there by an error, and `tests.spark.test_jobs_killed` by a kill on files.
    """
    driver.start(root, f"before-manifest:{BEFORE + 3}")
    driver.ask("settle", until="paused")
    driver.kill()
    assert Checkpoint.open(root).ids()[-1] == BEFORE + 2
    driver.goes_on(root)
    is_exact(root, alone)


@pytest.mark.usefixtures("died")
def test_nothing_secret_was_written(driver: Driver, bucket: Bucket) -> None:
    assert bucket.holds(SECRET) == []
    assert SECRET not in driver.log.read_text()


def test_the_documents_name_what_was_tested() -> None:
    text = (ROOT / "docs" / "how-to" / "roots" / "s3.md").read_text()
    assert all(name in text for name in (*S3A, WITHOUT_BUNDLE.split(",")[0]))


@pytest.mark.long
def test_tasks_reach_the_root_by_options_given_in_python(
    bucket: Bucket,
    s3_endpoint: str,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number, table in enumerate(TABLES):
        write(tmp_path / "input", number, table)
    with monkeypatch.context() as patch:
        for name in (name for name in [*os.environ] if name.startswith("AWS_")):
            patch.delenv(name)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        command = ("tests.children.s3_options", tmp_path / "input", bucket.url("given"), s3_endpoint, SECRET)
        child = ForkedChild(*command, log=tmp_path / "log")
        done = child.wait_for(lambda event: event["event"] == "done")
        child.finish()
    whole = job().standalone(checkpoint=tmp_path / "alone").run(TABLES, drain=True)
    assert (done["panes"], done["shown"]) == (whole.num_rows, [])
    assert SECRET not in (tmp_path / "log").read_text()
    bodies = [bucket.client.get_object(Bucket=bucket.name, Key=key)["Body"].read() for key in bucket.keys("given/")]
    assert len(bodies) > 10
    assert not any(SECRET.encode() in body for body in bodies)
