"""Operators by hand whose storage fails: a call that raises has taken nothing, and works when it is made again."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tidestate as ts
from tests.helpers.internals import job_of, plan_of, unflushed_of, views_of
from tests.helpers.join_operator_messages import Row, near, sessions, sided
from tests.helpers.join_operator_messages import operator as joins
from tests.helpers.moves import rewind
from tests.helpers.operator_messages import (
    SECOND,
    STORES,
    Message,
    description,
    operator,
    plain,
    store_config,
    table,
)
from tests.helpers.process import LONG, few
from tidestate.operators import JoinOperator, WindowOperator
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import CommitUnknownError, ConflictError, FencedError, UnavailableError
from tidestate.statestore.spec.store import Parquet, StoreName
from tidestate.statestore.testing.faults import FaultyObjects

ByHand = WindowOperator | JoinOperator
Call = tuple[str, Callable[[Any], Any]]


def messages(*rows: tuple[int, int, str]) -> Call:
    batch = table([Message("x", at, second, key, at) for at, second, key in rows])
    return "add_messages", lambda one: one.add_messages(batch)


def pair(*rows: tuple[str, int, int]) -> Call:
    batch = sided([Row(side, "x", at, second, "a", at) for side, at, second in rows])
    return "add_messages", lambda one: one.add_messages(**batch)


def timeout(now: int, watermark: int | None = None) -> Call:
    mark = None if watermark is None else watermark * SECOND
    return "timeout", lambda one: one.timeout(now * SECOND, watermark_us=mark)


FEED: Call = ("reprocess_late", lambda one: one.reprocess_late())
DRAIN: Call = ("drain", lambda one: one.drain())
FLUSH: Call = ("flush", lambda one: one.flush())
JOBS: dict[str, tuple[Callable[..., ByHand], list[Call]]] = {
    "tumbling": (
        lambda root, store: operator(description(ts.tumbling("10 seconds")).retain_windows("1 hour"), root, store),
        [
            messages((1, 1, "a"), (2, 3, "b")),
            messages((3, 5, "a")),
            timeout(20, 12),
            messages((4, 45, "a"), (5, 4, "b"), (5, 4, "b")),
            messages((6, 2, "a")),
            FEED,
            DRAIN,
        ],
    ),
    "session": (  # in several state partitions
        lambda root, store: operator(description(ts.sessions("3 seconds"), "retracting"), root, store, partitions=2),
        [messages((1, 1, "a"), (2, 9, "a")), messages((3, 3, "a"), (4, 40, "b")), FLUSH, DRAIN],
    ),
    "join": (
        lambda root, store: joins(near(), root, store),
        [pair(("left", 1, 1), ("right", 1, 2)), pair(("right", 2, 30), ("left", 2, 30)), timeout(99, 60), DRAIN],
    ),
    "session join": (
        lambda root, store: joins(sessions(), root, store),
        [pair(("left", 1, 1), ("right", 1, 2)), pair(("right", 2, 30)), DRAIN],
    ),
}


def standing(one: ByHand) -> tuple[Any, ...]:
    """All that can be seen of an operator, and what it has not flushed."""
    rows = {
        spec.name: [plain(part) for view in views_of(one) for part in view[spec.name].scan()]
        for spec in plan_of(one).tables
    }
    seen = one.watermark_us, one.due_us, one.drained, one.counters, one.ready, unflushed_of(one)
    return (*seen, {name: [row for part in parts for row in part] for name, parts in rows.items()})


def broken(one: ByHand, at: int | None) -> FaultyObjects:
    """Storage that fails at its call number ``at``."""
    checkpoint = job_of(one).checkpoint
    inner = checkpoint.objects._inner if isinstance(checkpoint.objects, FaultyObjects) else checkpoint.objects
    faulty = FaultyObjects(inner, at, when="during")
    job_of(one).checkpoint = replace(checkpoint, objects=faulty)
    return faulty


@pytest.mark.slow
@pytest.mark.parametrize("name", [None, *(STORES if LONG else [])])
@pytest.mark.parametrize("job", few(JOBS, 0, 3))
def test_failing_storage_changes_nothing(tmp_path: Path, job: str, name: StoreName | None) -> None:
    """At each call of storage in turn, up to the manifest; after the last one the same call succeeds."""
    begin, calls = JOBS[job]
    config = store_config(name, tmp_path / "cache") if name else Parquet()  # small limits: files are folded too
    failed = list[str]()
    with begin(tmp_path / "expected", config) as smooth, begin(tmp_path / "root", config) as rough:
        for what, call in calls:
            before, published = standing(rough), False
            for number in itertools.count(1):
                faulty = broken(rough, None if published else number)
                try:
                    answer = call(rough)
                    break
                except UnavailableError:
                    failed.append(faulty.log[-1].split("/")[0])
                published = faulty.log[number - 1].startswith("create manifests/")
                broken(rough, None)
                assert standing(rough) == before, faulty.log[number - 1]
            broken(rough, None)
            assert answer == call(smooth), what
            assert rough.counters == smooth.counters
        had = [[row for one in each.get_result() for row in plain(one.panes)] for each in (smooth, rough)]
    assert had[0] == had[1] != []
    assert failed.count("create manifests") >= 3
    assert {"put data", "put panes"} <= {*failed}


def test_where_it_is_not_known_whether_a_call_is_durable(tmp_path: Path) -> None:
    """Its manifest is there, and storage did not say so: the operator stops, the next one knows what it has had."""
    begin, ((_, call), (_, more), *_) = JOBS["tumbling"]
    with begin(tmp_path, Parquet()) as running:
        before, boundary = standing(running), itertools.count(1)
        for number in boundary:
            faulty = broken(running, number)
            with pytest.raises((UnavailableError, CommitUnknownError)) as caught:
                call(running)
            if faulty.log[number - 2].startswith("create manifests/"):
                break
        assert caught.type is CommitUnknownError
        broken(running, None)
        assert standing(running) == before
        with pytest.raises(ConflictError, match="start again"):
            call(running)
    with begin(tmp_path, Parquet()) as running:
        assert call(running)["duplicates"] == 2
        assert more(running)["accepted"] == 1


def test_what_is_not_flushed_is_gone_with_a_close(tmp_path: Path) -> None:
    """Counters and clock of a closed one do not stay without the state."""
    with operator(description(ts.tumbling("10 seconds")), tmp_path, Parquet()) as running:
        running.add_messages(table([Message("x", 1, 1, "a", 1)]))
        seen = standing(running)
        running.add_messages(table([Message("x", 2, 0, "a", 1)]))
        running.timeout(5 * SECOND)
        assert standing(running) != seen
        running.close()
        assert running.counters["accepted"] == 1
    with operator(description(ts.tumbling("10 seconds")), tmp_path, Parquet()) as running:
        again = standing(running)
        assert (again[:5], again[6:]) == (seen[:5], seen[6:])
        assert running.add_messages(table([Message("x", 2, 0, "a", 1)]))["accepted"] == 1
        assert running.counters["accepted"] == 2


def test_an_older_self_gives_no_results_that_a_rewind_has_abandoned(tmp_path: Path) -> None:
    with operator(description(ts.tumbling("10 seconds")), tmp_path, Parquet()) as running:
        running.add_messages(table([Message("x", 1, 1, "a", 1), Message("x", 2, 13, "a", 1)]))
        assert len(running.get_result()) == 1
        rewind(Checkpoint.open(tmp_path), 1, force=True)
        with pytest.raises(FencedError):
            running.get_result()
        with pytest.raises(FencedError):
            ts.run_operator(running, [], lambda _panes, _id: None)
