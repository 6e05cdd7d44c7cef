"""Shifted and altered lifetimes: each row with its new times, and the watermark with them."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.advance_time import Row
from tests.helpers.bundles import other_needs
from tests.helpers.process import SCRATCH, examples
from tests.twins.cti import CtiTwin
from tidestate import agg
from tidestate.operators.bind.operator import bind_plan
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
from tidestate.operators.streams.watermarks import stored_settings
from tidestate.statestore.errors import IncompatibleError, UsageError

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


OWN = pa.schema([*SCHEMA, ("by", pa.duration("ms")), ("lasts", pa.int32())])
OwnSpans = tuple[int, int | None, int | None, int | None]


@settings(max_examples=examples(200))
@given(
    st.lists(
        st.lists(
            st.tuples(
                st.integers(-40_000, 40_000),
                st.none() | st.integers(-40_000, 80_000),
                st.none() | st.integers(-20, 30),
                st.none() | st.integers(-3, 9),
            ),
            max_size=6,
        ),
        max_size=4,
    ),
    st.integers(-9, 9),
    st.booleans(),
    st.booleans(),
)
def test_each_row_may_say_how_far_it_moves_and_how_long_it_lasts(
    batches: list[list[OwnSpans]], least: int, lasting: bool, computed: bool
) -> None:
    """StreamInsight: "AlterEventLifeTime() methods both change the start time of events, and the same transformation
    will be applied to CTIs": by the least that any row is moved.
    """
    stream = ts.stream(event_time="t", watermark_delay="0 seconds")
    shift: Any = ts.col("by") + ts.col("t") - ts.col("t") if computed else "by"
    duration: Any = ts.expr("lasts * 2 - lasts") if computed else "lasts"
    job = stream.shift_time(
        shift, at_least=f"{least} milliseconds", duration=duration if lasting else None, end="until", name="job"
    )
    number = 0
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        tested = job.harness(OWN, folder=folder, partitions=2)
        failures = 0
        for part in batches:
            places = list(enumerate(part, number))
            number += len(part)
            rows = batch([(place, (start, until)) for place, (start, until, _, _) in places])
            rows = rows.append_column("by", pa.array([by for _, (_, _, by, _) in places], pa.duration("ms")))
            rows = rows.append_column("lasts", pa.array([span for *_, (_, _, _, span) in places], pa.int32()))
            panes = tested.feed(rows)
            wanted_rows = Counter[tuple[int, int, int | None]]()
            for place, (start, until, by, span) in places:
                if by is None or by < least or (lasting and (span is None or span <= 0)):
                    failures += 1
                    continue
                first = start + 1000 * by
                end = None if until is None else until + 1000 * by
                wanted_rows[place, first, first + (span or 0) if lasting else end] += 1
            columns = [panes[name].cast(pa.int64()).to_pylist() for name in ("off", "t", "until")]
            assert Counter(zip(*columns, strict=True)) == wanted_rows
        tested.finish()
        assert tested.ledger()["reason"].to_pylist() == ["bad_window"] * failures


def test_the_watermark_moves_by_the_least_that_a_row_may() -> None:
    job = ts.stream(event_time="t").shift_time("by", at_least="-2 seconds")
    assert bind_plan(job.graph.description, OWN).output_watermark(5_000_000, "t") == 3_000_000
    assert bind_plan(ts.stream(event_time="t").shift_time("by").graph.description, OWN).output_watermark(5, "t") == 5


def test_windows_take_every_row_whose_shift_keeps_to_the_bound(tmp_path: Path) -> None:
    job = ts.stream(event_time="t", watermark_delay="0 seconds").shift_time("by", name="job")
    counted = job.group_by("k").window(ts.tumbling("10 milliseconds")).aggregate(values=agg.list("off"))
    job = counted.allowed_lateness("0 seconds").named("counted")
    tested = job.harness(OWN, folder=tmp_path / "root", partitions=2)

    def fed(*rows: tuple[int, int, int]) -> Counter[tuple[int, int]]:
        table = batch([(number, (1000 * start, None)) for number, start, _ in rows])
        table = table.append_column("by", pa.array([by for *_, by in rows], pa.duration("ms")))
        table = table.append_column("lasts", pa.nulls(len(rows), pa.int32()))
        return in_windows(tested.feed(table))

    assert fed((0, 1, 0), (1, 2, 20), (2, 12, 0)) == Counter({(0, 0): 1})
    assert fed((3, 13, 0), (4, 30, 0)) == Counter({(2, 10_000): 1, (3, 10_000): 1, (1, 20_000): 1})
    assert in_windows(tested.finish()) == Counter({(4, 30_000): 1})
    assert tested.ledger("counted").num_rows == tested.ledger("job").num_rows == 0


def test_a_root_with_own_spans_says_so(tmp_path: Path) -> None:
    job = ts.stream(event_time="t").shift_time("by", duration="lasts", end="until")
    rows = batch([(0, (1, None))]).append_column("by", pa.array([1], pa.duration("ms")))
    job.standalone(checkpoint=tmp_path).run([rows.append_column("lasts", pa.array([1], pa.int32()))])
    assert other_needs(evidence.manifests(tmp_path)[-1]["needs"]) == ["altered-by-columns/1"]
    assert job.explain().splitlines()[-1] == 'altered = input.shift_time("by", duration="lasts", end="until")'


def test_a_root_with_computed_spans_says_so_and_keeps_them(tmp_path: Path) -> None:
    stream, end = ts.stream(event_time="t"), ts.col("until") - ts.col("t")
    rows = batch([(0, (1, 5)), (1, (3, 2)), (2, (4, None))])
    job = stream.shift_time(end, duration=ts.expr("off * 10 + 1"), end="until")
    panes = job.standalone(checkpoint=tmp_path).run([rows])
    columns = [panes[name].cast(pa.int64()).to_pylist() for name in ("off", "t", "until")]
    assert [*zip(*columns, strict=True)] == [(0, 5, 6)], "the others have no span of 0 or more"
    needs = evidence.manifests(tmp_path)[-1]["needs"]
    assert other_needs(needs) == ["altered-by-expressions/1"]
    last_line = job.explain().splitlines()[-1]
    assert last_line == ('altered = input.shift_time(expr("until - t"), duration=expr("off * 10 + 1"), end="until")')
    printed = stream.shift_time(ts.expr("until - t"), duration=ts.expr("off * 10 + 1"), end="until").graph.description
    assert printed == job.graph.description
    other = stream.shift_time(end + ts.expr("interval 1 second"), duration=ts.expr("off * 10 + 1"), end="until")
    with pytest.raises(IncompatibleError, match=r"shift_time\(by=\).*interval 1 second"):
        other.standalone(checkpoint=tmp_path).run([rows, rows])
    renamed = stream.shift_time(end, duration=ts.expr("place * 10 + 1"), end="until").renamed(
        columns={"off": "place"}
    )
    new_rows = rows.rename_columns(["k", "t", "until", "place"])
    panes = renamed.standalone(checkpoint=tmp_path).run([new_rows, new_rows])
    assert panes["t"].cast(pa.int64()).to_pylist() == [5]


def test_an_expression_that_is_a_column_alone_is_that_column() -> None:
    stream = ts.stream(event_time="t")
    assert stream.shift_time(ts.col("by")).graph.description == stream.shift_time("by").graph.description


def test_a_column_of_shifts_may_be_renamed(tmp_path: Path) -> None:
    stream = ts.stream(event_time="t")
    rows = batch([(0, (1, None))]).append_column("by", pa.array([1], pa.duration("ms")))
    rows = rows.append_column("lasts", pa.array([1], pa.int32()))
    stream.shift_time("by", duration="lasts", end="until").standalone(checkpoint=tmp_path).run([rows])
    second_job = stream.shift_time("delay", duration="span", end="until").renamed(
        columns={"by": "delay", "lasts": "span"}
    )
    new_rows = rows.rename_columns(["k", "t", "until", "off", "delay", "span"])
    panes = second_job.standalone(checkpoint=tmp_path).run([new_rows, new_rows])
    assert panes["t"].cast(pa.int64()).to_pylist() == [1001]
    other = stream.shift_time("off", duration="span", end="until")
    with pytest.raises(IncompatibleError) as caught:
        other.standalone(checkpoint=tmp_path).run([new_rows, new_rows, new_rows])
    assert "shift_time(by=)" in str(caught.value)


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


def shifted(*by: Any, **settings: Any) -> Any:
    return ts.stream(event_time="t").shift_time(*by, **settings)


def bound(*by: Any, **settings: Any) -> Any:
    return bind_plan(shifted(*by, **settings).graph.description, SCHEMA)


def generating() -> Any:
    ctis = ts.watermark.cti_settings("drop", generate=ts.watermark.generate_ctis(1))
    return ts.stream(event_time="t").watermark(ts.watermark.ctis(ctis)).shift_time("1 hour")


REFUSED: list[tuple[str, Callable[[], Any]]] = [
    ("altered", lambda: shifted()),
    ("altered", lambda: shifted("1 hour", end="t")),
    ("altered", lambda: shifted(duration="1 hour")),
    ("altered", lambda: shifted(duration="0 seconds", end="until")),
    ("watermark-delay", lambda: ts.stream(event_time="t", watermark_delay="-1 seconds").shift_time("1 hour")),
    ("offset", lambda: ts.stream(event_time="t", origin="k").shift_time("1 hour")),
    (
        "offset",
        lambda: bind_plan(ts.stream(event_time="t", offset="k").shift_time("1 hour").graph.description, SCHEMA),
    ),
    ("advance-time", generating),
    ("altered", lambda: shifted("1 hour", at_least="1 hour")),
    ("altered", lambda: shifted("t")),
    ("altered", lambda: shifted(duration="lasts")),
    ("span", lambda: shifted("by", at_least="much")),
    ("column-missing", lambda: bound("1 huor")),
    ("altered", lambda: bound("k")),
    ("altered", lambda: shifted(duration=ts.expr("off * 2"))),
    ("altered", lambda: bound(ts.expr("concat(k, 'x')"))),
    ("altered", lambda: bound(ts.expr("off / 2"))),
    ("column-missing", lambda: bound(ts.expr("gone * 2"))),
    ("expression-type", lambda: bound(ts.expr("k * 2"))),
    ("span", lambda: shifted(5)),
    ("column-missing", lambda: bound("1 hour", end="gone")),
    ("event-time-type", lambda: bound("1 hour", end="off")),
]


@pytest.mark.parametrize(("code", "wrong"), REFUSED)
def test_what_makes_no_sense_is_refused(code: str, wrong: Callable[[], Any]) -> None:
    with pytest.raises(UsageError) as caught:
        wrong()
    assert caught.value.code == code
