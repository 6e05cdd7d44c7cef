"""What another process says it has written is named by a manifest only when this one has seen it. Real workers that
see another folder are in the long form: in every run one process stands for them.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import tidestate as ts
from tests.helpers.checkout import ROOT
from tests.helpers.namespaces import WHY_NOT, may_mount
from tests.helpers.spark_inputs import batch, write
from tests.helpers.spark_inputs import job as spark_job
from tests.helpers.spark_runs import stream
from tidestate import agg
from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.engine import job as jobs
from tidestate.operators.engine.job import Job, Position
from tidestate.operators.engine.micro_batch import TaskResult
from tidestate.operators.engine.tasks import InProcess
from tidestate.operators.spark import stream_job
from tidestate.recovery.inspect.verify import verify
from tidestate.recovery.log.checkpoint import Checkpoint, Probe, check_visible, now_us
from tidestate.recovery.retention.collection import HOUR_US, collect
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.statestore.errors import UsageError
from tidestate.statestore.files.refs import FileRef
from tidestate.statestore.spec.store import Parquet
from tidestate.statestore.storage.objects import Objects
from tools.demo.child import Child

ROWS = pa.table({"at": [datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in range(4)], "k": list("abab")})


def begun(root: Path) -> Job:
    described = (
        ts.stream(event_time="at")
        .group_by("k")
        .window(ts.tumbling("1 hour"))
        .aggregate(n=agg.count())
        .named("counts")
    )
    graph = bind_graph(described.allowed_lateness("1 hour").graph.description, ROWS.schema)
    return Job.begin(graph, Checkpoint.open_or_create(root), Parquet(), partitions=2)


def taken(job: Job, host: str) -> list[TaskResult]:
    """A batch, as executors of that host report it."""
    results = InProcess().run(job.micro_batch(0), [ROWS])
    return [msgspec.structs.replace(one, host=host) for one in results]


def files(job: Job, results: list[TaskResult]) -> list[str]:
    bases = job.head.operators["counts"].partitions
    return [ref.path for one in results for ref in one.written(bases)]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "check_visible", partial(check_visible, patience_s=0.0))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("which", ["changelog", "panes"])
@pytest.mark.parametrize("damage", ["gone", "short", "long"])
def test_a_file_that_is_not_seen_is_not_named(tmp_path: Path, which: str, damage: str) -> None:
    job = begun(tmp_path / "root")
    results = taken(job, "other-host")
    path = tmp_path / "root" / next(one for one in files(job, results) if which in one)
    data = path.read_bytes()
    path.unlink()
    if damage != "gone":
        path.write_bytes(data[:-1] if damage == "short" else data + b"x")
    with pytest.raises(UsageError, match="other-host") as refused:
        job.commit(results, "batch", Position())
    assert refused.value.code == "file-unseen"
    newest = Checkpoint.open(tmp_path / "root").head()
    assert newest is not None
    assert newest.manifest.kind == "fence"
    path.write_bytes(data)
    assert job.commit(results, "batch", Position()).kind == "batch"


def test_only_new_files_of_other_processes_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    size = Objects.size
    monkeypatch.setattr(Objects, "size", lambda self, path: looked.append(path) or size(self, path))
    job = begun(tmp_path / "root")
    job.commit(taken(job, ""), "batch", Position())
    assert looked == []
    results = taken(job, "other-host")
    new = files(job, results)
    job.commit(results, "batch", Position())
    assert sorted(looked) == sorted(new)
    assert all(path.rpartition("/")[2].lstrip("0").startswith("3-") for path in new)


def test_a_file_that_appears_late_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "late").write_bytes(b"data")
    path, pauses = tmp_path / "late", list[float]()
    path.rename(path.with_suffix(".later"))

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            path.with_suffix(".later").rename(path)

    check_visible(Objects(tmp_path), [("other-host", FileRef("late", bytes=4, checksum="", rows=0))], pause=pause)
    assert pauses == [0.05, 0.1, 0.2]


def test_the_probe_is_found_only_in_the_same_folder(tmp_path: Path) -> None:
    here, there = Objects(tmp_path / "here"), Objects(tmp_path / "there")
    probe = Probe.leave(here, 7)
    assert probe.seen(here)
    assert not probe.seen(there, 0.0)
    Probe.leave(there, 7)
    shutil.copytree(tmp_path / "here" / "data", tmp_path / "there" / "data", dirs_exist_ok=True)
    assert probe.seen(there)
    assert not replace(probe, content="0" * 32).seen(there)


def test_a_probe_left_by_the_dead_is_collected(tmp_path: Path) -> None:
    job = begun(tmp_path / "root")
    objects = job.checkpoint.objects
    probe = Probe.leave(objects, job.head.id + 1)
    job.commit(taken(job, ""), "batch", Position())
    collected = collect(job.checkpoint, CheckpointRetention(newest=1, grace="0 seconds"), now_us() + HOUR_US)
    assert probe.path in collected.files
    assert not objects.exists(probe.path)


def test_a_first_start_that_died_at_its_probe_is_begun_again(tmp_path: Path) -> None:
    Probe.leave(Checkpoint.open_or_create(tmp_path / "root").objects, 1)
    job = begun(tmp_path / "root")
    assert (job.head.id, verify(job.checkpoint).findings) == (1, ())


def test_no_files_cost_nothing() -> None:
    check_visible(Objects("/nowhere"), list[tuple[str, FileRef]]())


OTHER_HOST = """#!/bin/sh
exec unshare -m sh -c 'mount -t tmpfs tmpfs "$0" && exec "$@"' "{root}" "{python}" "$@"
"""
"""A Python of workers that has a file system of its own at a root, as if it were on another host."""


@pytest.mark.long
@pytest.mark.usefixtures("impatient")
@pytest.mark.classic("jvm")
@pytest.mark.skipif(not may_mount(), reason=WHY_NOT)
def test_workers_with_a_folder_of_their_own_at_the_root(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, python, context = tmp_path / "hidden", tmp_path / "python", spark.sparkContext
    hidden.mkdir()
    python.write_text(OTHER_HOST.format(root=hidden, python=sys.executable))
    python.chmod(0o755)
    monkeypatch.setattr(context, "pythonExec", str(python))
    monkeypatch.setattr(context, "master", "spark://elsewhere:7077")
    write(tmp_path / "input", 0, batch([(1, "a", 1)]))
    assert ended(spark, tmp_path, "shared") == ("", "batch")
    assert not list((tmp_path / "shared" / "data" / "probe").iterdir())
    assert ended(spark, tmp_path, "hidden") == ("root-not-shared", None)
    monkeypatch.setattr(stream_job, "check_shared", lambda *_: None)  # as if they had come later
    assert ended(spark, tmp_path, "hidden") == ("file-unseen", "fence")


def ended(spark: SparkSession, folder: Path, name: str) -> tuple[str, str | None]:
    """The code of the error of a job at this root, and of what kind its newest checkpoint is."""
    code = ""
    try:
        query = (
            spark_job()
            .on_spark(stream(spark, folder / "input"), checkpoint=folder / name, paths={"direct_scan"})
            .start()
        )
        query.processAllAvailable()
        query.stop()
    except UsageError as error:
        code = error.code
    newest = Checkpoint.open(folder / name).head()
    return code, newest.manifest.kind if newest else None


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.skipif(not may_mount(), reason=WHY_NOT)
def test_an_executor_with_a_folder_of_its_own_at_the_root(tmp_path: Path) -> None:
    """One of two, on a cluster."""
    child = Child([sys.executable, "-m", "tests.children.two_hosts", str(tmp_path)], tmp_path / "log", cwd=ROOT)
    found = {event["event"]: (event["code"], event["kind"]) for event in child.events()}
    child.finish()
    assert found == {
        "shared": ("", "batch"),
        "hidden": ("root-not-shared", None),
        "late": ("file-unseen", "fence"),
    }
    assert not list((tmp_path / "shared" / "data" / "probe").iterdir())
