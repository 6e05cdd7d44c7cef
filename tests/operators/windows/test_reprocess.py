"""Retention and feeding back, and elements that come to a finished window: worked examples, and the twin."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.every_store import new_folder, store_config
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
    RUNS,
    SOME,
    check_kept,
    check_ledger,
    check_net,
    check_run,
    check_scenario,
    compare,
    complete,
    patient,
    totals,
)
from tests.twins.ordered_strategies import History, Step
from tests.twins.ordered_streams import TwinPlayer
from tests.twins.transcripts import CLOSED, FEEDING
from tests.twins.words import EACH_BATCH
from tidestate import Aggregation, agg, trigger
from tidestate.operators.local.harness import Harness
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import StoreName

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

HERE = {**FEEDING, **CLOSED}
SCHEMA = pa.schema([("time", streams.TIME), ("k", pa.string()), ("v", pa.int64())])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "restarts"), each_third(in_turn(HERE, [False, True])))
def test_the_operator_says_what_was_worked_out_by_hand(name: str, restarts: bool) -> None:
    setting, steps = HERE[name]
    check_scenario(setting, steps, restarts)


# Examples that are not transcripts


def per_ten(retain: str | None = "20 microseconds", **more: Any) -> Aggregation:
    found = ts.stream(event_time="time").group_by("k").window(ts.tumbling("10 microseconds"))
    found = found.aggregate(total=agg.sum("v")).allowed_lateness("0 seconds", **more)
    return found.retain_windows(retain) if retain else found


def feed(harness: Harness, *events: tuple[Any, ...]) -> list[tuple]:
    return plain(harness.feed(table(*events)))


def table(*events: tuple[Any, ...]) -> pa.Table:
    """Events given as (time, key, value)."""
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(zip(*events, strict=True), SCHEMA, strict=True)],
        schema=SCHEMA,
    )


def test_feeding_does_not_move_a_generated_watermark() -> None:
    harness = per_ten().harness(SCHEMA)
    feed(harness, (1, "a", 1), (12, "a", 2))
    found = plain(harness.reprocess_late(table((1, "a", 4), (500, "a", 8))))
    assert [(*row[:4], row[5], row[7]) for row in found] == [(0, 10, "a", 5, "late", True)]
    assert feed(harness, (13, "a", 16)) == []  # 13 is on time: the watermark is 12 still
    assert harness.counters().get("very_late", 0) == 0
    assert [row[:4] for row in feed(harness, (20, "b", 32))] == [(10, 20, "a", 18)]


def test_counters_of_feeding() -> None:
    harness = per_ten().harness(SCHEMA)
    feed(harness, (1, "a", 1), (25, "a", 2))
    feed(harness, (2, "a", 4), (11, "b", 8), (None, "a", 1), (13, None, 1))
    before = harness.counters()
    assert before["very_late"] == 2
    feed(harness, (32, "a", 1))  # [0, 10) is gone: 10 + 20 <= 32
    between = harness.counters()
    harness.reprocess_late()
    after = harness.counters()
    assert (after["fed"], after["fed_accepted"], after["purged"]) == (2, 1, 1)
    for name in (
        "events",
        "accepted",
        "on_time",
        "mildly_late",
        "future",
        "very_late",
        "null_key",
        "null_event_time",
    ):
        assert after.get(name, 0) == between.get(name, 0), name
    harness.reprocess_late()
    assert harness.counters() == after


def test_feeding_is_a_checkpoint_of_its_own(tmp_path: Path) -> None:
    harness = per_ten().harness(SCHEMA, folder=tmp_path)
    feed(harness, (15, "a", 1))
    feed(harness, (2, "a", 4))
    before = len(evidence.work(tmp_path))
    harness.reprocess_late()
    assert len(evidence.work(tmp_path)) == before + 1
    assert evidence.work(tmp_path)[-1]["watermark_us"] == 15


def test_only_what_was_too_late_is_fed() -> None:
    harness = per_ten().harness(SCHEMA)
    feed(harness, (15, "a", 1))
    feed(harness, (None, "a", 1), (3, None, 1))
    assert plain(harness.reprocess_late()) == []
    assert harness.counters().get("fed", 0) == 0
    assert sorted(harness.ledger()["reason"].to_pylist()) == ["null_event_time", "null_key"]


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        ("null_key", "has no group"),
        ("null_event_time", "without an event time"),
        ("purged", "have expired"),
        ("key_too_long", "refused each time"),
        ("no_such_reason", "refused each time"),
    ],
)
def test_a_reason_of_rows_that_are_never_put_back_is_refused(reason: str, why: str) -> None:
    harness = per_ten().harness(SCHEMA)
    feed(harness, (21, "a", 1))
    feed(harness, (5, "a", 2))
    with pytest.raises(UsageError, match=why) as caught:
        harness.reprocess_late(reason=reason)
    assert (caught.value.code, caught.value.context["there"]) == (
        "feed-reason",
        ["very_late", "undecodable", "expectation"],
    )
    with pytest.raises(UsageError, match="leave it out"):
        harness.reprocess_late(table((5, "a", 2)), reason="very_late")
    assert plain(harness.reprocess_late(reason="very_late"))
    assert plain(harness.reprocess_late()) == []


def test_a_purged_row_is_in_the_ledger_next_to_the_first_one() -> None:
    harness = per_ten(None, ledger_columns=("v",)).harness(SCHEMA)
    feed(harness, (15, "a", 1))
    feed(harness, (2, "b", 4))
    feed(harness, (18, "a", 1))
    assert plain(harness.reprocess_late()) == []
    found = plain(harness.ledger().select(["time", "k", "v", "reason", "watermark"]))
    assert found == [(2, "b", 4, "very_late", 15), (2, "b", 4, "purged", 18)]


def test_feeding_an_empty_ledger_shows_nothing() -> None:
    harness = per_ten().harness(SCHEMA)
    assert plain(harness.reprocess_late()) == []
    feed(harness, (1, "a", 1))
    assert plain(harness.reprocess_late()) == []
    assert [row[:4] for row in feed(harness, (12, "a", 2))] == [(0, 10, "a", 1)]


def test_given_rows_may_be_fed_again_and_do_not_use_up_the_ledger() -> None:
    """A row of the ledger is fed once; what is given is given."""
    harness = per_ten().harness(SCHEMA)
    feed(harness, (15, "a", 1))
    feed(harness, (2, "a", 4))
    given = table((3, "a", 16))
    assert [row[3] for row in plain(harness.reprocess_late(given))] == [16]
    assert [row[3] for row in plain(harness.reprocess_late(given))] == [32]
    assert [row[3] for row in plain(harness.reprocess_late())] == [36]
    assert plain(harness.reprocess_late()) == []


def test_rows_may_be_given_as_dicts() -> None:
    harness = per_ten().harness(SCHEMA)
    feed(harness, (15, "a", 1))
    assert [row[3] for row in plain(harness.reprocess_late([{"time": 3, "k": "a", "v": 2}]))] == [2]


def test_a_restart_remembers_what_was_fed() -> None:
    harness = per_ten().harness(SCHEMA, partitions=3)
    feed(harness, *[(15, key, 1) for key in "abcdef"])
    feed(harness, *[(2, key, 4) for key in "abcdef"])
    harness.restart()
    assert sorted(row[2:4] for row in plain(harness.reprocess_late())) == [(key, 4) for key in "abcdef"]
    harness.restart()
    assert plain(harness.reprocess_late()) == []
    feed(harness, (3, "a", 8))
    harness.restart()
    assert [row[2:4] for row in plain(harness.reprocess_late())] == [("a", 12)]


def test_retention_below_the_allowed_lateness_is_refused() -> None:
    description = per_ten(None).allowed_lateness("10 microseconds")
    with pytest.raises(UsageError) as caught:
        description.retain_windows("9 microseconds").harness(SCHEMA)
    assert caught.value.code == "retention"
    description.retain_windows("10 microseconds").harness(SCHEMA)


def test_window_closed_is_counted_and_accepted() -> None:
    description = (
        ts.stream(event_time="time")
        .group_by("k")
        .window(ts.sliding("10 microseconds", "5 microseconds"))
        .aggregate(n=agg.count(), total=agg.sum("v"))
        .trigger(when=trigger.after_count(2))
    )
    harness = description.harness(SCHEMA, generate=False)
    feed(harness, (7, "a", 1), (8, "a", 2))
    feed(harness, (7, "a", 4))
    found = harness.counters()
    assert found["events"] == found["accepted"] == 3
    assert found["window_closed"] == 2
    ledger = harness.ledger()
    assert sorted(plain(ledger.select(["time", "k", "reason", "window_start", "window_end"]))) == [
        (7, "a", "window_closed", 0, 10),
        (7, "a", "window_closed", 5, 15),
    ]
    assert plain(harness.reprocess_late()) == []
    assert harness.counters().get("fed", 0) == 0


def test_standalone_feeds_back(tmp_path: Path) -> None:
    job = per_ten().standalone(checkpoint=str(tmp_path / "job"))
    batches = [table((1, "a", 1), (15, "a", 2)), table((2, "a", 4))]
    job.run(batches)
    assert [row[:4] for row in plain(job.reprocess_late())] == [(0, 10, "a", 5)]
    assert plain(job.reprocess_late()) == []
    again = per_ten().standalone(checkpoint=str(tmp_path / "job"))
    assert again.run(batches).num_rows == 0
    assert plain(again.reprocess_late()) == []
    assert evidence.ledger(tmp_path / "job", ["time", "k"]) == Counter([(2, "a", "very_late", 15)])
    assert [row[:4] for row in plain(again.run([*batches, table((20, "a", 8))]))] == [(10, 20, "a", 2)]


# The twin

FED = strategies.with_history(strategies.feeding_settings(), back=True)


@pytest.mark.slow
@patient
@RUNS
@given(name=NAMES, drawn=FED, partitions=PARTITIONS, limits=LIMITS, restarts=RESTARTS, generate=st.booleans())
def test_every_step_equals_the_twins_and_a_restart_changes_nothing(
    name: StoreName,
    drawn: tuple[OrderedSetting, History],
    partitions: int,
    limits: tuple[int, int],
    restarts: frozenset[int],
    generate: bool,
) -> None:
    check_run(*drawn, "values", name, partitions, limits, restarts, generate or drawn[0].axis != "event")


@pytest.mark.slow
@patient
@SOME
@given(
    drawn=FED.filter(lambda drawn: complete(drawn) and drawn[0].axis == "event" and drawn[0].when is None),
    data=st.data(),
)
@pytest.mark.long
def test_the_net_does_not_depend_on_how_events_are_split(
    drawn: tuple[OrderedSetting, History], data: st.DataObject
) -> None:
    check_net(*drawn, data)


@patient
@SOME
@given(name=NAMES, drawn=FED, restart=st.booleans())
@pytest.mark.long
def test_feeding_twice_changes_nothing(name: StoreName, drawn: tuple[OrderedSetting, History], restart: bool) -> None:
    """After each feeding another one, of which the twin knows nothing."""
    setting, history = drawn
    with new_folder() as folder:
        real = streams.real(setting, "values", store_config(name, folder, (12, 4 << 20)), folder / "root", 2)
        twin = TwinPlayer(setting)
        for step in history:
            compare(setting, real.play(step), twin.play(step), step)
            if step.kind == "back" and not step.given:
                before = real.harness.counters(), Counter(real.ledger()), sorted(real.windows(), key=str)
                if restart:
                    real.harness.restart()
                assert real.reprocess_late() == []
                after = real.harness.counters(), Counter(real.ledger()), sorted(real.windows(), key=str)
                assert after == before
        compare(setting, real.finish(), twin.finish(), "finish")
        check_ledger(real, twin)
        check_kept(real, twin)


@pytest.mark.slow
@patient
@SOME
@given(name=NAMES, drawn=strategies.with_history(strategies.feeding_settings()))
@pytest.mark.long
def test_keeping_windows_for_longer_shows_nothing_else(
    name: StoreName, drawn: tuple[OrderedSetting, History]
) -> None:
    """Without feeding, retention changes no pane and refuses nothing more or less."""
    setting, history = drawn
    found = []
    for each in (setting, replace(setting, retain=None, newest=None)):
        with new_folder() as folder:
            player = streams.real(each, "values", store_config(name, folder, (12, 4 << 20)), folder / "root", 2)
            panes = [sorted(player.play(step), key=str) for step in history] + [sorted(player.finish(), key=str)]
            found.append((panes, Counter(player.ledger())))
    assert found[0] == found[1]


def patient_too(drawn: tuple[OrderedSetting, History]) -> bool:
    """Whether lateness alone decides what is computed: no feeding in between, all of it kept and emitted."""
    setting = drawn[0]
    plainly = setting.axis == "event" and setting.when is None and setting.windows.name in ("sliding", "session")
    return plainly and setting.rule == "event" and setting.late == EACH_BATCH and setting.on_time == "always"


@pytest.mark.slow
@patient
@SOME
@given(name=NAMES, drawn=FED.filter(patient_too))
@pytest.mark.long
def test_feeding_back_at_the_end_gives_what_patience_would_have_given(
    name: StoreName, drawn: tuple[OrderedSetting, History]
) -> None:
    """All that was too late, fed back to windows that are kept, nets the same as if it had been allowed."""
    setting, steps = drawn
    history = tuple(step for step in steps if step.kind != "back")
    keeping = replace(setting, retain=100_000, newest=None)
    waiting = replace(setting, allowed=100_000, retain=None, newest=None)
    nets = []
    for each, more in ((keeping, (Step("back"),)), (waiting, ())):
        with new_folder() as folder:
            player = streams.real(each, "values", store_config(name, folder, (12, 4 << 20)), folder / "root", 2)
            rows = [row for step in (*history, *more) for row in player.play(step)] + player.finish()
            nets.append(totals(setting, rows))
            assert "purged" not in {row[-4] for row in player.ledger()}
    assert nets[0] == nets[1]


@patient
@SOME
@given(drawn=FED)
def test_counters_of_feeding_add_up(drawn: tuple[OrderedSetting, History]) -> None:
    setting, history = drawn
    with new_folder() as folder:
        real = streams.real(setting, "values", store_config("memory", folder, (12, 4 << 20)), folder / "root", 2)
        twin = TwinPlayer(setting)
        for step in history:
            before = real.harness.counters()
            real.play(step)
            twin.play(step)
            after = real.harness.counters()
            if step.kind == "back":
                for name in ("events", "accepted", "on_time", "mildly_late", "future", "very_late"):
                    assert after.get(name, 0) == before.get(name, 0), name
        for name, expected in twin.twin.counters.items():
            assert real.harness.counters().get(name, 0) == expected, name
        if all(not entry.taken for entry in twin.twin.ledger):
            reasons = Counter(entry.reason for entry in twin.twin.ledger)
            assert real.harness.counters().get("purged", 0) == reasons["purged"]


@pytest.mark.parametrize("partitions", [1, 4])
def test_a_window_that_a_reprocessed_event_opened_again_fires(partitions: int) -> None:
    """With nothing else waiting: its partition was due at the end of time, and the window never fired."""
    job = (
        ts.stream(event_time="time")
        .group_by("k")
        .window(ts.tumbling("10 seconds"))
        .aggregate(n=agg.count())
        .allowed_lateness("0 seconds")
    )
    schema = pa.schema([("time", pa.timestamp("us", "UTC")), ("k", pa.string())])
    harness = job.harness(schema, partitions=partitions)
    harness.feed([{"time": 17_000_000, "k": "z"}])
    harness.feed([{"time": 13_000_000, "k": key} for key in "abcdefgh"])
    assert harness.counters()["very_late"] == 8
    harness.reprocess_late()
    panes = harness.feed([{"time": 25_000_000, "k": key} for key in "abcdefghz"])
    assert sorted(panes["k"].to_pylist()) == list("abcdefghz")
