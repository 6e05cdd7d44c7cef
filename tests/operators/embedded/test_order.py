"""The window operator by hand with `in_order`: the panes of the harness, by any cut, with restarts in between."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.cuts import EVENTS, MEMORY, cuts, events, net, played, table
from tests.helpers.process import LONG, few, in_turn
from tidestate import agg, trigger
from tidestate.operators.embedded.window_operator import WindowOperator
from tidestate.statestore.errors import UsageError

WINDOWS = {"tumbling": ts.tumbling("8 s"), "sliding": ts.sliding("9 s", "3 s"), "sessions": ts.sessions("2 s")}
FINISHING = trigger.or_finally(trigger.repeatedly(trigger.after_count(2)), trigger.after_count(5))


def job(windows: str, when: Any = None) -> Any:
    made = ts.stream(event_time="t", watermark_delay="6 s", offset="at", origin="part").group_by("k")
    made = (
        made.window(WINDOWS[windows])
        .aggregate(n=agg.count(), one=agg.first("v", by="t"), other=agg.last("v", by="t"), every=agg.list("v"))
        .in_order()
    )
    made = made.accumulation("retracting")
    return made.trigger(when=when, evaluate="element") if when else made


def of_messages(job: Any, root: Path) -> WindowOperator:
    return WindowOperator(job.graph.description, EVENTS, checkpoint=root, origin="part", offset="at")


def by_hand(description: Any, batches: list[pa.Table], root: Path, chance: random.Random) -> list[dict[str, Any]]:
    """All panes, of an operator that is closed now and then; what was not flushed is given again."""
    panes: list[dict[str, Any]] = []
    where: dict[str, Any] = {"checkpoint": root, "origin": "part", "offset": "at", "store": MEMORY}
    at = 0
    while at <= len(batches):
        with WindowOperator(description.graph.description, EVENTS, **where) as operator:
            until = chance.randint(at + 1, len(batches) + 1)
            for batch in batches[at : until - (until > len(batches))]:
                operator.add_messages(batch)
            operator.flush()
            if until > len(batches):
                operator.drain()
            for result in operator.get_result():
                panes += result.panes.to_pylist()
                operator.acknowledge(result.id)
            operator.flush() if not operator.drained else None
            at = until
    return panes


@pytest.mark.slow
@pytest.mark.parametrize(("windows", "when"), few(in_turn(WINDOWS, [None, FINISHING])))
def test_messages_are_taken_in_the_order_of_their_times(tmp_path: Path, windows: str, when: Any) -> None:
    chance = random.Random(windows)
    given, description = events(chance, 40), job(windows, when)
    expected, _ = played(description, [table(given)])
    assert Counter(pane["kind"] for pane in expected)["emit"] > 5
    for number, cut in enumerate(cuts(given, chance, tries=2 if LONG else 1, single=False)):
        panes = by_hand(description, [table(some) for some in cut], tmp_path / str(number), chance)
        assert net(panes, "pane", "timing", "last", "every") == net(expected, "pane", "timing", "last", "every")
        every = [sorted(str(pane["every"]) for pane in some) for some in (panes, expected)]
        assert every[0] == every[1]


def test_what_by_hand_cannot_be_in_order(tmp_path: Path) -> None:
    base = ts.stream(event_time="t").group_by("k")
    counted = base.window(ts.count_windows(3)).aggregate(n=agg.count()).in_order()
    with pytest.raises(UsageError, match="in-order"):
        of_messages(counted, tmp_path / "root")
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("bad", [[{"k": "a"}], EVENTS.empty_table().set_column(1, "t", pa.array([], pa.float64()))])
def test_what_is_no_batch_of_messages_is_refused(tmp_path: Path, bad: Any) -> None:
    with of_messages(job("tumbling"), tmp_path) as operator:
        with pytest.raises(UsageError, match="batch-type"):
            operator.add_messages(bad)
        assert operator.counters == {}
