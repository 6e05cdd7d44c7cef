"""Shifted and altered lifetimes: each row with its new times, and the watermark with them."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.advance_time import Row
from tests.helpers.process import SCRATCH
from tests.twins.cti import CtiTwin
from tidestate import agg
from tidestate.operators.bind.operator import bind_plan
from tidestate.operators.progress.instants import BEGINNING_US, END_US
from tidestate.operators.streams.watermarks import stored_settings
from tidestate.statestore.errors import UsageError

TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("k", "string"), ("t", TIME), ("until", TIME), ("off", "int64")])
Event = tuple[int, int | None]


def us(many: int) -> str:
    return f"{many} microseconds"


def batch(events: list[tuple[int, Event]]) -> pa.Table:
    times = [[start for _, (start, _) in events], [end for _, (_, end) in events]]
    columns = [pa.array(["a"] * len(events)), *(pa.array(one, pa.int64()).cast(TIME) for one in times)]
    return pa.table([*columns, pa.array([number for number, _ in events], pa.int64())], schema=SCHEMA)


events = st.lists(st.lists(st.tuples(st.integers(-40, 40), st.none() | st.integers(-40, 80)), max_size=6), max_size=4)


@given(events, st.integers(-30, 30), st.none() | st.integers(1, 20), st.booleans())
def test_every_row_passes_at_once_with_its_new_times(
    given_: list[list[Event]], shift: int, duration: int | None, new: bool
) -> None:
    if not shift and duration is None:
        return
    end = "ends" if new and duration is not None else "until"
    job = ts.stream(event_time="t").shift_time(
        us(shift), duration=None if duration is None else us(duration), end=end
    )
    number = 0
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        tested = job.harness(SCHEMA, folder=folder, partitions=2)
        for part in given_:
            numbered = list(enumerate(part, number))
            number += len(part)
            panes = tested.feed(batch(numbered))
            names = ["off", "t", *dict.fromkeys(["until", end])]
            columns = [panes[name].cast(pa.int64()).to_pylist() for name in names]
            expected = []
            for offset, (start, until) in numbered:
                altered_ = (
                    start + shift + duration if duration is not None else None if until is None else until + shift
                )
                expected.append((offset, start + shift, *([until, altered_] if end == "ends" else [altered_])))
            assert Counter(zip(*columns, strict=True)) == Counter(expected)
        assert tested.finish().num_rows == 0


@given(events, st.integers(-20, 20).filter(bool), st.sampled_from(["drop", "adjust"]))
def test_windows_behind_it_follow_the_shifted_ctis(given_: list[list[Event]], shift: int, policy: Any) -> None:
    settings = ts.watermark.cti_settings(policy, generate=ts.watermark.generate_ctis(2))
    lasting = ts.stream(event_time="t", offset="off", lifetime=ts.lifetime("until"))
    moved = lasting.watermark(ts.watermark.ctis(settings)).shift_time(us(shift), name="moved")
    counted = moved.group_by("k").window(ts.tumbling(us(10))).aggregate(values=agg.list("off")).named("counted")
    job = counted.allowed_lateness("0 seconds")
    twin, number, found = CtiTwin(stored_settings(settings)), 0, Counter[tuple[int, int]]()
    kept: list[tuple[int, int]] = []
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        tested = job.harness(SCHEMA, folder=folder, partitions=2)
        for part in given_:
            numbered = list(enumerate(part, number))
            number += len(part)
            for offset, (start, until) in numbered:
                taken = twin.take(offset, Row("interval", start, until))
                if taken and taken[0]:
                    kept.append((offset, (taken[1] + shift) // 10 * 10))
            found += in_windows(tested.feed(batch(numbered)))
            watermark = twin.cti + shift if twin.cti != BEGINNING_US else BEGINNING_US
            assert found == Counter((offset, first) for offset, first in kept if first + 10 <= watermark)
        found += in_windows(tested.finish())
        assert tested.ledger("counted").num_rows == 0
    assert found == Counter(kept)


def in_windows(panes: pa.Table) -> Counter[tuple[int, int]]:
    starts = panes["window_start"].cast(pa.int64()).to_pylist()
    return Counter(
        (value, first) for first, own in zip(starts, panes["values"].to_pylist(), strict=True) for value in own
    )


def test_panes_that_retract_are_shifted_with_what_they_retract(tmp_path: Path) -> None:
    first = (
        ts.stream(event_time="t").group_by("k").window(ts.tumbling(us(10))).aggregate(n=agg.count()).named("first")
    )
    moved = (
        first.allowed_lateness(us(50))
        .accumulation("retracting")
        .timed_by("pane_time")
        .shift_time(us(100), name="moved")
    )
    last = moved.group_by("k").window(ts.tumbling(us(10))).aggregate(n=agg.count()).named("last")
    job = last.allowed_lateness(us(50)).accumulation("retracting")
    tested = job.harness(SCHEMA, folder=tmp_path / "root", partitions=1)
    panes = [tested.feed(batch([(0, (5, None)), (1, (15, None))])), tested.feed(batch([(2, (6, None))]))]
    panes.append(tested.finish())
    net: Counter[tuple[int, int]] = Counter()
    for row in pa.concat_tables(panes).to_pylist():
        start = int(row["window_start"].timestamp() * 1e6 + 0.5)
        net[(start, row["n"])] += -1 if row["kind"] == "retract" else 1
    assert {one: many for one, many in net.items() if many} == {(100, 1): 1, (110, 1): 1}


def test_the_output_watermark_is_shifted() -> None:
    plan = bind_plan(ts.stream(event_time="t").shift_time("-1 second").graph.description, SCHEMA)
    assert plan.output_watermark(5_000_000, "t") == 4_000_000
    assert [plan.output_watermark(end, "t") for end in (BEGINNING_US, END_US)] == [BEGINNING_US, END_US]
    with pytest.raises(UsageError) as caught:
        plan.output_watermark(5, "until")
    assert caught.value.code == "chain-time"


def test_rows_without_a_time_are_in_the_ledger(tmp_path: Path) -> None:
    tested = ts.stream(event_time="t").shift_time("1 hour").harness(SCHEMA, folder=tmp_path / "root", partitions=1)
    rows = [*batch([(0, (1, None))]).to_pylist(), {"k": "a", "t": None, "until": None, "off": 1}]
    assert tested.feed(pa.Table.from_pylist(rows, SCHEMA)).num_rows == 1
    assert tested.ledger()["reason"].to_pylist() == ["null_event_time"]
    assert evidence.work(tmp_path / "root")


def test_what_makes_no_sense_is_refused() -> None:
    for code, wrong in (
        ("altered", lambda: ts.stream(event_time="t").shift_time()),
        ("altered", lambda: ts.stream(event_time="t").shift_time("1 hour", end="t")),
        ("altered", lambda: ts.stream(event_time="t").shift_time(duration="1 hour")),
        ("altered", lambda: ts.stream(event_time="t").shift_time(duration="0 seconds", end="until")),
        ("watermark-delay", lambda: ts.stream(event_time="t", watermark_delay="-1 seconds").shift_time("1 hour")),
        ("offset", lambda: ts.stream(event_time="t", origin="k").shift_time("1 hour")),
        (
            "offset",
            lambda: bind_plan(ts.stream(event_time="t", offset="k").shift_time("1 hour").graph.description, SCHEMA),
        ),
        (
            "advance-time",
            lambda: (
                ts.stream(event_time="t")
                .watermark(
                    ts.watermark.ctis(ts.watermark.cti_settings("drop", generate=ts.watermark.generate_ctis(1)))
                )
                .shift_time("1 hour")
            ),
        ),
        (
            "column-missing",
            lambda: bind_plan(ts.stream(event_time="t").shift_time("1 hour", end="gone").graph.description, SCHEMA),
        ),
        (
            "event-time-type",
            lambda: bind_plan(ts.stream(event_time="t").shift_time("1 hour", end="off").graph.description, SCHEMA),
        ),
    ):
        with pytest.raises(UsageError) as caught:
            wrong()
        assert caught.value.code == code
