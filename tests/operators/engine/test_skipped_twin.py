"""A job whose state partitions all run in each round is the twin of one that skips those with nothing due."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.process import LONG, few, in_turn
from tidestate import OperatorStream, agg, watermark
from tidestate.operators.engine import tasks
from tidestate.operators.engine.micro_batch import MicroBatch, OperatorInput
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.trigger import (
    after_count,
    after_processing_time,
    after_watermark,
    all_of,
    any_of,
    every_event_time,
    every_processing_time,
    or_finally,
    repeatedly,
)

SECOND = 1_000_000
TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("t", TIME), ("k", pa.string()), ("n", pa.int64())])
PARTITIONS = 7 if LONG else 4
Event = tuple[int, str]


def skipped(play: Callable[[Path], Any], folder: Path) -> int:
    """How many steps were left out in a job that gave the same as one that leaves out none."""
    runs: list[int] = []
    real = tasks.run_partition

    def run(batch: MicroBatch, operator: OperatorInput, partition: int, *rest: Any) -> Any:
        runs.append(partition)
        return real(batch, operator, partition, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "run_partition", run)
        mine, some = play(folder / "a"), len(runs)
        patch.setattr(OperatorInput, "due", lambda operator, _: {*operator.base})
        assert mine == play(folder / "b")
    return len(runs) - 2 * some


def rows(events: Sequence[tuple[int, str]], first: int = 0) -> pa.Table:
    times = pa.array([at * SECOND for at, *_ in events], pa.int64()).cast(TIME)
    numbers = pa.array(range(first, first + len(events)), pa.int64())
    return pa.table([times, pa.array([key for _, key, *_ in events], pa.string()), numbers], schema=SCHEMA)


def lines(panes: pa.Table) -> list[str]:
    return sorted(map(repr, panes.to_pylist()))


WHEN = repeatedly(any_of(all_of(after_count(2), after_processing_time("9 seconds")), after_watermark()))
WINDOWS: dict[str, tuple[Any, dict[str, Any]]] = {
    "tumbling": (ts.tumbling("10 seconds"), {}),
    "sliding": (ts.sliding("20 seconds", "5 seconds"), {}),
    "coarse": (ts.sliding("100 seconds", "1 second"), {}),
    "session": (ts.sessions("5 seconds"), {}),
    "long session": (ts.sessions("30 seconds"), {}),
    "in order": (ts.tumbling("10 seconds"), {}),
    "early": (ts.sliding("20 seconds", "5 seconds"), {"early": every_event_time("3 seconds")}),
    "early session": (ts.sessions("8 seconds"), {"early": after_count(2)}),
    "clock": (
        ts.tumbling("10 seconds"),
        {"early": every_processing_time("5 seconds"), "late": after_processing_time("12 seconds")},
    ),
    "composite": (ts.sliding("20 seconds", "5 seconds"), {"when": WHEN}),
    "composite session": (
        ts.sessions("8 seconds"),
        {"when": or_finally(WHEN, after_processing_time("20 seconds")), "evaluate": "element"},
    ),
    "closing": (ts.tumbling("10 seconds"), {"late": None, "closing": "always"}),
    "closing session": (ts.sessions("5 seconds"), {"late": after_count(2)}),
    "early closing": (ts.sliding("20 seconds", "5 seconds"), {"early": every_event_time("3 seconds"), "late": None}),
    "counted": (ts.count_windows(2), {"early": after_processing_time("6 seconds")}),
    "messages": (ts.tumbling("10 seconds"), {"early": every_event_time("3 seconds")}),
    "message sessions": (ts.sessions("5 seconds"), {}),
}
RETAINED: dict[str, tuple[ts.Retention, str | None]] = {
    "time": (ts.Retention(span="20 seconds"), None),
    "longer than late": (ts.Retention(span="20 seconds"), "7 seconds"),
    "count": (ts.Retention(messages=4), None),
    "count and late": (ts.Retention(messages=2), "7 seconds"),
    "count and time": (ts.Retention(messages=4, span="20 seconds"), None),
}
BATCHES = st.lists(
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from("abcdefgh")), max_size=5), max_size=6 if LONG else 4
)


@pytest.mark.parametrize("kind", few(WINDOWS, 15))
def test_windows_are_those_of_a_job_that_skips_nothing(tmp_path_factory: pytest.TempPathFactory, kind: str) -> None:
    found = []

    @given(BATCHES, st.sampled_from(["0 seconds", "15 seconds"]), st.integers(1, PARTITIONS))
    @example([[(1, "a"), (2, "b")], [(12, "c")], []], "0 seconds", PARTITIONS)
    @settings(deadline=None, max_examples=8 if LONG else 1)
    def check(batches: list[list[Event]], late: str, partitions: int) -> None:
        play = lambda root: windows(root, kind, batches, late, partitions)  # noqa: E731
        found.append(skipped(play, tmp_path_factory.mktemp("roots")))

    check()
    assert sum(found) > 0


@pytest.mark.long
@pytest.mark.parametrize(("kind", "name"), few(in_turn(["tumbling", "session", "sliding"], RETAINED), 0))
def test_a_retention_of_messages_is_that_of_a_job_that_skips_nothing(
    tmp_path_factory: pytest.TempPathFactory, kind: str, name: str
) -> None:
    """State partitions step together; rounds without input in which nothing is due start none."""
    found = []

    @given(BATCHES, st.integers(1, 3))
    @example([[(1, "a"), (2, "b")], [(12, "c"), (3, "a")], [], [], []], 3)
    @settings(deadline=None, max_examples=8 if LONG else 1)
    def check(batches: list[list[Event]], partitions: int) -> None:
        play = lambda root: retained(root, kind, batches, name, partitions)  # noqa: E731
        found.append(skipped(play, tmp_path_factory.mktemp("roots")))

    check()
    assert sum(found) > 0


def retained(root: Path, kind: str, batches: Sequence[Sequence[Event]], name: str, partitions: int) -> Any:
    (window, _), (kept, late), number = WINDOWS[kind], RETAINED[name], 0
    made = ts.stream(event_time="t").group_by("k").window(window).aggregate(n=agg.list("n")).named("job")
    made = (made.allowed_lateness(late) if late else made).messages(identity="n", retain=kept)
    tested, found = made.harness(SCHEMA, folder=root, partitions=partitions), list[Any]()
    for turn, events in enumerate(batches):
        found.append(lines(tested.feed(rows(events, number))))
        number += len(events)
        for second in (0, 2, 30) if LONG else (2, 30):
            found.append(lines(tested.advance_watermark((turn * 12 + second) * SECOND)))
            found += [lines(tested.state(of)) for of in ("messages", "metadata", "messages_seen", "messages_marks")]
        if turn % 2:
            tested.restart()
    return [*found, lines(tested.finish()), tested.counters()]


def windows(root: Path, kind: str, batches: Sequence[Sequence[Event]], late: str, partitions: int) -> Any:
    (window, triggers), messages, number = WINDOWS[kind], kind.startswith("message"), 0
    grouped = ts.stream(event_time="t", offset="n").group_by("k").window(window)
    made = grouped.aggregate(n=agg.list("n") if messages else agg.count()).named("job")
    made = made.trigger(**triggers).allowed_lateness(late).accumulation("retracting")
    made = made.in_order() if kind == "in order" else made
    made = made.messages(identity="n") if messages else made
    tested, found = made.harness(SCHEMA, folder=root, partitions=partitions), list[Any]()
    for turn, events in enumerate(batches):
        found.append(lines(tested.feed(rows(events, number))))
        number += len(events)
        for second in (turn * 7 + 1, turn * 7 + 4) if triggers else ():
            found.append(lines(tested.advance_processing_time(second * SECOND)))
        found += [lines(tested.advance_watermark(turn * 7 * SECOND)), lines(tested.windows())]
        found += [lines(tested.state(name)) for name in ("messages", "metadata") if messages]
        if turn % 2:
            tested.restart()
    operator = Checkpoint.open(root).chosen(None).manifest.operators["job"]
    # Of sessions it may be before the next end: it depends on how far was read.
    due = [one.due_mark for one in operator.states] if "session" not in kind else []
    return [*found, operator.expired, due, lines(tested.finish()), tested.counters()]


SIDED, TEN, FOUR = ("left", "right"), ts.side(window=ts.tumbling("10 seconds")), ts.sliding("8 seconds", "4 seconds")
WITHIN: dict[str, Any] = {"within": ("-2 seconds", "6 seconds")}


def near(**choices: Any) -> OperatorStream:
    left, right = (ts.stream(event_time="t") for _ in SIDED)
    return left.join(right, on="k", name="job", **choices)


def by_session(**choices: Any) -> OperatorStream:
    left, right = (ts.stream(event_time="t") for _ in SIDED)
    return left.join_sessions(right, on="k", gap="5 seconds", name="job", **choices)


JOINS = {
    "left": near(**WITHIN, how="left", allowed_lateness="8 seconds"),
    "full": near(**WITHIN, how="full", unmatched="final"),
    "windows": near(window=TEN.window, how="full", allowed_lateness="4 s"),
    "in order": near(**WITHIN, how="full", in_order=True),
    "held": near(**WITHIN, how="full", sides=ts.side(update="5 seconds")),
    "own": near(left=TEN, right=ts.side(window=FOUR)),
    "outer own": near(sides=TEN, how="full"),
    "outer own in order": near(sides=TEN, how="full", in_order=True),
    "sessions": by_session(how="full", allowed_lateness="9 s"),
    "closed": by_session(how="left"),
}
EVENTS = st.tuples(st.integers(0, 60), st.sampled_from("abcd"), st.sampled_from(SIDED))


@pytest.mark.parametrize("kind", few(JOINS, 4))
def test_joins_are_those_of_a_job_that_skips_nothing(tmp_path_factory: pytest.TempPathFactory, kind: str) -> None:
    found = []

    @given(st.lists(st.lists(EVENTS, max_size=4), max_size=6 if LONG else 4), st.integers(1, PARTITIONS))
    @example([[(1, "a", "left"), (2, "b", "right")], [(12, "c", "left")], []], PARTITIONS)
    @settings(deadline=None, max_examples=8 if LONG else 1)
    def check(batches: list[list[tuple[int, str, str]]], partitions: int) -> None:
        play = lambda root: joined(root, kind, batches, partitions)  # noqa: E731
        found.append(skipped(play, tmp_path_factory.mktemp("roots")))

    check()
    assert sum(found) > 0


def joined(root: Path, kind: str, batches: Sequence[Sequence[tuple[int, str, str]]], partitions: int) -> Any:
    plain, found = SCHEMA.remove(2), list[Any]()
    tested = JOINS[kind].harness(dict.fromkeys(SIDED, plain), folder=root, partitions=partitions)
    for number, events in enumerate(batches):
        sides = {side: rows([e for e in events if e[2] == side]).select(plain.names) for side in SIDED}
        found.append(lines(tested.feed(sides)))
        for part in (3, 7):
            second = number * 7 + part
            found += [lines(tested.advance_processing_time(second * SECOND))] if kind == "held" else []
            found.append(lines(tested.advance_watermark(second * SECOND)))
        found += [tested.state(side).num_rows for side in SIDED]
        if number % 2:
            tested.restart()
    operator = Checkpoint.open(root).chosen(None).manifest.operators["job"]
    return [*found, operator.expired, lines(tested.finish()), tested.counters()]


LIVES = st.tuples(st.integers(0, 60), st.sampled_from("abcd"), st.sampled_from(SIDED), st.integers(1, 30))


@pytest.mark.long
def test_lifetimes_meet_as_in_a_job_that_skips_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    found = []

    @given(st.lists(st.lists(LIVES, max_size=4), max_size=6), st.integers(2, PARTITIONS))
    @example([[(1, "a", "left", 3), (2, "b", "right", 3)], [(12, "c", "left", 1)], []], PARTITIONS)
    @settings(deadline=None, max_examples=8 if LONG else 1)
    def check(batches: list[list[tuple[int, str, str, int]]], partitions: int) -> None:
        found.append(skipped(lambda root: lived(root, batches, partitions), tmp_path_factory.mktemp("roots")))

    check()
    assert sum(found) > 0


def lived(root: Path, batches: Sequence[Sequence[tuple[int, str, str, int]]], partitions: int) -> Any:
    """Both sides advance by the rows of the left one."""
    by_left = watermark.cti_settings("drop", generate=watermark.generate_ctis(2))
    imported = watermark.cti_settings("adjust", import_from="left")
    left, right = (
        ts.stream(event_time="t", offset="n", lifetime=ts.lifetime("until")).watermark(watermark.ctis(settings))
        for settings in (by_left, imported)
    )
    job, found = left.join_lifetimes(right, on="k", name="job"), list[Any]()
    whole = SCHEMA.append(pa.field("until", TIME))
    tested = job.harness(dict.fromkeys(SIDED, whole), folder=root, partitions=partitions)
    for number, events in enumerate(batches):
        sides = {}
        for side in SIDED:
            own = [(at + 5 * number, key, long) for at, key, of, long in events if of == side]
            ends = pa.array([(at + long) * SECOND for at, _, long in own], pa.int64()).cast(TIME)
            sides[side] = rows(own, number * 10).append_column("until", ends)  # type: ignore[arg-type]
        found.append(lines(tested.feed(sides)))
        found += [tested.state(side).num_rows for side in SIDED]
        if number % 2:
            tested.restart()
    operator = Checkpoint.open(root).chosen(None).manifest.operators["job"]
    return [*found, operator.expired, lines(tested.finish()), tested.counters()]
