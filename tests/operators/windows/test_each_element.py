"""Panes per element: those of a batch are those of batches of one element, whose triggers look at each batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.cuts import MEMORY
from tests.helpers.every_store import new_folder
from tests.helpers.process import examples, in_turn
from tidestate import agg, trigger, watermark
from tidestate.operators.streams.setting_words import settings_of
from tidestate.statestore.errors import UsageError

TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("t", TIME), ("k", pa.string()), ("v", pa.int64())])
SECOND = 1_000_000
WINDOWS = {
    "tumbling": ts.tumbling("10 seconds"),
    "sliding": ts.sliding("10 seconds", "5 seconds"),
    "sessions": ts.sessions("3 seconds"),
    "counted": ts.count_windows(3),
    "global": ts.global_window(),
}
MODES = ("accumulating", "discarding", "retracting")
# By element, and what says the same of batches with one element.
TRIGGERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "each": (
        {"early": trigger.each_element(), "late": trigger.each_element()},
        {"early": trigger.each_batch(), "late": trigger.each_batch()},
    ),
    "counts that differ": (
        {"early": trigger.after_count(2), "late": trigger.after_count(3), "evaluate": "element"},
        {"early": trigger.after_count(2), "late": trigger.after_count(3)},
    ),
    "late by time": (
        {"early": trigger.each_element(), "late": trigger.after_processing_time("2 seconds")},
        {"early": trigger.each_batch(), "late": trigger.after_processing_time("2 seconds")},
    ),
    "early by time": (
        {"early": trigger.every_processing_time("2 seconds"), "late": trigger.each_element()},
        {"early": trigger.every_processing_time("2 seconds"), "late": trigger.each_batch()},
    ),
    "no late panes": ({"early": trigger.each_element(), "late": None}, {"early": trigger.each_batch(), "late": None}),
    "composite": (
        {"when": trigger.repeatedly(trigger.after_count(2)), "evaluate": "element"},
        {"when": trigger.repeatedly(trigger.after_count(2))},
    ),
}


def ordered(window: Any = WINDOWS["tumbling"]) -> ts.Aggregation:
    """Of a stream whose elements have an order, which every version knows."""
    grouped = ts.stream(event_time="t", offset="v").group_by("k").window(window)
    return grouped.aggregate(n=agg.count()).accumulation("retracting")


class Moment(NamedTuple):
    """A batch, then how far the watermark and the clock move, in seconds."""

    rows: list[tuple[int, str, int]]
    watermark: int
    clock: int


MOMENTS = st.lists(
    st.builds(
        Moment,
        st.lists(st.tuples(st.integers(0, 40), st.sampled_from("ab"), st.integers(-3, 3)), max_size=5),
        st.integers(0, 12),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=3,
)


def described(window: str, triggers: dict[str, Any], mode: Any) -> ts.Aggregation:
    # The watermark stands still while a batch is processed, as time does within one.
    stream = ts.stream(event_time="t").watermark(watermark.punctuated("t", flag="v", equals=99))
    windows = stream.group_by("k").window(WINDOWS[window])
    counted = windows.aggregate(n=agg.count(), total=agg.sum("v"), values=agg.list("v"))
    return counted.allowed_lateness("20 seconds").trigger(**triggers).accumulation(mode)


def panes_of(
    jobs: Sequence[ts.Aggregation], moments: Sequence[Moment], partitions: int, *, alone: bool
) -> list[dict[str, Any]]:
    """The panes of all moments and the end; ``alone``: each row comes in a batch of its own. Of two jobs the first
    one runs until the last moment, by whole batches, and then the second one goes on.
    """
    found, mark, clock, runs = [], 0, 1, len(jobs)
    with new_folder() as folder:
        run = jobs[0].harness(SCHEMA, partitions=partitions, folder=folder, store=MEMORY)
        run.advance_processing_time(clock * SECOND)
        for number, moment in enumerate(moments):
            last = number == len(moments) - 1
            if runs > 1 and last:
                run.close()
                run = jobs[-1].harness(SCHEMA, partitions=partitions, folder=folder, store=MEMORY)
            for rows in [[row] for row in moment.rows] if alone and (last or runs == 1) else [moment.rows]:
                found += run.feed(batch_of(rows)).to_pylist()
            mark, clock = mark + moment.watermark, clock + moment.clock
            found += run.advance_watermark(mark * SECOND).to_pylist()
            found += run.advance_processing_time(clock * SECOND).to_pylist()
        found += run.finish().to_pylist()
        run.close()
    return found


def batch_of(rows: Sequence[tuple[int, str, int]]) -> pa.Table:
    times, keys, values = zip(*rows, strict=True) if rows else ((), (), ())
    stamps = pa.array([time * SECOND for time in times], pa.int64()).cast(TIME)
    return pa.table([stamps, pa.array(keys, pa.string()), pa.array(values, pa.int64())], schema=SCHEMA)


def by_window(panes: Sequence[dict[str, Any]], window: str) -> dict[Any, list[dict[str, Any]]]:
    """The panes of each window in order; of sessions, whose bounds change, those of each key."""
    found = defaultdict(list)
    for pane in panes:
        bounds = () if window == "sessions" else (pane["window_start"], pane["window_end"])
        found[pane["k"], *bounds].append(pane)
    return dict(found)


@pytest.mark.parametrize(
    ("window", "triggers", "moments", "expected"),
    [
        # The third message fills the window; the fourth is the first of another, whose early pane comes first.
        ("counted", "each", [[1, 2, 3, 4]], ["early 1", "early 2", "early 1", "on_time 3", "on_time 1"]),
        # 12 is a session of its own until 9 joins both.
        ("sessions", "each", [[7, 12, 9, 10]], ["early 1", "early 1", "early 2", "early 4", "on_time 4"]),
        # The watermark has passed 10: both late elements wait for the clock.
        ("tumbling", "late by time", [[1, 2], [3, 4]], ["early 1", "early 2", "on_time 2", "late 4"]),
        ("tumbling", "each", [[1, 2], [3, 4]], ["early 1", "early 2", "on_time 2", "late 3", "late 4"]),
    ],
)
def test_examples(window: str, triggers: str, moments: list[list[int]], expected: list[str]) -> None:
    job = described(window, TRIGGERS[triggers][0], "accumulating")
    made = [Moment([(time, "a", 0) for time in times], 15, 3) for times in moments]
    panes = panes_of([job], made, 1, alone=False)
    assert [f"{pane['timing']} {pane['n']}" for pane in panes] == expected


@pytest.mark.parametrize("window", WINDOWS)
@settings(max_examples=examples(30))
@given(
    moments=MOMENTS,
    triggers=st.sampled_from(sorted(TRIGGERS)),
    mode=st.sampled_from(MODES),
    partitions=st.sampled_from([1, 3]),
)
def test_a_batch_is_as_its_elements(
    window: str, triggers: str, moments: list[Moment], mode: Any, partitions: int
) -> None:
    by_element, by_batch = TRIGGERS[triggers]
    expected = panes_of([described(window, by_batch, mode)], moments, 1, alone=True)
    found = panes_of([described(window, by_element, mode)], moments, partitions, alone=False)
    assert by_window(found, window) == by_window(expected, window)


@pytest.mark.parametrize("side", ["early", "late"])
@settings(max_examples=examples(40))
@given(
    moments=MOMENTS,
    window=st.sampled_from([window for window in WINDOWS if window != "sessions"]),
    mode=st.sampled_from(MODES),
    partitions=st.sampled_from([1, 3]),
)
def test_one_trigger_may_look_at_elements_and_the_other_at_batches(
    side: str, moments: list[Moment], window: str, mode: Any, partitions: int
) -> None:
    """The panes of each are those of jobs with one kind of trigger; how many came before counts anew."""
    other = "late" if side == "early" else "early"
    mixed = {side: trigger.each_element(), other: trigger.each_batch()}
    panes = panes_of([described(window, mixed, mode)], moments, partitions, alone=False)
    by_element, by_batch = (
        panes_of([described(window, triggers, mode)], moments, 1, alone=False) for triggers in TRIGGERS["each"]
    )

    def of_timing(found: list[dict[str, Any]], *, late: bool) -> dict[Any, list[Any]]:
        chosen = [{**pane, "pane": None} for pane in found if (pane["timing"] == "late") == late]
        return by_window(chosen, window)

    assert of_timing(panes, late=side == "late") == of_timing(by_element, late=side == "late")
    assert of_timing(panes, late=side == "early") == of_timing(by_batch, late=side == "early")


def test_a_root_of_both_says_so_and_prints_both(tmp_path: Path) -> None:
    each = trigger.each_element(), trigger.each_batch()
    for early, late in (each, each[::-1]):
        job = described("tumbling", {"early": early, "late": late}, "accumulating")
        folder = tmp_path / str(early)
        job.standalone(checkpoint=folder).run([batch_of([(1, "a", 1)])])
        assert "panes-by-element-or-batch/1" in evidence.manifests(folder)[-1]["needs"]
        written = settings_of(job.graph.description)["trigger"]
        assert "early=" in written
        assert "late=" in written
    with pytest.raises(UsageError, match="a session takes a step"):
        described("sessions", {"early": trigger.each_element(), "late": trigger.each_batch()}, "accumulating")


@pytest.mark.parametrize(("window", "triggers"), in_turn(WINDOWS, [name for name in TRIGGERS if name != "composite"]))
@settings(max_examples=examples(10))
@given(
    moments=MOMENTS,
    mode=st.sampled_from(MODES),
    former=st.sampled_from([{}, {"early": trigger.after_count(3), "late": trigger.after_count(3)}]),
)
def test_also_once_triggers_have_changed(
    window: str, triggers: str, moments: list[Moment], mode: Any, former: dict[str, Any]
) -> None:
    by_element, by_batch = TRIGGERS[triggers]
    before = described(window, former, mode)
    expected = panes_of([before, described(window, by_batch, mode)], moments, 2, alone=True)
    found = panes_of([before, described(window, by_element, mode)], moments, 2, alone=False)
    assert by_window(found, window) == by_window(expected, window)


@pytest.mark.parametrize(
    ("job", "named"),
    [
        (described("tumbling", TRIGGERS["each"][0], "accumulating"), True),
        (described("sessions", TRIGGERS["composite"][0], "accumulating"), True),
        (described("tumbling", TRIGGERS["each"][1], "accumulating"), False),
        (ordered().trigger(early=trigger.each_element()), False),
        (ordered().trigger(early=trigger.each_element(), late=trigger.batched()), True),
        (ordered(WINDOWS["sessions"]).trigger(early=trigger.each_element()), True),
        (ordered(WINDOWS["sessions"]).trigger(when=TRIGGERS["composite"][0]["when"], evaluate="element"), False),
    ],
)
def test_a_root_names_what_earlier_versions_do_not_know(job: ts.Aggregation, named: bool, tmp_path: Path) -> None:
    job.standalone(checkpoint=tmp_path).run([batch_of([(1, "a", 1)])])
    assert ("panes-by-element/1" in evidence.manifests(tmp_path)[-1].get("needs", [])) is named
