"""Triggers and the cut of the input into batches: by batches, by elements, and composite ones."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

import pytest

import tidestate as ts
from tests.helpers.cuts import MEMORY, SECOND, by_cut, cuts, events, net, plain, played, table
from tests.helpers.process import LONG, few, in_turn
from tidestate import agg
from tidestate.operators.describe.triggers import Trigger
from tidestate.statestore.spec.store import Parquet

pytestmark = pytest.mark.slow

ORDER = {"offset": "at", "origin": "part"}
DELAY = "6 s"


def tumbled(*, in_order: bool = False) -> Any:
    grouped = (
        ts.stream(event_time="t", watermark_delay=DELAY, **ORDER).group_by("k").window(ts.sliding("12 s", "6 s"))
    )
    described = grouped.aggregate(n=agg.count(), total=agg.sum("v"))
    return described.in_order() if in_order else described


TRIGGERS: dict[str, dict[str, Any]] = {
    "counts": {"early": ts.trigger.after_count(3)},
    "every element": {"early": ts.trigger.each_batch()},
    "only updated": {"early": ts.trigger.each_batch(), "only_updated": True},
    "composite": {"when": ts.trigger.repeatedly(ts.trigger.after_count(4))},
}


@pytest.mark.slow
@pytest.mark.parametrize(("trigger", "mode"), few(in_turn(TRIGGERS, ["discarding", "retracting"]), 0, 1))
def test_triggers_at_the_end_of_a_batch_change_panes_and_not_their_net(trigger: str, mode: Any) -> None:
    chance = random.Random(trigger)
    given = events(chance, 50)
    description = tumbled().accumulation(mode).trigger(**TRIGGERS[trigger])
    panes = by_cut(description, given, chance)
    if mode == "retracting":
        found = [net(one, "pane", "timing", "last") for one in panes]
    else:
        found = [added_up(one) for one in panes]
    assert all(one == found[0] for one in found)
    assert len({len(one) for one in panes}) > 1, "as many panes by each cut"


def added_up(panes: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    """Counts and sums of discarding panes, by window and key."""
    found: Counter[tuple[Any, ...]] = Counter()
    for pane in panes:
        for name in ("n", "total"):
            found[pane["window_start"], pane["k"], name] += pane[name] or 0
    return +found


@pytest.mark.slow
@pytest.mark.parametrize(
    "early", few([ts.trigger.each_batch(), ts.trigger.after_count(3)], 0), ids=["every", "third"]
)
def test_panes_per_element_in_order_are_the_same_by_any_cut(early: Any) -> None:
    chance = random.Random(9)
    given = events(chance, 50)
    description = tumbled(in_order=True).trigger(early=early, evaluate="element")
    found = [plain(one, "window_start", "k", "pane", "n", "total") for one in by_cut(description, given, chance)]
    assert all(one == found[0] for one in found)
    loose = tumbled().trigger(early=early, evaluate="element")
    found = [plain(one, "window_start", "k", "pane", "n", "total") for one in by_cut(loose, given, chance)]
    assert any(one != found[0] for one in found), "by (origin, offset) within a batch"


def test_a_trigger_that_finishes_closes_its_window_with_the_batch() -> None:
    """Pinned: what comes in the same batch is still in the window; what comes in the next is in the ledger."""
    given = [{"k": "a", "t": n * SECOND, "v": n, "part": "x", "at": n} for n in range(5)]
    description = tumbled().trigger(
        when=ts.trigger.or_finally(ts.trigger.repeatedly(ts.trigger.after_count(9)), ts.trigger.after_count(2))
    )
    found = []
    for cut in ([given], [given[:2], given[2:]]):
        panes, ledger = played(description, [table(some) for some in cut])
        found.append((max(pane["n"] for pane in panes), sorted({row["reason"] for row in ledger})))
    assert found == [(5, []), (2, ["window_closed"])]


class Part:
    """The naive twin of a composite trigger: a part, after each element."""

    def __init__(self, trigger: Trigger) -> None:
        self.kind, self.least = trigger.kind, trigger.count
        self.parts = [Part(part) for part in trigger.of]
        self.begin()

    def begin(self) -> None:
        self.count, self.done = 0, False
        for part in self.parts:
            part.begin()

    def add(self) -> None:
        self.count += 1
        for part in self.parts:
            part.add()

    def holds(self, passed: bool) -> bool:
        if self.done:
            return False
        if self.kind == "after_count":
            return self.count >= self.least
        if self.kind == "after_watermark":
            return passed
        held = [part.holds(passed) for part in self.parts]
        if self.kind == "all_of":
            return all(held[n] or part.done for n, part in enumerate(self.parts))
        return any(held)

    def fire(self, passed: bool) -> None:
        for part in [part for part in self.parts if part.holds(passed)]:
            part.fire(passed)
        if self.kind == "repeatedly":
            if self.parts[0].done:
                self.parts[0].begin()
        elif self.kind == "or_finally":
            self.done = self.done or any(part.done for part in self.parts)
        else:
            self.done = True


def twin(rows: list[dict[str, Any]], trigger: Trigger, size: int) -> tuple[Counter[Any], Counter[Any]]:
    """Accumulating panes of tumbling windows as (window, key, values), and values that came after the end."""
    windows = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row["t"], row["part"], row["at"])):
        windows[row["t"] // size, row["k"]].append(row["v"])
    panes, refused = Counter[Any](), Counter[Any]()
    for (window, key), values in windows.items():
        whole, taken, pending = Part(trigger), [], 0
        for value in values:
            if whole.done:
                refused[value] += 1
                continue
            whole.add()
            taken.append(value)
            pending += 1
            if whole.holds(False):
                whole.fire(False)
                panes[window, key, tuple(taken)] += 1
                pending = 0
        if not whole.done and whole.holds(True):
            panes[window, key, tuple(taken)] += 1
            pending = 0
        elif pending and not whole.done:  # the closing pane
            panes[window, key, tuple(taken)] += 1
    return panes, refused


COMPOSITES = {
    "two then done": ts.trigger.or_finally(
        ts.trigger.repeatedly(ts.trigger.after_count(9)), ts.trigger.after_count(2)
    ),
    "threes until seven": ts.trigger.or_finally(
        ts.trigger.repeatedly(ts.trigger.after_count(3)), ts.trigger.after_count(7)
    ),
    "both": ts.trigger.all_of(ts.trigger.after_count(2), ts.trigger.after_count(5)),
    "either": ts.trigger.any_of(ts.trigger.after_count(4), ts.trigger.after_watermark()),
    "again and again": ts.trigger.repeatedly(
        ts.trigger.any_of(
            ts.trigger.after_count(2), ts.trigger.all_of(ts.trigger.after_count(1), ts.trigger.after_watermark())
        )
    ),
    "until it has passed": ts.trigger.or_finally(
        ts.trigger.repeatedly(ts.trigger.after_count(2)), ts.trigger.after_watermark()
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", few(COMPOSITES, 2))
def test_a_composite_trigger_in_order_does_as_its_twin_by_any_cut(name: str) -> None:
    chance, trigger = random.Random(name), COMPOSITES[name]
    given = events(chance, 40 if LONG else 16)
    description = (
        ts.stream(event_time="t", watermark_delay=DELAY, offset="at", origin="part")
        .group_by("k")
        .window(ts.tumbling("9 s"))
        .aggregate(every=agg.list("v"))
        .in_order()
        .trigger(when=trigger, evaluate="element")
    )
    panes, refused = twin(given, trigger, 9 * SECOND)
    for cut in cuts(given, chance, single=name == "either"):
        store, partitions = chance.choice([MEMORY, Parquet()]), chance.choice([1, 3])
        batches = [table(some) for some in cut]
        observed, ledger = played(description, batches, store=store, partitions=partitions, restarts=len(cut) < 9)
        found = Counter((p["window_start"].timestamp() // 9, p["k"], tuple(p["every"])) for p in observed)
        assert found == panes
        assert Counter(row["v"] for row in ledger) == refused
        assert {row["reason"] for row in ledger} <= {"window_closed"}
    assert panes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "windows"),
    in_turn(["two then done", "threes until seven", "both"], [ts.sessions("3 s"), ts.sliding("12 s", "4 s")]),
)
@pytest.mark.long
def test_composite_triggers_in_order_are_the_same_by_any_cut(windows: Any, name: str) -> None:
    chance = random.Random(name)
    given = events(chance, 50 if LONG else 18)
    description = (
        ts.stream(event_time="t", watermark_delay=DELAY, offset="at", origin="part")
        .group_by("k")
        .window(windows)
        .aggregate(n=agg.count(), every=agg.list("v"))
        .in_order()
        .accumulation("retracting")
        .trigger(when=COMPOSITES[name], evaluate="element")
    )
    found = []
    for cut in cuts(given, chance, single=name == "both"):
        panes, ledger = played(description, [table(some) for some in cut], partitions=2)
        rows = Counter((row["v"], str(row["window_start"]), row["reason"]) for row in ledger)
        found.append((plain(panes, "window_start", "window_end", "k", "n", "pane", "kind"), rows))
    assert all(one == found[0] for one in found)
    assert found[0][1]


def naive_sessions(rows: list[dict[str, Any]], trigger: Trigger, gap: int) -> tuple[Counter[Any], Counter[Any]]:
    """Net panes of sessions, rows one after the other: a closed session refuses what overlaps it."""
    sessions: dict[str, list[dict[str, Any]]] = defaultdict(list)
    refused = Counter[Any]()
    for row in sorted(rows, key=lambda row: (row["t"], row["part"], row["at"])):
        of_key, t = sessions[row["k"]], row["t"]
        meets = [one for one in of_key if one["start"] < t + gap and t < one["end"]]
        if any(one["whole"].done for one in meets):
            refused[row["v"]] += 1
            continue
        if meets:
            one = meets[0]
            one["end"] = t + gap
        else:
            one = {"start": t, "end": t + gap, "whole": Part(trigger), "values": [], "observed": None}
            of_key.append(one)
        one["whole"].add()
        one["values"].append(row["v"])
        if one["whole"].holds(False):
            one["whole"].fire(False)
            one["observed"] = tuple(one["values"])
    panes = Counter[Any]()
    for key, of_key in sessions.items():
        for one in of_key:
            observed = one["observed"] if one["whole"].done else tuple(one["values"])
            panes[key, observed] += 1
    return panes, refused


@pytest.mark.parametrize("name", few(["two then done", "threes until seven", "both"], 0))
def test_a_closed_session_keeps_its_pane_and_refuses_what_overlaps_it(name: str) -> None:
    chance, trigger = random.Random(name), COMPOSITES[name]
    given = events(chance, 70 if LONG else 45)
    description = (
        ts.stream(event_time="t", watermark_delay=DELAY, offset="at", origin="part")
        .group_by("k")
        .window(ts.sessions("3 s"))
        .aggregate(every=agg.list("v"))
        .in_order()
        .accumulation("retracting")
        .trigger(when=trigger, evaluate="element")
    )
    panes, refused = naive_sessions(given, trigger, 3 * SECOND)
    for cut in cuts(given, chance, tries=1, single=False):
        observed, ledger = played(description, [table(some) for some in cut])
        found: Counter[Any] = Counter()
        for pane in observed:
            found[pane["k"], tuple(pane["every"])] += 1 if pane["kind"] == "emit" else -1
        assert +found == panes
        assert not -found
        assert Counter(row["v"] for row in ledger) == refused
    assert refused


@pytest.mark.parametrize("mode", ["discarding", "retracting"])
@pytest.mark.parametrize("per_element", [False, True])
def test_no_session_disappears_between_closed_and_open_ones(mode: Any, per_element: bool) -> None:
    """What bridged a closed and an open session was refused, and took the open one along."""
    given = [{"k": "a", "t": t * SECOND, "v": t, "part": "x", "at": n} for n, t in enumerate([1, 2, 3, 6, 7, 5, 9])]
    description = (
        ts.stream(event_time="t", watermark_delay="12 s", offset="at", origin="part")
        .group_by("k")
        .window(ts.sessions("3 s"))
        .aggregate(every=agg.list("v"))
        .accumulation(mode)
        .trigger(when=ts.trigger.after_count(3), evaluate="element" if per_element else "batch")
    )
    panes, ledger = played(description, [table(some) for some in (given[:3], given[3:5], given[5:])])
    assert [(pane["every"], pane["kind"]) for pane in panes] == [([1, 2, 3], "emit"), ([6, 7, 9], "emit")]
    assert [(row["v"], row["window_end"].timestamp()) for row in ledger] == [(5, 6)]
