"""Composite triggers that a clock ends: with something new by a pane, with nothing new without one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tidestate.agg import count
from tidestate.operators import Harness, global_window, sliding, tumbling
from tidestate.operators.describe.triggers import Trigger
from tidestate.operators.describe.windowed import windowed
from tidestate.operators.describe.windows import session
from tidestate.trigger import after_count, after_processing_time, or_finally, repeatedly

SCHEMA = pa.schema([("t", pa.timestamp("us", "UTC"))])
SECOND = 1_000_000
PAIRS_FOR_4 = or_finally(repeatedly(after_count(2)), after_processing_time("4 seconds"))
KINDS: dict[str, Any] = {
    "tumbling": tumbling("100 seconds"),
    "sliding": sliding("100 seconds", "50 seconds"),
    "session": session("50 seconds"),
    "global": global_window(),
}


def rows(*seconds: int) -> pa.Table:
    return pa.table([pa.array([second * SECOND for second in seconds]).cast(SCHEMA.types[0])], schema=SCHEMA)


def harness(kind: Any, trigger: Trigger) -> Harness:
    described = windowed(event_time="t").window(kind).aggregate(n=count()).late("60 seconds", rule="window")
    return Harness(described.trigger(when=trigger), SCHEMA)


def sizes(panes: pa.Table) -> list[int]:
    return [
        pane["n"] for pane in panes.to_pylist() if pane["window_end"] is None or pane["window_end"].timestamp() > 0
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("restarts", [False, True])
def test_a_clock_closes_a_window_with_nothing_new(kind: str, restarts: bool) -> None:
    tested = harness(KINDS[kind], PAIRS_FOR_4)
    assert set(sizes(tested.feed(rows(60, 61)))) == {2}
    assert sizes(tested.advance_processing_time(4 * SECOND)) == []
    if restarts:
        tested.restart()
    tested.advance_processing_time(10 * SECOND)
    closed = 2 if kind == "sliding" else 1
    assert sizes(tested.feed(rows(62, 63))) == []
    assert [row["reason"] for row in tested.ledger().to_pylist()] == ["window_closed"] * 2 * closed


def test_a_clock_closes_a_window_with_something_new_by_a_pane() -> None:
    tested = harness(KINDS["tumbling"], PAIRS_FOR_4)
    assert sizes(tested.feed(rows(60, 61))) == [2]
    assert sizes(tested.feed(rows(62))) == []
    assert sizes(tested.advance_processing_time(4 * SECOND)) == [3]
    assert sizes(tested.feed(rows(63, 64))) == []


@pytest.mark.parametrize("mode", ["accumulating", "discarding", "retracting"])
def test_the_pane_that_finishes_a_trigger_is_the_last_of_its_window(mode: Any) -> None:
    described = windowed(event_time="t").window(tumbling("100 seconds")).aggregate(n=count()).late("60 seconds")
    tested = Harness(described.trigger(when=PAIRS_FOR_4).accumulation(mode), SCHEMA)
    panes = [tested.feed(rows(60, 61)), tested.feed(rows(62)), tested.advance_processing_time(4 * SECOND)]
    flags = [(row["kind"], row["last"]) for table in panes for row in table.to_pylist()]
    again = [("retract", False)] if mode == "retracting" else []
    assert flags == [("emit", False), *again, ("emit", True)]
    assert tested.finish().num_rows == 0


def test_what_repeats_begins_again_when_a_clock_has_ended_it() -> None:
    tested = harness(KINDS["tumbling"], repeatedly(PAIRS_FOR_4))
    assert sizes(tested.feed(rows(60, 61))) == [2]
    assert sizes(tested.advance_processing_time(4 * SECOND)) == []
    tested.advance_processing_time(10 * SECOND)
    assert sizes(tested.feed(rows(62))) == [], "four seconds from here on"
    assert sizes(tested.advance_processing_time(13 * SECOND)) == []
    assert sizes(tested.advance_processing_time(14 * SECOND)) == [3]
