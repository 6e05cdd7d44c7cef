"""A generator of watermarks for each side, against a twin that takes one row after the other."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.bundles import other_needs
from tests.helpers.internals import job_of
from tests.helpers.process import LONG, SCRATCH
from tidestate import Aggregation, IncompatibleError, OperatorStream, Stream, UsageError, agg, watermark
from tidestate.operators.local.harness import Harness
from tidestate.operators.progress.watermarks import BEGINNING_US
from tidestate.watermark import SourceReading, SourceReport, cti_settings, generate_ctis

SECOND = 1_000_000
SCHEMA = pa.schema([("k", "string"), ("t", pa.timestamp("us", "UTC")), ("part", "int64"), ("mark", "bool")])
SCHEMAS = dict.fromkeys(("left", "right"), SCHEMA)
NONE = float("-inf")


class Behind:
    """The largest event time less three seconds, as somebody may write it."""

    column, delay_us = "t", 3 * SECOND

    def read(self, events: pa.Table, now_us: int, *, source: str, by: str | None = None) -> SourceReading:
        assert "t" in events.column_names, "by the name that it has in the stream"
        times = [time for time in events["t"].cast(pa.int64()).to_pylist() if time is not None]
        if not times:
            return SourceReading(events, {})
        return SourceReading(events, {source: SourceReport(max(times) - self.delay_us, rows=len(times))})


class Unmarked:
    """Marked rows are no events, and every other row is a watermark."""

    column, flag, filters_rows = "t", "mark", True

    def read(self, events: pa.Table, now_us: int, *, source: str, by: str | None = None) -> SourceReading:
        data = events.filter(pa.array([not mark for mark in events["mark"].to_pylist()], pa.bool_()))
        times = [time for time in data["t"].cast(pa.int64()).to_pylist() if time is not None]
        reports = {source: SourceReport(max(times), rows=events.num_rows)} if times else {}
        return SourceReading(data, reports)


@dataclass
class Side:
    """A side of the twin: its sources with their watermarks, in seconds."""

    kind: str
    delay: int = 0
    sources: dict[str, float] = field(default_factory=dict)

    def read(self, rows: list[tuple[int, int, bool]], reached: float, now: int) -> None:
        """Rows of (time, part, mark), read at ``reached``, the watermark of all sides before the batch."""
        for time, part, mark in rows:
            late = time < reached
            if self.kind == "fixed" or (self.kind in ("bounded", "own", "parts", "declared") and late):
                continue
            if (self.kind == "marks" and not mark) or (self.kind == "unmarked" and mark):
                continue
            source = str(part) if self.kind in ("parts", "declared") else ""
            if self.kind == "parts":
                self.sources.pop("", None)
            before = self.sources.get(source, reached)
            self.sources[source] = max(before, time - self.delay)
        if self.kind == "fixed":
            self.sources[""] = max(self.sources[""], now - self.delay)


KINDS: dict[str, tuple[Side, Any]] = {
    "bounded": (Side("bounded", 2), lambda events: events.watermark(watermark.bounded("2 seconds"))),
    "delay": (Side("bounded", 4), lambda events: events),
    "fixed": (Side("fixed", 5), lambda events: events.watermark(watermark.fixed("5 seconds"))),
    "marks": (Side("marks"), lambda events: events.watermark(watermark.punctuated("t", flag="mark"))),
    "parts": (Side("parts", 4), lambda events: events.watermark(by="part")),
    "declared": (
        Side("declared", 1),
        lambda events: events.watermark(watermark.bounded("1 s"), by="part", sources=["1", "2"]),
    ),
    "own": (Side("own", 3), lambda events: events.watermark(Behind())),
    "unmarked": (Side("unmarked"), lambda events: events.watermark(Unmarked())),
}
FIRST = {"declared": {"1": NONE, "2": NONE}}


def merged(kinds: tuple[str, str]) -> OperatorStream:
    left, right = (KINDS[kind][1](ts.stream(event_time="t", watermark_delay="4 seconds")) for kind in kinds)
    counted = ts.merge(left=left, right=right).group_by("k").window(ts.tumbling("5 s")).aggregate(n=agg.count())
    return counted.allowed_lateness("0 seconds")


def table(rows: list[tuple[int, int, bool]]) -> list[dict[str, Any]]:
    return [{"k": "a", "t": time * SECOND, "part": part, "mark": mark} for time, part, mark in rows]


def watermark_of(tested: Harness) -> float:
    (progress,) = job_of(tested).progress.values()
    return NONE if progress.watermark_us == BEGINNING_US else progress.watermark_us / SECOND


ROW = st.tuples(st.integers(0, 60), st.integers(1, 3), st.booleans())
BATCH = st.tuples(st.lists(ROW, max_size=4), st.lists(ROW, max_size=4), st.booleans())


@settings(max_examples=settings.default.max_examples if LONG else 4)
@given(st.tuples(st.sampled_from([*KINDS]), st.sampled_from([*KINDS])), st.lists(BATCH, min_size=1, max_size=6))
def test_a_twin_takes_the_smallest_of_the_sides(kinds: tuple[str, str], batches: list[Any]) -> None:
    described, reached, now = merged(kinds), NONE, 0
    sides = [Side(KINDS[kind][0].kind, KINDS[kind][0].delay, dict(FIRST.get(kind, {"": NONE}))) for kind in kinds]
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        tested = described.harness(SCHEMAS, folder=folder)
        for *of_sides, restart in batches:
            if restart:
                tested = described.harness(SCHEMAS, folder=folder)
            now += 7
            tested.advance_processing_time(now * SECOND)
            before = reached
            for side in sides:
                side.read([], before, now)
            reached = max(before, min(mark for side in sides for mark in side.sources.values()))
            before = reached
            tested.feed({"left": table(of_sides[0]), "right": table(of_sides[1])})
            for side, rows in zip(sides, of_sides, strict=True):
                side.read(rows, before, now)
            reached = max(before, min(mark for side in sides for mark in side.sources.values()))
            assert watermark_of(tested) == reached, (kinds, sides)


def near(left: Stream, right: Stream) -> OperatorStream:
    return left.join(right, on="k", within=("0 seconds", "5 seconds"), name="near")


def rows(*times: int) -> list[dict[str, Any]]:
    return table([(time, 1, False) for time in times])


def test_sides_have_timeouts_and_delays_of_their_own() -> None:
    left = ts.stream(event_time="t", watermark_delay="1 second").watermark(idle_timeout="10 seconds")
    tested = near(left, ts.stream(event_time="t", watermark_delay="5 seconds")).harness(SCHEMAS)
    tested.feed({"left": rows(20), "right": rows(20)})
    assert watermark_of(tested) == 15
    tested.feed({"right": rows(40)})
    assert watermark_of(tested) == 19
    tested.advance_processing_time(11 * SECOND)
    tested.feed({"right": rows(41)})
    assert watermark_of(tested) == 36, "the left side is idle"


def test_a_quiet_side_goes_on_with_the_clock() -> None:
    left = ts.stream(event_time="t").watermark(watermark.bounded(quiet="10 seconds"))
    tested = near(left, ts.stream(event_time="t")).harness(SCHEMAS)
    tested.feed({"left": rows(20), "right": rows(90)})
    tested.advance_processing_time(30 * SECOND)
    assert watermark_of(tested) == 40


@pytest.mark.parametrize("generator", [watermark.fixed("5 seconds"), watermark.bounded("3 seconds"), None])
def test_a_side_that_reads_an_operator_follows_it_whatever_the_other_has(generator: Any) -> None:
    clicks = ts.stream("clicks", event_time="t")
    counted = clicks.group_by("k").window(ts.tumbling("10 s")).aggregate(n=agg.count()).named("counted")
    counted = counted.allowed_lateness("0 seconds")
    other = ts.stream("other", event_time="t")
    timed = other.watermark(idle_timeout="1 minute") if generator is None else other.watermark(generator)
    tested = counted.join(timed, on="k", within=("0 s", "60 s"), name="met").harness(
        {"clicks": SCHEMA, "other": SCHEMA}
    )
    tested.advance_processing_time(100 * SECOND)
    panes = tested.feed({"clicks": rows(1, 30), "other": rows(31)})
    assert panes["left_n"].to_pylist() == [1]
    assert job_of(tested).progress["met"].sources.keys() == {"left", "right"}
    tested.finish()


def test_one_generator_over_the_streams_that_are_joined_with_an_operator() -> None:
    clicks = ts.stream("clicks", event_time="t")
    counted = clicks.group_by("k").window(ts.tumbling("10 s")).aggregate(n=agg.count()).named("counted")
    counted = counted.allowed_lateness("0 seconds")
    met = counted.join(
        ts.stream("other", event_time="t"),
        on="k",
        within=("0 s", "60 s"),
        name="met",
        watermark=watermark.fixed("1 s"),
    )
    tested = met.harness({"clicks": SCHEMA, "other": SCHEMA})
    tested.advance_processing_time(20 * SECOND)
    tested.feed({"clicks": rows(1, 90)})
    assert job_of(tested).progress["met"].watermark_us == 19 * SECOND


def test_ctis_of_one_side_next_to_a_delay(tmp_path: Path) -> None:
    settings = cti_settings("drop", generate=generate_ctis(1, delay="2 seconds"))
    left = ts.stream(event_time="t", offset="part").watermark(watermark.ctis(settings))
    tested = near(left, ts.stream(event_time="t", watermark_delay="1 second")).harness(SCHEMAS, folder=tmp_path)
    tested.feed({"left": table([(10, 1, False), (3, 2, False)]), "right": rows(10)})
    assert watermark_of(tested) == 8
    operator = evidence.operator(evidence.manifests(tmp_path)[-1])
    assert operator["advances"]["left"]["dropped"] == 1
    assert other_needs(evidence.manifests(tmp_path)[-1]["needs"]) == ["generator-by-side/1"]


def test_ctis_are_imported_from_another_side_next_to_a_delay() -> None:
    generated = cti_settings("adjust", generate=generate_ctis(1))
    first, second, third = (ts.stream(name, event_time="t", offset="part") for name in ("first", "second", "third"))
    first = first.watermark(watermark.ctis(generated))
    second = second.watermark(watermark.ctis(cti_settings("adjust", import_from=first)))
    merged_ = ts.merge(second=second, first=first, third=third).group_by("k").window(ts.tumbling("5 s"))
    tested = merged_.aggregate(n=agg.count()).harness(dict.fromkeys(("first", "second", "third"), SCHEMA))
    tested.feed({"first": rows(30), "second": rows(2), "third": rows(100)})
    assert watermark_of(tested) == 30
    plain = ts.stream("plain", event_time="t", offset="part")
    of_plain = second.watermark(watermark.ctis(cti_settings("adjust", import_from=plain)))
    with pytest.raises(UsageError, match="advance-time"):
        ts.merge(second=of_plain, plain=plain).group_by("k").aggregate(n=agg.count())


def test_settings_of_sides_are_stored_and_their_changes_are_reported(tmp_path: Path) -> None:
    merged(("fixed", "parts")).harness(SCHEMAS, folder=tmp_path).feed({"left": rows(1)})
    merged(("fixed", "parts")).harness(SCHEMAS, folder=tmp_path).feed({"left": rows(2)})
    merged(("delay", "parts")).harness(SCHEMAS, folder=tmp_path).feed({"left": rows(3)})
    with pytest.raises(IncompatibleError) as refused:
        merged(("own", "parts")).harness(SCHEMAS, folder=tmp_path)
    assert "left=Behind(), right=watermark.over(watermark.bounded" in str(refused.value)
    with pytest.raises(IncompatibleError, match="another column"):
        merged(("delay", "delay")).harness(SCHEMAS, folder=tmp_path)


def test_a_column_that_a_stream_lacks_is_named_as_there() -> None:
    left, right = ts.stream(event_time="t"), ts.stream(event_time="t").watermark(by="topic")
    with pytest.raises(UsageError, match=r"a side lacks columns.*side=right.*missing=\['topic'\]") as refused:
        near(left, right).harness(SCHEMAS)
    assert refused.value.code == "column-missing"
    with pytest.raises(UsageError, match="a side lacks columns"):
        ts.merge(left=left, right=right).group_by("k").aggregate(n=agg.count()).harness(SCHEMAS)


class Numbered(Unmarked):
    """It reads a column that is called as the number of a row may be."""

    columns = ("t", "mark", "__row")

    def read(self, events: pa.Table, now_us: int, *, source: str, by: str | None = None) -> SourceReading:
        assert events["__row"].to_pylist() == [7] * events.num_rows
        return super().read(events, now_us, source=source, by=by)


class Elsewhere(Behind):
    """It reports a source that is another side."""

    def read(self, events: pa.Table, now_us: int, *, source: str, by: str | None = None) -> SourceReading:
        return SourceReading(events, {"right": SourceReport(9)})


def test_a_generator_of_one_s_own_may_read_any_column_and_reports_its_side_alone() -> None:
    numbered = SCHEMA.append(pa.field("__row", "int64"))
    tested = near(ts.stream(event_time="t").watermark(Numbered()), ts.stream(event_time="t")).harness(
        {"left": numbered, "right": SCHEMA}
    )
    tested.feed({"left": [row | {"__row": 7} for row in rows(5)], "right": rows(9)})
    assert watermark_of(tested) == 5
    strange = near(ts.stream(event_time="t").watermark(Elsewhere()), ts.stream(event_time="t")).harness(SCHEMAS)
    with pytest.raises(UsageError, match="Elsewhere"):
        strange.feed({"left": rows(5)})


class Broken(Behind):
    """It fails at the first row."""

    column = ""

    def read(self, events: pa.Table, now_us: int, *, source: str, by: str | None = None) -> SourceReading:
        raise KeyError("offset")


def counted(events: Stream) -> Aggregation:
    return events.group_by("k").window(ts.tumbling("5 s")).aggregate(n=agg.count()).named("counted")


BROKEN: dict[str, tuple[OperatorStream, dict[str, str]]] = {
    "of a stream": (counted(ts.stream(event_time="t").watermark(Broken())), {"operator": "counted"}),
    "of a side": (
        near(ts.stream(event_time="t").watermark(Broken()), ts.stream(event_time="t")),
        {"operator": "near", "side": "left"},
    ),
    "over all sides": (
        ts.union(left=ts.stream(event_time="t"), right=ts.stream(event_time="t"), watermark=Broken()),
        {"operator": "union"},
    ),
    "over the streams next to an operator": (
        ts.stream("other", event_time="t").join(
            counted(ts.stream("clicks", event_time="t")).allowed_lateness("0 seconds"),
            on="k",
            within=("0 s", "60 s"),
            name="met",
            watermark=Broken(),
        ),
        {"operator": "met", "side": "left"},
    ),
}


@pytest.mark.parametrize("case", [*BROKEN])
def test_an_error_of_a_generator_of_one_s_own_names_where_it_is(case: str) -> None:
    job, facts = BROKEN[case]
    streams = job.graph.streams
    harness = job.harness(SCHEMA if len(streams) == 1 else dict.fromkeys(streams, SCHEMA))
    with pytest.raises(UsageError, match="the watermark generator Broken raised KeyError: 'offset'") as ending:
        harness.feed(rows(5) if len(streams) == 1 else {min({"left", "other"}.intersection(streams)): rows(5)})
    assert ending.value.code == "own-function"
    assert ending.value.context == {"generator": "Broken", **facts}
    assert isinstance(ending.value.__cause__, KeyError)


class Silent(Broken):
    """Its function has no return, as one forgets it."""

    def read(self, events: pa.Table, now_us: int, *, source: str, by: str | None = None) -> Any:
        """As a function without a return."""


def test_a_generator_of_one_s_own_that_returns_no_reading_is_named() -> None:
    harness = counted(ts.stream(event_time="t").watermark(Silent())).harness(SCHEMA)
    with pytest.raises(UsageError, match="the watermark generator Silent returned no SourceReading") as ending:
        harness.feed(rows(5))
    assert (ending.value.code, ending.value.context["found"]) == ("own-function", "NoneType")


def test_timeouts_of_sources_need_their_column() -> None:
    prices = ts.stream(event_time="t").watermark(own_timeouts={"prices": "5 minutes"})
    for job in (lambda: counted(prices), lambda: near(prices, ts.stream(event_time="t"))):
        with pytest.raises(UsageError, match="name the column that holds the source of each row, by=") as ending:
            job()
        assert ending.value.code == "watermark"
        assert ending.value.context["own_timeouts"] == ["prices"]
    over = watermark.over(own_timeouts={"left": "5 minutes"})
    union = ts.union(left=ts.stream(event_time="t"), right=ts.stream(event_time="t"), watermark=over)
    harness = union.harness(SCHEMAS)
    harness.feed({"left": rows(5), "right": rows(9)})
    harness.advance_processing_time(301 * SECOND)
    harness.feed({"right": rows(20)})
    assert watermark_of(harness) == 20, "a side is a source without by="


def test_rows_with_ctis_need_an_order_on_each_stream() -> None:
    """A stream whose CTIs are rows has no settings, and is not taken for an operator."""
    lives = ts.lifetime(shape_column="mark")
    first = ts.stream(event_time="t", lifetime=lives).watermark(watermark.ctis())
    settings = cti_settings("drop", generate=generate_ctis(1))
    second = ts.stream(event_time="t", offset="part").watermark(watermark.ctis(settings))
    with pytest.raises(UsageError, match="advance-time") as ending:
        near(first, second)
    assert ending.value.context["sides"] == ["left"]


@pytest.mark.parametrize(
    "generator", [watermark.bounded("0 s", "time"), watermark.punctuated("t", flag="side"), None]
)
def test_a_union_has_no_watermark_by_columns_that_it_replaces(generator: Any) -> None:
    named = ts.stream(event_time="t").watermark(generator, by="side" if generator is None else None)
    with pytest.raises(UsageError) as refused:
        ts.union(left=named, right=ts.stream(event_time="t"))
    assert refused.value.code == "name-taken"
    near(named, ts.stream(event_time="t"))
    ts.union(
        left=ts.stream(event_time="time").watermark(watermark.bounded("1 s", "time")), right=ts.stream(event_time="t")
    )


def test_sources_are_of_values_that_have_a_text() -> None:
    listed = SCHEMA.append(pa.field("parts", pa.list_(pa.int64())))
    tested = near(ts.stream(event_time="t").watermark(by="parts"), ts.stream(event_time="t")).harness(
        {"left": listed, "right": SCHEMA}
    )
    with pytest.raises(UsageError, match="progress-column"):
        tested.feed({"left": [row | {"parts": [1]} for row in rows(5)]})


def test_settings_of_sides_with_sources_are_readable(tmp_path: Path) -> None:
    left = ts.stream(event_time="t").watermark(by="part", sources=["1", "2"])
    near(left, ts.stream(event_time="t")).harness(SCHEMAS, folder=tmp_path).feed({"left": rows(1)})
    with pytest.raises(IncompatibleError) as refused:
        near(left.watermark(Behind()), ts.stream(event_time="t")).harness(SCHEMAS, folder=tmp_path)
    assert "Arguments(" not in str(refused.value)
    assert 'left=watermark.over(watermark.bounded("0 seconds"), by="left_part")' in str(refused.value)
