"""Windows to the microsecond: what fires, is late and is refused when the watermark stands exactly at an end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from tidestate.agg import count
from tidestate.operators import sliding, tumbling
from tidestate.operators.describe.windowed import windowed
from tidestate.operators.describe.windows import count_window
from tidestate.operators.local.harness import Harness
from tidestate.statestore.spec.limits import KEY_BYTES
from tidestate.statestore.spec.tables import TIME
from tidestate.trigger import after_count, after_processing_time

SECOND = 1_000_000
SCHEMA = pa.schema([("t", TIME), ("k", pa.string())])


def harness(folder: Path, window: Any = None, late: str = "20 seconds", early: Any = None) -> Harness:
    job = windowed(event_time="t", key="k", watermark_delay="0 seconds").window(window or tumbling("10 seconds"))
    job = job.trigger(early=early)
    return Harness(job.aggregate(n=count()).late(late, rule="window"), SCHEMA, folder=folder)


def fed(job: Harness, *times_us: int, key: str | None = "a") -> list[tuple[int, int, str]]:
    """Start in seconds, count and timing of each pane after this batch."""
    rows = pa.table({"t": pa.array(times_us, pa.int64()).cast(TIME), "k": [key] * len(times_us)}, schema=SCHEMA)
    panes = job.feed(rows).select(["window_start", "n", "timing"])
    starts = [start // SECOND for start in panes["window_start"].cast(pa.int64()).to_pylist()]
    return list(zip(starts, panes["n"].to_pylist(), panes["timing"].to_pylist(), strict=True))


def test_a_window_fires_when_the_watermark_is_its_end_and_once(tmp_path: Path) -> None:
    job = harness(tmp_path)
    assert fed(job, 0, 10 * SECOND - 1) == []
    assert fed(job, 10 * SECOND) == [(0, 2, "on_time")]
    assert fed(job, 10 * SECOND - 1) == [(0, 3, "late")]
    assert job.counters()["mildly_late"] == 1
    assert fed(job, 10 * SECOND) == [], "it is not behind the watermark"
    assert job.counters()["mildly_late"] == 1


def test_a_window_takes_late_events_until_the_lateness_is_over(tmp_path: Path) -> None:
    job = harness(tmp_path)
    assert fed(job, 0, 30 * SECOND - 1) == [(0, 1, "on_time")]
    assert fed(job, 1) == [(0, 2, "late")]
    assert fed(job, 30 * SECOND) == [(20, 1, "on_time")]
    assert fed(job, 2, 10 * SECOND) == [(10, 1, "late")]
    assert job.ledger().select(["t", "reason"]).to_pydict() == {
        "t": pa.array([2]).cast(TIME).to_pylist(),
        "reason": ["very_late"],
    }


def test_a_window_that_has_closed_refuses_an_event_that_another_one_takes(tmp_path: Path) -> None:
    job = harness(tmp_path, sliding("20 seconds", "10 seconds"), late="0 seconds")
    fed(job, 20 * SECOND)
    assert fed(job, 15 * SECOND, 30 * SECOND) == [(10, 2, "on_time")]
    ledger = job.ledger()
    assert [one.value // SECOND for one in ledger["window_start"]] == [0]
    assert ledger["reason"].to_pylist() == ["very_late"]
    assert job.counters()["refused_windows"] == 1


def test_an_event_without_a_key_is_in_the_ledger(tmp_path: Path) -> None:
    job = harness(tmp_path)
    assert fed(job, 1, key=None) == []
    assert job.ledger()["reason"].to_pylist() == ["null_key"]
    assert job.counters()["accepted"] == 0


def test_an_event_whose_key_is_too_long_is_in_the_ledger(tmp_path: Path) -> None:
    job = harness(tmp_path)
    assert fed(job, 1, key="k" * (KEY_BYTES + 1)) == []
    assert job.ledger()["reason"].to_pylist() == ["key_too_long"]
    assert job.counters()["key_too_long"] == 1
    assert fed(job, 2, key="k" * KEY_BYTES) == []
    assert job.counters()["accepted"] == 1


def test_a_trigger_by_count_fires_with_the_last_event_of_it(tmp_path: Path) -> None:
    job = harness(tmp_path, early=after_count(2))
    assert fed(job, 1) == []
    assert fed(job, 2) == [(0, 2, "early")]
    assert fed(job, 3) == []
    assert fed(job, 4, 5) == [(0, 5, "early")]


def test_a_trigger_by_the_clock_fires_when_its_span_is_over(tmp_path: Path) -> None:
    job = harness(tmp_path, early=after_processing_time("5 seconds"))
    assert fed(job, 1) == []
    assert job.advance_processing_time(5 * SECOND - 1).num_rows == 0
    assert fed(job, 2) == []
    assert job.advance_processing_time(5 * SECOND)["timing"].to_pylist() == ["early"]
    assert job.advance_processing_time(20 * SECOND).num_rows == 0


def test_a_held_row_waits_until_the_watermark_has_passed_it(tmp_path: Path) -> None:
    each = windowed(event_time="t", key="k", watermark_delay="0 seconds", in_order=True).window(count_window(1))
    job = Harness(each.aggregate(n=count()), SCHEMA, folder=tmp_path)
    found = []
    for time_us in (5, 5, 6, 7):
        rows = pa.table({"t": pa.array([time_us]).cast(TIME), "k": ["a"]}, schema=SCHEMA)
        found.append(job.feed(rows).num_rows)
    assert found == [0, 0, 2, 1]
