"""What operators by hand refuse before anything happens: clocks that no manifest holds, calls after `close`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tidestate as ts
from tests.helpers.join_operator_messages import Row, near, sided
from tests.helpers.join_operator_messages import operator as joins
from tests.helpers.operator_messages import Message, description, operator, table
from tidestate.operators import WindowOperator
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.lease import check_idle
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import Parquet

BATCH = table([Message("x", 1, 1, "a", 1)])
CALLS: dict[str, Callable[[WindowOperator], Any]] = {
    "add_messages": lambda one: one.add_messages(BATCH),
    "timeout": lambda one: one.timeout(1),
    "flush": lambda one: one.flush(),
    "drain": lambda one: one.drain(),
    "get_result": lambda one: one.get_result(),
    "get_windows": lambda one: one.get_windows(),
    "get_messages": lambda one: one.get_messages(),
    "get_window": lambda one: one.get_window(0, key="a"),
    "put_window": lambda one: one.put_window(0, key="a", events=1),
    "del_window": lambda one: one.del_window(0, key="a"),
    "retire": lambda one: one.retire(0, 1),
    "replay_from": lambda one: one.replay_from(),
    "reprocess_late": lambda one: one.reprocess_late(),
    "rebuild": lambda one: one.rebuild([BATCH]),
    "run_operator": lambda one: ts.run_operator(one, [BATCH], lambda _id, _panes: None),
}


def windows(root: Path) -> WindowOperator:
    return operator(description(ts.tumbling("10 seconds")), root, Parquet())


@pytest.mark.parametrize("clock", [10**19, -(10**19), 2**63 - 1, -(2**63)])
def test_a_clock_that_no_manifest_can_hold_is_refused_before_anything_happens(tmp_path: Path, clock: int) -> None:
    with windows(tmp_path / "windows") as running:
        running.add_messages(BATCH)
        for call in (running.timeout, running.skip_idle_time):
            with pytest.raises(UsageError, match=r"moment|argument"):
                call(clock)
        with pytest.raises(UsageError, match=r"moment|argument"):
            running.timeout(0, watermark_us=10**19)
        with pytest.raises(UsageError, match=r"moment|argument"):
            ts.run_operator(running, [], lambda _id, _panes: None, clock=lambda: clock)
        running.flush()
        assert Checkpoint.open(tmp_path / "windows").head() is not None
    with joins(near(), tmp_path / "joins") as joined:
        with pytest.raises(UsageError, match=r"moment|argument"):
            joined.add_messages(**sided([Row("left", "x", 1, 1, "a", 1)]), now_us=clock)
        assert joined.counters == {}
        joined.flush()
    joins(near(), tmp_path / "joins").close()


def test_a_closed_operator_takes_no_call_and_no_lease(tmp_path: Path) -> None:
    with windows(tmp_path) as running:
        running.add_messages(BATCH)
        newest = running.flush().checkpoint
    for call in CALLS.values():
        with pytest.raises(UsageError, match="operator-closed"):
            call(running)
    running.close()
    checkpoint = Checkpoint.open(tmp_path)
    assert checkpoint.ids()[-1] == newest
    check_idle(checkpoint)
