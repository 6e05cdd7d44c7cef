"""CTIs through operators and numbers of output buffers. STREAMINSIGHT, NEBULA and OURS say where a rule is from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidestate.operators.progress import through
from tidestate.operators.progress.buffers import buffers
from tidestate.operators.progress.instants import BEGINNING_US, END_US
from tidestate.operators.progress.origins import origins, take
from tidestate.operators.progress.through import Numbering
from tidestate.statestore.errors import UsageError


def hopped(cti: int, size: int, slide: int, offset: int = 0) -> int:
    return int(through.hopping(np.array([cti]), size, slide, offset)[0])


def test_streaminsight_a_join_releases_up_to_the_older_cti_from_either_side() -> None:
    assert through.join(7, 3) == 3
    assert through.join(BEGINNING_US, 3) == BEGINNING_US


def test_streaminsight_a_union_releases_the_older_of_the_most_recent_ctis() -> None:
    assert through.union(7, 3) == 3
    assert through.union(END_US, 3, 9) == 3


def test_streaminsight_the_entire_query_releases_only_up_to_the_most_recent_cti() -> None:
    assert through.released(np.array([1, 2, 3]), 2).tolist() == [True, False, False]
    assert not through.released(np.array([1]), BEGINNING_US).any()


def test_streaminsight_hopping_windows_pull_a_cti_back_to_the_beginning_of_the_window() -> None:
    assert hopped(17, 10, 10) == 10
    assert hopped(17, 10, 5) == 10
    assert hopped(14, 10, 5) == 5


def test_ours_a_cti_at_the_end_of_a_window_leaves_it_behind() -> None:
    assert hopped(20, 10, 10) == 20
    assert hopped(20, 10, 5) == 15


def test_ours_a_cti_between_windows_stays_and_the_ends_of_time_pass() -> None:
    assert hopped(7, 5, 10) == 7
    assert hopped(12, 5, 10) == 10
    assert hopped(BEGINNING_US, 10, 10) == BEGINNING_US
    assert hopped(END_US, 10, 10) == END_US


def test_streaminsight_shifting_event_times_shifts_ctis_alike() -> None:
    assert through.shift(np.array([5, BEGINNING_US, END_US]), -7).tolist() == [-2, BEGINNING_US, END_US]


def test_streaminsight_a_change_of_start_times_is_applied_to_ctis() -> None:
    found = through.alter(np.array([25, BEGINNING_US, END_US, 7]), lambda starts: starts // 10 * 10)
    assert found.tolist() == [20, BEGINNING_US, END_US, 0]


def test_ours_a_change_that_swaps_instants_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        through.alter(np.array([1, 2]), lambda starts: -starts)
    assert caught.value.code == "cti-order"


@given(st.integers(-60, 60), st.integers(1, 12), st.integers(1, 12), st.integers(-9, 9))
def test_after_a_hopping_window_nothing_before_the_cti_can_still_change(
    cti: int, size: int, slide: int, offset: int
) -> None:
    """Against windows listed one by one: those that end after the CTI may change, so results start at the first."""
    starts = [offset + number * slide for number in range(-120, 121)]
    open_ = [start for start in starts if start + size > cti]
    assert hopped(cti, size, slide, offset) == min(cti, min(open_))


@given(st.lists(st.integers(-40, 40)), st.integers(-9, 9), st.integers(1, 9))
def test_events_at_or_after_a_cti_stay_so_after_a_shift_and_an_alteration(
    times: list[int], by: int, unit: int
) -> None:
    instants = np.array(times, np.int64)
    for cti in (-10, 0, 7):
        for change in (
            lambda t: through.shift(t, by),
            lambda t: through.alter(t, lambda starts: starts // unit * unit),
        ):
            moved = change(np.array([cti]))[0]
            assert (change(instants)[instants >= cti] >= moved).all()


# Numbering


def test_nebula_new_sequence_numbers_are_given_only_up_to_the_largest_consecutive_one_seen() -> None:
    known = take(origins([1]), buffers(np.ones(4, np.int64), np.array([1, 2, 4, 5]))).origins
    outputs = np.array([4, 1, 2, 5])
    found = through.number(Numbering(3), outputs, known.prefix_of(1))
    assert outputs[found.rows].tolist() == [1, 2]
    assert found.sequences.tolist() == [1, 2]
    assert found.waiting.tolist() == [True, False, False, True]
    known = take(known, buffers(np.ones(1, np.int64), np.array([3]))).origins
    found = through.number(found.numbering, outputs, known.prefix_of(1))
    assert outputs[found.rows].tolist() == [4, 5]
    assert found.sequences.tolist() == [3, 4]
    assert found.repeated.tolist() == [False, True, True, False]


def test_nebula_outputs_of_one_sequence_number_are_its_chunks() -> None:
    found = through.number(Numbering(3), np.array([2, 1, 2, 2]), 2)
    assert found.rows.tolist() == [1, 0, 2, 3]
    assert found.sequences.tolist() == [1, 2, 2, 2]
    assert found.chunks.tolist() == [0, 0, 1, 2]
    assert found.last.tolist() == [True, False, False, True]


def test_ours_inputs_without_outputs_take_no_number() -> None:
    found = through.number(Numbering(3), np.array([5, 2]), 9)
    assert (found.sequences.tolist(), found.numbering) == ([1, 2], Numbering(3, 3, 9))
    nothing = through.number(found.numbering, np.zeros(0, np.int64), 12)
    assert (nothing.rows.tolist(), nothing.numbering) == ([], Numbering(3, 3, 12))


@given(st.lists(st.integers(1, 12), max_size=20), st.lists(st.integers(0, 12), max_size=4))
def test_the_output_is_an_origin_without_gaps(inputs: list[int], prefixes: list[int]) -> None:
    numbering, outputs, sent = Numbering(7), np.array(inputs, np.int64), []
    for prefix in [*sorted(prefixes), 12]:
        found = through.number(numbering, outputs, prefix)
        sent += zip(found.sequences.tolist(), found.chunks.tolist(), found.last.tolist(), strict=True)
        numbering = found.numbering
    assert len(sent) == len(inputs)
    sequences, chunks, last = (list(column) for column in zip(*sent, strict=True)) if sent else ([], [], [])
    known = take(
        origins([7]),
        buffers(
            np.full(len(sent), 7), np.array(sequences, np.int64), np.array(chunks, np.int64), np.array(last, bool)
        ),
    )
    assert known.origins.prefix_of(7) == len(set(inputs))
    assert not len(known.origins.pending)
