"""Watermarks from buffers, in the runners: gaps, duplicates, any order of arrival, restarts."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.buffers import SCHEMA, SECOND, buffer, job
from tests.helpers.internals import job_of, plan_of
from tests.helpers.process import LONG, SCRATCH
from tidestate import agg, watermark
from tidestate.operators.local.harness import Harness
from tidestate.operators.progress.cut_buffers import ArrivedBuffers, arrived_buffers, distinct_buffers
from tidestate.operators.progress.origins import buffers, gaps_waited_for
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import Memory


def both(*tables: pa.Table) -> pa.Table:
    return pa.concat_tables(tables)


def harness(folder: Path, *sources: str, patience: str | None = None, **settings: Any) -> Harness:
    return job([*sources], patience, **settings).harness(SCHEMA, folder=folder / "root", partitions=2)


def marks(root: Path) -> list[float | None]:
    found = [manifest.get("watermark_us") for manifest in evidence.work(root)]
    return [None if mark is None else mark / SECOND for mark in found]


def test_the_watermark_is_that_of_the_longest_whole_prefix(tmp_path: Path) -> None:
    tested = harness(tmp_path, "1")
    tested.feed(buffer(1, 1, 1, mark=2))
    tested.feed(buffer(1, 3, 31, mark=30))
    tested.feed(both(buffer(1, 2, 5, mark=12, last=False), buffer(1, 4, 40, mark=40)))
    panes = tested.feed(buffer(1, 2, 6, mark=11, chunk=1))
    assert marks(tmp_path / "root") == [2, 2, 2, 40]
    assert panes["n"].to_pylist() == [3, 1]


def test_each_origin_is_a_source(tmp_path: Path) -> None:
    tested = harness(tmp_path, "1", "2", idle_timeout="5 seconds")
    tested.feed(buffer(1, 1, 1, mark=20))
    tested.feed(both(buffer(2, 1, 1, mark=10), buffer(3, 1, 1, mark=5)))
    assert marks(tmp_path / "root") == [None, 5]
    tested.advance_processing_time(4 * SECOND)
    tested.feed(both(buffer(1, 2, 25, mark=22), buffer(3, 2, 25, mark=21)))
    tested.advance_processing_time(6 * SECOND)
    assert marks(tmp_path / "root")[-1] == 21


def test_a_buffer_that_comes_again_is_not_counted_twice(tmp_path: Path) -> None:
    tested = harness(tmp_path, "1")
    tested.feed(both(buffer(1, 1, 1, mark=0), buffer(1, 3, 2, 3, mark=0)))
    tested.feed(both(buffer(1, 1, 1, mark=0), buffer(1, 3, 2, 3, mark=0), buffer(1, 2, 4, mark=0)))
    tested.restart()
    tested.feed(buffer(1, 2, 4, mark=0))
    assert tested.finish()["n"].to_pylist() == [4]
    counters = tested.counters()
    assert (counters["duplicate_buffer"], counters["events"], counters["accepted"]) == (4, 8, 4)
    assert set(tested.ledger()["reason"].to_pylist()) == {"duplicate_buffer"}
    found = evidence.operator(evidence.manifests(tmp_path / "root")[-1])["buffers"]["origins"]
    assert found["origins"] == [[1, 3, 0, -1]]
    assert (found["counters"]["counted"], found["counters"]["seen_before"]) == (3, 3)


def test_an_origin_that_has_ended_holds_nothing_back(tmp_path: Path) -> None:
    schema = SCHEMA.append(pa.field("final", pa.bool_()))
    progress = watermark.buffers(
        origin="origin", sequence="sequence", watermark="mark", chunk="chunk", last="last", end="final"
    )
    events = ts.stream(event_time="t").watermark(progress, sources=["1", "2"])
    described = events.group_by("k").window(ts.tumbling("10 seconds")).aggregate(n=agg.count())
    tested = described.harness(schema, folder=tmp_path / "root")

    def feed(table: pa.Table, final: bool = False) -> None:
        tested.feed(table.append_column("final", pa.array([final] * table.num_rows)))

    feed(both(buffer(1, 1, 1, mark=20), buffer(2, 1, 1, mark=5)))
    feed(buffer(2, 3, 7, mark=7), final=True)
    assert marks(tmp_path / "root")[-1] == 5  # 2 is still to come
    tested.restart()
    feed(buffer(2, 2, 6, mark=6))
    assert marks(tmp_path / "root")[-1] == 20
    feed(buffer(1, 2, 30, mark=30))
    assert marks(tmp_path / "root")[-1] == 30


def test_rows_without_a_buffer_are_events_all_the_same(tmp_path: Path) -> None:
    tested = harness(tmp_path, "1")
    tested.feed(both(buffer(None, 1, 1), buffer(1, None, 2), buffer(1, 0, 3), buffer(1, 1, 4, mark=5)))
    assert marks(tmp_path / "root") == [5]
    assert tested.finish()["n"].to_pylist() == [4]
    manifest = evidence.manifests(tmp_path / "root")[-1]
    assert evidence.operator(manifest)["buffers"]["origins"]["counters"]["bad_sequence"] == 3
    assert set(evidence.operator(manifest)["progress"]["sources"]) == {"1"}


def test_a_gap_holds_the_watermark_until_patience_ends_and_what_comes_then_is_refused(tmp_path: Path) -> None:
    tested = harness(tmp_path, "1", patience="5 seconds")
    tested.feed(both(buffer(1, 1, 1, mark=2), buffer(1, 4, 31, mark=30)))
    gap = gaps_waited_for(job_of(tested).progress[plan_of(tested).name].generator.buffers[""], 0)
    assert [(one.origin, one.first, one.last, one.since_us) for one in gap] == [(1, 2, 3, 0)]
    tested.advance_processing_time(5 * SECOND)
    assert marks(tmp_path / "root")[-1] == 2
    assert tested.advance_processing_time(5 * SECOND + 1)["n"].to_pylist() == [1]
    assert marks(tmp_path / "root")[-1] == 30
    tested.feed(both(buffer(1, 2, 33), buffer(1, 4, 31), buffer(1, 5, 34, mark=33)))
    assert tested.ledger().select(["sequence", "reason"]).to_pylist() == [
        {"sequence": 2, "reason": "gap_given_up"},
        {"sequence": 4, "reason": "duplicate_buffer"},
    ]
    counters = tested.counters()
    assert (counters["duplicate_buffer"], counters["gap_given_up"], counters["accepted"]) == (1, 1, 3)
    assert marks(tmp_path / "root")[-1] == 33


def test_a_gap_is_not_waited_for_between_two_runs(tmp_path: Path) -> None:
    tested = harness(tmp_path, "1", patience="5 seconds")
    tested.feed(both(buffer(1, 1, 1, mark=2), buffer(1, 4, 31, mark=30)))
    tested.restart()
    tested.advance_processing_time(60 * SECOND)
    tested.advance_processing_time(65 * SECOND)
    assert marks(tmp_path / "root")[-1] == 2
    tested.advance_processing_time(66 * SECOND)
    assert marks(tmp_path / "root")[-1] == 30


def test_what_makes_no_sense_is_refused() -> None:
    wrong = {
        "watermark": lambda: job(["1"], by="k"),
        "progress-source": lambda: job(["orders"]),
        "column-missing": lambda: job(["1"]).harness(SCHEMA.remove(6)),
        "progress-column": lambda: job(["1"]).harness(SCHEMA.set(3, pa.field("sequence", pa.string()))).feed([{}]),
    }
    for code, one in wrong.items():
        with pytest.raises(UsageError) as caught:
            one()
        assert caught.value.code == code
    with pytest.raises(UsageError) as caught:
        watermark.buffers(origin="origin", sequence="sequence", watermark="mark", patience="0 seconds")
    assert caught.value.code == "watermark"


def test_buffers_travel_as_they_are() -> None:
    given_ = buffers(
        pa.array([2, 1, None, 2]),
        pa.array([1, 1, 1, 1]),
        0,
        pa.array([False, True, True, True]),
        pa.array([5, None, 7, 9]),
    )
    distinct, owner = distinct_buffers(given_)
    assert owner.tolist() == [1, 0, 2, 1]
    made = arrived_buffers(distinct, owner, None, np.zeros(4, bool))
    again = ArrivedBuffers.unpacked([made.packed(), made.packed(), b""])
    assert again.buffers.origins[:2].tolist() == [1, 2]
    assert again.buffers.watermarks_us[1] == 9
    assert (len(again.buffers), len(again.merged().buffers)) == (6, 3)
    assert again.buffers.last[1]
    assert again.merged().rows.tolist() == [2, 4, 2]
    nothing = ArrivedBuffers.unpacked([])
    assert [len(nothing.merged().buffers), len(ArrivedBuffers.unpacked([nothing.packed()]).buffers)] == [0, 0]


@given(data=st.data())
@settings(max_examples=settings.default.max_examples if LONG else 5)
def test_any_order_cut_and_repetition_of_buffers_gives_the_same_watermark_and_counts(data: st.DataObject) -> None:
    chance = np.random.default_rng(data.draw(st.integers(0, 1000)))
    whole = [
        buffer(origin, sequence, *chance.integers(0, 90, 2).tolist(), mark=sequence, chunk=chunk, last=chunk == 1)
        for origin in (1, 2)
        for sequence in range(1, 6)
        for chunk in (0, 1)
    ]
    order = data.draw(st.permutations(range(len(whole))))
    again = data.draw(st.lists(st.sampled_from(range(len(whole))), max_size=5))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(whole) - 1), max_size=4)))
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        tested = job(["1", "2"]).allowed_lateness("1 day").harness(SCHEMA, store=Memory(), folder=folder)
        for first, last in zip([0, *cuts], [*cuts, len(whole)], strict=True):
            tested.feed(both(*(whole[number] for number in order[first:last])))
        if again:
            tested.feed(both(*(whole[number] for number in again)))
        head = evidence.manifests(Path(folder))[-1]
        tested.finish()
    assert head["watermark_us"] == 5 * SECOND
    assert head["totals"]["accepted"] == 40
    assert head["totals"].get("duplicate_buffer", 0) == 2 * len(again)
    assert evidence.operator(head)["buffers"]["origins"]["origins"] == [
        [1, 5, 5 * SECOND, -1],
        [2, 5, 5 * SECOND, -1],
    ]


def test_a_join_of_two_origins_reads_each_through_a_deduplication(tmp_path: Path) -> None:
    """NebulaStream's diagram, "join_build1 --> join_probe; join_build2 --> join_probe": the watermark of the join is
    that of the origin whose longest whole prefix is behind, so a row without a partner waits for each missing buffer.
    """
    schema = SCHEMA.append(pa.field("id", pa.int64()))

    def side(name: str, origin: str) -> ts.Stream:
        progress = watermark.buffers(
            origin="origin", sequence="sequence", watermark="mark", chunk="chunk", last="last"
        )
        numbered = ts.stream(name, event_time="t").watermark(progress, sources=[origin])
        return numbered.deduplicate("id", within="1 day", name=f"once_{name}")

    joined = side("trucks", "1").join(side("cars", "2"), on="k", within=("0 s", "5 s"), how="left", name="met")
    tested = joined.harness({"trucks": schema, "cars": schema}, folder=tmp_path / "root", partitions=2)

    def fed(name: str, row_id: int, *about: int, **more: Any) -> list[tuple[int, int | None]]:
        rows = buffer(*about, **more)
        panes = tested.feed({name: rows.append_column(schema.field("id"), pa.array([row_id] * rows.num_rows))})
        return sorted((row["left_id"], row["right_id"]) for row in panes.to_pylist())

    assert fed("trucks", 10, 1, 1, 1, mark=1) == []
    assert fed("cars", 20, 2, 2, 50, mark=50) == [], "its first buffer is missing"
    assert fed("trucks", 11, 1, 2, 30, mark=30) == []
    assert fed("cars", 21, 2, 1, 4, mark=4, last=False) == [(10, 21)]
    assert fed("cars", 22, 2, 1, 31, mark=9, chunk=1) == [(11, 22)], "all up to 30 of both are in"
    assert fed("trucks", 12, 1, 4, 40, mark=60) == [], "the one before is missing"
    assert fed("trucks", 13, 1, 3, 35, mark=38) == [(12, None), (13, None)], "trucks are at 60, and cars at 50"
