"""Advance-time settings against a twin that takes one row after the other."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.advance_time import Row, ctis, run
from tests.twins.cti import CtiTwin
from tidestate.operators.progress.advance_time import SHAPES, Advance
from tidestate.operators.progress.cti_settings import AdvanceTime, Generation
from tidestate.operators.progress.watermarks import LAST_US

instants = st.integers(0, 20)
rows = st.builds(
    Row, st.sampled_from(SHAPES), instants | st.sampled_from([None, LAST_US + 1]), st.none() | st.integers(0, 25)
)
generations = (
    st.none()
    | st.builds(Generation, every=st.integers(1, 4), delay_us=st.integers(-3, 6))
    | st.builds(Generation, span_us=st.integers(1, 8), delay_us=st.integers(-3, 6))
)


@given(
    st.lists(rows, max_size=30),
    generations,
    st.sampled_from(["drop", "adjust"]),
    st.lists(st.integers(0, 30), max_size=3),
    instants,
)
def test_a_stream_agrees_with_its_twin_wherever_batches_are_cut(
    stream: list[Row], how: Generation | None, policy: Any, cuts: list[int], imported: int
) -> None:
    settings = AdvanceTime(policy, how, "other")
    twin = CtiTwin(settings)
    twin.advance(-1, imported)
    expected = [twin.take(number, row) for number, row in enumerate(stream)]
    state, done, found_ctis = Advance(), 0, []
    for cut in [*sorted(cut for cut in cuts if cut < len(stream)), len(stream)]:
        piece = stream[done:cut]
        found = run(settings, piece, msgspec.json.decode(msgspec.json.encode(state), type=Advance), imported)
        for number in range(len(piece)):
            answer = expected[done + number]
            assert found.kept[number] == (answer is not None and answer[0])
            if found.kept[number]:
                assert found.starts[number] == answer[1]
        found_ctis += [(done + place, time) for place, time in ctis(found)]
        state, done = found.state, cut
    assert found_ctis == twin.ctis
    assert state.cti_us == twin.cti
    assert state.ctis == len(twin.ctis)
    assert state.dropped == sum(answer is not None and not answer[0] for answer in expected)
