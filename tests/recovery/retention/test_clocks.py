"""Collecting with clocks that are wrong: those of the runs before, and that of the host that collects."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.helpers.collected import NOW, run, whole
from tests.helpers.collected import root as root
from tests.helpers.process import longer
from tidestate.recovery.log.checkpoint import Checkpoint, now_us
from tidestate.recovery.retention.collection import collect
from tidestate.recovery.retention.rules import CheckpointRetention, made_by


def test_a_checkpoint_of_a_clock_that_was_ahead_keeps_nothing() -> None:
    year_us, now = 365 * 86_400_000_000, 10**15
    assert made_by([(1, 5), (2, 7)], now) == {1: 5, 2: 7}
    made = made_by([(1, 5), (2, now + year_us), (3, now + 1), (4, 9), (5, now + year_us)], now)
    assert list(made.items()) == [(1, 5), (2, 9), (3, 9), (4, 9), (5, now)]


@pytest.mark.parametrize(
    "retention", [{"age": "0 seconds"}, *longer({"newest": 2}), {"newest": 2, "panes": "0 seconds"}]
)
def test_a_clock_that_was_years_ahead_does_not_stop_collections(
    root: Path, retention: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = now_us() + 10 * 365 * 86_400_000_000
    with monkeypatch.context() as patch:
        patch.setattr("tidestate.operators.engine.job.now_us", lambda: ahead)
        patch.setattr("tidestate.operators.local.standalone.now_us", lambda: ahead)
        run(root, 12)
    assert Checkpoint.open(root).chosen(None).manifest.created_us >= ahead
    for batches in (12, 14):
        run(root, batches)
        done = collect(Checkpoint.open(root), CheckpointRetention(**retention, grace="0 seconds"))
        assert done.kept == retention.get("newest", 1)
        assert done.late_gone == (done.boundary + done.kept if "panes" in retention else 0)
    whole(root)


def test_an_unfinished_file_is_as_old_as_storage_says(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh, old = (root / "data" / f".{number}-x.{number * 32}" for number in "ab")
    for path in (fresh, old):
        path.write_bytes(b"being written")
    os.utime(old, (1, 1))
    hour_ahead = now_us() + 2 * 3_600_000_000
    with monkeypatch.context() as patch:
        patch.setattr("time.time_ns", lambda: hour_ahead * 1000)
        collect(Checkpoint.open(root), NOW)
    assert fresh.exists()
    assert not old.exists()
