"""Events in time, past and future by the current window: the worked example of Samza's words, and a naive twin."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.bundles import other_needs
from tests.helpers.process import LONG, SCRATCH
from tidestate import Aggregation, agg
from tidestate.operators.local.harness import Harness
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.tables import TIME

SECOND = 1_000_000
SCHEMA = pa.schema([("t", TIME), ("k", pa.string()), ("offset", pa.int64())])
TIMINGS = ("in_time", "past", "future")
Event = tuple[int | None, str | None]
Classes = tuple[int, int, int]


def counted(window: Any, allowed: str = "0 seconds", delay: str = "0 seconds", **options: Any) -> Aggregation:
    stream = ts.stream(event_time="t", watermark_delay=delay)
    return stream.group_by("k").window(window).aggregate(n=agg.count()).allowed_lateness(allowed, **options)


def rows(events: Sequence[Event]) -> pa.Table:
    times, keys = [at for at, _ in events], [key for _, key in events]
    by_offset = pa.array(times, pa.int64())
    return pa.table([by_offset.cast(TIME), pa.array(keys, pa.string()), by_offset], schema=SCHEMA)


def fed(job: Harness, *seconds: float) -> Classes:
    """How many events there are in time, past and future after these, since the beginning."""
    job.feed(rows([(round(at * SECOND), "a") for at in seconds]))
    return classes(job)


def classes(job: Harness) -> Classes:
    in_time, past, future = (job.counters().get(f"window_{timing}", 0) for timing in TIMINGS)
    return in_time, past, future


# Worked examples of the documents that docs/reference/specifications.md goes through


def test_messages_in_time_past_and_future_by_the_current_window(tmp_path: Path) -> None:
    """Samza: "the messages event time is strictly less than the current window's start time", and so on."""
    job = counted(ts.tumbling("10 seconds"), window_timing=True).harness(SCHEMA, folder=tmp_path)
    assert fed(job, -50, 14) == (2, 0, 0), "before the first watermark all are in time"
    assert fed(job, 10, 13, 19.999999) == (5, 0, 0), "the current window is that from 10 to 20"
    assert fed(job, 9.999999) == (5, 1, 0)
    assert fed(job, 20, 25) == (5, 1, 2)
    assert fed(job, 20, 30) == (6, 1, 3), "now it is that from 20 to 30, which 25 has opened"
    assert fed(job, 29, 30) == (7, 1, 4), "the watermark is 30, and the last moment before it lies before 30"
    ledger = job.ledger().select(["t", "reason", "window_timing"]).to_pylist()
    assert {row["reason"] for row in ledger} == {"very_late"}
    by_time = {row["t"].timestamp(): row["window_timing"] for row in ledger}
    assert by_time == {9.999999: "past", **dict.fromkeys((10, 13, 20, 29), "in_time")}


def test_the_current_window_is_the_newest_one_of_those_that_hold_the_moment(tmp_path: Path) -> None:
    """Samza: "current window as the latest window we just opened, and all previous windows are past windows"."""
    job = counted(ts.sliding("20 seconds", "5 seconds"), "1 hour").harness(SCHEMA, folder=tmp_path)
    assert fed(job, 13) == (1, 0, 0)
    assert fed(job, 9.9, 10, 29.9, 30) == (3, 1, 1), "of [-5, 15), [0, 20), [5, 25) and [10, 30) the last one"


def test_in_a_gap_the_current_window_is_that_before_it(tmp_path: Path) -> None:
    window = ts.sliding("4 seconds", "10 seconds", strict=False)
    job = counted(window, "1 hour", rule="window").harness(SCHEMA, folder=tmp_path)
    assert fed(job, 17) == (1, 0, 0)
    assert fed(job, 9, 10, 13, 14, 17, 20) == (3, 1, 3), "[10, 14) is over, and none has begun since"


def test_before_the_first_window_of_offsets_that_one_is_current(tmp_path: Path) -> None:
    stream = ts.stream(offset="offset")
    job = stream.group_by("k").window(ts.offset_windows(3, start=10)).aggregate(n=agg.count())
    tested = job.harness(SCHEMA, folder=tmp_path)
    for numbers, expected in (((4,), (1, 0, 0)), ((5, 9, 10, 12, 13), (3, 2, 1)), ((12, 13, 15, 16), (5, 3, 2))):
        tested.feed(rows([(number, "a") for number in numbers]))
        assert classes(tested) == expected


def test_a_message_that_comes_again_counts_once(tmp_path: Path) -> None:
    described = counted(ts.tumbling("10 seconds"), window_timing=True).messages("offset")
    job = described.retain_windows("20 seconds").harness(SCHEMA, folder=tmp_path)
    assert fed(job, 14) == (1, 0, 0)
    assert fed(job, 14, 9, 25) == (1, 1, 1), "14 is known"
    assert job.ledger()["window_timing"].to_pylist() == ["past"]
    assert fed(job, 60) == (1, 1, 2)
    job.reprocess_late()
    assert classes(job) == (1, 1, 2), "what is fed back is not counted again"
    assert [(row["reason"], row["window_timing"]) for row in job.ledger().to_pylist()] == [
        ("very_late", "past"),
        ("purged", "past"),
    ]


def test_the_ledger_has_the_column_from_the_start_that_asks_for_it_on(tmp_path: Path) -> None:
    batches = [rows([(14 * SECOND, "a")]), rows([(13 * SECOND, "a")]), rows([(12 * SECOND, "a")])]
    for asked, count in ((False, 2), (True, 3)):
        job = counted(ts.tumbling("10 seconds"), window_timing=asked)
        job.standalone(checkpoint=tmp_path).run(batches[:count])
        assert other_needs(evidence.manifests(tmp_path)[-1].get("needs")) == (["window-timing/1"] if asked else [])
    ledger = ts.Root(tmp_path).late().to_table().sort_by("t")
    assert ledger["window_timing"].to_pylist() == ["in_time", None]
    assert "window_timing=True" in job.explain()


REFUSED = {
    "sessions": ("window-timing", lambda: counted(ts.sessions("1 second"), window_timing=True)),
    "count windows": ("window-timing", lambda: counted(ts.count_windows(2), window_timing=True)),
    "the global window": ("window-timing", lambda: counted(ts.global_window(), window_timing=True)),
    "a column of the name": (
        "name-taken",
        lambda: counted(ts.tumbling("1 second"), window_timing=True, ledger_columns="window_timing"),
    ),
}


@pytest.mark.parametrize(("code", "make"), REFUSED.values(), ids=REFUSED)
def test_what_has_no_current_window_is_refused(code: str, make: Callable[[], Aggregation]) -> None:
    schema = SCHEMA.append(pa.field("window_timing", pa.string()))
    with pytest.raises(UsageError, match=code):
        make().harness(schema)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_other_windows_count_no_such_classes(tmp_path: Path) -> None:
    for name, window in (("sessions", ts.sessions("1 second")), ("count", ts.count_windows(2))):
        job = counted(window).harness(SCHEMA, folder=tmp_path / name)
        fed(job, 1, 2)
        assert not [counter for counter in job.counters() if counter.startswith("window_")]
    both = dict.fromkeys(("left", "right"), SCHEMA)
    left, right = (ts.stream(event_time="t", watermark_delay="0 seconds") for _ in both)
    joined = left.join(right, on="k", window=ts.tumbling("10 seconds")).harness(both, folder=tmp_path / "join")
    joined.feed({"left": rows([(SECOND, "a")]), "right": rows([(14 * SECOND, "a"), (SECOND, "a")])})
    assert classes(joined) == (3, 0, 0)
    joined.feed({"left": rows([(14 * SECOND, "a")]), "right": rows([(25 * SECOND, "a"), (SECOND, "a")])})
    assert classes(joined) == (4, 0, 2), "the watermark is that of the slower side, and the current window [0, 10)"


class Grid(NamedTuple):
    """A drawn job: windows in microseconds, or of ``offset`` if ``by_offset``."""

    size: int
    slide: int
    shift: int
    delay: int
    allowed: int
    rule: str
    by_offset: bool

    def job(self) -> Aggregation:
        if self.by_offset:
            window: Any = ts.offset_windows(self.size, step=self.slide, start=self.shift, late=self.allowed)
            grouped = ts.stream(offset="offset").group_by("k").window(window)
            return grouped.aggregate(n=agg.count()).allowed_lateness(window_timing=True)
        spans = (timedelta(microseconds=span) for span in (self.size, self.slide, self.shift))
        size, slide, shift = spans
        delay, allowed = (timedelta(microseconds=span) for span in (self.delay, self.allowed))
        stream = ts.stream(event_time="t", watermark_delay=delay)
        described = stream.group_by("k").window(ts.sliding(size, slide, offset=shift, strict=False))
        return described.aggregate(n=agg.count()).allowed_lateness(allowed, rule=self.rule, window_timing=True)

    def timing(self, at: int, watermark: int | None) -> str:
        """By a walk over the windows, from one that ends behind the watermark to earlier ones."""
        if watermark is None:
            return "in_time"
        start = self.shift
        while start <= watermark:
            start += self.slide
        while start > watermark - 1 and not (self.by_offset and start == self.shift):
            start -= self.slide
        if at < start:
            return "past"
        return "future" if at >= start + self.size else "in_time"


GRIDS = st.builds(
    Grid,
    size=st.integers(1, 9),
    slide=st.integers(1, 12),
    shift=st.integers(-8, 8),
    delay=st.sampled_from([0, 0, 3]),
    allowed=st.sampled_from([0, 2, 30]),
    rule=st.sampled_from(["event", "window"]),
    by_offset=st.just(False),
) | st.builds(
    Grid,
    size=st.integers(1, 6),
    slide=st.integers(1, 9),
    shift=st.integers(0, 12),
    delay=st.just(-1),
    allowed=st.sampled_from([0, 3]),
    rule=st.just("window"),
    by_offset=st.just(True),
)
STEPS = st.lists(st.integers(-6, 12), min_size=1, max_size=5)
KEYS = st.sampled_from(["a", "a", "a", "b", None])


@settings(max_examples=300 if LONG else 15)
@given(GRIDS, STEPS, st.data())
def test_counters_and_the_ledger_equal_the_twin(grid: Grid, steps: list[int], data: st.DataObject) -> None:
    base, least, watermark = (5, 0, None) if grid.by_offset else (-20, -10_000, None)
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        tested, before, rejected = grid.job().harness(SCHEMA, folder=folder, partitions=2), Counter[str](), 0
        for step in steps:
            base += step
            times = st.none() | st.integers(max(least, base - 15), max(least, base + 15))
            events = data.draw(st.lists(st.tuples(times, KEYS), max_size=8))
            tested.feed(rows(events))
            after = Counter(tested.counters())
            counts, before = after - before, after
            fit = [at for at, key in events if at is not None and key is not None]
            expected = Counter(f"window_{grid.timing(at, watermark)}" for at in fit)
            assert {name: n for name, n in counts.items() if name.startswith("window_")} == expected
            classes = ("on_time", "mildly_late", "future", "very_late", "no_window")
            assert expected.total() == sum(counts[name] for name in classes)
            ledger = tested.ledger().slice(rejected)
            rejected += ledger.num_rows
            assert ledger["window_timing"].to_pylist() == [
                None if at is None else grid.timing(at, watermark)
                for at in ledger["offset" if grid.by_offset else "t"].cast(pa.int64()).to_pylist()
            ]
            # An event behind the watermark, taken or not, moves nothing.
            marks = [at - grid.delay for at in fit] + ([] if watermark is None else [watermark])
            watermark = max(marks, default=None)
