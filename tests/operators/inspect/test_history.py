"""Why a number is so: everything that happened to one window, on checkpoints of real jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest
from pyspark.sql import SparkSession

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.command import tidestate_here
from tests.helpers.moves import reset_to
from tests.helpers.orders import ORDERS, SHIPMENTS, Row, tables
from tests.helpers.spark_inputs import job, sample, write
from tests.helpers.spark_runs import finish
from tests.helpers.worked_example import STREAM, batch, example
from tests.servers.s3 import s3_endpoint, s3_root
from tidestate import agg
from tidestate.operators.describe.windows import Windows
from tidestate.operators.inspect.history.events import Event, WindowHistory
from tidestate.operators.inspect.history.window_history import window_history
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.retention.collection import collect
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.statestore.errors import NotFoundError, UsageError
from tidestate.statestore.spec.store import Parquet

__all__ = ["s3_endpoint", "s3_root"]
SCHEMA = STREAM[0].schema


def of(root: object, window: int, key: str | None = "a", operator: str | None = None) -> WindowHistory:
    """The history of the window at a second."""
    text = f"1970-01-01T00:{window // 60:02}:{window % 60:02}"
    return window_history(Checkpoint.open(str(root)), text, {} if key is None else {"k": key}, operator)


def printed(found: WindowHistory) -> list[str]:
    """Its events as text: checkpoint, kind, words, values, what had been taken in, the watermark's second."""
    return [" | ".join(line) for line in map(_line, found.events)]


def _line(one: Event) -> tuple[str, ...]:
    values = " ".join(f"{name}={value}" for name, value in one.values.items())
    mark = "-" if one.watermark is None else one.watermark[-2:]
    words = one.what.replace("1970-01-01 00:00:", "")
    return (str(one.checkpoint), one.kind, words, values, str(one.input_text), mark)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("history") / "root"
    example("retracting").standalone(checkpoint=folder, store=Parquet(), partitions=2).run(STREAM)
    return folder


A_FIRST = [
    "2 | added | added | n=2 total=4 | batch 1 | 07",
    "3 | became | is now | n=2 total=4 | batch 2 | 11",
    "3 | pane | pane 0 on time | n=2 total=4 | batch 2 | 11",
    "4 | became | is now | n=3 total=14 | batch 3 | 11",
    "4 | pane | retracted: pane 0 late | n=2 total=4 | batch 3 | 11",
    "4 | pane | pane 1 late | n=3 total=14 | batch 3 | 11",
    "5 | became | is now | n=4 total=15 | batch 4 | 11",
    "5 | pane | retracted: pane 1 late | n=3 total=14 | batch 4 | 11",
    "5 | pane | pane 2 late | n=4 total=15 | batch 4 | 11",
    "6 | expired | expired |  | batch 5 | 43",
    "7 | rejected | rejected: very late | t=1970-01-01 00:00:04 v=99 | batch 6 | 43",
]


def test_the_worked_example(root: Path) -> None:
    found = of(root, 0)
    assert printed(found) == A_FIRST
    assert (found.start, found.end, found.known_from) == ("1970-01-01 00:00:00", "1970-01-01 00:00:10", 1)
    assert found.result == [{"n": 4, "total": 15}]
    assert printed(of(root, 4)) == A_FIRST  # a time that it alone holds
    assert [line.split(" | ")[1] for line in printed(of(root, 0, "c"))] == ["became", "pane", "expired"]


def test_what_came_as_a_window_was_forgotten_is_in_its_panes_only(root: Path) -> None:
    assert printed(of(root, 10)) == [
        "3 | added | added | n=1 total=4 | batch 2 | 11",
        "6 | pane | pane 0 on time | n=1 total=4 | batch 5 | 43",
        "6 | expired | expired; the last events are in its panes only |  | batch 5 | 43",
    ]


def test_an_open_window_is_known_before_it_shows_anything(root: Path) -> None:
    found = of(root, 50)  # its end: no window that begins there has been seen
    assert printed(found) == ["6 | added | added | n=1 total=5 | batch 5 | 43"]
    assert found.result == []


def test_changes_that_were_folded_are_one_value(tmp_path: Path) -> None:
    store = Parquet(max_levels=2, snapshot_bytes=1)
    example().standalone(checkpoint=tmp_path, store=store).run(STREAM[:4])
    assert printed(of(tmp_path, 0))[0] == "2 | added | added | n=2 total=4 | batch 1 | 07"
    collect(Checkpoint.open(tmp_path), CheckpointRetention(newest=1, grace="0 seconds"))
    found = of(tmp_path, 0)
    folded = next(one for one in found.events if one.kind == "folded")
    assert found.known_from == folded.checkpoint + 1
    came = [one for one in found.events if one.kind == "became"]
    assert [one.checkpoint for one in came] == list(range(found.known_from, 6))
    assert [one.values["total"] for one in (folded, *came)][-1] == 15
    assert found.result == [{"n": 4, "total": 15}]


def sessions(root: Path, batches: Sequence[pa.Table]) -> None:
    described = (
        ts.stream(event_time="t")
        .group_by("k")
        .window(ts.sessions("5 seconds"))
        .aggregate(n=agg.count(), total=agg.sum("v"))
    )
    described = described.allowed_lateness("20 seconds").accumulation("retracting")
    described.standalone(checkpoint=root, store=Parquet(), partitions=2).run(batches)


def test_sessions_are_followed_back_to_those_they_were_merged_from(tmp_path: Path) -> None:
    sessions(tmp_path, [batch([(1, "a", 1), (9, "a", 2), (9, "b", 9)]), batch([(5, "a", 5)]), batch([(90, "a", 1)])])
    found = of(tmp_path, 8)
    assert printed(found) == [
        "2 | added | added: 09 to 14 | n=1 total=2 | batch 1 | 09",
        "2 | became | 01 to 06 is now | n=1 total=1 | batch 1 | 09",
        "2 | pane | pane 0 on time of 01 to 06 | n=1 total=1 | batch 1 | 09",
        "3 | became | 01 to 10 grew from 01 to 06 | n=2 total=6 | batch 2 | 09",
        "3 | pane | retracted: pane 0 early of 01 to 06 | n=1 total=1 | batch 2 | 09",
        "4 | gone | gone: 01 to 10 |  | batch 3 | 30",
        "4 | pane | pane 0 on time | n=3 total=8 | batch 3 | 30",
        "4 | expired | expired; the last events are in its panes only |  | batch 3 | 30",
    ]
    assert [one.events for one in found.events if one.kind in ("added", "became")] == [None, 1, 2]
    assert (found.start, found.end) == ("1970-01-01 00:00:01", "1970-01-01 00:00:14")
    for inside in (1, 6, 9):
        assert of(tmp_path, inside) == found
    assert of(tmp_path, 95).start == "1970-01-01 00:01:30"  # by its end
    assert {one.checkpoint for one in of(tmp_path, 9, "b").events} == {2, 4}


def test_a_sliding_window_is_what_came_to_its_slices(tmp_path: Path) -> None:
    described = ts.stream(event_time="t").group_by("k").window(ts.sliding("10 seconds", "5 seconds"))
    described = described.aggregate(n=agg.count(), total=agg.sum("v")).allowed_lateness("60 seconds")
    described.standalone(checkpoint=tmp_path, store=Parquet(), partitions=2).run(STREAM, drain=True)
    assert printed(of(tmp_path, 5, "c"))[:3] == [
        "4 | added | added to the slice up to 10 | n=1 total=7 | batch 3 | 13",
        "6 | became | is now | n=1 total=7 | batch 5 | 45",
        "6 | pane | pane 0 on time | n=1 total=7 | batch 5 | 45",
    ]
    for key, start in (("a", -5), ("a", 0), ("a", 5), ("a", 10), ("b", 0), ("c", 0)):
        found = of(tmp_path, start, key) if start >= 0 else of(tmp_path, 5, key)
        added = sum(one.values["total"] for one in found.events if one.kind == "added")
        total = [added, *(one.values["total"] for one in found.events if one.kind == "became")][-1]
        assert [row["total"] for row in found.result] == [total]
    with pytest.raises(UsageError, match="several windows contain this time") as caught:
        of(tmp_path, 3)
    assert caught.value.code == "history-window"


def test_an_operator_inside_of_a_chain(tmp_path: Path) -> None:
    schema = pa.schema([("t", pa.timestamp("us", tz="UTC")), ("k", pa.string())])
    first = (
        ts.stream(event_time="t")
        .group_by("k")
        .window(ts.tumbling("1 minute"))
        .aggregate(n=agg.count())
        .named("first")
    )
    second = (
        first.allowed_lateness("10 minutes")
        .accumulation("discarding")
        .group_by()
        .window(ts.tumbling("1 hour"))
        .aggregate(n=agg.sum("n"))
        .allowed_lateness("0 seconds")
        .named("second")
    )
    tested = second.harness(schema, folder=tmp_path)
    tested.feed([{"t": 0, "k": "a"}, {"t": 90_000_000, "k": "b"}])
    tested.feed([{"t": 1, "k": "a"}, {"t": 2, "k": "a"}])
    assert printed(of(tmp_path, 0, "a", "first")) == [
        "2 | became | is now | n=None | None | 30",
        "2 | pane | pane 0 to the next operators | n=1 | None | 30",
        "3 | became | is now | n=None | None | 30",
        "3 | pane | pane 1 to the next operators | n=2 | None | 30",
    ]
    assert [line.split(" | ")[:2] for line in printed(of(tmp_path, 0, None))] == [["2", "added"], ["3", "rejected"]]


def test_windows_of_counted_messages(tmp_path: Path) -> None:
    described = (
        ts.stream(event_time="t")
        .group_by("k")
        .window(ts.count_windows(3))
        .aggregate(n=agg.count(), total=agg.sum("v"))
    )
    described.standalone(checkpoint=tmp_path, store=Parquet()).run([batch([(s, "a", s)]) for s in range(4)])
    found = window_history(Checkpoint.open(tmp_path), "1", {"k": "a"})
    assert [(one.checkpoint, one.kind, one.values.get("total")) for one in found.events] == [
        (2, "became", 0),
        (3, "became", 1),
        (4, "gone", None),
        (4, "pane", 3),
    ]
    assert (found.start, found.end) == ("0", "3")
    with pytest.raises(UsageError, match="these windows have no times"):
        of(tmp_path, 0)


def test_rows_of_both_sides_of_a_join(tmp_path: Path) -> None:
    described = ts.stream(event_time="ordered").join(
        ts.stream(event_time="shipped"), on="order", window=ts.tumbling("10 s"), how="left", allowed_lateness="20 s"
    )
    schema = {"left": ORDERS, "right": SHIPMENTS}
    tested = described.harness(schema, folder=tmp_path)
    for rows in ([Row("left", "a", 1, 1), Row("left", "b", 1, 5)], [Row("right", "a", 3, 7)]):
        tested.feed(tables(rows))
    found = window_history(Checkpoint.open(tmp_path), "1970-01-01", {"order": "a"})
    assert [(one.checkpoint, one.kind, one.what) for one in found.events] == [
        (2, "row", "added to left"),
        (3, "row", "added to right"),
        (3, "pane", "emitted"),
    ]
    assert [(row["left_price"], row["right_weight"]) for row in found.result] == [(1, 7)]


def test_what_was_fed_back_says_where_it_went(tmp_path: Path) -> None:
    tested = example().retain_windows("1 hour").harness(SCHEMA, folder=tmp_path)
    for rows in (batch([(1, "a", 1)]), batch([(100, "b", 1)]), batch([(2, "a", 5)])):
        tested.feed(rows)
    tested.reprocess_late()
    lines = printed(of(tmp_path, 0))
    late = "4 | rejected | rejected: very late; reprocessed in checkpoint 5"
    assert f"{late} | t=1970-01-01 00:00:02 v=5 | None | 38" in lines
    assert "5 | became | is now | n=2 total=6 | the late ledger | 38" in lines


def test_a_reset_and_what_it_abandoned(tmp_path: Path) -> None:
    example("retracting").standalone(checkpoint=tmp_path, store=Parquet()).run(STREAM[:3])
    made = reset_to(Checkpoint.open(tmp_path), 2)
    found = of(tmp_path, 0)
    assert [(one.checkpoint, one.kind, one.abandoned) for one in found.events] == [
        (2, "added", False),
        (3, "became", True),
        (3, "pane", True),
        (4, "became", True),
        (4, "pane", True),
        (4, "pane", True),
        (made.manifest.id, "reset", False),
    ]
    assert found.result == []


@pytest.mark.long
@pytest.mark.spark
def test_contributions_add_up_to_what_a_spark_job_shows(spark: SparkSession, tmp_path: Path) -> None:
    for number, rows in enumerate(sample(5, 120)):
        write(tmp_path / "input", number, rows)
    finish(job(), spark, tmp_path, Parquet(), tmp_path / "cp")
    checkpoint = Checkpoint.open(tmp_path / "cp")
    windows = {
        (start, key)
        for manifest in evidence.manifests(tmp_path / "cp")
        for start, _, key, *_ in evidence.rows(tmp_path / "cp", manifest["panes"])
    }
    assert len(windows) > 20
    whole = 0
    for start, key in sorted(windows):
        text = pa.scalar(start, pa.timestamp("us")).as_py().isoformat()
        found = window_history(checkpoint, text, {"k": key})
        became = [one.values for one in found.events if one.kind == "became"]
        came = became[-1:] or [one.values for one in found.events if one.kind == "added"]
        last = next(one for one in reversed(found.events) if one.kind == "pane")
        cut = any("in its panes only" in one.what for one in found.events)
        assert found.result == [last.values]
        whole += not cut
        n, total = sum(one["n"] for one in came), sum(one["m_sum"] or 0 for one in came)
        values = sum(one["m_count"] for one in came)
        if cut:
            assert n <= last.values["n"]
            continue
        assert n == last.values["n"]
        assert last.values["m"] == (pytest.approx(float(total / values)) if values else None)
        assert last.values["x"] == max((one["x"] for one in came if one["x"] is not None), default=None)
        files = [one.input["sources"][0]["files"] for one in found.events if one.kind == "added" and one.input]
        assert all(".parquet " in path for one in files for path in one)
    assert whole > 10
    rejected = [one for start, key in windows for one in _rejected(checkpoint, start, key)]
    assert rejected


def _rejected(checkpoint: Checkpoint, start: int, key: str) -> list[Event]:
    text = pa.scalar(start, pa.timestamp("us")).as_py().isoformat()
    return [one for one in window_history(checkpoint, text, {"k": key}).events if one.kind == "rejected"]


# In every run: the same on a disk, and what is different on S3 by `tests.statestore.storage`, a whole job there by
# `tests.operators.local.test_remote_roots`.
@pytest.mark.long
@pytest.mark.slow
def test_on_s3(s3_root: str) -> None:
    example("retracting").standalone(checkpoint=s3_root, store=Parquet(), partitions=2).run(STREAM)
    assert printed(of(s3_root, 0)) == A_FIRST


@pytest.mark.parametrize(
    ("window", "key", "error", "code"),
    [
        ("1970-01-01", {}, UsageError, "history-key"),
        ("1970-01-01", {"n": "1"}, UsageError, "history-key"),
        ("yesterday", {"k": "a"}, UsageError, "read-value"),
        ("1971-01-01", {"k": "a"}, NotFoundError, "no-such-window"),
        ("1970-01-01", {"k": "nobody"}, NotFoundError, "no-such-window"),
    ],
)
def test_what_is_not_there_is_reported(
    root: Path, window: str, key: dict[str, str], error: type[Exception], code: str
) -> None:
    with pytest.raises(error) as caught:
        window_history(Checkpoint.open(root), window, key)
    assert getattr(caught.value, "code", None) == code


@pytest.mark.parametrize("kind", [ts.tumbling("10 seconds"), ts.sessions("5 seconds")])
def test_the_name_of_a_key_may_begin_with_an_underscore(tmp_path: Path, kind: Windows) -> None:
    renamed = [one.rename_columns(["_id" if name == "k" else name for name in one.column_names]) for one in STREAM]
    job = ts.stream(event_time="t").group_by("_id").window(kind).aggregate(n=agg.count()).accumulation("retracting")
    job.standalone(checkpoint=tmp_path).run(renamed[:1])
    found = window_history(Checkpoint.open(tmp_path), "1970-01-01T00:00:01", {"_id": "a"})
    assert [one.values["n"] for one in found.events]


def test_the_windows_of_a_key_that_are_near_are_named(root: Path) -> None:
    with pytest.raises(NotFoundError) as caught:
        window_history(Checkpoint.open(root), "1970-01-01T00:00:32", {"k": "a"})
    near = caught.value.context["nearest"].replace("1970-01-01 00:00:", "")
    assert near == "00 to 10, 10 to 20, 40 to 50"


def test_a_join_without_windows_has_no_history(tmp_path: Path) -> None:
    described = ts.stream(event_time="ordered").join(
        ts.stream(event_time="shipped"), on="order", within=("0 s", "5 s")
    )
    schema = {"left": ORDERS, "right": SHIPMENTS}
    described.harness(schema, folder=tmp_path).feed(tables([Row("left", "a", 1, 1)]))
    with pytest.raises(UsageError, match="has no windows"):
        window_history(Checkpoint.open(tmp_path), "1970-01-01", {"order": "a"})


@pytest.mark.slow
def test_the_command(root: Path, tmp_path: Path) -> None:
    asked = ["history", root, "--key", "k=a", "--window", "1970-01-01"]
    done = tidestate_here(*asked, columns=80)
    assert done.returncode == 0
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert max(map(len, lines)) <= 80
    assert lines[0] == "window 1970-01-01 00:00:00 to 00:00:10 of k=a, operator windows"
    assert lines[-1] == "result: n=4 total=15"
    assert " ".join(lines[3].split()[3:]) == "added n=2 total=4 batch 1 → 00:00:07"
    found: dict[str, Any] = json.loads(tidestate_here(*asked, "--json").stdout)
    assert [one["kind"] for one in found["events"]] == [line.split(" | ")[1] for line in A_FIRST]
    assert found["events"][0]["input"] == {"batch": 1}
    rows = tmp_path / "rows.csv"
    assert tidestate_here(*asked, "--format", "csv", "--output", rows, "--limit", 3).returncode == 0
    table = pa.csv.read_csv(rows)
    assert table["checkpoint"].to_pylist()[:3] == [2, 3, 3]
    assert json.loads(table["values"][0].as_py()) == {"n": 2, "total": 4}  # as the state has it
    assert "9 more events: use --limit" in tidestate_here(*asked, "--limit", 2).stdout
    done = tidestate_here("history", root, "--key", "k=a", "--window", "1980-01-01")
    assert (done.returncode, done.stdout) == (4, "")
    assert "[no-such-window]" in done.stderr
