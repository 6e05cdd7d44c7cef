"""What a row must meet before an operator takes it: each condition, and that the first one gives the reason."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tidestate as ts
from tidestate import agg
from tidestate.operators.describe.windows import Counted, NamedWindow, Sessions, Sliding, SlidingLifetimes
from tidestate.operators.plan.input_spec import (
    TOUCHED_LIMIT,
    any_null,
    beyond_range,
    misplaced,
    short_spans,
    too_long_keys,
    window_checks,
    wrong_bounds,
    wrong_lifetimes,
)
from tidestate.operators.progress.watermarks import LIMIT_US, OFFSET_LIMIT
from tidestate.statestore.arrays import Flags, Times
from tidestate.statestore.errors import UsageError

Failing = Callable[[pa.Table, Times], Flags]
LONG = "x" * (1 << 17)
HOUR = 3_600_000_000


def failing(check: Failing, times: list[int] | None = None, **columns: Any) -> list[int]:
    """The numbers of the rows that fail."""
    events = pa.table(columns)
    flags = check(events, np.array(times if times is not None else [0] * events.num_rows, np.int64))
    return [int(row) for row in np.flatnonzero(flags)]


@pytest.mark.parametrize(
    ("check", "columns", "rows"),
    [
        (partial(any_null, ("a", "b")), {"a": [1, None, 3, 4], "b": ["x", "y", None, "z"]}, [1, 2]),
        (partial(too_long_keys, ("a",)), {"a": ["short", LONG, None]}, [1]),
        (partial(misplaced, ("offset",)), {"offset": [0, -1, None, OFFSET_LIMIT, OFFSET_LIMIT + 1]}, [1, 2, 4]),
        (partial(misplaced, ("origin", "offset")), {"origin": ["a", None], "offset": [3, 3]}, [1]),
        (partial(short_spans, "gap", 1), {"gap": [5, 0, -1, None]}, [1, 2, 3]),
        (partial(wrong_bounds, False), {"window_start": [0, 5, 6, None], "window_end": [5, 5, 5, 5]}, [1, 2, 3]),
    ],
)
def test_which_rows_fail(check: Failing, columns: dict[str, Any], rows: list[int]) -> None:
    assert failing(check, **columns) == rows
    events = pa.table(columns)
    right = events.filter(pa.array([row not in rows for row in range(events.num_rows)]))
    assert len(check(right, np.zeros(right.num_rows, np.int64))) == 0


def test_times_and_lifetimes() -> None:
    assert failing(beyond_range, [0, LIMIT_US, LIMIT_US + 1, -LIMIT_US - 1], a=[1, 2, 3, 4]) == [2, 3]
    check = partial(wrong_lifetimes, SlidingLifetimes(HOUR, HOUR, end="end"), "end")
    begins = [10, 10, 10, 10, LIMIT_US + 5]
    ends = [11, 10, None, 10 + HOUR * (TOUCHED_LIMIT + 2), LIMIT_US + 6]
    assert failing(check, begins, end=pa.array(ends, pa.int64())) == [1, 3]  # the last one's start says why


def test_retractions_are_refused_unless_they_are_applied() -> None:
    panes = {"window_start": [0], "window_end": [5], "kind": ["retract"]}
    with pytest.raises(UsageError) as refused:
        failing(partial(wrong_bounds, False), **panes)
    assert refused.value.code == "retractions"
    assert failing(partial(wrong_bounds, True), **panes) == []


def test_which_windows_bring_what() -> None:
    assert window_checks(Sliding(HOUR, HOUR), signed=False) == ()
    assert window_checks(Counted(3, 3), signed=False) == ()
    ((reason, bounds),) = window_checks(NamedWindow(), signed=True)
    assert reason == "bad_window"
    assert failing(bounds, window_start=[0, 5], window_end=[5, 5]) == [1]
    ((_, gap),) = window_checks(Sessions(gap_column="g"), signed=False)
    assert failing(gap, g=[1, 0]) == [1]


def test_the_first_condition_gives_the_reason() -> None:
    rows = pa.table({"t": pa.array([1, None, None, 1], pa.timestamp("us", "UTC")), "k": [None, None, LONG, LONG]})
    job = (
        ts.stream(event_time="t")
        .group_by("k")
        .window(ts.tumbling("1 second"))
        .aggregate(n=agg.count())
        .harness(rows.schema)
    )
    job.feed(rows)
    assert job.ledger()["reason"].to_pylist() == ["null_key", "null_event_time", "null_event_time", "key_too_long"]
