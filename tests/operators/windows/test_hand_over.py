"""Windows in parts become groups when a job changes to a trigger that looks at them before they are due."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from tidestate.agg import count
from tidestate.operators import tumbling
from tidestate.operators.describe.windowed import Windowed, windowed
from tidestate.operators.local.harness import Harness
from tidestate.trigger import after_processing_time

SECOND = 1_000_000
SCHEMA = pa.schema([("t", pa.timestamp("us", tz="UTC")), ("k", pa.string())])


def described() -> Windowed:
    return windowed(event_time="t", key="k").window(tumbling("1 hour")).aggregate(n=count())


def test_what_waited_follows_a_clock_from_its_next_event_on(tmp_path: Path) -> None:
    before = Harness(described(), SCHEMA, folder=tmp_path)
    before.feed([{"t": 1 * SECOND, "k": "a"}])
    after = Harness(described().trigger(early=after_processing_time("3 seconds")), SCHEMA, folder=tmp_path)
    assert not after.advance_processing_time(10 * SECOND).num_rows
    assert not after.feed([{"t": 2 * SECOND, "k": "a"}]).num_rows
    assert not after.advance_processing_time(12 * SECOND).num_rows
    panes = after.advance_processing_time(13 * SECOND)
    assert panes.select(["n", "timing"]).to_pylist() == [{"n": 2, "timing": "early"}]
    assert after.finish()["n"].to_pylist() == [2]
