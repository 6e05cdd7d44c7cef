"""A Spark cluster, and what dies in it in the middle of a batch. Each time the output is that of the standalone
runner over the same batches. In every run it is one of two executors on one host, in the long form one of two hosts.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pyarrow.parquet as pq
import pytest

from tests.children.cluster_job import PARTITIONS
from tests.children.driver import Driver
from tests.helpers.evidence import named_files
from tests.helpers.process import LONG, in_turn
from tests.helpers.spark_inputs import job, sample, write
from tests.helpers.spark_runs import output
from tests.servers.packages import S3A, WITHOUT_BUNDLE, for_seconds
from tests.servers.s3 import VARIABLES, s3_endpoint, s3_root  # noqa: F401  (fixtures)
from tests.servers.spark_cluster import HOSTS, SparkCluster, executor_of, until
from tests.servers.spark_cluster import SPARK as SPARK_HOME
from tidestate.recovery.inspect.verify import verify
from tidestate.recovery.log.checkpoint import Checkpoint
from tools.java import brief_options

pytestmark = [pytest.mark.spark, pytest.mark.kill]

TABLES = sample(5, 300)
IN_THE_MIDDLE = 4
"""A checkpoint with a batch: a start's own is 1, that of the first batch 2."""
STORES = ("parquet", "memory", "rocksdb")
MOMENTS = ("before", "after", "before-manifest", "after-manifest")
"""When the driver dies: one of its tasks is about to write its files of state, or has; or it has all answers."""
SPARK = {
    "spark.driver.host": HOSTS[0],
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": brief_options(),
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
    **for_seconds(),
    "spark.python.daemon.module": "tests.children.cluster_daemon",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
    # Of one driver for all tests: copies of slow tasks only where a test asks for them, by another quantile.
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "1",
    "spark.python.task.killTimeout": "600s",  # a task that lost is ended so late
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    cluster = SparkCluster(tmp_path_factory.mktemp("spark") / "cluster")
    yield cluster
    cluster.stop()


class Rig:
    """A driver on a cluster, the input of its jobs, and orders to tasks."""

    def __init__(self, master: str, folder: Path, source: str = "", **settings: str) -> None:
        self.folder, self._began_ms = folder, 0
        self.control, self.source, events = folder / "control", folder / "input", folder / "events"
        for one in (self.control, self.source, events):
            one.mkdir(parents=True)
        own = {"spark.master": master, "spark.eventLog.dir": events.as_uri()}
        own |= {"spark.executorEnv.TIDESTATE_CONTROL": str(self.control)}
        given = {"source": source or str(self.source), "control": str(self.control), "spark": SPARK | own | settings}
        (folder / "settings.json").write_text(json.dumps(given))
        self.driver = self.another()

    def another(self) -> Driver:
        """A driver of the same settings."""
        return Driver(self.folder, "tests.children.cluster_job", str(self.folder / "settings.json"))

    def order(self, moment: str, checkpoint: int = IN_THE_MIDDLE) -> None:
        (self.control / f"{moment}-{checkpoint}").touch()

    def stopped(self) -> int:
        """The Python worker that obeyed, in its task; after another order the next one."""
        path: Path = until(lambda: next(self.control.glob("stopped-*"), None), "a task that stops")
        path.unlink()
        return int(path.name.partition("-")[2])

    def tasks(self, ended: str) -> list[dict[str, Any]]:
        """The tasks of this test that ended so, as Spark noted them."""
        lines = [line for path in (self.folder / "events").iterdir() for line in path.read_text().splitlines()]
        events = [json.loads(line) for line in lines if line.endswith("}")]
        ends = [event for event in events if event["Event"] == "SparkListenerTaskEnd"]
        own = [event for event in ends if event["Task Info"]["Launch Time"] >= self._began_ms]
        return [event for event in own if event["Task End Reason"]["Reason"] == ended]

    def ran_on(self) -> list[set[str]]:
        """The hosts of each stage with state, in order."""
        steps = [task for task in self.tasks("Success") if task["Task Type"] == "ResultTask"]
        hosts: dict[int, list[str]] = {}
        for task in steps:
            hosts.setdefault(task["Stage ID"], []).append(task["Task Info"]["Host"])
        return [set(found) for _, found in sorted(hosts.items()) if len(found) == PARTITIONS]

    def forget(self) -> None:
        """Orders, and what became of them; earlier tasks."""
        self._began_ms = time.time_ns() // 1_000_000
        for path in self.control.iterdir():
            path.unlink()


def rig_of(master: str, folder: Path, source: str = "", **settings: str) -> Iterator[Rig]:
    rig = Rig(master, folder, source, **settings)
    yield rig
    rig.driver.finish()


@pytest.fixture(scope="module")
def usual(cluster: SparkCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    yield from rig_of(cluster.url, tmp_path_factory.mktemp("usual"))


@pytest.fixture
def rig(usual: Rig) -> Rig:
    """With all of the input, and both executors."""
    usual.forget()
    fill(usual.source, 0, len(TABLES))
    usual.driver.ask("whole", until="whole")
    return usual


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same job without Spark."""
    root = tmp_path_factory.mktemp("alone") / "root"
    job().standalone(checkpoint=root).run(TABLES, drain=True)
    return root


def fill(source: Path, first: int, last: int) -> None:
    for number in range(first, last):
        write(source, number, TABLES[number])


def is_exact(root: Path | str, alone: Path) -> None:
    head = Checkpoint.open(root).head()
    assert head is not None
    assert head.manifest.totals["events"] == sum(table.num_rows for table in TABLES)
    for kind in ("panes", "late"):
        assert output(root, kind) == output(alone, kind) != {}
    assert verify(Checkpoint.open(root), read_percent=100, spark=True).worst is None


def written(root: Path) -> set[str]:
    """The files of state, named by a manifest or not."""
    return {str(path.relative_to(root)) for path in root.glob("data/**/*") if path.is_file()}


def ends(driver: Driver, root: Path | str, alone: Path) -> None:
    driver.heard("settled")
    assert driver.ask("drain", until="stopped")["event"] == "stopped"
    is_exact(root, alone)


@pytest.fixture
def on_one_host(tmp_path: Path) -> Iterator[Rig]:
    """Of a driver that is master and workers, too: four Javas instead of seven. Executors are processes."""
    yield from rig_of("local-cluster[2,1,512]", tmp_path / "rig")
    for log in (tmp_path / "rig" / "events").iterdir():
        shutil.rmtree(SPARK_HOME / "work" / log.name, ignore_errors=True)


@pytest.mark.long
def test_a_python_worker_and_an_executor_killed_whose_task_writes_after_the_commit(
    on_one_host: Rig, tmp_path: Path, alone: Path
) -> None:
    """The executor one batch later; its task goes on alone two batches after that."""
    rig, root = on_one_host, tmp_path / "root"
    fill(rig.source, 0, IN_THE_MIDDLE)
    rig.driver.ask("whole", until="whole")
    rig.driver.start(str(root), store="rocksdb")
    rig.order("after", IN_THE_MIDDLE - 1)
    rig.order("before")
    rig.driver.tell("settle")
    os.kill(rig.stopped(), signal.SIGKILL)
    zombie = rig.stopped()
    os.kill(executor_of(zombie), signal.SIGKILL)
    try:
        rig.driver.heard("settled")
        head = Checkpoint.open(root).head()
        assert head is not None
        assert head.manifest.id == IN_THE_MIDDLE + 1
        files = written(root)
    finally:
        os.kill(zombie, signal.SIGCONT)
    until((rig.control / f"wrote-{zombie}").exists, "its files")
    late = written(root) - files
    assert late
    assert Checkpoint.open(root).head() == head
    fill(rig.source, IN_THE_MIDDLE, len(TABLES))
    rig.driver.tell("settle")
    ends(rig.driver, root, alone)
    assert not late & named_files(root)
    for ended in ("ExceptionFailure", "ExecutorLostFailure"):
        until(lambda ended=ended: rig.tasks(ended), "what Spark noted")


@pytest.mark.long
@pytest.mark.parametrize("direct", [True, False] if LONG else [True])
@pytest.mark.parametrize("moment", ["before", "after"] if LONG else ["after"])
@pytest.mark.parametrize("store", STORES if LONG else ["parquet"])
def test_a_python_worker_and_an_executor_killed(
    rig: Rig, cluster: SparkCluster, tmp_path: Path, alone: Path, store: str, moment: str, direct: bool
) -> None:
    """The executor one batch later."""
    root = tmp_path / "root"
    rig.driver.start(str(root), store=store, direct=direct)
    rig.order("after", IN_THE_MIDDLE - 1)
    rig.order(moment)
    rig.driver.tell("settle")
    os.kill(rig.stopped(), signal.SIGKILL)
    _, executor = cluster.of_executor(rig.stopped())
    os.kill(executor, signal.SIGKILL)
    ends(rig.driver, root, alone)
    for ended in ("ExceptionFailure", "ExecutorLostFailure"):
        until(lambda ended=ended: rig.tasks(ended), "what Spark noted")


@pytest.mark.long
@pytest.mark.parametrize("store", STORES)
def test_a_host_killed(rig: Rig, cluster: SparkCluster, tmp_path: Path, alone: Path, store: str) -> None:
    """The other one goes on alone; later it comes back, with its folders as they were."""
    root = tmp_path / "root"
    rig.driver.start(str(root), store=store)
    rig.order("before")
    rig.driver.tell("settle")
    host, _ = cluster.of_executor(rig.stopped())
    cluster.kill_host(host)
    rig.driver.heard("settled")
    cluster.start_host(host)
    rig.driver.ask("whole", until="whole")
    assert rig.driver.ask("drain", until="stopped")["event"] == "stopped"
    is_exact(root, alone)
    rig.driver.kill()  # both of its executors may be on the other host


@pytest.mark.long
@pytest.mark.parametrize("store", STORES)
def test_partitions_move_and_come_back(rig: Rig, tmp_path: Path, alone: Path, store: str) -> None:
    """One batch after the other on the other host: what a host has in its cache is behind by those in between. In
    every run partitions move as their executor dies, above, and `tests.statestore.stores.test_store_edges` has caches
    that fell behind.
    """
    root, source = tmp_path / "root", tmp_path / "input"
    fill(source, 0, 1)
    rig.driver.start(str(root), store=store, source=str(source))
    rig.driver.ask("settle", until="settled")
    for number in range(1, len(TABLES)):
        rig.driver.ask("busy", HOSTS[number % 2], until="busy")
        fill(source, number, number + 1)
        rig.driver.ask("settle", until="settled")
        rig.driver.ask("free", until="free")
    assert rig.driver.ask("drain", until="stopped")["event"] == "stopped"
    is_exact(root, alone)
    alternating = [{HOSTS[1 - number % 2]} for number in range(1, len(TABLES))]
    until(lambda: len(rig.ran_on()) > len(TABLES), "what Spark noted")
    assert rig.ran_on()[1 : len(TABLES)] == alternating


@pytest.mark.long
@pytest.mark.parametrize(("store", "moment"), in_turn(STORES, MOMENTS))
def test_the_driver_killed(rig: Rig, tmp_path: Path, alone: Path, store: str, moment: str) -> None:
    """In a task's turn, or its own; then the same root in a driver with executors of its own."""
    root = tmp_path / "root"
    pause = [f"{moment}:{IN_THE_MIDDLE}"] if "manifest" in moment else []
    rig.driver.start(str(root), *pause, store=store)
    if pause:
        assert rig.driver.ask("settle", until="paused")["event"] == "paused"
    else:
        rig.order(moment)
        rig.driver.tell("settle")
        rig.stopped()
    rig.driver.kill()
    rig.driver.goes_on(str(root), store=store)
    is_exact(root, alone)


@pytest.mark.long
@pytest.mark.parametrize("store", STORES)
def test_two_drivers_on_one_root(rig: Rig, tmp_path: Path, alone: Path, store: str) -> None:
    """The newer one takes over while the older one is about to commit; executors of both are on each host. In
    every run `tests.spark.test_job` has a query that is overtaken.
    """
    root = tmp_path / "root"
    rig.driver.start(str(root), f"before-manifest:{IN_THE_MIDDLE}", store=store)
    assert rig.driver.ask("settle", until="paused")["event"] == "paused"
    newer = rig.another()
    newer.start(str(root), store=store)
    newer.ask("settle", until="settled")
    committed = Checkpoint.open(root).ids()
    (rig.control / "go").touch()
    assert rig.driver.heard("settled")["code"] == "fenced"
    assert Checkpoint.open(root).ids() == committed
    assert newer.ask("drain", until="stopped")["event"] == "stopped"
    newer.finish()
    is_exact(root, alone)


@pytest.mark.long
@pytest.mark.parametrize("store", STORES if LONG else ["rocksdb"])
def test_a_zombie_writes_after_the_commit(rig: Rig, tmp_path: Path, alone: Path, store: str) -> None:
    """A slow task, of which Spark starts a copy that wins; it goes on two batches later, and writes its files."""
    root, source = tmp_path / "root", tmp_path / "input"
    fill(source, 0, IN_THE_MIDDLE)
    rig.driver.ask("speculate", "0.25", until="speculating")
    rig.driver.start(str(root), store=store, source=str(source))
    rig.order("before")
    rig.driver.tell("settle")
    zombie = rig.stopped()
    rig.driver.heard("settled")
    head = Checkpoint.open(root).head()
    assert head is not None
    assert head.manifest.id == IN_THE_MIDDLE + 1
    files = written(root)
    os.kill(zombie, signal.SIGCONT)
    until((rig.control / f"wrote-{zombie}").exists, "its files")
    late = written(root) - files
    assert late
    assert Checkpoint.open(root).head() == head
    fill(source, IN_THE_MIDDLE, len(TABLES))
    rig.driver.tell("settle")
    ends(rig.driver, root, alone)
    assert not late & named_files(root)
    rig.driver.ask("speculate", "1", until="speculating")
    until(lambda: any(event["Task Info"]["Speculative"] for event in rig.tasks("Success")), "what Spark noted")


@pytest.fixture
def on_s3(cluster: SparkCluster, s3_root: str, tmp_path: Path) -> Iterator[Rig]:  # noqa: F811
    """With the input in the bucket; executors get what leads there by their environment, and S3A from the driver."""
    bucket = s3_root.split("/")[2]
    fetched = {"spark.jars.packages": ",".join(S3A), "spark.jars.excludes": WITHOUT_BUNDLE}
    leading = {f"spark.executorEnv.{name}": os.environ[name] for name in (*VARIABLES, "AWS_ENDPOINT_URL")}
    style = {"spark.hadoop.fs.s3a.path.style.access": "true"}
    client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    for number, table in enumerate(TABLES):
        file = io.BytesIO()
        pq.write_table(table, file)
        client.put_object(Bucket=bucket, Key=f"input/{number:04d}.parquet", Body=file.getvalue())
    yield from rig_of(cluster.url, tmp_path / "rig", f"s3a://{bucket}/input", **fetched, **leading, **style)


@pytest.mark.long
@pytest.mark.parametrize("store", STORES)
def test_a_host_killed_with_everything_on_s3(
    on_s3: Rig,
    cluster: SparkCluster,
    s3_root: str,  # noqa: F811
    alone: Path,
    store: str,
) -> None:
    rig = on_s3
    rig.driver.start(s3_root, store=store)
    rig.order("after")
    rig.driver.tell("settle")
    host, _ = cluster.of_executor(rig.stopped())
    cluster.kill_host(host)
    ends(rig.driver, s3_root, alone)
    cluster.start_host(host)
