"""The standalone runner: exact panes of worked examples, what a second start may and may not do, one writer."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.process import in_turn
from tests.helpers.worked_example import EXPECTED, SECOND, STREAM, batch, example, ledger, lines, panes
from tidestate import agg
from tidestate.operators.describe.sinks import Sinks
from tidestate.operators.local.standalone import StandaloneRunner
from tidestate.statestore.errors import FencedError, IncompatibleError, UsageError
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB, StoreConfig

LEDGER = """
    7 4    a    99 very_late       43
    7 22   None 1  null_key        43
    7 None a    1  null_event_time 43
"""


def stores(folder: Path) -> list[StoreConfig]:
    return [Memory(), Parquet(), RocksDB(cache_dir=str(folder / "cache")), Parquet(max_levels=2, snapshot_bytes=1)]


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "partitions", "store"), in_turn(EXPECTED, (1, 3), range(4)))
def test_a_worked_example(tmp_path: Path, mode: str, partitions: int, store: int) -> None:
    root = tmp_path / "root"
    job = example(mode).standalone(checkpoint=root, store=stores(tmp_path)[store], partitions=partitions)
    job.run(STREAM, drain=True)
    assert panes(root) == lines(EXPECTED[mode])
    assert ledger(root) == lines(LEDGER)
    work = evidence.manifests(root)
    marks = [m.get("watermark_us") for m in work]
    assert marks == [None, 7 * SECOND, 11 * SECOND, 11 * SECOND, 11 * SECOND, 43 * SECOND, 43 * SECOND, 2**63 - 1]
    assert [m["kind"] for m in work] == ["fence", *["batch"] * 6, "tick"]
    assert [m["drained"] for m in work] == [False] * 7 + [True]
    assert work[-1]["totals"] == {
        "events": 11,
        "accepted": 8,
        "on_time": 5,
        "mildly_late": 3,
        "future": 0,
        "window_in_time": 3,
        "window_past": 4,
        "window_future": 2,
        "very_late": 1,
        "null_key": 1,
        "null_event_time": 1,
        "panes_on_time": 4,
        "panes_late": 3,
        **({"retractions": 2} if mode == "retracting" else {}),
    }


def test_sliding_windows_before_1970_without_a_key(tmp_path: Path) -> None:
    job = ts.stream(event_time="t").group_by().window(ts.sliding("10 seconds", "5 seconds", offset="1 second"))
    events = batch([(-13, "a", 4), (-9, "b", 6), (-4, "c", 5)])
    job.aggregate(n=agg.count(), top=agg.max("v")).allowed_lateness("0 seconds").standalone(checkpoint=tmp_path).run(
        [events], drain=True
    )
    assert panes(tmp_path) == lines("""
        2 [-19,-9) 1 4 pane 0 on_time emit last
        2 [-14,-4) 2 6 pane 0 on_time emit last
        3 [-9,1)   2 6 pane 0 on_time emit last
        3 [-4,6)   1 5 pane 0 on_time emit last
    """)


def test_windows_with_gaps_between_them(tmp_path: Path) -> None:
    job = (
        ts.stream(event_time="t")
        .group_by()
        .window(ts.sliding("2 seconds", "5 seconds", strict=False))
        .aggregate(n=agg.count())
    )
    job.standalone(checkpoint=tmp_path).run([batch([(s, "a", 0) for s in range(9)])], drain=True)
    assert panes(tmp_path) == lines("2 [0,2) 2 pane 0 on_time emit\n 2 [5,7) 2 pane 0 on_time emit")
    assert evidence.manifests(tmp_path)[1]["counters"]["accepted"] == 9


def test_a_late_pane_of_a_window_forgotten_in_the_same_step_is_the_last(tmp_path: Path) -> None:
    example().standalone(checkpoint=tmp_path).run([*STREAM[:2], batch([(5, "a", 1), (45, "a", 5)])])
    assert panes(tmp_path)[-2:] == lines("""
        4 [0,10)  a 3 5 pane 1 late emit last
        4 [10,20) a 1 4 pane 0 on_time emit last
    """)


def test_a_stream_gives_each_checkpoints_panes_as_it_is_committed(tmp_path: Path) -> None:
    job = example().standalone(checkpoint=tmp_path)
    with pytest.raises(UsageError, match="no-input"):
        _ = job.head
    sizes = []
    for number, found in enumerate(job.stream(STREAM)):
        sizes.append(found.num_rows)
        assert job.head.id == number + 2
    assert sizes == [0, 2, 2, 1, 1, 0]
    assert job.drain().num_rows == 1
    assert job.drain().num_rows == 0


def test_record_batches_and_further_columns_are_fine(tmp_path: Path) -> None:
    wide = [b.append_column("more", pa.array(["x"] * b.num_rows)) for b in STREAM]
    example().standalone(checkpoint=tmp_path).run([b.to_batches()[0] for b in wide], drain=True)
    assert panes(tmp_path) == lines(EXPECTED["accumulating"])


def test_an_older_writer_is_fenced_and_publishes_nothing(tmp_path: Path) -> None:
    delivered: list[int] = []
    older = StandaloneRunner(
        example().graph.description,
        str(tmp_path),
        Parquet(),
        Sinks(lambda _rows, one: delivered.append(one.checkpoint)),
        1,
    )
    running = older.stream(STREAM)
    next(running)
    newer = example().standalone(checkpoint=tmp_path)
    newer.run(STREAM[:2])
    before = [m["writer"] for m in evidence.manifests(tmp_path)]
    with pytest.raises(FencedError) as caught:
        next(running)
    assert caught.value.context == {"id": 3, "epoch": 1, "newer_epoch": 2}
    assert [m["writer"] for m in evidence.manifests(tmp_path)] == before
    assert delivered == []
    newer.run(STREAM, drain=True)
    assert [line.split(" ", 1)[1] for line in panes(tmp_path)] == [
        line.split(" ", 1)[1] for line in lines(EXPECTED["accumulating"])
    ]


def test_two_starts_at_once_leave_one_writer(tmp_path: Path) -> None:
    jobs = [example().standalone(checkpoint=tmp_path) for _ in range(3)]
    running = [job.stream(STREAM) for job in jobs]
    next(running[0])
    for job in running[1:]:
        next(job)
    with pytest.raises(FencedError):
        list(running[0])
    with pytest.raises(FencedError):
        list(running[1])
    list(running[2])
    jobs[2].drain()
    assert [m["epoch"] for m in evidence.manifests(tmp_path)][-1] == 3
    assert len(panes(tmp_path)) == len(lines(EXPECTED["accumulating"]))


@pytest.mark.parametrize("wrong", [0, -1, (1 << 15) + 1])
def test_partitions_nobody_can_have(tmp_path: Path, wrong: int) -> None:
    with pytest.raises(UsageError, match="partitions"):
        example().standalone(checkpoint=tmp_path, partitions=wrong).run(STREAM)
    assert evidence.manifests(tmp_path) == []


def test_nothing_to_run_on(tmp_path: Path) -> None:
    job = example().standalone(checkpoint=tmp_path / "new")
    with pytest.raises(UsageError, match="no-input"):
        job.run([])
    with pytest.raises(UsageError, match="no-input"):
        job.drain()
    assert not (tmp_path / "new").exists()


def test_a_batch_that_lacks_a_column_or_has_another_type(tmp_path: Path) -> None:
    job = example().standalone(checkpoint=tmp_path)
    running = job.stream([STREAM[0], STREAM[1].drop_columns("v")])
    next(running)
    with pytest.raises(UsageError, match="column-missing"):
        next(running)
    text = STREAM[1].set_column(2, "v", pa.array(["four"]))
    with pytest.raises(UsageError, match="batch-type") as refused:
        list(example().standalone(checkpoint=tmp_path).stream([STREAM[0], text]))
    assert refused.value.context == {"column": "v", "found": "string", "needed": "int64"}
    with pytest.raises(IncompatibleError, match="input-differs"):
        list(example().standalone(checkpoint=tmp_path).stream([STREAM[1]]))


def test_panes_of_many_keys_keep_their_own_numbers(tmp_path: Path) -> None:
    """Arrow gives groups in an order of its own: what belongs to a key must be brought together by the key."""
    keys = [f"key {number}" for number in range(60)]
    late = [keys, keys[::2], keys[::-1]]
    stream = [batch([(1, key, 0) for key in keys]), batch([(13, "w", 0)])]
    stream += [batch([(5, key, int(key.split()[1])) for key in some]) for some in late]
    example("retracting").standalone(checkpoint=tmp_path).run(stream)
    last = evidence.manifests(tmp_path)[-1]
    found = {row[2]: row[3:] for row in evidence.rows(tmp_path, last["panes"]) if row[-2] == "emit"}
    expected = {
        key: (4 - number % 2, number * (3 - number % 2), 3 - number % 2, "late", "emit", False)
        for number, key in enumerate(keys)
    }
    assert found == expected


def test_a_drain_before_anything_has_run_says_what_to_call(tmp_path: Path) -> None:
    job = ts.stream(event_time="t").group_by().window(ts.tumbling("1 minute")).aggregate(n=agg.count())
    with pytest.raises(UsageError, match=r"run\(batches, drain=True\)"):
        job.standalone(checkpoint=tmp_path / "root").drain()


def test_a_time_zone_that_does_not_exist_is_named(tmp_path: Path) -> None:
    rows = pa.table({"t": pa.array([0], pa.timestamp("us"))})
    job = ts.stream(event_time="t").group_by().window(ts.tumbling("1 minute")).aggregate(n=agg.count())
    with pytest.raises(UsageError, match="unknown time zone") as refused:
        job.standalone(checkpoint=tmp_path / "root", time_zone="Europe/Berlinn").run([rows])
    assert (refused.value.code, refused.value.context["found"]) == ("time-zone", "Europe/Berlinn")
