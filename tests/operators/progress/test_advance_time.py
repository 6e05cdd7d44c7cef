"""Advance-time settings, sentence by sentence of "Advancing Application Time" (StreamInsight), and against a loop.

OURS says that a rule is this project's choice (docs/how-it-works/progress.md).
"""

from __future__ import annotations

import inspect
from typing import Any

import pyarrow as pa
import pytest

from tests.helpers.advance_time import Row, advance_time, ctis, generation, run, table
from tidestate.operators.progress.advance_time import ADVANCE_REASONS, Advance, Advanced, advance, finish, lifetimes
from tidestate.operators.progress.cti_settings import effective_settings
from tidestate.operators.progress.watermarks import END_US, LAST_US
from tidestate.operators.streams.settings import lifetime
from tidestate.statestore.errors import UsageError


def points(*starts: int) -> list[Row]:
    return [Row("point", start) for start in starts]


def reasons(found: Advanced) -> list[str]:
    return [ADVANCE_REASONS[code] for code in found.reasons.tolist()]


def at(cti: int, policy: Any, *rows: Row) -> Advanced:
    """The rows after a CTI."""
    return run(advance_time(policy, import_from="other"), list(rows), imported=cti)


# Understanding the temporal model


def test_the_temporal_model_is_based_only_on_application_time_and_never_on_system_time() -> None:
    assert not [name for name in inspect.signature(advance).parameters if "now" in name or "processing" in name]


def test_results_do_not_depend_on_the_order_in_which_events_arrive_within_the_slack() -> None:
    settings = advance_time("drop", generation(1, "4 us"))
    for order in ([1, 2, 3, 4, 5], [5, 4, 3, 2, 1], [3, 1, 5, 2, 4]):
        assert run(settings, points(*order)).kept.all()


# Current time increments


@pytest.mark.parametrize("shape", ["point", "interval", "edge_start"])
def test_point_interval_and_edge_start_must_start_at_or_after_the_cti(shape: str) -> None:
    found = at(10, "drop", Row(shape, 9, 20), Row(shape, 10, 20), Row(shape, 11, 20))
    assert reasons(found) == ["cti_violation", "", ""]


def test_an_edge_end_must_end_at_or_after_the_cti() -> None:
    found = at(10, "drop", Row("edge_end", 1, 9), Row("edge_end", 1, 10), Row("edge_end", 1, 11))
    assert reasons(found) == ["cti_violation", "", ""]


def test_ctis_can_be_enqueued_like_events() -> None:
    settings = advance_time("drop", generation(100))
    found = run(settings, [*points(1), Row("cti", 5), *points(4, 5), Row("cti", 3)])
    assert ctis(found) == [(1, 5)]
    assert found.kept.tolist() == [True, False, False, True, False]
    assert (found.state.ctis, found.state.ignored) == (1, 1)


def test_ctis_can_be_generated_or_imported() -> None:
    assert ctis(run(advance_time("drop", generation(2)), points(1, 2))) == [(1, 2)]
    assert ctis(run(advance_time("drop", import_from="other"), points(8, 9), imported=7)) == [(-1, 7)]


def test_whenever_ctis_are_generated_or_imported_there_is_a_policy() -> None:
    with pytest.raises(UsageError) as caught:
        advance_time("keep", generation(1))  # type: ignore[arg-type]
    assert caught.value.code == "advance-time"


# CTI generation


def test_the_frequency_by_count_inserts_a_cti_after_every_n_events() -> None:
    settings = advance_time("drop", generation(2))
    found = run(settings, points(1, 2, 3, 4, 5))
    assert ctis(found) == [(1, 2), (3, 4)]
    assert ctis(run(settings, points(6), found.state)) == [(0, 6)]


def test_the_frequency_by_time_span_inserts_a_cti_after_every_t() -> None:
    settings = advance_time("drop", generation("10 us"))
    found = run(settings, points(0, 9, 10, 19, 21, 25))
    assert ctis(found) == [(2, 10), (4, 21)]
    assert ctis(run(settings, points(30, 31), found.state)) == [(1, 31)]


def test_the_timestamp_is_the_last_events_time_less_the_delay() -> None:
    assert ctis(run(advance_time("drop", generation(3, "5 us")), points(50, 90, 70))) == [(2, 65)]


def test_a_final_cti_at_infinity_when_the_query_is_shut_down_is_a_flag() -> None:
    with_flag, without = (advance_time("drop", generation(10, final=flag)) for flag in (True, False))
    state = run(with_flag, points(1)).state
    assert finish(with_flag, state).cti_us == END_US
    assert finish(with_flag, finish(with_flag, state)).ctis == 1
    assert finish(without, state) == state


def test_the_example_of_ten_events_five_seconds_and_the_flag() -> None:
    """new AdvanceTimeGenerationSettings(10, TimeSpan.FromSeconds(5), true)"""
    settings = advance_time("drop", generation(10, "5 seconds", final=True))
    second = 1_000_000
    found = run(settings, points(*(number * second for number in range(25))))
    assert ctis(found) == [(9, 4 * second), (19, 14 * second)]
    assert finish(settings, found.state).cti_us == END_US


def test_events_never_more_than_the_delay_late_do_not_violate() -> None:
    settings = advance_time("drop", generation(1, "5 us"))
    assert run(settings, points(100, 95, 102, 97)).kept.all()
    assert reasons(run(settings, points(100, 94))) == ["", "cti_violation"]


def test_end_edges_are_not_taken_into_account_for_the_frequency() -> None:
    settings = advance_time("drop", generation(2))
    rows = [Row("edge_start", 1), Row("edge_end", 1, 2), Row("edge_end", 1, 3), Row("edge_start", 4)]
    assert ctis(run(settings, rows)) == [(3, 4)]


def test_end_edges_are_not_considered_for_a_duration() -> None:
    settings = advance_time("drop", generation("10 us"))
    rows = [Row("edge_start", 1), Row("edge_end", 1, 50), Row("edge_start", 5), Row("edge_start", 12)]
    assert ctis(run(settings, rows)) == [(3, 12)]


# Violation policies


def test_drop_drops_events_that_violate_the_inserted_cti() -> None:
    found = at(10, "drop", Row("interval", 5, 50), Row("point", 12))
    assert reasons(found) == ["cti_violation", ""]
    assert (found.state.dropped, found.state.adjusted) == (1, 0)


def test_adjust_sets_the_start_to_the_most_recent_cti_if_the_lifetime_overlaps_it() -> None:
    found = at(10, "adjust", Row("interval", 5, 50), Row("edge_start", 3), Row("point", 12))
    assert reasons(found) == ["", "", ""]
    assert found.starts.tolist() == [10, 10, 12]
    assert (found.state.dropped, found.state.adjusted) == (0, 2)


def test_adjust_drops_events_whose_start_and_end_fall_before_the_cti() -> None:
    """Half-open lifetimes: one that ends at the CTI does not overlap it, nor does a point before it."""
    found = at(10, "adjust", Row("interval", 5, 9), Row("interval", 5, 10), Row("interval", 5, 11), Row("point", 9))
    assert reasons(found) == ["cti_violation", "cti_violation", "", "cti_violation"]


def test_adjust_drops_an_edge_end_before_the_cti() -> None:
    assert reasons(at(10, "adjust", Row("edge_end", 1, 9), Row("edge_end", 1, 10))) == ["cti_violation", ""]


def test_each_event_is_judged_by_the_most_recent_cti_before_it() -> None:
    settings = advance_time("adjust", generation(1))
    found = run(
        settings, [Row("interval", 5, 100), Row("interval", 3, 100), Row("interval", 9, 100), Row("interval", 2, 100)]
    )
    assert found.starts.tolist() == [5, 5, 9, 9]


# Settings at the adapter and at the query


def test_settings_of_an_adapter_need_both_generation_and_policy() -> None:
    for wrong in (advance_time("drop", import_from="other"), advance_time("drop", generation(1), "other")):
        with pytest.raises(UsageError) as caught:
            effective_settings(wrong, None)
        assert caught.value.code == "advance-time"


def test_ours_settings_of_the_query_override_those_of_the_source() -> None:
    source, query = advance_time("drop", generation(1)), advance_time("adjust", import_from="data")
    assert effective_settings(source, None) == source
    assert effective_settings(None, query) == effective_settings(source, query) == query
    assert effective_settings(None, None) is None


def test_either_generation_or_import_can_be_null_but_not_both() -> None:
    assert advance_time("drop", generation(1)).import_from is None
    assert advance_time("drop", import_from="data").generation is None
    with pytest.raises(UsageError) as caught:
        advance_time("drop")
    assert caught.value.code == "advance-time"


def test_generation_and_import_can_be_specified_together() -> None:
    settings = advance_time("drop", generation(2), "data")
    found = run(settings, points(1, 6, 7), imported=5)
    assert ctis(found) == [(-1, 5), (1, 6)]
    assert reasons(found) == ["cti_violation", "", ""]


def test_a_cti_with_every_event_with_the_timestamp_of_the_event() -> None:
    """new AdvanceTimeGenerationSettings(1, TimeSpan.FromSeconds(0), true)"""
    assert ctis(run(advance_time("adjust", generation(1, final=True)), points(1, 2, 2, 3))) == [
        (0, 1),
        (1, 2),
        (3, 3),
    ]


def test_a_slow_stream_is_synchronized_to_a_fast_one_by_importing_its_ctis() -> None:
    data, lookup = advance_time("drop", generation(1)), advance_time("adjust", import_from="dataStream")
    fast = run(data, points(10, 20, 30))
    slow = run(lookup, [Row("edge_start", 4)], imported=fast.state.cti_us)
    assert slow.starts.tolist() == [30]
    assert min(fast.state.cti_us, slow.state.cti_us) == 30


def test_without_an_import_the_other_streams_cti_does_not_matter() -> None:
    assert run(advance_time("drop", generation(9)), points(1), imported=5).kept.all()


# Result liveliness


def test_a_cti_commits_what_is_strictly_before_it_so_the_last_point_waits() -> None:
    found = run(advance_time("drop", generation(1)), points(1, 2, 3))
    assert [time < found.state.cti_us for time in (1, 2, 3)] == [True, True, False]


def test_a_delay_of_minus_one_tick_commits_every_point_as_soon_as_it_is_issued() -> None:
    settings = advance_time("drop", generation(1, "-1 us", final=True))
    found = run(settings, points(1, 2, 3))
    assert ctis(found) == [(0, 2), (1, 3), (2, 4)]
    assert found.kept.all()
    assert all(time < found.state.cti_us for time in (1, 2, 3))


# OURS


def test_ours_rows_that_are_no_events_go_to_the_ledger_with_their_reason() -> None:
    rows = [
        Row("interval", 5, 5),
        Row("interval", 5, None),
        Row("edge_end", 5, 4),
        Row("edge_end", 5, 5),
        Row("point", None),
        Row("point", LAST_US + 1),
        Row("circle", 5),
        Row(None, 5),
        Row("cti", None),
        Row("cti", LAST_US + 1),
    ]
    found = run(advance_time("drop", generation(1)), rows)
    assert reasons(found) == [
        "bad_lifetime",
        "bad_lifetime",
        "bad_lifetime",
        "",
        "null_event_time",
        "event_time_out_of_range",
        "unknown_shape",
        "unknown_shape",
        "bad_cti",
        "bad_cti",
    ]
    assert ctis(found) == []


def test_ours_the_starts_of_rows_kept_and_the_reason_of_one_rejected() -> None:
    events = table([Row("interval", 5, 50), Row("point", 6), Row("cti", 11), Row("point", 12)])
    found = advance(
        advance_time("adjust", generation(9), "x"),
        Advance(),
        lifetimes(events, "start", "end", shape_column="shape"),
        10,
    )
    assert found.kept.tolist() == [True, False, False, True]
    assert found.starts[found.kept].tolist() == [10, 12]
    assert reasons(found)[1] == "cti_violation"


def test_ours_all_rows_of_one_shape() -> None:
    events = pa.table({"at": [5, 20], "until": [15, 30]})
    settings = advance_time("adjust", import_from="x")
    assert advance(settings, Advance(), lifetimes(events, "at"), 10).kept.tolist() == [False, True]
    found = advance(settings, Advance(), lifetimes(events, "at", "until", "interval"), 10)
    assert found.starts.tolist() == [10, 20]


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: generation(0), "advance-time"),
        (lambda: generation(True), "argument"),
        (lambda: generation("0 s"), "advance-time"),
        (lambda: lifetimes(table([]), "nothing"), "column-missing"),
        (lambda: lifetime(shape="interval"), "event-shape"),
        (lambda: lifetime(shape="circle"), "event-shape"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert caught.value.code == code
