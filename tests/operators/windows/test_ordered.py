"""Windows of offsets and of processing time, declared order, panes per element: worked examples, and the twin."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.every_store import new_folder, store_config
from tests.helpers.process import each_third, in_turn
from tests.twins import ordered_strategies as strategies
from tests.twins import ordered_streams as streams
from tests.twins.general_streams import plain
from tests.twins.ordered import Message, OrderedSetting, offset_session, offset_window
from tests.twins.ordered_checks import (
    LIMITS,
    NAMES,
    PARTITIONS,
    RESTARTS,
    RUNS,
    SOME,
    by_window,
    check_net,
    check_run,
    check_scenario,
    patient,
    splittable,
)
from tests.twins.ordered_strategies import History
from tests.twins.ordered_streams import OrderedHarness
from tests.twins.transcripts import CLOCK, OFFSETS, ORDER, PER_ELEMENT, SCENARIOS
from tests.twins.transcripts.script import played, sorted_steps
from tests.twins.words import Kind
from tidestate import Aggregation, agg, trigger
from tidestate.operators.local.harness import Harness
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import StoreName

# Sessions that do not retract are warned about; here they are wanted.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

HERE = {**ORDER, **OFFSETS, **CLOCK, **PER_ELEMENT}
SCHEMA = streams.schema(OrderedSetting(Kind("sliding", (1, 1, 0))))


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_twin_says_what_was_worked_out_by_hand(name: str) -> None:
    setting, steps = SCENARIOS[name]
    assert sorted_steps(played(setting, steps)) == sorted_steps(steps)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "restarts"), each_third(in_turn(HERE, [False, True])))
def test_the_operator_says_what_was_worked_out_by_hand(name: str, restarts: bool) -> None:
    setting, steps = HERE[name]
    check_scenario(setting, steps, restarts)


# Examples that are not transcripts


def feed(harness: Harness, *events: tuple[Any, ...], names: tuple[str, ...] = ("k", "offset", "v")) -> list[tuple]:
    """Panes of events given as (key, offset, value)."""
    return plain(harness.feed(pa.Table.from_pylist(rows(names, events), SCHEMA)))


def rows(names: tuple[str, ...], events: tuple[tuple[Any, ...], ...]) -> list[dict[str, Any]]:
    return [{"time": 0, "origin": 0, "offset": 0, **dict(zip(names, event, strict=True))} for event in events]


def by_offset(size: int = 3, step: int | None = None, **more: Any) -> Aggregation:
    begun = ts.stream(event_time="time", offset="offset").group_by("k")
    return begun.window(ts.offset_windows(size, step, **more)).aggregate(n=agg.count(), total=agg.sum("v"))


def test_bounds_of_offset_windows_are_numbers() -> None:
    harness = by_offset().harness(SCHEMA)
    feed(harness, ("a", 0, 1))
    kept = harness.windows()
    assert kept.schema.field("window_start").type == pa.int64()
    assert kept.schema.field("window_end").type == pa.int64()
    panes = harness.feed(pa.Table.from_pylist(rows(("k", "offset", "v"), (("a", 2, 5),)), SCHEMA))
    assert panes.schema.field("window_start").type == pa.int64()
    assert panes.schema.field("window_end").type == pa.int64()
    assert panes.to_pylist() == [
        {
            "window_start": 0,
            "window_end": 3,
            "k": "a",
            "n": 2,
            "total": 6,
            "pane": 0,
            "timing": "on_time",
            "kind": "emit",
            "last": False,
        }
    ]


def test_large_offsets() -> None:
    far = 2**55
    harness = by_offset(2).harness(SCHEMA)
    found = feed(harness, ("a", far, 1), ("a", far + 1, 2))
    assert [row[:5] for row in found] == [(far, far + 2, "a", 2, 3)]


def test_progress_is_that_of_all_partitions() -> None:
    harness = by_offset(3, late=0).harness(SCHEMA, partitions=4)
    feed(harness, *[(key, 0, 1) for key in "abcdefgh"])
    found = feed(harness, ("z", 3, 1))
    assert sorted(row[2] for row in found) == list("abcdefgh")


def test_without_lateness_no_offset_behind_a_window_is_taken() -> None:
    """Samza: "determine the end of the window and avoid any late arrival updates"."""
    harness = by_offset(3, late=0).harness(SCHEMA)
    assert [row[:5] for row in feed(harness, ("a", 0, 1), ("a", 2, 2))] == [(0, 3, "a", 2, 3)]
    assert feed(harness, ("a", 1, 4)) == []
    assert harness.ledger()["reason"].to_pylist() == ["very_late"]
    assert [row[:5] for row in feed(harness, ("a", 5, 8), ("a", 4, 16))] == [(3, 6, "a", 2, 24)]


def test_a_second_origin_is_refused_and_nothing_of_its_batch_taken() -> None:
    begun = ts.stream(event_time="time", offset="offset", origin="origin").group_by("k")
    for window in (ts.offset_windows(3), ts.offset_sessions(3)):
        description = begun.window(window).aggregate(n=agg.count())
        if window != ts.offset_windows(3):
            description = description.accumulation("retracting")
        harness = description.harness(SCHEMA)
        names = ("k", "origin", "offset")
        feed(harness, ("a", 5, 0), names=names)
        before = harness.windows(), harness.counters()
        with pytest.raises(UsageError, match="several-origins"):
            feed(harness, ("a", 5, 1), ("a", 6, 0), names=names)
        assert (harness.windows(), harness.counters()) == before
        harness.restart()
        with pytest.raises(UsageError, match="several-origins"):
            feed(harness, ("a", 6, 1), names=names)
        assert (harness.windows(), harness.counters()) == before
        feed(harness, ("a", 5, 1), names=names)
        assert harness.windows()["n"].to_pylist() == [2]


def test_two_origins_in_the_first_batch_are_refused() -> None:
    begun = ts.stream(event_time="time", offset="offset", origin="origin").group_by("k")
    harness = begun.window(ts.offset_windows(3)).aggregate(n=agg.count()).harness(SCHEMA, partitions=3)
    with pytest.raises(UsageError, match="several-origins") as caught:
        feed(harness, ("a", 5, 0), ("b", 6, 1), names=("k", "origin", "offset"))
    assert caught.value.code == "several-origins"
    feed(harness, ("a", 6, 0), names=("k", "origin", "offset"))


def test_without_an_origin_column_nobody_asks_for_it() -> None:
    harness = by_offset().harness(SCHEMA)
    found = feed(harness, ("a", 5, 0), ("a", 6, 2), names=("k", "origin", "offset"))
    assert [row[:4] for row in found] == [(0, 3, "a", 2)]


def test_other_windows_take_several_origins() -> None:
    begun = ts.stream(event_time="time", offset="offset", origin="origin").group_by("k")
    harness = begun.window(ts.count_windows(2)).aggregate(total=agg.sum("v")).harness(SCHEMA)
    found = feed(harness, ("a", 6, 0, 1), ("a", 5, 9, 2), ("a", 5, 8, 4), names=("k", "origin", "offset", "v"))
    assert [row[:4] for row in found] == [(0, 2, "a", 6)]


@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.binary(), pa.date32()])
def test_an_origin_has_any_type_of_a_key(kind: pa.DataType) -> None:
    """Sorted by its own order: text by bytes."""
    origins = {"int64": [-3, 20], "string": ["10", "9"], "binary": [b"a", b"b"]}.get(str(kind), [1, 2])
    schema = SCHEMA.set(SCHEMA.get_field_index("origin"), pa.field("origin", kind))
    begun = ts.stream(event_time="time", offset="offset", origin="origin").group_by("k")
    harness = begun.window(ts.count_windows(2)).aggregate(total=agg.sum("v")).harness(schema)
    table = pa.table(
        {
            "time": pa.array([0, 0, 0], streams.TIME),
            "k": ["a", "a", "a"],
            "v": pa.array([1, 2, 4], pa.int64()),
            "origin": pa.array(
                [origins[1], origins[0], origins[0]], pa.int32() if kind == pa.date32() else kind
            ).cast(kind),
            "offset": pa.array([0, 8, 9], pa.int64()),
        },
        schema=schema,
    )
    assert [row[:4] for row in plain(harness.feed(table))] == [(0, 2, "a", 6)]


def test_counters_of_rejected_offsets() -> None:
    harness = by_offset(3, late=0).harness(SCHEMA)
    feed(harness, ("a", None, 1), ("a", -5, 1), (None, 0, 1), ("a", 7, 1))
    feed(harness, ("a", 0, 1))
    found = harness.counters()
    assert found["events"] == 5
    assert found["accepted"] == 1
    assert found["bad_offset"] == 2
    assert found["null_key"] == 1
    assert found["very_late"] == 1


def test_the_largest_of_all_offsets_survives_a_restart_and_smaller_ones() -> None:
    harness = by_offset(3, late=0).harness(SCHEMA)
    feed(harness, ("a", 52, 1))
    feed(harness, ("a", 51, 1))
    harness.restart()
    assert feed(harness, ("a", 30, 1)) == []
    assert harness.ledger()["reason"].to_pylist() == ["very_late"]
    assert plain(harness.ledger().select(["offset", "watermark"])) == [(30, 53)]


def test_processing_time_is_a_column_for_aggregates_and_in_the_ledger() -> None:
    description = (
        ts.stream(processing_time=True)
        .group_by("k")
        .window(ts.tumbling("10 microseconds"))
        .aggregate(low=agg.min("processing_time"), high=agg.max("processing_time"))
        .allowed_lateness("0 seconds")
    )
    harness = description.harness(pa.schema([("k", pa.string())]))
    harness.advance_processing_time(12)
    harness.feed([{"k": "a"}, {"k": None}])
    harness.advance_processing_time(15)
    harness.feed([{"k": "a"}])
    found = plain(harness.advance_processing_time(20))
    assert [row[:5] for row in found] == [(10, 20, "a", 12, 15)]
    assert plain(harness.ledger().select(["processing_time", "k", "reason", "watermark"])) == [
        (12, None, "null_key", 12)
    ]


def test_the_input_needs_no_time_where_the_clock_gives_it() -> None:
    harness = (
        ts.stream(processing_time=True)
        .group_by()
        .window(ts.tumbling("10 microseconds"))
        .aggregate(n=agg.count())
        .harness(pa.schema([("v", pa.int64())]))
    )
    harness.feed([{"v": 1}, {"v": 2}])
    harness.restart()
    harness.feed([{"v": 1}])
    assert [row[:3] for row in plain(harness.advance_processing_time(10))] == [(0, 10, 3)]


def test_nothing_is_late_for_the_clock() -> None:
    harness = (
        ts.stream(processing_time=True)
        .group_by("k")
        .window(ts.tumbling("10 microseconds"))
        .aggregate(n=agg.count())
        .harness(pa.schema([("k", pa.string())]))
    )
    total = 0
    for time in (0, 9, 10, 10, 11, 500, 500):
        harness.advance_processing_time(time)
        harness.feed([{"k": "a"}])
        total += 1
    assert harness.ledger().num_rows == 0
    assert harness.counters()["accepted"] == total
    assert harness.counters().get("very_late", 0) == 0
    assert harness.counters().get("mildly_late", 0) == 0


@pytest.mark.parametrize("partitions", [1, 3])
def test_per_element_only_updated(partitions: int) -> None:
    """The largest value so far at each element, where it is another."""
    description = (
        ts.stream(event_time="time", offset="offset")
        .group_by("k")
        .window(ts.tumbling("10 microseconds"))
        .aggregate(high=agg.max("v"))
        .trigger(early=trigger.after_count(1), only_updated=True, evaluate="element")
    )
    harness = description.harness(SCHEMA, partitions=partitions, generate=False)
    found = feed(harness, *[("a", number, value) for number, value in enumerate([2, 1, 5, 5, 3, 7])])
    assert [row[3:5] for row in found] == [(2, 0), (5, 1), (7, 2)]
    assert [row[3:5] for row in feed(harness, ("a", 9, 7), ("a", 8, 8))] == [(8, 3)]
    assert plain(harness.advance_watermark(10)) == []


def test_per_element_only_updated_counts_the_elements_it_leaves_out() -> None:
    """Each second element is a moment to look, whether or not something is observed then."""
    description = (
        ts.stream(event_time="time", offset="offset")
        .group_by("k")
        .window(ts.tumbling("10 microseconds"))
        .aggregate(high=agg.max("v"))
        .trigger(early=trigger.after_count(2), only_updated=True, evaluate="element")
    )
    harness = description.harness(SCHEMA, generate=False)
    found = feed(harness, *[("a", number, value) for number, value in enumerate([5, 1, 2, 3, 9, 4])])
    assert [row[3:5] for row in found] == [(5, 0), (9, 1)]


def test_per_element_across_key_and_partition() -> None:
    """The order is of the key's own elements, however the batch mixes them."""
    description = (
        ts.stream(event_time="time", offset="offset")
        .group_by("k")
        .window(ts.tumbling("10 microseconds"))
        .aggregate(total=agg.sum("v"))
        .trigger(early=trigger.after_count(2), evaluate="element")
        .accumulation("discarding")
    )
    harness = description.harness(SCHEMA, partitions=3, generate=False)
    found = feed(harness, *[(key, 100 - number, number) for number in range(6) for key in "abc"])
    observed = sorted(((row[2], row[4], row[3]) for row in found), key=str)
    assert observed == [(key, *pane) for key in "abc" for pane in enumerate([9, 5, 1])]


def test_a_large_batch_shows_every_pane() -> None:
    description = (
        ts.stream(event_time="time", offset="offset")
        .group_by("k")
        .window(ts.tumbling("10 microseconds"))
        .aggregate(n=agg.count(), total=agg.sum("v"))
        .trigger(early=trigger.after_count(1), evaluate="element")
        .accumulation("retracting")
    )
    harness = description.harness(SCHEMA, generate=False)
    found = feed(harness, *[("a", number, 1) for number in range(1000)])
    assert [row[3:6] for row in found if row[7] == "emit"] == [(n + 1, n + 1, n) for n in range(1000)]
    assert [row[5:8] for row in found[:5]] == [
        (0, "early", "emit"),
        (0, "early", "retract"),
        (1, "early", "emit"),
        (1, "early", "retract"),
        (2, "early", "emit"),
    ]


# The twin

ORDERED = strategies.with_history(strategies.ordered_settings())


@pytest.mark.slow
@patient
@RUNS
@given(name=NAMES, drawn=ORDERED, few=st.booleans(), partitions=PARTITIONS, limits=LIMITS, restarts=RESTARTS)
def test_every_step_equals_the_twins_and_a_restart_changes_nothing(
    name: StoreName,
    drawn: tuple[OrderedSetting, History],
    few: bool,
    partitions: int,
    limits: tuple[int, int],
    restarts: frozenset[int],
) -> None:
    check_run(*drawn, "largest" if few else "values", name, partitions, limits, restarts)


# What does not matter


@pytest.mark.slow
@patient
@SOME
@given(drawn=ORDERED.filter(lambda drawn: drawn[0].offset), data=st.data())
@pytest.mark.long
def test_rows_of_a_batch_have_no_order_but_the_declared_one(
    drawn: tuple[OrderedSetting, History], data: st.DataObject
) -> None:
    setting, history = drawn
    other = data.draw(strategies.shuffled(history), label="shuffled")
    with new_folder() as folder:
        found = []
        for number, each in enumerate((history, other)):
            store = store_config(data.draw(NAMES), folder / str(number), (12, 4 << 20))
            player = streams.real(setting, "values", store, folder / str(number) / "root", 2)
            panes = [by_window(player.play(step)) for step in each] + [by_window(player.finish())]
            found.append((panes, Counter(player.ledger())))
        assert found[0] == found[1]


@pytest.mark.slow
@patient
@SOME
@given(drawn=ORDERED.filter(splittable), data=st.data())
@pytest.mark.long
def test_the_net_does_not_depend_on_how_events_are_split(
    drawn: tuple[OrderedSetting, History], data: st.DataObject
) -> None:
    check_net(*drawn, data)


@pytest.mark.parametrize("windows", ["offsets", "sessions"])
def test_the_watermark_of_offsets_can_be_moved_by_hand(windows: str, tmp_path: Path) -> None:
    setting = offset_window(3, behind=0) if windows == "offsets" else offset_session(3, behind=0, mode="retracting")
    real = OrderedHarness(setting, "numbers", folder=tmp_path, generate=False)
    made = [Message(0, "a", number, 1, offset) for number, offset in enumerate((0, 1, 9))]
    assert real.feed(made) == []
    found = real.move("W", 5)
    assert [(row.window_start, row.window_end, row.values, row.timing) for row in found] == [
        (0, 3 if windows == "offsets" else 4, (0, 1), "on_time")
    ]
