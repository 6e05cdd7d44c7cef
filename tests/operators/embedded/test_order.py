"""The window operator by hand with `in_order`: the panes of the harness, by any cut, with restarts in between."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.helpers.cuts import EVENTS, MEMORY, cuts, events, net, played, table
from tests.helpers.process import LONG, in_turn
from tidestate.agg import count, first, last
from tidestate.agg import list as list_
from tidestate.operators import sliding, tumbling
from tidestate.operators.describe.windowed import RETRACTING, windowed
from tidestate.operators.describe.windows import count_window, session
from tidestate.operators.embedded.window_operator import WindowOperator
from tidestate.statestore.errors import UsageError
from tidestate.trigger import after_count, or_finally, repeatedly

WINDOWS = {"tumbling": tumbling("8 s"), "sliding": sliding("9 s", "3 s"), "sessions": session("2 s")}
FINISHING = or_finally(repeatedly(after_count(2)), after_count(5))


def job(windows: str, when: Any = None) -> Any:
    made = windowed(event_time="t", key="k", offset="at", origin="part", watermark_delay="6 s", in_order=True)
    made = made.window(WINDOWS[windows]).aggregate(
        n=count(), one=first("v", by="t"), other=last("v", by="t"), every=list_("v")
    )
    made = made.accumulation(RETRACTING)
    return made.trigger(when=when, per_element=True) if when else made


def by_hand(description: Any, batches: list[pa.Table], root: Path, chance: random.Random) -> list[dict[str, Any]]:
    """All panes, of an operator that is closed now and then; what was not flushed is given again."""
    panes: list[dict[str, Any]] = []
    where: dict[str, Any] = {"checkpoint": root, "origin": "part", "offset": "at", "store": MEMORY}
    at = 0
    while at <= len(batches):
        with WindowOperator(description, EVENTS, **where) as operator:
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
@pytest.mark.parametrize(("windows", "when"), in_turn(WINDOWS, [None, FINISHING]))
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
    base = windowed(event_time="t", key="k", in_order=True)
    counted = base.window(count_window(3)).aggregate(n=count())
    with pytest.raises(UsageError, match="in-order"):
        WindowOperator(counted, EVENTS, checkpoint=tmp_path / "root", origin="part", offset="at")
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("bad", [[{"k": "a"}], EVENTS.empty_table().set_column(1, "t", pa.array([], pa.float64()))])
def test_what_is_no_batch_of_messages_is_refused(tmp_path: Path, bad: Any) -> None:
    with WindowOperator(job("tumbling"), EVENTS, checkpoint=tmp_path, origin="part", offset="at") as operator:
        with pytest.raises(UsageError, match="batch-type"):
            operator.add_messages(bad)
        assert operator.counters == {}
