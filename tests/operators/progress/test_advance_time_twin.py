"""Advance-time settings against a twin that takes one row after the other."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.advance_time import Row, ctis, run
from tidestate.operators.progress.advance_time import (
    SHAPES,
    Advance,
    AdvanceTime,
    Generation,
)
from tidestate.operators.progress.instants import BEGINNING_US, END_US, LAST_US

instants = st.integers(0, 20)
rows = st.builds(
    Row, st.sampled_from(SHAPES), instants | st.sampled_from([None, LAST_US + 1]), st.none() | st.integers(0, 25)
)
generations = (
    st.none()
    | st.builds(Generation, every=st.integers(1, 4), delay_us=st.integers(-3, 6))
    | st.builds(Generation, span_us=st.integers(1, 8), delay_us=st.integers(-3, 6))
)


class Twin:
    """One row after the other."""

    def __init__(self, settings: AdvanceTime) -> None:
        self.settings, self.cti, self.count, self.reference = settings, BEGINNING_US, 0, None
        self.ctis: list[tuple[int, int]] = []

    def advance(self, number: int, to: int) -> None:
        if to > self.cti:
            self.cti = to
            self.ctis.append((number, to))

    def sound(self, row: Row) -> bool:
        ends = row.shape in ("interval", "edge_end")
        if row.start is None or row.start > LAST_US or (ends and row.end is None):
            return False
        return not ends or row.end >= row.start + (row.shape == "interval")

    def take(self, number: int, row: Row) -> tuple[bool, int] | None:
        """Whether the row goes on, and where it starts; None for one that is no event."""
        if not self.sound(row):
            return None
        if row.shape == "cti":
            self.advance(number, row.start)
            return None
        kept, start = True, row.start
        if (row.end if row.shape == "edge_end" else row.start) < self.cti:
            end = {"point": row.start + 1, "interval": row.end, "edge_start": END_US, "edge_end": row.end}[row.shape]
            kept = self.settings.policy == "adjust" and end > self.cti
            start = self.cti if kept else start
        if row.shape != "edge_end":
            self.generate(number, row.start)
        return kept, start

    def generate(self, number: int, start: int) -> None:
        how = self.settings.generation
        if how is None:
            return
        if how.every is not None:
            self.count += 1
            due = self.count == how.every
            self.count = 0 if due else self.count
        else:
            self.reference = start if self.reference is None else self.reference
            due = start >= self.reference + how.span_us
            self.reference = start if due else self.reference
        if due:
            self.advance(number, start - how.delay_us)


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
    twin = Twin(settings)
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
