"""What is compared between the ordered twin and the operator, and how many examples are tried."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings as run_settings
from hypothesis import strategies as st

from tests.helpers.every_store import STORES, new_folder, store_config
from tests.helpers.pane_checks import check_panes, net
from tests.helpers.process import LONG
from tests.twins import ordered_strategies as strategies
from tests.twins import ordered_streams as streams
from tests.twins.ordered import OrderedSetting
from tests.twins.ordered_strategies import History
from tests.twins.ordered_streams import OrderedHarness, RealPlayer, TwinPlayer, played_by
from tests.twins.transcripts.script import Step, sorted_steps
from tests.twins.words import EACH_BATCH, Row
from tidestate.statestore.spec.store import StoreName

SHARE = run_settings.default.max_examples
RUNS = run_settings(max_examples=SHARE * 3 if LONG else max(3, SHARE // 3))
SOME = run_settings(max_examples=SHARE if LONG else max(2, SHARE // 8))
LIMITS = st.sampled_from([(12, 4 << 20), (2, 4 << 20), (4, 1)])
PARTITIONS = st.sampled_from([1, 1, 1, 3])
NAMES = st.sampled_from(STORES)
RESTARTS = st.frozensets(st.integers(0, 11), max_size=3)
patient = pytest.mark.timeout(7200 if LONG else 600)


def check_scenario(setting: OrderedSetting, steps: list[Step], restarts: bool) -> None:
    with new_folder() as folder:
        real = OrderedHarness(setting, "numbers", folder=folder / "root", partitions=2 if restarts else 1)
        assert sorted_steps(played_by(real, steps, restarts)) == sorted_steps(steps)


def check_run(
    setting: OrderedSetting,
    history: History,
    aggregates: str,
    name: StoreName,
    partitions: int,
    limits: tuple[int, int],
    restarts: frozenset[int],
    generate: bool | None = None,
) -> None:
    with new_folder() as folder:
        store = store_config(name, folder, limits)
        real = streams.real(setting, aggregates, store, folder / "root", partitions, generate)
        twin = TwinPlayer(setting, aggregates, generate)
        for number, step in enumerate(history):
            if number in restarts:
                real.harness.restart()
            compare(setting, real.play(step), twin.play(step), step)
            if number in restarts or number == len(history) - 1:
                check_kept(real, twin)
        compare(setting, real.finish(), twin.finish(), "finish")
        check_ledger(real, twin)
        check_kept(real, twin)


def compare(setting: OrderedSetting, found: list[Row], expected: list[Row], step: object) -> None:
    """The same panes; per element those of a window in their order."""
    if not setting.per_element:
        check_panes(setting, found, expected, step)
        return
    assert by_window(found) == by_window(expected), step


def by_window(rows: list[Row]) -> dict:
    found: dict = {}
    for row in rows:
        found.setdefault(row[:3], []).append(row)
    return found


def check_ledger(real: RealPlayer, twin: TwinPlayer) -> None:
    entries = [row for entry in twin.twin.ledger for row in streams.ledger_rows(real.setting, entry)]
    assert Counter(real.ledger()) == Counter(entries)


def check_kept(real: RealPlayer, twin: TwinPlayer) -> None:
    setting, found, expected = real.setting, real.windows(), twin.twin.live_windows()
    if setting.mode == "discarding":
        # What was observed and discarded: kept where windows are kept as slices, gone elsewhere.
        found, expected = [row[:3] for row in found], [row[:3] for row in expected]
    if setting.when is None:
        assert sorted(found, key=str) == sorted(expected, key=str)


def complete(drawn: tuple[OrderedSetting, History]) -> bool:
    """Whether every element is in some pane at the end of the input, by whatever triggers."""
    setting = drawn[0]
    if setting.closing != "never":
        return True
    return setting.late == EACH_BATCH and (setting.on_time != "never" or setting.early == EACH_BATCH)


def splittable(drawn: tuple[OrderedSetting, History]) -> bool:
    """Whether the windows do not ask in which batch an event came."""
    return complete(drawn) and drawn[0].windows.name != "count" and drawn[0].axis != "offset"


def check_net(setting: OrderedSetting, history: History, data: st.DataObject) -> None:
    """The twin's net and the operator's, of a history and of another way to tell it, are one."""
    other = data.draw(strategies.recut(setting, history), label="recut")
    nets, ledgers = [], []
    for each in (history, other):
        name = data.draw(NAMES, label="store")
        with new_folder() as folder:
            store = store_config(name, folder, data.draw(LIMITS, label="limits"))
            player = streams.real(setting, "values", store, folder / "root", data.draw(PARTITIONS))
            twin = TwinPlayer(setting)
            for one in (player, twin):
                rows = [row for step in each for row in one.play(step)] + one.finish()
                nets.append(totals(setting, rows))
            ledgers.append(Counter(without_clock(setting, row) for row in player.ledger()))
    assert nets[0] == nets[1] == nets[2] == nets[3]
    assert ledgers[0] == ledgers[1]


def totals(setting: OrderedSetting, rows: list[Row]) -> dict:
    """Counts and sums only, where parts are added up; else all there is."""
    if setting.mode == "discarding":
        rows = [row._replace(values=(*row.values, None, None)) for row in rows]
    return net(setting, rows)


def without_clock(setting: OrderedSetting, row: tuple) -> tuple:
    """Before the first batch the clock has not answered anything, so there the watermark goes by batches."""
    return (*row[:-3], *row[-2:]) if setting.axis == "processing" else row
