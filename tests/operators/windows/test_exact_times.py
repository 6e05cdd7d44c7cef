"""Windows to the microsecond: what fires, is late and is refused when the watermark stands exactly at an end."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tidestate import agg, trigger
from tidestate.operators.local.harness import Harness
from tidestate.statestore.spec.limits import KEY_BYTES
from tidestate.statestore.spec.tables import TIME

SECOND = 1_000_000
SCHEMA = pa.schema([("t", TIME), ("k", pa.string())])


def harness(folder: Path, window: Any = None, late: str = "20 seconds", early: Any = None) -> Harness:
    job = (
        ts.stream(event_time="t", watermark_delay="0 seconds")
        .group_by("k")
        .window(window or ts.tumbling("10 seconds"))
    )
    counted = job.aggregate(n=agg.count()).trigger(early=early).allowed_lateness(late, rule="window")
    return counted.harness(SCHEMA, folder=folder)


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
    job = harness(tmp_path, ts.sliding("20 seconds", "10 seconds"), late="0 seconds")
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
    job = harness(tmp_path, early=trigger.after_count(2))
    assert fed(job, 1) == []
    assert fed(job, 2) == [(0, 2, "early")]
    assert fed(job, 3) == []
    assert fed(job, 4, 5) == [(0, 5, "early")]


def test_a_trigger_by_the_clock_fires_when_its_span_is_over(tmp_path: Path) -> None:
    job = harness(tmp_path, early=trigger.after_processing_time("5 seconds"))
    assert fed(job, 1) == []
    assert job.advance_processing_time(5 * SECOND - 1).num_rows == 0
    assert fed(job, 2) == []
    assert job.advance_processing_time(5 * SECOND)["timing"].to_pylist() == ["early"]
    assert job.advance_processing_time(20 * SECOND).num_rows == 0


def test_a_held_row_waits_until_the_watermark_has_passed_it(tmp_path: Path) -> None:
    each = ts.stream(event_time="t", watermark_delay="0 seconds").group_by("k").window(ts.count_windows(1))
    job = each.aggregate(n=agg.count()).in_order().harness(SCHEMA, folder=tmp_path)
    found = []
    for time_us in (5, 5, 6, 7):
        rows = pa.table({"t": pa.array([time_us]).cast(TIME), "k": ["a"]}, schema=SCHEMA)
        found.append(job.feed(rows).num_rows)
    assert found == [0, 0, 2, 1]


# Worked examples of the documents that docs/reference/specifications.md goes through


def test_events_of_195_130_and_280_at_a_watermark_of_200(tmp_path: Path) -> None:
    """Ripple: "watermark at T=200, allowed_lateness = 60"; 195 is mildly late, 130 very late, 280 in the future."""
    job = (
        ts.stream(event_time="t", watermark_delay="0 seconds")
        .group_by("k")
        .window(ts.tumbling("100 seconds"))
        .aggregate(n=agg.count())
        .accumulation("retracting")
        .harness(SCHEMA, folder=tmp_path)
    )
    assert fed(job, 150 * SECOND, 200 * SECOND) == [(100, 1, "on_time")]
    assert fed(job, 200 * SECOND) == []
    assert job.counters()["on_time"] == 3, "at the watermark, too"
    assert fed(job, 195 * SECOND) == [(100, 1, "late"), (100, 2, "late")], "a retraction, and the correction"
    assert fed(job, 140 * SECOND) == [(100, 2, "late"), (100, 3, "late")], "140 is not below 200 - 60"
    assert job.counters()["mildly_late"] == 2
    assert fed(job, 130 * SECOND, 140 * SECOND - 1) == []
    assert job.counters()["very_late"] == 2
    assert job.ledger()["reason"].to_pylist() == ["very_late"] * 2
    assert fed(job, 260 * SECOND, 280 * SECOND) == []
    assert job.counters()["future"] == 1, "260 is not above 200 + 60"
    assert job.counters()["accepted"] == 7


def test_an_event_is_in_one_tumbling_window_and_in_four_that_slide_by_a_quarter(tmp_path: Path) -> None:
    """Ripple: "window_start = event_time - (event_time mod size)"; "For size / slide = 4, each event belongs to 4
    windows". Malhar: "exactly the window duration divided by the slideBy duration".
    """
    times = [0, 59, 60, 61, 119, 200]
    for window, slide in ((ts.tumbling("60 seconds"), 60), (ts.sliding("60 seconds", "15 seconds"), 15)):
        panes = fed(harness(tmp_path / str(slide), window), *(at * SECOND for at in times), 1000 * SECOND)
        starts = [at - at % slide - slide * number for at in times for number in range(60 // slide)]
        assert {start: n for start, n, _ in panes} == Counter(starts)


def test_sessions_of_the_picture(tmp_path: Path) -> None:
    """Ripple: "A new window starts when no events arrive within the gap duration": e1 to e3, e4 to e7, e8 and e9."""
    job = harness(tmp_path, ts.sessions("30 seconds"), late="0 seconds")
    times = [0, 12, 20, 50, 70, 90, 110, 140, 165]
    panes = fed(job, *(at * SECOND for at in reversed(times))) + fed(job, 1000 * SECOND)
    assert sorted((start, n) for start, n, _ in panes) == [(0, 3), (50, 4), (140, 2)]


def kinds(panes: pa.Table) -> list[tuple[int, int, int, str]]:
    """Start and end in seconds, count, and kind of each pane."""
    bounds = [
        [at // SECOND for at in panes[name].cast(pa.int64()).to_pylist()] for name in ("window_start", "window_end")
    ]
    return list(zip(*bounds, panes["n"].to_pylist(), panes["kind"].to_pylist(), strict=True))


def test_an_event_merges_extends_fits_or_opens_a_session(tmp_path: Path) -> None:
    """Malhar: "retraction triggers for the two deleted windows will be fired", "a retraction trigger for the old
    window will be fired", "The new tuple is simply applied", "then a new SessionWindow is created".
    """
    sessions = ts.stream(event_time="t").group_by("k").window(ts.sessions("10 seconds")).aggregate(n=agg.count())
    job = sessions.accumulation("retracting").trigger(early=trigger.each_batch()).harness(SCHEMA, folder=tmp_path)

    def one(second: int) -> list[tuple[int, int, int, str]]:
        rows = pa.table({"t": pa.array([second * SECOND], pa.int64()).cast(TIME), "k": ["a"]}, schema=SCHEMA)
        return sorted(kinds(job.feed(rows)), key=lambda pane: (pane[3] == "emit", pane))

    assert one(100) == [(100, 110, 1, "emit")]
    assert one(115) == [(115, 125, 1, "emit")], "another session"
    assert one(118) == [(115, 125, 1, "retract"), (115, 128, 2, "emit")], "longer"
    assert one(116) == [(115, 128, 2, "retract"), (115, 128, 3, "emit")], "the same window"
    assert one(107) == [(100, 110, 1, "retract"), (115, 128, 3, "retract"), (100, 128, 5, "emit")], "both in one"
    assert one(138) == [(138, 148, 1, "emit")], "exactly a gap apart"


def test_the_clock_changes_no_window_of_event_time(tmp_path: Path) -> None:
    """Ripple: "assigned to windows by their event time, not processing time"; StreamInsight: "based only on
    application time and never on system time".
    """
    outputs = []
    for number, clock in enumerate(([0, 0, 0], [5, 3600, 10**6], [10**9, 10**9, 2 * 10**9])):
        job, panes = harness(tmp_path / str(number)), []
        for now, times in zip(clock, ([3, 12], [7, 31], [19, 55]), strict=True):
            job.advance_processing_time(now * SECOND)
            panes += fed(job, *(at * SECOND for at in times))
        outputs.append((panes, job.counters(), job.ledger().select(["t", "reason"]).to_pylist()))
    assert outputs[0] == outputs[1] == outputs[2]
    assert len(outputs[0][0]) == 5


def test_a_trigger_by_the_clock_fires_at_each_multiple_of_its_span(tmp_path: Path) -> None:
    """Ripple: "Fires every N seconds of processing time"; Malhar: "get fired in a regular time interval"."""
    job = harness(tmp_path, early=trigger.every_processing_time("5 seconds"))
    assert fed(job, 1) == []
    assert job.advance_processing_time(5 * SECOND - 1).num_rows == 0
    for now, n in ((5, 1), (10, 1), (21, 1), (25, 1)):
        panes = job.advance_processing_time(now * SECOND)
        assert (panes["n"].to_pylist(), panes["timing"].to_pylist()) == ([n], ["early"])
        assert job.advance_processing_time(now * SECOND + 1).num_rows == 0


@pytest.mark.parametrize("every", [1, 2])
def test_a_pane_at_every_element_and_at_every_second(tmp_path: Path, every: int) -> None:
    """Ripple: "emit after every input event", "Fires every N input elements"; of sessions by a composite trigger."""
    schema, one_by_one = SCHEMA.append(pa.field("at", pa.int64())), trigger.after_count(every)
    rows = [{"t": 10 * n * SECOND, "k": "a", "at": n} for n in range(5)]
    counted: Any = {"n": agg.count()}
    stream = ts.stream(event_time="t", watermark_delay="1 hour", offset="at").group_by("k")
    each = stream.window(ts.tumbling("1 hour")).aggregate(**counted).trigger(early=one_by_one, evaluate="element")
    sessions = stream.window(ts.sessions("1 minute")).aggregate(**counted).accumulation("retracting")
    sessions = sessions.trigger(when=trigger.repeatedly(one_by_one), evaluate="element")
    for name, job in (("each", each), ("sessions", sessions)):
        panes = job.harness(schema, folder=tmp_path / name).feed(rows)
        emitted = [row["n"] for row in panes.to_pylist() if row["kind"] == "emit"]
        assert emitted == list(range(every, 6, every)), name


def test_early_and_late_have_triggers_of_their_own_for_each_key_and_window(tmp_path: Path) -> None:
    """Malhar: "different triggers for windows that are early or late", "fired on a per-key-per-window basis"."""
    counted = ts.stream(event_time="t", watermark_delay="0 seconds").group_by("k").window(ts.tumbling("10 seconds"))
    job = counted.aggregate(n=agg.count()).trigger(early=trigger.after_count(2), late=trigger.after_count(3))
    job = job.harness(SCHEMA, folder=tmp_path)
    assert fed(job, 1) == fed(job, 2, key="b") == []
    assert fed(job, 3) == [(0, 2, "early")], "of a alone"
    assert fed(job, 10 * SECOND, key="c") == [(0, 2, "on_time"), (0, 1, "on_time")]
    assert fed(job, 4) == fed(job, 5) == fed(job, 6, key="b") == []
    assert fed(job, 7) == [(0, 5, "late")]


def test_a_window_beyond_the_horizon_is_purged_with_its_state(tmp_path: Path) -> None:
    """Malhar: "the window along with its state is purged"."""
    job = harness(tmp_path)
    fed(job, 0, 10 * SECOND)
    assert fed(job, 30 * SECOND - 1) == [(10, 1, "on_time")]
    starts = lambda: job.windows()["window_start"].cast(pa.int64()).to_pylist()  # noqa: E731
    assert [start // SECOND for start in starts()] == [0, 10, 20]
    fed(job, 30 * SECOND)
    assert [start // SECOND for start in starts()] == [10, 20, 30]
    fed(job, 1000 * SECOND)
    assert [start // SECOND for start in starts()] == [1000]
    assert job.finish().num_rows == 1


def test_there_is_one_global_window(tmp_path: Path) -> None:
    """Malhar: "There is only one window for the entire duration of the application"."""
    job = harness(tmp_path, ts.global_window())
    assert fed(job, 0, 10**6 * SECOND) == fed(job, 2 * 10**9 * SECOND) == []
    job.restart()
    assert job.finish()["n"].to_pylist() == [3]
