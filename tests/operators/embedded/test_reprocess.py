"""The late ledger fed back to an operator by hand: into windows, messages and functions over them, once.

In every run: `test_by_hand_and_after_a_restart` of `tests.operators.windows.test_reprocessed_once`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import tidestate as ts
from tests.helpers.operator_messages import (
    SCHEMA,
    STORES,
    Message,
    Receiver,
    description,
    operator,
    plain,
    store_config,
    stream,
    table,
    take,
)
from tests.helpers.process import few, in_turn
from tidestate import agg
from tidestate.operators.describe.windows import Windows
from tidestate.statestore.spec.store import StoreName
from tidestate.statestore.stores.opening import _memory

WINDOWS: dict[str, Windows] = {
    "tumbling": ts.tumbling("6 seconds"),
    "sliding": ts.sliding("6 seconds", "2 seconds"),
    "session": ts.sessions("3 seconds"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("windows", "store", "rule"), few(in_turn(WINDOWS, STORES, ["event", "window"])))
def test_as_the_harness_with_a_crash_after_it(tmp_path: Path, windows: str, store: StoreName, rule: str) -> None:
    job = description(WINDOWS[windows], "retracting", allowed=3).allowed_lateness(
        "3 seconds", rule=rule, ledger_columns=("part", "at")
    )  # type: ignore[arg-type]
    job = job.retain_windows("20 seconds")
    harness, wanted, batches = job.harness(SCHEMA, folder=tmp_path / "harness"), [], stream(4, 8)
    receiver, config = Receiver(), store_config(store, tmp_path / "cache")
    for number, batch in enumerate(batches):
        wanted += plain(harness.feed(table(sorted(batch))))
        with operator(job, tmp_path / "hand", config) as running:
            running.add_messages(table(batch))
            if number % 4 == 3:
                wanted += plain(harness.reprocess_late())
                counters = running.reprocess_late()
                assert counters["fed"] == counters["fed_accepted"] + counters.get("purged", 0)
                assert running.reprocess_late() == {}
            else:
                running.flush()
            take(running, receiver)
            running.flush()
        _memory.clear()
    wanted += plain(harness.finish())
    with operator(job, tmp_path / "hand", config) as running:
        running.drain()
        take(running, receiver)
        counters = running.counters
    # The order among keys is each operator's own.
    assert sorted(receiver.panes, key=repr) == sorted(wanted, key=repr)
    same = ("accepted", "fed_accepted")
    assert {name: counters[name] for name in same} == {name: harness.counters()[name] for name in same}
    assert counters["fed_accepted"] > 3


def test_a_late_message_of_counted_windows_may_have_been_counted(tmp_path: Path) -> None:
    """They know identities for allowed lateness only: what is later goes to the ledger and is not reprocessed."""
    job = ts.stream(event_time="t").group_by("k").window(ts.count_windows(3)).aggregate(n=agg.count(), s=agg.sum("v"))
    job = job.allowed_lateness("0 seconds", ledger_columns=("part", "at"))
    with operator(job, tmp_path, store_config("memory", tmp_path)) as running:
        running.add_messages(table([Message("x", 1, 100, "a", 1), Message("x", 2, 101, "a", 2)]))
        running.add_messages(table([Message("x", 3, 5, "a", 4)]))
        running.flush()
        assert running.counters["out_of_retention"] == 1
        running.reprocess_late()
        running.add_messages(table([Message("x", 4, 102, "a", 8)]))
        assert [row[3:5] for r in running.get_result() for row in plain(r.panes)] == [(3, 11)]
