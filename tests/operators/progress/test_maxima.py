"""The largest position of a side before a row, or up to it: by time, whatever the batch."""

from __future__ import annotations

import numpy as np
import pytest

from tidestate.operators.progress.maxima import Maxima

TIMES, POSITIONS = np.array([20, 10, 10, 30, 40]), np.array([5, 1, 3, 4, 9])


@pytest.mark.parametrize(("inclusive", "expected"), [(False, [0, 0, 3, 3, 5, 5, 9]), (True, [0, 3, 3, 5, 5, 9, 9])])
def test_a_row_sees_what_comes_before_it_and_what_is_at_its_time_if_that_counts(
    inclusive: bool, expected: list[int]
) -> None:
    steps = Maxima.of(TIMES, POSITIONS)
    assert (steps.times.tolist(), steps.positions.tolist()) == ([10, 20, 40], [3, 5, 9])
    asked = np.array([9, 10, 11, 20, 21, 40, 41])
    assert steps.at(asked, 0, inclusive=inclusive).tolist() == expected
    assert steps.at(asked, 7, inclusive=inclusive).tolist() == [max(7, one) for one in expected]


def test_steps_are_cut_at_a_time_and_merged_again() -> None:
    steps = Maxima.of(TIMES, POSITIONS)
    before, since = steps.before(20), steps.since(20)
    assert (before.times.tolist(), since.times.tolist()) == ([10], [20, 40])
    again = Maxima.unpacked([since.packed(), before.packed(), b""])
    assert again.packed() == steps.packed()
    assert (before.last(0), since.last(11), Maxima().last(2)) == (3, 11, 2)
