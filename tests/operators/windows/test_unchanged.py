"""In retracting mode a pane that equals the last one of its window is neither taken back nor emitted again."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tidestate import agg, trigger
from tidestate.operators import (
    Harness,
)

SCHEMA = pa.schema([("t", pa.timestamp("us", "UTC")), ("at", pa.int64()), ("v", pa.int64())])
SECOND = 1_000_000


def rows(*events: tuple[int, int]) -> pa.Table:
    times = pa.array([second * SECOND for second, _ in events]).cast(SCHEMA.types[0])
    return pa.table([times, pa.array(range(len(events))), pa.array([v for _, v in events])], schema=SCHEMA)


def harness(kind: Any = None, mode: Any = "retracting", late: str = "60 seconds", **triggers: Any) -> Harness:
    described = (
        ts.stream(event_time="t", offset="at")
        .group_by()
        .window(kind or ts.tumbling("10 seconds"))
        .aggregate(m=agg.max("v"))
    )
    return described.allowed_lateness(late).accumulation(mode).trigger(**triggers).harness(SCHEMA)


def found(*tables: pa.Table) -> list[tuple[int, str, str, int]]:
    panes = [pane for table in tables for pane in table.to_pylist() if pane["window_start"].timestamp() < 10]
    return [(pane["m"], pane["timing"], pane["kind"], pane["pane"]) for pane in panes]


def test_late_panes() -> None:
    tested = harness()
    assert found(tested.feed(rows((1, 5), (12, 0)))) == [(5, "on_time", "emit", 0)]
    assert found(tested.feed(rows((2, 4)))) == []
    changed = [(5, "late", "retract", 0), (6, "late", "emit", 1)]
    assert found(tested.feed(rows((3, 6)))) == changed


def test_accumulating_panes_are_emitted_though_they_are_equal() -> None:
    tested = harness(mode="accumulating")
    tested.feed(rows((1, 5), (12, 0)))
    assert found(tested.feed(rows((2, 4)))) == [(5, "late", "emit", 1)]


def test_an_on_time_pane_after_an_early_one() -> None:
    tested = harness(early=trigger.each_batch())
    assert found(tested.feed(rows((1, 5)))) == [(5, "early", "emit", 0)]
    assert found(tested.advance_watermark(12 * SECOND)) == []
    tested = harness(early=trigger.each_batch())
    tested.feed(rows((1, 5)))
    assert found(tested.feed(rows((2, 6), (12, 0)))) == [(5, "on_time", "retract", 0), (6, "on_time", "emit", 1)]


def test_periodic_panes() -> None:
    tested = harness(early=trigger.every_processing_time("4 seconds"))
    tested.feed(rows((1, 5)))
    assert found(tested.advance_processing_time(4 * SECOND)) == [(5, "early", "emit", 0)]
    assert found(tested.advance_processing_time(8 * SECOND)) == []
    tested = harness(early=trigger.every_event_time("2 seconds"))
    assert found(tested.feed(rows((1, 5), (2, 1)))) == [(5, "early", "emit", 0)]
    assert found(tested.advance_watermark(4 * SECOND)) == []


def test_panes_per_element() -> None:
    tested = harness(early=trigger.after_count(1), evaluate="element")
    panes = found(tested.feed(rows((1, 5), (2, 4), (3, 6))))
    assert panes == [(5, "early", "emit", 0), (5, "early", "retract", 0), (6, "early", "emit", 1)]


def test_closing_panes_and_composite_triggers() -> None:
    tested = harness(late="5 seconds", closing="always")
    tested.feed(rows((1, 5), (12, 0)))
    assert found(tested.advance_watermark(15 * SECOND)) == []
    tested = harness(when=trigger.repeatedly(trigger.after_watermark()))
    assert found(tested.feed(rows((1, 5), (12, 0)))) == [(5, "on_time", "emit", 0)]
    assert found(tested.feed(rows((2, 4)))) == []


@pytest.mark.parametrize(
    "kind", [ts.sliding("20 seconds", "10 seconds"), ts.sessions("10 seconds")], ids=["slide", "session"]
)
def test_other_windows(kind: Any) -> None:
    tested = harness(kind)
    tested.feed(rows((1, 5), (9, 5), (40, 0)))
    assert found(tested.feed(rows((2, 4)))) == []
    assert {pane[2] for pane in found(tested.feed(rows((3, 6))))} == {"retract", "emit"}


def test_a_session_that_grows_is_another_window() -> None:
    tested = harness(ts.sessions("10 seconds"))
    tested.feed(rows((1, 5), (40, 0)))
    grown = found(tested.feed(rows((2, 4))))
    assert grown == [(5, "late", "retract", 0), (5, "late", "emit", 0)]


def test_a_reader_of_panes_that_are_taken_back() -> None:
    per_ten = (
        ts.stream(event_time="t").group_by().window(ts.tumbling("10 seconds")).aggregate(m=agg.max("v")).named("ten")
    )
    per_ten = per_ten.allowed_lateness("60 seconds").accumulation("retracting")
    hundreds = per_ten.timed_by("window_start").group_by().window(ts.tumbling("100 seconds"))
    whole = hundreds.aggregate(n=agg.count(), s=agg.sum("m")).named("all")
    tested = whole.trigger(early=trigger.each_batch()).accumulation("retracting").harness(SCHEMA)
    tested.feed(rows((1, 5), (12, 0)))
    assert tested.feed(rows((2, 4))).num_rows == 0, "nothing has changed in front of it"
    again = [(pane["n"], pane["s"], pane["kind"]) for pane in tested.feed(rows((3, 6))).to_pylist()]
    assert again == [(1, 5, "retract"), (1, 6, "emit")]
