"""The window operator by hand: each message once, results until they are acknowledged, full-state functions."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.checkout import ROOT
from tests.helpers.internals import head_of, plan_of
from tests.helpers.lost_messages import REBUILD, lose
from tests.helpers.operator_messages import (
    SECOND,
    STORES,
    WINDOWS,
    Message,
    Receiver,
    description,
    expected,
    operator,
    plain,
    store_config,
    stream,
    table,
    take,
)
from tests.helpers.process import examples, few, in_turn, some
from tidestate import agg, trigger
from tidestate.operators.embedded import operator as embedded_operator
from tidestate.operators.embedded.operator import Flushed
from tidestate.operators.engine.delivery import read_rows
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import DeliveryId
from tidestate.recovery.moves.rescale import rescale
from tidestate.statestore.errors import TidestateError, UsageError
from tidestate.statestore.messages.tables import Retention
from tidestate.statestore.spec.store import Parquet, StoreName

LAYOUTS = {
    "tumbling": "<ts>_<offset>",
    "sliding": "<ts>_<offset>",
    "gaps": "<ts>_<offset>",
    "session": "<session>_<ts>_<offset>",
    "counted": "<offset>",
    "global": "<ts>_<offset>",
}


KINDS_OF_EACH_RUN = [sorted(WINDOWS).index(kind) for kind in ("counted", "global")]
"""The others are in `tests.operators.windows`, whose messages are known in the same way."""


@st.composite
def batches(draw: st.DrawFn) -> list[list[Message]]:
    """Messages of two origins, the offsets of each in any order."""
    offsets = {part: draw(st.permutations(range(40))) for part in "xy"}
    base, made = 0, []
    for size in draw(st.lists(st.integers(0, 6), min_size=1, max_size=5)):
        base += draw(st.sampled_from([0, 2, 5, 12, 30]))
        batch = []
        for _ in range(size):
            part = draw(st.sampled_from("xy"))
            time = draw(st.one_of(st.none(), *[st.integers(base - 30, base)] * 8))
            key = draw(st.sampled_from(["a", "a", "a", "b", None]))
            batch.append(Message(part, offsets[part].pop(), time, key, draw(st.integers(-9, 9))))
        made.append(batch)
    return made


def ledger(root: Path, schema: pa.Schema, allowed: int) -> set[tuple[str, int]]:
    checkpoint = Checkpoint.open(root)
    rows = [row for m in checkpoint.history() for row in read_rows(checkpoint, m.late, schema).to_pylist()]
    seen: set[tuple[str, int]] = set()
    for row in rows:
        # What has no time cannot be distinguished from a new one when it is forgotten; a replay then comes in again.
        if row["t"] and row["reason"] != "out_of_retention" and (row["part"], row["at"]) in seen:
            # So does one whose identity has been forgotten: the windows that it could have been in are over.
            over = row["watermark"] - timedelta(seconds=allowed)
            assert row["t"] < over, "an event is rejected once while it is known"
        seen.add((row["part"], row["at"]))
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("name", some(STORES, 1))
@settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(data=st.data(), made=batches(), kind=st.sampled_from(sorted(WINDOWS)))
def test_each_message_once_under_replay_duplicates_and_crashes(
    name: StoreName, data: st.DataObject, made: list[list[Message]], kind: str
) -> None:
    mode = data.draw(st.sampled_from(["accumulating", "retracting", "discarding"]))
    key = data.draw(st.sampled_from(["k", None]))
    allowed = data.draw(st.sampled_from([0, 5, 20]))
    job = description(WINDOWS[kind], mode, key, allowed)
    with tempfile.TemporaryDirectory() as folder:
        root, receiver = Path(folder) / "root", Receiver()
        panes, rejected = expected(job, made, Path(folder) / "harness")
        store = store_config(name, Path(folder) / "cache")
        running = operator(job, root, store, partitions=data.draw(st.sampled_from([1, 1, 3])))
        for number, batch in enumerate(made):
            again = data.draw(st.lists(st.sampled_from([m for b in made[: number + 1] for m in b] or [None])))
            shuffled = data.draw(st.permutations([*batch, *(m for m in again if m and m in batch)]))
            if shuffled or not batch:
                running.add_messages(table(shuffled))
            running.add_messages(table([m for m in again if m and m not in batch]))
            take(running, receiver)
            after = data.draw(st.sampled_from(["", "flush", "crash", "rescale"]))
            if after == "flush":
                running.flush()
            if after in ("crash", "rescale"):
                running.close()
                if after == "rescale":
                    rescale(root, {1: 3, 3: 2, 2: 1}[head_of(running).partitions])
                running = operator(job, root, store)
                for earlier in made[: number + 1]:
                    running.add_messages(table(earlier))
        running.drain()
        take(running, receiver)
        running.flush()
        found = ledger(root, plan_of(running).late_schema, allowed)
        running.close()
    assert sorted(receiver.panes, key=repr) == sorted(panes, key=repr)
    accepted = {(m.part, m.at) for b in made for m in b} - rejected
    assert found - accepted == rejected


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), few(in_turn(STORES, sorted(WINDOWS)), *KINDS_OF_EACH_RUN))
def test_a_function_over_the_messages_of_a_window_is_exact(tmp_path: Path, name: StoreName, kind: str) -> None:
    job = description(WINDOWS[kind], "retracting", allowed=30)
    made, receiver = stream(7, 12 if kind == "tumbling" else 7), Receiver()
    panes, _ = expected(job, made, tmp_path / "harness")
    with operator(job, tmp_path / "root", store_config(name, tmp_path / "cache")) as running:
        assert str(running.layout) == LAYOUTS[kind]
        for batch in made:
            running.add_messages(table(batch))
        running.drain()
        take(running, receiver)
    assert sorted(receiver.panes, key=repr) == sorted(panes, key=repr)
    assert kind in ("counted", "global") or any(row[-3] == "late" for row in panes)
    values: dict[Any, list[int]] = defaultdict(list)
    if kind == "tumbling":  # and once without any code of ours
        for m in sorted(m for batch in made for m in batch):
            assert m.t is not None
            values[m.t // 6 * 6 * SECOND, m.k].append(m.v)
        whole = {(int(row[0].timestamp()) * SECOND, row[2]): row for row in panes if row[-2] == "emit"}
        checked = [row for at, row in whole.items() if row[3] == len(values[at])]
        assert len(checked) > 15
        assert all(row[5] == median(values[int(row[0].timestamp()) * SECOND, row[2]]) for row in checked)


def test_no_messages_are_kept_where_nothing_needs_them(tmp_path: Path) -> None:
    job = ts.stream(event_time="t").group_by("k").window(ts.tumbling("10 seconds")).aggregate(n=agg.count())
    with operator(job, tmp_path, Parquet()) as running:
        assert running.layout is None
        assert running.add_messages(table([Message("x", 1, 3, "a", 1)] * 3))["duplicates"] == 2
        with pytest.raises(UsageError, match="no-messages"):
            running.get_messages()
    for layout in ("offset", "session_eq_ts_offset", "eq_offset"):
        with pytest.raises(UsageError, match="message-layout"):
            operator(job, tmp_path / layout, Parquet(), layout=layout)


def test_results_come_again_until_they_are_acknowledged(tmp_path: Path) -> None:
    job = description(ts.tumbling("10 seconds"))
    with operator(job, tmp_path, Parquet()) as running:
        running.add_messages(table([Message("x", 1, 3, "a", 1)]))
        running.add_messages(table([Message("x", 2, 13, "a", 1)]))
        (first,) = running.get_result()
        running.flush()
        assert [one.id for one in running.get_result()] == [first.id], "a flush acknowledges nothing by itself"
    with operator(job, tmp_path, Parquet()) as running:  # died before the acknowledgement
        (again,) = running.get_result()
        assert (again.id, plain(again.panes)) == (first.id, plain(first.panes))
        running.acknowledge(again.id)
        assert running.get_result() == []
        running.acknowledge(again.id)
        with pytest.raises(UsageError, match="acknowledge"):
            running.acknowledge(DeliveryId(again.id.run, again.id.checkpoint + 9))
        running.flush()
    with operator(job, tmp_path, Parquet()) as running:
        assert running.get_result() == []
        running.drain()
        (last,) = running.get_result()
        running.acknowledge(last.id)
        running.flush()
    with operator(job, tmp_path, Parquet()) as running:
        assert running.get_result() == []
        with pytest.raises(UsageError, match="drained"):
            running.add_messages(table([Message("x", 3, 13, "a", 1)]))


def test_results_add_up_and_one_is_acknowledged_with_all_before_it(tmp_path: Path) -> None:
    with operator(description(ts.tumbling("10 seconds")), tmp_path, Parquet()) as running:
        for at in (3, 13, 23, 33):
            running.add_messages(table([Message("x", at, at, "a", 1)]))
        first, second, third = running.get_result()
        running.acknowledge(second.id)
        assert [one.id for one in running.get_result()] == [third.id]
        running.acknowledge(first.id)
        assert [one.id for one in running.get_result()] == [third.id]


def test_what_is_forgotten_alone_is_flushed_too(tmp_path: Path) -> None:
    with operator(description(ts.tumbling("10 seconds"), allowed=20), tmp_path, Parquet()) as running:
        for number, (at, expected) in enumerate(((3, 2), (31, 3), (31, 3), (32, 4), (32, 4)), 1):
            running.add_messages(table([Message("x", number, at, "a", 1)]))
            assert head_of(running).id == expected, number
        assert running.get_windows().num_rows == 1


def test_a_session_is_flushed_when_it_starts_and_when_it_is_forgotten(tmp_path: Path) -> None:
    """Not when it grows. The first one ends at 10, and is kept until the watermark is at 30."""
    with operator(description(ts.sessions("5 seconds"), allowed=20), tmp_path, Parquet()) as running:
        calls = (3, 2), (5, 2), (13, 3), (16, 3), (20, 3), (24, 3), (28, 3), (31, 3), (33, 4)
        for number, (at, expected) in enumerate(calls):
            running.add_messages(table([Message("x", number, at, "a", 1)]))
            assert head_of(running).id == expected, at


def test_flushed_by_itself_on_a_new_window_output_and_purge(tmp_path: Path) -> None:
    with operator(description(ts.tumbling("10 seconds"), allowed=0), tmp_path, Parquet()) as running:
        head = lambda: head_of(running).id  # noqa: E731
        running.add_messages(table([Message("x", 1, 3, "a", 1)]))
        assert head() == 2, "a window was opened"
        running.add_messages(table([Message("x", 2, 4, "a", 1)]))
        assert head() == 2, "nothing happened that must not be lost"
        running.add_messages(table([Message("x", 3, 13, "a", 1)]))
        assert head() == 3, "it showed a pane, opened a window and forgot one"
        assert running.flush() == Flushed(3, pending=1)
        running.add_messages(table([Message("x", 4, 13, "a", 1)]))
        assert running.flush() == Flushed(4, pending=1)


def test_what_is_in_ram_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many messages are flushed though they open no window and show nothing."""
    monkeypatch.setattr(embedded_operator, "MAX_UNFLUSHED", 3)
    with operator(description(ts.tumbling("10 seconds")), tmp_path, Parquet()) as running:
        head = lambda: head_of(running).id  # noqa: E731
        for number, expected in enumerate((2, 2, 2, 3, 3, 3, 4), 1):
            running.add_messages(table([Message("x", number, 3, "a", 1)]))
            assert head() == expected, number
        assert running.add_messages(table([Message("x", 7, 3, "a", 1)]))["duplicates"] == 1


def test_late_updates_are_batched_for_a_span_of_processing_time(tmp_path: Path) -> None:
    job = description(ts.tumbling("10 seconds")).trigger(late=trigger.after_processing_time("10 seconds"))
    with operator(job, tmp_path, Parquet()) as running:
        running.timeout(0)
        running.add_messages(table([Message("x", 1, 3, "a", 1), Message("x", 2, 13, "a", 1)]))
        running.add_messages(table([Message("x", 3, 4, "a", 5)]))
        running.timeout(4 * SECOND)
        running.add_messages(table([Message("x", 4, 5, "a", 7)]))
        (on_time,) = running.get_result()
        assert [row[-3] for row in plain(on_time.panes)] == ["on_time"]
        running.acknowledge(on_time.id)
        running.timeout(10 * SECOND)
        (late,) = running.get_result()
        assert [(row[3], row[5], row[-3]) for row in plain(late.panes)] == [(3, 5.0, "late")]
        running.timeout(5 * SECOND, watermark_us=30 * SECOND)  # the clock does not go back; the watermark goes on
        assert running.watermark_us == 30 * SECOND


def test_a_call_that_fails_takes_nothing(tmp_path: Path) -> None:
    with operator(description(ts.tumbling("10 seconds")), tmp_path, Parquet()) as running:
        for bad in (table([Message("x", 1, 3, "a", 1)]).drop_columns(["v"]), table([Message(None, 1, 3, "a", 1)])):  # type: ignore[arg-type]
            with pytest.raises(UsageError):
                running.add_messages(bad)
        assert running.add_messages(table([Message("x", 1, 3, "a", 1)]))["accepted"] == 1
        assert running.counters["accepted"] == 1


@pytest.mark.long
def test_what_is_kept_can_be_read(tmp_path: Path) -> None:
    job = description(ts.tumbling("10 seconds"), allowed=10)
    with operator(job, tmp_path / "kept", Parquet(), retention=Retention(count=6)) as running:
        for at in range(40, 100, 5):
            running.add_messages(table([Message("x", at, at, "a", at)]))
        kept = running.get_messages()["offset"].to_pylist()
        assert kept == [70, 75, 80, 85, 90, 95], "the size says 6, and lateness needs no more"
        assert running.get_messages(75 * SECOND, 75, 85 * SECOND, 85, equal="a").num_rows == 3
        assert running.replay_from().to_pylist() == [{"origin": "x", "start_offset": 70, "last_offset": 95}]
        assert running.get_windows()["events"].to_pylist() == [2, 2, 2]
        assert running.get_windows()["n"].to_pylist() == [None, 2, 2], "the metadata outlives the values"
    with operator(job, tmp_path / "lateness", Parquet(), retention=Retention(count=1)) as running:
        for at in range(60, 100, 5):
            running.add_messages(table([Message("x", at, at, "a", at)]))
        assert running.get_messages()["offset"].to_pylist() == [80, 85, 90, 95], "never less than lateness needs"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"), few(in_turn(STORES, ["tumbling", "sliding", "session"]), STORES.index("memory"))
)
def test_a_lost_message_store_is_rebuilt_by_a_replay(tmp_path: Path, name: StoreName, kind: str) -> None:
    # Messages of a session that is longer than the lateness are known no more.
    made, receiver = stream(5, 8), Receiver()
    job = description(WINDOWS[kind], allowed=60 if kind == "session" else 15)
    panes, _ = expected(job, made, tmp_path / "harness")
    root, store = tmp_path / "root", store_config(name, tmp_path / "cache")
    with operator(job, root, store, partitions=1 if kind == "tumbling" else 3) as running:
        for batch in made[:6]:
            running.add_messages(table(batch))
        running.flush()
        take(running, receiver)
        origins = {row["origin"]: row["start_offset"] for row in running.replay_from().to_pylist()}
    lose(root)
    store = store_config(name, tmp_path / "another-host")
    with operator(job, root, store) as running, pytest.raises(TidestateError, match="file-missing"):
        running.get_messages()
    with operator(job, root, store) as running, pytest.raises(TidestateError, match='messages="rebuild"'):
        running.drain()
    replay = [m for batch in made[:6] for m in batch if m.at >= origins.get(m.part, 0)]
    with operator(job, root, store, policy=REBUILD) as running:
        running.rebuild([table(replay), table(replay[:5])])
        running.rebuild(table(replay))
        for batch in made[6:]:
            running.add_messages(table(batch))
        running.drain()
        take(running, receiver)
    assert sorted(receiver.panes, key=repr) == sorted(panes, key=repr)


@pytest.mark.slow
def test_the_example_of_the_document_runs() -> None:
    page = ROOT / "docs" / "how-to" / "embed-an-operator.md"
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M)
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "<ts>_<offset>",
        "1",
        "3 [{'n': 3, 'middle': 2.0}]",
        "1",
        "[] True",
        "[{'id': 1, 'left_value': 0, 'right_cost': 2}]",
        "{'window_start': 1, 'window_end': 4, 'offsets': [{'origin': 0, 'start_offset': 1, 'last_offset': 1}]}",
        "[1001]",
        "1",
        "[{'sold': 50, 'back': 50}]",
    ]


@pytest.mark.long
def test_several_partitions_answer_as_one(tmp_path: Path) -> None:
    """In each of them the same is due, known and asked for; one that no message reaches keeps up with the others."""
    job, made = description(ts.tumbling("6 seconds")).retain_windows("1 hour"), stream(3, 8)
    store, late = Parquet(), [Message("x", 900 + n, 0, key, n) for n, key in enumerate("abc")]
    with (
        operator(job, tmp_path / "one", store) as one,
        operator(job, tmp_path / "more", store, partitions=5) as more,
    ):
        for number, batch in enumerate(made):
            messages = table([m for m in batch if m.k == "a" or number % 3])  # some calls reach one of them only
            assert one.add_messages(messages) == more.add_messages(messages)
            assert one.due_us == more.due_us
            if number == 6:
                assert more.add_messages(messages)["duplicates"] == messages.num_rows
                assert more.flush() > one.flush() - 2
        for running in (one, more):
            running.timeout(0, watermark_us=60 * SECOND)
            running.add_messages(table(late))
            running.reprocess_late()
        for ask in (
            lambda by: by.get_windows(),
            lambda by: by.get_windows(0, 9 * SECOND, key="a"),
            lambda by: by.get_messages(),
            lambda by: by.replay_from(),
        ):
            assert ask(one).equals(ask(more))
        panes = [[row for result in by.get_result() for row in plain(result.panes)] for by in (one, more)]
        assert sorted(panes[0], key=repr) == sorted(panes[1], key=repr)
        more.drain()
    head = Checkpoint.open(tmp_path / "more").head()
    assert head is not None
    assert head.manifest.partitions == 5
