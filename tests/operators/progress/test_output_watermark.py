"""How far the panes of windows have come. STREAMINSIGHT and OURS say where a rule is from."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidestate.operators.describe.windows import Sliding
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
from tidestate.operators.windows.output_watermark import pulled_back


def hopped(watermark: int, size: int, slide: int, shift: int = 0) -> int:
    return pulled_back(watermark, Sliding(size, slide, shift))


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


@given(st.integers(-60, 60), st.integers(1, 12), st.integers(1, 12), st.integers(-9, 9))
def test_after_a_hopping_window_nothing_before_the_cti_can_still_change(
    watermark: int, size: int, slide: int, shift: int
) -> None:
    """Against windows listed one by one: those that end after the CTI may change, so results start at the first."""
    starts = [shift + number * slide for number in range(-120, 121)]
    open_ = [start for start in starts if start + size > watermark]
    assert hopped(watermark, size, slide, shift) == min(watermark, min(open_))
