"""Watermarks per source in the runners without Spark: sources, idle ones, generators, restarts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.two_sources import SCHEMA, SECOND, job, rows
from tidestate import Aggregation, Stream, agg, trigger, watermark
from tidestate.operators.local import standalone as runner
from tidestate.operators.local.harness import Harness
from tidestate.operators.progress.progress import Generator, combined_progress, first_progress
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import IncompatibleError, UsageError
from tidestate.statestore.spec.store import Memory


def both(*tables: pa.Table) -> pa.Table:
    return pa.concat_tables(tables)


def harness(tmp_path: Path, **settings: Any) -> Harness:
    return job(**settings).harness(SCHEMA, folder=tmp_path / "root", partitions=2)


def marks(root: Path) -> list[float | None]:
    """The watermark after each checkpoint that is no fence, in seconds."""
    found = [manifest.get("watermark_us") for manifest in evidence.work(root)]
    return [None if mark is None else mark / SECOND for mark in found]


def sources(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = evidence.operator(evidence.manifests(root)[-1])["progress"]["sources"]
    return found


# Several sources


def test_the_smaller_watermark_counts_and_a_declared_source_that_never_came_holds_it(tmp_path: Path) -> None:
    tested = harness(tmp_path)
    assert tested.feed(rows("orders", 25)).num_rows == 0
    assert tested.feed(rows("prices", 5)).num_rows == 0
    assert tested.feed(rows("prices", 12)).num_rows == 1
    assert tested.feed(both(rows("orders", 40), rows("prices", 21))).num_rows == 1
    assert marks(tmp_path / "root") == [None, 5, 12, 21]
    assert {name: one["watermark_us"] for name, one in sources(tmp_path / "root").items()} == {
        "orders": 40 * SECOND,
        "prices": 21 * SECOND,
    }


def test_a_source_that_was_not_declared_joins_at_the_watermark(tmp_path: Path) -> None:
    tested = harness(tmp_path, sources=["orders"])
    tested.feed(rows("orders", 30))
    tested.feed(rows("prices", 50))
    tested.feed(rows("orders", 70))
    tested.feed(rows("prices", 60))
    assert marks(tmp_path / "root") == [30, 30, 50, 60]


def test_a_null_names_a_source_of_its_own(tmp_path: Path) -> None:
    tested = harness(tmp_path, sources=[])
    tested.feed(both(rows(None, 30), rows("orders", 20)))
    assert marks(tmp_path / "root") == [20]
    assert set(sources(tmp_path / "root")) == {"None", "orders"}


def test_an_idle_source_holds_nothing_and_is_counted_again_when_it_caught_up(tmp_path: Path) -> None:
    tested = harness(tmp_path, idle_timeout="5 seconds")
    tested.feed(both(rows("orders", 15), rows("prices", 3)))
    tested.advance_processing_time(4 * SECOND)
    tested.feed(rows("orders", 32))
    assert marks(tmp_path / "root")[-1] == 3
    tested.advance_processing_time(8 * SECOND)
    assert tested.feed(rows("orders", 33)).num_rows == 0  # of what came: its window is open
    assert marks(tmp_path / "root")[-1] == 33
    assert sources(tmp_path / "root")["prices"]["standing"] == "idle"
    tested.feed(rows("prices", 34))
    assert sources(tmp_path / "root")["prices"].get("standing", "counted") == "counted"
    tested.feed(rows("orders", 90))
    assert marks(tmp_path / "root")[-1] == 34


def test_a_tick_without_data_shows_the_windows_that_an_idle_source_held_back(tmp_path: Path) -> None:
    tested = harness(tmp_path, idle_timeout="5 seconds")
    tested.feed(both(rows("orders", 15, 32), rows("prices", 3)))
    tested.advance_processing_time(5 * SECOND)  # both are quiet for 5 seconds, which is not longer
    assert tested.feed(rows("orders", 32)).num_rows == 0
    panes = tested.advance_processing_time(6 * SECOND)
    assert panes["window_end"].cast(pa.int64()).to_pylist() == [10 * SECOND, 20 * SECOND]


def test_rows_that_are_rejected_show_that_a_source_is_there(tmp_path: Path) -> None:
    tested = harness(tmp_path, idle_timeout="5 seconds")
    tested.feed(both(rows("orders", 15), rows("prices", 3)))
    for now in (4, 8, 12):
        tested.advance_processing_time(now * SECOND)
        tested.feed(both(rows("orders", 30), rows("prices", None), rows("prices", 4, key=None)))
    assert marks(tmp_path / "root")[-1] == 3
    assert sources(tmp_path / "root")["prices"]["rows"] == 7


def test_rows_that_are_rejected_make_no_source(tmp_path: Path) -> None:
    tested = harness(tmp_path)
    tested.feed(both(rows("strange", None), rows(None, 4, key=None), rows("orders", 15), rows("prices", 30)))
    assert marks(tmp_path / "root") == [15]
    assert set(sources(tmp_path / "root")) == {"orders", "prices"}


def test_time_in_which_nobody_was_asked_makes_nobody_idle(tmp_path: Path) -> None:
    settings = job(idle_timeout="5 seconds").graph.description.watermarks
    assert settings is not None
    progress = combined_progress(settings, first_progress(settings), [], 0)
    waited = combined_progress(settings, progress.skipping_idle_time(20 * SECOND), [], 24 * SECOND)
    assert {one.quiet_us for one in waited.sources.values()} == {4 * SECOND}
    assert {one.standing for one in waited.sources.values()} == {"counted"}
    planned_before = combined_progress(settings, waited, [], 21 * SECOND)
    assert planned_before.clock_backward == 0
    assert first_progress(settings).skipping_idle_time(SECOND) == first_progress(settings)


def test_a_source_that_is_not_declared_any_more_holds_nothing_back_unless_it_had_rows(tmp_path: Path) -> None:
    harness(tmp_path).feed(rows("orders", 15))
    tested = harness(tmp_path, sources=["orders"])
    tested.feed(rows("orders", 20))
    assert marks(tmp_path / "root") == [None, 20]
    tested.feed(rows("prices", 21))
    harness(tmp_path, sources=["orders"]).feed(rows("orders", 30))
    assert marks(tmp_path / "root")[-1] == 21


def test_when_all_are_idle_the_watermark_stays(tmp_path: Path) -> None:
    tested = harness(tmp_path, idle_timeout="5 seconds")
    tested.feed(both(rows("orders", 15), rows("prices", 3)))
    tested.advance_processing_time(60 * SECOND)
    assert marks(tmp_path / "root") == [3, 3]
    assert {one["standing"] for one in sources(tmp_path / "root").values()} == {"idle"}


def test_the_time_between_two_runs_is_nobodys_idle_time(tmp_path: Path) -> None:
    tested = harness(tmp_path, idle_timeout="5 seconds")
    tested.feed(both(rows("orders", 15), rows("prices", 3)))
    tested.advance_processing_time(4 * SECOND)
    tested.restart()
    tested.advance_processing_time(60 * SECOND)
    assert sources(tmp_path / "root")["prices"]["quiet_us"] == 4 * SECOND
    tested.advance_processing_time(62 * SECOND)
    assert sources(tmp_path / "root")["prices"]["standing"] == "idle"


def test_a_late_event_is_late_by_the_smaller_watermark(tmp_path: Path) -> None:
    tested = harness(tmp_path)
    tested.feed(both(rows("orders", 100), rows("prices", 30)))
    tested.feed(both(rows("orders", 29), rows("prices", 31)))
    assert tested.ledger()["reason"].to_pylist() == ["very_late"]
    assert tested.ledger()["t"].cast(pa.int64()).to_pylist() == [29 * SECOND]


# Generators


def test_fixed_is_the_clock_less_a_constant(tmp_path: Path) -> None:
    events = ts.stream(event_time="t").watermark(watermark.fixed("5 seconds"))
    described = events.group_by("k").window(ts.tumbling("10 seconds")).aggregate(n=agg.count())
    tested = described.harness(SCHEMA, folder=tmp_path / "root")
    tested.advance_processing_time(8 * SECOND)
    assert tested.feed(rows("x", 4, 900)).num_rows == 0
    assert tested.advance_processing_time(14 * SECOND).num_rows == 0
    assert tested.advance_processing_time(15 * SECOND).num_rows == 1
    assert marks(tmp_path / "root") == [3, 3, 9, 10]


def test_ingestion_time_gives_events_the_time_they_are_taken(tmp_path: Path) -> None:
    events = ts.stream(event_time="ingestion_time").watermark(watermark.ingestion_time())
    grouped = events.group_by("k").window(ts.tumbling("10 seconds"))
    described = grouped.aggregate(n=agg.count(), all=agg.list("t"))
    tested = described.harness(SCHEMA, folder=tmp_path / "root")
    tested.advance_processing_time(8 * SECOND)
    tested.feed(rows("x", 4, None))
    tested.advance_processing_time(9 * SECOND)
    tested.feed(rows("x", -4))
    panes = tested.advance_processing_time(10 * SECOND)
    assert panes.select(["n", "window_end"]).to_pylist()[0]["n"] == 3
    assert marks(tmp_path / "root") == [8, 8, 9, 9, 10]
    assert tested.ledger().num_rows == 0


def test_punctuation_moves_the_watermark_and_goes_no_further(tmp_path: Path) -> None:
    tested = harness(tmp_path, generator=watermark.punctuated("t", flag="end"))
    tested.feed(both(rows("orders", 5, 25), rows("prices", 8)))
    tested.feed(both(rows("orders", 20, key=None, control=True), rows("prices", 9)))
    panes = tested.feed(both(rows("prices", 12, control=True), rows("orders", 7)))
    assert panes["n"].to_pylist() == [4]
    assert marks(tmp_path / "root") == [None, None, 12]
    assert tested.ledger().num_rows == 0
    counters = tested.counters()
    assert (counters["events"], counters["control_rows"]) == (5, 2)


def test_a_control_row_classifies_from_the_next_batch_on(tmp_path: Path) -> None:
    tested = harness(tmp_path, generator=watermark.punctuated("t", flag="end"), by=None, sources=[])
    tested.feed(both(rows("orders", 20, control=True), rows("orders", 5)))
    tested.feed(rows("orders", 6))
    assert tested.ledger()["t"].cast(pa.int64()).to_pylist() == [6 * SECOND]


def test_an_event_far_ahead_of_the_clock_may_be_held(tmp_path: Path) -> None:
    held = watermark.bounded("1 second", column="t", hold_future="10 seconds")
    tested = harness(tmp_path, generator=held, by=None, sources=[])
    tested.advance_processing_time(20 * SECOND)
    tested.feed(rows("x", 15, 31))
    assert marks(tmp_path / "root")[-1] == 14
    assert tested.counters()["held"] == 1


def test_repetitions_are_forgotten_by_the_smaller_watermark(tmp_path: Path) -> None:
    described = (
        ts.stream(event_time="t")
        .watermark(watermark.bounded(), by="src", sources=["orders", "prices"])
        .deduplicate(["k"], within="10 seconds")
    )
    tested = described.harness(SCHEMA, folder=tmp_path / "root")
    assert tested.feed(both(rows("orders", 1), rows("prices", 1))).num_rows == 1
    assert tested.feed(rows("orders", 50)).num_rows == 0
    assert tested.feed(rows("prices", 50, key="b")).num_rows == 1
    assert tested.feed(rows("prices", 51)).num_rows == 1


# The standalone runner


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The wall clock of the runner, to be set, in microseconds."""
    observed = [0]
    monkeypatch.setattr(runner, "now_us", lambda: observed[0])
    return observed


STREAM = [
    both(rows("orders", 15), rows("prices", 3)),
    both(rows("orders", 40), rows("prices", 22)),
    both(rows("orders", 21), rows("prices", 23)),  # one behind W
    both(rows("orders", 60), rows("prices", 55)),
]


def run(root: Path, batches: list[pa.Table], clock: list[int], **settings: Any) -> pa.Table:
    def timed() -> Iterator[pa.Table]:
        for number, batch in enumerate(batches):
            clock[0] = number * SECOND
            yield batch

    described = job(**settings)
    return described.standalone(checkpoint=root, store=Memory(), partitions=2).run(timed())


def test_a_restart_in_the_middle_classifies_as_the_first_run(tmp_path: Path, clock: list[int]) -> None:
    run(tmp_path / "whole", STREAM, clock)
    for many in range(1, len(STREAM) + 1):
        run(tmp_path / "cut", STREAM[:many], clock)
    assert marks(tmp_path / "cut") == marks(tmp_path / "whole") == [3, 22, 23, 55]
    for kind in ("panes", "late"):
        found = [
            [evidence.rows(root, manifest[kind]) for manifest in evidence.work(root) if kind in manifest]
            for root in (tmp_path / "cut", tmp_path / "whole")
        ]
        assert found[0] == found[1]
    whole, cut = (evidence.operator(evidence.work(tmp_path / name)[-1]) for name in ("whole", "cut"))
    assert whole["progress"] == cut["progress"]


def test_a_changed_generator_goes_on_from_the_watermark_there_is(tmp_path: Path, clock: list[int]) -> None:
    for changed in ({}, {"idle_timeout": "1 minute"}, {"generator": watermark.bounded("5 seconds", column="t")}):
        run(tmp_path / "root", STREAM, clock, **changed)
    later = [*STREAM, both(rows("orders", 62), rows("prices", 58)), both(rows("orders", 65), rows("prices", 66))]
    run(tmp_path / "root", later, clock, generator=watermark.bounded("5 seconds", column="t"))
    assert marks(tmp_path / "root")[3:] == [55, 55, 60]


def test_a_source_that_is_declared_later_holds_the_watermark(tmp_path: Path, clock: list[int]) -> None:
    run(tmp_path / "root", STREAM, clock)
    later = [*STREAM, both(rows("orders", 70), rows("prices", 70)), rows("stocks", 65)]
    run(tmp_path / "root", later, clock, sources=["orders", "prices", "stocks"])
    assert marks(tmp_path / "root")[3:] == [55, 55, 65]


def test_sources_that_are_distinguished_otherwise_are_refused(tmp_path: Path, clock: list[int]) -> None:
    run(tmp_path / "root", STREAM, clock)
    with pytest.raises(IncompatibleError) as caught:
        run(tmp_path / "root", STREAM, clock, by="k", sources=[])
    assert caught.value.context["why"] == {
        "watermark": "sources were identified by another column, so how far each has come is not known"
    }


def test_sources_fall_idle_between_batches(tmp_path: Path, clock: list[int]) -> None:
    alone = job(idle_timeout="5 seconds").standalone(checkpoint=tmp_path / "root")

    def timed() -> Iterator[pa.Table]:
        for now, batch in ((0, STREAM[0]), (4, rows("orders", 40)), (7, rows("orders", 41))):
            clock[0] = now * SECOND
            yield batch

    alone.run(timed())
    assert marks(tmp_path / "root") == [3, 3, 41]


def test_a_clock_that_jumps_back_stands_still(tmp_path: Path, clock: list[int]) -> None:
    alone = job(idle_timeout="5 seconds", generator=watermark.fixed("0 seconds")).standalone(
        checkpoint=tmp_path / "root"
    )

    def timed() -> Iterator[pa.Table]:
        for now in (10, 4, 11):
            clock[0] = now * SECOND
            yield rows("orders", 40)

    alone.run(timed())
    assert marks(tmp_path / "root") == [10, 10, 11]
    assert Checkpoint.open(tmp_path / "root").head() is not None


# What is refused


def refused(described: Aggregation) -> str:
    """The code of the error that it raises."""
    with pytest.raises(UsageError) as caught:
        described.harness(SCHEMA)
    return caught.value.code


def test_settings_that_contradict_each_other_are_refused() -> None:
    def counted(events: Stream) -> Aggregation:
        return events.group_by().window(ts.tumbling("10 seconds")).aggregate(n=agg.count())

    events = ts.stream(event_time="t")
    described = counted(events)
    for wrong in ("yesterday", 5):
        with pytest.raises(UsageError) as caught:
            counted(events.watermark(wrong))  # type: ignore[arg-type]
        assert caught.value.code == "watermark"
    with pytest.raises(UsageError) as caught:
        counted(events.watermark(watermark.bounded(), sources=["orders"]))
    assert caught.value.code == "watermark"
    assert refused(counted(events.watermark(watermark.bounded(), by="nowhere"))) == "column-missing"
    assert refused(counted(events.watermark(watermark.punctuated("t", flag="nowhere")))) == "column-missing"
    for tick in ("0 seconds", "-1 seconds"):
        with pytest.raises(UsageError) as caught:
            described.on_spark(None, checkpoint="nowhere", tick=tick)  # type: ignore[arg-type]
        assert caught.value.code == "tick"


@pytest.mark.parametrize("generator", [watermark.bounded(column="t"), watermark.fixed("1 second")])
def test_windows_that_have_a_watermark_of_their_own_take_no_other(generator: Generator) -> None:
    by_clock = ts.stream(processing_time=True).watermark(generator).group_by().window(ts.tumbling("10 seconds"))
    assert refused(by_clock.aggregate(n=agg.count())) == "processing-time"
    numbered = ts.stream(offset="v").watermark(generator).group_by().window(ts.offset_windows(5))
    assert refused(numbered.aggregate(n=agg.count())) == "offset"


def test_a_trigger_by_the_clock_waits_for_it(tmp_path: Path) -> None:
    described = job().trigger(early=trigger.after_processing_time("5 seconds"))
    tested = described.harness(SCHEMA, folder=tmp_path / "root")
    tested.feed(rows("orders", 15))
    due = evidence.operator(evidence.manifests(tmp_path / "root")[-1])["due_us"]
    assert due == 5 * SECOND
    assert tested.advance_processing_time(due - 1).num_rows == 0
    panes = tested.advance_processing_time(due)
    assert [str(timing) for timing in panes["timing"]] == ["early"]
    assert evidence.operator(evidence.manifests(tmp_path / "root")[-1]).get("due_us") is None
