"""The general window operator against its naive twin, and the twin itself against transcripts written by hand."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as run_settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.every_store import STORES, new_folder, store_config
from tests.helpers.pane_checks import check_panes, net
from tests.helpers.process import LONG, few
from tests.twins import general_streams as streams
from tests.twins.general import Twin
from tests.twins.general_scenarios import SCENARIOS, played
from tests.twins.general_streams import HarnessPlayer, History, TwinPlayer, ledger_rows
from tests.twins.naive import Setting as OldSetting
from tests.twins.naive import Twin as OldTwin
from tests.twins.words import EACH_BATCH, Row, Setting
from tidestate import agg, trigger
from tidestate.statestore.spec.store import StoreName

SHARE = run_settings.default.max_examples
RUNS = run_settings(max_examples=SHARE * 3 if LONG else max(3, SHARE // 3))
HALF = run_settings(max_examples=SHARE * 3 if LONG else 2)
LIMITS = st.sampled_from([(12, 4 << 20), (2, 4 << 20), (4, 1)])
PARTITIONS = st.sampled_from([1, 1, 1, 3])
patient = pytest.mark.timeout(7200 if LONG else 600)
# Sessions that do not retract are warned about; here they are wanted.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_twin_says_what_was_worked_out_by_hand(name: str) -> None:
    setting, steps = SCENARIOS[name]
    assert played(setting, steps) == steps


@given(setting=streams.settings(), history=streams.histories())
def test_the_twin_of_plain_windows_is_the_older_twin(setting: Setting, history: History) -> None:
    """Two twins written apart, where both know the rules."""
    sizes = (5, 2, 1) if setting.windows.name != "sliding" else setting.windows.sizes
    delay = history.delay or 0
    one = Setting(streams.sliding(*sizes), setting.allowed, mode=setting.mode, key=setting.key)
    player = TwinPlayer(one, History(history.steps, delay), few=False)
    other = OldTwin(OldSetting(*sizes, delay, setting.allowed, setting.mode, setting.key))
    for step in history.steps:
        if step.kind == "feed":
            found = player.play(step)
            other.batch(list(step.events))
            assert Counter(map(flat, found)) == Counter(other.panes[-1])
    assert Counter((*row.event, row.reason, row.watermark) for row in player.twin.ledger) == Counter(other.ledger)


def flat(row: Row) -> tuple:
    return (row.window_start, row.window_end, *row.key, *row.values, *row[4:])


@pytest.mark.slow
@patient
@pytest.mark.parametrize("name", few(STORES, STORES.index("parquet")))
@RUNS
@given(
    setting=streams.settings(),
    history=streams.histories(),
    few=st.booleans(),
    partitions=PARTITIONS,
    limits=LIMITS,
)
def test_every_step_equals_the_twins(
    name: StoreName, setting: Setting, history: History, few: bool, partitions: int, limits: tuple[int, int]
) -> None:
    with new_folder() as folder:
        real = HarnessPlayer(setting, history, few, store_config(name, folder, limits), folder / "root", partitions)
        check_run(setting, history, few, real, restarts=frozenset())


@pytest.mark.slow
@patient
@HALF
@given(
    name=st.sampled_from(STORES),
    setting=streams.settings(),
    history=streams.histories(),
    restarts=st.frozensets(st.integers(0, 11), max_size=4),
    limits=LIMITS,
)
def test_a_restart_at_any_step_changes_nothing(
    name: StoreName, setting: Setting, history: History, restarts: frozenset[int], limits: tuple[int, int]
) -> None:
    with new_folder() as folder:
        real = HarnessPlayer(setting, history, False, store_config(name, folder, limits), folder / "root", 2)
        check_run(setting, history, False, real, restarts)


@patient
@HALF
@given(setting=streams.settings(), history=streams.histories(), partitions=PARTITIONS)
def test_every_step_in_shares_equals_the_twins(setting: Setting, history: History, partitions: int) -> None:
    """With a budget of a byte, every row of a step is a share of its own."""
    with new_folder() as folder, patch("tidestate.operators.windows.step.LEAST_ROWS", 1):
        real = HarnessPlayer(
            setting, history, False, store_config("parquet", folder, (4, 1)), folder / "root", partitions
        )
        check_run(setting, history, False, real, restarts=frozenset())


def check_run(setting: Setting, history: History, few: bool, real: HarnessPlayer, restarts: frozenset[int]) -> None:
    twin = TwinPlayer(setting, history, few)
    for number, step in enumerate(history.steps):
        if number in restarts:
            real.harness.restart()
        check_panes(setting, real.play(step), twin.play(step), step)
        if number in restarts or number == len(history.steps) - 1:
            check_windows(real, twin.twin)
    check_panes(setting, real.finish(), twin.finish(), "finish")
    assert Counter(real.ledger()) == Counter(row for entry in twin.twin.ledger for row in ledger_rows(entry))
    check_windows(real, twin.twin)


def check_windows(real: HarnessPlayer, twin: Twin) -> None:
    found, expected = real.windows(), twin.live_windows()
    assert found is None or sorted(found, key=str) == sorted(expected, key=str)


# The net of all panes


def complete(setting: Setting) -> bool:
    """Whether every element is in some pane at the end of the input, by whatever triggers."""
    if setting.closing != "never":
        return True
    return setting.late == EACH_BATCH and (setting.on_time != "never" or setting.early == EACH_BATCH)


def outcome(setting: Setting, history: History, player: TwinPlayer | HarnessPlayer) -> dict:
    return net(setting, [row for step in history.steps for row in player.play(step)] + player.finish())


@RUNS
@given(
    setting=streams.settings().filter(complete),
    history=streams.histories(generated=False),
    data=st.data(),
)
def test_the_twins_net_does_not_depend_on_how_events_are_split(
    setting: Setting, history: History, data: st.DataObject
) -> None:
    other = data.draw(streams.recut(setting, history), label="recut")
    one, two = TwinPlayer(setting, history, few=False), TwinPlayer(setting, other, few=False)
    assert outcome(setting, history, one) == outcome(setting, other, two)
    assert Counter(one.twin.ledger) == Counter(two.twin.ledger)


@pytest.mark.slow
@patient
@HALF
@given(
    setting=streams.settings().filter(complete),
    history=streams.histories(generated=False),
    data=st.data(),
)
@pytest.mark.long
def test_the_net_does_not_depend_on_how_events_are_split(
    setting: Setting, history: History, data: st.DataObject
) -> None:
    other = data.draw(streams.recut(setting, history), label="recut")
    nets, ledgers = [], []
    for drawn in (history, other):
        name = data.draw(st.sampled_from(STORES), label="store")
        with new_folder() as folder:
            store = store_config(name, folder, data.draw(LIMITS, label="limits"))
            player = HarnessPlayer(setting, drawn, False, store, folder / "root", data.draw(PARTITIONS))
            nets.append(outcome(setting, drawn, player))
            ledgers.append(Counter(player.ledger()))
    assert nets[0] == nets[1]
    assert ledgers[0] == ledgers[1]


def test_the_name_of_an_aggregate_may_begin_like_a_column_of_ours() -> None:
    schema = pa.schema([("t", pa.timestamp("us", "UTC")), ("o", pa.int64())])
    job = (
        ts.stream(event_time="t", offset="o")
        .group_by()
        .window(ts.tumbling("10 seconds"))
        .aggregate(_since_noon=agg.count())
    )
    job = job.allowed_lateness("1 minute").trigger(early=trigger.after_count(1), evaluate="element")
    panes = job.harness(schema).feed([{"t": datetime(2026, 1, 1, tzinfo=UTC), "o": n} for n in range(3)])
    assert panes["_since_noon"].to_pylist() == [1, 2, 3]
