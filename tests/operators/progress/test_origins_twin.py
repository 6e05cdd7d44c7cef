"""Origin progress against a twin that keeps every buffer ever seen."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.origins import Buffer, after, arrive, round_trip
from tidestate.operators.progress.origins import (
    ORIGIN_REASONS,
    advance_origins,
    buffers,
    origins,
    save,
    wait,
)
from tidestate.operators.progress.watermarks import BEGINNING_US, LAST_US


class Twin:
    """Every buffer ever seen, in sets."""

    def __init__(self, ids: list[int]) -> None:
        self.seen: dict[int, dict[int, dict[int, tuple[bool, int]]]] = {origin: {} for origin in ids}
        self.w = BEGINNING_US

    def take(self, one: Buffer) -> None:
        for number in range(one.sequence - one.behind, one.sequence + 1):
            chunks = self.seen[one.origin].setdefault(number, {})
            chunks.setdefault(one.chunk, (one.last, one.watermark))
        self.w = max(self.w, min(self.local(origin)[1] for origin in self.seen))

    def local(self, origin: int) -> tuple[int, int]:
        number, mark = 0, BEGINNING_US
        while True:
            chunks = self.seen[origin].get(number + 1, {})
            last = [chunk for chunk, (is_last, _) in chunks.items() if is_last]
            if not last or set(range(last[0] + 1)) != set(chunks):
                return number, mark
            number, mark = number + 1, max(mark, *(one for _, one in chunks.values()))


@st.composite
def sequences(draw: st.DrawFn, ranges: bool = False) -> list[Buffer]:
    """Real sequences of some origins: every buffer there is, in order."""
    found = []
    for origin in range(1, draw(st.integers(1, 3)) + 1):
        number = 0
        for _ in range(draw(st.integers(1, 8))):
            behind = draw(st.integers(0, 3)) if ranges else 0
            number += behind + 1
            chunks = draw(st.sampled_from([1, 1, 1, 2, 4]))
            for chunk in range(chunks):
                mark = draw(st.integers(-5, 30))
                found.append(Buffer(origin, number, chunk, chunk == chunks - 1, mark, behind))
    return found


@given(st.booleans().flatmap(lambda ranges: sequences(ranges)), st.data())
def test_a_shuffle_gives_the_same_watermark_as_the_sorted_one_and_as_the_twin(real: list[Buffer], data: Any) -> None:
    """With duplicates, in batches of any size, saved and restored in between; compared after each batch."""
    ids = sorted({one.origin for one in real})
    repeats = data.draw(st.lists(st.sampled_from(real), max_size=5))
    mixed = data.draw(st.permutations([*real, *repeats]))
    known, twin = origins(ids), Twin(ids)
    while mixed:
        size = data.draw(st.integers(1, len(mixed)))
        piece, mixed = mixed[:size], mixed[size:]
        known = round_trip(after(known, *piece))
        for one in piece:
            twin.take(one)
        assert known.watermark_us == twin.w
        for origin in ids:
            assert known.prefix_of(origin) == twin.local(origin)[0]
    in_order = after(origins(ids), *real)
    assert save(known).origins == save(in_order).origins
    assert known.watermark_us == in_order.watermark_us
    assert not len(known.pending)
    assert known.counters.seen_before == len(repeats)
    assert known.counters.backward == in_order.counters.backward


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=8), min_size=1, max_size=3), st.data())
def test_the_global_watermark_is_a_barrier_after_which_nothing_smaller_arrives(
    steps: list[list[int]], data: Any
) -> None:
    """Of data that is in order at its sources, whatever the order in which the buffers arrive."""
    real = [
        Buffer(origin, number, watermark=sum(origin_steps[:number]))
        for origin, origin_steps in enumerate(steps, 1)
        for number in range(1, len(origin_steps) + 1)
    ]
    mixed, known = data.draw(st.permutations(real)), origins(range(1, len(steps) + 1))
    for place, one in enumerate(mixed, 1):
        known = after(known, one)
        # A buffer's data is no older than the watermark of the buffer before it.
        starts = [sum(steps[other.origin - 1][: other.sequence - 1]) for other in mixed[place:]]
        assert all(start >= known.watermark_us for start in starts)


buffers_of_any_kind = st.builds(
    Buffer,
    st.integers(1, 3) | st.sampled_from([2**63 - 1, -(2**63), None]),
    st.integers(-1, 6) | st.sampled_from([2**63 - 1, -(2**63), None]),
    st.integers(-1, 3) | st.sampled_from([2**63 - 1, -(2**63), None]),
    st.booleans(),
    st.none() | st.integers(-5, 30) | st.sampled_from([LAST_US + 1, BEGINNING_US + 1]),
    st.integers(-1, 3) | st.sampled_from([2**63 - 1, -(2**63), None]),
)


@given(st.lists(st.lists(buffers_of_any_kind, max_size=10), max_size=5), st.integers(0, 3))
def test_whatever_comes_is_reported_and_nothing_goes_back(batches: list[list[Buffer]], patience: int) -> None:
    known, reported = origins([1, 2]), 0
    for now, batch in enumerate(batches):
        before, prefixes = known.watermark_us, dict(zip(known.ids.tolist(), known.prefixes.tolist(), strict=True))
        found = arrive(known, *batch)
        known, _ = wait(found.origins, now, patience)
        reported += len(batch)
        assert len(found.reasons) == len(batch)
        assert known.watermark_us >= before
        assert all(known.prefix_of(origin) >= prefix for origin, prefix in prefixes.items())
        known = round_trip(known)
    counters = msgspec.structs.asdict(known.counters)
    assert sum(counters[name] for name in ("counted", *ORIGIN_REASONS[1:])) == reported


@pytest.mark.long
def test_a_million_buffers_in_random_order_within_a_window() -> None:
    from tools.bench.progress import shuffled

    order = shuffled(1_000_000, np.random.default_rng(1)) + 1
    known = origins([0])
    for start in range(0, len(order), 1_000):
        here = order[start : start + 1_000]
        known = advance_origins(known, buffers(np.zeros(len(here), np.int64), here, watermarks=here)).origins
        assert len(known.pending) <= 1_000
    assert known.watermark_us == 1_000_000
