"""In retracting mode a pane that equals the last one of its window is neither taken back nor emitted again."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tidestate.agg import count
from tidestate.agg import max as max_
from tidestate.agg import sum as sum_
from tidestate.operators import Harness, sliding, tumbling
from tidestate.operators.describe.chain import chain
from tidestate.operators.describe.triggers import every_element
from tidestate.operators.describe.windowed import ACCUMULATING, RETRACTING, windowed
from tidestate.operators.describe.windows import session
from tidestate.trigger import after_count, after_watermark, every_event_time, every_processing_time, repeatedly

SCHEMA = pa.schema([("t", pa.timestamp("us", "UTC")), ("at", pa.int64()), ("v", pa.int64())])
SECOND = 1_000_000


def rows(*events: tuple[int, int]) -> pa.Table:
    times = pa.array([second * SECOND for second, _ in events]).cast(SCHEMA.types[0])
    return pa.table([times, pa.array(range(len(events))), pa.array([v for _, v in events])], schema=SCHEMA)


def harness(kind: Any = None, mode: Any = RETRACTING, late: str = "60 seconds", **triggers: Any) -> Harness:
    described = windowed(event_time="t", offset="at").window(kind or tumbling("10 seconds")).aggregate(m=max_("v"))
    return Harness(described.late(late).accumulation(mode).trigger(**triggers), SCHEMA)


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
    tested = harness(mode=ACCUMULATING)
    tested.feed(rows((1, 5), (12, 0)))
    assert found(tested.feed(rows((2, 4)))) == [(5, "late", "emit", 1)]


def test_an_on_time_pane_after_an_early_one() -> None:
    tested = harness(early=every_element())
    assert found(tested.feed(rows((1, 5)))) == [(5, "early", "emit", 0)]
    assert found(tested.advance_watermark(12 * SECOND)) == []
    tested = harness(early=every_element())
    tested.feed(rows((1, 5)))
    assert found(tested.feed(rows((2, 6), (12, 0)))) == [(5, "on_time", "retract", 0), (6, "on_time", "emit", 1)]


def test_periodic_panes() -> None:
    tested = harness(early=every_processing_time("4 seconds"))
    tested.feed(rows((1, 5)))
    assert found(tested.advance_processing_time(4 * SECOND)) == [(5, "early", "emit", 0)]
    assert found(tested.advance_processing_time(8 * SECOND)) == []
    tested = harness(early=every_event_time("2 seconds"))
    assert found(tested.feed(rows((1, 5), (2, 1)))) == [(5, "early", "emit", 0)]
    assert found(tested.advance_watermark(4 * SECOND)) == []


def test_panes_per_element() -> None:
    tested = harness(early=after_count(1), per_element=True)
    panes = found(tested.feed(rows((1, 5), (2, 4), (3, 6))))
    assert panes == [(5, "early", "emit", 0), (5, "early", "retract", 0), (6, "early", "emit", 1)]


def test_closing_panes_and_composite_triggers() -> None:
    tested = harness(late="5 seconds", closing="always")
    tested.feed(rows((1, 5), (12, 0)))
    assert found(tested.advance_watermark(15 * SECOND)) == []
    tested = harness(when=repeatedly(after_watermark()))
    assert found(tested.feed(rows((1, 5), (12, 0)))) == [(5, "on_time", "emit", 0)]
    assert found(tested.feed(rows((2, 4)))) == []


@pytest.mark.parametrize(
    "kind", [sliding("20 seconds", "10 seconds"), session("10 seconds")], ids=["slide", "session"]
)
def test_other_windows(kind: Any) -> None:
    tested = harness(kind)
    tested.feed(rows((1, 5), (9, 5), (40, 0)))
    assert found(tested.feed(rows((2, 4)))) == []
    assert {pane[2] for pane in found(tested.feed(rows((3, 6))))} == {"retract", "emit"}


def test_a_session_that_grows_is_another_window() -> None:
    tested = harness(session("10 seconds"))
    tested.feed(rows((1, 5), (40, 0)))
    grown = found(tested.feed(rows((2, 4))))
    assert grown == [(5, "late", "retract", 0), (5, "late", "emit", 0)]


def test_a_reader_of_panes_that_are_taken_back() -> None:
    per_ten = windowed(event_time="t", name="ten").window(tumbling("10 seconds")).aggregate(m=max_("v"))
    per_ten = per_ten.late("60 seconds").accumulation(RETRACTING)
    all_ = windowed(event_time="window_start", name="all").window(tumbling("100 seconds"))
    all_ = all_.aggregate(n=count(), s=sum_("m")).trigger(early=every_element()).accumulation(RETRACTING)
    tested = Harness(chain(per_ten, all_), SCHEMA)
    tested.feed(rows((1, 5), (12, 0)))
    assert tested.feed(rows((2, 4))).num_rows == 0, "nothing has changed in front of it"
    again = [(pane["n"], pane["s"], pane["kind"]) for pane in tested.feed(rows((3, 6))).to_pylist()]
    assert again == [(1, 5, "retract"), (1, 6, "emit")]
