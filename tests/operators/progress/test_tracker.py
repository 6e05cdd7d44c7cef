"""Per-source watermarks and their minimum, against a tracker that keeps every mark it was given.

Names in capitals say where a rule is from: RIPPLE ("Windowing & Watermarks"), NEBULA ("Watermarking and Progress"),
STREAMINSIGHT ("Advancing Application Time"), OURS (docs/how-it-works/progress.md).
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidestate.operators.progress.metrics import metrics_of
from tidestate.operators.progress.progress import Progress, SourceReport, begin, merged, observe, reset_sources
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US, LAST_US, Sources, sources
from tidestate.statestore.errors import UsageError


def after_marks(tracker: Progress, settings: Sources, marks: dict[str, int], now_us: int = 0) -> Progress:
    return observe(settings, tracker, {name: SourceReport(mark) for name, mark in marks.items()}, now_us)


def asked(settings: Sources, tracker: Progress, now_us: int, **reports: SourceReport) -> Progress:
    """A round in which every source was asked."""
    return observe(settings, tracker, {name: SourceReport() for name in tracker.sources} | reports, now_us)


# RIPPLE


def test_ripple_the_overall_watermark_is_the_minimum_across_all_sources() -> None:
    settings = sources("A", "B", "C")
    tracker = after_marks(begin(settings), settings, {"A": 100, "B": 50, "C": 200})
    assert tracker.watermark_us == 50


def test_streaminsight_different_data_sources_may_proceed_at_different_speeds() -> None:
    settings = sources("fast", "slow")
    tracker = begin(settings)
    for number in range(1, 11):
        slow = {"slow": number} if number % 5 == 0 else {}
        tracker = after_marks(tracker, settings, {"fast": 10 * number} | slow)
    assert (tracker.sources["fast"].watermark_us, tracker.watermark_us) == (100, 10)


def test_ripple_b_still_at_0() -> None:
    """t0 of the table: A has advanced to 100, B has sent nothing: no watermark, so window [0, 100) does not fire."""
    settings = sources("A", "B")
    tracker = after_marks(begin(settings), settings, {"A": 100})
    assert tracker.watermark_us == BEGINNING_US
    from_zero = after_marks(after_marks(begin(settings), settings, {"A": 0, "B": 0}), settings, {"A": 100})
    assert from_zero.watermark_us == 0


def test_ripple_multi_source_example() -> None:
    """The table of t0 to t4, with whether the window [0, 100) has been triggered."""
    settings = sources("A", "B")
    tracker, found = after_marks(begin(settings), settings, {"A": 0, "B": 0}), []
    for step in ({"A": 100}, {"B": 50}, {"B": 100}, {"A": 200}, {"B": 150}):
        before = tracker.watermark_us
        tracker = after_marks(tracker, settings, step)
        found.append((tracker.watermark_us, before < 100 <= tracker.watermark_us))
    assert found == [(0, False), (50, False), (100, True), (100, False), (150, False)]


def test_ripple_the_overall_watermark_advances_only_when_the_slowest_source_does() -> None:
    settings = sources("A", "B", "C")
    tracker = after_marks(begin(settings), settings, {"A": 100, "B": 50, "C": 200})
    assert after_marks(tracker, settings, {"A": 1000, "C": 1000}).watermark_us == 50
    assert after_marks(tracker, settings, {"B": 60}).watermark_us == 60


def test_ripple_a_backward_move_is_ignored_and_ours_counted() -> None:
    settings = sources("A")
    tracker = after_marks(after_marks(begin(settings), settings, {"A": 100}), settings, {"A": 40})
    assert (tracker.watermark_us, tracker.sources["A"].watermark_us) == (100, 100)
    assert (tracker.backward, tracker.sources["A"].backward, tracker.advances) == (1, 1, 1)
    assert after_marks(tracker, settings, {"A": 100}).backward == 1


def test_ours_a_generated_watermark_below_the_last_is_no_step_back() -> None:
    settings = sources("A")
    tracker = after_marks(begin(settings), settings, {"A": 100})
    again = observe(settings, tracker, {"A": SourceReport(40, rows=3, generated=True)}, 0)
    assert (again.watermark_us, again.backward) == (100, 0)


def test_ripple_the_tracker_is_reset_to_the_checkpoints_watermark() -> None:
    settings = sources("A", "B", idle_timeout="1 second")
    tracker = after_marks(begin(settings), settings, {"A": 100, "B": 50}, now_us=5)
    saved = msgspec.json.decode(msgspec.json.encode(tracker), type=Progress)
    assert saved == tracker
    again = reset_sources(saved)
    assert (again.watermark_us, again.sources) == (50, tracker.sources)
    assert after_marks(again, settings, {"B": 20, "A": 90}).watermark_us == 50


# NEBULA


def test_nebula_the_global_watermark_is_the_minimum_of_all_local_watermarks() -> None:
    settings = sources("trucks", "cars")
    assert after_marks(begin(settings), settings, {"trucks": 7, "cars": 5}).watermark_us == 5


# OURS: idle sources


def test_ours_a_source_that_is_declared_later_takes_nothing_back() -> None:
    tracker = after_marks(begin(sources("A")), sources("A"), {"A": 100})
    settings = sources("A", "B")
    joined = msgspec.structs.replace(tracker, sources=begin(settings).sources | tracker.sources)
    for marks, expected in (({"A": 200}, 100), ({"B": 50}, 100), ({"B": 150}, 150)):
        joined = after_marks(joined, settings, marks)
        assert joined.watermark_us == expected


def test_ours_a_quiet_source_goes_on_with_the_clock_by_as_much_as_it_is_quiet() -> None:
    settings = sources("A")
    tracker, marks = asked(settings, begin(settings), 0, A=SourceReport(100, rows=1)), []
    for now in (10, 15, 17, 40):
        tracker = observe(settings, tracker, {"A": SourceReport()}, now, lambda _: 10)
        marks.append(tracker.watermark_us)
    assert marks == [100, 105, 107, 130]
    tracker = observe(settings, tracker, {"A": SourceReport(rows=1)}, 50, quiet_after=lambda _: 10)
    assert tracker.watermark_us == 130


def test_ours_a_source_idle_longer_than_its_timeout_leaves_the_minimum() -> None:
    settings = sources("A", "B", idle_timeout="10 us")
    tracker = after_marks(begin(settings), settings, {"A": 100, "B": 50})
    tracker = asked(settings, tracker, 10, A=SourceReport(200))
    assert (tracker.watermark_us, tracker.sources["B"].standing) == (50, "counted")
    tracker = asked(settings, tracker, 11, A=SourceReport(300))
    assert (tracker.watermark_us, tracker.sources["B"].standing) == (300, "idle")
    assert metrics_of(tracker).idle_sources == 1


def test_ours_idle_time_counts_only_while_the_source_was_asked() -> None:
    settings = sources("A", "B", idle_timeout="10 us")
    tracker = after_marks(begin(settings), settings, {"A": 100, "B": 50})
    for now in range(10, 100, 10):
        tracker = observe(settings, tracker, {"A": SourceReport(200 + now)}, now)
    assert tracker.sources["B"].quiet_us == 0
    assert tracker.watermark_us == 50


def test_ours_idle_time_counts_only_while_the_job_runs() -> None:
    settings = sources("A", idle_timeout="10 us")
    tracker = asked(settings, after_marks(begin(settings), settings, {"A": 100}), 8)
    tracker = asked(settings, reset_sources(tracker), 1_000_000)
    assert tracker.sources["A"].quiet_us == 8
    assert not tracker.idle
    assert asked(settings, tracker, 1_000_003).idle


def test_ours_an_idle_source_rejoins_when_it_has_caught_up() -> None:
    settings = sources("A", "B", idle_timeout="10 us")
    tracker = asked(settings, after_marks(begin(settings), settings, {"A": 100, "B": 50}), 20, A=SourceReport(300))
    assert tracker.watermark_us == 300
    tracker = asked(settings, tracker, 21, B=SourceReport(120, rows=1))
    assert tracker.sources["B"].standing == "catching_up"
    tracker = asked(settings, tracker, 22, A=SourceReport(400), B=SourceReport(290))
    assert (tracker.watermark_us, tracker.sources["B"].standing) == (400, "catching_up")
    tracker = asked(settings, tracker, 23, B=SourceReport(400))
    assert tracker.sources["B"].standing == "counted"
    assert asked(settings, tracker, 24, A=SourceReport(900)).watermark_us == 400


def test_ours_rows_without_a_new_watermark_keep_a_source_alive() -> None:
    settings = sources("A", idle_timeout="10 us")
    tracker = after_marks(begin(settings), settings, {"A": 100})
    for now in range(9, 90, 9):
        tracker = asked(settings, tracker, now, A=SourceReport(rows=1))
    assert not tracker.idle


def test_ours_when_all_sources_are_idle_w_stays() -> None:
    settings = sources("A", "B", idle_timeout="10 us")
    tracker = asked(settings, after_marks(begin(settings), settings, {"A": 100, "B": 50}), 99)
    assert tracker.idle
    assert tracker.watermark_us == 50


def test_ours_a_source_may_say_that_it_is_idle_and_is_not_heard_until_it_is_back() -> None:
    settings = sources("A", "B")
    tracker = after_marks(begin(settings), settings, {"A": 100, "B": 50})
    tracker = asked(settings, tracker, 1, B=SourceReport(status="idle"))
    assert tracker.watermark_us == 100
    tracker = asked(settings, tracker, 2, B=SourceReport(500, rows=1))
    assert tracker.sources["B"].watermark_us == 50
    tracker = asked(settings, tracker, 3, B=SourceReport(status="active"))
    assert tracker.sources["B"].standing == "catching_up"
    tracker = asked(settings, tracker, 4, B=SourceReport(500))
    assert tracker.sources["B"].standing == "counted"


def test_ours_a_part_of_a_source_has_the_timeout_of_the_source() -> None:
    settings = sources("orders", idle_timeout="1 hour", own_timeouts={"orders": "1 minute", "orders/7": "2 minutes"})
    assert settings.timeout_us("orders/3") == settings.timeout_us("orders") == 60_000_000
    assert settings.timeout_us("orders/7") == 120_000_000
    assert settings.timeout_us("other") == 3_600_000_000


# OURS: which sources there are


def test_ours_an_undeclared_source_joins_at_w() -> None:
    settings = sources("A")
    tracker = after_marks(begin(settings), settings, {"A": 100})
    tracker = after_marks(tracker, settings, {"A": 200, "B": 30})
    assert (tracker.watermark_us, tracker.sources["B"].watermark_us, tracker.backward) == (100, 100, 1)
    assert after_marks(tracker, settings, {"B": 150}).watermark_us == 150


def test_ours_a_source_that_ended_does_not_come_back_with_a_restart() -> None:
    settings = sources("A", "B")
    tracker = observe(
        settings, after_marks(begin(settings), settings, {"A": 100}), {"B": SourceReport(ended=True)}, 1
    )
    assert list(reset_sources(tracker).sources) == ["A"]


def test_ours_a_source_that_ends_leaves_the_minimum_and_the_checkpoint() -> None:
    settings = sources("A", "B")
    tracker = after_marks(begin(settings), settings, {"A": 100, "B": 50})
    tracker = asked(settings, tracker, 1, B=SourceReport(ended=True))
    assert (tracker.watermark_us, list(tracker.sources), tracker.ended) == (100, ["A"], 1)
    tracker = asked(settings, tracker, 2, A=SourceReport(ended=True))
    assert tracker.watermark_us == 100  # another may join
    assert asked(settings, tracker, 3, C=SourceReport(150, ended=True)).watermark_us == 150


def test_ours_a_source_that_disappears_holds_w_until_it_is_idle_or_ended() -> None:
    settings = sources("A", "B")
    tracker = after_marks(begin(settings), settings, {"A": 100, "B": 50})
    for now in range(5):
        tracker = observe(settings, tracker, {"A": SourceReport(200 + now)}, now)
    assert tracker.watermark_us == 50


# Bad input


@pytest.mark.parametrize("mark", [LAST_US + 1, END_US - 1, BEGINNING_US + 1, 1_700_000_000_000_000_000])
def test_ours_a_watermark_beyond_the_year_9999_is_refused_and_counted(mark: int) -> None:
    settings = sources("A")
    tracker = after_marks(after_marks(begin(settings), settings, {"A": 100}), settings, {"A": mark})
    assert (tracker.watermark_us, tracker.refused, tracker.sources["A"].refused) == (100, 1, 1)


def test_ours_a_watermark_before_the_epoch_is_one_like_others() -> None:
    settings = sources("A")
    assert after_marks(begin(settings), settings, {"A": -5}).watermark_us == -5


def test_ours_a_clock_that_jumps_back_is_counted_and_no_time_has_passed() -> None:
    settings = sources("A", idle_timeout="10 us")
    tracker = after_marks(begin(settings), settings, {"A": 100}, now_us=1000)
    tracker = asked(settings, tracker, 10)
    assert (tracker.clock_backward, tracker.processing_us, tracker.sources["A"].quiet_us) == (1, 1000, 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: sources("A", "A"),
        lambda: sources(""),
        lambda: sources("A", idle_timeout="0 seconds"),
        lambda: sources("A", own_timeouts={"A": "-1 second"}),
    ],
)
def test_settings_that_make_no_sense_are_refused(make: Any) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert caught.value.code == "progress-source"


def test_drift_is_the_distance_of_the_fastest_from_the_slowest_counted_source() -> None:
    settings = sources("A", "B", "C")
    tracker = after_marks(begin(settings), settings, {"A": 100, "B": 40})
    assert (tracker.drift_us, tracker.max_drift_us) == (60, 60)
    tracker = after_marks(tracker, settings, {"B": 90})
    assert (tracker.drift_us, tracker.max_drift_us) == (10, 60)


# Against the naive twin

NAMES = ("A", "B", "C")
TIMEOUT = 5

reports = st.builds(
    SourceReport,
    watermark_us=st.integers(0, 30) | st.sampled_from([BEGINNING_US, LAST_US + 1]),
    rows=st.integers(0, 1),
    asked=st.booleans(),
    status=st.sampled_from([None, None, None, "idle", "active"]),
    ended=st.sampled_from([False] * 9 + [True]),
)
rounds = st.lists(
    st.tuples(st.dictionaries(st.sampled_from((*NAMES, "late")), reports), st.integers(-2, 4)), max_size=25
)


class Twin:
    """One source after the other, in plain words."""

    def __init__(self) -> None:
        self.w, self.now, self.sources, self.ended, self.reached = BEGINNING_US, None, {}, 0, BEGINNING_US
        for name in NAMES:
            self.join(name)

    def join(self, name: str) -> None:
        self.sources[name] = {"mark": self.w, "state": "counted", "answered_idle": False, "quiet": 0}

    def round(self, given_: dict[str, SourceReport], now: int) -> None:
        passed = max(0, now - self.now) if self.now is not None else 0
        self.now = now if self.now is None else max(self.now, now)
        w = self.w
        for name in given_:
            if name not in self.sources:
                self.join(name)
        for name, one in list(self.sources.items()):
            report = given_.get(name)
            if report is not None:
                self.observe(one, report, passed)
            if one["state"] == "catching_up" and one["mark"] >= w:
                one["state"] = "counted"
            if report is not None and report.ended:
                self.reached = max(self.reached, self.sources.pop(name)["mark"])
                self.ended += 1
        marks = [one["mark"] for one in self.sources.values() if one["state"] == "counted"]
        if marks:
            self.w = max(self.w, min(marks))
        if not self.sources:
            self.w = max(self.w, self.reached)

    def observe(self, one: dict[str, Any], report: SourceReport, passed: int) -> None:
        if one["answered_idle"]:
            if report.status != "active":
                return
            one["answered_idle"] = False
        alive = report.rows > 0 or report.status == "active"
        if report.watermark_us <= LAST_US and report.watermark_us > one["mark"]:
            one["mark"] = report.watermark_us
            alive = True
        if alive:
            one["quiet"] = 0
            if one["state"] == "idle":
                one["state"] = "catching_up"
        elif report.asked:
            one["quiet"] += passed
        if not alive and one["quiet"] > TIMEOUT:
            one["state"] = "idle"
        if report.status == "idle":
            one["state"], one["answered_idle"] = "idle", True


@given(rounds, st.sets(st.integers(0, 25)))
def test_the_tracker_agrees_with_its_twin_also_after_restores(history: Any, restores: set[int]) -> None:
    settings = sources(*NAMES, idle_timeout=f"{TIMEOUT} us")
    tracker, twin, now = begin(settings), Twin(), 0
    for number, (given_, passed) in enumerate(history):
        if number in restores:
            tracker = reset_sources(msgspec.json.decode(msgspec.json.encode(tracker), type=Progress))
            twin.now = None
        now += passed
        before = tracker.watermark_us
        tracker = observe(settings, tracker, given_, now)
        twin.round(given_, now)
        assert tracker.watermark_us == twin.w >= before
        assert {name: (one.watermark_us, one.standing) for name, one in tracker.sources.items()} == {
            name: (one["mark"], one["state"]) for name, one in twin.sources.items()
        }


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(NAMES), st.builds(SourceReport, watermark_us=st.integers(0, 9), rows=st.integers(0, 3))
        ),
        max_size=6,
    ),
    st.randoms(),
)
def test_reports_of_pieces_merge_in_any_order(pieces: list[dict[str, SourceReport]], random: Any) -> None:
    mixed = list(pieces)
    random.shuffle(mixed)
    assert merged(mixed) == merged(pieces)
    assert sum(one.rows for one in merged(pieces).values()) == sum(one.rows for p in pieces for one in p.values())
