"""Where watermarks come from. NEBULA, MALHAR and OURS say which document a rule is from."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidestate import watermark
from tidestate.operators.progress.generators import Fixed, MaxEventTime, Punctuation
from tidestate.operators.progress.progress import Generator, SourceReport, merged
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US, FIRST_US, LAST_US, instants, moved
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.tables import TIME


def table(times: list[int | None], **more: list[Any]) -> pa.Table:
    return pa.table({"ts": pa.array(times, pa.int64()).cast(TIME), **more})


def claim(generator: Generator, events: pa.Table, now_us: int = 0) -> int:
    (report,) = generator.read(events, now_us, source="s").reports.values()
    return report.watermark_us


# NEBULA


def test_nebula_the_largest_timestamp_in_the_buffer_becomes_the_watermark() -> None:
    assert claim(watermark.bounded(column="ts"), table([3, 9, 5])) == 9


def test_nebula_a_user_can_choose_event_time_or_ingestion_time() -> None:
    events = table([3, 9, 5])
    assert claim(MaxEventTime("ts"), events, 1000) == 9
    assert claim(watermark.ingestion_time(), events, 1000) == 1000


def test_nebula_ingestion_time_is_set_when_the_data_is_received() -> None:
    reading = watermark.ingestion_time("got").read(table([3, 9]), 1000, source="s")
    assert reading.events["got"].to_pylist() == [datetime(1970, 1, 1, 0, 0, 0, 1000, UTC)] * 2
    assert reading.events["got"].type == TIME
    again = watermark.ingestion_time("got").read(reading.events, 2000, source="s").events
    assert again.column_names == ["ts", "got"]
    assert again["got"].cast(pa.int64()).to_pylist() == [2000, 2000]


def test_nebula_all_data_with_a_timestamp_smaller_than_the_watermark_has_arrived() -> None:
    """Of data in order: whatever follows is not before the watermark."""
    times = [1, 2, 2, 5]
    for cut in range(1, 4):
        assert claim(watermark.bounded(column="ts"), table(times[:cut])) <= min(times[cut:])


# MALHAR


def test_malhar_a_fixed_watermark_is_a_constant_before_the_ingression_time() -> None:
    assert claim(watermark.fixed("100 ms"), table([]), 1_000_000) == 900_000
    assert claim(watermark.fixed("100 ms"), table([5_000_000]), 1_000_000) == 900_000


# OURS


def test_ours_the_delay_is_taken_from_the_maximum() -> None:
    assert claim(watermark.bounded("2 us", column="ts"), table([3, 9, 5])) == 7
    assert claim(watermark.bounded("2 us", column="ts"), table([])) == BEGINNING_US
    assert claim(watermark.bounded("2 us", column="ts"), table([None])) == BEGINNING_US


def test_ours_hold_future_leaves_out_what_is_ahead_of_processing_time() -> None:
    generator = watermark.bounded(column="ts", hold_future="10 us")
    reading = generator.read(table([5, 110, 111]), 100, source="s")
    assert reading.reports["s"] == SourceReport(110, rows=3, generated=True)
    assert reading.counters == {"held": 1}
    assert reading.events.num_rows == 3


def test_ours_an_event_beyond_the_year_9999_moves_nothing() -> None:
    reading = MaxEventTime("ts").read(table([5, LAST_US + 1, FIRST_US - 1]), 0, source="s")
    assert reading.reports["s"].watermark_us == 5
    assert reading.counters == {"watermark_refused": 2}


def test_ours_nan_and_fractions_are_no_instants() -> None:
    events = pa.table({"ts": [1.0, float("nan"), 7.5, float("inf"), 1e300, None]})
    assert claim(MaxEventTime("ts"), events) == 1


def test_ours_control_rows_are_punctuation() -> None:
    events = table([3, 8, 9, None], kind=["data", "watermark", "data", None])
    reading = watermark.punctuated("ts", flag="kind", equals="watermark").read(events, 0, source="s")
    assert reading.reports["s"] == SourceReport(8, rows=4)
    assert reading.events["kind"].to_pylist() == ["data", "data", None]
    assert reading.counters == {"control_rows": 1}


def test_ours_control_rows_by_a_flag() -> None:
    events = table([3, 8, 9], control=[False, True, None])
    reading = watermark.punctuated("ts", flag="control").read(events, 0, source="s")
    assert reading.reports["s"].watermark_us == 8
    assert reading.events.num_rows == 2


def test_ours_a_control_row_without_a_usable_time_is_refused_and_counted() -> None:
    events = table([3, None, LAST_US + 1], control=[True, True, True])
    reading = watermark.punctuated("ts", flag="control").read(events, 0, source="s")
    assert reading.reports["s"].watermark_us == 3
    assert reading.counters == {"control_rows": 3, "watermark_refused": 2}


@pytest.mark.parametrize("times", [[END_US], [BEGINNING_US]])
def test_ours_the_ends_of_time_may_be_punctuation(times: list[int]) -> None:
    events = pa.table({"ts": pa.array(times, pa.int64()), "control": [True]})
    assert claim(watermark.punctuated("ts", flag="control"), events) == times[0]


def test_ours_parts_of_a_source_are_sources() -> None:
    events = table([3, 9, 5, 4], partition=[0, 1, 0, None], control=[False, True, True, False])
    for generator, marks in (
        (MaxEventTime("ts"), {"s/0": 5, "s/1": 9, "s/None": 4}),
        (Fixed(10), dict.fromkeys(("s/0", "s/1", "s/None"), 90)),
        (watermark.punctuated("ts", flag="control"), {"s/0": 5, "s/1": 9, "s/None": BEGINNING_US}),
    ):
        found = generator.read(events, 100, source="s", by="partition").reports
        assert {name: one.watermark_us for name, one in found.items()} == marks
        assert {name: one.rows for name, one in found.items()} == {"s/0": 2, "s/1": 1, "s/None": 1}
    assert MaxEventTime("ts").read(events.slice(0, 0), 100, source="s", by="partition").reports == {}


def test_ours_parts_by_a_dictionary_column_of_several_chunks() -> None:
    column = pa.chunked_array([pa.array(["a", None, "b"]).dictionary_encode(), pa.array(["b"]).dictionary_encode()])
    events = pa.table({"ts": [1, 2, 3, 4], "part": column})
    found = MaxEventTime("ts").read(events, 0, source="s", by="part").reports
    assert {name: one.watermark_us for name, one in found.items()} == {"s/a": 1, "s/None": 2, "s/b": 4}


@pytest.mark.parametrize("kind", ["s", "ms", "us", "ns"])
def test_ours_timestamps_of_any_unit_are_instants(kind: str) -> None:
    column = pa.array([-1, 1], pa.timestamp("s", "UTC")).cast(pa.timestamp(kind, "UTC"))
    assert instants(column, "ts")[0].tolist() == [-1_000_000, 1_000_000]


def test_ours_nanoseconds_are_rounded_towards_the_past() -> None:
    column = pa.array([-1, 1, 1999], pa.timestamp("ns"))
    assert instants(column, "ts")[0].tolist() == [-1, 0, 1]


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: watermark.bounded("-1 us", column="ts"), "watermark-delay"),
        (lambda: watermark.bounded(column="ts", hold_future="-1 us"), "watermark-delay"),
        (lambda: watermark.fixed("-1 us"), "watermark-delay"),
        (lambda: claim(MaxEventTime("none"), table([1])), "column-missing"),
        (lambda: claim(MaxEventTime("x"), table([1], x=["a"])), "progress-column"),
        (lambda: claim(watermark.punctuated("ts", flag="x"), table([1], x=["a"])), "progress-column"),
        (lambda: claim(watermark.punctuated("ts", flag="x", equals="a"), table([1], x=[1])), "progress-column"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert caught.value.code == code


times = st.none() | st.integers(-50, 50) | st.sampled_from([LAST_US + 1, FIRST_US - 1])


@given(
    st.lists(st.lists(st.tuples(times, st.integers(0, 2), st.none() | st.booleans()), max_size=6), max_size=5),
    st.integers(-20, 60),
    st.randoms(),
)
def test_pieces_in_any_order_claim_what_one_event_after_the_other_does(pieces: Any, now: int, random: Any) -> None:
    random.shuffle(pieces)
    generators: list[Any] = [MaxEventTime("ts", 3, hold_future_us=10), watermark.punctuated("ts", flag="control")]
    for generator in generators:
        expected: dict[str, int] = {}
        for piece in pieces:
            for time, part, control in piece:
                mark = BEGINNING_US
                if time is not None and FIRST_US <= time <= LAST_US:
                    if isinstance(generator, Punctuation):
                        mark = time if control else mark
                    elif time <= now + 10:
                        mark = time - 3
                name = f"s/{part}"
                expected[name] = max(expected.get(name, BEGINNING_US), mark)
        read = []
        for piece in pieces:
            columns = [list(column) for column in zip(*piece, strict=True)] or [[], [], []]
            events = pa.table(
                [
                    pa.array(columns[0], pa.int64()),
                    pa.array(columns[1], pa.int64()),
                    pa.array(columns[2], pa.bool_()),
                ],
                names=["ts", "part", "control"],
            )
            read.append(generator.read(events, now, source="s", by="part").reports)
        assert {name: one.watermark_us for name, one in merged(read).items()} == expected


edges = st.sampled_from([BEGINNING_US, BEGINNING_US + 1, -1, 0, 1, END_US - 1, END_US])


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | edges), st.integers(-(2**62), 2**62))
def test_sums_stay_within_time(found: list[int], by: int) -> None:
    expected = [t if t in (BEGINNING_US, END_US) else max(BEGINNING_US + 1, min(END_US - 1, t + by)) for t in found]
    assert moved(np.array(found, np.int64), by).tolist() == expected
