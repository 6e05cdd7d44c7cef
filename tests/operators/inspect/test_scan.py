"""Datasets of a root: what a sink was given, at each checkpoint, for DuckDB and Polars; only what a filter needs."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from datetime import date, timedelta
from hashlib import md5
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import polars
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import tidestate as ts
from tests.helpers.changed_jobs import added
from tests.helpers.checkout import ROOT
from tests.helpers.moves import fork, rewind
from tests.helpers.process import LONG, longer
from tests.helpers.root_scans import scan_changes, scan_checkpoints, scan_late, scan_panes, scan_state
from tests.helpers.scanned import Row, Sink, opened, rows, run, sql, tables_of
from tests.helpers.worked_example import STREAM, batch, example
from tests.servers.s3 import s3_endpoint, s3_root  # noqa: F401  (fixtures)
from tests.twins.net import counting
from tidestate import agg, trigger
from tidestate.operators.inspect.query import query
from tidestate.operators.inspect.scan import panes_of_root
from tidestate.recovery.inspect import scans
from tidestate.recovery.inspect.rows import AT
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.retention.collection import collect
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.statestore.errors import CorruptionError, NotFoundError, UsageError
from tidestate.statestore.files import sortedfile
from tidestate.stores import Parquet

KEYS = 8_000
"""Their pane is a file of more than Parquet's first look at a footer, so that its rows are elsewhere."""


def every_reader(dataset: ds.Dataset) -> list[list[Row]]:
    """All rows, as each reader of Arrow datasets has them."""
    by_duckdb = tables_of(dataset).sql("select * from rows").to_arrow_table().cast(dataset.schema)
    by_polars = polars.scan_pyarrow_dataset(dataset).collect().to_arrow().cast(dataset.schema)
    return [rows(dataset), by_duckdb.to_pylist(), by_polars.to_pylist()]


@pytest.mark.parametrize("mode", ["retracting", *longer("accumulating")])
def test_panes_of_each_checkpoint_are_what_the_sink_was_given(tmp_path: Path, mode: str) -> None:
    sink = run(tmp_path, mode, drain=True)
    newest = sink.rows[-1][AT]
    assert newest == 8
    for checkpoint in range(1, newest + 1):
        assert rows(scan_panes(tmp_path, checkpoint)) == sink.until(checkpoint)
        assert rows(scan_panes(tmp_path, checkpoint, net=True)) == counting(sink.until(checkpoint), ["k"])
    assert every_reader(scan_panes(tmp_path)) == [sink.rows] * 3
    assert every_reader(scan_panes(tmp_path, net=True)) == [counting(sink.rows, ["k"])] * 3


def test_panes_by_sql_and_by_expressions_open_only_what_a_filter_leaves(tmp_path: Path) -> None:
    run(tmp_path, drain=True)
    files = {one.id: [ref.path for ref in one.panes] for one in Checkpoint.open(tmp_path).outputs() if one.panes}
    with opened() as paths:
        flights = scan_panes(tmp_path)
    assert paths == []  # nothing but a footer for the columns
    with opened() as paths:
        found = sql("select n, total from rows where checkpoint = 5 and kind = 'emit'", flights)
    assert (found, paths) == ([(4, 15)], files[5])
    with opened() as paths:
        frame = polars.scan_pyarrow_dataset(flights).filter(polars.col(AT) >= 6).select("n", "total").collect()
    assert (frame.rows(), sorted(paths)) == ([(1, 4), (1, 5)], sorted(files[6] + files[8]))
    with opened() as paths:
        assert flights.count_rows(filter=ds.field(AT) > 8) == 0
    assert paths == []


def test_a_filter_on_another_column_reads_footers_only(s3_root: str) -> None:  # noqa: F811  (fixture)
    many = batch([(1, md5(b"%d" % number).hexdigest(), number) for number in range(KEYS)])
    later = batch([(100, "x", 1)])
    last = batch([(200, "x", 1)])
    run(s3_root, "accumulating", [many, later, last])
    seen: list[str] = []
    read = scans.CheckedInput._between

    def noted(self: Any, start: int, end: int) -> memoryview:
        if end < self._ref.bytes or start == 0:
            seen.append(self._ref.path)
        return read(self, start, end)

    with mock.patch.object(scans.CheckedInput, "_between", noted):
        dataset = scan_panes(s3_root)
        large, small = sorted(dataset.files, key=lambda path: Checkpoint.open(s3_root).objects.size(path))[::-1]
        since = pa.scalar(60_000_000, pa.int64()).cast(pa.timestamp("us", "UTC"))
        assert dataset.to_table(filter=ds.field("window_end") > since).num_rows == 1
        assert set(seen) == {small}  # a small file is read with its footer
        assert dataset.to_table(columns=["n"]).num_rows == KEYS + 1
        assert set(seen) == {small, large}


def test_a_wrong_byte_is_an_error_and_no_row(tmp_path: Path) -> None:
    run(tmp_path)
    path = tmp_path / scan_panes(tmp_path).files[0]
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    dataset = scan_panes(tmp_path)
    with pytest.raises(CorruptionError, match="file-damaged"):
        dataset.to_table()
    with pytest.raises(Exception, match="file-damaged"):
        sql("select sum(n) from rows", dataset)


def test_the_late_ledger_of_each_operator(tmp_path: Path) -> None:
    late = Sink()
    example().standalone(checkpoint=tmp_path, late_sink=late).run(STREAM)
    assert every_reader(scan_late(tmp_path)) == [late.rows] * 3
    assert rows(scan_late(tmp_path, 6)) == []
    assert scan_late(tmp_path, 6).schema.names == [AT, "t", "k", "v", "reason", "watermark"]
    with pytest.raises(NotFoundError, match="no-such-operator"):
        scan_late(tmp_path, operator="other")


def test_a_state_table_of_each_checkpoint_by_its_key(tmp_path: Path) -> None:
    seconds = [
        batch([(second + number, key, number) for number in range(10) for key in "abc"]) for second in (0, 1000)
    ]
    job = ts.stream(event_time="t", watermark_delay="1 day").group_by("k").window(ts.tumbling("10 seconds"))
    harness = job.aggregate(n=agg.count(), total=agg.sum("v")).harness(
        seconds[0].schema, folder=tmp_path, partitions=4
    )
    for one in seconds:
        harness.feed(one)
    for checkpoint in (2, 3):
        asked = query(tmp_path, checkpoint=checkpoint)
        for table in asked.tables:
            wanted = asked.state(table).to_pylist()
            assert every_reader(scan_state(tmp_path, checkpoint, table=table)) == [wanted] * 3
    parts = scan_state(tmp_path, table="parts")
    with opened() as paths:
        assert sql("select count(*) from rows where slice_end > '2000-01-01'", parts) == [(0,)]
    assert paths == []
    with pytest.raises(NotFoundError, match="no-such-table"):
        scan_state(tmp_path, table="other")


@pytest.mark.long
def test_a_large_state_is_read_by_ranges_of_keys(tmp_path: Path) -> None:
    keys = batch([(0, f"{number:04}", number) for number in range(6000)])
    with mock.patch.object(sortedfile, "BLOCK_BYTES", 1 << 14):
        job = ts.stream(event_time="t", watermark_delay="1 day").group_by("k").window(ts.sessions("1 hour"))
        job = job.aggregate(n=agg.count()).accumulation("retracting").trigger(early=trigger.each_batch())
        store = Parquet(snapshot_bytes=1, max_levels=2)
        job.standalone(checkpoint=tmp_path, store=store).run([keys] * 6)
    wanted = query(tmp_path).state("groups").to_pylist()
    with (
        mock.patch("tidestate.recovery.inspect.scanned.UNCUT_BYTES", 0),
        mock.patch("tidestate.statestore.stores.parquet.BAND_SHARE", 1 << 14),
    ):
        dataset = scan_state(tmp_path, table="groups")
        assert len(dataset.files) > 3
        assert rows(dataset) == wanted
        with opened() as paths:
            assert dataset.to_table(filter=ds.field("k") == "0777").to_pylist() == [wanted[777]]
        assert len(paths) == 1


def test_checkpoints_with_those_that_were_abandoned(tmp_path: Path) -> None:
    sink = run(tmp_path)
    rewind(Checkpoint.open(tmp_path), 4)
    checkpoints = scan_checkpoints(tmp_path)
    found = sql("select checkpoint, kind, abandoned, panes, late, events from rows order by 1", checkpoints)
    assert found == [
        (1, "fence", False, 0, 0, 0),
        (2, "batch", False, 0, 0, 3),
        (3, "batch", False, 2, 0, 1),
        (4, "batch", False, 3, 0, 2),
        (5, "batch", True, 2, 0, 1),
        (6, "batch", True, 1, 0, 1),
        (7, "batch", True, 0, 3, 3),
        (8, "reset", False, 0, 0, 0),
    ]
    assert len(sink.rows) == 8
    frame = polars.scan_pyarrow_dataset(checkpoints).filter(polars.col(AT) == 4).select("watermark").collect()
    assert frame["watermark"].dt.epoch("s").to_list() == [11]


def test_after_a_rewind_each_line_is_read_as_it_was(tmp_path: Path) -> None:
    before = run(tmp_path)
    rewind(Checkpoint.open(tmp_path), 4)
    after = run(tmp_path, drain=True)
    wanted = before.until(4) + after.rows
    assert rows(scan_panes(tmp_path)) == wanted
    assert rows(scan_panes(tmp_path, net=True)) == counting(wanted, ["k"])
    assert rows(scan_panes(tmp_path, 6)) == before.until(6)  # abandoned since: it has what it had
    assert scan_panes(tmp_path, 6, net=True).to_table().num_rows == len(counting(before.until(6), ["k"]))


def test_changes_from_any_checkpoint_to_any_other_make_the_one_of_the_other(tmp_path: Path) -> None:
    run(tmp_path)
    rewind(Checkpoint.open(tmp_path), 4)
    run(tmp_path, stream=STREAM[:5])
    newest = len(Checkpoint.open(tmp_path).ids())
    panes: list[list[Row]] = [[], *(rows(scan_panes(tmp_path, number)) for number in range(1, newest + 1))]
    for since in range(0, newest + 1, 1 if LONG else 3):
        for until in range(1, newest + 1, 1 if LONG else 2):
            held = panes[since].copy()
            for change in rows(scan_changes(tmp_path, since, until)):
                if change.pop("change") == "removed":
                    held.remove(change)
                else:
                    held.append(change)
            assert held == panes[until], (since, until)
    late = rows(scan_changes(tmp_path, 6, 7, kind="late"))
    assert [row["change"] for row in late] == ["added"] * 3
    assert [row["reason"] for row in late] == ["very_late", "null_key", "null_event_time"]


def test_of_what_is_withdrawn_the_youngest_goes_first(tmp_path: Path) -> None:
    run(tmp_path)
    assert [row[AT] for row in rows(scan_changes(tmp_path, 6, 3))] == [6, 5, 5, 4, 4, 4]


def test_changes_read_no_manifest_before_them(tmp_path: Path) -> None:
    run(tmp_path)
    loaded: list[int] = []
    load = Checkpoint.load

    def noted(self: Checkpoint, number: int) -> Any:
        loaded.append(number)
        return load(self, number)

    with mock.patch.object(Checkpoint, "load", noted):
        assert scan_changes(tmp_path, 5).to_table().num_rows == 1
    assert min(loaded) >= 6


def test_after_a_collection_all_that_is_left_is_read(tmp_path: Path) -> None:
    sink = run(tmp_path)
    collect(Checkpoint.open(tmp_path), CheckpointRetention(newest=1, grace="0 seconds"))
    assert rows(scan_panes(tmp_path)) == sink.rows
    assert [row[AT] for row in rows(scan_changes(tmp_path, 4))] == [5, 5, 6]  # 4 was collected
    with pytest.raises(NotFoundError, match="collected"):
        scan_panes(tmp_path, 4)
    run(tmp_path)
    collect(Checkpoint.open(tmp_path), CheckpointRetention(newest=1, grace="0 seconds", panes="0 seconds"))
    assert rows(scan_panes(tmp_path)) == []
    assert rows(scan_changes(tmp_path, 0)) == []
    gone = Checkpoint.open(tmp_path).boundary().panes_gone
    assert rows(scan_changes(tmp_path, gone)) == []
    for since in (2, gone - 1):
        with pytest.raises(NotFoundError, match="collected"):
            scan_changes(tmp_path, since)


def test_a_time_chooses_a_checkpoint(tmp_path: Path) -> None:
    sink = run(tmp_path)
    made = {row[AT]: row["created"] for row in rows(scan_checkpoints(tmp_path))}
    assert rows(scan_panes(tmp_path, made[4])) == sink.until(4)
    assert rows(scan_panes(tmp_path, made[4].isoformat())) == sink.until(4)
    assert len(rows(scan_changes(tmp_path, made[4], made[6]))) == 3


def test_before_the_first_checkpoint_there_was_nothing_and_later_ones_may_be_collected(tmp_path: Path) -> None:
    empty = Checkpoint.open_or_create(tmp_path / "empty")
    with pytest.raises(NotFoundError, match=r"start the job first \[no-such-checkpoint\]"):
        scan_panes(empty, "2999-01-01")
    run(tmp_path / "root")
    times = {row[AT]: row["created"] for row in rows(scan_checkpoints(tmp_path / "root"))}
    early = [0, times[1] - timedelta(microseconds=1), "1999-01-01"]
    for moment in early:
        with pytest.raises(NotFoundError, match=r"\[no-such-checkpoint\]"):
            scan_panes(tmp_path / "root", moment)
    fork(tmp_path / "root", tmp_path / "fork", 4)
    with pytest.raises(NotFoundError, match=r"begins with a later checkpoint.*first=4"):
        scan_panes(tmp_path / "fork", 3)
    collect(Checkpoint.open(tmp_path / "root"), CheckpointRetention(newest=1, grace="0 seconds"))
    for moment in (1, 3, times[1], times[3]):
        with pytest.raises(NotFoundError, match="collected"):
            scan_panes(tmp_path / "root", moment)
    for moment in (0, "1999-01-01"):
        with pytest.raises(NotFoundError, match=r"\[no-such-checkpoint\]"):
            scan_panes(tmp_path / "root", moment)


def test_a_column_that_came_later_is_null_before(tmp_path: Path) -> None:
    run(tmp_path, stream=STREAM[:3])
    evolved = added(example("retracting"), twice=agg.sum("v"))
    sink = Sink()
    evolved.standalone(checkpoint=tmp_path, sink=sink).run(STREAM)
    found = rows(scan_panes(tmp_path))
    assert [row["twice"] for row in found[:5]] == [None] * 5
    assert found[5:] == sink.rows
    assert rows(scan_panes(tmp_path, net=True)) == counting(found, ["k"])


def test_a_column_of_the_job_has_its_name(tmp_path: Path) -> None:
    job = ts.stream(event_time="t").group_by("k").window(ts.tumbling("10 seconds"))
    job = job.aggregate(checkpoint=agg.count(), checkpoint__=agg.count(), change=agg.count())
    job.standalone(checkpoint=tmp_path).run(STREAM[:2], drain=True)
    found = scan_panes(tmp_path)
    assert found.schema.names[0] == "checkpoint_"
    assert scan_changes(tmp_path, 0).schema.names[:2] == ["change_", "checkpoint_"]
    assert set(scan_changes(tmp_path, 0).to_table()["checkpoint_"].to_pylist()) == {3, 4}
    assert found.to_table()["checkpoint"].to_pylist() == [2, 1, 1]
    assert scan_panes(tmp_path, net=True).to_table().equals(found.to_table())


def test_a_fork_has_its_own_panes_and_reads_the_state_of_its_root(tmp_path: Path) -> None:
    run(tmp_path / "root", stream=STREAM[:3])
    wanted = rows(scan_state(tmp_path / "root"))
    fork(tmp_path / "root", tmp_path / "fork", 4)
    assert rows(scan_state(tmp_path / "fork")) == wanted
    assert wanted
    assert rows(scan_panes(tmp_path / "fork")) == []


# In every run: the same on a disk, and on S3 `test_a_filter_on_another_column_reads_footers_only`.
@pytest.mark.long
def test_on_s3(s3_root: str) -> None:  # noqa: F811  (fixture)
    sink = run(s3_root, drain=True)
    assert rows(scan_panes(s3_root)) == sink.rows
    assert rows(scan_panes(s3_root, net=True)) == counting(sink.rows, ["k"])
    assert scan_state(s3_root, 4).to_table().num_rows == query(s3_root, checkpoint=4).state("parts").num_rows


def test_what_tasks_get_reads_the_same_elsewhere(tmp_path: Path) -> None:
    sink = run(tmp_path)
    net_of = counting(sink.rows, ["k"])
    for scan, wanted in ((panes_of_root(tmp_path), sink.rows), (panes_of_root(tmp_path, net=True), net_of)):
        found = [pickle.loads(pickle.dumps(share)) for share in scan.shares()]
        assert [row for one in found for part in one.batches() for row in part.to_pylist()] == wanted


BAD: list[tuple[Callable[[Path], Any], str]] = [
    (lambda root: scan_panes(root / "nothing"), "no-checkpoint"),
    (lambda root: scan_panes(root, 99), "no-such-checkpoint"),
    (lambda root: scan_panes(root, "yesterday"), "rewind-to"),
    (lambda root: scan_changes(root, 99), "no-such-checkpoint"),
    (lambda root: scan_changes(root, 1, kind="other"), "read-kind"),  # type: ignore[arg-type]
    (lambda root: scan_panes(root, "1999-01-01"), "no-such-checkpoint"),
    (lambda root: scan_changes(root, date(1999, 1, 1)), "no-such-checkpoint"),
    (lambda root: scan_panes(root, np.datetime64("1999")), "no-such-checkpoint"),
    (lambda root: scan_panes(root, 0), "no-such-checkpoint"),
    (lambda root: scan_panes(root, -1), "no-such-checkpoint"),
]


def test_what_is_not_there_is_an_error_of_ours(tmp_path: Path) -> None:
    run(tmp_path, stream=STREAM[:1])
    for call, code in BAD:
        with pytest.raises((NotFoundError, UsageError)) as error:
            call(tmp_path)
        assert error.value.code == code


@pytest.mark.long
@pytest.mark.slow
def test_a_process_that_ends_right_after_a_scan_ends_well(tmp_path: Path) -> None:
    """Threads of Arrow let go of files after the rows are there; without a wait at the end most such runs abort."""
    rows = pa.table({"t": pa.array([0, 9_000_000]).cast(pa.timestamp("us", "UTC")), "k": ["a", "b"]})
    job = ts.stream(event_time="t").group_by("k").window(ts.tumbling("1 second")).aggregate(n=agg.count())
    job.standalone(checkpoint=tmp_path).run([rows], drain=True)
    runs = 3 if LONG else 1
    program = f"import tidestate; root = tidestate.Root({str(tmp_path)!r}); "
    program += "assert root.panes().to_table().num_rows == 2; root.state().to_table()"
    done = [subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False) for _ in range(runs)]
    assert [one.returncode for one in done] == [0] * runs
