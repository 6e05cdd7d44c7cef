"""What each step believes of itself: a mistake, made on purpose, is refused before anything is published."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tidestate as ts
from tidestate import agg
from tidestate.operators.local.harness import Harness
from tidestate.operators.plan.classify import PartitionedRows
from tidestate.operators.windows import step
from tidestate.operators.windows.step import check_on_time
from tidestate.statestore.errors import InvariantError

TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("t", TIME), ("k", pa.string())])
SECOND = 1_000_000


def rows(*seconds: int) -> pa.Table:
    return pa.table({"t": pa.array([s * SECOND for s in seconds]).cast(TIME), "k": [f"k{s}" for s in seconds]})


def harness(window: Any, folder: Path, partitions: int = 1) -> Harness:
    job = (
        ts.stream(event_time="t", watermark_delay="0 seconds")
        .group_by("k")
        .window(window)
        .aggregate(n=agg.count())
        .allowed_lateness("1 hour")
    )
    return job.harness(SCHEMA, folder=folder, partitions=partitions)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("window", [ts.tumbling("10 seconds"), ts.sessions("5 seconds")], ids=["tumbling", "session"])
def test_a_window_that_fires_on_time_again(window: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, real = harness(window, tmp_path), step.phases
    job.feed(rows(1, 25))

    def forgetful(*given: Any) -> Any:
        found = real(*given)
        return replace(found, behind=np.zeros_like(found.behind), passing=found.passing | found.behind)

    late = pa.table({"t": pa.array([2 * SECOND, 45 * SECOND]).cast(TIME), "k": ["k1", "k45"]})
    monkeypatch.setattr(step, "phases", forgetful)
    with pytest.raises(InvariantError, match="when the watermark passes its end"):
        job.feed(late)
    monkeypatch.undo()
    job.restart()
    panes = job.feed(late)  # nothing was published
    assert sorted(panes["timing"].to_pylist()) == ["late", "on_time"]


def test_a_window_that_fires_twice_in_a_step_or_outside_it() -> None:
    windows, ends = pa.table({"k": ["a", "b"]}), np.array([10, 20])
    check_on_time(windows, ends, 9, 20)
    check_on_time(windows, None, 0, 0)
    check_on_time(windows.slice(0, 0), ends[:0], 0, 0)
    with pytest.raises(InvariantError, match="once in a step"):
        check_on_time(pa.concat_tables([windows, windows]), None, 0, 0)
    for before, after in ((10, 20), (9, 19)):
        with pytest.raises(InvariantError, match="when the watermark passes its end"):
            check_on_time(windows, ends, before, after)


def together(real: Callable[..., PartitionedRows]) -> Callable[..., PartitionedRows]:
    def placed(*given: Any) -> PartitionedRows:
        found = real(*given)
        return replace(found, counts=((0, found.rows.num_rows),))

    return placed


def test_without_a_key_all_rows_arrive_in_the_first_partition(tmp_path: Path) -> None:
    job = ts.stream(event_time="t").group_by().window(ts.tumbling("10 seconds")).aggregate(n=agg.count())
    assert job.harness(SCHEMA, folder=tmp_path, partitions=3).feed(rows(1, 2, 25))["n"].to_pylist() == [2]


def test_rows_that_arrive_in_the_wrong_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = harness(ts.tumbling("10 seconds"), tmp_path, partitions=3)
    job.feed(rows(1, 2, 3, 4))
    monkeypatch.setattr(PartitionedRows, "of", together(PartitionedRows.of))
    with pytest.raises(InvariantError, match="in the state partition of its key"):
        job.feed(rows(5, 6, 7, 8))
