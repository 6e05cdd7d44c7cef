"""Rejections and leaps of the watermark are warnings, once a batch, whichever runner takes it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.process import LONG
from tidestate import Aggregation, agg
from tidestate.operators.embedded.window_operator import WindowOperator
from tidestate.operators.engine.job_log import (
    WARN_EVERY_S,
    JobLog,
    RejectedSince,
    crosses_gap,
    is_minute_over,
    leapt,
    time_steps,
)
from tidestate.operators.engine.micro_batch import TaskResult
from tidestate.operators.progress.progress import Peak, Progress, TimeSteps, highest, peak_of
from tidestate.operators.progress.watermarks import BEGINNING_US
from tidestate.statestore.spec.store import Memory
from tidestate.statestore.spec.tables import TIME

SECOND, DAY = 1_000_000, 86_400_000_000
SCHEMA = pa.schema([("at", TIME), ("user", pa.string()), ("source", pa.int64()), ("offset", pa.int64())])


def job(generator: Any = None, **late: str) -> Aggregation:
    events = ts.stream(event_time="at", offset="offset", origin="source")
    described = (events if generator is None else events.watermark(generator)).group_by("user")
    return (
        described.window(ts.tumbling("10 seconds"))
        .aggregate(n=agg.count())
        .named("clicks")
        .allowed_lateness("0 seconds", **late)
    )


def batch(*seconds: float, user: str = "ann", first: int = 0) -> pa.Table:
    rows = [
        {"at": round(second * SECOND), "user": user, "source": 0, "offset": first + place}
        for place, second in enumerate(seconds)
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


def normal(start: int, first: int = 0) -> pa.Table:
    return batch(*range(start, start + 20), first=first)


def leap() -> pa.Table:
    return pa.concat_tables([normal(20, 20), batch(1030, user="\x1b[31mbob", first=40)])


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [r.getMessage() for r in caplog.records if r.name == "tidestate" and r.levelno == logging.WARNING]
    caplog.clear()
    return found


def test_events_in_the_future_are_a_warning_once_a_minute_that_names_the_settings(
    caplog: pytest.LogCaptureFixture,
) -> None:
    described = ts.stream(event_time="at", watermark_delay="2 minutes").group_by("user")
    harness = described.window(ts.tumbling("10 seconds")).aggregate(n=agg.count()).named("clicks").harness(SCHEMA)
    harness.feed(batch(320))
    assert not warnings(caplog)
    harness.feed(batch(381, 382))
    (answered,) = warnings(caplog)
    assert answered.startswith("checkpoint 3: 2 events of clicks are far ahead of the watermark, ")
    for setting in (
        "hold_future=…",
        "watermark delay (now 2 minutes)",
        "(future_tolerance=…)",
        "tolerance, 1 minute",
    ):
        assert setting in answered
    harness.feed(batch(500))
    assert not warnings(caplog)  # the minute is not over


def test_the_files_of_ordinary_days_are_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nearly all rows of a file are a day ahead of the watermark before it; in one process, and in one for each."""
    days = [np.sort(np.random.default_rng(day).uniform(day, day + 1, 500)) * DAY / SECOND for day in range(4)]
    harness = job().harness(SCHEMA, folder=tmp_path / "harness")
    for day, seconds in enumerate(days):
        harness.feed(batch(*seconds))
        job().standalone(checkpoint=str(tmp_path / "root"), store=Memory()).run(
            [batch(*hours, first=500 * number) for number, hours in enumerate(days[: day + 1])]
        )
    assert not [text for text in warnings(caplog) if "far ahead" in text]


def test_events_behind_a_gap_are_a_warning_also_after_ordinary_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What is no reason for a warning does not begin the minute."""
    harness = job().harness(SCHEMA, folder=tmp_path / "root")
    for first in (0, 100, 200):
        harness.feed(batch(*range(first, first + 100)))
    assert warnings(caplog) == []
    harness.feed(batch(*range(5000, 5100)))
    (text,) = warnings(caplog)
    assert text.startswith("checkpoint 5: 100 events of clicks are far ahead of the watermark, ")


@pytest.mark.parametrize("run", [TimeSteps(), TimeSteps(50, SECOND)])
def test_gaps_between_batches_and_within_them(run: TimeSteps) -> None:
    """With nothing but the batch to compare with, and with the steps before it."""

    def crosses(*seconds: float) -> bool:
        times = np.array([round(second * SECOND) for second in seconds])
        peak = peak_of(times, pa.table({"at": times}), [])
        return crosses_gap(100 * SECOND, peak, 60 * SECOND, run)

    assert not crosses(*range(101, 400))
    assert crosses(*range(161, 400)), "between the batches"
    assert not crosses(*range(160, 400)), "not longer than the tolerance"
    assert crosses(*range(101, 150), *range(500, 550)), "between its halves"
    assert crosses(*range(101, 200), 1000), "before its last event"
    assert crosses(161), "a single event"
    assert crosses(101, 162), "between two"
    assert not crosses(101, 160)
    assert not crosses(*range(100), 101)


def test_a_pause_as_long_as_those_before_is_no_gap() -> None:
    nights = TimeSteps(100, 3600 * SECOND)
    times = np.arange(8000, 9000) * SECOND
    later = Peak(9000 * SECOND, "", 7201 * SECOND, 8900 * SECOND, 100, TimeSteps(99, SECOND))
    assert not crosses_gap(
        0, peak_of(times, pa.table({"at": times}), []), 60 * SECOND, nights + TimeSteps(1, 4000 * SECOND)
    )
    assert not crosses_gap(SECOND, later, 60 * SECOND, nights)
    assert crosses_gap(0, later, 60 * SECOND, nights)


def test_a_name_is_warned_of_once_a_minute() -> None:
    warned_s = {"a": 100.0}
    assert [is_minute_over(warned_s, name, 100.0 + WARN_EVERY_S - 0.1) for name in "ab"] == [False, True]
    assert is_minute_over(warned_s, "a", 100.0 + WARN_EVERY_S)


def answer(rejected: dict[str, int], example: str) -> TaskResult:
    return TaskResult("a", (0, 1), (), Progress({}), rejected=rejected, example=example)


def test_rejected_rows_are_warned_of_once_a_minute_and_each_is_counted() -> None:
    late, null = answer({"very_late": 2}, "t=1"), answer({"null_key": 1}, "t=2")
    warned = JobLog("root")
    assert warned.rejections_due(3, {"a": [answer({}, ""), late], "b": [answer({"purged": 9}, "t=0")]}, 100.0) == {
        "a": RejectedSince(3, {"very_late": 2}, "t=1")
    }
    assert warned.rejections_due(4, {"a": [late, null], "b": [null]}, 159.9) == {
        "b": RejectedSince(4, {"null_key": 1}, "t=2")
    }
    assert warned.rejections_due(5, {"a": [null], "b": []}, 160.0) == {
        "a": RejectedSince(4, {"very_late": 2, "null_key": 2}, "t=2")
    }
    assert warned.rejections_due(6, {"a": [], "b": [late]}, 161.0) == {}
    left = RejectedSince(6, {"very_late": 2}, "t=1")
    assert (warned.rejections_left(), warned.rejections_left()) == ({"b": left}, {})


def test_a_job_that_ends_warns_of_the_rest(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    alone = job().standalone(checkpoint=str(tmp_path), store=Memory())
    alone.run([leap(), normal(1, 2), normal(3, 4), normal(5, 6)])
    found = [text.partition(" rejected by ")[0] for text in warnings(caplog) if " rejected by " in text]
    assert found == ["checkpoint 3: 20 rows", "checkpoints 4 to 5: 40 rows"]


def check_leap(found: list[str], root: Path, checkpoint: int) -> None:
    (answered,) = found
    assert answered.startswith(f"checkpoint {checkpoint}: the watermark of clicks leapt from 1970-01-01 00:00:19 to ")
    assert "at=1970-01-01 00:17:10" in answered
    assert "user='\\x1b[31mbob', source=0, offset=40" in answered
    assert "events before 1970-01-01 00:17:10 are late from now on" in answered
    for setting in ("watermark.bounded(…, hold_future=…)", "watermark delay (now 0 seconds)", ".allowed_lateness(…)"):
        assert setting in answered
    assert answered.endswith(f"tidestate rewind {root} {checkpoint - 1}")


def check_rejections(found: list[str], root: Path, checkpoint: int) -> None:
    (answered,) = found
    assert answered.startswith(
        f"checkpoint {checkpoint}: 20 rows rejected by clicks (very_late 20), for example one with at="
    )
    assert "user='ann'" in answered
    assert "the watermark is 1970-01-01 00:17:10, moved by an event with at=1970-01-01 00:17:10" in answered
    assert f"tidestate late {root}" in answered
    assert "reprocess_late()" in answered


def test_standalone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root, batches = tmp_path / "root", [normal(0)]
    job().standalone(checkpoint=str(root), store=Memory()).run(batches)
    assert warnings(caplog) == []
    job().standalone(checkpoint=str(root), store=Memory()).run([*batches, leap()])
    check_leap(warnings(caplog), root, 4)
    # Another run still knows which event it was.
    job().standalone(checkpoint=str(root), store=Memory()).run([*batches, leap(), normal(40, 41)])
    check_rejections(warnings(caplog), root, 6)


def test_harness(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "root"
    tested = job().harness(SCHEMA, folder=root)
    tested.feed(normal(0))
    tested.feed(leap())
    check_leap(warnings(caplog), root, 3)
    tested.feed(normal(40, 41))
    check_rejections(warnings(caplog), root, 4)
    tested.finish()
    assert warnings(caplog) == []


def test_by_hand(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "root"
    described = ts.stream(event_time="at").group_by("user").window(ts.tumbling("10 seconds"))
    described = described.aggregate(n=agg.count()).named("clicks").allowed_lateness("0 seconds")
    windows = described.graph.description
    with WindowOperator(windows, SCHEMA, checkpoint=root, origin="source", offset="offset") as operator:
        operator.add_messages(normal(0))
        operator.flush()
        assert warnings(caplog) == []
        operator.add_messages(leap())
        operator.flush()
        assert "because of an event with at=1970-01-01 00:17:10, user='" in warnings(caplog)[0]
        operator.add_messages(normal(40, 41))
        operator.flush()
        (answered,) = warnings(caplog)
        assert "20 rows rejected by clicks (out_of_retention 20)" in answered
        assert "moved by an event with at=1970-01-01 00:17:10" in answered


def test_an_event_that_comes_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing to compare it with but the steps before it."""
    tested = job().harness(SCHEMA, folder=tmp_path / "root")
    for place, second in enumerate((0, 2, 5, 9, 1009)):
        tested.feed(batch(second, first=place))
    assert "leapt from 1970-01-01 00:00:09 to 1970-01-01 00:16:49" in warnings(caplog)[0]
    tested.feed(batch(15, first=9))
    assert "1 rows rejected by clicks (very_late 1)" in warnings(caplog)[0]


def test_what_is_no_leap_is_not_reported_to_be_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first batch, a history of a day a batch, a night without events, one event an hour, an input that ends."""
    tested = job().harness(SCHEMA, folder=tmp_path / "root")
    hours = [np.sort(np.random.default_rng(day).uniform(day, day + 1, 200)) * DAY / SECOND for day in range(3)]
    for seconds in hours:
        tested.feed(batch(*seconds))
    tested.feed(batch(*(4 * DAY / SECOND + np.arange(20))))
    for hour in range(3):
        tested.feed(batch(5 * DAY / SECOND + 3600 * hour))
    tested.finish()
    assert not [text for text in warnings(caplog) if "leapt" in text]


def test_events_that_are_held_back_move_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    described = job(ts.watermark.bounded(hold_future="1 minute"))
    tested = described.harness(SCHEMA, folder=tmp_path / "root")
    tested.advance_processing_time(40 * SECOND)
    tested.feed(normal(0))
    tested.feed(leap())
    tested.feed(normal(40, 41))
    assert not [text for text in warnings(caplog) if "leapt" in text]


def test_the_reasons_of_one_batch_are_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tested = job().harness(SCHEMA, folder=tmp_path / "root", partitions=3)
    tested.feed(normal(30))
    odd = [
        {"at": None, "user": "ann", "source": 0, "offset": 30},
        {"at": 2**62, "user": None, "source": 0, "offset": 31},
    ]
    tested.feed(pa.concat_tables([batch(1, first=32), pa.Table.from_pylist(odd, SCHEMA)]))
    (answered,) = warnings(caplog)
    assert "3 rows rejected by clicks (null_event_time 1, null_key 1, very_late 1)" in answered


def test_peaks_of_pieces_come_to_one_whatever_their_order() -> None:
    alone, many = Peak(900, "alone", 900), Peak(40, "many", 10, 38, 5, TimeSteps(4, 20))
    assert highest([alone, many]) == highest([many, alone]) == Peak(900, "alone", 10, 38, 5, TimeSteps(4, 20))
    assert highest([alone, Peak(7, "b", 7)]) == Peak(900, "alone", 7, 7)
    assert highest([]) is None


def test_a_sample_finds_the_bulk_of_a_large_batch() -> None:
    times = np.append(np.arange(1_000_000), 10**12)
    found = peak_of(times, pa.table({"at": times}), ["at", "gone"])
    assert (found.time_us, found.event, found.least_us) == (10**12, f"at={10**12}", 0)
    assert found.bulk_us is not None
    assert 940_000 < found.bulk_us < 1_000_000
    for before in (0, BEGINNING_US):
        assert leapt(before, 10**12, found, 60 * SECOND, TimeSteps())
        assert not leapt(before, 10**12, found, 60 * SECOND, TimeSteps(1, 10**12))


def test_a_leap_in_the_first_batch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tested = job().harness(SCHEMA, folder=tmp_path / "root")
    tested.feed(batch(*range(100), 1099))
    (answered,) = warnings(caplog)
    assert "leapt from undefined to 1970-01-01 00:18:19" in answered
    tested.feed(batch(*range(100), first=200))
    assert "100 rows rejected" in warnings(caplog)[0]


def test_two_stray_events_of_ten(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tested = job().harness(SCHEMA, folder=tmp_path / "root")
    tested.feed(batch(*range(10)))
    assert warnings(caplog) == []
    tested.feed(batch(*range(10, 18), 90_000, 90_001, first=10))
    assert "leapt from 1970-01-01 00:00:09 to 1970-01-02 01:00:01" in warnings(caplog)[0]


def test_an_operator_is_advised_of_settings_that_it_has(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tested = ts.stream(event_time="at").deduplicate("offset").harness(SCHEMA, folder=tmp_path / "root")
    for rows in (normal(0), leap(), normal(40, 41)):
        tested.feed(rows)
    leapt_to, rejected = warnings(caplog)
    assert "a longer watermark delay (now 0 seconds) or allowed_lateness=… (now 0 seconds) waits" in leapt_to
    assert "20 rows rejected by deduplicated (very_late 20)" in rejected
    assert "reprocess_late() processes those (very_late) whose ids are not remembered" in rejected


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        (
            {"within": ("0 seconds", "5 seconds")},
            "(now 0 seconds) or allowed_lateness=… (now 0 seconds) waits for the other events",
        ),
        (
            {"left": ts.side(window=ts.tumbling("1 minute"))},
            "watermark delay (now 0 seconds) waits for the other events",
        ),
    ],
)
def test_a_join_is_advised_of_settings_that_it_has(
    given: dict[str, Any], advice: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    described = ts.stream(event_time="at").join(ts.stream(event_time="at"), on="user", **given)
    side = SCHEMA.remove(3).remove(2)
    schema = {"left": side, "right": side}
    tested = described.harness(schema, folder=tmp_path / "root")
    for rows in (normal(0), leap()):
        tested.feed({"left": rows.select(side.names), "right": rows.select(side.names)})
    (answered,) = warnings(caplog)
    assert advice in answered


def test_before_the_first_watermark_it_is_undefined(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tested = job().harness(SCHEMA, folder=tmp_path / "root")
    tested.feed(pa.Table.from_pylist([{"at": None, "user": "ann", "source": 0, "offset": 0}], SCHEMA))
    assert "; the watermark is undefined; " in warnings(caplog)[0]


def leaps_of(times: np.ndarray, cuts: Sequence[int], ahead_us: int = 0) -> int:
    """How many batches of a history, cut at these places, are taken for leaps."""
    steps, before, found = TimeSteps(), BEGINNING_US, 0
    for piece in np.split(times, cuts):
        if not len(piece):
            continue
        peak = peak_of(piece, pa.table({"at": piece}), [])
        if peak.time_us == before:
            continue
        found += leapt(before, peak.time_us, peak, ahead_us, steps)
        steps, before = steps + time_steps(before, peak.time_us, peak), peak.time_us
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 10, 20, 30, 41, 42, 43, 60, 100, 1000])
def test_sparse_events_in_order_never_leap(size: int) -> None:
    """Events of a Poisson process, without any tolerance; several histories of each size of batch."""
    for seed in range(20 if LONG else 8):
        random = np.random.default_rng([size, seed])
        times = np.cumsum(random.exponential(600 * SECOND, max(300, size * 5)).astype(np.int64) + 1)
        assert leaps_of(times, range(size, len(times), size)) == 0
        assert leaps_of(times, np.sort(random.integers(0, len(times), len(times) // size))) == 0


@pytest.mark.parametrize("size", [1, 10, 50, 100])
def test_events_that_share_their_times_never_leap(size: int) -> None:
    """All devices report at once, every five minutes."""
    times = np.repeat(np.arange(200) * 300 * SECOND, 7)
    assert leaps_of(times, range(size, len(times), size)) == 0


def test_nights_without_events_never_leap() -> None:
    """A batch a day, and half a day; nights without events between them."""
    for seed in range(20):
        random = np.random.default_rng(seed)
        days = [day * DAY + np.sort(random.integers(0, DAY * 14 // 24, 200)) for day in range(10)]
        times = np.concatenate(days)
        assert leaps_of(times, range(200, len(times), 200)) == leaps_of(times, range(100, len(times), 100)) == 0


def test_a_night_that_one_event_ends_is_taken_for_a_leap_once() -> None:
    """What follows it is not known yet; the nights after it are."""
    times = np.concatenate([day * DAY + np.arange(200) * 60 * SECOND for day in range(10)])
    assert leaps_of(times, [day * 200 + 1 for day in range(1, 10)]) == 1


def test_any_key_can_be_named() -> None:
    far = pa.array([2**31 - 1], pa.int32()).cast(pa.date32())
    events = pa.table({"at": [1], "day": far, "raw": [b"\x1b["], "none": pa.nulls(1), "long": ["x" * 1000]})
    words = peak_of(np.array([1]), events, events.column_names).event
    assert words.startswith(
        "at=1, day=a date32[day] that Python cannot represent, raw=b'\\x1b[', none=null, long='xxx"
    )
    assert len(words) < 200
