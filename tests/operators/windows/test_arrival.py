"""What depends on order goes by arrival: against a naive twin that remembers when each event came."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.process import LONG, few
from tests.twins.general_streams import plain
from tests.twins.naive_aggregates import Event, Naive, chosen, listed, top
from tidestate import agg
from tidestate.operators.aggregates.aggregate import Aggregate

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
SCHEMA = pa.schema([("t", pa.timestamp("us", "UTC")), ("k", pa.string()), ("by", pa.int64()), ("v", pa.int64())])
AGGREGATES: dict[str, tuple[Aggregate, Naive]] = {
    "earliest": (agg.earliest("v"), chosen("t", largest=False)),
    "latest": (agg.latest("v"), chosen("t", largest=True, newest=True)),
    "lowest": (agg.first("v", by="by"), chosen("by", largest=False)),
    "highest": (agg.last("v", by="by"), chosen("by", largest=True, newest=True)),
    "least": (agg.arg_min("v", by="by"), chosen("by", largest=False)),
    "most": (agg.arg_max("v", by="by"), chosen("by", largest=True)),
    "best": (agg.top_n("v", 3, by="by"), top(3, "by")),
    "all": (agg.list("v"), listed()),
    "sorted": (agg.sorted_list("v", by="by"), listed("by")),
}
LISTS = ("all", "sorted")
WINDOWS = {
    "tumbling": ts.tumbling("4 us"),
    "sliding": ts.sliding("6 us", "2 us"),
    "with gaps": ts.sliding("4 us", "6 us", strict=False),
    "sessions": ts.sessions("3 us"),
}
GAP = 3
Window = tuple[int, int, str]
Batch = tuple[list[tuple[int, str, int]], int, bool]


@dataclass
class Fixed:
    """Windows of a size. Those that share events wait in slices (``waits``) until they are due: those of an earlier
    slice come first there, what is put back before that comes before these, and late ones come after them.
    """

    size: int
    slide: int
    waits: bool
    events: dict[Window, list[tuple[int, int, Event]]] = field(default_factory=lambda: defaultdict(list))

    def take(self, batch: list[Event], watermark: int, *, again: bool) -> None:
        for event in batch:
            for start in range(event["t"] // self.slide * self.slide, event["t"] - self.size, -self.slide):
                late = start + self.size <= watermark
                turn = 2 if late else 0 if again else 1
                place = (turn, event["t"] // 2 if turn == 1 else 0) if self.waits else (0, 0)
                self.events[start, start + self.size, event["k"]].append((*place, event))

    def windows(self) -> Iterator[tuple[Window, list[Event]]]:
        for window, kept in self.events.items():
            yield window, [event for *_, event in sorted(kept, key=lambda entry: entry[:2])]


@dataclass
class Sessions:
    """Sessions: where a batch makes one of several, those in the order of time, and then the batch as it came."""

    sessions: list[list[Event]] = field(default_factory=list)

    def take(self, batch: list[Event], watermark: int, *, again: bool) -> None:
        for key in {event["k"] for event in batch}:
            older = [events for events in self.sessions if events[0]["k"] == key]
            older.sort(key=lambda events: min(event["t"] for event in events))
            own = [event for event in batch if event["k"] == key]
            in_order = [*(event for events in older for event in events), *own]
            times = sorted(event["t"] for event in in_order)
            starts = [times[0], *(time for before, time in pairwise(times) if time - before >= GAP)]
            self.sessions = [events for events in self.sessions if events[0]["k"] != key]
            for low, high in pairwise([*starts, times[-1] + 1]):
                self.sessions.append([event for event in in_order if low <= event["t"] < high])

    def windows(self) -> Iterator[tuple[Window, list[Event]]]:
        for events in self.sessions:
            times = [event["t"] for event in events]
            yield (min(times), max(times) + GAP, events[0]["k"]), events


def net(panes: list[pa.Table]) -> dict[Window, tuple[Any, ...]]:
    """The last values of each window, without those that were taken back."""
    kept: dict[Window, tuple[Any, ...]] = {}
    for row in (row for table in panes for row in plain(table)):
        if row[-2] == "retract":
            assert kept.pop(row[:3]) == row[3:-4]
        else:
            kept[row[:3]] = row[3:-4]
    return kept


EVENTS = st.tuples(st.integers(-8, 9), st.sampled_from("aab"), st.integers(0, 1))
BATCHES = st.lists(
    st.tuples(st.lists(EVENTS, min_size=2, max_size=6), st.integers(0, 6), st.booleans()), min_size=3, max_size=6
)
"""Each with its events, by their distance from the watermark; how far that moves; whether refused ones come back."""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("kind", few(WINDOWS, 1))
@settings(max_examples=settings.default.max_examples if LONG else 2)
@given(batches=BATCHES, refuses=st.booleans(), lists=st.booleans(), early=st.booleans())
def test_what_came_first_is_first(kind: str, batches: list[Batch], refuses: bool, lists: bool, early: bool) -> None:
    """Late events are taken as they come, or (``refuses``, not of sessions) refused and put back later. Windows with
    an ``early`` trigger, which never fires here, wait in no slices.
    """
    window, aggregates = WINDOWS[kind], {name: AGGREGATES[name] for name in AGGREGATES if lists or name not in LISTS}
    refuses = refuses and kind != "sessions"
    job = ts.stream(event_time="t").group_by("k").window(window)
    job = (
        job.aggregate(**{name: made for name, (made, _) in aggregates.items()})
        .allowed_lateness("0 us" if refuses else "1 hour", rule="event")
        .retain_windows("2 hours")
        .accumulation("retracting")
    )
    job = job.trigger(early=ts.trigger.every_processing_time("1 hour")) if early else job
    waits = not early and kind != "tumbling"
    twin = Sessions() if kind == "sessions" else Fixed(window.size, window.slide, waits)
    number, watermark, refused, panes = 0, 100, list[Event](), []
    with job.harness(SCHEMA, generate=False) as harness:
        harness.advance_watermark(watermark)
        for drawn, ahead, again in batches:
            batch = [{"t": watermark + time, "k": key, "by": by} for time, key, by in drawn]
            batch = [event | {"v": number + place} for place, event in enumerate(batch)]
            number += len(batch)
            panes.append(harness.feed(pa.Table.from_pylist(batch, SCHEMA)))
            behind = [event for event in batch if refuses and event["t"] < watermark]
            refused += behind
            twin.take([event for event in batch if event not in behind], watermark, again=False)
            watermark += ahead
            panes.append(harness.advance_watermark(watermark))
            if again:
                panes.append(harness.reprocess_late())
                twin.take(refused, watermark, again=True)
                refused = []
        panes.append(harness.finish())
    assert net(panes) == {
        window: tuple(compute(events) for _, compute in aggregates.values()) for window, events in twin.windows()
    }


def seconds(rows: list[tuple[int, str, str]]) -> pa.Table:
    times, keys, texts = (list(column) for column in zip(*rows, strict=True))
    return pa.table(
        {"t": pa.array([time * 1_000_000 for time in times], SCHEMA.field("t").type), "k": keys, "v": texts}
    )


WAITING, HALVES = ts.sessions("10 s"), ts.sliding("10 s", "5 s")
CASES: dict[str, tuple[Any, Aggregate, list[list[tuple[int, str, str]]], Any]] = {
    "latest of a session that waits": (
        WAITING, agg.latest("v"), [[(1, "a", "pending"), (5, "b", "-")], [(1, "a", "paid")]], "paid"
    ),
    "earliest of a session that waits": (
        WAITING, agg.earliest("v"), [[(1, "a", "pending"), (5, "b", "-")], [(1, "a", "paid")]], "pending"
    ),
    "the largest of a session that waits": (
        WAITING, agg.top_n("v", 2, by="same"), [[(2, "a", "1st")], [(1, "a", "2nd")]], ["1st", "2nd"]
    ),
    "a batch between two ends of a session": (
        WAITING, agg.list("v"),
        [[(10, "a", "1"), (18, "a", "2")], [(27, "a", "3"), (1, "a", "4")]], ["1", "2", "3", "4"]
    ),
    "late events of a sliding window": (
        HALVES, agg.list("v"), [[(1, "a", "1"), (13, "a", "-")], [(9, "a", "2"), (4, "a", "3")]], ["1", "2", "3"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_worked_out_by_hand(name: str) -> None:
    """Of the first window of key a."""
    window, aggregate, batches, expected = CASES[name]
    job = ts.stream(event_time="t").group_by("k").window(window)
    with_same = [seconds(rows).append_column("same", pa.array([0] * len(rows))) for rows in batches]
    with (
        job.aggregate(it=aggregate).allowed_lateness("1 hour").accumulation("retracting").harness(with_same[0].schema)
    ) as harness:
        panes = [*(harness.feed(rows) for rows in with_same), harness.finish()]
    first_of_a = min(window for window in net(panes) if window[2] == "a" and window[0] >= 0)
    assert net(panes)[first_of_a] == (expected,)


def test_what_is_put_back_before_its_window_is_due_comes_behind_what_waits() -> None:
    job = (
        ts.stream(event_time="t")
        .group_by("k")
        .window(ts.tumbling("10 s"))
        .aggregate(it=agg.list("v"))
        .allowed_lateness("0 s", rule="event")
    )
    with job.harness(seconds([(0, "a", "")]).schema) as harness:
        harness.feed(seconds([(1, "a", "1"), (5, "a", "2")]))
        harness.feed(seconds([(3, "a", "3")]))
        harness.reprocess_late()
        harness.feed(seconds([(6, "a", "4")]))
        assert harness.finish()["it"].to_pylist() == [["1", "2", "3", "4"]]
