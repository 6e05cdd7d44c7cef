"""Windows that the input brings, as the panes of another operator do: worked examples, and the twin."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.process import each_third, in_turn
from tests.twins import ordered_strategies as strategies
from tests.twins import ordered_streams as streams
from tests.twins.general_streams import plain
from tests.twins.ordered import OrderedSetting
from tests.twins.ordered_checks import (
    LIMITS,
    NAMES,
    PARTITIONS,
    RESTARTS,
    SOME,
    check_net,
    check_run,
    check_scenario,
    complete,
    patient,
)
from tests.twins.ordered_strategies import History
from tests.twins.transcripts import PROPAGATED
from tidestate import Aggregation, Stream, agg, trigger
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import StoreName

TIME = streams.TIME
EVENTS = pa.schema([("time", TIME), ("k", pa.string()), ("shop", pa.int64()), ("v", pa.int64())])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "restarts"), each_third(in_turn(PROPAGATED, [False, True])))
def test_the_operator_says_what_was_worked_out_by_hand(name: str, restarts: bool) -> None:
    setting, steps = PROPAGATED[name]
    check_scenario(setting, steps, restarts)


# Two operators, one after the other


def per_key(windows: Any = None) -> Aggregation:
    found = ts.stream(event_time="time").group_by("k", "shop").window(windows or ts.tumbling("10 microseconds"))
    return found.aggregate(n=agg.count(), total=agg.sum("v")).allowed_lateness("0 seconds")


def per_shop(panes: Stream | None = None) -> Aggregation:
    given = (panes or ts.stream()).group_by("shop")
    counted = given.aggregate(keys=agg.count(), all=agg.sum("total"), most=agg.max("n"))
    return counted.allowed_lateness("0 seconds")


def events(*rows: tuple[Any, ...]) -> list[dict[str, Any]]:
    return [dict(zip(EVENTS.names, row, strict=True)) for row in rows]


def test_panes_of_one_operator_into_the_next() -> None:
    first = per_key().harness(EVENTS)
    panes = first.feed(
        events((1, "a", 7, 1), (2, "a", 7, 2), (3, "b", 7, 4), (5, "a", 8, 8), (12, "c", 7, 16), (25, "d", 8, 0))
    )
    assert panes.num_rows == 4
    second = per_shop().harness(panes.schema)
    observed = plain(second.feed(panes))
    # The largest of last moments is 19, so the watermark is 19 and the first window is over.
    assert sorted(row[:6] for row in observed) == [(0, 10, 7, 2, 7, 2), (0, 10, 8, 1, 8, 1)]
    assert [row[-3:] for row in observed] == [("on_time", "emit", True)] * 2
    assert [row[:6] for row in plain(second.finish())] == [(10, 20, 7, 1, 16, 1)]


def test_the_panes_of_overlapping_windows_do_not_mix() -> None:
    first = per_key(ts.sliding("10 microseconds", "5 microseconds")).harness(EVENTS)
    panes = [first.feed(events((7, "a", 7, 1), (8, "b", 7, 2))), first.finish()]
    second = per_shop().harness(panes[0].schema)
    found = [row for each in panes for row in plain(second.feed(each))] + plain(second.finish())
    assert [row[:6] for row in found] == [(0, 10, 7, 2, 3, 1), (5, 15, 7, 2, 3, 1)]


def test_the_windows_of_sessions() -> None:
    """Each session's pane has bounds of its own."""
    first = per_key(ts.sessions("5 microseconds")).accumulation("retracting").harness(EVENTS)
    panes = pa.concat_tables([first.feed(events((1, "a", 7, 1), (2, "b", 7, 2), (2, "b", 7, 4))), first.finish()])
    second = per_shop().harness(panes.schema)
    found = plain(second.feed(panes)) + plain(second.finish())
    assert [row[:6] for row in found] == [(1, 6, 7, 1, 1, 1), (2, 7, 7, 1, 6, 2)]


def test_retractions_are_refused_and_nothing_of_the_batch_taken() -> None:
    first = per_key().allowed_lateness("20 microseconds").accumulation("retracting").harness(EVENTS)
    panes = first.feed(events((1, "a", 7, 1), (12, "a", 7, 2)))
    late = first.feed(events((2, "a", 7, 4)))
    assert late["kind"].to_pylist() == ["retract", "emit"]
    second = per_shop().harness(panes.schema)
    second.feed(panes)
    before = second.windows(), second.counters()
    with pytest.raises(UsageError) as caught:
        second.feed(late)
    assert caught.value.code == "retractions"
    assert (second.windows(), second.counters()) == before
    second.restart()
    assert second.windows()["all"].to_pylist() == [1]


def test_a_column_kind_that_says_something_else() -> None:
    """Only what is retracted is refused; other words, and no word, are as good as none."""
    schema = pa.schema([("window_start", TIME), ("window_end", TIME), ("kind", pa.string()), ("v", pa.int64())])
    harness = ts.stream().group_by().aggregate(total=agg.sum("v")).harness(schema)
    row = {"window_start": 0, "window_end": 10}
    harness.feed([{**row, "kind": "emit", "v": 1}, {**row, "kind": "other", "v": 2}, {**row, "kind": None, "v": 4}])
    assert [row[:3] for row in plain(harness.finish())] == [(0, 10, 7)]


def test_retract_is_a_word_like_any_other_where_windows_are_the_operators_own() -> None:
    schema = pa.schema([("time", TIME), ("kind", pa.string()), ("v", pa.int64())])
    harness = (
        ts.stream(event_time="time")
        .group_by()
        .window(ts.tumbling("10 microseconds"))
        .aggregate(total=agg.sum("v"))
        .harness(schema)
    )
    harness.feed([{"time": 1, "kind": "retract", "v": 1}])
    assert [row[2] for row in plain(harness.finish())] == [1]


def test_bounds_are_those_of_the_rows_not_of_a_grid() -> None:
    schema = pa.schema([("window_start", TIME), ("window_end", TIME), ("v", pa.int64())])
    harness = (
        ts.stream().group_by().aggregate(n=agg.count()).allowed_lateness("0 seconds").harness(schema, generate=False)
    )
    bounds = [(0, 1), (0, 10), (3, 10), (3, 4), (-7, 1000), (-7, 1000)]
    harness.feed([{"window_start": start, "window_end": end, "v": 1} for start, end in bounds])
    assert sorted(row[:3] for row in plain(harness.advance_watermark(10))) == [
        (0, 1, 1),
        (0, 10, 1),
        (3, 4, 1),
        (3, 10, 1),
    ]
    assert [row[:3] for row in plain(harness.finish())] == [(-7, 1000, 2)]


def test_the_generated_watermark_is_the_largest_start_of_a_window() -> None:
    schema = pa.schema([("window_start", TIME), ("window_end", TIME)])
    harness = ts.stream().group_by().aggregate(n=agg.count()).allowed_lateness("0 seconds").harness(schema)
    assert plain(harness.feed([{"window_start": 0, "window_end": 10}])) == []
    assert plain(harness.feed([{"window_start": 9, "window_end": 19}, {"window_start": 0, "window_end": 10}])) == []
    found = plain(harness.feed([{"window_start": 10, "window_end": 20}]))
    assert [row[:3] for row in found] == [(0, 10, 2)]
    harness.feed([{"window_start": 0, "window_end": 10}])
    assert harness.ledger()["reason"].to_pylist() == ["very_late"]
    assert harness.ledger()["watermark"].cast(pa.int64()).to_pylist() == [10]


def test_an_input_without_bounds_is_refused() -> None:
    description = ts.stream(event_time="time").group_by("k").aggregate(n=agg.count())
    for kept in (["time", "k"], ["time", "k", "window_start"], ["time", "k", "window_end"]):
        types = {"time": TIME, "k": pa.string(), "window_start": TIME, "window_end": TIME}
        with pytest.raises(UsageError):
            description.harness(pa.schema([(name, types[name]) for name in kept]))


def test_event_time_may_be_left_out_only_then() -> None:
    with pytest.raises(UsageError):
        ts.stream().group_by("k").window(ts.tumbling("10 seconds")).aggregate(n=agg.count()).harness(EVENTS)


# The twin

BROUGHT = strategies.with_history(strategies.inherited_settings())


@pytest.mark.slow
@patient
@SOME
@given(name=NAMES, drawn=BROUGHT, partitions=PARTITIONS, limits=LIMITS, restarts=RESTARTS, generate=st.booleans())
def test_every_step_equals_the_twins_and_a_restart_changes_nothing(
    name: StoreName,
    drawn: tuple[OrderedSetting, History],
    partitions: int,
    limits: tuple[int, int],
    restarts: frozenset[int],
    generate: bool,
) -> None:
    check_run(*drawn, "largest", name, partitions, limits, restarts, generate)


@pytest.mark.slow
@patient
@SOME
@given(drawn=BROUGHT.filter(complete), data=st.data())
@pytest.mark.long
def test_the_net_does_not_depend_on_how_events_are_split(
    drawn: tuple[OrderedSetting, History], data: st.DataObject
) -> None:
    check_net(*drawn, data)


def test_a_row_for_a_window_that_has_finished_is_in_the_ledger_with_its_own_window() -> None:
    schema = pa.schema([("window_start", TIME), ("window_end", TIME), ("k", pa.string())])

    def batch(count_: int) -> pa.Table:
        bounds = [pa.array([edge] * count_).cast(TIME) for edge in (0, 10_000_000)]
        return pa.table([*bounds, pa.array(["a"] * count_)], schema=schema)

    harness = ts.stream().group_by("k").aggregate(n=agg.count()).trigger(when=trigger.after_count(2)).harness(schema)
    assert harness.feed(batch(2))["n"].to_pylist() == [2]
    assert harness.feed(batch(1)).num_rows == 0
    ledger = harness.ledger()
    assert ledger.column_names.count("window_start") == 1
    assert ledger["reason"].to_pylist() == ["window_closed"]
    assert ledger["window_end"].cast(pa.int64()).to_pylist() == [10_000_000]
