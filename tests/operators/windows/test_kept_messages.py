"""What a retention keeps: sizes are those of the messages that are stored, and of counted windows those that are full
and behind it go.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.identified import IDENTIFIED, SECOND, Message, as_rows, messages
from tests.helpers.lost_messages import REBUILD, lose
from tests.helpers.process import LONG, examples, few
from tidestate import Aggregation, agg
from tidestate.operators import Harness
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import Memory

KINDS: dict[str, Any] = {
    "tumbling": ts.tumbling("6 seconds"),
    "sliding": ts.sliding("6 seconds", "2 seconds"),
    "session": ts.sessions("3 seconds"),
    "gaps": ts.sessions(gap_column="gap"),
    "counted": ts.count_windows(3),
}
LATE: dict[str, dict[str, Any]] = {
    "horizon": {},
    "event": {"span": "5 seconds"},
    "window": {"span": "5 seconds", "rule": "window"},
}


def job(kind: str, kept: ts.Retention, late: dict[str, Any]) -> Aggregation:
    made = ts.stream(event_time="t", watermark_delay="2 seconds").group_by("k").window(KINDS[kind])
    made = made.aggregate(n=agg.count(), each=agg.list("v"))
    return (made.allowed_lateness(**late) if late else made).messages(("part", "at"), retain=kept)


def assert_sizes(tested: Harness) -> None:
    stored, sizes = tested.state("messages"), tested.state("messages_sizes")
    assert sum(sizes["count"].to_pylist()) == stored.num_rows
    # Two texts of a letter; offset, time and value, and for some windows a number or gap.
    numbers = len({"at", "t", "v"} | ({"_number", "gap"} & set(stored.column_names)))
    assert sum(sizes["bytes"].to_pylist()) == stored.num_rows * (2 + numbers * 8)


@pytest.mark.parametrize("kind", few(KINDS))
@settings(max_examples=examples(16))
@given(
    arrived=messages(least=12, most=40 if LONG else 20),
    late=st.sampled_from(sorted(LATE)),
    kept=st.sampled_from(
        [ts.Retention(messages=4), ts.Retention(bytes=150), ts.Retention(messages=6, span="20 seconds")]
    ),
    data=st.data(),
)
def test_sizes_are_those_of_the_messages_that_are_stored(
    kind: str, arrived: list[Message], late: str, kept: ts.Retention, data: st.DataObject
) -> None:
    tested = job(kind, kept, LATE[late]).harness(IDENTIFIED, store=Memory())
    while arrived:
        size = data.draw(st.integers(1, 8))
        tested.feed(as_rows([*arrived[:size], *arrived[:2]]))
        arrived = arrived[size:]
        assert_sizes(tested)
        if not arrived or data.draw(st.booleans()):
            tested.advance_watermark(data.draw(st.integers(0, 60)) * SECOND)
            assert_sizes(tested)


@pytest.mark.parametrize("late", few(["horizon", "event"], 0))
def test_sizes_of_lost_messages_go_with_their_sessions(tmp_path: Path, late: str) -> None:
    described = job("session", ts.Retention(messages=4), LATE[late])
    tested = described.harness(IDENTIFIED, folder=tmp_path, store=Memory())
    tested.feed(as_rows([Message(one, one, "a", None) for one in range(5)]))
    assert lose(tmp_path)
    tested.restart(REBUILD)
    for turn in range(1, 6):
        first = turn * 10
        tested.feed(as_rows([Message(first + one, first * 3 + one * 4, "ab"[one % 2], None) for one in range(6)]))
    assert_sizes(tested)
    assert tested.state("messages").num_rows >= 4


@pytest.mark.long
@settings(max_examples=40 if LONG else 2)
@given(
    arrived=messages(least=8, most=40 if LONG else 20, behind=0),
    many=st.integers(1, 4),
    step=st.integers(1, 4),
    kept=st.sampled_from([0, 2, 9]),
    size=st.integers(1, 7),
)
def test_counted_windows_keep_what_is_not_full_or_not_behind(
    arrived: list[Message], many: int, step: int, kept: int, size: int
) -> None:
    """The twin has all messages of a key by number: one goes when its last window is full and newer ones are kept.
    That is looked at when a window is full.
    """
    described = ts.stream(event_time="t").group_by("k").window(ts.count_windows(many, step))
    described = described.aggregate(n=agg.count(), each=agg.list("v")).allowed_lateness("1 day")
    known = described.messages(("at",), retain=ts.Retention(messages=max(kept, 1)))
    tested = known.harness(IDENTIFIED, store=Memory())
    by_key: dict[str, list[int]] = {"a": [], "b": []}
    for start in range(0, len(arrived), size):
        batch = arrived[start : start + size]
        tested.feed(as_rows(batch))
        for one in batch:
            by_key[one.k].append(one.v)
        stored = set(tested.state("messages")["offset"].to_pylist())
        needed = set()
        for own in by_key.values():
            for number, at in enumerate(own):
                starts = [one for one in range(0, number + 1, step) if one + many > number]
                if any(one + many > len(own) for one in starts):
                    needed.add(at)
        assert needed <= stored
        # Those behind: a message that no window needs is stored for the retention, or until a window is full again.
        newest = sorted(one for own in by_key.values() for one in own)[-max(kept, 1) :]
        assert len(stored - needed - set(newest)) <= size + 2 * many + step


def test_a_span_keeps_no_counted_windows() -> None:
    """Messages of theirs are kept by `Retention`; a span is refused."""
    described = (
        ts.stream(event_time="t")
        .group_by("k")
        .window(ts.count_windows(3))
        .aggregate(n=agg.count())
        .allowed_lateness("5 seconds")
    )
    with pytest.raises(UsageError, match="retention"):
        described.retain_windows("1 day").messages(("part", "at")).harness(IDENTIFIED)
