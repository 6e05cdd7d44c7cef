"""A message with an identity that is reprocessed takes part in each of its windows once, however often it is given.

The twin has windows as sets of messages, by the documents: SEMANTICS, "Retention and feeding back"; MESSAGES.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.identified import IDENTIFIED, SECOND, TIME, Message, as_rows, messages
from tests.helpers.process import SCRATCH, examples, few
from tidestate import Aggregation, agg
from tidestate.operators.inspect.query import query
from tidestate.statestore.spec.store import Memory

DELAY, ALLOWED = 2, 3
KINDS: dict[str, Any] = {
    "tumbling": ts.tumbling("6 seconds"),
    "sliding": ts.sliding("6 seconds", "2 seconds"),
    "lifetimes": ts.tumbling("6 seconds", of="lifetime"),
}


def job(window: Any, rule: str, retain: int, *, stored: bool, **more: Any) -> Aggregation:
    lasting = ts.lifetime("until")
    events = ts.stream(event_time="t", watermark_delay=f"{DELAY} seconds", lifetime=lasting, **more)
    made = (
        events.group_by("k")
        .window(window)
        .aggregate(n=agg.count(), total=agg.sum("v"), **({"ids": agg.list("v")} if stored else {}))
    )
    made = made.allowed_lateness(f"{ALLOWED} seconds", rule=rule)
    return (made.retain_windows(f"{retain} seconds") if retain else made).messages(("part", "at"))


class Twin:
    def __init__(self, kind: str, rule: str, retain: int) -> None:
        self.kind, self.rule, self.retain = kind, rule, retain
        self.watermark: int | None = None
        self.windows: dict[tuple[str, int], set[int]] = defaultdict(set)
        self.seen, self.accepted = set[int](), set[int]()
        self.late: list[tuple[Message, int | None]] = []

    def starts(self, one: Message) -> list[int]:
        slide = 2 if self.kind == "sliding" else 6
        last = one.until - 1 if self.kind == "lifetimes" else one.t
        first = one.t // slide * slide - (6 - slide)
        return list(range(first, last + 1, slide))

    def feed(self, batch: list[Message]) -> None:
        closed = None if self.watermark is None else self.watermark - ALLOWED
        ahead = [self.watermark] if self.watermark is not None else []
        for one in batch:
            starts = self.starts(one)
            open_ = [start for start in starts if closed is None or start + 6 > closed]
            on_time = bool(open_) if self.rule == "window" else closed is None or one.t >= closed
            if on_time:  # a redelivery, too
                ahead.append(one.t - DELAY)
            if one.v in self.seen:
                continue
            self.seen.add(one.v)
            if not on_time:
                self.late.append((one, None))
                continue
            self.accepted.add(one.v)
            taken = open_ if self.rule == "window" else starts
            self.late += [(one, start) for start in starts if start not in taken]
            for start in taken:
                self.windows[one.k, start].add(one.v)
        self.watermark = max(ahead, default=None)

    def back(self, rows: list[tuple[Message, int | None]]) -> None:
        expired = None if self.watermark is None else self.watermark - max(ALLOWED, self.retain)
        for one, only in rows:
            for start in self.starts(one) if only is None else [only]:
                if expired is None or start + 6 > expired:
                    # One that was taken by all windows before is in them already.
                    self.windows[one.k, start].add(one.v)
                    self.seen.add(one.v)
                    self.accepted.add(one.v)


def total(found: dict[tuple[str, int], Any], panes: list[dict[str, Any]]) -> None:
    for pane in panes:
        start = int(pane["window_start"].timestamp())
        assert "ids" not in pane or len(pane["ids"]) == pane["n"]
        found[pane["k"], start] = (pane["n"], pane["total"], sorted(pane.get("ids", [])))


@pytest.mark.parametrize("kind", few(KINDS, 2))
@settings(max_examples=examples(30))
@given(
    arrived=messages(),
    rule=st.sampled_from(["event", "window"]),
    retain=st.sampled_from([0, 8, 30]),
    stored=st.booleans(),
    data=st.data(),
)
def test_the_twins_windows_have_the_same_messages(
    kind: str, arrived: list[Message], rule: str, retain: int, stored: bool, data: st.DataObject
) -> None:
    twin, found, fed = Twin(kind, rule, retain), dict[tuple[str, int], Any](), 0
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        described = job(KINDS[kind], rule, retain, stored=stored)
        tested = described.harness(IDENTIFIED, partitions=2, folder=f"{folder}/root", store=Memory())
        sent = 0
        while sent < len(arrived):
            batch = arrived[sent : sent + data.draw(st.integers(1, 6))]
            sent += len(batch)
            again = data.draw(st.lists(st.sampled_from(arrived[:sent]), max_size=3))
            twin.feed([*batch, *again])
            total(found, tested.feed(as_rows([*batch, *again])).to_pylist())
            step = data.draw(st.sampled_from(["", "ledger", "given", "restart"]))
            if step == "ledger":
                twin.back(twin.late[fed:])
                fed = len(twin.late)
                total(found, tested.reprocess_late().to_pylist())
            if step == "given":
                chosen = data.draw(st.lists(st.sampled_from(arrived[:sent]), min_size=1, max_size=5))
                twin.back([(one, None) for one in chosen])
                total(found, tested.reprocess_late(as_rows(chosen)).to_pylist())
                before = tested.counters()
                assert tested.reprocess_late(as_rows(chosen)).num_rows == 0
                after = tested.counters()
                changed = {name: after[name] - before.get(name, 0) for name in after}
                assert changed.get("fed_accepted", 0) == 0
                # What no window takes any more is tried each time.
                assert changed.get("duplicates", 0) + changed.get("purged", 0) == len(chosen)
            if step == "restart":
                tested.restart()
        total(found, tested.finish().to_pylist())
        wanted = {at: (len(of), sum(of), sorted(of) if stored else []) for at, of in twin.windows.items() if of}
        assert found == wanted


@pytest.mark.parametrize(
    ("window", "rule"),
    [
        (ts.sessions("5 seconds"), "event"),
        (ts.sessions("5 seconds"), "window"),
        (ts.sessions(gap_column="gap"), "event"),
    ],
)
def test_sessions_take_a_reprocessed_message_once(window: Any, rule: str) -> None:
    tested = job(window, rule, 60, stored=True).harness(IDENTIFIED, store=Memory())
    arrived = [Message(number, at, "a", None) for number, at in enumerate([10, 12, 40, 11, 9])]
    tested.feed(as_rows(arrived[:3], gap=5 * SECOND))
    tested.feed(as_rows(arrived[3:], gap=5 * SECOND))
    assert tested.counters()["very_late"] == 2
    assert tested.reprocess_late(as_rows(arrived, gap=5 * SECOND)).num_rows
    (window_, *_) = (row for row in tested.windows().to_pylist() if row["n"] == 4)
    assert sorted(window_["ids"]) == [0, 1, 3, 4]
    assert tested.counters()["duplicates"] == 3
    for rows in (as_rows(arrived, gap=5 * SECOND), None):  # all that the ledger has was given before
        assert tested.reprocess_late(rows).num_rows == 0
    assert tested.counters()["duplicates"] == 3 + 5 + 2
    assert tested.feed(as_rows(arrived, gap=5 * SECOND)).num_rows == 0


def test_a_message_that_was_never_sent_is_known_once_it_was_reprocessed() -> None:
    tested = job(ts.tumbling("6 seconds"), "event", 60, stored=False).harness(IDENTIFIED, store=Memory())
    tested.feed(as_rows([Message(0, 30, "a", None)]))
    new = [Message(1, 7, "a", None), Message(1, 7, "a", None)]
    assert [row["n"] for row in tested.reprocess_late(as_rows(new)).to_pylist()] == [1]
    tested.restart()
    assert tested.feed(as_rows(new)).num_rows == 0
    assert tested.counters()["duplicates"] == 3


def test_rows_for_one_window_are_for_that_alone() -> None:
    """Others of the message's windows take it when they are named, or when the whole message is given."""
    described = job(ts.sliding("6 seconds", "2 seconds"), "event", 60, stored=True)
    tested = described.harness(IDENTIFIED, store=Memory())
    tested.feed(as_rows([Message(0, 30, "a", None)]))
    late = as_rows([Message(1, 5, "a", None)])

    def given_for(*starts: int) -> list[tuple[int, int]]:
        named = pa.array([start * SECOND for start in starts], TIME)
        rows = pa.concat_tables([late] * len(starts)).append_column("window_start", named) if starts else late
        panes = tested.reprocess_late(rows).to_pylist()
        return sorted((int(pane["window_start"].timestamp()), pane["n"]) for pane in panes)

    assert given_for(2) == [(2, 1)]
    assert given_for(2) == []
    assert given_for(2, 4) == [(4, 1)]
    assert given_for() == [(0, 1)]
    assert given_for() == given_for(0, 2, 4) == []
    assert tested.feed(late).num_rows == 0


def test_counted_windows_take_none_that_they_may_have_counted() -> None:
    described = (
        ts.stream(event_time="t")
        .group_by("k")
        .window(ts.count_windows(3))
        .aggregate(n=agg.count(), ids=agg.list("v"))
    )
    tested = described.allowed_lateness("5 seconds").messages(("part", "at")).harness(IDENTIFIED, store=Memory())
    arrived = [Message(0, 10, "a", None), Message(1, 30, "a", None)]
    tested.feed(as_rows(arrived))
    assert tested.reprocess_late(as_rows(arrived)).num_rows == 0
    counters = tested.counters()
    assert (counters["duplicates"], counters["out_of_retention"]) == (1, 1)
    assert tested.ledger()["reason"].to_pylist() == ["out_of_retention"]
    assert tested.feed(as_rows([Message(2, 31, "a", None), Message(3, 32, "a", None)])).to_pylist()[0]["ids"] == [
        0,
        1,
        2,
    ]


def test_nothing_lacks_after_the_same_rows_twice(tmp_path: Path) -> None:
    """The number of messages of a window was more than there are stored, so it was among the incomplete ones."""
    tested = job(ts.tumbling("6 seconds"), "event", 60, stored=True).harness(
        IDENTIFIED, folder=tmp_path, store=Memory()
    )
    arrived = [Message(0, 30, "a", None), Message(1, 7, "a", None), Message(2, 8, "a", None)]
    tested.feed(as_rows(arrived[:1]))
    for _ in range(2):
        tested.reprocess_late(as_rows(arrived))
    (window_,) = (row for row in query(tmp_path).get_windows().to_pylist() if row["n"] == 2)
    assert window_["events"] == 2
    assert query(tmp_path).incomplete_windows().num_rows == 0


def test_a_rejected_lifetime_is_not_known_until_its_far_end() -> None:
    described = job(ts.tumbling("6 seconds", of="lifetime"), "event", 0, stored=False)
    tested = described.harness(IDENTIFIED, store=Memory())
    far = Message(1, 2, "a", 1000)
    tested.feed(as_rows([Message(0, 40, "a", None)]))
    tested.feed(as_rows([far, far]))
    assert tested.counters()["duplicates"] == 1
    tested.feed(as_rows([Message(2, 41, "b", 1000), Message(3, 60, "a", None)]))
    tested.feed(as_rows([Message(4, 61, "b", None)]))
    known = sorted(tested.state("messages_seen")["offset"].to_pylist())
    assert 1 not in known
    assert 2 in known  # its windows are open


def test_by_hand_and_after_a_restart(tmp_path: Path) -> None:
    described = job(ts.sliding("6 seconds", "2 seconds"), "window", 60, stored=True)
    late = as_rows([Message(1, 7, "a", None), Message(2, 9, "a", None)])
    first: dict[str, int] = {}
    for turn in range(3):
        with described.by_hand(IDENTIFIED, checkpoint=tmp_path) as operator:
            operator.add_messages(as_rows([Message(0, 30, "a", None)]))
            found = operator.reprocess_late(late)
            first = first or found
            windows = operator.get_windows().to_pylist()
            assert sorted(row["n"] for row in windows if row["window_start"].timestamp() < 10) == [1, 1, 2, 2]
            assert found.get("duplicates", 0) == (2 if turn else 0)
    assert first["fed_accepted"] == 2
