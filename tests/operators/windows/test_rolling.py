"""Rolling windows against a naive twin: a loop over all events for each window."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as run_settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.bundles import other_needs
from tests.helpers.every_store import STORES, new_folder, store_config
from tests.helpers.process import LONG, in_turn
from tests.twins.aggregated import KINDS, events_of, same, table, wanted
from tests.twins.general_streams import plain
from tidestate import Aggregation, agg, trigger
from tidestate.operators.inspect.history.window_history import window_history
from tidestate.operators.windows import step
from tidestate.operators.windows.ranges import combined_ranges
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import StoreName
from tidestate.statestore.spec.tables import Column, TableSpec

SECOND = 1_000_000
SCHEMA = pa.schema([("t", pa.timestamp("us", "UTC")), ("k", pa.string()), ("v", pa.int64())])
MODES = ("accumulating", "discarding", "retracting")
RUNS = run_settings(max_examples=run_settings.default.max_examples * (3 if LONG else 1))
patient = pytest.mark.timeout(7200 if LONG else 600)

Event = tuple[int, str, int]
"""The time in seconds, the key, and a value."""


@dataclass(frozen=True)
class Setting:
    """``kept``: for how many seconds more than the lateness windows are retained."""

    size: int = 5
    allowed: int = 5
    delay: int = 0
    mode: Any = "accumulating"
    early: bool = False
    kept: int = 0

    @property
    def job(self) -> Aggregation:
        events = ts.stream(event_time="t", watermark_delay=f"{self.delay} seconds").group_by("k")
        windows = events.window(ts.rolling(f"{self.size} seconds"))
        results = windows.aggregate(n=agg.count(), total=agg.sum("v"), high=agg.max("v"), values=agg.list("v"))
        results = results.allowed_lateness(f"{self.allowed} seconds").named("job")
        if self.early:
            results = results.trigger(early=trigger.each_batch())
        if self.mode != "accumulating":
            results = results.accumulation(self.mode)
        return results.retain_windows(f"{self.allowed + self.kept} seconds") if self.kept else results


@dataclass
class Twin:
    """Every window anew from all events so far. It has the name of its key and of the time with which it ends."""

    setting: Setting
    watermark: float = float("-inf")
    events: list[Event] = field(default_factory=list)
    late: list[Event] = field(default_factory=list)
    panes: dict[tuple[str, int], list[tuple]] = field(default_factory=dict)
    counted: dict[tuple[str, int], set[int]] = field(default_factory=dict)
    """The numbers of the events that panes of a window have."""

    def take(self, batch: list[Event], allowed: int, after: float | None = None) -> list[tuple]:
        before, first, rows = self.watermark, len(self.events), []
        for event in batch:
            (self.events if event[0] >= before - allowed else self.late).append(event)
        newest = max((event[0] - self.setting.delay for event in self.events[first:]), default=before)
        self.watermark = max(before, newest) if after is None else after
        for key, end in sorted({(event[1], event[0]) for event in self.events}):
            inside = self.inside(key, end)
            touched = any(number >= first for number in inside)
            if before <= end < self.watermark:
                rows += self.pane(key, end, inside, "on_time")
            elif touched and (end < before or self.setting.early):
                rows += self.pane(key, end, inside, "late" if end < before else "early")
        return rows

    def inside(self, key: str, end: int) -> list[int]:
        size = self.setting.size
        return [number for number, (t, k, _) in enumerate(self.events) if k == key and end - size < t <= end]

    def pane(self, key: str, end: int, inside: list[int], timing: str) -> list[tuple]:
        before, counted = self.panes.setdefault((key, end), []), self.counted.setdefault((key, end), set())
        new = [number for number in inside if number not in counted or self.setting.mode != "discarding"]
        row, retracted = self.results(new), []
        if self.setting.mode == "retracting" and before:
            if before[-1] == row:
                return []
            retracted = [(key, end, *before[-1], len(before) - 1, timing, "retract")]
        before.append(row)
        counted.update(inside)
        return [*retracted, (key, end, *row, len(before) - 1, timing, "emit")]

    def results(self, numbers: list[int]) -> tuple:
        values = sorted(self.events[number][2] for number in numbers)
        return (len(values), sum(values) if values else None, max(values, default=None), values)

    def windows(self) -> list[tuple]:
        kept = self.watermark - self.setting.allowed - self.setting.kept
        names = {(event[1], event[0]) for event in self.events if event[0] >= kept}
        return [(key, end, *self.results(self.inside(key, end))) for key, end in names]


def arrow(events: list[Event]) -> pa.Table:
    times, keys, values = zip(*events, strict=True) if events else ((), (), ())
    return pa.table([pa.array([t * SECOND for t in times]).cast(SCHEMA.field(0).type), keys, values], schema=SCHEMA)


def rows_of(setting: Setting, panes: pa.Table) -> list[tuple]:
    """Panes or windows as the twin has them, whose bounds are those of their window."""
    rows = []
    for start, end, key, n, total, high, values, *about in plain(panes):
        assert end - start == setting.size * SECOND
        assert end % SECOND == 1
        rows.append((key, end // SECOND, n, total, high, sorted(values or []), *about[:3]))
    return sorted(rows)


def shown(panes: pa.Table) -> list[tuple]:
    """Of each pane the second with which its window ends, the total, and what kind of pane it is."""
    return [
        (row["window_end"].second, row["total"], row["pane"], row["timing"], row["kind"]) for row in panes.to_pylist()
    ]


def test_a_window_has_the_last_span_before_each_event() -> None:
    """The events of the last ten seconds, the newest included and the one of ten seconds ago not."""
    job = Setting(10, allowed=8).job
    harness = job.harness(SCHEMA)
    assert shown(harness.feed(arrow([(3, "a", 5), (3, "a", 1), (13, "a", 2), (9, "b", 50)]))) == [
        (3, 6, 0, "on_time", "emit"),
        (9, 50, 0, "on_time", "emit"),
    ]
    panes = harness.feed(arrow([(14, "a", 4)]))
    assert shown(panes) == [(13, 2, 0, "on_time", "emit")]
    assert panes["window_start"].to_pylist() == [datetime(1970, 1, 1, 0, 0, 3, 1, UTC)]
    assert panes["window_end"].to_pylist() == [datetime(1970, 1, 1, 0, 0, 13, 1, UTC)]
    # A late event has a window, and is in those of the ten seconds after it, in one that is due as well.
    assert shown(harness.feed(arrow([(7, "a", 100), (20, "a", 7)]))) == [
        (7, 106, 0, "late", "emit"),
        (13, 102, 1, "late", "emit"),
        (14, 106, 0, "on_time", "emit"),
    ]
    assert shown(harness.feed(arrow([(13, "a", 1000)]))) == [
        (13, 1102, 2, "late", "emit"),
        (14, 1106, 1, "late", "emit"),
    ]
    assert harness.ledger().num_rows == 0
    harness.feed(arrow([(11, "a", 0)]))
    assert harness.ledger()["reason"].to_pylist() == ["very_late"]
    assert shown(harness.finish()) == [(20, 1013, 0, "on_time", "emit")]


@st.composite
def settings(draw: st.DrawFn) -> Setting:
    allowed, mode = (
        draw(st.sampled_from([0, 3, 20])),
        draw(st.sampled_from(MODES)),
    )
    early = draw(st.booleans())
    if mode == "retracting" and not early:
        allowed = max(allowed, 1)
    size, delay, kept = (draw(st.sampled_from(values)) for values in ([1, 4, 9, 60], [0, 3], [0, 6]))
    return Setting(size, allowed, delay, mode, early, kept)


EVENTS = st.tuples(st.integers(-3, 40), st.sampled_from("ab"), st.integers(-9, 9))
BATCHES = st.lists(st.lists(EVENTS, max_size=8), max_size=8)


@patient
@pytest.mark.parametrize(("name", "mode"), in_turn(STORES, MODES))
@run_settings(max_examples=run_settings.default.max_examples if LONG else 2)
@given(
    setting=settings(),
    batches=BATCHES,
    restarts=st.frozensets(st.integers(0, 8), max_size=3),
    partitions=st.sampled_from([1, 3]),
    limits=st.sampled_from([(12, 4 << 20), (2, 1)]),
)
def test_every_step_equals_the_twins(
    name: StoreName,
    mode: str,
    setting: Setting,
    batches: list[list[Event]],
    restarts: frozenset[int],
    partitions: int,
    limits: tuple[int, int],
) -> None:
    least = 1 if mode == "retracting" and not setting.early else 0
    setting = replace(setting, mode=mode, allowed=max(setting.allowed, least))
    twin = Twin(setting)
    with new_folder() as folder:
        store = store_config(name, folder, limits)
        harness = setting.job.harness(SCHEMA, store=store, folder=folder / "root", partitions=partitions)
        for number, batch in enumerate(batches):
            if number in restarts:
                harness.restart()
            assert rows_of(setting, harness.feed(arrow(batch))) == sorted(twin.take(batch, setting.allowed)), number
            if setting.mode != "discarding":
                assert rows_of(setting, harness.windows()) == sorted(twin.windows()), number
        late, twin.late = twin.late, []
        again = twin.take(late, setting.allowed + setting.kept, twin.watermark)
        assert rows_of(setting, harness.reprocess_late()) == sorted(again)
        assert rows_of(setting, harness.finish()) == sorted(twin.take([], 0, float("inf")))


@patient
@RUNS
@given(
    setting=settings(),
    batches=BATCHES,
    early=st.lists(st.booleans(), min_size=8, max_size=8),
    lateness=st.sampled_from([3, 20]),
)
def test_early_panes_may_come_and_go_between_starts(
    setting: Setting, batches: list[list[Event]], early: list[bool], lateness: int
) -> None:
    """Windows that wait in parts are looked at from the next start on, and those that were looked at wait on."""
    setting = replace(setting, allowed=lateness)
    twin = Twin(setting)
    with new_folder() as folder:
        for batch, looks in zip(batches, early, strict=False):
            twin.setting = replace(setting, early=looks)
            with twin.setting.job.harness(SCHEMA, folder=folder / "root") as harness:
                found = rows_of(setting, harness.feed(arrow(batch)))
            assert found == sorted(twin.take(batch, setting.allowed))


TRIGGERS: dict[str, dict[str, Any]] = {
    "none": {},
    "by count": {"early": trigger.after_count(2), "late": trigger.after_count(2), "closing": "always"},
    "by event time": {"early": trigger.every_event_time("2 seconds")},
    "by the clock": {"early": trigger.every_processing_time("3 seconds"), "late": trigger.batched("3 seconds")},
    "what changed": {"early": trigger.each_batch(), "only_updated": True, "on_time": "non_empty"},
}


def test_what_is_left_of_all_panes_does_not_depend_on_triggers() -> None:
    chance, setting = random.Random(5), Setting(9, 20, 5, "retracting")
    batches = [
        [(max(-3, int(chance.gauss(4 * n, 5))), chance.choice("ab"), chance.randint(-9, 9)) for _ in range(6)]
        for n in range(6)
    ]
    nets = []
    for choices in TRIGGERS.values():
        net: Counter[tuple] = Counter()
        harness = setting.job.trigger(**{"closing": "if_new"} | choices).harness(SCHEMA, partitions=2)
        for number, batch in enumerate(batches):
            tables = [harness.feed(arrow(batch)), harness.advance_processing_time((number + 1) * 2 * SECOND)]
            for *row, values, _pane, _timing, kind in rows_of(setting, pa.concat_tables(tables)):
                net[*row, *values] += 1 if kind == "emit" else -1
        for *row, values, _pane, _timing, kind in rows_of(setting, harness.finish()):
            net[*row, *values] += 1 if kind == "emit" else -1
        nets.append({row: times for row, times in net.items() if times})
    assert set(nets[0].values()) == {1}
    assert all(net == nets[0] for net in nets)


@patient
@RUNS
@given(kind=st.sampled_from(sorted(KINDS)), data=st.data(), ordered=st.booleans())
def test_every_aggregate_is_of_the_events_in_the_order_of_time(kind: str, data: st.DataObject, ordered: bool) -> None:
    events = data.draw(events_of(kind))
    if ordered:
        events.sort(key=lambda event: event["t"])
    cut, aggregates = data.draw(st.integers(0, len(events))), wanted(kind)
    windows = ts.stream(event_time="t", watermark_delay="0 seconds" if ordered else "1 hour").group_by("k")
    windows = windows.window(ts.rolling("9 seconds"))
    job = windows.aggregate(**{name: one for name, (one, _) in aggregates.items()})
    batches = [table(kind, events[:cut]), table(kind, events[cut:])]
    with new_folder() as folder:
        panes = job.standalone(checkpoint=folder / "root").run(batches, drain=True).to_pylist()
    found = {(pane["k"], pane["window_end"]): pane for pane in panes if pane["timing"] == "on_time"}
    late = [pane for pane in panes if pane["timing"] == "late"]
    assert late if ordered and late else not late
    for (key, end), pane in found.items():
        start = end - timedelta(seconds=9)
        own = sorted(
            (event for event in events if event["k"] == key and start <= event["t"] < end), key=lambda e: e["t"]
        )
        if not late:
            for name, (_, compute) in aggregates.items():
                assert same(pane[name], compute(own)), (name, pane[name], compute(own))
    assert len(found) == len({(event["k"], event["t"]) for event in events})


def test_it_is_what_pandas_rolls(tmp_path: Path) -> None:
    chance = np.random.default_rng(7)
    rows = 5_000
    frame = pd.DataFrame(
        {
            "t": pd.to_datetime(np.sort(chance.integers(0, 3_600, rows)), unit="s", utc=True).astype(
                "datetime64[us, UTC]"
            ),
            "k": chance.integers(0, 5, rows),
            "place": chance.choice(["north", "south"], rows),
            "v": chance.normal(size=rows),
        }
    )
    windows = ts.stream(event_time="t").group_by("k", "place").window(ts.rolling("100 seconds"))
    job = windows.aggregate(
        n=agg.count(), total=agg.sum("v"), high=agg.max("v"), middle=agg.median("v"), at=agg.latest("t")
    )
    batches = [pa.Table.from_pandas(frame[first : first + 700]) for first in range(0, rows, 700)]
    panes = job.allowed_lateness("0 seconds").standalone(checkpoint=tmp_path / "root").run(batches, drain=True)
    found = panes.to_pandas().set_index(["k", "place", "at"]).sort_index()[["n", "total", "high", "middle"]]
    rolled = frame.set_index("t").groupby(["k", "place"])["v"].rolling("100s")
    expected = rolled.agg(["count", "sum", "max", "median"])
    # The last of equal times has all of them.
    expected = expected[~expected.index.duplicated(keep="last")].sort_index()
    assert len(found) == len(expected)
    np.testing.assert_allclose(found.to_numpy(float), expected.to_numpy(float), atol=1e-9)


def test_ranges_are_combined_in_order_and_only_as_they_are_asked_for() -> None:
    spec = TableSpec("rows", (Column("k", "int64", "key"),), (Column("v", "list<item: int64>", "", "append"),))
    chance = np.random.default_rng(3)
    for rows in (1, 2, 7, 64, 100):
        values = pa.table({"k": np.arange(rows), "v": pa.array([[n] for n in range(rows)], pa.list_(pa.int64()))})
        first = chance.integers(0, rows, 50)
        counts = np.array([chance.integers(1, rows - start + 1) for start in first])
        found = combined_ranges(spec, values, first, counts)["v"].to_pylist()
        assert found == [list(range(start, start + count)) for start, count in zip(first, counts, strict=True)]
    assert combined_ranges(spec, values, first[:0], counts[:0]).num_rows == 0
    largest = pa.table({"k": [0, 1], "v": [2**63 - 1, 1]})
    sums = TableSpec("rows", (Column("k", "int64", "key"),), (Column("v", "int64", "", "sum"),))
    each = combined_ranges(sums, largest, np.array([0, 1]), np.array([1, 1]))
    assert each["v"].to_pylist() == [2**63 - 1, 1], "rows of no common range are never added"


def test_the_state_has_the_last_span_and_what_late_events_need() -> None:
    harness = Setting(10, allowed=5, kept=7).job.harness(SCHEMA)
    for second in range(30):  # more than all that is kept, 10 + 5 + 7
        harness.feed(arrow([(second, "a", 1)]))
    assert harness.state("parts").num_rows == 10 + 5 + 7
    assert harness.state("groups").num_rows == 5 + 7
    assert harness.windows().num_rows == 5 + 7 + 1, "with the one that is not due"


def test_windows_in_shares_of_the_keys() -> None:
    setting, keys = Setting(5, allowed=3), [f"k{number}" for number in range(8)]
    batches = [[(second, key, second) for key in keys] for second in (3, 1, 2, 6, 4)]
    twin = Twin(setting)
    with patch.object(step, "LEAST_ROWS", 1), patch.object(step, "ARRIVING_SHARE", 1 << 40):
        harness = setting.job.harness(SCHEMA)
        for batch in batches:
            assert rows_of(setting, harness.feed(arrow(batch))) == sorted(twin.take(batch, 3))


def test_windows_by_the_clock_and_without_a_key() -> None:
    windows = ts.stream(processing_time=True).group_by().window(ts.rolling("10 seconds"))
    harness = windows.aggregate(total=agg.sum("v")).harness(pa.schema([("v", pa.int64())]))
    totals = []
    for second, value in ((1, 1), (5, 10), (11, 100), (12, 1000)):
        totals += harness.advance_processing_time(second * SECOND)["total"].to_pylist()
        totals += harness.feed([{"v": value}])["total"].to_pylist()
    assert totals + harness.finish()["total"].to_pylist() == [1, 11, 110, 1110]


def test_the_next_operator_goes_by_the_time_of_the_event() -> None:
    """The output watermark is that of the input, so what follows waits no longer."""
    job = ts.stream(event_time="t").group_by("k").window(ts.rolling("10 seconds")).aggregate(total=agg.sum("v"))
    job = job.pane_timestamp("latest").named("last").allowed_lateness("0 seconds")
    most = job.group_by("k").window(ts.tumbling("10 seconds")).aggregate(most=agg.max("total"))
    harness = most.harness(SCHEMA)
    assert harness.feed(arrow([(1, "a", 1), (4, "a", 2), (9, "a", -1)])).num_rows == 0
    assert harness.feed(arrow([(10, "a", 5)]))["most"].to_pylist() == [3]
    assert harness.finish()["most"].to_pylist() == [7]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda job: job.in_order(), "rolling-window"),
        (lambda job: job.trigger(early=trigger.each_element()), "rolling-window"),
        (lambda job: job.trigger(when=trigger.repeatedly(trigger.after_count(2))), "rolling-window"),
        (lambda job: job.messages("o"), "rolling-window"),
        (lambda job: job.retain_windows(windows=3), "retention"),
    ],
)
def test_what_rolling_windows_do_not_have(change: Any, code: str) -> None:
    windows = ts.stream(event_time="t", offset="o").group_by("k").window(ts.rolling("10 seconds"))
    with pytest.raises(UsageError) as refused:
        change(windows.aggregate(n=agg.count())).harness(pa.schema([*SCHEMA, ("o", pa.int64())]))
    assert refused.value.code == code


def test_input_that_retracts_is_refused() -> None:
    first = ts.stream(event_time="t").group_by("k").window(ts.tumbling("5 seconds")).aggregate(n=agg.count())
    first = first.trigger(early=trigger.each_batch()).accumulation("retracting")
    second = first.named("first").group_by("k").window(ts.rolling("10 seconds")).aggregate(total=agg.sum("n"))
    with pytest.raises(UsageError, match="cannot shrink") as refused:
        second.harness(SCHEMA)
    assert refused.value.code == "signed"


def test_a_size_must_be_above_nothing() -> None:
    with pytest.raises(UsageError) as refused:
        ts.rolling("0 seconds")
    assert refused.value.code == "window-size"


def test_a_root_is_asked_for_its_windows_and_for_the_history_of_one(tmp_path: Path) -> None:
    batches = [arrow([(3, "a", 5), (13, "a", 2)]), arrow([(14, "a", 4)]), arrow([(7, "a", 100), (20, "a", 7)])]
    Setting(10, allowed=8).job.standalone(checkpoint=tmp_path).run(batches)
    found = ts.Root(tmp_path).windows(start="1970-01-01T00:00:13", key="a").to_table()
    assert found.select(["total", "panes"]).to_pylist() == [
        {"total": 102, "panes": 2},
        {"total": 106, "panes": 1},
        {"total": 13, "panes": 0},
    ]
    history = window_history(Checkpoint.open(tmp_path), "1970-01-01T00:00:13", {"k": "a"})
    words = [event.what for event in history.events]
    assert words[-1] == "pane 1 late"
    assert "added to the slice up to 1970-01-01 00:00:07.000001" in words


def test_it_is_written_as_it_was_called_and_a_root_names_what_reads_it(tmp_path: Path) -> None:
    job = Setting(90).job
    assert '.window(rolling("1 minute 30 seconds"))' in str(job.explain())
    job.standalone(checkpoint=tmp_path).run([arrow([(1, "a", 1)])])
    assert other_needs(evidence.manifests(tmp_path)[-1]["needs"]) == ["rolling-windows/1", "wide-sums/1"]
