"""A quiet source goes on with the clock: exactly so far, again after a restart, and never back."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.internals import set_hook
from tests.helpers.process import SCRATCH, few
from tidestate import Aggregation, OperatorStream, agg, trigger, watermark
from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.describe.runnable import Sided
from tidestate.operators.engine.driver import Driver
from tidestate.operators.engine.job import Job, Position
from tidestate.operators.engine.tasks import InProcess
from tidestate.operators.progress.progress import Progress, SourceReport, begin, observe
from tidestate.operators.progress.watermarks import BEGINNING_US, sources
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import UsageError, of_type
from tidestate.statestore.messages.tables import Retention
from tidestate.statestore.spec.store import Parquet

SECOND = 1_000_000
TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("t", TIME), ("k", pa.string())])


def rows(*seconds: int, key: str = "a") -> pa.Table:
    return pa.table({"t": pa.array([s * SECOND for s in seconds], pa.int64()).cast(TIME), "k": [key] * len(seconds)})


TEN, COUNT = ts.tumbling("10 seconds"), {"n": agg.count()}
LISTS = {"n": agg.count(), "all": agg.list("k")}


def job(generator: Any, windows: Any = TEN, results: Any = COUNT, **by: Any) -> Aggregation:
    events = ts.stream(event_time="t").watermark(generator, **by)
    return events.group_by("k").window(windows).aggregate(**results).allowed_lateness("0 seconds")


def twin(steps: list[tuple[int, int | None]], quiet: int) -> list[int]:
    """The watermark after each step of (clock, event), second by second."""
    mark, still, before, found = BEGINNING_US, 0, steps[0][0] if steps else 0, []
    for clock, event in steps:
        for _ in range(clock - before):
            if event is None:
                still += 1
                mark += (still > quiet) if mark != BEGINNING_US else 0
        before = clock
        if event is not None:
            mark, still = max(mark, event), 0
        found.append(mark)
    return found


@given(st.lists(st.tuples(st.integers(0, 9), st.none() | st.integers(0, 50)), max_size=12), st.integers(0, 12))
def test_a_twin_counts_it_second_by_second(moves: list[tuple[int, int | None]], quiet: int) -> None:
    clock, steps, found, about = 0, [], list[int](), sources("a")
    tracker: Progress = begin(about)
    for further, event in moves:
        clock += further
        steps.append((clock, event))
        report = SourceReport() if event is None else SourceReport(event, rows=1, generated=True)
        tracker = observe(about, tracker, {"a": report}, clock, lambda _: quiet)
        found.append(tracker.watermark_us)
    assert found == twin(steps, quiet)


def test_the_last_window_fires_and_late_is_what_comes_behind_it(tmp_path: Path) -> None:
    tested = job(watermark.bounded("1 second", quiet="5 seconds")).harness(SCHEMA, folder=tmp_path)
    tested.feed(rows(1, 8))
    assert tested.advance_processing_time(5 * SECOND).num_rows == 0
    assert tested.advance_processing_time(8 * SECOND - 1).num_rows == 0
    assert tested.advance_processing_time(8 * SECOND)["n"].to_pylist() == [2]
    assert evidence.work(tmp_path)[-1]["watermark_us"] == 10 * SECOND
    tested.feed(rows(9, 12))
    assert tested.ledger()["reason"].to_pylist() == ["very_late"]
    # It stays where it is until the source has passed it, and begins to wait again.
    assert evidence.work(tmp_path)[-1]["watermark_us"] == 11 * SECOND
    tested.advance_processing_time(13 * SECOND)
    assert evidence.work(tmp_path)[-1]["watermark_us"] == 11 * SECOND
    assert tested.advance_processing_time(22 * SECOND)["n"].to_pylist() == [1]


def test_nothing_moves_before_the_first_event_or_without_the_setting(tmp_path: Path) -> None:
    tested = job(watermark.bounded(quiet="5 seconds")).harness(SCHEMA, folder=tmp_path / "first")
    tested.advance_processing_time(3600 * SECOND)
    assert evidence.work(tmp_path / "first")[-1].get("watermark_us") is None
    other = job(watermark.bounded()).harness(SCHEMA, folder=tmp_path / "other")
    other.feed(rows(1))
    other.advance_processing_time(3600 * SECOND)
    assert evidence.work(tmp_path / "other")[-1]["watermark_us"] == SECOND
    with pytest.raises(UsageError, match="watermark-delay"):
        watermark.bounded(quiet="-1 second")


def test_each_source_is_quiet_by_itself(tmp_path: Path) -> None:
    tested = job(watermark.bounded(quiet="5 seconds"), by="k", sources=["a", "b"]).harness(SCHEMA, folder=tmp_path)
    tested.feed(pa.concat_tables([rows(1), rows(3, key="b")]))
    for second in range(1, 9):
        tested.advance_processing_time(second * SECOND)
        tested.feed(rows(3 + second, key="b"))
    assert evidence.work(tmp_path)[-1]["watermark_us"] == 4 * SECOND
    tested.feed(rows(30))
    assert evidence.work(tmp_path)[-1]["watermark_us"] == 11 * SECOND


@settings(max_examples=settings.default.max_examples // 2)
@given(st.lists(st.tuples(st.integers(1, 8), st.booleans(), st.none() | st.integers(0, 60)), max_size=10))
def test_a_restart_changes_nothing(steps: list[tuple[int, bool, int | None]]) -> None:
    """The clock stands still between a death and the next round; how long the source was quiet is in the manifest."""
    described = job(watermark.bounded("1 second", quiet="3 seconds"))
    with tempfile.TemporaryDirectory(dir=SCRATCH) as one, tempfile.TemporaryDirectory(dir=SCRATCH) as two:
        through, dies = described.harness(SCHEMA, folder=one), described.harness(SCHEMA, folder=two)
        clock = 0
        for further, restart, event in steps:
            if restart:
                dies.restart()
                # The first round after a restart has no time before it.
                dies.advance_processing_time(clock)
            clock += further * SECOND
            for tested in (through, dies):
                tested.advance_processing_time(clock)
                if event is not None:
                    tested.feed(rows(event))
        assert _all(one) == _all(two)
        last = [evidence.manifests(Path(root))[-1].get("watermark_us") for root in (one, two)]
        assert last[0] == last[1]


def _all(root: str) -> list[tuple[object, ...]]:
    """All panes, without the checkpoints that they are in."""
    return [row for found in evidence.panes(Path(root)) for row in sorted(found.elements(), key=repr)]


def test_by_hand_the_clock_moves_with_timeout(tmp_path: Path) -> None:
    numbered = rows(1, 8).append_column("offset", pa.array([1, 2])).append_column("origin", pa.array(["o", "o"]))
    described = job(watermark.bounded(quiet="5 seconds"))
    with described.by_hand(numbered.schema, checkpoint=tmp_path) as operator:
        operator.timeout(0)
        operator.add_messages(numbered)
        operator.timeout(6 * SECOND)
        assert operator.get_result() == []
        operator.timeout(7 * SECOND)
        (result,) = operator.get_result()
        assert result.panes["n"].to_pylist() == [2]


class Clocked:
    """A driver as Spark's ticker uses it, with a clock set by hand; checkpoints are counted."""

    def __init__(self, described: OperatorStream, root: Path, schema: pa.Schema = SCHEMA) -> None:
        graph = bind_graph(described.graph.description, schema)
        self.job = Job.begin(graph, Checkpoint.open_or_create(root), Parquet(), partitions=2, may_change=True)
        self.driver: Driver[list[pa.Table], pa.Table] = Driver(self.job, InProcess())  # type: ignore[assignment]
        self.root, self.now = root, 0

    def feed(self, table: pa.Table) -> None:
        self.driver.batch([table], self.now * SECOND, lambda _id: Position())

    def tick_until(self, second: int) -> list[int]:
        """A tick each second; the seconds at which a checkpoint was made."""
        made = []
        while self.now < second:
            self.now, before = self.now + 1, self.job.head.id
            self.driver.advance(self.now * SECOND)
            made += [self.now] if self.job.head.id > before else []
        return made


def panes_by_checkpoint(root: Path) -> list[tuple[int, int]]:
    found = [(m["id"], evidence.rows(root, m["panes"])) for m in evidence.manifests(root)]
    return [(number, len(some)) for number, some in found if some]


def test_a_fixed_watermark_makes_a_checkpoint_when_a_window_is_due(tmp_path: Path) -> None:
    tested = Clocked(job(watermark.fixed("2 seconds")), tmp_path)
    assert tested.tick_until(100) == [1], "once, to learn that no window waits"
    tested.feed(rows(101, 115))
    assert tested.tick_until(1000) == [112, 122]
    assert [many for _, many in panes_by_checkpoint(tmp_path)] == [1, 1]
    # The clock's watermark is 998. Events are judged by that of the newest checkpoint, which a replay has too.
    assert tested.job.progress["windows"].watermark_us == 998 * SECOND
    again = Clocked(job(watermark.fixed("2 seconds")), tmp_path)
    for one in (tested, again):
        assert one.job.micro_batch(1000 * SECOND).progress["windows"].watermark_us == 120 * SECOND
    again.now = 1000
    again.feed(rows(119, 121, 990))
    assert [row[1] for row in evidence.rows(tmp_path, evidence.work(tmp_path)[-1]["late"])] == ["a"]
    assert evidence.work(tmp_path)[-1]["watermark_us"] == 998 * SECOND


def test_processing_time_windows_too(tmp_path: Path) -> None:
    described = (
        ts.stream(processing_time=True).group_by("k").window(ts.tumbling("10 seconds")).aggregate(n=agg.count())
    )
    tested = Clocked(described, tmp_path)
    tested.now = 3
    tested.feed(rows(0))
    assert tested.tick_until(60) == [10]


FIXED = watermark.fixed("2 seconds")
DUE: dict[str, tuple[Aggregation, list[int]]] = {
    "early": (job(FIXED).trigger(early=trigger.every_event_time("3 seconds")), [5, 8, 11, 12, 15, 18, 21, 22]),
    "early by the clock": (job(FIXED).trigger(early=trigger.after_processing_time("4 seconds")), [4, 12, 22]),
    "composite": (
        job(FIXED).trigger(when=trigger.any_of(trigger.after_count(2), trigger.after_watermark())),
        [12, 22],
    ),
    "both parts": (
        job(FIXED).trigger(
            when=trigger.repeatedly(
                trigger.all_of(trigger.after_count(1), trigger.after_processing_time("5 seconds"))
            )
        ),
        [5, 12, 22],
    ),
    "closing": (job(FIXED).allowed_lateness("7 seconds").trigger(late=None, closing="always"), [12, 19, 22, 29]),
    "lists": (job(FIXED, ts.sessions("5 seconds"), LISTS), [8, 21]),
    "counted": (job(FIXED, ts.count_windows(2)), []),
}


@pytest.mark.parametrize("name", few(DUE, *range(0, len(DUE), 3)))
def test_a_long_quiet_time_makes_a_checkpoint_only_when_something_is_due(tmp_path: Path, name: str) -> None:
    described, wanted = DUE[name]
    tested = Clocked(described, tmp_path)
    tested.feed(rows(1, 14))
    assert tested.tick_until(600) == wanted


def test_so_it_does_with_other_clocks(tmp_path: Path) -> None:
    early = job(watermark.bounded(quiet="30 seconds")).trigger(early=trigger.every_event_time("3 seconds"))
    quiet = Clocked(early, tmp_path / "quiet")
    quiet.feed(rows(1))
    assert quiet.tick_until(600) == [32, 35, 38, 39], "none to keep the time, once no window waits"
    described = (
        ts.stream(processing_time=True).group_by("k").window(ts.tumbling("10 seconds")).aggregate(n=agg.count())
    )
    clock = Clocked(described.trigger(early=trigger.after_processing_time("4 seconds")), tmp_path / "clock")
    clock.now = 3
    clock.feed(rows(0))
    assert clock.tick_until(600) == [7, 10]


KEPT: dict[str, tuple[Retention | None, bool, list[int]]] = {
    "lateness": (None, True, [8, 11, 16, 19]),
    "more than there are": (ts.Retention(messages=5), True, [8, 16]),
    "all but the newest": (ts.Retention(messages=1), True, [*range(1, 15), 16]),
    "longer": (ts.Retention(span="6 seconds"), True, [*range(1, 9), 16]),
    "no lateness": (ts.Retention(span="6 seconds"), False, [*range(1, 12), 16]),
    "horizon": (ts.Retention(messages=1), False, [*range(1, 14), 16]),
    "no horizon yet": (ts.Retention(messages=5), False, [8, 16]),
}


@pytest.mark.parametrize("name", few(KEPT, 0, 5))
def test_a_retention_of_messages_makes_checkpoints_until_nothing_more_goes(tmp_path: Path, name: str) -> None:
    kept, late, wanted = KEPT[name]
    numbered = rows(1, 9).append_column("n", pa.array([1, 2]))
    lists = job(FIXED, ts.sessions("5 seconds"), LISTS)
    lists = lists.allowed_lateness("3 seconds") if late else lists.allowed_lateness(None)
    tested = Clocked(lists.messages("n", retain=kept), tmp_path, numbered.schema)
    tested.feed(numbered)
    # The sessions end at 6 and 14, and are forgotten three seconds later.
    assert tested.tick_until(40) == wanted
    assert [many for _, many in panes_by_checkpoint(tmp_path)] == [1, 1]


def test_sessions_make_a_checkpoint_when_one_may_be_due(tmp_path: Path) -> None:
    described = job(FIXED, ts.sessions("5 seconds")).allowed_lateness("3 seconds")
    tested = Clocked(described, tmp_path)
    assert tested.tick_until(100) == [1]
    tested.feed(rows(101, 115))
    tested.feed(rows(105, 140, key="b"))
    # The ends are at 106, 110, 120 and 145.
    assert tested.tick_until(1000) == [108, 112, 122, 147]
    assert [many for _, many in panes_by_checkpoint(tmp_path)] == [1, 1, 1, 1]
    tested.feed(rows(1001, 1004))
    assert tested.tick_until(1100) == [1008 + 3]


def test_joins_make_a_checkpoint_when_a_row_or_session_is_due(tmp_path: Path) -> None:
    both = {"left": rows(1, 30), "right": rows(3, 40)}
    left = ts.stream(event_time="t").join(
        ts.stream(event_time="t"), on="k", within=("-5 seconds", "5 seconds"), how="left", watermark=FIXED, name="job"
    )
    sessions = ts.stream(event_time="t").join_sessions(
        ts.stream(event_time="t"),
        on="k",
        gap="5 seconds",
        how="full",
        allowed_lateness="10 seconds",
        watermark=FIXED,
        name="job",
    )
    made = {}
    for name, described in (("left", left), ("sessions", sessions)):
        sides = of_type(described.graph.description, Sided).sides
        schema = sides.schema(dict.fromkeys(both, SCHEMA))
        tested = Clocked(described, tmp_path / name, schema)
        tested.feed(pa.concat_tables([sides.rows(schema, side, own) for side, own in both.items()]))
        made[name] = tested.tick_until(100)
    # The row at 30 has no partner up to 35. The sessions end at 8, 35 and 45, and close ten seconds later.
    assert made == {"left": [38], "sessions": [10, 20, 37, 47, 57]}
    held = Clocked(
        ts.stream(event_time="t").watermark(watermark.fixed("2 seconds")).deduplicate("k", in_order=True),
        tmp_path / "held",
    )
    held.feed(rows(5, 30))
    assert held.tick_until(100) == [8, 33], "when a row is passed"


def test_a_quiet_source_keeps_its_time_once_a_minute_while_a_window_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "tidestate")
    described = job(watermark.bounded(quiet="30 seconds"), ts.tumbling("5 minutes"))
    tested = Clocked(described, tmp_path)
    tested.feed(rows(1))
    # A minute after the checkpoint of the batch, and so on; then the window, 30 seconds after it would have ended.
    assert tested.tick_until(1000) == [60, 120, 180, 240, 300, 329]
    other = Clocked(described, tmp_path / "dies")
    other.feed(rows(1))
    other.tick_until(100)
    again = Clocked(described, tmp_path / "dies")
    again.now = 5000
    # 60 of the 100 seconds are in a manifest; the first tick has no time before it.
    made = again.tick_until(6000)
    assert made[-1] == 5001 + 329 - 60


def test_an_idle_source_that_leaves_is_kept_at_once(tmp_path: Path) -> None:
    idle: Any = {"by": "k", "sources": ["a", "b"], "idle_timeout": "20 seconds"}
    tested = Clocked(job(watermark.bounded(), ts.tumbling("5 minutes"), **idle), tmp_path)
    tested.feed(pa.concat_tables([rows(1), rows(40, key="b")]))
    tested.tick_until(10)
    tested.feed(rows(50, key="b"))
    assert tested.tick_until(100)[:1] == [21]


def test_both_sides_of_a_join_and_what_reads_it(tmp_path: Path) -> None:
    """A side without rows holds its partner's windows no longer than it is quiet."""
    met = ts.stream("one", event_time="t").join(
        ts.stream("two", event_time="t"),
        on="k",
        window=ts.tumbling("10 seconds"),
        how="left",
        watermark=watermark.bounded(quiet="5 seconds"),
        name="met",
    )
    counted = met.group_by("k").window(ts.tumbling("10 seconds")).aggregate(n=agg.count()).named("counted")
    described = counted.allowed_lateness("0 seconds")
    tested = described.harness({"one": SCHEMA, "two": SCHEMA}, folder=tmp_path)
    tested.feed({"one": rows(1, 4), "two": rows(2)})
    observed = [tested.advance_processing_time(second * SECOND)["n"].to_pylist() for second in (6, 10, 14)]
    assert [n for found in observed for n in found] == [2]


@pytest.mark.parametrize("moment", ["before-manifest", "after-manifest"])
def test_it_dies_on_either_side_of_the_commit_that_fires_the_window(tmp_path: Path, moment: str) -> None:
    described = job(watermark.bounded(quiet="5 seconds"))
    tested = Clocked(described, tmp_path)
    tested.feed(rows(1, 8))

    class DiedError(Exception):
        pass

    def hook(now: str, _number: int) -> None:
        if now == moment:
            raise DiedError

    set_hook(tested.job, hook)
    with pytest.raises(DiedError):
        tested.tick_until(20)
    assert tested.now == 7
    again = Clocked(described, tmp_path)
    again.now = 100
    made = again.tick_until(120)
    # The time of the dead run that was in no manifest counts no more; what it published stays published.
    assert made[-1:] == ([108] if moment == "before-manifest" else made[-1:])
    fired = [row for found in evidence.panes(tmp_path) for row in found.elements()]
    assert len(fired) == 1
