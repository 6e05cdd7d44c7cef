"""Up to where the panes of an operator have come: no later pane that is on time or early lies behind it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.process import LONG, few
from tidestate import Aggregation, agg
from tidestate.operators.bind.operator import bind_plan
from tidestate.operators.describe.windows import Windows
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
from tidestate.statestore.errors import UsageError

TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("t", TIME), ("k", pa.int64()), ("o", pa.int64())])
PANES = pa.schema([("window_start", TIME), ("window_end", TIME), ("k", pa.int64())])
TUMBLING, SLIDING = (
    ts.tumbling("10 microseconds", offset="3 microseconds"),
    ts.sliding("10 microseconds", "5 microseconds"),
)
GAPS = ts.sliding("4 microseconds", "10 microseconds", strict=False)
SESSION, ROLLING = ts.sessions("5 microseconds"), ts.rolling("5 microseconds")
COLUMNS = ["window_start", "window_end", "pane_time", "first", "newest"]
KNOWN = {"session": COLUMNS[1:3] + COLUMNS[4:], "given": COLUMNS[1:3]}


def over(windows: Windows, **trigger: Any) -> Aggregation:
    job = ts.stream(event_time="t").group_by("k").window(windows)
    return (
        job.aggregate(n=agg.count(), first=agg.min("t"), newest=agg.max("t"))
        .allowed_lateness("0 seconds")
        .accumulation("retracting")
        .trigger(**trigger)
    )


def columns(windows: Windows) -> list[str]:
    return KNOWN["session"] if windows is SESSION else COLUMNS


@pytest.mark.slow
@pytest.mark.parametrize(
    "windows",
    few([TUMBLING, SLIDING, GAPS, SESSION, ROLLING], 1, 3, 4),
    ids=["tumbling", "sliding", "gaps", "session", "rolling"],
)
@settings(max_examples=settings.default.max_examples if LONG else 4)
@given(
    batches=st.lists(st.lists(st.tuples(st.integers(-30, 60), st.integers(0, 2)), max_size=6), max_size=6),
    early=st.booleans(),
)
def test_no_later_pane_lies_behind_it(windows: Windows, batches: list[list[tuple[int, int]]], early: bool) -> None:
    job = over(windows, **({"early": ts.trigger.each_batch()} if early else {"early": None}), closing="if_new")
    harness, plan = job.harness(SCHEMA), bind_plan(job.graph.description, SCHEMA)
    bounds = dict.fromkeys(columns(windows), BEGINNING_US)
    panes, watermark = [], BEGINNING_US
    for batch in [*batches, None]:
        if batch is None:
            panes.append(harness.finish())
        else:
            panes.append(harness.feed([{"t": t, "k": k, "o": 0} for t, k in batch]))
        check(panes[-1], bounds)
        watermark = max([watermark, *(t for t, _ in batch or [] if t >= watermark)])
        new = {name: plan.output_watermark(watermark, name) for name in bounds}
        assert all(new[name] >= bounds[name] for name in bounds), "it does not go back"
        bounds = new


def check(panes: pa.Table, bounds: dict[str, int]) -> None:
    """Retractions are as old as what they take back."""
    there = np.asarray(panes["kind"].cast(pa.string()).to_numpy() == "emit")
    there &= np.asarray(panes["timing"].cast(pa.string()).to_numpy() != "late")
    for name, bound in bounds.items():
        values = panes["window_end" if name == "pane_time" else name].cast(pa.int64()).to_numpy()[there]
        assert (values - (name == "pane_time") >= bound).all(), name


@pytest.mark.parametrize(
    ("windows", "column", "expected"),
    [
        (TUMBLING, "window_end", 17),
        (TUMBLING, "pane_time", 17),
        (TUMBLING, "window_start", 13),
        (TUMBLING, "first", 13),
        (TUMBLING, "newest", 13),
        (SLIDING, "window_start", 10),
        (SESSION, "window_end", 17),
        (SESSION, "newest", 12),
        (ROLLING, "window_start", 13),
        (ROLLING, "first", 13),
        (ROLLING, "newest", 17),
    ],
)
def test_what_is_known(windows: Windows, column: str, expected: int) -> None:
    plan = bind_plan(over(windows).graph.description, SCHEMA)
    assert plan.output_watermark(17, column) == expected
    assert [plan.output_watermark(end, column) for end in (BEGINNING_US, END_US)] == [BEGINNING_US, END_US]


def test_the_end_of_the_window_as_a_column() -> None:
    plan = bind_plan(over(TUMBLING).pane_timestamp("end_of_window").graph.description, SCHEMA)
    assert plan.output_watermark(17, "timestamp") == 17
    own = ts.stream().group_by("k").aggregate(n=agg.count())
    assert [bind_plan(own.graph.description, PANES).output_watermark(17, name) for name in KNOWN["given"]] == [17, 17]
    ids = ts.stream(event_time="t").deduplicate(["k"])
    assert bind_plan(ids.graph.description, SCHEMA).output_watermark(17, "t") == 17


def test_the_beginning_of_time_takes_nothing_off() -> None:
    plan = bind_plan(over(SESSION).graph.description, SCHEMA)
    assert plan.output_watermark(BEGINNING_US + 2, "newest") == BEGINNING_US


OTHER = ts.stream(offset="o").group_by("k").window(ts.offset_windows(3)).aggregate(n=agg.count())
UNKNOWN = [
    (over(SESSION), SCHEMA, "window_start"),
    (over(SESSION), SCHEMA, "first"),
    (over(ts.sessions(gap_column="o")), SCHEMA, "newest"),
    (over(ts.global_window(), early=ts.trigger.each_batch()), SCHEMA, "window_end"),
    (over(ts.count_windows(3)), SCHEMA, "newest"),
    (OTHER, SCHEMA, "window_end"),
    (ts.stream().group_by("k").aggregate(n=agg.count()), PANES, "window_start"),
    (over(TUMBLING), SCHEMA, "n"),
    (over(TUMBLING), SCHEMA, "k"),
]


@pytest.mark.parametrize(("job", "schema", "column"), UNKNOWN)
def test_what_is_not_known_is_refused(job: Aggregation, schema: pa.Schema, column: str) -> None:
    with pytest.raises(UsageError) as caught:
        bind_plan(job.graph.description, schema).output_watermark(17, column)
    assert caught.value.code == "chain-time"


def test_a_column_that_deduplication_does_not_go_by_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        bind_plan(ts.stream(event_time="t").deduplicate(["k"]).graph.description, SCHEMA).output_watermark(17, "o")
    assert caught.value.code == "chain-time"
