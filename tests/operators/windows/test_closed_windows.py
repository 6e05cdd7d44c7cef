"""Windows that are closed and retained: they emit what is reprocessed, and nothing by a clock."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.process import few, in_turn
from tidestate import agg, trigger
from tidestate.operators import (
    Harness,
)

SCHEMA = pa.schema([("t", pa.timestamp("us", "UTC"))])
SECOND = 1_000_000
CLOCKS: dict[str, dict[str, Any]] = {
    "every": {"late": trigger.every_processing_time("4 seconds")},
    "after": {"late": trigger.after_processing_time("4 seconds")},
    "composite": {"when": trigger.repeatedly(trigger.after_processing_time("4 seconds"))},
}


def rows(*seconds: int) -> pa.Table:
    return pa.table([pa.array([second * SECOND for second in seconds]).cast(SCHEMA.types[0])], schema=SCHEMA)


def harness(kind: Any, **triggers: Any) -> Harness:
    described = (
        ts.stream(event_time="t")
        .group_by()
        .window(kind)
        .aggregate(n=agg.count())
        .allowed_lateness("5 seconds", rule="window")
    )
    return described.retain_windows("100 seconds").trigger(closing="never", **triggers).harness(SCHEMA)


def first_window(panes: pa.Table) -> list[tuple[int, str]]:
    return [(pane["n"], pane["timing"]) for pane in panes.to_pylist() if pane["window_start"].timestamp() in (0, 1)]


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize(
    ("kind", "cut"),
    few(in_turn([ts.tumbling("10 seconds"), ts.sessions("9 seconds")], [[[5], [15]], [[5, 15]]]), 1),
    ids=str,
)
def test_a_closed_window_fires_by_no_clock(clock: str, kind: Any, cut: list[list[int]]) -> None:
    tested = harness(kind, **CLOCKS[clock])
    for seconds in ([1], [10], *cut):
        tested.feed(rows(*seconds))
    tested.advance_watermark(30 * SECOND)
    assert first_window(tested.advance_processing_time(4 * SECOND)) == []
    assert first_window(tested.advance_processing_time(9 * SECOND)) == []


@pytest.mark.parametrize("clock", CLOCKS)
def test_a_window_that_closes_without_input_fires_by_no_clock(clock: str) -> None:
    tested = harness(ts.tumbling("10 seconds"), **CLOCKS[clock])
    for seconds in ([1], [10], [5]):
        tested.feed(rows(*seconds))
    tested.advance_watermark(15 * SECOND)
    assert first_window(tested.advance_processing_time(4 * SECOND)) == []


@pytest.mark.parametrize("clock", CLOCKS)
def test_what_is_reprocessed_into_a_closed_window_waits_for_no_clock(clock: str) -> None:
    tested = harness(ts.tumbling("10 seconds"), **CLOCKS[clock])
    for seconds in ([1], [30]):
        tested.feed(rows(*seconds))
    assert first_window(tested.reprocess_late(rows(2))) == []
    assert first_window(tested.advance_processing_time(8 * SECOND)) == []


@pytest.mark.parametrize("cut", [[[5], [15]], [[5, 15]]], ids=["before", "within"])
def test_a_late_count_begins_again_when_its_window_closes(cut: list[list[int]]) -> None:
    tested = harness(ts.tumbling("10 seconds"), late=trigger.after_count(2))
    for seconds in ([1], [10], *cut):
        tested.feed(rows(*seconds))
    assert first_window(tested.reprocess_late(rows(6))) == []
    assert first_window(tested.reprocess_late(rows(7))) == [(4, "late")]
