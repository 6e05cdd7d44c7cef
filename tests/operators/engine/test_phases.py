"""Times of the phases of a round."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.command import json_lines, tidestate
from tidestate import agg
from tidestate.operators.engine.tasks import PHASES, Stopwatch, round_times
from tidestate.recovery.log.checkpoint import Checkpoint


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_an_inner_phase_counts_by_itself_alone() -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    clock.now = 5.0  # nothing is open: counts for no phase
    with watch.timed("write"):
        clock.now += 1.0
        with watch.timed("group"):
            clock.now += 2.0
        clock.now += 0.5
    clock.now += 9.0
    assert watch.take() == {"write": 1_500_000, "group": 2_000_000}
    assert watch.take() == {}


def test_waiting_for_items_counts_and_using_them_does_not() -> None:
    clock = Clock()
    watch = Stopwatch(clock)

    def items() -> Any:
        for item in range(3):
            clock.now += 1.0
            yield item

    for item in watch.awaited("read", items()):
        clock.now += 10.0
        assert item in range(3)
    assert watch.take() == {"read": 3_000_000}


def test_an_error_ends_a_phase() -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    with pytest.raises(ValueError), watch.timed("group"):  # noqa: PT012
        clock.now += 1.0
        raise ValueError
    clock.now += 1.0
    assert watch.take() == {"group": 1_000_000}


def test_tasks_that_run_at_once_share_the_time() -> None:
    tasks = [{"read": 4_000_000, "group": 1_000_000}, {"read": 2_000_000}]
    found = round_times({"engine": 5_000_000, "publish": 250_000}, tasks, 2)
    assert found == {"read": 3.0, "group": 0.5, "publish": 0.25, "other": 1.5}


def test_each_checkpoint_logs_its_phases(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = (
        ts.stream(event_time="t")
        .group_by("k")
        .window(ts.tumbling("1 hour"))
        .aggregate(n=agg.count())
        .named("counted")
    )
    rows = pa.table({"t": [datetime(2013, 1, 1, tzinfo=UTC)] * 3, "k": ["a", "b", "c"]})
    began = time.monotonic()
    with caplog.at_level(logging.DEBUG, "tidestate"):
        job.standalone(checkpoint=tmp_path / "root", partitions=2).run([rows, rows])
    took = time.monotonic() - began
    found = [record.args for record in caplog.records if "seconds by phase" in record.msg]
    assert len(found) == 2
    times: list[dict[str, float]] = [args[1] for args in found]  # type: ignore[index, misc]
    for one in times:
        assert set(one) == {"classify", "group", "step", "fold", "write", "publish", "deliver", "other"}
        assert set(one) <= set(PHASES)
    assert 0 < sum(sum(one.values()) for one in times) <= took
    fence, first, second = (one.manifest for one in map(Checkpoint.open(tmp_path / "root").read, (1, 2, 3)))
    assert fence.spent is None
    assert (first.spent.earlier, first.spent.finished, second.spent.earlier) == (0, {}, 2)
    for log, known in ((times[0], first.spent.made | second.spent.finished), (times[1], second.spent.made)):
        assert {phase: log[phase] for phase in known} == known
    listed = json_lines(tidestate("list", tmp_path / "root", "--json"))
    assert [row["seconds"] for row in listed] == [None, times[0], second.spent.made]
    assert listed[0]["state_rows"] == 0 < listed[-1]["state_rows"]
    observed = tidestate("show", tmp_path / "root").stdout
    assert "the end of 2 took" in observed
