"""Windows put, deleted and retired by hand, beside a twin that keeps them in a dictionary."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.internals import head_of
from tests.helpers.operator_messages import (
    SECOND,
    STORES,
    WINDOWS,
    Message,
    description,
    operator,
    store_config,
    table,
)
from tests.helpers.process import LONG, each_third, examples, in_turn
from tidestate import Aggregation, agg, trigger
from tidestate.operators import WindowOperator
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.moves.rescale import rescale
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import Parquet

DELAY, GAP = 2, 3
LAYOUTS = {"tumbling": "ts_offset", "sliding": "eq_ts_offset", "session": "session_ts_offset"}


@dataclass
class Window:
    start: int
    end: int
    n: int
    total: int
    big: int
    offsets: dict[str, tuple[int, int]]

    def merge(self, other: Window) -> None:
        self.start, self.end = min(self.start, other.start), max(self.end, other.end)
        self.n, self.total, self.big = self.n + other.n, self.total + other.total, max(self.big, other.big)
        for origin, (first, last) in other.offsets.items():
            low, high = self.offsets.get(origin, (first, last))
            self.offsets[origin] = min(first, low), max(last, high)


@dataclass
class Twin:
    """Every event is accepted, as the lateness is long."""

    kind: str
    gap: int = GAP
    delay: int = DELAY
    windows: dict[str, list[Window]] = field(default_factory=dict)
    messages: set[Message] = field(default_factory=set)
    watermark: int | None = None

    def add(self, batch: list[Message]) -> None:
        for m in batch:
            assert m.t is not None
            self.messages.add(m)
            for start, end in self._bounds(m.t):
                self._put_in(str(m.k), Window(start, end, 1, m.v, m.v, {m.part: (m.at, m.at)}))
        latest = max((m.t - self.delay for m in batch if m.t is not None), default=None)
        self.watermark = max((one for one in (latest, self.watermark) if one is not None), default=None)

    def _bounds(self, t: int) -> list[tuple[int, int]]:
        if self.kind == "session":
            return [(t, t + self.gap)]
        slide = 6 if self.kind == "tumbling" else 2
        return [(s, s + 6) for s in range((t - 6) // slide * slide, t + 1, slide) if s <= t < s + 6]

    def _put_in(self, key: str, window: Window) -> None:
        own = self.windows.setdefault(key, [])
        touched = [one for one in own if one.start < window.end and window.start < one.end]
        if self.kind != "session":
            touched = [one for one in own if one.start == window.start]
        for one in touched:
            own.remove(one)
            window.merge(one)
        own.append(window)

    def remove(self, key: str | None, start: int, end: int) -> dict[str, int]:
        gone = 0
        for name, own in self.windows.items():
            inside = [w for w in own if start <= w.start and w.end <= end and key in (name, None)]
            gone += len(inside)
            self.windows[name] = [one for one in own if one not in inside]
        lost = {m for m in self.messages if m.t is not None and start <= m.t < end and key in (m.k, None)}
        lost = {m for m in lost if not any(w.start <= m.t < w.end for w in self.windows.get(str(m.k), []))}  # type: ignore[operator]
        self.messages -= lost
        return {"windows": gone, "messages": len(lost)}

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(
            (w.start, w.end, key, w.n, w.total, w.big, w.n, sorted((o, *span) for o, span in w.offsets.items()))
            for key, own in self.windows.items()
            for w in own
        )


def seconds(bound: Any) -> int:
    return int(bound.timestamp())


def rows_of(found: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(
        (
            *(seconds(row[name]) for name in ("window_start", "window_end")),
            *(row[name] for name in ("k", "n", "total", "big", "events")),
            sorted(tuple(one.values()) for one in row["offsets"]),
        )
        for row in found.to_pylist()
    )


def job_of(kind: str, *, early: bool, gap: int = GAP, delay: int = DELAY) -> Aggregation:
    window = ts.sessions(f"{gap} seconds") if kind == "session" else WINDOWS[kind]
    job = ts.stream(event_time="t", watermark_delay=f"{delay} seconds").group_by("k").window(window)
    job = job.aggregate(n=agg.count(), total=agg.sum("v"), big=agg.max("v")).allowed_lateness("1000 seconds")
    job = job.accumulation("retracting")
    return job.trigger(early=trigger.each_batch()) if early else job


@pytest.mark.slow
@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), kind=st.sampled_from(sorted(LAYOUTS)), early=st.booleans())
def test_windows_edited_by_hand_are_those_of_a_dictionary(seed: int, kind: str, early: bool) -> None:
    chance, at, base, removed = random.Random(seed), 0, 0, set[Message]()
    # With a long delay and a short gap a session that waits reaches far ahead of the watermark.
    gap, delay = chance.choice([GAP, GAP, 2, 6]), chance.choice([DELAY, DELAY, 5, 12])
    twin, job = Twin(kind, gap, delay), job_of(kind, early=early, gap=gap, delay=delay)
    with tempfile.TemporaryDirectory() as folder:
        root, store = Path(folder) / "root", store_config(chance.choice(STORES), Path(folder) / "cache")
        running = operator(job, root, store, layout=LAYOUTS[kind], partitions=chance.choice([1, 1, 3]))
        for _ in range(chance.randint(3, 6) if LONG else 3):
            base += chance.choice([0, 2, 5, 9])
            batch = []
            for _ in range(chance.randint(0, 5)):
                at += 1
                batch.append(
                    Message(
                        chance.choice("xy"),
                        at,
                        base - chance.randint(0, 12),
                        chance.choice("ab"),
                        chance.randint(-9, 9),
                    )
                )
            running.add_messages(table(batch))
            twin.add(batch)
            for _ in range(chance.randint(0, 3)):
                removed |= edit(chance, running, twin, early=early)
                check(running, twin)
            if removed:  # they stay known
                again = chance.sample(sorted(removed), min(2, len(removed)))
                assert running.add_messages(table(again))["duplicates"] == len(again)
            after = chance.choice(["", "flush", "restart", "rescale"])
            if after:
                running.flush()
            if after in ("restart", "rescale"):
                running.close()
                if after == "rescale":
                    rescale(root, {1: 3, 3: 2, 2: 1}[head_of(running).partitions])
                running = operator(job, root, store, layout=LAYOUTS[kind])
            check(running, twin)
        expected = [row[:6] for row in twin.rows() if twin.watermark is None or row[1] > twin.watermark]
        if early:
            running.flush()
        before = len(running.get_result())
        running.drain()
        panes = [row for result in running.get_result()[before:] for row in result.panes.to_pylist()]
        running.close()
    found = [
        (
            seconds(row["window_start"]),
            seconds(row["window_end"]),
            *(row[name] for name in ("k", "n", "total", "big")),
        )
        for row in panes
        if row["timing"] == "on_time" and row["kind"] == "emit"
    ]
    # Of an early pane that was emitted with the same values, no other one comes.
    assert sorted(found) == expected if not early else set(found) <= set(expected)


def edit(chance: random.Random, running: WindowOperator, twin: Twin, *, early: bool) -> set[Message]:
    """One edit of both; the messages that went with it."""
    before, what = set(twin.messages), chance.choice(["put", "put", "new", "delete", "retire"])
    key = chance.choice("ab")
    own = twin.windows.get(key, [])
    if what == "retire":
        start = chance.randint(-12, 40)
        end, of = start + chance.randint(1, 20), chance.choice([key, None])
        inside = [
            w for k, ws in twin.windows.items() for w in ws if start <= w.start and w.end <= end and of in (k, None)
        ]
        if waits(twin, inside, early=early):
            refused("window-waits", running, lambda: running.retire(start * SECOND, end * SECOND, key=of))
        else:
            assert running.retire(start * SECOND, end * SECOND, key=of) == twin.remove(of, start, end)
    elif what == "new":
        start = chance.randint(-4, 30) * (1 if twin.kind == "session" else 6)
        window = Window(
            start, start + 6, chance.randint(1, 5), chance.randint(-9, 9), chance.randint(-9, 9), {"z": (1, 4)}
        )
        if any(one.start < window.end and start < one.end for one in own):
            return set()
        call = lambda: put(running, key, window, end=window.end)  # noqa: E731
        if waits(twin, [window], early=early):
            refused("window-waits", running, call)
        else:
            call()
            twin.windows.setdefault(key, []).append(window)
    elif own:
        window = chance.choice(own)
        if waits(twin, [window], early=early):
            refused("window-waits", running, lambda: running.del_window(window.start * SECOND, key=key))
            refused("window-waits", running, lambda: put(running, key, window))
        elif what == "delete":
            assert running.del_window(window.start * SECOND, key=key)
            twin.remove(key, window.start, window.end)
            assert not running.del_window(window.start * SECOND, key=key)
        else:
            window.total, window.n = chance.randint(-99, 99), chance.randint(1, 9)
            running.put_window(window.start * SECOND, key=key, events=window.n, values={"total": window.total})
    return before - twin.messages


def put(running: WindowOperator, key: str, window: Window, end: int | None = None) -> None:
    values = {"total": window.total, "big": window.big}
    running.put_window(
        window.start * SECOND,
        key=key,
        end=None if end is None else end * SECOND,
        events=window.n,
        values=values,
        offsets=window.offsets,
    )


def waits(twin: Twin, windows: list[Window], *, early: bool) -> bool:
    """Whether one of them shares slices that wait."""
    if twin.kind != "sliding" or early:
        return False
    return any(twin.watermark is None or one.end > twin.watermark for one in windows)


def refused(code: str, running: WindowOperator, call: Callable[[], object]) -> None:
    before = rows_of(running.get_windows())
    with pytest.raises(UsageError, match=code):
        call()
    assert rows_of(running.get_windows()) == before


def check(running: WindowOperator, twin: Twin) -> None:
    assert rows_of(running.get_windows()) == twin.rows()
    stored = {(row["origin"], row["offset"]) for row in running.get_messages().to_pylist()}
    assert stored == {(m.part, m.at) for m in twin.messages}
    for key, own in twin.windows.items():
        for window in own[:1]:
            row = running.get_window(window.start * SECOND, key=key)
            assert row is not None
            assert (row["n"], row["total"], row["events"]) == (window.n, window.total, window.n)


def test_what_is_put_into_a_session_is_found_by_events_before_its_end(tmp_path: Path) -> None:
    """Its end is more than the gap ahead of the watermark at which they are due."""
    with operator(job_of("session", early=False, delay=20), tmp_path, Parquet()) as running:
        running.add_messages(table([Message("x", n, 2 * n, "a", n) for n in range(1, 11)]))
        running.flush()
        running.put_window(2 * SECOND, key="a", events=3, values={"total": 100})
        running.add_messages(table([Message("x", 20, 5, "a", 7)]))
        running.timeout(1, watermark_us=12 * SECOND)
        (row,) = running.get_windows().to_pylist()
        assert (seconds(row["window_start"]), seconds(row["window_end"]), row["n"], row["total"]) == (2, 23, 4, 107)
        running.drain()
        (pane,) = [row for result in running.get_result() for row in result.panes.to_pylist()]
    assert (pane["n"], pane["total"], seconds(pane["window_start"])) == (4, 107, 2)


@pytest.mark.parametrize(("kind", "partitions"), each_third(in_turn(sorted(LAYOUTS), [3, 1])))
def test_a_flush_of_edits_alone_fires_nothing_and_what_is_due_fires_once(
    tmp_path: Path, kind: str, partitions: int
) -> None:
    """Also after a flush that left it open what is due in another state partition, and after a rescale."""
    keys, job = "abcdefgh", job_of(kind, early=False)
    with operator(job, tmp_path, Parquet(), partitions=partitions) as running:
        running.add_messages(table([Message("x", n, n, keys[n % 8], 1) for n in range(16)]))
        running.flush()
    rescale(tmp_path, partitions + 1)
    with operator(job, tmp_path, Parquet()) as running:
        fired = running.get_result()
        overlap = kind == "sliding"
        for key in keys:
            rows = running.get_windows(key=key).to_pylist()
            row = rows[0] if overlap else rows[-1]
            before = running.flush().checkpoint
            running.put_window(row["window_start"], key=key, values={"total": 50})
            assert running.flush() == (before + 1, len(fired))
            assert running.flush() == (before + 1, len(fired))
        assert [one.id for one in running.get_result()] == [one.id for one in fired]
        waiting = {
            (row["k"], row["window_start"], row["total"])
            for row in running.get_windows().to_pylist()
            if seconds(row["window_end"]) > 13
        }
        assert waiting
        for mark in (14, 20, 30, 40):
            running.timeout(mark, watermark_us=mark * SECOND)
        panes = [row for one in running.get_result()[len(fired) :] for row in one.panes.to_pylist()]
    assert len(panes) == len(waiting)
    assert {(row["k"], row["window_start"], row["total"]) for row in panes} == waiting


def test_an_edit_holds_from_the_next_checkpoint_on(tmp_path: Path) -> None:
    job = job_of("tumbling", early=False)
    messages = table([Message("x", 1, 1, "a", 5), Message("x", 2, 3, "a", 6)])
    with operator(job, tmp_path, Parquet()) as running:
        running.add_messages(messages)
        running.flush()
        running.put_window(0, key="a", events=9, values={"total": 1})
        assert running.get_window(0, key="a")["total"] == 1  # type: ignore[index]
    with operator(job, tmp_path, Parquet()) as running:  # it died before the flush
        assert running.get_window(0, key="a")["total"] == 11  # type: ignore[index]
        running.put_window(0, key="a", events=9, values={"total": 1})
        running.flush()
        kept = running.flush().checkpoint
        assert kept == Checkpoint.open(tmp_path).ids()[-1], "an edit alone is worth a checkpoint, once"
    with operator(job, tmp_path, Parquet()) as running:
        assert running.get_window(0, key="a")["total"] == 1  # type: ignore[index]
        assert running.add_messages(messages)["duplicates"] == 2
        running.timeout(1, watermark_us=6 * SECOND)
        (pane,) = [row for result in running.get_result() for row in result.panes.to_pylist()]
    assert (pane["n"], pane["total"], pane["big"]) == (9, 1, 6)


def test_a_late_event_begins_a_deleted_window_anew(tmp_path: Path) -> None:
    rows = [Message("x", n, t, "a", n) for n, t in ((1, 1), (2, 2), (3, 20))]
    with operator(description(ts.tumbling("6 seconds"), allowed=1000), tmp_path, Parquet()) as running:
        running.add_messages(table(rows))
        assert running.get_window(0, key="a")["middle"] == 1.5  # type: ignore[index]
        assert running.del_window(0, key="a")
        assert running.get_messages(end_time=6 * SECOND).num_rows == 0
        assert running.add_messages(table(rows[:1]))["duplicates"] == 1
        assert running.get_window(0, key="a") is None
        assert running.get_window(3_000 * SECOND, key="a") is None
        running.add_messages(table([Message("x", 4, 3, "a", 7)]))
        found = running.get_window(0, key="a")
        assert found is not None
        assert (found["n"], found["total"], found["middle"], found["events"]) == (1, 7, 7.0, 1)
        assert [one["start_offset"] for one in found["offsets"]] == [4]
        running.reprocess_late(table(rows[:2]))  # by name, they take part again
        assert running.get_window(0, key="a")["middle"] == 2.0  # type: ignore[index]
        with pytest.raises(UsageError, match="window-value"):
            running.put_window(0, key="a", values={"middle": 1.0})
        running.put_window(6 * SECOND, key="a", values={"n": 2, "total": 3})  # the function reads what is stored
        assert running.get_window(6 * SECOND, key="a")["middle"] is None  # type: ignore[index]


MISTAKES: dict[str, tuple[str, Callable[[WindowOperator], object]]] = {
    "a start of no window": ("window-bounds", lambda one: one.put_window(1, key="a", events=1)),
    "another end": ("window-bounds", lambda one: one.get_window(0, key="a", end=7 * SECOND)),
    "no start": ("window-bounds", lambda one: one.get_window(key="a")),
    "no key": ("window-key", lambda one: one.del_window(0)),
    "a null key": ("window-key", lambda one: one.get_window(0, key={"k": None})),
    "a key of another type": ("window-key", lambda one: one.get_window(0, key=1)),
    "a result that is not there": ("window-value", lambda one: one.put_window(0, key="a", values={"x": 1})),
    "a result of another type": ("window-value", lambda one: one.put_window(0, key="a", values={"total": "x"})),
    "half a number": ("window-value", lambda one: one.put_window(0, key="a", values={"total": 1.5})),
    "a count below none": ("window-value", lambda one: one.put_window(0, key="a", values={"n": -1})),
    "two counts": ("window-value", lambda one: one.put_window(0, key="a", events=2, values={"n": 1})),
    "no events": ("window-value", lambda one: one.put_window(0, key="a", events=0)),
    "a new window without results": ("window-value", lambda one: one.put_window(60 * SECOND, key="a", events=1)),
    "nothing at all": ("window-value", lambda one: one.put_window(0, key="a")),
    "offsets the wrong way": ("window-value", lambda one: one.put_window(0, key="a", offsets={"x": (2, 1)})),
    "one offset": ("window-value", lambda one: one.put_window(0, key="a", offsets={"x": (2,)})),  # type: ignore[dict-item]
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_changes_nothing(tmp_path: Path, mistake: str) -> None:
    code, call = MISTAKES[mistake]
    with operator(job_of("tumbling", early=False), tmp_path, Parquet()) as running:
        running.add_messages(table([Message("x", 1, 1, "a", 5)]))
        refused(code, running, lambda: call(running))
        checkpoint = running.flush().checkpoint
        assert running.flush().checkpoint == checkpoint


def test_windows_that_cannot_be_edited_say_why(tmp_path: Path) -> None:
    late = Message("x", 2, 1_000, "a", 1)
    with operator(job_of("tumbling", early=False), tmp_path / "over", Parquet()) as running:
        running.add_messages(table([Message("x", 1, 1, "a", 1), late._replace(t=5_000)]))
        with pytest.raises(UsageError, match="window-over"):
            running.put_window(0, key="a", events=1, values={"total": 1, "big": 1})
    with operator(job_of("session", early=False), tmp_path / "session", Parquet()) as running:
        running.add_messages(table([Message("x", 1, 1, "a", 1)]))
        for start, end in ((2, 9), (0, 30), (1, 9), (20, 21), (20, None)):
            with pytest.raises(UsageError, match="window-bounds"):
                running.put_window(
                    start * SECOND, key="a", end=end and end * SECOND, events=1, values={"total": 1, "big": 1}
                )
    counted = ts.stream(event_time="t").group_by("k").window(ts.count_windows(3)).aggregate(n=agg.count())
    with operator(counted, tmp_path / "counted", Parquet()) as running:
        running.add_messages(table([late]))
        assert running.get_window(0, key="a")["n"] == 1  # type: ignore[index]
        with pytest.raises(UsageError, match="window-edit"):
            running.del_window(0, key="a")
    whole = ts.stream(event_time="t").group_by().window(ts.global_window()).aggregate(n=agg.count(), v=agg.min("v"))
    with operator(whole, tmp_path / "global", Parquet()) as running:
        running.add_messages(table([late]))
        running.put_window(values={"v": -5, "n": 4})
        assert (running.get_window() or {})["v"] == -5
        assert running.del_window()
        assert running.get_window() is None
