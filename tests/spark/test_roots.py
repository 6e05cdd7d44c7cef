"""Jobs on Spark whose root, with Spark's own checkpoint in it, is on HDFS, on Google's store or on Azure: real
processes that are killed, Hadoop's own clients, a server of this host. On demand: S3 is in `tests.spark.test_s3`.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.children.commanded_job import trusting
from tests.children.driver import Driver
from tests.helpers.checkout import ROOT
from tests.helpers.command import tidestate
from tests.helpers.spark_inputs import job, sample, write
from tests.helpers.spark_runs import output
from tests.servers.hadoop_roots import (  # noqa: F401  (fixtures)
    SparkStorage,
    azure_endpoint,
    files_server,
    gcs_endpoint,
    hdfs_server,
    spark_storage,
)
from tests.servers.volumes import VOLUME, files_api  # noqa: F401  (fixture)
from tidestate.recovery.inspect.verify import verify
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.storage.objects import Objects
from tools.java import java_home

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(600)]

TABLES = sample(4, 80)
MIDDLE = 3
"""The checkpoint in whose commit drivers are killed: the first is that of the start."""


@pytest.fixture(scope="module")
def driver(spark_storage: SparkStorage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:  # noqa: F811
    folder = tmp_path_factory.mktemp("driver")
    for number, table in enumerate(TABLES):
        write(folder / "input", number, table)
    about = json.dumps({"input": str(folder / "input"), "settings": spark_storage.settings})
    driver = Driver(folder, "tests.children.rooted_job", about)
    yield driver
    driver.finish()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same job on a local disk without Spark."""
    root = tmp_path_factory.mktemp("alone") / "root"
    job().standalone(checkpoint=root).run(TABLES, drain=True)
    return root


@pytest.fixture
def root(spark_storage: SparkStorage) -> str:  # noqa: F811
    return f"{spark_storage.url}/{uuid.uuid4().hex}"


def answered(*arguments: object) -> Any:
    answer = tidestate(*arguments, "--json")
    assert (answer.returncode, answer.stderr) == (0, "")
    return json.loads(answer.stdout)


def begin(driver: Driver, root: str, *pause: str) -> None:
    answer = driver.start(root, *pause)
    assert answer["event"] == "started", answer


def is_exact(root: str, alone: Path) -> None:
    head = Checkpoint.open(root).head()
    assert head is not None
    assert head.manifest.totals["events"] == sum(table.num_rows for table in TABLES)
    for kind in ("panes", "late"):
        assert output(root, kind) == output(alone, kind)
    assert verify(Checkpoint.open(root), read_percent=100, spark=True).worst is None


@pytest.mark.parametrize("moment", ["before-manifest", "after-manifest"])
def test_killed(driver: Driver, root: str, alone: Path, moment: str) -> None:
    """Between the files of a checkpoint and its manifest, or between that and Spark's own commit."""
    begin(driver, root, f"{moment}:{MIDDLE}")
    driver.ask("settle", until="paused")
    driver.kill()
    assert Checkpoint.open(root).ids()[-1] == MIDDLE - (moment == "before-manifest")
    answer = driver.goes_on(root)
    assert answer["event"] == "stopped"
    is_exact(root, alone)
    panes = sum(map(len, output(alone, "panes").values()))
    assert driver.ask("panes", root, until="panes")["rows"] == panes > 0, "Spark reads pane_paths()"


def test_rewound_and_mended(driver: Driver, root: str, alone: Path) -> None:
    """Spark's checkpoint as verbs write it: put back, and put right."""
    begin(driver, root)
    driver.ask("settle", until="settled")
    driver.ask("stop", until="stopped")
    objects = Checkpoint.open(root).objects
    assert {"commits", "metadata", "offsets", "sources"} <= set(objects.names("spark"))
    assert answered("rewind", root, "--to", 2, "--confirm")["done"]
    assert len(objects.names("spark-replaced")) == 1
    newest = max(objects.names("spark/commits"), key=int)
    objects.delete(f"spark/commits/{newest}")
    driver.goes_on(root)
    is_exact(root, alone)


def test_tried_through_spark(driver: Driver, root: str) -> None:
    checks = driver.ask("doctor", root, until="tried")["checks"]
    assert [name for name, (holds, _) in checks.items() if holds is not True] == [], checks
    assert list(checks) == ["spark", "workers", "from a task", "between hosts", "hadoop"]


@pytest.mark.usefixtures("driver")  # which has fetched what Spark needs
def test_the_command_tries_it_through_spark(
    spark_storage: SparkStorage,  # noqa: F811
    root: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = [word for name, value in spark_storage.settings.items() for word in ("--conf", f"{name}={value}")]
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", shlex.join(["--master", "local[2]", *settings, "pyspark-shell"]))
    of_spark = {"JAVA_HOME": java_home(), "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    for name, value in (of_spark | {"SPARK_LOCAL_IP": "127.0.0.1"} | trusting()).items():
        monkeypatch.setenv(name, os.environ.get(name, value))
    answer = tidestate("doctor", root, "--spark", "--json")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    trial = json.loads(answer.stdout)
    assert [check for check in trial["checks"] if check["holds"] is False] == []
    assert "hadoop" in {check["name"] for check in trial["checks"]}


@pytest.mark.usefixtures("files_api")
def test_a_volume_is_refused_by_a_spark_without_databricks(tmp_path: Path) -> None:
    write(tmp_path / "input", 0, TABLES[0])
    about = json.dumps({"input": str(tmp_path / "input"), "settings": {}})
    driver, root = Driver(tmp_path, "tests.children.rooted_job", about), f"{VOLUME}/roots/refused"
    answer = driver.start(root)
    driver.finish()
    assert (answer["event"], answer["code"]) == ("refused", "spark-storage")
    assert 'No FileSystem for scheme "dbfs"' in answer["text"]
    assert Objects(root).names("") == []
