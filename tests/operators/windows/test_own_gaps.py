"""Sessions with a gap of each event: a row that has none goes to the ledger, another type is refused at the start."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tidestate.agg import count
from tidestate.operators import Harness
from tidestate.operators.describe.windowed import windowed
from tidestate.operators.describe.windows import session
from tidestate.statestore.errors import UsageError

TIME, SECOND = pa.timestamp("us", "UTC"), 1_000_000
JOB = windowed(event_time="t").window(session(gap_column="gap")).aggregate(n=count())
GAPS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "microseconds": (pa.int64(), [5 * SECOND, None, 0, -1, 2**63 - 1]),
    "unsigned": (pa.uint64(), [5 * SECOND, None, 0, 2**62, 2**64 - 1]),
    "durations": (pa.duration("s"), [5, None, 0, -1, 2**62]),
}


def batch(kind: pa.DataType, gaps: list[Any]) -> pa.Table:
    times = pa.array([number * SECOND for number in range(len(gaps))]).cast(TIME)
    return pa.table({"t": times, "gap": pa.array(gaps, kind)})


@pytest.mark.parametrize("rule", ["event", "window"])
@pytest.mark.parametrize("given", GAPS)
def test_what_is_no_gap_is_in_the_ledger(given: str, rule: Any) -> None:
    rows = batch(*GAPS[given])
    harness = Harness(JOB.late("0 seconds", rule=rule), rows.schema)
    harness.feed(rows.slice(0, 1))
    harness.feed(rows.slice(1))
    assert harness.finish()["n"].to_pylist() == [1]
    assert harness.ledger()["reason"].to_pylist() == ["bad_window"] * 4


@pytest.mark.parametrize("kind", [pa.string(), TIME, pa.float64(), pa.bool_(), pa.decimal128(9, 2)], ids=str)
def test_a_column_that_holds_no_gaps_is_refused_at_the_start(kind: pa.DataType) -> None:
    with pytest.raises(UsageError, match="session-gap"):
        Harness(JOB, pa.schema([("t", TIME), ("gap", kind)]))
