"""Results that wait for their acknowledgement: how many may, and what a flush says of them."""

from __future__ import annotations

import logging
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

import tidestate as ts
from tests.helpers.join_operator_messages import Row, near, sided
from tests.helpers.join_operator_messages import operator as joins
from tests.helpers.operator_messages import Message, Receiver, description, operator, table
from tidestate import trigger
from tidestate.operators import WindowOperator
from tidestate.operators.embedded.operator import Flushed
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import Parquet

LIMIT = 2


def windows(root: Path, pending_limit: int | None = LIMIT) -> WindowOperator:
    """Each batch has a pane, which is a result."""
    job = description(ts.tumbling("10 seconds")).trigger(early=trigger.each_batch())
    return operator(job, root, Parquet(), pending_limit=pending_limit)


def message(number: int) -> Any:
    return table([Message("x", number, 1, "a", number)])


def observed(running: WindowOperator) -> tuple[Any, ...]:
    """What a call that takes nothing leaves as it was."""
    return running.counters, running.get_messages().num_rows, running.watermark_us, running.ready


def test_too_many_results_let_no_message_in(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """'Check whether the message selector is disabled […] If yes, log a warning and throws exception.'"""
    with windows(tmp_path) as running:
        for number in range(LIMIT + 1):
            running.add_messages(message(number))
        before = observed(running)
        with caplog.at_level(logging.WARNING), pytest.raises(UsageError, match="outputs-pending") as caught:
            running.add_messages(message(LIMIT + 1))
        assert (caught.value.context["pending"], caught.value.context["limit"]) == (LIMIT + 1, LIMIT)
        assert [one.levelname for one in caplog.records if "outputs-pending" in one.getMessage()] == ["WARNING"]
        assert observed(running) == before
        running.timeout(1, watermark_us=None)  # time goes on
        first, *_ = running.get_result()
        running.acknowledge(first.id)
        assert running.add_messages(message(LIMIT + 1))["accepted"] == 1
        with pytest.raises(UsageError, match="outputs-pending"):
            running.add_messages(message(LIMIT + 2))
    with windows(tmp_path) as again, pytest.raises(UsageError, match="outputs-pending"):
        again.add_messages(message(LIMIT + 2))  # they wait across a restart, too


def test_a_flush_clears_what_was_acknowledged(tmp_path: Path) -> None:
    """'flush: Clear all window outputs', of those that were taken: the others would be lost."""
    with windows(tmp_path) as running:
        for number in range(LIMIT + 1):
            running.add_messages(message(number))
        results = running.get_result()
        running.acknowledge(results[1].id)
        flushed = running.flush()
        assert flushed == Flushed(results[-1].id.checkpoint, pending=1)
        assert (flushed.checkpoint, flushed.pending) == tuple(flushed)
    with windows(tmp_path) as again:
        assert [one.id for one in again.get_result()] == [results[-1].id]
        again.acknowledge(results[-1].id)
        assert again.flush().pending == 0


def test_the_loop_delivers_first_and_is_never_refused(tmp_path: Path) -> None:
    with windows(tmp_path) as running:
        for number in range(LIMIT + 1):
            running.add_messages(message(number))
    receiver = Receiver()
    with windows(tmp_path) as again:
        ts.run_operator(again, [message(10 + number) for number in range(2 * LIMIT)], receiver, clock=lambda: 0)
        assert again.ready == []
    assert len(receiver.taken) == 3 * LIMIT + 1


def test_any_number_may_wait(tmp_path: Path) -> None:
    with windows(tmp_path, pending_limit=None) as running:
        for number in range(2 * LIMIT + 1):
            running.add_messages(message(number))
        assert running.flush().pending == 2 * LIMIT + 1


def test_a_hundred_may_wait_by_default() -> None:
    for by_hand in (ts.Aggregation.by_hand, ts.JoinedStream.by_hand):
        assert signature(by_hand).parameters["pending_limit"].default == 100


def test_of_a_join(tmp_path: Path) -> None:
    with joins(near(), tmp_path, pending_limit=0) as running:
        both = [Row(side, "x", 1, 1, "a", 1) for side in ("left", "right")]
        assert running.add_messages(**sided(both))["pairs"] == 1
        with pytest.raises(UsageError, match="outputs-pending"):
            running.add_messages(**sided([Row("left", "x", 2, 1, "a", 1)]))
        running.acknowledge(running.get_result()[-1].id)
        assert running.add_messages(**sided([Row("left", "x", 2, 1, "a", 1)]))["pairs"] == 1


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "many"])
def test_a_limit_that_is_none(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(UsageError, match=r"pending-limit|argument"):
        windows(tmp_path / "root", pending_limit=wrong)
    assert not (tmp_path / "root").exists()
