"""Retention as part of a job: collected while it runs; what must stay stays; no failure there stops it."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.collected import STORE, TABLES, observed, run, state, whole
from tests.helpers.forked import forked
from tests.helpers.forks import JOB
from tests.helpers.internals import begin, driver_of, end
from tests.helpers.process import some
from tidestate import agg
from tidestate.operators.local.standalone import StandaloneRunner
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.pins import pin
from tidestate.recovery.retention import upkeep
from tidestate.recovery.retention.rules import CheckpointRetention, Upkept
from tidestate.recovery.retention.upkeep import Upkeep
from tidestate.statestore.errors import UnavailableError
from tidestate.statestore.storage.objects import Objects

FEW = CheckpointRetention(newest=3, grace="0 seconds")
PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(upkeep, "LEAST_PAUSE_S", 0.001)
    monkeypatch.setattr(upkeep, "TIMES_AS_LONG", 0)
    yield
    assert not collectors()


def collectors() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "tidestate-retention"]


def until(holds: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    end = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.002)


def done(job: Any) -> Upkept:
    found: Upkept | None = driver_of(job).upkept
    assert found is not None
    return found


def collected_at_each(root: Path, batches: int) -> StandaloneRunner:
    """A run that waits for a collection after each checkpoint."""
    job: Any = JOB.standalone(checkpoint=root, store=STORE, checkpoints=FEW)
    for _panes in job.stream(TABLES[:batches]):
        few = {4, *range(job.head.id - 2, job.head.id + 1)}
        until(lambda few=few: few >= set(Checkpoint.open(root).stored_ids()))  # type: ignore[misc]
    return job


def test_it_keeps_what_gc_keeps_and_the_job_does_not_notice(tmp_path: Path) -> None:
    run(tmp_path / "kept", 11)
    root = tmp_path / "root"
    run(root, 4)
    pin(Checkpoint.open(root), 4, "mine")
    held = state(Checkpoint.open(root), Checkpoint.open(root).read(4).manifest)
    job: Any = collected_at_each(root, batches=11)
    checkpoint = Checkpoint.open(root)
    assert checkpoint.stored_ids() == [4, *range(job.head.id - 2, job.head.id + 1)]
    assert state(checkpoint, checkpoint.read(4).manifest) == held
    assert [rows for _, rows in observed(checkpoint)] == [
        rows for _, rows in observed(Checkpoint.open(tmp_path / "kept"))
    ]
    whole(root)
    assert done(job).checkpoints > 5
    assert done(job).failures == 0
    assert done(job).last_us is not None


def test_panes_that_no_sink_has_taken_stay_and_reach_it_later(tmp_path: Path) -> None:
    every = CheckpointRetention(newest=1, panes="0 seconds", grace="0 seconds")
    root, taken = tmp_path / "root", list[tuple[ts.DeliveryId, int]]()
    job: Any = JOB.standalone(checkpoint=root, store=STORE, checkpoints=every)
    before = 0  # what was collected before a batch: one that follows it may have ended before anybody looks
    for _panes in job.stream(TABLES[:7]):
        until(lambda before=before: done(job).collections > before)  # type: ignore[misc]
        before = done(job).collections
    assert job.head.totals["panes_on_time"] > 0
    late = JOB.standalone(
        checkpoint=root, store=STORE, checkpoints=every, sink=lambda panes, one: taken.append((one, panes.num_rows))
    )
    late.run(TABLES[:10])
    assert sum(rows for _, rows in taken) == sum(
        count for name, count in late.head.totals.items() if name in ("panes_on_time", "panes_late", "retractions")
    )
    whole(root)


def test_a_collection_that_fails_is_logged_and_counted_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    deleted, broken = Objects.delete, True

    def delete(self: Objects, path: str) -> None:
        if broken and path.startswith("manifests/"):
            raise UnavailableError("no", code="storage")
        deleted(self, path)

    monkeypatch.setattr(Objects, "delete", delete)
    job: Any = JOB.standalone(checkpoint=tmp_path / "root", store=STORE, checkpoints=FEW)
    with caplog.at_level(logging.INFO, "tidestate"):
        for number, _panes in enumerate(job.stream(TABLES)):
            if number == 6:
                until(lambda: done(job).failures > 0)
                broken = False
        assert job.head.input.batches == len(TABLES)
        begin(job, TABLES[0].schema)  # a run that begins collects
        until(lambda: done(job).checkpoints > 0)
        end(job)
    answered = [record for record in caplog.records if "old checkpoints could not be deleted" in record.message]
    assert [record.levelname for record in answered] == ["WARNING"] * done(job).failures
    assert any(record.message.startswith("retention: deleted") for record in caplog.records)
    whole(tmp_path / "root")


def test_a_failure_does_not_end_the_collections_of_a_run_and_each_is_followed_by_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pause in proportion to the collection before it, however many checkpoints there are meanwhile."""
    run(tmp_path / "root", 3)
    checkpoint, took = Checkpoint.open(tmp_path / "root"), list[tuple[float, float]]()
    real = upkeep.collect

    def slow(*given: Any) -> Any:
        began = time.monotonic()
        time.sleep(0.1)
        took.append((began, time.monotonic()))
        if len(took) == 1:
            raise UnavailableError("no", code="storage")
        return real(*given)

    monkeypatch.setattr(upkeep, "collect", slow)
    monkeypatch.setattr(upkeep, "TIMES_AS_LONG", 4)
    mine = Upkeep(checkpoint, checkpoint.newest().manifest.epoch, FEW)  # type: ignore[union-attr]
    mine.begin()

    def collected() -> bool:
        mine.published()
        return mine.done is not None and mine.done.collections > 0

    until(collected)
    mine.end()
    assert mine.done is not None
    assert mine.done.failures == 1
    assert took[1][0] - took[0][1] > 0.4


def test_a_run_that_was_fenced_collects_no_more(tmp_path: Path) -> None:
    """What is kept is the newer run's choice, from its first checkpoint on."""
    root = tmp_path / "root"
    run(root, 8)
    old = Checkpoint.open(root)
    epoch = old.newest().manifest.epoch  # type: ignore[union-attr]
    run(root, 10)
    before = old.stored_ids()
    late = Upkeep(old, epoch, FEW)
    late.begin()
    until(lambda: not collectors(), 10)
    assert late.done == Upkept()
    assert old.stored_ids() == before


def test_it_runs_once_at_a_time_and_ends_with_its_job(tmp_path: Path) -> None:
    run(tmp_path / "root", 3)
    checkpoint = Checkpoint.open(tmp_path / "root")
    mine = Upkeep(checkpoint, checkpoint.newest().manifest.epoch, FEW)  # type: ignore[union-attr]
    for _ in range(2):
        mine.begin()
        assert len(collectors()) == 1
    mine.end()
    assert not collectors()
    mine.begin()
    until(lambda mine=mine: mine.done.collections > 0)  # type: ignore[misc, union-attr]
    mine.published()
    until(lambda mine=mine: mine.done.collections > 1)  # type: ignore[misc, union-attr]
    del mine
    until(lambda: not collectors())


def test_an_operator_by_hand_collects_too(tmp_path: Path) -> None:
    schema = pa.schema([("t", pa.timestamp("us", "UTC")), ("origin", pa.int64()), ("offset", pa.int64())])
    job = ts.stream(event_time="t").group_by().window(ts.tumbling("1 second")).aggregate(n=agg.count())
    with job.by_hand(schema, checkpoint=tmp_path, checkpoints=FEW) as operator:
        for number in range(12):
            rows = pa.table([[number * 2_000_000], [0], [number]], names=schema.names)
            operator.add_messages(rows.cast(schema))
            for ready in operator.get_result():
                operator.acknowledge(ready.id)
        until(lambda: done(operator).checkpoints > 0)
    whole(tmp_path)


@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.parametrize(("name", "number"), some([("manifests/", 4), ("manifests/", 1), ("data/", 3)], 1))
def test_killed_in_the_middle_of_a_collection(tmp_path: Path, name: str, number: int) -> None:
    root = tmp_path / "root"
    assert forked("tests.children.upkeep", root, name, number) == -signal.SIGKILL
    whole(root)
    collected_at_each(root, batches=10)
    run(tmp_path / "other", 10)
    there, other = Checkpoint.open(root), Checkpoint.open(tmp_path / "other")
    assert [rows for _, rows in observed(there)] == [rows for _, rows in observed(other)]
    whole(root)
