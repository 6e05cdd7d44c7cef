"""Sessions by messages against a naive twin: a loop over the stream in the order of offsets."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as run_settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.bundles import other_needs
from tests.helpers.process import LONG, SCRATCH
from tests.twins.message_sessions import SENT_SCHEMA, Sent, Twin, arrow, job, panes_of
from tidestate import agg, trigger
from tidestate.operators import WindowOperator
from tidestate.recovery.log.manifest import DeliveryId
from tidestate.statestore.errors import IncompatibleError, UsageError
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB

EXAMPLES_OF_MESSAGES = run_settings.default.max_examples if LONG else max(5, run_settings.default.max_examples // 3)


@st.composite
def streams(draw: st.DrawFn) -> list[list[Sent]]:
    """Batches of messages with holes between offsets, in any order within a batch, some of which come again."""
    at, values, sent, batches = draw(st.integers(0, 5)), count(), list[Sent](), []
    for size in draw(st.lists(st.integers(0, 12), min_size=1, max_size=8)):
        batch = []
        for _ in range(size):
            batch.append(Sent(at, draw(st.sampled_from(["a", "a", "b", "c", "d", None])), next(values)))
            at += draw(st.sampled_from([1, 1, 1, 2, 40, 1000]))
        again = draw(st.lists(st.sampled_from(sent + batch), max_size=4)) if sent + batch else []
        sent += batch
        batch += again
        offset_behind = draw(st.integers(0, at))
        if sent and offset_behind < (sent[-1].at or 0) and offset_behind not in {message.at for message in sent}:
            batch.append(Sent(offset_behind, "a", next(values)))
        batch += [Sent(None, "a", next(values))] if draw(st.integers(0, 9)) == 0 else []
        batches.append(draw(st.permutations(batch)))
    return batches


@run_settings(max_examples=EXAMPLES_OF_MESSAGES)
@given(streams(), st.integers(0, 4), st.booleans(), st.data())
def test_the_harness_equals_the_twin_whatever_comes_again(
    batches: list[list[Sent]], without: int, key: bool, data: st.DataObject
) -> None:
    twin = Twin(without, key)
    with job(without, key=key).harness(SENT_SCHEMA, partitions=data.draw(st.sampled_from([1, 3]))) as harness:
        for batch in batches:
            assert panes_of(harness.feed(arrow(batch))) == sorted(twin.take(batch))
            if data.draw(st.booleans()):
                harness.restart()
        assert panes_of(harness.finish()) == sorted(twin.end())
        ledger = [(row["at"], row["reason"]) for row in harness.ledger().to_pylist()]
        assert sorted(ledger, key=str) == sorted(twin.refused, key=str)
        counters = harness.counters()
        assert counters["events"] == sum(map(len, batches))
        assert counters["accepted"] == counters["events"] - len(ledger)


@run_settings(max_examples=EXAMPLES_OF_MESSAGES)
@given(streams(), st.integers(0, 3), st.data())
def test_any_cut_gives_the_same_sessions(batches: list[list[Sent]], without: int, data: st.DataObject) -> None:
    """Of a stream whose offsets rise, on any number of state partitions, in one run or several."""
    once = {message.at: message for batch in batches for message in batch if message.at is not None}
    stream = [once[at] for at in sorted(once)]
    twin = Twin(without)
    expected = sorted([*twin.take(stream), *twin.end()])
    cuts = sorted({0, *data.draw(st.lists(st.integers(0, len(stream)), max_size=6)), len(stream)})
    parts = [arrow(stream[start:end]) for start, end in pairwise(cuts)] or [arrow([])]
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        store = data.draw(st.sampled_from([Memory(), Parquet(), RocksDB(cache_dir=f"{folder}/cache")]))
        options: Any = {"partitions": data.draw(st.integers(1, 4)), "store": store}
        first = data.draw(st.integers(1, len(parts)))
        # What a run has taken, the next one skips.
        found = panes_of(job(without).standalone(checkpoint=f"{folder}/root", **options).run(parts[:first]))
        found += panes_of(job(without).standalone(checkpoint=f"{folder}/root", **options).run(parts, drain=True))
        assert sorted(found) == expected


@run_settings(max_examples=EXAMPLES_OF_MESSAGES if LONG else EXAMPLES_OF_MESSAGES // 2)
@given(streams(), st.integers(0, 3), st.data())
def test_by_hand_as_the_twin(batches: list[list[Sent]], without: int, data: st.DataObject) -> None:
    twin, expected, delivered = Twin(without), list[Any](), dict[DeliveryId, list[Any]]()
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        operator = by_hand(without, folder)
        for batch in ([message for message in batch if message.at is not None] for batch in batches):
            operator.add_messages(arrow(batch))
            expected += twin.take(batch)
            if data.draw(st.booleans()):
                operator.close()
                operator = by_hand(without, folder)
                operator.add_messages(arrow(batch))  # nobody knows what of it is durable
            operator.flush()
            delivered |= taken_by(operator)
            bounds = [
                (row["window_start"], row["window_end"], row["k"]) for row in operator.get_windows().to_pylist()
            ]
            assert sorted(bounds) == sorted(twin.windows())
        operator.drain()
        delivered |= taken_by(operator)
        operator.close()
    assert sorted(row for rows in delivered.values() for row in rows) == sorted([*expected, *twin.end()])


def by_hand(without: int, folder: str | Path, **more: Any) -> WindowOperator:
    windows = job(without, origin="part").graph.description
    return WindowOperator(
        windows, SENT_SCHEMA, checkpoint=f"{folder}/hand", origin="part", offset="at", store=Memory(), **more
    )


def taken_by(operator: WindowOperator) -> dict[DeliveryId, list[tuple[Any, ...]]]:
    """Panes by their delivery: one that is not acknowledged comes again, under the same id."""
    delivered = {}
    for result in operator.get_result():
        delivered[result.id] = panes_of(result.panes)
        operator.acknowledge(result.id)
    return delivered


def given_as(offsets: Sequence[int], keys: str) -> list[Sent]:
    return [Sent(at, key, place) for place, (at, key) in enumerate(zip(offsets, keys, strict=True))]


COMPACTED = given_as([3, 10, 500, 501, 502, 9000, 9001], "aababba")
"""What is left of a topic in which most messages were overwritten."""


def test_holes_between_offsets_count_as_nothing(tmp_path: Path) -> None:
    """With offsets in place of messages each of these is a session of its own, but for those side by side."""
    panes = job(1).standalone(checkpoint=tmp_path / "messages").run([arrow(COMPACTED)], drain=True)
    assert panes_of(panes) == [
        (0, 6, "a", 3, 0 + 1 + 3, [3, 10, 501]),
        (2, 8, "b", 3, 2 + 4 + 5, [500, 502, 9000]),
        (6, 9, "a", 1, 6, [9001]),
    ]
    by_offset = ts.stream(offset="at").group_by("k").window(ts.offset_sessions(3)).aggregate(n=agg.count())
    by_offset = by_offset.accumulation("retracting")
    panes = by_offset.standalone(checkpoint=tmp_path / "offsets").run([arrow(COMPACTED)], drain=True)
    assert sorted(panes["n"].to_pylist()) == [1, 1, 1, 1, 1, 2]


def test_without_holes_they_are_the_sessions_of_offsets(tmp_path: Path) -> None:
    stream = arrow(given_as(range(40), "aabacbbbaccccaabaaccbbbabbcabcaabbbccaab"))
    found = {}
    for name, window in (("messages", ts.message_sessions(2)), ("offsets", ts.offset_sessions(4))):
        windows = ts.stream(offset="at").group_by("k").window(window).aggregate(n=agg.count(), newest=agg.max("at"))
        windows = windows.accumulation("retracting")
        panes = windows.standalone(checkpoint=tmp_path / name).run([stream], drain=True)
        # That no pane follows is said of sessions of messages alone: none can come late.
        found[name] = sorted(tuple(row.values()) for row in panes.drop_columns(["last"]).to_pylist())
    assert found["messages"] == found["offsets"]
    assert len(found["messages"]) > 8


def test_early_panes_are_taken_back_when_a_session_grows(tmp_path: Path) -> None:
    growing = job(1).trigger(early=trigger.each_batch()).accumulation("retracting")
    batches = [arrow(COMPACTED[:2]), arrow(COMPACTED[2:4]), arrow(COMPACTED[4:])]
    panes = growing.standalone(checkpoint=tmp_path).run(batches, drain=True).to_pylist()
    of_a = [(row["window_end"], row["n"], row["timing"], row["kind"]) for row in panes if row["k"] == "a"]
    assert of_a == [
        (4, 2, "early", "emit"),
        (4, 2, "early", "retract"),
        (6, 3, "early", "emit"),
        (9, 1, "early", "emit"),
    ]  # each had its result when it ended


def test_a_root_says_how_far_it_has_counted(tmp_path: Path) -> None:
    job(1).standalone(checkpoint=tmp_path).run([arrow(COMPACTED[:4]), arrow(COMPACTED[2:6])])
    newest = evidence.manifests(tmp_path)[-1]
    assert other_needs(newest["needs"]) == ["sessions-by-messages/1", "wide-sums/1"]
    assert newest["operators"]["job"]["numbering"] == {"messages": 6, "offset": 9000}
    assert newest["operators"]["job"]["watermark_us"] == 6
    root = ts.Root(tmp_path)
    late = root.late().to_table().to_pylist()
    assert [(row["at"], row["message_number"], row["reason"]) for row in late] == [
        (500, None, "passed_offset"),
        (501, None, "passed_offset"),
    ]
    found = root.windows().to_table().to_pylist()
    assert [(row["window_start"], row["window_end"], row["k"], row["n"]) for row in found] == [(2, 8, "b", 3)]


def test_a_job_with_another_number_is_another_job(tmp_path: Path) -> None:
    job(1).standalone(checkpoint=tmp_path).run([arrow(COMPACTED[:4])])
    for window in (ts.message_sessions(2), ts.offset_sessions(3)):
        changed = ts.stream(offset="at").group_by("k").window(window)
        changed = changed.aggregate(n=agg.count(), total=agg.sum("v"), offsets=agg.list("at")).named("job")
        with pytest.raises(IncompatibleError, match="state is kept by window"):
            changed.accumulation("retracting").standalone(checkpoint=tmp_path).run([arrow(COMPACTED)])


def test_results_may_change(tmp_path: Path) -> None:
    """What the manifest has counted stays: numbers go on where they were."""
    job(1).standalone(checkpoint=tmp_path).run([arrow(COMPACTED[:4])])
    more = ts.stream(offset="at").group_by("k").window(ts.message_sessions(1))
    more = more.aggregate(n=agg.count(), total=agg.sum("v"), offsets=agg.list("at"), most=agg.max("v")).named("job")
    panes = more.standalone(checkpoint=tmp_path).run([arrow(COMPACTED[:4]), arrow(COMPACTED[4:])], drain=True)
    assert sorted((row["window_start"], row["window_end"]) for row in panes.to_pylist()) == [(0, 6), (2, 8), (6, 9)]


def test_a_second_origin_is_refused_even_if_its_offsets_are_behind(tmp_path: Path) -> None:
    windows = job(1, origin="part")
    with windows.harness(SENT_SCHEMA, folder=tmp_path) as harness:
        harness.feed(arrow([Sent(5, "a", 1)]))
        with pytest.raises(UsageError, match="several-origins"):
            harness.feed(arrow([Sent(3, "a", 1, "q")]))
        harness.restart()
        with pytest.raises(UsageError, match="several-origins"):
            harness.feed(arrow([Sent(7, "a", 1, "q")]))
        assert panes_of(harness.finish()) == [(0, 3, "a", 1, 1, [5])]


def _upstream() -> Any:
    rows = ts.stream(event_time="t", offset="at").deduplicate("at", within="1 hour")
    return rows.group_by("k").window(ts.message_sessions(1)).aggregate(n=agg.count())


REFUSED: dict[str, tuple[Any, str]] = {
    "less than no message": (lambda: job(-1), "window-count"),
    "no number": (lambda: job(True), "argument"),
    "no offset": (
        lambda: ts.stream(event_time="t").group_by("k").window(ts.message_sessions(1)).aggregate(n=agg.count()),
        "offset",
    ),
    "a lateness": (lambda: job(1).allowed_lateness("3 seconds"), "message-sessions"),
    "a retention of windows": (lambda: job(1).retain_windows("1 hour"), "retention"),
    "an order of times": (lambda: job(1).in_order(), "in-order"),
    "stored messages": (lambda: job(1, origin="part").messages(retain=ts.Retention(messages=9)), "message-sessions"),
    "a layout": (lambda: job(1, origin="part").messages(layout="<ts>_<offset>"), "message-"),
    "rows of an operator": (_upstream, "message-sessions"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    make, code = REFUSED[case]
    schema = SENT_SCHEMA.append(pa.field("t", pa.timestamp("us", "UTC")))
    with pytest.raises(UsageError, match=code):
        make().harness(schema).close()


def test_late_messages_cannot_be_given_again(tmp_path: Path) -> None:
    with job(1).harness(SENT_SCHEMA, folder=tmp_path) as harness:
        harness.feed(arrow(COMPACTED))
        with pytest.raises(UsageError, match="feed"):
            harness.reprocess_late(arrow(COMPACTED[:1]))


def test_by_hand_stores_no_messages(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="message-sessions"):
        by_hand(1, tmp_path, retention=ts.Retention(messages=5))
    with by_hand(1, tmp_path) as operator:
        operator.add_messages(arrow(COMPACTED[:4]))
        again = operator.add_messages(arrow(COMPACTED[:4]))
        # Those that no open session has are not known any more: they are behind, which is as good.
        assert (again["duplicates"], again["passed_offset"]) == (2, 2)
        operator.flush()
        assert operator.replay_from().to_pylist() == [{"origin": "p", "start_offset": 3, "last_offset": 501}]
