"""Restarts with other triggers, lateness or retention: no event is lost, and none is in two panes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.process import few, in_turn
from tidestate import Aggregation, agg, trigger
from tidestate.operators import (
    Harness,
)
from tidestate.operators.describe.windows import Windows

SCHEMA = pa.schema([("t", pa.timestamp("us", "UTC")), ("v", pa.int64())])
GRIDS = {
    "tumbling": ts.tumbling("10 seconds"),
    "sliding": ts.sliding("10 seconds", "5 seconds"),
    "session": ts.sessions("10 seconds"),
}
FIRST, SECOND = 1, 100


def rows(*events: tuple[int, int]) -> pa.Table:
    times = pa.array([seconds * 1_000_000 for seconds, _ in events])
    return pa.table([times.cast(SCHEMA.field("t").type), pa.array([v for _, v in events])], schema=SCHEMA)


def job(kind: Windows) -> Aggregation:
    return (
        ts.stream(event_time="t")
        .group_by()
        .window(kind)
        .aggregate(n=agg.count(), s=agg.sum("v"))
        .allowed_lateness("60 seconds")
    )


def first_window(panes: list[pa.Table]) -> list[dict[str, Any]]:
    found = [pane for table in panes for pane in table.to_pylist()]
    return [pane for pane in found if pane["window_start"].timestamp() in (0, 1)]


@pytest.mark.parametrize(
    ("grid", "early"),
    few(in_turn(["tumbling", "sliding"], [None, trigger.each_batch(), trigger.after_count(5)]), 1, 2),
)
def test_discarding_panes_add_up_when_a_trigger_begins_to_look_earlier(tmp_path: Path, grid: str, early: Any) -> None:
    described = job(GRIDS[grid]).trigger(late=trigger.each_batch()).accumulation("discarding")
    panes = [described.harness(SCHEMA, folder=tmp_path).feed(rows((1, 1), (12, 10)))]
    again = described.trigger(early=early, late=trigger.each_batch()).harness(SCHEMA, folder=tmp_path)
    panes += [again.feed(rows((2, 100))), again.feed(rows((3, 1000))), again.finish()]
    assert sum(pane["s"] for pane in first_window(panes)) == 1101


@pytest.mark.parametrize(
    ("late", "mode", "grid"),
    in_turn(
        [None, trigger.after_count(3), trigger.after_processing_time("10 seconds")],
        ["accumulating", "discarding"],
        ["tumbling", "session"],
    ),
)
def test_what_waited_for_a_trigger_that_is_gone_is_emitted(tmp_path: Path, grid: str, mode: str, late: Any) -> None:
    described = job(GRIDS[grid]).accumulation(mode)  # type: ignore[arg-type]
    harness = described.trigger(late=late).harness(SCHEMA, folder=tmp_path)
    panes = [harness.feed(rows((1, FIRST), (30, 10))), harness.feed(rows((2, SECOND)))]
    again = described.harness(SCHEMA, folder=tmp_path)
    panes += [again.feed(rows((200, 1000))), again.finish()]
    last = SECOND if mode == "discarding" else FIRST + SECOND
    assert [pane["s"] for pane in first_window(panes)] == [FIRST, last]
    assert again.ledger().num_rows == 0


@pytest.mark.parametrize(
    ("rule", "between"), few(in_turn(["event", "window"], [[], [5], [5, 30], [5, 30, 5, 30], [5, 90, 30]]), 1, 4)
)
def test_lateness_that_was_less_for_a_moment_closes_nothing(tmp_path: Path, rule: Any, between: list[int]) -> None:
    """Restarts without a batch between them."""

    def started(seconds: int) -> Harness:
        described = (
            job(GRIDS["tumbling"]).allowed_lateness(f"{seconds} seconds", rule=rule).accumulation("retracting")
        )
        return described.trigger(late=None, closing="if_new").harness(SCHEMA, folder=tmp_path)

    harness = started(30)
    panes = [harness.feed(rows((1, FIRST), (30, 10))), harness.feed(rows((2, SECOND)))]
    for seconds in [*between, 30]:
        harness = started(seconds)
    panes += [harness.feed(rows((3, 1000))), harness.feed(rows((300, 5))), harness.finish()]
    signs = {"emit": 1, "retract": -1}
    assert sum(signs[pane["kind"]] * pane["s"] for pane in first_window(panes)) == FIRST + SECOND + 1000


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(
    "late", [trigger.every_processing_time("10 seconds"), trigger.after_processing_time("10 seconds")]
)
def test_a_closed_window_that_is_retained_emits_nothing_by_the_clock(grid: str, late: Any) -> None:
    described = job(GRIDS[grid]).allowed_lateness("0 seconds").retain_windows("1 hour")
    described = described.trigger(on_time="never", late=late, closing="never")
    harness = described.harness(SCHEMA, generate=False)
    panes = [harness.feed(rows((1, 1), (2, 10))), harness.advance_watermark(30_000_000)]
    panes += [harness.advance_processing_time(seconds * 1_000_000) for seconds in (11, 21, 35)]
    assert sum(pane.num_rows for pane in [*panes, harness.finish()]) == 0


@pytest.mark.parametrize(
    ("late", "grid", "rule"),
    in_turn([None, trigger.after_count(2)], GRIDS, ["event", "window"]),
)
def test_less_lateness_closes_with_the_pane_of_what_waited(tmp_path: Path, rule: Any, grid: str, late: Any) -> None:
    """Also where events arrive meanwhile that would have joined the session."""

    def started(allowed: str) -> Harness:
        described = (
            job(GRIDS[grid]).allowed_lateness(allowed, rule=rule).accumulation("retracting").trigger(late=late)
        )
        return described.harness(SCHEMA, folder=tmp_path)

    harness = started("1 hour")
    panes = [harness.feed(rows((600, 10))), harness.feed(rows((1, FIRST)))]
    harness = started("1 second")
    panes += [harness.feed(rows((601, 10), (2, SECOND))), harness.finish()]
    assert [pane["s"] for pane in first_window(panes) if pane["window_start"].timestamp() >= 0] == [FIRST]
    assert harness.ledger().num_rows == 1
