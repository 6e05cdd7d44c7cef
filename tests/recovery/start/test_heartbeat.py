"""Drivers that say they live, and real second drivers that meet them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.forked import Forked
from tests.helpers.spark_inputs import job, sample, write
from tests.helpers.spark_runs import stream
from tests.helpers.worked_example import STREAM, example
from tests.servers.s3 import s3_endpoint, s3_root  # noqa: F401
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.lease import LEASE_FOLDER, all_leases, check_idle, running
from tidestate.recovery.start.heartbeat import Heartbeat
from tidestate.statestore.errors import UsageError


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint.open_or_create(tmp_path / "root")


def names(checkpoint: Checkpoint) -> list[str]:
    return checkpoint.objects.names(LEASE_FOLDER)


def eventually(what: Callable[[], bool]) -> None:
    for _ in range(3000):
        if what():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come about")


@contextmanager
def driver(root: Path) -> Iterator[Forked]:
    """A process that has taken a batch and waits before the next."""
    child = Forked("tests.children.lease", root)
    try:
        assert child.stdout.readline() == "took 1\n"
        yield child
    finally:
        child.kill()
        child.wait()


def told(child: Forked, lines: str) -> str:
    """What it still prints when it has been given these lines."""
    child.stdin.write(lines)
    return child.communicate()[0]


def test_a_lease_is_renewed_under_fresh_names_and_given_back(checkpoint: Checkpoint) -> None:
    once = Heartbeat(checkpoint, 3)
    once.begin()
    once.begin()
    assert names(checkpoint) == ["3-1.json"]
    first = running(checkpoint)
    assert first is not None
    once.end()
    assert names(checkpoint) == []
    waits: list[int | None] = [None]
    presence = Heartbeat(checkpoint, 4, waiting=lambda: waits[-1], every_s=0.01)
    presence.begin()
    eventually(lambda: names(checkpoint) not in ([], ["4-1.json"]))
    eventually(lambda: (now := running(checkpoint)) is not None and now.written_us > first.written_us)
    waits.append(5)
    eventually(lambda: (now := running(checkpoint)) is not None and now.waiting_us == 5)
    presence.end()
    presence.end()
    eventually(lambda: not names(checkpoint))  # one that was being written meanwhile goes, too
    presence.begin()
    assert names(checkpoint)
    presence.end()


def test_it_ends_with_what_it_speaks_for(checkpoint: Checkpoint) -> None:
    Heartbeat(checkpoint, 1, still=lambda: False, every_s=0.01).begin()
    eventually(lambda: not names(checkpoint))
    forgotten = Heartbeat(checkpoint, 2, every_s=0.01)
    forgotten.begin()
    assert names(checkpoint)
    del forgotten
    eventually(lambda: not names(checkpoint))


def test_who_is_fenced_stops_renewing(checkpoint: Checkpoint) -> None:
    older = Heartbeat(checkpoint, 1, every_s=0.01)
    older.begin()
    newer = Heartbeat(checkpoint, 2)
    newer.begin()
    eventually(lambda: [one.epoch for one in all_leases(checkpoint).values()] == [2])
    newer.end()
    eventually(lambda: not names(checkpoint))
    older.end()


def test_a_lease_that_cannot_be_written_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / LEASE_FOLDER).write_text("in the way")
    with caplog.at_level(logging.WARNING):
        example("retracting").standalone(checkpoint=tmp_path).run(STREAM, drain=True)
    assert evidence.manifests(tmp_path)[-1]["drained"]
    assert "the lease of this run could not be written" in caplog.text


@pytest.mark.kill
def test_a_second_driver_takes_over_and_the_first_publishes_nothing_more(tmp_path: Path) -> None:
    with driver(tmp_path / "root") as first:
        example("retracting").standalone(checkpoint=tmp_path / "root").run(STREAM[:1])
        before = evidence.manifests(tmp_path / "root")
        assert [one["epoch"] for one in before] == [1, 1, 2]
        output = told(first, "go\n")
    assert output == "fenced\n"
    assert evidence.manifests(tmp_path / "root") == before


@pytest.mark.kill
def test_a_second_driver_that_refuses_leaves_the_first_alone(tmp_path: Path) -> None:
    second = example("retracting").standalone(checkpoint=tmp_path / "root", policy=ts.Policy(second="refuse"))
    with driver(tmp_path / "root") as first:
        before = evidence.manifests(tmp_path / "root")
        with pytest.raises(UsageError, match=rf"pid={first.pid} "):
            second.run(STREAM)
        with pytest.raises(UsageError, match=rf"force=True.*pid={first.pid} "):
            check_idle(Checkpoint.open(tmp_path / "root"))
        assert evidence.manifests(tmp_path / "root") == before
        output = told(first, "\n" * len(STREAM))
    assert output.splitlines()[-1] == "done"
    assert not names(Checkpoint.open(tmp_path / "root"))
    second.run(STREAM, drain=True)
    assert evidence.manifests(tmp_path / "root")[-1]["drained"]


def test_a_killed_driver_is_not_waited_for(tmp_path: Path) -> None:
    with driver(tmp_path / "root") as first:
        pass
    assert first.returncode == -9
    left = Checkpoint.open(tmp_path / "root")
    assert len(names(left)) == 1
    check_idle(left)
    example("retracting").standalone(checkpoint=tmp_path / "root", policy=ts.Policy(second="refuse")).run(STREAM)
    assert not names(left)


def test_a_stream_says_so_as_long_as_it_is_read(tmp_path: Path) -> None:
    alone = example("retracting").standalone(checkpoint=tmp_path)
    panes = alone.stream(STREAM)
    next(panes)
    assert running(Checkpoint.open(tmp_path)) is not None
    alone.reprocess_late()
    next(panes)
    assert running(Checkpoint.open(tmp_path)) is not None
    panes.close()  # type: ignore[attr-defined]
    assert not names(Checkpoint.open(tmp_path))


def test_a_drained_start_is_nobody_at_work(tmp_path: Path) -> None:
    example("retracting").standalone(checkpoint=tmp_path).run(STREAM, drain=True)
    Heartbeat(Checkpoint.open(tmp_path), 9).begin()  # another one, as it may be
    example("retracting").standalone(checkpoint=tmp_path, policy=ts.Policy(second="refuse")).run(STREAM, drain=True)


@pytest.mark.long
@pytest.mark.spark
def test_a_query_of_spark_says_so_until_it_ends(spark: SparkSession, tmp_path: Path) -> None:
    for number, table in enumerate(sample(3, 100)):
        write(tmp_path / "input", number, table)
    root, description = tmp_path / "root", job()
    refusing = description.on_spark(
        stream(spark, tmp_path / "input"), checkpoint=root, policy=ts.Policy(second="refuse"), partitions=2
    )
    query = refusing.start()
    query.processAllAvailable()
    checkpoint = Checkpoint.open(root)
    before = len(evidence.manifests(root))
    with pytest.raises(UsageError, match=r"\[running\]"):
        refusing.start()
    with pytest.raises(UsageError, match=r"\[running\]"):
        check_idle(checkpoint)
    assert len(evidence.manifests(root)) == before
    second = description.on_spark(stream(spark, tmp_path / "input"), checkpoint=root).start()
    assert [one.epoch for one in all_leases(checkpoint).values()] == [2]
    assert not query.isActive  # Spark itself stops the older of two in one session
    second.stop()
    assert not names(checkpoint)
    third = refusing.trigger(availableNow=True).start()
    assert third.awaitTermination(60)
    assert not names(checkpoint)


@pytest.mark.long
@pytest.mark.slow
def test_who_is_running_on_s3(s3_root: str) -> None:  # noqa: F811
    refusing = example("retracting").standalone(checkpoint=s3_root, policy=ts.Policy(second="refuse"))
    first = example("retracting").standalone(checkpoint=s3_root)
    panes = first.stream(STREAM[:1])
    next(panes)
    leases = all_leases(checkpoint := Checkpoint.open(s3_root))
    assert [checkpoint.objects.age_us(path) is not None for path in leases] == [True]
    with pytest.raises(UsageError, match=r"wait \d+ s if it has died.*\[running\]"):
        refusing.run(STREAM)
    panes.close()  # type: ignore[attr-defined]
    assert refusing.run(STREAM[:1], drain=True).num_rows
    assert not all_leases(Checkpoint.open(s3_root))
