"""Origin progress, sentence by sentence of "Watermarking and Progress" (NebulaStream), and against sets of buffers.

OURS says that a rule is this project's choice (docs/how-it-works/progress.md).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.helpers.origins import Buffer, after, arrive, round_trip
from tidestate.operators.progress.origins import (
    ORIGIN_REASONS,
    OriginsStep,
    advance_origins,
    assigned,
    buffers,
    end,
    origins,
    save,
    wait,
)
from tidestate.operators.progress.watermarks import BEGINNING_US, LAST_US
from tidestate.statestore.errors import UsageError


def answered(taken: OriginsStep) -> list[str]:
    return [ORIGIN_REASONS[code] for code in taken.reasons.tolist()]


# OriginId


def test_the_origin_id_is_unique_for_each_source_or_stateful_operator_starting_from_1() -> None:
    assert assigned(["trucks", "cars"]) == {"trucks": 1, "cars": 2}
    assert assigned(["join", "cars"], {"trucks": 1, "cars": 2}) == {"trucks": 1, "cars": 2, "join": 3}


# SequenceNumber


@pytest.mark.parametrize(("seen", "longest"), [([1, 2, 3, 4, 5], 5), ([1, 2, 3, 5, 6], 3), ([1, 3, 4, 6], 1)])
def test_the_table_of_longest_consecutive_sequences(seen: list[int], longest: int) -> None:
    for order in (seen, seen[::-1]):
        found = after(origins([1]), *(Buffer(1, number, watermark=number * 10) for number in order))
        assert found.prefix_of(1) == longest
        assert found.watermark_us == longest * 10


def test_the_sequence_number_is_1_for_the_first_buffer_and_must_not_have_gaps() -> None:
    assert after(origins([1]), Buffer(1, 2, watermark=5)).watermark_us == BEGINNING_US
    assert answered(arrive(origins([1]), Buffer(1, 0), Buffer(1, -1))) == ["bad_sequence"] * 2


def test_the_same_sequence_number_exists_for_different_sources() -> None:
    found = after(origins([1, 2]), Buffer(1, 1, watermark=5), Buffer(2, 1, watermark=7))
    assert (found.prefix_of(1), found.prefix_of(2), found.watermark_us) == (1, 1, 5)


def test_the_sequence_number_is_unique_for_each_buffer() -> None:
    found = arrive(origins([1]), Buffer(1, 1, watermark=5), Buffer(1, 1, watermark=5), Buffer(1, 3), Buffer(1, 3))
    assert answered(found) == ["", "seen_before", "", "seen_before"]
    assert answered(arrive(found.origins, Buffer(1, 1), Buffer(1, 3))) == ["seen_before"] * 2


# ChunkNumber


def test_the_chunk_number_is_0_for_the_first_buffer_and_incremented_by_1() -> None:
    one = [Buffer(1, 1, 0, False, 3), Buffer(1, 1, 1, False, 9), Buffer(1, 1, 2, True, 6)]
    known = origins([1])
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        found = known
        for number, place in enumerate(order):
            found = after(found, one[place])
            assert found.prefix_of(1) == (number == 2)
        assert found.watermark_us == 9


def test_a_sequence_number_is_whole_when_all_chunks_up_to_the_last_were_seen() -> None:
    """``seenAllChunks``: chunks count from 0, so as many as the number of the last one and one more."""
    found = after(origins([1]), Buffer(1, 1, 3, True), Buffer(1, 1, 0, False), Buffer(1, 1, 1, False))
    assert found.prefix_of(1) == 0
    assert after(found, Buffer(1, 1, 2, False)).prefix_of(1) == 1


def test_a_repeated_chunk_is_not_counted_twice() -> None:
    found = arrive(origins([1]), Buffer(1, 1, 1, True), Buffer(1, 1, 1, True), Buffer(1, 1, 1, True))
    assert found.origins.prefix_of(1) == 0
    assert answered(found) == ["", "seen_before", "seen_before"]


# Reasoning about progress


def test_the_global_watermark_is_the_minimum_of_all_local_watermarks() -> None:
    found = after(
        origins([1, 2, 3]), Buffer(1, 1, watermark=50), Buffer(2, 1, watermark=20), Buffer(3, 1, watermark=90)
    )
    assert found.watermark_us == 20


def test_a_source_without_a_buffer_holds_the_global_watermark_back() -> None:
    assert after(origins([1, 2]), Buffer(1, 1, watermark=50)).watermark_us == BEGINNING_US


def test_the_local_watermark_is_that_of_the_largest_sequence_number_up_to_which_all_chunks_were_seen() -> None:
    found = after(origins([1]), Buffer(1, 1, watermark=10), Buffer(1, 2, 0, False, 20), Buffer(1, 3, watermark=30))
    assert found.watermark_us == 10
    assert after(found, Buffer(1, 2, 1, True, 20)).watermark_us == 30


def test_ours_a_watermark_that_steps_back_is_ignored_and_counted_in_any_order() -> None:
    marks = [Buffer(1, number, watermark=mark) for number, mark in enumerate([10, 5, 7, 20], 1)]
    for order in (marks, marks[::-1]):
        assert after(origins([1]), *order[:4]).watermark_us == 20
        assert after(origins([1]), *order).counters.backward == 2
    assert after(origins([1]), *marks[:3]).watermark_us == 10


# OURS: ranges


def test_ours_a_buffer_may_stand_for_a_range_of_sequence_numbers() -> None:
    found = after(origins([1]), Buffer(1, 10, behind=4, watermark=10))
    assert found.prefix_of(1) == 0
    found = after(found, Buffer(1, 5, behind=4, watermark=5))
    assert (found.prefix_of(1), found.watermark_us) == (10, 10)
    assert answered(arrive(origins([1]), Buffer(1, 3, behind=3), Buffer(1, 3, behind=-1))) == ["bad_sequence"] * 2


def test_ours_a_range_within_another_does_not_stop_progress() -> None:
    found = after(origins([1]), Buffer(1, 5), Buffer(1, 9, behind=8), Buffer(1, 12, behind=5), Buffer(1, 13))
    assert found.prefix_of(1) == 13
    assert not len(found.pending)


# OURS: which origins there are


def test_ours_an_undeclared_origin_joins_at_w() -> None:
    known = after(origins([1]), Buffer(1, 1, watermark=50))
    found = after(known, Buffer(2, 1, watermark=20))
    assert found.watermark_us == 50
    found = after(found, Buffer(1, 2, watermark=90))
    assert found.watermark_us == 50
    assert after(found, Buffer(2, 2, watermark=70)).watermark_us == 70


def test_ours_a_bad_buffer_does_not_bring_in_an_origin() -> None:
    known = after(origins([1]), Buffer(1, 1, watermark=50))
    found = arrive(known, Buffer(2, 0), Buffer(3, 1, -1), Buffer(None, 1))  # type: ignore[arg-type]
    assert found.origins.ids.tolist() == [1]
    assert answered(found) == ["bad_sequence", "bad_chunk", "bad_sequence"]


def test_ours_an_origin_that_ends_leaves_the_minimum_and_the_checkpoint() -> None:
    known = after(origins([1, 2]), Buffer(1, 1, watermark=50), Buffer(2, 1, watermark=20))
    known = end(known, {2: 3})
    assert (known.watermark_us, known.ids.tolist()) == (20, [1, 2])
    known = round_trip(after(known, Buffer(2, 3, watermark=30)))
    known = after(known, Buffer(2, 2, watermark=25))
    assert (known.watermark_us, known.ids.tolist(), known.ended) == (50, [1], 1)
    assert save(known).origins == [(1, 1, 50, -1)]
    known = end(known, {1: 1})
    assert (known.watermark_us, known.ids.tolist()) == (50, [])  # the next one may be on time
    assert answered(arrive(known, Buffer(1, 1), Buffer(2, 9), Buffer(3, 0))) == [
        "seen_before",
        "seen_before",
        "bad_sequence",
    ]
    assert after(known, Buffer(3, 1, watermark=70)).watermark_us == 70


def test_ours_once_all_have_ended_w_is_the_largest_watermark_of_them() -> None:
    known = after(origins([1, 2]), Buffer(1, 1, watermark=50), Buffer(2, 1, watermark=20))
    known = round_trip(end(known, {1: 1}))
    assert known.watermark_us == 20
    assert end(known, {2: 1}).watermark_us == 50


def test_ours_what_is_known_of_ended_origins_is_bounded() -> None:
    known = origins()
    for first in range(0, 6_000, 100):  # every second id, so that no two are neighbours
        ids = range(2 * first, 2 * first + 200, 2)
        known = after(known, *(Buffer(origin, 1, watermark=first) for origin in ids))
        known = round_trip(end(known, dict.fromkeys(ids, 1)))
    assert (len(known.ids), known.ended, len(known.ended_ids)) == (0, 6_000, 1_000)
    assert known.have_ended(np.array([0, 11_997, 11_998])).tolist() == [False, False, True]


def test_ours_an_origin_without_any_buffer_can_end() -> None:
    assert end(origins([1, 2]), {1: 0}).ids.tolist() == [2]


def test_ours_a_sequence_after_the_end_is_reported() -> None:
    known = end(after(origins([1]), Buffer(1, 9)), {1: 4})
    assert (len(known.pending), known.counters.sequence_after_end) == (0, 1)
    assert answered(arrive(known, Buffer(1, 5), Buffer(1, 4))) == ["sequence_after_end", ""]


@pytest.mark.parametrize("last", [{2: 1}, {1: 0}, {1: -1}])
def test_an_end_that_cannot_be_is_refused(last: dict[int, int]) -> None:
    known = after(origins([1]), Buffer(1, 1))
    with pytest.raises(UsageError) as caught:
        end(known, last)
    assert caught.value.code == "origin-end"


# Bad input


def test_ours_two_last_chunks_the_lower_counts() -> None:
    rows = [Buffer(1, 1, 0, False, 1), Buffer(1, 1, 1, True, 2), Buffer(1, 1, 2, True, 9)]
    found = arrive(origins([1]), *rows)
    assert answered(found) == ["", "", "two_last_chunks"]
    assert (found.origins.prefix_of(1), found.origins.watermark_us) == (1, 2)
    first = arrive(origins([1]), rows[2])
    later = arrive(first.origins, rows[1], rows[0])
    assert (later.origins.prefix_of(1), later.origins.watermark_us) == (1, 2)
    assert (later.origins.counters.two_last_chunks, later.origins.counters.counted) == (1, 2)


def test_ours_a_chunk_after_the_last_is_reported() -> None:
    found = arrive(origins([1]), Buffer(1, 1, 1, True), Buffer(1, 1, 2, False, 99))
    assert answered(found) == ["", "chunk_after_last"]
    assert after(found.origins, Buffer(1, 1, 0, False, 7)).watermark_us == 7


@pytest.mark.parametrize("mark", [None, float("nan"), float(LAST_US) * 2, LAST_US + 1, 2**63 - 2, 2.5])
def test_ours_a_watermark_that_cannot_be_one_is_refused_but_the_buffer_counts(mark: Any) -> None:
    column = pa.array([10, mark]) if not isinstance(mark, float) else pa.array([10.0, mark])
    found = advance_origins(origins([1]), buffers([1, 1], [1, 2], watermarks=column))
    assert (found.origins.prefix_of(1), found.origins.watermark_us) == (2, 10)
    assert found.origins.counters.watermark_refused == 1
    assert found.origins.counters.backward == 0


def test_ours_a_watermark_before_the_epoch_is_one_like_others() -> None:
    assert after(origins([1]), Buffer(1, 1, watermark=-5)).watermark_us == -5


def test_ours_nulls_are_reported_row_by_row() -> None:
    rows = buffers(pa.array([1, None, 1, 1]), pa.array([1, 1, None, 2]), pa.array([0, 0, 0, None]))
    assert answered(advance_origins(origins([1]), rows)) == ["", "bad_sequence", "bad_sequence", "bad_sequence"]
    assert answered(arrive(origins([1]), Buffer(1, 1, -1))) == ["bad_chunk"]
    assert answered(arrive(origins(), Buffer(1, 0))) == ["bad_sequence"]


def test_ours_a_gap_that_does_not_close_is_reported() -> None:
    known = after(origins([1, 2]), Buffer(1, 1), Buffer(1, 5), Buffer(1, 6), Buffer(1, 3, 0, False))
    known, (gap,) = wait(known, 100)
    assert (gap.origin, gap.first, gap.last, gap.buffers, gap.since_us, gap.given_up) == (1, 2, 4, 3, 100, False)
    known, (gap,) = wait(known, 900)
    assert gap.since_us == 100
    known, gaps = wait(after(known, Buffer(1, 2), Buffer(1, 3, 1), Buffer(1, 4)), 1000)
    assert not gaps


def test_ours_a_gap_is_given_up_after_a_bounded_wait_if_asked() -> None:
    known = after(origins([1]), Buffer(1, 1, watermark=1), Buffer(1, 5, watermark=5), Buffer(1, 3, 0, False))
    known, _ = wait(known, 100, patience_us=50)
    known, (gap,) = wait(known, 150, patience_us=50)
    assert not gap.given_up
    assert known.watermark_us == 1
    known, (gap,) = wait(known, 151, patience_us=50)
    assert gap.given_up
    assert (known.prefix_of(1), known.watermark_us, len(known.pending), known.counters.gave_up) == (5, 5, 0, 3)
    assert answered(arrive(known, Buffer(1, 2))) == ["seen_before"]
    assert wait(known, 152, patience_us=50)[1] == []


def test_ours_nothing_is_given_up_while_nothing_whole_lies_behind_the_gap() -> None:
    known = after(origins([1]), Buffer(1, 2, 1, True))
    known, _ = wait(known, 0, patience_us=1)
    known, (gap,) = wait(known, 100, patience_us=1)
    assert (gap.given_up, gap.first, gap.last) == (False, 1, 2)


def test_ours_only_time_while_the_job_runs_counts_for_a_gap() -> None:
    known, _ = wait(after(origins([1]), Buffer(1, 5)), 0, patience_us=50)
    known, (gap,) = wait(round_trip(known), 1_000, patience_us=50)
    assert (gap.since_us, gap.given_up) == (1_000, False)


def test_memory_is_bounded_by_the_gap() -> None:
    known, most = origins([1]), 0
    for start in range(1, 20_000, 1_000):
        here = np.arange(start, start + 1_000)
        known = advance_origins(known, buffers(np.ones(1_000, np.int64), here[::-1].copy(), watermarks=here)).origins
        most = max(most, len(known.pending))
    assert (known.prefix_of(1), most, save(known).pending) == (20_000, 0, {})


# Columns


def test_columns_of_arrow() -> None:
    watermark = pa.array([7], pa.timestamp("us", "UTC"))
    columns = [pa.array([0]), pa.array([True]), watermark]
    assert advance_origins(origins([1]), buffers(pa.array([1]), pa.array([1]), *columns)).origins.watermark_us == 7
    behind = buffers(pa.array([1]), pa.array([4]), *columns, pa.array([3]))
    assert advance_origins(origins([1]), behind).origins.prefix_of(1) == 4


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: buffers([1, 1], [1]), "progress-column"),
        (lambda: buffers(["a"], [1]), "progress-column"),
        (lambda: buffers([1], [1], last=["yes"]), "progress-column"),
    ],
)
def test_columns_that_cannot_be_are_refused(make: Any, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert caught.value.code == code
