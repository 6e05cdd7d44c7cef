"""Panes that are shown by a condition, of windows that read their messages again: against the same job without the
condition, also where messages were lost and come back by a replay.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.lost_messages import REBUILD, lose
from tests.helpers.operator_messages import (
    SCHEMA,
    WINDOWS,
    Message,
    description,
    operator,
    plain,
    store_config,
    stream,
    table,
)
from tests.helpers.process import examples
from tidestate import agg, trigger
from tidestate.statestore.spec.store import StoreName

KINDS = [name for name in WINDOWS if name != "counted"]
Judged = Callable[[dict[str, Any]], bool]
CONDITIONS: dict[str, Judged] = {
    "middle >= 1": lambda pane: pane["middle"] >= 1,
    "middle < 0 or n > 3": lambda pane: pane["middle"] < 0 or pane["n"] > 3,
    "middle = total": lambda pane: pane["middle"] == pane["total"],
    "k <> 'b' and middle > -2": lambda pane: pane["k"] != "b" and pane["middle"] > -2,
}
FORMS: dict[str, dict[str, Any]] = {
    "usual": {},
    "early": {"early": trigger.each_batch()},
    "late by three": {"late": trigger.after_count(3), "closing": "if_new"},
    "closing": {"on_time": "never", "closing": "always"},
    "composite": {
        "when": trigger.repeatedly(trigger.any_of(trigger.after_count(2), trigger.after_watermark())),
        "closing": "if_new",
    },
}
AT_ONCE = ("usual", "early")
"""Where every message makes a pane due, so nothing is pending when a replay comes."""


def job(name: str, form: str = "usual", allowed: int = 200, **messages: Any) -> Any:
    made = description(WINDOWS[name], "retracting", "k", allowed).trigger(**FORMS[form])
    return made.messages(identity=("part", "at"), **messages)


class Standing:
    """What stands of panes, each once; a retraction is of what stands, to the last column."""

    def __init__(self, condition: str | None = None) -> None:
        self.panes: Counter[tuple[Any, ...]] = Counter()
        self.condition = condition

    def take(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            if self.condition is not None:
                assert CONDITIONS[self.condition](row)
            values = tuple(row[name] for name in ("window_start", "window_end", "k", "n", "total", "middle"))
            self.panes[values] += 1 if row["kind"] == "emit" else -1
        assert set(self.panes.values()) <= {0, 1}

    def meeting(self, condition: str) -> Counter[tuple[Any, ...]]:
        names = ("k", "n", "total", "middle")
        met = {pane for pane in +self.panes if CONDITIONS[condition](dict(zip(names, pane[2:], strict=True)))}
        return Counter(met)


def again(batches: list[list[Message]], chance: random.Random) -> list[list[Message]]:
    """With messages that are delivered a second time."""
    sent: list[Message] = []
    made = []
    for batch in batches:
        made.append([*batch, *(chance.choice(sent) for _ in range(2) if sent)])
        sent += batch
    return made


class Drawn(NamedTuple):
    """A job and its stream. ``retained``: how long its messages are."""

    seed: int
    windows: str
    form: str
    condition: str
    store: StoreName
    retained: str | None


def drawn(*retained: str | None) -> st.SearchStrategy[Drawn]:
    stores: st.SearchStrategy[StoreName] = st.sampled_from(("memory", "parquet"))
    choices = (st.sampled_from(names) for names in (KINDS, [*FORMS], [*CONDITIONS]))
    return st.builds(Drawn, st.integers(0, 9999), *choices, stores, st.sampled_from(retained))


@settings(max_examples=examples(60))
@given(drawn(None, "30 seconds"))
def test_what_stands_is_what_stood_and_meets_the_condition(
    tmp_path_factory: pytest.TempPathFactory, case: Drawn
) -> None:
    """Nothing is lost: over cuts, redelivered messages and restarts, with a retention too."""
    chance, folder, condition = random.Random(case.seed), tmp_path_factory.mktemp("shown"), case.condition
    described = job(case.windows, case.form, 9, retain=case.retained)
    config = store_config(case.store, folder / "cache")
    plainly = described.harness(SCHEMA, partitions=2, store=config)
    shown = described.having(condition).harness(SCHEMA, partitions=2, store=config, folder=folder / "root")
    stood, stands = Standing(), Standing(condition)
    for batch in again(stream(case.seed, batches=6, size=7), chance):
        stood.take(plainly.feed(table(batch)).to_pylist())
        if chance.random() < 0.3:
            shown.restart()
        stands.take(shown.feed(table(batch)).to_pylist())
        assert +stands.panes == stood.meeting(condition)
    stood.take(plainly.finish().to_pylist())
    stands.take(shown.finish().to_pylist())
    assert +stands.panes == stood.meeting(condition)


@settings(max_examples=examples(60))
@given(drawn(None, "30 seconds", "90 seconds"))
@example(Drawn(1617, "tumbling", "usual", "middle >= 1", "memory", None))
@example(Drawn(3, "session", "early", "middle < 0 or n > 3", "parquet", None))
def test_after_a_replay_what_stands_meets_the_condition_by_all_messages(
    tmp_path_factory: pytest.TempPathFactory, case: Drawn
) -> None:
    """Messages are lost, windows are served by what is there, and a replay brings them back. With a retention the
    job without the condition has the same, and loses nothing.
    """
    chance, folder, condition = random.Random(case.seed), tmp_path_factory.mktemp("lost"), case.condition
    batches = stream(case.seed, batches=7, size=6)
    lost_before, replayed = sorted(chance.choices(range(1, len(batches)), k=2))
    described, is_at_once = job(case.windows, case.form, retain=case.retained), case.form in AT_ONCE
    config = store_config(case.store, folder / "cache")
    whole = described.harness(SCHEMA, partitions=2, store=config)
    made = described.having(condition).harness(SCHEMA, partitions=2, store=config, folder=folder / "root")
    stood, stands = Standing(), Standing(condition)
    for number, batch in enumerate(batches):
        if number == lost_before and lose(folder / "root", chance):
            made.restart(REBUILD)
        if number == replayed:
            replay = [message for one in batches[:number] for message in one]
            chance.shuffle(replay)
            half = chance.randrange(len(replay))
            for part in (replay[:half], replay[half:], replay):
                stands.take(made.rebuild(table(part)).to_pylist())
            if is_at_once:
                assert +stands.panes == stood.meeting(condition)
        stood.take(whole.feed(table(batch)).to_pylist())
        stands.take(made.feed(table(batch)).to_pylist())
        if is_at_once and number >= replayed:
            assert +stands.panes == stood.meeting(condition)
    stood.take(whole.finish().to_pylist())
    stands.take(made.finish().to_pylist())
    assert +stands.panes == stood.meeting(condition)


ROWS = [Message("x", at, 12 + at, "a", value) for at, value in enumerate([1, 2, 3, 16])]
"""In one window, with the median 2.5; of the first half it is 1.5, of the second 9.5."""
OVER = Message("x", 90, 30, "b", 0)


def lost_in_the_middle(folder: Path, condition: str) -> Any:
    """A job that has its window's first two messages, which are lost then, and gets the others when they are late."""
    made = job("tumbling").having(condition).harness(SCHEMA, folder=folder, store=store_config("parquet", folder))
    made.feed(table([*ROWS[:2], OVER]))
    assert lose(folder)
    made.restart(REBUILD)
    return made


def told(panes: Any) -> list[tuple[Any, ...]]:
    return [(row["kind"], row["timing"], row["middle"], row["pane"]) for row in panes.to_pylist()]


def test_a_pane_that_was_hidden_without_its_messages_is_shown(tmp_path: Path) -> None:
    made = lost_in_the_middle(tmp_path, "middle between 2 and 3")
    assert told(made.feed(table(ROWS[2:]))) == [], "1.5, then 9.5"
    assert told(made.rebuild(table(ROWS[:1]))) == [], "not all are back"
    assert told(made.rebuild(table(ROWS[:2]))) == [("emit", "late", 2.5, 0)]
    assert told(made.rebuild(table([*ROWS[:2], OVER]))) == []
    assert told(made.feed(table([Message("x", 7, 13, "a", 2)]))) == [
        ("retract", "late", 2.5, 0),
        ("emit", "late", 2.0, 1),
    ]


def test_a_pane_that_was_shown_without_its_messages_is_taken_back(tmp_path: Path) -> None:
    made = lost_in_the_middle(tmp_path, "middle > 5 or middle < 2")
    assert told(made.feed(table(ROWS[2:]))) == [("retract", "late", 1.5, 0), ("emit", "late", 9.5, 1)]
    hidden = made.counters().get("hidden", 0)
    assert told(made.rebuild(table(ROWS[:2]))) == [("retract", "late", 9.5, 1)]
    assert made.counters()["hidden"] == hidden + 1
    assert told(made.feed(table([Message("x", 7, 13, "a", 50)]))) == [], "3"
    assert told(made.feed(table([Message("x", 8, 13, "a", 51)]))) == [("emit", "late", 9.5, 2)]


def test_a_window_that_is_not_due_is_not_shown_by_a_replay(tmp_path: Path) -> None:
    made = job("tumbling").having("n > 0").harness(SCHEMA, folder=tmp_path, store=store_config("parquet", tmp_path))
    made.feed(table(ROWS))
    assert lose(tmp_path)
    made.restart(REBUILD)
    assert told(made.rebuild(table(ROWS))) == []
    assert told(made.feed(table([OVER]))) == [("emit", "on_time", 2.5, 0)]


def test_answers_say_which_windows_are_shown(tmp_path: Path) -> None:
    grouped = ts.stream(event_time="t", watermark_delay="2 seconds").group_by("k").window(WINDOWS["tumbling"])
    results = grouped.aggregate(middle=agg.median("v")).allowed_lateness("200 seconds").accumulation("retracting")
    described = results.messages(identity=("part", "at"), retain="1 hour").having("middle > 2")
    described.standalone(checkpoint=tmp_path).run([table([*ROWS, Message("y", 1, 12, "c", 1), OVER])])
    rows = ts.Root(tmp_path).windows().to_table().to_pylist()
    assert [(row["k"], row["middle"], row["shown"], row["panes"]) for row in rows] == [
        ("a", 2.5, True, 1),
        ("c", 1.0, False, 0),
        ("b", 0.0, False, 0),
    ]


def test_by_hand_too(tmp_path: Path) -> None:
    """There every message has an identity, so windows with a list read the messages again."""
    made = description(WINDOWS["tumbling"], "retracting", "k", 200).having("middle > 2")
    running = operator(made, tmp_path, store_config("memory", tmp_path))
    running.add_messages(table([*ROWS[:2], OVER]))
    running.add_messages(table([*ROWS[2:], ROWS[0]]))
    running.drain()
    running.flush()
    results = [row for result in running.get_result() for row in plain(result.panes)]
    assert [(row[3], row[5]) for row in results] == [(4, 2.5)]
    running.close()
