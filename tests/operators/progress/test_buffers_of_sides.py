"""Joins, session joins, unions and merges whose sides each have numbered buffers, with origins of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.bundles import other_needs
from tests.helpers.internals import job_of
from tests.helpers.join_jobs import SECOND, TIME
from tidestate import OperatorStream, Stream, agg, watermark
from tidestate.operators.local.harness import Harness
from tidestate.operators.progress.metrics import families_of, gaps_of_progress
from tidestate.operators.progress.progress import Progress
from tidestate.statestore.errors import UsageError

SCHEMA = pa.schema(
    [
        *(("t", TIME), ("k", pa.string()), ("v", pa.int64()), ("o", pa.int64()), ("s", pa.int64()), ("m", TIME)),
        *(("rows", pa.int64()), ("final", pa.bool_()), ("chunk", pa.int64()), ("last", pa.bool_())),
    ]
)
WITHIN = ("0 seconds", "10 seconds")


def side(name: str, *sources: str, idle_timeout: str | None = None, **more: Any) -> Stream:
    progress = watermark.buffers(origin="o", sequence="s", watermark="m", **more)
    return ts.stream(name, event_time="t", offset="v").watermark(progress, sources=sources, idle_timeout=idle_timeout)


def plain(name: str) -> Stream:
    return ts.stream(name, event_time="t", offset="v")


def buffer(
    origin: int | None,
    sequence: int | None,
    mark: int,
    *events: int,
    rows: int = 0,
    final: bool = False,
    **of_chunk: Any,
) -> pa.Table:
    """A buffer with events of these seconds, whose values are the seconds too."""
    chunk = {"chunk": 0, "last": True} | of_chunk
    numbered = {"k": "a", "o": origin, "s": sequence, "m": mark * SECOND, "rows": rows, "final": final, **chunk}
    return pa.Table.from_pylist([{"t": at * SECOND, "v": at, **numbered} for at in events], SCHEMA)


def harness(job: OperatorStream, folder: Path, **more: Any) -> Harness:
    return job.harness(dict.fromkeys(job.graph.streams, SCHEMA), folder=folder / "root", partitions=2, **more)


def near(left: Stream, right: Stream, how: Any = "left") -> OperatorStream:
    return left.join(right, on="k", within=WITHIN, how=how, name="job")


def pairs(panes: pa.Table) -> list[tuple[int | None, int | None]]:
    return sorted(zip(panes["left_v"].to_pylist(), panes["right_v"].to_pylist(), strict=True), key=repr)


def marks(folder: Path) -> list[float | None]:
    found = [manifest.get("watermark_us") for manifest in evidence.work(folder / "root")]
    return [None if mark is None else mark / SECOND for mark in found]


def progress_of(job_run: Harness, name: str = "job") -> Progress:
    return job_of(job_run).progress[name]


@pytest.mark.parametrize("how", ["inner", "left", "full"])
def test_neither_side_goes_on_without_the_other(tmp_path: Path, how: str) -> None:
    """Origin 1 of the left side is far ahead. Its rows are not given up before the right side has come so far."""
    job_run = harness(near(side("left"), side("right"), how), tmp_path)
    assert pairs(job_run.feed({"left": buffer(1, 1, 5, 5)})) == []
    assert pairs(job_run.feed({"left": buffer(1, 2, 100, 100)})) == []
    assert marks(tmp_path) == [None, None]
    assert pairs(job_run.feed({"right": buffer(2, 1, 6, 6)})) == [(5, 6)]
    assert marks(tmp_path)[-1] == 6
    assert job_run.ledger().num_rows == 0


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_the_diagram_of_a_join_of_two_origins(tmp_path: Path, order: tuple[int, ...]) -> None:
    """NebulaStream's diagram, "join_build1 --> join_probe; join_build2 --> join_probe": source 1 has the watermark
    "now", source 2 "now + y". The join goes by the smaller one, and both are called by the origin of their own side.
    """
    now, y = 10, 7
    sent = [
        {"left": buffer(1, 1, now, 6)},
        {"right": buffer(2, 1, now + y, 8)},
        {"left": buffer(1, 2, now + 30, 31)},
        {"right": buffer(2, 2, now + 31, 90)},
    ]
    job_run = harness(near(side("left"), side("right")), tmp_path)
    found = [pair for number in order for pair in pairs(job_run.feed(sent[number]))]
    assert found == [(6, 8)]
    wanted: list[float | None] = []
    for many in range(1, 5):
        came = set(order[:many])
        left = now + 30 if {0, 2} <= came else now if 0 in came else None
        right = now + 31 if {1, 3} <= came else now + y if 1 in came else None
        wanted.append(None if left is None or right is None else min(left, right))
    assert marks(tmp_path) == wanted
    assert sorted(progress_of(job_run).sources) == ["left/1", "right/2"]
    assert pairs(job_run.feed({"left": buffer(1, 3, 60, 60), "right": buffer(2, 3, 60, 61)})) == [
        (31, None),
        (60, 61),
    ]


def test_an_origin_of_one_side_is_none_of_the_other(tmp_path: Path) -> None:
    job_run = harness(near(side("left", "1"), side("right", "1", "2")), tmp_path)
    job_run.feed({"left": buffer(1, 1, 50, 1), "right": buffer(1, 1, 40, 2)})
    assert marks(tmp_path) == [None], "origin 2 of the right side is declared"
    job_run.feed({"right": buffer(2, 1, 20, 3)})
    job_run.feed({"right": buffer(2, 1, 20, 3), "left": buffer(2, 1, 30, 30)})
    assert marks(tmp_path)[1:] == [20, 20]
    assert progress_of(job_run).sources["left/2"].watermark_us == 30 * SECOND
    assert job_run.ledger().select(["side", "reason"]).to_pylist() == [
        {"side": "right", "reason": "duplicate_buffer"}
    ]
    stored = evidence.operator(evidence.manifests(tmp_path / "root")[-1])
    assert stored["buffers"] is None
    assert {name: one["origins"]["origins"] for name, one in stored["buffers_by_side"].items()} == {
        "left": [[1, 1, 50 * SECOND, -1], [2, 1, 30 * SECOND, -1]],
        "right": [[1, 1, 40 * SECOND, -1], [2, 1, 20 * SECOND, -1]],
    }


def test_a_new_origin_joins_at_the_watermark_of_the_join(tmp_path: Path) -> None:
    """Not at that of its side, which may be far ahead: its rows are in time until the join has passed them."""
    job_run = harness(near(side("left"), side("right")), tmp_path)
    job_run.feed({"left": buffer(1, 1, 100, 100), "right": buffer(1, 1, 5, 5)})
    job_run.feed({"left": buffer(2, 1, 20, 20)})
    job_run.feed({"right": buffer(1, 2, 90, 90)})
    assert marks(tmp_path) == [5, 5, 20]
    assert pairs(job_run.feed({"right": buffer(3, 1, 25, 25), "left": buffer(2, 2, 30, 22)})) == [(20, 25), (22, 25)]
    assert job_run.ledger().num_rows == 0


def test_a_gap_of_a_side_names_it_and_is_given_up_there_alone(tmp_path: Path) -> None:
    job_run = harness(near(side("left", patience="5 seconds"), side("right")), tmp_path)
    job_run.feed({"left": buffer(1, 1, 2, 1), "right": buffer(1, 1, 3, 2)})
    job_run.feed({"left": buffer(1, 3, 30, 29), "right": buffer(1, 3, 40, 39)})
    gaps = gaps_of_progress(progress_of(job_run))
    assert [(gap.side, gap.source, gap.first, gap.last) for gap in gaps] == [
        ("left", "left/1", 2, 2),
        ("right", "right/1", 2, 2),
    ]
    families = {one.name: one.samples for one in families_of(progress_of(job_run), {})}
    assert families["gap_missing"] == [({"source": "left/1"}, 1), ({"source": "right/1"}, 1)]
    assert ({"source": "left", "fate": "counted"}, 2) in families["buffers"]
    job_run.advance_processing_time(6 * SECOND)
    assert [gap.source for gap in gaps_of_progress(progress_of(job_run))] == ["right/1"]
    assert marks(tmp_path)[-1] == 3, "the right side waits for ever"
    job_run.feed({"right": buffer(1, 2, 20, 12), "left": buffer(1, 2, 20, 12)})
    assert marks(tmp_path)[-1] == 30
    assert job_run.ledger().select(["side", "reason"]).to_pylist() == [{"side": "left", "reason": "gap_given_up"}]


def test_a_side_whose_origins_have_all_ended_holds_nothing_back_also_after_a_restart(tmp_path: Path) -> None:
    job_run = harness(near(side("left", end="final"), side("right", "1", "2", end="final")), tmp_path)
    job_run.feed({"left": buffer(7, 1, 10, 9, final=True), "right": buffer(1, 1, 4, 4)})
    assert marks(tmp_path) == [None]
    job_run.feed({"right": buffer(2, 2, 30, 29, final=True)})
    job_run.restart()
    assert sorted(progress_of(job_run).sources) == ["right/1", "right/2"]
    job_run.feed({"right": buffer(2, 1, 20, 19)})
    assert marks(tmp_path)[-1] == 4
    job_run.feed({"right": buffer(1, 2, 50, 18, final=True)})
    assert marks(tmp_path)[-1] == 50, "all have ended: the largest"
    job_run.restart()
    assert sorted(progress_of(job_run).sources) == []
    job_run.feed({"left": buffer(7, 2, 90, 60)})
    assert job_run.ledger()["reason"].to_pylist() == ["duplicate_buffer"]


def test_a_buffer_that_the_input_cuts_is_waited_for_on_its_side(tmp_path: Path) -> None:
    job_run = harness(near(side("left", whole="rows"), side("right")), tmp_path)
    job_run.feed({"left": buffer(1, 1, 20, 5, rows=2), "right": buffer(1, 1, 30, 30)})
    job_run.restart()
    assert marks(tmp_path)[-1] is None
    assert pairs(job_run.feed({"left": buffer(1, 1, 20, 6, rows=2)})) == [(5, None), (6, None)]
    assert marks(tmp_path)[-1] == 20


def test_a_silent_origin_of_a_side_is_idle(tmp_path: Path) -> None:
    job_run = harness(near(side("left", idle_timeout="5 seconds"), side("right")), tmp_path)
    job_run.feed({"left": buffer(1, 1, 20, 20), "right": buffer(1, 1, 10, 10)})
    job_run.advance_processing_time(4 * SECOND)
    job_run.feed({"left": buffer(2, 1, 40, 40), "right": buffer(1, 2, 30, 30)})
    assert marks(tmp_path)[-1] == 20
    job_run.advance_processing_time(6 * SECOND)
    assert progress_of(job_run).sources["left/1"].standing == "idle"
    assert marks(tmp_path)[-1] == 30


OTHER_WATERMARKS: dict[str, Any] = {
    "a delay": lambda: plain("right").watermark(watermark.bounded("5 seconds")),
    "the delay of the stream": lambda: ts.stream("right", event_time="t", watermark_delay="5 seconds"),
    "parts": lambda: plain("right").watermark(watermark.bounded("5 seconds"), by="o"),
    "CTIs": lambda: plain("right").watermark(
        watermark.ctis(watermark.cti_settings("drop", generate=watermark.generate_ctis(1, delay="5 seconds")))
    ),
}


@pytest.mark.parametrize("name", OTHER_WATERMARKS)
@pytest.mark.parametrize("first", [True, False])
def test_the_other_side_may_have_another_watermark(tmp_path: Path, name: str, first: bool) -> None:
    """The smaller of both counts, whichever side has the buffers."""
    sides = side("left"), OTHER_WATERMARKS[name]()
    job = near(*sides, how="full") if first else near(*reversed(sides), how="full")
    job_run = harness(job, tmp_path)
    job_run.feed({"left": buffer(1, 2, 90, 89), "right": buffer(1, 1, 0, 25)})
    assert marks(tmp_path) == [None], "the buffer before it is missing"
    job_run.restart()
    job_run.feed({"left": buffer(1, 1, 30, 29)})
    assert marks(tmp_path)[-1] == 20
    job_run.feed({"right": buffer(1, 2, 0, 120)})
    assert marks(tmp_path)[-1] == 90
    job_run.feed({"left": buffer(1, 2, 90, 89)})
    assert job_run.ledger()["reason"].to_pylist() == ["duplicate_buffer"]


def test_a_fixed_watermark_beside_buffers_goes_on_with_the_clock(tmp_path: Path) -> None:
    job_run = harness(near(side("left"), plain("right").watermark(watermark.fixed("5 seconds"))), tmp_path)
    job_run.advance_processing_time(20 * SECOND)
    job_run.feed({"left": buffer(1, 1, 30, 12)})
    assert marks(tmp_path)[-1] == 15
    job_run.advance_processing_time(90 * SECOND)
    assert marks(tmp_path)[-1] == 30


def test_an_operator_beside_buffers_brings_its_own_watermark(tmp_path: Path) -> None:
    counted = ts.stream("right", event_time="t").group_by("k").window(ts.tumbling("10 seconds"))
    counted = counted.aggregate(v=agg.count()).allowed_lateness("0 seconds").named("counted")
    job_run = harness(side("left").join(counted, on="k", within=WITHIN, how="left", name="job"), tmp_path)
    job_run.feed({"left": buffer(1, 1, 4, 5), "right": buffer(1, 1, 0, 2, 3)})
    assert pairs(job_run.feed({"left": buffer(1, 2, 60, 60), "right": buffer(1, 2, 0, 40)})) == [(5, 2)]
    assert progress_of(job_run).watermark_us == pytest.approx(40 * SECOND, abs=SECOND)


def test_a_join_in_windows(tmp_path: Path) -> None:
    job = side("left").join(side("right"), on="k", window=ts.tumbling("10 seconds"), how="full", name="job")
    job_run = harness(job, tmp_path)
    job_run.feed({"left": buffer(1, 1, 5, 5)})
    assert pairs(job_run.feed({"left": buffer(1, 2, 100, 99)})) == []
    assert pairs(job_run.feed({"right": buffer(1, 1, 6, 6)})) == [(5, 6)]
    assert pairs(job_run.feed({"right": buffer(1, 2, 30, 14)})) == [(None, 14)]


def test_a_join_by_windows_of_each_side(tmp_path: Path) -> None:
    windows = {"left": ts.side(window=ts.tumbling("10 seconds")), "right": ts.side(window=ts.tumbling("20 seconds"))}
    job_run = harness(side("left").join(side("right"), on="k", **windows, name="job"), tmp_path)
    job_run.feed({"left": buffer(1, 1, 5, 5)})
    assert pairs(job_run.feed({"right": buffer(1, 1, 6, 6)})) == []
    assert pairs(job_run.feed({"left": buffer(1, 2, 40, 40), "right": buffer(1, 2, 30, 30)})) == [(5, 6)]


def test_a_session_join(tmp_path: Path) -> None:
    job_run = harness(side("left").join_sessions(side("right"), on="k", gap="5 seconds", name="job"), tmp_path)
    job_run.feed({"left": buffer(1, 1, 5, 5)})
    job_run.feed({"left": buffer(1, 2, 100, 100)})
    assert pairs(job_run.feed({"right": buffer(1, 1, 7, 7)})) in ([], [(5, 7)])
    job_run.feed({"right": buffer(1, 3, 90, 91)})
    assert marks(tmp_path)[-1] == 7
    job_run.restart()
    job_run.feed({"right": buffer(1, 2, 50, 8)})
    assert marks(tmp_path)[-1] == 90
    job_run.finish()
    assert job_run.counters()["pairs"] == 2
    assert job_run.ledger().num_rows == 0


@pytest.mark.parametrize("shared", [(), ("o", "s", "m")])
def test_a_merge(tmp_path: Path, shared: tuple[str, ...]) -> None:
    """The origins are those of each side, whether its columns are shared or not."""
    merged = ts.merge(left=side("left"), right=side("right")).sharing(*shared) if shared else None
    merged = merged or ts.merge(left=side("left"), right=side("right"))
    job = merged.group_by("k").window(ts.tumbling("10 seconds")).aggregate(n=agg.count()).named("job")
    job_run = harness(job, tmp_path)
    assert job_run.feed({"left": both(buffer(1, 1, 5, 5), buffer(1, 2, 30, 29))}).num_rows == 0
    assert job_run.feed({"right": buffer(1, 2, 30, 11)}).num_rows == 0
    assert job_run.feed({"right": buffer(1, 1, 9, 1)})["n"].to_pylist() == [2, 1, 1]
    assert marks(tmp_path)[-1] == 30


def test_a_union(tmp_path: Path) -> None:
    united = ts.union(left=side("left"), right=side("right"), name="both")
    counted = united.group_by("k").window(ts.tumbling("10 seconds")).aggregate(n=agg.count()).named("job")
    job_run = harness(counted, tmp_path)
    job_run.feed({"left": both(buffer(1, 1, 5, 5), buffer(1, 2, 30, 29))})
    assert job_run.feed({"right": buffer(1, 1, 12, 1)})["n"].to_pylist() == [2]
    assert sorted(progress_of(job_run, "both").sources) == ["left/1", "right/1"]


def test_columns_of_buffers_that_both_sides_share_as_keys_are_those_of_each_side(tmp_path: Path) -> None:
    job = side("left").join(side("right"), on=["o", "k"], within=WITHIN, how="left", name="job")
    job_run = harness(job, tmp_path)
    job_run.feed({"left": both(buffer(1, 1, 5, 5), buffer(1, 2, 90, 90))})
    assert pairs(job_run.feed({"right": both(buffer(1, 1, 50, 6), buffer(2, 1, 60, 7))})) == [(5, 6)]
    assert marks(tmp_path)[-1] == 50


def test_what_is_stored_names_what_a_reader_needs_to_know(tmp_path: Path) -> None:
    by_side, over_all = (
        near(side("left"), side("right")),
        ts.union(
            left=plain("left"),
            right=plain("right"),
            watermark=watermark.buffers(origin="o", sequence="s", watermark="m"),
        ),
    )
    # A column of these rows is called `last`, as one of panes is: the union says that it is like any other.
    for number, (job, needs) in enumerate(
        ((by_side, ["buffers-by-side/1", "generator-by-side/1"]), (over_all, ["plain-rows/1"]))
    ):
        job_run = harness(job, tmp_path / str(number))
        job_run.feed({"left": buffer(1, 1, 5, 5)})
        manifest = evidence.manifests(tmp_path / str(number) / "root")[-1]
        assert other_needs(manifest.get("needs")) == needs
        assert ("buffers_by_side" in evidence.operator(manifest)) == (job is by_side)


def test_a_join_is_explained_with_the_buffers_of_its_sides() -> None:
    text = str(near(side("left", "1"), side("right", patience="5 seconds")).explain())
    assert 'left.watermark(watermark.buffers(origin="o", sequence="s", watermark="m"), ' in text
    assert (
        'right.watermark(watermark.buffers(origin="o", sequence="s", watermark="m", patience="5 seconds"), ' in text
    )


REFUSED: dict[str, tuple[Any, str]] = {
    "another column names the sources": (
        lambda: near(plain("left").watermark(side("left").view.watermark.generator, by="k"), side("right")),
        "watermark",
    ),
    "an origin that is no number": (lambda: near(side("left", "trucks"), side("right")), "progress-source"),
    "no column of this name": (
        lambda: near(
            plain("left").watermark(watermark.buffers(origin="x", sequence="s", watermark="m")), side("right")
        ),
        "column-missing",
    ),
    "sessions of offsets": (
        lambda: (
            ts.stream("left", offset="v")
            .watermark(side("left").view.watermark.generator)
            .join_sessions(ts.stream("right", offset="v"), on="k", offsets=3)
        ),
        "offset",
    ),
    "a join by lifetimes": (lambda: side("left").join_lifetimes(side("right"), on="k"), "advance-time"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused(name: str, tmp_path: Path) -> None:
    make, code = REFUSED[name]
    with pytest.raises(UsageError) as refused:
        harness(make(), tmp_path)
    assert refused.value.code == code


def both(*tables: pa.Table) -> pa.Table:
    return pa.concat_tables(tables)
