"""Windows that store the first and last offset of their messages, by origin, against a naive look at all of them.

Samza: "the key is the start time and the value is the start and last offset of the window".
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from itertools import cycle, product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.bundles import other_needs
from tests.helpers.process import SCRATCH, examples, few, in_turn
from tests.helpers.two_streams import STORES, TIME
from tidestate import Aggregation, agg, trigger
from tidestate.operators import Root
from tidestate.operators.bind.operator import bind_plan
from tidestate.statestore.errors import IncompatibleError, UsageError
from tidestate.statestore.spec.store import StoreConfig

SCHEMA = pa.schema([("k", "string"), ("t", TIME), ("part", "string"), ("off", "int64")])
Event = tuple[str, int, str]
Ranges = dict[str | None, tuple[int, int]]
batches_of_events = st.lists(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(-20, 60), st.sampled_from("xyz")), max_size=8),
    min_size=1,
    max_size=4,
)
WINDOWS: dict[str, Any] = {
    "tumbling": ts.tumbling("10 us"),
    "rolling": ts.rolling("9 us"),
    "sliding": ts.sliding("12 us", "4 us"),
    "sessions": ts.sessions("7 us"),
    "counted": ts.count_windows(3),
    "global": ts.global_window(),
}
CHOICES: dict[str, Any] = {
    "accumulating": lambda job: job.retain_windows("1 day"),
    "retracting": lambda job: job.accumulation("retracting").retain_windows("1 day"),
    "discarding": lambda job: job.accumulation("discarding").trigger(early=trigger.each_batch()),
    "per element": lambda job: job.accumulation("discarding").trigger(early=trigger.each_element()),
    "in order": lambda job: job.in_order(),
}


def table(events: list[Event], offsets: dict[str, int]) -> pa.Table:
    """The events with the next offsets of their origins."""
    rows = []
    for key, at, origin in events:
        offsets[origin] = offsets.get(origin, 0) + 1
        rows.append((key, at, origin, offsets[origin]))
    columns = list(zip(*rows, strict=True)) or [()] * 4
    times = pa.array(columns[1], pa.int64()).cast(TIME)
    return pa.table([pa.array(columns[0], "string"), times, *map(pa.array, columns[2:])], names=SCHEMA.names).cast(
        SCHEMA
    )


def job_of(window: Any, choice: str, origin: str | None = "part") -> Aggregation:
    stream = ts.stream(event_time="t", watermark_delay="30 us", offset="off", origin=origin)
    job = stream.group_by("k").window(window).aggregate(n=agg.count(), offs=agg.list("off"), of=agg.list("part"))
    return CHOICES[choice](job.named("job").window_offsets())


def ranges_of(rows: pa.Table) -> dict[tuple[str, Any], Ranges | None]:
    windows: dict[tuple[str, Any], Ranges | None] = {}
    for key, start, offsets in zip(
        *(rows[name].to_pylist() for name in ("k", "window_start", "offsets")), strict=True
    ):
        ranges = offsets and {one["origin"]: (one["start_offset"], one["last_offset"]) for one in offsets}
        windows[key, start] = ranges
    return windows


def naive(rows: pa.Table) -> dict[tuple[str, Any], Ranges]:
    """From the whole lists of the offsets and origins of each window."""
    windows: dict[tuple[str, Any], Ranges] = {}
    for row in rows.to_pylist():
        seen = defaultdict(list)
        for origin, offset in zip(row["of"], row["offs"], strict=True):
            seen[origin].append(offset)
        windows[row["k"], row["window_start"]] = {origin: (min(offs), max(offs)) for origin, offs in seen.items()}
    return windows


# Each kind of window in one mode in every run; the other mode stores the same ranges, and is of the long form.
EACH_WINDOW = [*product(list(WINDOWS)[:4], ["accumulating", "retracting"]), *zip(list(WINDOWS)[4:], cycle([""]))]


@pytest.mark.parametrize(("window", "choice"), few(EACH_WINDOW, 0, 3, 4, 7, 8, 9))
def test_offsets_are_those_of_the_messages_of_each_window(window: str, choice: str) -> None:
    @settings(deadline=None, max_examples=examples(30))
    @given(batches_of_events, st.integers(1, 2), st.booleans(), st.sampled_from(list(STORES.values())))
    def check(batches: list[list[Event]], partitions: int, restart: bool, store: StoreConfig) -> None:
        job = job_of(WINDOWS[window], choice) if choice else plain(WINDOWS[window])
        offsets: dict[str, int] = {}
        with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
            tested = job.harness(SCHEMA, folder=folder, partitions=partitions, store=store)
            for batch in batches:
                tested.feed(table(batch, offsets))
                if restart:
                    tested.restart()
                stored = Root(folder).windows().to_table()
                assert ranges_of(stored) == naive(stored)

    check()


def plain(window: Any) -> Aggregation:
    stream = ts.stream(event_time="t", offset="off", origin="part")
    job = stream.group_by("k").window(window).aggregate(n=agg.count(), offs=agg.list("off"), of=agg.list("part"))
    return job.window_offsets()


@pytest.mark.parametrize("choice", ["discarding", "per element", "in order"])
@settings(deadline=None, max_examples=examples(40))
@given(batches=batches_of_events)
def test_a_pane_does_not_take_them_away(choice: str, batches: list[list[Event]]) -> None:
    offsets: dict[str, int] = {}
    seen: dict[tuple[str, int], Ranges] = defaultdict(dict)
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        tested = job_of(ts.tumbling("10 us"), choice).harness(SCHEMA, folder=folder)
        newest = None
        waiting: list[tuple[str, int, str, int]] = []
        for batch in batches:
            rows = table(batch, offsets)
            tested.feed(rows)
            late = BEGINNING if newest is None else newest - 30 - 60_000_000
            taken = [(k, at, p, off) for (k, at, p), off in zip(batch, rows["off"].to_pylist(), strict=True)]
            waiting += [row for row in taken if row[1] >= late]
            newest = max([*(at for _, at, _ in batch), *([] if newest is None else [newest])], default=None)
            ready = waiting
            if choice == "in order":
                ready = [row for row in waiting if newest is not None and row[1] < newest - 30]
            waiting = [row for row in waiting if row not in ready]
            for key, at, origin, offset in ready:
                first, last = seen[key, at // 10 * 10].get(origin, (offset, offset))
                seen[key, at // 10 * 10][origin] = min(first, offset), max(last, offset)
            stored = Root(folder).windows().to_table()
            stored = stored.set_column(0, "window_start", stored["window_start"].cast(pa.int64()))
            assert ranges_of(stored) == dict(seen)


BEGINNING = -(2**60)


def test_without_an_origin_a_window_has_one_range(tmp_path: Path) -> None:
    job = job_of(ts.tumbling("10 us"), "accumulating", None)
    tested = job.harness(SCHEMA, folder=tmp_path)
    panes = tested.feed(table([("a", 1, "x"), ("a", 2, "x"), ("b", 3, "x"), ("a", 100, "x")], {}))
    assert "offsets" not in panes.column_names
    found = ranges_of(Root(tmp_path).windows().to_table())
    assert list(found.values()) == [{None: (1, 2)}, {None: (3, 3)}, {None: (4, 4)}]
    assert other_needs(evidence.manifests(tmp_path)[-1]["needs"]) == ["window-offsets/1"]
    assert ".window_offsets()" in str(job.explain())


def test_windows_of_an_older_root_have_none_and_new_ones_have_them(tmp_path: Path) -> None:
    stream = ts.stream(event_time="t", watermark_delay="100 us", offset="off", origin="part")
    before = stream.group_by("k").window(ts.tumbling("10 us")).aggregate(n=agg.count())
    first, second = {"x": 0}, [("a", 1, "x"), ("b", 2, "x")]
    tables = [table(second, first), table([("a", 3, "x"), ("a", 12, "x")], first)]
    before.standalone(checkpoint=tmp_path).run(tables[:1])
    before.window_offsets().standalone(checkpoint=tmp_path).run(tables)
    found = list(ranges_of(Root(tmp_path).windows().to_table()).values())
    assert found == [None, None, {"x": (4, 4)}]
    before.standalone(checkpoint=tmp_path).run([*tables, table([("a", 13, "x")], first)])
    assert "offsets" not in Root(tmp_path).windows().to_table().column_names


def test_held_events_have_no_offsets_to_begin_with(tmp_path: Path) -> None:
    stream = ts.stream(event_time="t", watermark_delay="100 us", offset="off")
    job = stream.group_by("k").window(ts.tumbling("10 us")).aggregate(n=agg.count()).in_order()
    tables = [table([("a", 1, "x")], {}), table([("a", 3, "x")], {"x": 1})]
    job.standalone(checkpoint=tmp_path).run(tables[:1])
    with pytest.raises(IncompatibleError, match="stored without offsets"):
        job.window_offsets().standalone(checkpoint=tmp_path).run(tables)


@pytest.mark.parametrize(("window", "edited"), in_turn(["tumbling", "sliding", "sessions", "global"], [True, False]))
def test_they_are_given_up_at_any_time_though_events_wait_for_their_order(
    tmp_path: Path, window: str, edited: bool
) -> None:
    stream = ts.stream(event_time="t", watermark_delay="20 us", offset="off", origin="part")
    job = stream.group_by("k").window(WINDOWS[window]).aggregate(n=agg.count()).allowed_lateness("1 day").in_order()
    first = table([("a", 1, "x"), ("b", 2, "y"), ("a", 50, "x"), ("b", 55, "y")], {})
    last = table([("a", 60, "x"), ("b", 3, "y")], {"x": 9, "y": 9})
    job.window_offsets().standalone(checkpoint=tmp_path / "root").run([first])
    fired = [row for row in Root(tmp_path / "root").windows().to_table().to_pylist() if window != "global"]
    if edited and fired:
        row = fired[0]
        Root(tmp_path / "root").put_window(
            row["window_start"], key=row["k"], values={"n": 1}, offsets={"x": (1, 99)}
        ).execute()
    job.standalone(checkpoint=tmp_path / "root").run([first, last])
    job.standalone(checkpoint=tmp_path / "twin").run([first, last])
    found, expected = (Root(tmp_path / name).windows().to_table() for name in ("root", "twin"))
    assert found == expected
    panes, wanted = (
        Root(tmp_path / name).panes().to_table().drop_columns("checkpoint").to_pylist() for name in ("root", "twin")
    )
    assert sorted(map(str, panes)) == sorted(map(str, wanted))


def test_what_has_no_offsets_is_refused() -> None:
    no_offset = ts.stream(event_time="t").group_by("k").window(ts.tumbling("9 us")).aggregate(n=agg.count())
    known = plain(ts.tumbling("9 us")).messages()
    left, right = (ts.stream(name, event_time="t", offset="off") for name in "ab")
    merged = ts.merge(left, right).group_by("k").window(ts.tumbling("9 us")).aggregate(n=agg.count())
    for job in (no_offset.window_offsets(), known):
        with pytest.raises(UsageError) as caught:
            bind_plan(job.graph.description, SCHEMA)
        assert caught.value.code == "window-offsets"
    with pytest.raises(UsageError) as caught:
        merged.window_offsets().harness({"a": SCHEMA, "b": SCHEMA})
    assert caught.value.code == "window-offsets"
