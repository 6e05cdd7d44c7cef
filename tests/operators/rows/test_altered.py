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

from tests.helpers import evidence
from tests.helpers.advance_time import Row
from tests.helpers.process import SCRATCH
from tests.twins.cti import CtiTwin
from tidestate.agg import count
from tidestate.agg import list as list_
from tidestate.operators import tumbling
from tidestate.operators.bind.operator import bind_plan
from tidestate.operators.describe.altered import altered
from tidestate.operators.describe.chain import chain
from tidestate.operators.describe.windowed import RETRACTING, windowed
from tidestate.operators.local.harness import Harness
from tidestate.operators.progress.cti_settings import advance_time, generation
from tidestate.operators.progress.instants import BEGINNING_US, END_US
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
    job = altered(event_time="t", shift=us(shift), end=end, duration=None if duration is None else us(duration))
    number = 0
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        tested = Harness(job, SCHEMA, folder=folder, partitions=2)
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
    settings = advance_time(policy, generation(2))
    moved = altered(event_time="t", shift=us(shift), end="until", offset="off", name="moved")
    moved = moved.advance_time(settings, shape="interval", end="until")
    counted = (
        windowed(event_time="t", key="k", name="counted").window(tumbling(us(10))).aggregate(values=list_("off"))
    )
    job = chain(moved, counted.late("0 seconds"))
    twin, number, found = CtiTwin(settings), 0, Counter[tuple[int, int]]()
    kept: list[tuple[int, int]] = []
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        tested = Harness(job, SCHEMA, folder=folder, partitions=2)
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
    first = windowed(event_time="t", key="k", name="first").window(tumbling(us(10))).aggregate(n=count())
    moved = altered(event_time="pane_time", shift=us(100), name="moved")
    last = windowed(event_time="pane_time", key="k", name="last").window(tumbling(us(10))).aggregate(n=count())
    job = chain(first.late(us(50)).accumulation(RETRACTING), moved, last.late(us(50)).accumulation(RETRACTING))
    tested = Harness(job, SCHEMA, folder=tmp_path / "root", partitions=1)
    panes = [tested.feed(batch([(0, (5, None)), (1, (15, None))])), tested.feed(batch([(2, (6, None))]))]
    panes.append(tested.finish())
    net: Counter[tuple[int, int]] = Counter()
    for row in pa.concat_tables(panes).to_pylist():
        start = int(row["window_start"].timestamp() * 1e6 + 0.5)
        net[(start, row["n"])] += -1 if row["kind"] == "retract" else 1
    assert {one: many for one, many in net.items() if many} == {(100, 1): 1, (110, 1): 1}


def test_the_output_watermark_is_shifted() -> None:
    plan = bind_plan(altered(event_time="t", shift="-1 second"), SCHEMA)
    assert plan.output_watermark(5_000_000, "t") == 4_000_000
    assert [plan.output_watermark(end, "t") for end in (BEGINNING_US, END_US)] == [BEGINNING_US, END_US]
    with pytest.raises(UsageError) as caught:
        plan.output_watermark(5, "until")
    assert caught.value.code == "chain-time"


def test_rows_without_a_time_are_in_the_ledger(tmp_path: Path) -> None:
    tested = Harness(altered(event_time="t", shift="1 hour"), SCHEMA, folder=tmp_path / "root", partitions=1)
    rows = [*batch([(0, (1, None))]).to_pylist(), {"k": "a", "t": None, "until": None, "off": 1}]
    assert tested.feed(pa.Table.from_pylist(rows, SCHEMA)).num_rows == 1
    assert tested.ledger()["reason"].to_pylist() == ["null_event_time"]
    assert evidence.work(tmp_path / "root")


def test_what_makes_no_sense_is_refused() -> None:
    for code, wrong in (
        ("altered", lambda: altered(event_time="t")),
        ("altered", lambda: altered(event_time="t", end="t", shift="1 hour")),
        ("altered", lambda: altered(event_time="t", duration="1 hour")),
        ("altered", lambda: altered(event_time="t", end="until", duration="0 seconds")),
        ("watermark-delay", lambda: altered(event_time="t", shift="1 hour", watermark_delay="-1 seconds")),
        ("offset", lambda: altered(event_time="t", shift="1 hour", origin="k")),
        ("offset", lambda: bind_plan(altered(event_time="t", shift="1 hour", offset="k"), SCHEMA)),
        (
            "advance-time",
            lambda: altered(event_time="t", shift="1 hour").advance_time(advance_time("drop", generation(1))),
        ),
        ("column-missing", lambda: bind_plan(altered(event_time="t", end="gone", shift="1 hour"), SCHEMA)),
        ("event-time-type", lambda: bind_plan(altered(event_time="t", end="off", shift="1 hour"), SCHEMA)),
    ):
        with pytest.raises(UsageError) as caught:
            wrong()
        assert caught.value.code == code
